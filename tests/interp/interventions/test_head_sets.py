"""Sets of heads taken out together: equal to one whole hooked run per set, on every architecture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from interp.detectors import induction
from interp.interventions import head_sets
from interp.interventions.head_sets import TakenOut
from interp.sites import Head
from models import DecoderConfig, HookedDecoder
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from tests.configurations import CONFIGS, random_model

TOKENS = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4], [5, 6, 0, 5, 6, 0, 5, 6], [4, 3, 1, 4, 3, 1, 4, 3]])
COLUMNS = slice(2, 6)


def one_by_one(model: HookedDecoder, heads: list[Head], mean_z: Tensor | None) -> list[Hook]:
    """Return one hook per head, written head by head."""

    def mean(one: Head) -> Callable[..., Tensor]:
        def hook(z: Tensor, hook: HookPoint) -> Tensor:
            z[:, :, one.head] = mean_z[one.layer, one.head]
            return z

        return hook

    def cut(one: Head) -> Callable[..., Tensor]:
        def hook(pattern: Tensor, hook: HookPoint) -> Tensor:
            rest = pattern[:, one.head].clone()
            rest[:, 1:, 0] = 0
            pattern[:, one.head] = rest / rest.sum(-1, keepdim=True)
            return pattern

        return hook

    act, point = (cut, "hook_pattern") if mean_z is None else (mean, "hook_z")
    return [(f"blocks.{head.layer}.attn.{point}", act(head)) for head in heads]


def some_sets(cfg: DecoderConfig) -> list[list[Head]]:
    every = [Head(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]
    return [[], *([head] for head in every), every[: cfg.n_heads], every, [every[0], every[-1]], every[::-1][:2]]


@pytest.fixture(params=CONFIGS)
def model(request) -> HookedDecoder:
    return random_model(CONFIGS[request.param], dtype=torch.float64).requires_grad_(False)


def z_of(cfg: DecoderConfig) -> Tensor:
    shape = (cfg.n_layers, cfg.n_heads, cfg.d_head)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("act", ["mean", "cut"])
@pytest.mark.parametrize("row_tokens", [1, 100, 4096])
def test_losses_equal_one_whole_run_per_set(model, act, row_tokens, monkeypatch):
    monkeypatch.setattr(head_sets, "ROW_TOKENS", row_tokens)
    monkeypatch.setattr(head_sets, "_LOGITS", 3 * row_tokens)
    mean_z = z_of(model.cfg) if act == "mean" else None
    sets = some_sets(model.cfg)
    found = TakenOut(model, TOKENS, mean_z).losses(sets, COLUMNS)
    for heads, got in zip(sets, found, strict=True):
        logits = model.run_with_hooks(TOKENS, fwd_hooks=one_by_one(model, heads, mean_z))
        wanted = -logits.log_softmax(-1)[:, :-1].gather(-1, TOKENS[:, 1:, None])[..., 0][:, COLUMNS]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("act", ["mean", "cut"])
def test_scores_of_readers_equal_one_whole_run_per_set(model, act):
    mean_z = z_of(model.cfg) if act == "mean" else None
    sets = some_sets(model.cfg)
    last, other = model.cfg.n_layers - 1, model.cfg.n_heads - 1
    for readers in ([Head(last, 0), Head(0, other)], [Head(last, other)]):
        found = TakenOut(model, TOKENS, mean_z).scores(sets, readers, induction.score)
        for heads, got in zip(sets, found, strict=True):
            with model.hooks(one_by_one(model, heads, mean_z)):
                _, cache = model.run_with_cache(TOKENS)
            wanted = torch.stack(
                [induction.score(cache["pattern", reader.layer], TOKENS)[:, reader.head] for reader in readers], -1
            )
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


class Half(nn.Module):
    """Half of what the layer inside gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * self.inner(x)


def test_a_model_that_cannot_be_entered_halfway_gives_the_same_by_whole_runs():
    model = random_model(CONFIGS["gpt2"], dtype=torch.float64).requires_grad_(False)
    model.blocks[1].mlp = Half(model.blocks[1].mlp)
    sets, mean_z = some_sets(model.cfg), z_of(model.cfg)
    out = TakenOut(model, TOKENS, mean_z)
    for heads, got in zip(sets, out.losses(sets, COLUMNS), strict=True):
        logits = model.run_with_hooks(TOKENS, fwd_hooks=one_by_one(model, heads, mean_z))
        wanted = -logits.log_softmax(-1)[:, :-1].gather(-1, TOKENS[:, 1:, None])[..., 0][:, COLUMNS]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)
    readers = [Head(0, 0)]
    assert out.scores(sets, readers, induction.score).shape == (len(sets), 3, 1)


def test_layers_below_a_set_are_run_once():
    """Counted in tokens through each block: the intact run up to the first entry, then each set's own."""
    model = random_model(CONFIGS["gpt2"].replace(n_layers=4), dtype=torch.float64).requires_grad_(False)
    counts = [0] * 4
    sets = [[Head(3, 0)], [Head(3, 1)], [Head(2, 0), Head(3, 0)]]

    def count(value: Tensor, hook: HookPoint) -> None:
        counts[hook.layer] += len(value)

    said: list[tuple[int, int]] = []
    out = TakenOut(model, TOKENS, z_of(model.cfg), lambda done, total: said.append((done, total)))
    original = out._hooks
    counting = [(f"blocks.{layer}.hook_mlp_out", count) for layer in range(2, 4)]
    object.__setattr__(out, "_hooks", lambda some, stop: [*original(some, stop), *counting])
    out.losses(sets, COLUMNS)
    assert counts == [0, 0, 9, 9]
    assert said == [(3, 3)]
