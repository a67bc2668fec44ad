"""The pairs to begin with, for any model: IOI where it knows names, else repeated tokens."""

from __future__ import annotations

from interp.prompts.ioi import NAMES, ioi_prompts
from interp.prompts.pairs import PromptBatch, single_tokens
from interp.prompts.repeated import repeated_token_prompts
from models.protocol import HookedModel

_ENOUGH_NAMES = 5


def default_prompts(model: HookedModel, n: int = 8, *, seed: int = 0) -> PromptBatch:
    """Return IOI pairs where the tokenizer has names as single tokens, else pairs of repeated random tokens.

    The latter are corrupted at the cue, so that a sweep shows the heads that say where to look beside those that copy.
    """
    knows_names = model.tokenizer is not None and (
        len(single_tokens(model, [f" {name}" for name in NAMES])) >= _ENOUGH_NAMES
    )
    return (
        ioi_prompts(model, n, seed=seed)
        if knows_names
        else repeated_token_prompts(model, n, corruption="cue", seed=seed)
    )
