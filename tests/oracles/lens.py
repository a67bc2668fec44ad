"""The slow, obvious lens: full logits at every depth, one position at a time, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from models.decoder import HookedDecoder
from tests.oracles.decoder import decode


def lens_logits(model: HookedDecoder, tokens: Tensor, at: tuple[str, ...] = ("resid_post",)) -> Tensor:
    """Return the logits of every depth, ``[row, batch, pos, d_vocab]``, from the slow decoder's streams."""
    _, seen = decode(model, tokens)
    streams = [seen["blocks.0.hook_resid_pre"]]
    for layer in range(model.cfg.n_layers):
        if "resid_mid" in at:
            streams.append(seen[f"blocks.{layer}.hook_resid_mid"])
        streams.append(seen[f"blocks.{layer}.hook_resid_post"])
    weights = {name: value.double() for name, value in model.state_dict().items()}
    table = weights["embed.W_E"] if model.cfg.tied else weights["unembed.weight"]
    rows = []
    for stream in streams:
        row = torch.stack([torch.stack([table @ _final(model, weights, x) for x in example]) for example in stream])
        rows.append(row + weights["unembed.bias"] if model.cfg.unembed_bias else row)
    return torch.stack(rows)


def _final(model: HookedDecoder, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    cfg = model.cfg
    if cfg.norm == "none" or cfg.norm_position == "post":
        return x
    if cfg.norm == "layer":
        x = x - x.sum() / len(x)
    x = x / torch.sqrt((x**2).sum() / len(x) + cfg.norm_eps) * weights["ln_final.w"]
    return x + weights["ln_final.b"] if "ln_final.b" in weights else x


def entropy(logits: Tensor) -> float:
    """-sum p log p, in nats."""
    p = logits.softmax(-1)
    return -sum(float(q * q.log()) for q in p if q > 0)


def kl(final: Tensor, logits: Tensor) -> float:
    """sum f log(f / p), in nats."""
    f, p = final.softmax(-1), logits.softmax(-1)
    return sum(float(a * (a.log() - b.log())) for a, b in zip(f, p, strict=True) if a > 0)


def rank(logits: Tensor, target: int) -> int:
    """How many tokens are more likely than the target."""
    return sum(float(other) > float(logits[target]) for other in logits)
