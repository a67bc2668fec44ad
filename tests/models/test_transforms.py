"""Derivatives by every mode agree: fast kernels serve where no transform, tangent or graph is in play."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from models import DecoderConfig, HookedDecoder
from models.hooks.point import HookPoint

# PyTorch's own table of tangents is made with it, at its first use
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

WIDE = {"n_layers": 2, "d_model": 512, "n_heads": 4, "d_vocab": 512, "n_ctx": 8, "d_mlp": 512}  # weights of 512 x 512
MODELS = {
    "gpt2": DecoderConfig(**WIDE),
    "llama": DecoderConfig(**WIDE, n_kv_heads=2, positions="rotary", norm="rms", act="silu", gated=True),
}
TOKENS = torch.tensor([[3, 5, 7, 5]])


@pytest.fixture(params=MODELS)
def model(request) -> HookedDecoder:
    return HookedDecoder(MODELS[request.param], seed=1).requires_grad_(False).eval()


def of_the_stream(model: HookedDecoder, hooks: list) -> Callable[[Tensor], Tensor]:
    """Return the log-probability of the last token as a function of what is added to the stream entering layer 0."""

    def function(added: Tensor) -> Tensor:
        def add(value: Tensor, hook: HookPoint) -> Tensor:
            return value + added

        logits = model.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.hook_resid_pre", add), *hooks])
        return logits[0, -1].log_softmax(-1)[5]

    return function


def same(value: Tensor, hook: HookPoint) -> None:
    """Look at the pattern, so that it is computed."""


HOOKED = {"plain": [], "pattern": [("blocks.1.attn.hook_pattern", same)], "z": [("blocks.0.attn.hook_z", same)]}


@pytest.mark.parametrize("hooks", HOOKED)
def test_a3_forward_mode_equals_reverse_mode(model, hooks):
    function = of_the_stream(model, HOOKED[hooks])
    generator = torch.Generator().manual_seed(0)
    at, along = (torch.randn(1, 4, 512, generator=generator) for _ in range(2))
    start = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(start), start)
    expected = float((gradient * along).sum())
    assert abs(expected) > 1e-3
    _, by_jvp = torch.func.jvp(function, (at,), (along,))
    assert float(by_jvp) == pytest.approx(expected, rel=1e-3)
    with forward_ad.dual_level():
        by_dual = forward_ad.unpack_dual(function(forward_ad.make_dual(at, along))).tangent
    assert by_dual is not None
    assert float(by_dual) == pytest.approx(expected, rel=1e-3)
    along_line = torch.func.jacfwd(lambda t: function(at + t * along))(torch.zeros(()))
    assert float(along_line) == pytest.approx(expected, rel=1e-3)
    by_grad = torch.func.grad(function)(at)
    torch.testing.assert_close(by_grad, gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("hooks", HOOKED)
def test_a3_derivatives_equal_finite_differences(hooks):
    model = HookedDecoder(MODELS["gpt2"], seed=1).requires_grad_(False).double()
    function = of_the_stream(model, HOOKED[hooks])
    generator = torch.Generator().manual_seed(0)
    at, along = (torch.randn(1, 4, 512, generator=generator, dtype=torch.float64) for _ in range(2))
    _, by_jvp = torch.func.jvp(function, (at,), (along,))
    step = 1e-5
    expected = (function(at + step * along) - function(at - step * along)) / (2 * step)
    assert float(by_jvp) == pytest.approx(float(expected), rel=1e-6)


def test_a3_vmap_equals_a_loop(model):
    function = of_the_stream(model, HOOKED["pattern"])
    several = torch.randn(3, 1, 4, 512, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([function(one) for one in several])
    torch.testing.assert_close(torch.func.vmap(function)(several), expected, rtol=1e-4, atol=1e-4)


def test_a3_parameters_given_from_outside_are_differentiated(model):
    weights = {"blocks.1.mlp.out.weight": model.blocks[1].mlp.out.weight.detach().clone()}
    along = {
        name: torch.randn(value.shape, generator=torch.Generator().manual_seed(0)) for name, value in weights.items()
    }

    def function(given: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, given, (TOKENS,))[0, -1].log_softmax(-1)[5]

    gradients = torch.func.grad(function)(weights)
    expected = sum(float((gradients[name] * along[name]).sum()) for name in weights)
    _, by_jvp = torch.func.jvp(function, (weights,), (along,))
    assert float(by_jvp) == pytest.approx(expected, rel=1e-3)
