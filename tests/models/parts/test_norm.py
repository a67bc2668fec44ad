"""LayerNorm and RMSNorm against torch's modules, hooked and unhooked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.config import DecoderConfig
from models.hooks.point import Registration
from models.parts.norm import NoNorm, make_norm


def norm_of(kind, eps=1e-5, bias=True):
    cfg = DecoderConfig(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, norm=kind, norm_eps=eps, norm_bias=bias)
    norm = make_norm(cfg)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_(1, 0.5, generator=generator)
    return norm


def torchs(norm, kind, bias):
    theirs = nn.LayerNorm(8, eps=norm.eps, bias=bias) if kind == "layer" else nn.RMSNorm(8, eps=norm.eps)
    with torch.no_grad():
        theirs.weight.copy_(norm.w)
        if norm.b is not None:
            theirs.bias.copy_(norm.b)
    return theirs


@pytest.mark.parametrize("eps", [1e-5, 1e-2, 1.0])
@pytest.mark.parametrize(("kind", "bias"), [("layer", True), ("layer", False), ("rms", False)])
@pytest.mark.parametrize("hooked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_torchs(kind, bias, eps, hooked, dtype):
    norm = norm_of(kind, eps, bias)
    theirs = torchs(norm, kind, bias).to(dtype)
    norm.to(dtype)
    x = 3 + 2 * torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    seen = []
    if hooked:
        norm.hook_scale.attach(Registration("readers", lambda value, hook: seen.append(value)))
    torch.testing.assert_close(norm(x), theirs(x))
    torch.testing.assert_close(norm.unhooked(x), theirs(x))
    assert len(seen) == hooked
    if hooked:
        spread = x.var(-1, unbiased=False, keepdim=True) if kind == "layer" else x.square().mean(-1, keepdim=True)
        torch.testing.assert_close(seen[0], (spread + eps).sqrt())


def test_rms_norm_has_no_bias_and_no_norm_is_the_identity():
    assert norm_of("rms").b is None
    assert norm_of("layer", bias=False).b is None
    cfg = DecoderConfig(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, norm="none")
    nothing, x = make_norm(cfg), torch.randn(1, 2, 8)
    assert isinstance(nothing, NoNorm)
    assert nothing(x) is x
    assert nothing.unhooked(x) is x


def test_large_values_in_half_precision_do_not_overflow_the_statistics():
    norm = norm_of("rms").to(torch.float16)
    x = torch.full((1, 1, 8), 1000.0, dtype=torch.float16)
    _, scale = norm.statistics(x)
    assert scale.dtype == torch.float32
    torch.testing.assert_close(scale.item(), 1000.0)
    assert norm(x).isfinite().all()
