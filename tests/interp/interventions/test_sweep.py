"""The engine: what a sweep costs, which path it takes, and what an interrupt leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.decoders import can_resume
from interp.interventions.ablation import ablation_sweep
from interp.interventions.activation_patching import activation_patching
from interp.interventions.path_patching import path_patching
from interp.metrics import LogitDifference, Loss
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.hooks.module import HookedModule
from models.parts import linear
from tests.interp.interventions.setups import (
    ANSWER,
    ARCHITECTURES,
    FIRST,
    WRONG,
    combinations,
    make_setup,
    sites_of,
)
from tests.oracles import patching as oracle

DIFFERENCE = LogitDifference(ANSWER, WRONG)
AFTER_MLP = ("mlp_post", "mlp_out", "resid_post")


# -- scenario 1: what is counted -----------------------------------------------------------------------------------


def formula(cfg: DecoderConfig, site: str, over: dict[str, int], width: int, reads: list[int], batch: int) -> int:
    """Return the block-tokens of one cell, by the docstring of ``interp.interventions.resume``."""
    layer, last = over["layer"], cfg.n_layers - 1
    column = over.get("pos", over.get("dest_pos"))
    start = max(FIRST, column or 0, over.get("src_pos", 0))
    if start >= width or column not in (None, start):
        return 0  # before the first difference, or a source position that the destination cannot see
    tokens, read = width - start, sum(place >= start for place in reads)
    if site in AFTER_MLP or (site != "resid_pre" and (cfg.parallel or cfg.attn_only)):
        own = 0
    elif site in ("resid_pre", "k", "v") or column is None:
        own = tokens if layer < last else read
    else:
        own = 1 if layer < last or column in reads else 0
    between = max(last - layer - 1, 0) * tokens
    return batch * (own + between + (read if layer < last else 0))


@contextmanager
def rows_through(model: HookedDecoder) -> Iterator[list[int]]:
    """Count the tokens that pass each block's MLP (without one, its attention's output).

    Not by hooks of PyTorch's or a ``forward`` of a part's own: a model with one of them is not resumed.
    """
    counts: list[int] = []
    counted = [block.attn.o.weight if block.mlp is None else block.mlp.inp.weight for block in model.blocks]
    plain = linear.linear

    def count(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if any(weight is one for one in counted):
            counts.append(x.shape[:-1].numel())
        return plain(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "linear", count)
        yield counts


@pytest.mark.parametrize("every_token_is_read", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "parallel-interleaved", "attention-only", "post-norm"])
def test_what_is_computed_is_what_the_formula_says(name, every_token_is_read):
    setup = make_setup(ARCHITECTURES[name])
    cfg, (batch, width) = setup.model.cfg, setup.clean.shape
    metric = Loss(setup.corrupted) if every_token_is_read else DIFFERENCE
    reads = list(range(width - 1)) if every_token_is_read else [width - 1]
    for site in sites_of(cfg):
        for over in combinations(site.axes):
            if "layer" not in over or "neuron" in over:
                continue
            with rows_through(setup.model) as rows:
                found = activation_patching(
                    setup.model, setup.clean, setup.corrupted, metric, site=site.name, over=over
                )
            cells = [dict(zip(over, cell, strict=True)) for cell in np.ndindex(found.mean().shape)]
            wanted = sum(formula(cfg, site.name, cell, reads[-1] + 1, reads, batch) for cell in cells)
            assert found.block_tokens == wanted, (site.name, over)
            both_runs = 2 * batch * width * cfg.n_layers
            assert sum(rows) - both_runs == wanted, (site.name, over)
            assert found.naive_block_tokens == len(cells) * batch * width * cfg.n_layers


@pytest.mark.parametrize(("site", "over"), [("resid_pre", ("layer", "pos")), ("z", ("layer", "head"))])
def test_twice_the_layers_or_positions_cost_what_the_formula_says(site, over):
    def counted(n_layers: int, width: int) -> int:
        cfg = ARCHITECTURES["gpt2"].replace(n_layers=n_layers, n_ctx=32)
        setup = make_setup(cfg, width=width)
        return activation_patching(
            setup.model, setup.clean, setup.corrupted, DIFFERENCE, site=site, over=over
        ).block_tokens

    def wanted(n_layers: int, width: int) -> int:
        cfg = ARCHITECTURES["gpt2"].replace(n_layers=n_layers)
        sizes = [n_layers, width if "pos" in over else cfg.n_heads]
        cells = [dict(zip(over, cell, strict=True)) for cell in np.ndindex(*sizes)]
        return sum(formula(cfg, site, cell, width, [width - 1], 3) for cell in cells)

    for n_layers, width in [(3, 6), (6, 6), (3, 12)]:
        assert counted(n_layers, width) == wanted(n_layers, width)
    assert counted(12, 6) / counted(6, 6) == pytest.approx(4, rel=0.25)
    assert counted(3, 24) / counted(3, 12) == pytest.approx(4 if "pos" in over else 2, rel=0.25)


# -- which path ----------------------------------------------------------------------------------------------------


def test_hooks_of_the_users_own_are_not_passed_by():
    setup = make_setup(ARCHITECTURES["gpt2"])
    call = {"site": "z", "over": ("layer", "head")}
    plain = activation_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE, **call)

    def double(value: Tensor, hook: object) -> Tensor:
        return value * 2

    with setup.model.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", double)]):
        hooked = activation_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE, **call)
        clean = setup.model(setup.clean)
        _, cache = setup.model.run_with_cache(setup.clean)

        def patch(value: Tensor, hook: object) -> None:
            value[:, :, 1] = cache["z", 0][:, :, 1]

        by_hand = setup.model.run_with_hooks(setup.corrupted, fwd_hooks=[("blocks.0.attn.hook_z", patch)])
    assert plain.resumed
    assert not hooked.resumed
    assert hooked.block_tokens == hooked.naive_block_tokens
    np.testing.assert_allclose(hooked.clean["logit_difference"], setup.logit_difference(clean))
    np.testing.assert_allclose(hooked.values["logit_difference"][0, 1], setup.logit_difference(by_hand))
    assert np.abs(hooked.mean() - plain.mean()).max() > 1e-3


PARTS = {
    "the model": lambda model: model,
    "a block": lambda model: model.blocks[1],
    "attention": lambda model: model.blocks[1].attn,
    "an MLP": lambda model: model.blocks[0].mlp,
    "the final norm": lambda model: model.ln_final,
}


@pytest.mark.parametrize("part", PARTS)
def test_hooks_of_pytorchs_own_are_not_passed_by(part):
    setup = make_setup(ARCHITECTURES["gpt2"])
    module = PARTS[part](setup.model)
    with torch.no_grad():
        handle = module.register_forward_hook(lambda module, args, out: 0.2 * out)
        clean = setup.logit_difference(setup.model(setup.clean))
        instead = setup.cached(setup.clean)
        wanted = oracle.sweep(
            setup.model, setup.corrupted, instead, "resid_pre", ("layer", "pos"), setup.logit_difference
        )
        found = activation_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE)
        ablated = ablation_sweep(setup.model, setup.clean, DIFFERENCE, method="zero")
        with pytest.raises(InputError, match="with no hooks attached, ours or PyTorch's"):
            path_patching(setup.model, setup.clean, setup.corrupted, DIFFERENCE)
        handle.remove()
    assert (found.resumed, ablated.resumed) == (False, False)
    np.testing.assert_allclose(found.clean["logit_difference"], clean)
    np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-9)
    with setup.model.blocks[0].register_forward_pre_hook(lambda module, args: None):
        assert not can_resume(setup.model)
    assert can_resume(setup.model)


class Foreign(HookedModule):
    """A hooked model that cannot be entered halfway: all it has is what the protocol asks."""

    def __init__(self, model: HookedDecoder) -> None:
        super().__init__()
        self.cfg, self._inner, self._points = model.cfg, model, model.hook_dict
        self.tokenizer, self.device = model.tokenizer, model.device
        self.W_E, self.W_U, self.W_V, self.W_O = model.W_E, model.W_U, model.W_V, model.W_O
        self.to_tokens, self.to_str_tokens = model.to_tokens, model.to_str_tokens

    def hook_names(self):
        return self._inner.hook_names()

    def forward(self, *args, **kwargs):
        return self._inner(*args, **kwargs)


def test_a_foreign_model_takes_the_naive_loop_and_the_result_says_so():
    setup = make_setup(ARCHITECTURES["llama-window"], "left")
    foreign = Foreign(setup.model)
    for site in sites_of(setup.model.cfg):
        over = ("layer", site.axes[1])
        ours, theirs = (
            activation_patching(
                model, setup.clean, setup.corrupted, DIFFERENCE, site=site.name, over=over, attention_mask=setup.real
            )
            for model in (setup.model, foreign)
        )
        assert (ours.resumed, theirs.resumed) == (True, False)
        np.testing.assert_allclose(ours.values["logit_difference"], theirs.values["logit_difference"], atol=1e-9)
        np.testing.assert_allclose(ours.clean["logit_difference"], theirs.clean["logit_difference"])


# -- progress and interrupts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("hooked", [False, True])
def test_progress_ends_at_all(hooked):
    setup = make_setup(ARCHITECTURES["gpt2"])
    reports: list[tuple[int, int]] = []
    model = Foreign(setup.model) if hooked else setup.model
    activation_patching(
        model, setup.clean, setup.corrupted, DIFFERENCE, progress=lambda done, total: reports.append((done, total))
    )
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert len({total for _, total in reports}) == 1
    assert reports[-1][0] == reports[-1][1]


@pytest.mark.parametrize("hooked", [False, True])
def test_an_interrupt_keeps_the_finished_cells(hooked):
    setup = make_setup(ARCHITECTURES["gpt2"])
    model = Foreign(setup.model) if hooked else setup.model
    call = (model, setup.clean, setup.corrupted, DIFFERENCE)
    whole = activation_patching(*call)

    def stop_halfway(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    part = activation_patching(*call, progress=stop_halfway, memory=1)
    assert whole.complete
    assert not part.complete
    finished = ~np.isnan(part.values["logit_difference"])
    assert 0 < finished.sum() < finished.size
    np.testing.assert_allclose(part.values["logit_difference"][finished], whole.values["logit_difference"][finished])
    assert "Interrupted" in part.summary_html()
    assert type(part).from_dict(part.to_dict()) == part
