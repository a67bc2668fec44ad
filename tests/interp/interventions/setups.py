"""Small models and prompt pairs that patching and ablation are tested on, and how the oracle judges a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interp.interventions.cells import SITES, Site
from models import DecoderConfig, HookedDecoder
from tests.configurations import random_model
from tests.oracles.patching import last_real

_SMALL = {"n_layers": 3, "d_model": 8, "n_heads": 2, "d_vocab": 11, "n_ctx": 8, "d_mlp": 6}
_LLAMA = {
    **_SMALL,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_head": 4,
    "positions": "rotary",
    "norm": "rms",
    "act": "silu",
    "gated": True,
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
}
ATTENTION_ONLY = {**_SMALL, "d_mlp": None, "attn_only": True}
ARCHITECTURES: dict[str, DecoderConfig] = {
    "gpt2": DecoderConfig(**_SMALL, tied=True, unembed_bias=True),
    "llama-window": DecoderConfig(**_LLAMA, sliding_window=3),
    "parallel-interleaved": DecoderConfig(
        **_SMALL, n_kv_heads=1, d_head=6, positions="rotary", rotary_layout="interleaved", rotary_dim=4, parallel=True
    ),
    "post-norm": DecoderConfig(**_SMALL, positions="sinusoidal", norm_position="post"),
    "attention-only": DecoderConfig(**ATTENTION_ONLY),
    "one-layer": DecoderConfig(**{**_SMALL, "n_layers": 1}, norm="none"),
}
ANSWER, WRONG = [3, 4, 5], 6
FIRST = 2  # the first column in which a pair differs


@dataclass(frozen=True)
class Setup:
    """A model and a pair of prompts; ``real`` is None or their mask."""

    model: HookedDecoder
    clean: Tensor
    corrupted: Tensor
    real: Tensor | None

    def logit_difference(self, logits: Tensor) -> Tensor:
        rows = zip(logits, last_real(self.real, self.clean), ANSWER, strict=True)
        return torch.stack([row[column, answer] - row[column, WRONG] for row, column, answer in rows])

    def loss_of(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the judge of the mean next-token loss."""

        def judge(logits: Tensor) -> Tensor:
            losses = []
            for i in range(len(tokens)):
                pairs = [
                    -logits[i, column].log_softmax(-1)[tokens[i, column + 1]]
                    for column in range(tokens.shape[1] - 1)
                    if self.real is None or (self.real[i, column] and self.real[i, column + 1])
                ]
                losses.append(sum(pairs) / len(pairs))
            return torch.stack(losses)

        return judge

    def cached(self, tokens: Tensor) -> dict[str, Tensor]:
        """Return every activation of an unpatched run."""
        return dict(self.model.run_with_cache(tokens, attention_mask=self.real)[1])


def make_setup(cfg: DecoderConfig, padding: str = "none", dtype: torch.dtype = torch.float64, width: int = 5) -> Setup:
    """Return three pairs that differ from column ``FIRST`` on, padded on no side, the left, the right or both."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(cfg.d_vocab, (3, width), generator=generator)
    corrupted = clean.clone()
    corrupted[:, FIRST:] = torch.randint(cfg.d_vocab, (3, width - FIRST), generator=generator)
    real = None
    if padding != "none":
        real = torch.ones(3, width, dtype=torch.bool)
        if padding in ("left", "both"):
            real[0, :2] = False
        if padding in ("right", "both"):
            real[1, -2:] = False
    model = random_model(cfg, dtype=dtype).requires_grad_(False)
    return Setup(model, clean, corrupted, real)


def sites_of(cfg: DecoderConfig) -> list[Site]:
    """Return the sites that a model has."""
    absent = {"resid_mid"} if cfg.attn_only or cfg.parallel else set()
    if cfg.attn_only:
        absent |= {"mlp_post", "mlp_out"}
    return [site for site in SITES.values() if site.name not in absent]


def combinations(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Give every choice of axes, in the order listed."""
    for size in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, size)
