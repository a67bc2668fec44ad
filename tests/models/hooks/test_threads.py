"""Several threads on one model: each sees its own hooks, caches and positions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor

from interp import LogitDifference, ablation_sweep, activation_patching
from models import DecoderConfig, HookedDecoder
from models.errors import HookNeverFired
from models.hooks.point import HookPoint

N_THREADS = 4


@pytest.fixture(scope="module")
def model() -> HookedDecoder:
    cfg = DecoderConfig(n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_vocab=30, n_ctx=24)
    return HookedDecoder(cfg, seed=1)


def batches(model: HookedDecoder, n: int, width: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(model.cfg.d_vocab, (2, width), generator=generator) for _ in range(n)]


def in_threads(function: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
    with ThreadPoolExecutor(N_THREADS) as pool:
        return list(pool.map(function, arguments))


def double(value: Tensor, hook: HookPoint) -> Tensor:
    return 2 * value


def test_a2_a_run_in_another_thread_is_not_edited(model: HookedDecoder) -> None:
    """The other thread runs while this one's run stands still inside its own hook."""
    tokens = batches(model, 1)[0]
    plain = model(tokens)
    edited = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_mlp_out", double)])
    inside, done = Event(), Event()

    def wait(value: Tensor, hook: HookPoint) -> Tensor:
        inside.set()
        assert done.wait(60)
        return 2 * value

    def other() -> tuple[Tensor, list[str], Tensor]:
        assert inside.wait(60)
        try:
            logits, cache = model.run_with_cache(tokens, names_filter="hook_embed")
            return logits, list(cache), model(tokens)
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(other)
        ours = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_mlp_out", wait)])
        cached, names, again = theirs.result()
    assert torch.equal(ours, edited)
    assert torch.equal(cached, plain)
    assert torch.equal(again, plain)
    assert names == ["hook_embed"]


def test_a2_hooks_know_the_positions_of_their_own_run(model: HookedDecoder) -> None:
    """One thread runs 3 columns while the other's run of 12 stands still at an earlier hook."""
    long, short = batches(model, 1)[0], batches(model, 1, width=3)[0]
    inside, done = Event(), Event()
    seen: dict[str, int] = {}

    def wait(value: Tensor, hook: HookPoint) -> None:
        inside.set()
        assert done.wait(60)

    def note(who: str) -> Callable[..., None]:
        def hook(value: Tensor, hook: HookPoint) -> None:
            assert hook.positions is not None
            seen[who] = int(hook.positions.max())

        return hook

    def other() -> None:
        assert inside.wait(60)
        try:
            model.run_with_hooks(short, fwd_hooks=[("blocks.1.hook_resid_post", note("short"))])
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(other)
        model.run_with_hooks(
            long, fwd_hooks=[("blocks.0.hook_resid_pre", wait), ("blocks.1.hook_resid_post", note("long"))]
        )
        theirs.result()
    assert seen == {"short": 2, "long": 11}
    assert model.run_state.positions is None


def test_a2_a_hook_that_only_another_thread_passes_never_fired_and_the_error_says_why(model: HookedDecoder) -> None:
    tokens = batches(model, 1)[0]

    def attach() -> None:
        with model.hooks([("blocks.0.hook_mlp_out", double)]), ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(model, tokens).result(), plain)

    plain = model(tokens)
    with pytest.raises(HookNeverFired, match=r"blocks\.0\.hook_mlp_out\. Runs of other threads passed them"):
        attach()
    assert not any(point.attached for point in model.hook_dict.values())


def test_a2_caches_edits_and_generations_of_four_threads_equal_those_of_one(model: HookedDecoder) -> None:
    def use(tokens: Tensor) -> list[Tensor]:
        logits, cache = model.run_with_cache(tokens)
        layer = int(tokens[0, 0]) % 2
        edited = model.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", double)])
        continued = model.generate(tokens, 4, temperature=0)
        _, gradients = model.run_with_cache(
            tokens, names_filter="blocks.1.hook_resid_pre", incl_bwd=True, return_type="loss"
        )
        return [logits, *cache.values(), edited, continued, *gradients.values(), model(tokens)]

    several = batches(model, 40)
    for alone, together in zip(map(use, several), in_threads(use, several), strict=True):
        assert len(alone) == len(together)
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a2_sweeps_in_four_threads_agree_with_sweeps_in_one(model: HookedDecoder) -> None:
    metric = LogitDifference(3, 4)

    def use(pair: tuple[Tensor, Tensor]) -> list[Any]:
        clean, corrupted = pair
        sites = ("resid_pre", "z", "pattern")
        return [
            *(activation_patching(model, clean, corrupted, metric, site=site, over="layer").values for site in sites),
            ablation_sweep(model, clean, metric, site="z", method="mean").values,
        ]

    several = batches(model, 16)
    pairs = list(zip(several, several[1:] + several[:1], strict=True))
    for alone, together in zip(map(use, pairs), in_threads(use, pairs), strict=True):
        for a, b in zip(alone, together, strict=True):
            assert list(a) == list(b)
            assert all((a[name] == b[name]).all() for name in a)


def test_a2_a_point_keeps_every_thread_s_functions_whatever_others_attach(model: HookedDecoder) -> None:
    tokens = batches(model, 1, width=2)[0]

    def count(_: int) -> int:
        fired = 0

        def hook(value: Tensor, hook: HookPoint) -> None:
            nonlocal fired
            fired += 1

        for _ in range(20):
            with model.hooks([("hook_embed", hook)]):
                model(tokens, stop_at_layer=0)
        return fired

    assert in_threads(count, list(range(8))) == [20] * 8
    assert not model.hook_dict["hook_embed"].attached
