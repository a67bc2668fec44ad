"""Links: what a later head's pattern loses when one earlier head's write is taken from one of its inputs alone.

The earlier head is mean-ablated, but only in what the later head's keys (K) or queries (Q) read; its values, every
other head and the stream itself keep the write:

    x' = x - (write - mean write)        effect = score(pattern of x) - score(pattern with x' in the keys)

So the effect is that of the one path head -> stream -> keys, which composition scores can only make likely. Means are
over sequences and positions of the same run. Post-norm, the write is what has become of it by then, the norms frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.decoders import check_parts
from interp.detectors import induction
from interp.precision import at_least_float32
from interp.readout.writes import NormStep, Write, steps
from interp.sites import Head
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.parts.norm import NoNorm
from models.parts.step import Step
from models.protocol import ResumableModel
from models.tokens import check_tokens

Route = Literal["K", "Q"]
Pair = tuple[Head, Head]
PerSequence = Float[Tensor, "sequence"]


@torch.no_grad()
def link_effects(
    model: ResumableModel,
    tokens: Int[Tensor, "sequence pos"],
    links: Sequence[Pair],
    route: Route,
    tick: Callable[[], None] = lambda: None,
) -> tuple[dict[Pair, PerSequence], dict[Head, PerSequence]]:
    """Return the fall of later heads' induction scores, link by link.

    Args:
        model: a ``HookedDecoder``.
        tokens: sequences with repeats. One run on them is cached: the z of earlier heads, the later layers' streams,
            queries and keys.
        links: pairs (earlier, later) of heads in different layers.
        route: the input from which the earlier head is taken: ``K`` or ``Q``.
        tick: called after every earlier layer.

    Returns:
        The fall of every link, and the intact score of every later head: attention, one number per sequence.

    Raises:
        InputError: a pair whose first head is not in an earlier layer.
    """
    check_parts(model)
    _check_order(links)
    if not links:
        return {}, {}
    tokens = check_tokens(tokens, model.cfg, model.device)
    run = _Run.of(model, tokens, route, sorted({later.layer for _, later in links}))
    intact: dict[Head, PerSequence] = {}
    for layer in run.layers:
        heads = sorted({later for _, later in links if later.layer == layer})
        intact |= run.scores(heads, run.cached(layer, route))
    effects: dict[Pair, PerSequence] = {}
    for source in sorted({earlier.layer for earlier, _ in links}):
        for layer, writes in run.writes(source).items():
            for head in sorted({a for a, b in links if (a.layer, b.layer) == (source, layer)}):
                later_heads = [b for a, b in links if a == head and b.layer == layer]
                without = run.scores(later_heads, run.projected(layer, writes[head.head]))
                effects |= {(head, later): intact[later] - without[later] for later in later_heads}
        tick()
    return effects, intact


@torch.no_grad()
def whole_effects(
    model: ResumableModel,
    tokens: Int[Tensor, "sequence pos"],
    links: Sequence[Pair],
    tick: Callable[[], None] = lambda: None,
) -> dict[Pair, PerSequence]:
    """Return the fall of later heads' induction scores when an earlier head is mean-ablated for everything.

    All paths count: through keys, queries, values, MLPs and other heads, to any position. Arguments and errors are
    those of ``link_effects``; ``tick`` is called after every earlier head.
    """
    check_parts(model)
    _check_order(links)
    if not links:
        return {}
    tokens = check_tokens(tokens, model.cfg, model.device)
    layers = sorted({later.layer for _, later in links})
    sources = sorted({earlier for earlier, _ in links})
    z_hooks = sorted({f"blocks.{head.layer}.attn.hook_z" for head in sources})
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    scores: dict[int, Float[Tensor, "sequence head"]] = {}

    def read(pattern: Tensor, hook: HookPoint) -> None:
        scores[cast(int, hook.layer)] = induction.score(pattern.float(), tokens)

    readers: list[Hook] = [(name, read) for name in patterns]
    with model.hooks(readers):
        _, cache = model.run_with_cache(tokens, names_filter=z_hooks, stop_at_layer=layers[-1] + 1)
    intact, effects = dict(scores), {}
    for source in sources:
        mean = at_least_float32(cache[f"blocks.{source.layer}.attn.hook_z"])[:, :, source.head].mean((0, 1))

        def ablate(z: Tensor, hook: HookPoint, source: Head = source, mean: Tensor = mean) -> None:
            z[:, :, source.head] = mean.to(z.dtype)

        hooks: list[Hook] = [(f"blocks.{source.layer}.attn.hook_z", ablate), *readers]
        model.run_with_hooks(tokens, fwd_hooks=hooks, stop_at_layer=layers[-1] + 1)
        for link in links:
            if link[0] == source:
                layer, head = link[1]
                effects[link] = intact[layer][:, head] - scores[layer][:, head]
        tick()
    return effects


def _check_order(links: Sequence[Pair]) -> None:
    for earlier, later in links:
        if earlier.layer >= later.layer:
            raise InputError(f"{earlier} does not write before {later} reads; name the earlier head first")


@dataclass(frozen=True, eq=False)
class _Run:
    """One cached run, and how later heads would look if their keys or queries read something else."""

    model: ResumableModel
    tokens: Int[Tensor, "sequence pos"]
    route: Route
    layers: list[int]
    cache: ActivationCache
    step: Step

    @staticmethod
    def of(model: ResumableModel, tokens: Tensor, route: Route, layers: list[int]) -> _Run:
        read = ("hook_resid_pre", "hook_q", "hook_k")
        written = ("hook_z", "hook_mlp_out", "hook_scale")

        def wanted(name: str) -> bool:
            if not name.startswith("blocks."):
                return name in ("hook_embed", "hook_pos_embed")
            layer = int(name.split(".")[1])
            return (layer in layers and name.endswith(read)) or (layer < layers[-1] and name.endswith(written))

        _, cache = model.run_with_cache(tokens, names_filter=wanted, return_type=None)
        return _Run(model, tokens, route, layers, cache, model.step(tokens, None))

    def cached(self, layer: int, route: Route) -> Float[Tensor, "sequence pos head d_head"]:
        """Return a layer's queries or keys, as projected."""
        return self.cache[f"blocks.{layer}.attn.hook_{route.lower()}"]

    def _meeting(self, layer: int, route: Route, own: Tensor) -> Float[Tensor, "sequence pos head d_head"]:
        attn = self.model.blocks[layer].attn
        return attn.keys(own, self.step) if route == "K" else attn.queries(own, self.step)

    def projected(self, layer: int, write: Float[Tensor, "sequence pos d_model"]) -> Tensor:
        """Return a layer's queries or keys without a write in what they read."""
        block, stream = self.model.blocks[layer], self.cache[f"blocks.{layer}.hook_resid_pre"]
        linear = block.attn.k if self.route == "K" else block.attn.q
        read = block.attention.read((stream - write).to(stream.dtype))
        return block.attn.project(linear, read)

    def scores(
        self, heads: Sequence[Head], projected: Float[Tensor, "sequence pos head d_head"]
    ) -> dict[Head, PerSequence]:
        """Return the induction scores of some heads of one layer, each with its own projection of the route's side."""
        layer = heads[0].layer
        if self.model.blocks[layer].attn.heads_apart:
            return self._scores(heads, self._meeting(layer, self.route, projected))
        found: dict[Head, PerSequence] = {}
        for head in heads:
            own = head.head if self.route == "Q" else head.head // self.model.cfg.group_size
            alone = self.cached(layer, self.route).clone()
            alone[:, :, own] = projected[:, :, own]
            found |= self._scores([head], self._meeting(layer, self.route, alone))
        return found

    def _scores(self, heads: Sequence[Head], changed: Tensor) -> dict[Head, PerSequence]:
        """Return the induction scores of heads whose queries or keys meet the others as given."""
        layer, group = heads[0].layer, self.model.cfg.group_size
        sides: tuple[Route, Route] = ("Q", "K")
        q, k = (
            changed if side == self.route else self._meeting(layer, side, self.cached(layer, side)) for side in sides
        )
        q = q[:, :, [head.head for head in heads]]
        k = k[:, :, [head.head // group for head in heads]]
        attn = self.model.blocks[layer].attn
        scores = self.step.mask(attn.window).apply(attn.scores(q, k))
        found = induction.score(scores.float().softmax(-1), self.tokens)
        return dict(zip(heads, found.T, strict=True))

    def writes(self, source: int) -> dict[int, Float[Tensor, "head sequence pos d_model"]]:
        """Return what a layer's heads wrote beside their mean, as it stands in the stream entering each later layer."""
        later = [layer for layer in self.layers if layer > source]
        if isinstance(self.model.blocks[source].attention.norm_sum, NoNorm):  # nothing happens to a write on its way
            return dict.fromkeys(later, self._write(source, source + 1))
        return {layer: self._write(source, layer) for layer in later}

    def _write(self, source: int, layer: int) -> Float[Tensor, "head sequence pos d_model"]:
        change: Tensor | None = None
        for step in steps(self.model, self.cache, "head", layer):
            if isinstance(step, Write) and str(Head(source, 0)) in step.labels:
                own = step.vectors()
                change = own - own.mean((1, 2), keepdim=True)
            elif isinstance(step, NormStep) and change is not None:
                change = step.linear(change)
        assert change is not None
        return change
