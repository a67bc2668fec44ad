"""Fast ways know their conditions: a part that is not what was built is swept naively, or refused by what reads it."""

from __future__ import annotations

import types
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from interp import (
    LogitDifference,
    ablation_sweep,
    activation_patching,
    attribution_patching,
    logit_lens,
    path_patching,
    residual_writes,
)
from interp.weights import composition_scores, link_effects
from models import HookedDecoder
from models.errors import InputError
from models.parts.attention import Attention
from models.parts.linear import Linear
from models.parts.mlp import MLP
from tests.interp.interventions.setups import ANSWER, ARCHITECTURES, WRONG, Setup, make_setup, sites_of
from tests.oracles import patching as oracle

DIFFERENCE = LogitDifference(ANSWER, WRONG)
Replace = Callable[[HookedDecoder, pytest.MonkeyPatch], None]


class Adapter(nn.Module):
    """Half of what the layer inside gives; weight and bias are passed through, as adapters do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @property
    def weight(self) -> Tensor:
        return self.inner.weight

    @property
    def bias(self) -> Tensor | None:
        return self.inner.bias

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * self.inner(x)


class QueryNorm(Attention):
    """Queries and keys are made unit vectors before they meet."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: object) -> Tensor:
        return super().attend(q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v, mask)


def around(*path: str) -> Replace:
    def replace(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
        part: nn.Module = model.blocks[1]
        for name in path[:-1]:
            part = getattr(part, name)
        setattr(part, path[-1], Adapter(getattr(part, path[-1])))

    return replace


def subclass(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    attn = QueryNorm(model.cfg).to(model.dtype).requires_grad_(False)
    attn.load_state_dict(model.blocks[1].attn.state_dict())
    for name, point in attn.named_children():
        if name.startswith("hook_"):
            known = model.blocks[1].attn.get_submodule(name)
            point.__dict__.update({key: value for key, value in vars(known).items() if not key.startswith("_")})
            model._points[known.name] = point
    model.blocks[1].attn = attn


def forward_of_an_instance(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    mlp = model.blocks[1].mlp
    mlp.forward = types.MethodType(lambda self, x: 0.5 * MLP.forward(self, x), mlp)


def forward_of_the_output(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    o = model.blocks[1].attn.o
    o.forward = types.MethodType(lambda self, z: 0.5 * Linear.forward(self, z), o)


def forward_of_attention(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    plain = Attention.forward
    patch.setattr(Attention, "forward", lambda self, *args, **kwargs: 0.5 * plain(self, *args, **kwargs))


def forward_of_a_class(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    plain = MLP.forward
    patch.setattr(MLP, "forward", lambda self, x: plain(self, 0.5 * x))


def method_of_a_class(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    plain = Attention.write
    patch.setattr(Attention, "write", lambda self, z: plain(self, 0.5 * z))


def call_of_every_module(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    plain = nn.Module.__call__

    def call(self: nn.Module, *args: object, **kwargs: object) -> object:
        return plain(self, *args, **kwargs) * 0.5 if isinstance(self, MLP) else plain(self, *args, **kwargs)

    patch.setattr(nn.Module, "__call__", call)


def a_hook_on_all_modules(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: 0.5 * out if isinstance(module, MLP) else None
    )
    patch.setattr(model, "handle", handle, raising=False)


def parametrized(model: HookedDecoder, patch: pytest.MonkeyPatch) -> None:
    class Half(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 0.5 * weight

    nn.utils.parametrize.register_parametrization(model.blocks[1].attn.o, "weight", Half())


REPLACED: dict[str, tuple[Replace, str]] = {
    "adapter around attn.o": (around("attn", "o"), r"blocks\.1\.attn\.o is an Adapter"),
    "adapter around attn.q": (around("attn", "q"), r"blocks\.1\.attn\.q is an Adapter"),
    "adapter around mlp.out": (around("mlp", "out"), r"blocks\.1\.mlp\.out is an Adapter"),
    "adapter around mlp.inp": (around("mlp", "inp"), r"blocks\.1\.mlp\.inp is an Adapter"),
    "adapter around the mlp": (around("mlp"), r"blocks\.1\.mlp is an Adapter"),
    "query norm in a subclass": (subclass, r"blocks\.1\.attn is a QueryNorm"),
    "forward of an instance": (forward_of_an_instance, r"blocks\.1\.mlp has a forward of its own"),
    "forward of the heads' output": (forward_of_the_output, r"blocks\.1\.attn\.o has a forward of its own"),
    "forward of attention": (forward_of_attention, r"Attention\.forward was replaced"),
    "forward of a class": (forward_of_a_class, r"MLP\.forward was replaced"),
    "method of a class": (method_of_a_class, r"Attention\.write was replaced"),
    "call of every module": (call_of_every_module, r"torch\.nn\.Module\.__call__ was replaced"),
    "a hook on all modules": (a_hook_on_all_modules, "a hook of PyTorch's is on all modules"),
    "parametrized weight": (parametrized, r"blocks\.1\.attn\.o is a ParametrizedLinear"),
}


@pytest.fixture(params=REPLACED)
def replaced(request, monkeypatch):
    setup = make_setup(ARCHITECTURES["gpt2"])
    plain = setup.model(setup.clean)
    replace, why = REPLACED[request.param]
    replace(setup.model, monkeypatch)
    assert not torch.allclose(setup.model(setup.clean), plain)
    yield setup, why
    if hasattr(setup.model, "handle"):
        setup.model.handle.remove()


def naively(setup: Setup, site: str, over: tuple[str, ...]) -> np.ndarray:
    instead = setup.cached(setup.clean)
    return oracle.sweep(setup.model, setup.corrupted, instead, site, over, setup.logit_difference)


@pytest.mark.parametrize("site", [site.name for site in sites_of(ARCHITECTURES["gpt2"])])
def test_a1_sweeps_over_a_replaced_part_equal_the_naive_loop(replaced, site):
    setup, _ = replaced
    found = activation_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE, site=site, over="layer")
    assert not found.resumed
    np.testing.assert_allclose(found.values["logit_difference"], naively(setup, site, ("layer",)), atol=1e-9)


def test_a1_ablation_of_a_replaced_part_equals_the_naive_loop(replaced):
    setup, _ = replaced
    found = ablation_sweep(setup.model, setup.clean, DIFFERENCE, site="z", method="zero")
    zeros = {name: torch.zeros_like(value) for name, value in setup.cached(setup.clean).items()}
    wanted = oracle.sweep(setup.model, setup.clean, zeros, "z", found.axes, setup.logit_difference)
    assert not found.resumed
    np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-9)


READERS: dict[str, Callable[[Setup], object]] = {
    "path_patching": lambda s: path_patching(s.model, s.clean, s.corrupted, DIFFERENCE),
    "composition_scores": lambda s: composition_scores(s.model),
    "link_effects": lambda s: link_effects(s.model, s.clean, [], "K"),
    "residual_writes": lambda s: residual_writes(s.model, s.model.run_with_cache(s.clean)[1]),
    "qk_fix": lambda s: attribution_patching(
        s.model, s.clean, s.corrupted, DIFFERENCE, site="q", over=("layer", "head"), qk_fix=True
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a1_what_reads_weights_refuses_a_replaced_part_by_name(replaced, reader):
    setup, why = replaced
    with pytest.raises(InputError, match=why) as caught:
        READERS[reader](setup)
    assert "\n" not in str(caught.value)


def test_a1_a_lens_reads_what_it_reads_alone(monkeypatch):
    """An adapter in a block is no matter to it, one around the unembedding is."""
    setup = make_setup(ARCHITECTURES["gpt2"])
    around("attn", "o")(setup.model, monkeypatch)
    target = int(setup.clean[0, -1])
    found = logit_lens(setup.model, setup.clean[:1], target=target)
    wanted = setup.model(setup.clean[:1])[0].softmax(-1)[:, target]
    assert found.target_probability is not None
    np.testing.assert_allclose(found.target_probability[-1, 0], wanted, atol=1e-6)
    setup.model.unembed = Adapter(setup.model.unembed)
    with pytest.raises(InputError, match="unembed is an Adapter"):
        logit_lens(setup.model, setup.clean[:1], target=target)


def test_a1_what_was_replaced_and_put_back_is_resumed_again(monkeypatch):
    setup = make_setup(ARCHITECTURES["gpt2"])
    block = setup.model.blocks[1]
    inner = block.attn.o
    for expected in (True, False, True):
        block.attn.o = inner if expected else Adapter(inner)
        found = activation_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE, site="z", over="layer")
        assert found.resumed is expected
    forward_of_an_instance(setup.model, monkeypatch)
    assert setup.model.replaced_part() is not None
    del block.mlp.forward
    with monkeypatch.context() as patch:
        forward_of_a_class(setup.model, patch)
        assert setup.model.replaced_part() is not None
    assert setup.model.replaced_part() is None


def test_a1_a_compiled_part_and_a_transform_are_not_vouched_for():
    model = make_setup(ARCHITECTURES["gpt2"]).model
    model.blocks[0].mlp._compiled_call_impl = model.blocks[0].mlp._call_impl  # as its method compile() does
    assert model.replaced_part() == "blocks.0.mlp is compiled"
    model.blocks[0].mlp._compiled_call_impl = None
    seen: list[str | None] = []

    def look(x: Tensor) -> Tensor:
        seen.append(model.replaced_part())
        return x

    torch.func.vmap(look)(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        look(torch.ones(2))
    look(torch.ones(2))
    assert seen == ["a function transform of PyTorch's is in play"] * 2 + [None]


def test_a1_counters_of_operations_do_not_hinder():
    setup = make_setup(ARCHITECTURES["gpt2"])
    with FlopCounterMode(display=False):
        found = activation_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE, site="z", over="layer")
    assert found.resumed


@pytest.mark.parametrize("site", ["q", "k"])
def test_a1_scores_computed_anew_have_the_scale_of_the_part(site):
    """Twice the scale is twice the queries, for whatever computes scores."""
    by_scale, by_weight = (make_setup(ARCHITECTURES["gpt2"]) for _ in range(2))
    for ours, theirs in zip(by_scale.model.blocks, by_weight.model.blocks, strict=True):
        ours.attn.scale *= 2
        theirs.attn.q.weight *= 2
        theirs.attn.q.bias *= 2
    options = {"site": site, "over": ("layer", "head"), "qk_fix": True}
    first, second = (
        attribution_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE, **options)
        for setup in (by_scale, by_weight)
    )
    np.testing.assert_allclose(first.values["logit_difference"], second.values["logit_difference"], rtol=0, atol=1e-9)
    exact = [
        activation_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE, site=site, over=("layer", "head"))
        for setup in (by_scale, by_weight)
    ]
    assert all(one.resumed for one in exact)
    np.testing.assert_allclose(*(one.values["logit_difference"] for one in exact), rtol=0, atol=1e-9)
