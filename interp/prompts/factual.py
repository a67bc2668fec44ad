"""Facts: the capital of a country, against that of another.

clean       The capital of France is the city of   -> Paris
corrupted   The capital of Japan is the city of    -> Tokyo
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interp.checks import whole_number
from interp.prompts.pairs import PromptBatch, PromptPair, prompt_batch, single_token, single_tokens
from models.errors import InputError
from models.protocol import HookedModel

TEMPLATE = "The capital of{subject} is the city of"
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Russia": "Moscow",
    "Egypt": "Cairo",
    "England": "London",
    "Greece": "Athens",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Ireland": "Dublin",
    "Portugal": "Lisbon",
    "Sweden": "Stockholm",
    "Norway": "Oslo",
    "Hungary": "Budapest",
}


def factual_prompts(
    model: HookedModel,
    n: int = 8,
    *,
    facts: Mapping[str, str] | None = None,
    template: str = TEMPLATE,
    seed: int = 0,
) -> PromptBatch:
    """Draw pairs of facts of one kind.

    Args:
        model: its tokenizer decides which of the built-in facts have single tokens and may be used.
        n: how many pairs, each of another subject.
        facts: subject -> answer; each must be a single token with a space in front. By default countries' capitals.
        template: with one ``{subject}``, filled with its leading space.
        seed: of the draw.

    Returns:
        Pairs with the positions ``subject`` and ``end``.

    Raises:
        InputError: fewer than ``n`` facts, a word of several tokens, a template without its field.
    """
    if template.count("{subject}") != 1:
        raise InputError(f"template {template!r} must have the field {{subject}} once")
    n, seed = whole_number(n, "n", 1), whole_number(seed, "seed")
    if facts is not None and not isinstance(facts, Mapping):
        raise InputError(f"facts is a {type(facts).__name__}; expected a mapping, subject -> answer")
    written = CAPITALS if facts is None else facts
    known = {f" {subject.strip()}": f" {answer.strip()}" for subject, answer in written.items()}
    if facts is None:
        words = set(single_tokens(model, [*known, *known.values()]))
        known = {subject: answer for subject, answer in known.items() if {subject, answer} <= words}
    else:
        for word in (*known, *known.values()):
            single_token(model, word)
    if n > len(known) or len(known) < 2:
        raise InputError(
            f"{n} pairs need {max(n, 2)} facts whose words are single tokens; this model has {len(known)}: give others "
            "with facts={...}, or fewer pairs"
        )
    subjects = [list(known)[i] for i in np.random.default_rng(seed).permutation(len(known))]
    pairs = []
    for number in range(n):
        subject, other = subjects[number], subjects[(number + 1) % len(subjects)]
        clean, corrupted = (template.replace("{subject}", one) for one in (subject, other))
        pairs.append(PromptPair(clean, corrupted, known[subject], known[other], {"subject": subject}))
    return prompt_batch(model, pairs, "facts")
