"""Many sets of heads, each taken out together: what it does to next-token losses, or to what other heads look at.

Sets are rows of one batch. They enter the model at the lowest layer of their heads, with the intact run's stream, so
that nothing below is computed again; the last stream goes through the unembedding at the columns that are read, and
no further than the last head that is looked at. A model that cannot be entered halfway is run from its tokens, with the
same hooks and the same numbers.

A head is taken out in one of two ways:

* ``mean``: its z is replaced, at every position, by a given vector;
* ``cut``: no query but the first may look at the first key; the rest of the row is renormalised (its score becomes
  -inf before the softmax, since the attention left beside a sink may be too little to divide by).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.decoders import can_resume
from interp.interventions.cells import n_layers_of
from interp.precision import at_least_float32
from interp.sites import Head
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel, ResumableModel

ROW_TOKENS = 1024  # of all sets run together: their activations stay in the processor's cache
_LOGITS = 1 << 25  # numbers, of logits made at a time

Heads = Sequence[Head]
Score = Callable[[Float[Tensor, "batch head query_pos key_pos"], Int[Tensor, "batch pos"]], Float[Tensor, "batch head"]]


@dataclass(frozen=True)
class TakenOut:
    """How heads are taken out of which run.

    Attributes:
        model: a decoder.
        tokens: without padding.
        mean_z: what stands in for a head; None to cut its edge to the first key instead.
        progress: called with the number of sets done and of all.
    """

    model: HookedModel
    tokens: Int[Tensor, "batch pos"]
    mean_z: Float[Tensor, "layer head d_head"] | None
    progress: Callable[[int, int], None] | None = None

    @torch.inference_mode()
    def losses(self, sets: Sequence[Heads], columns: slice) -> Float[Tensor, "set batch column"]:
        """Return the loss of each next token in nats, float64, with each set taken out.

        Args:
            sets: an empty one is the intact run.
            columns: of the tokens that predict; entry i is the prediction of the token after.
        """
        following = self.tokens[:, 1:][:, columns]
        resumed, found = can_resume(self.model), dict[int, Tensor]()
        of_tokens = self._of_streams if resumed else _loss
        for chunk, out in self._runs(sets, [], n_layers_of(self.model.cfg), resumed):
            losses = of_tokens(out[:, :-1][:, columns], following.repeat(len(chunk), 1))
            found |= zip(chunk, losses.unflatten(0, (len(chunk), -1)), strict=True)
        return torch.stack([found[i] for i in range(len(sets))])

    @torch.inference_mode()
    def scores(self, sets: Sequence[Heads], readers: Heads, score: Score) -> Float[Tensor, "set batch reader"]:
        """Return a score of the patterns of other heads, float64, with each set taken out.

        Args:
            sets: an empty one is the intact run; heads in the last reader's layer or above change nothing.
            readers: the heads that are looked at.
            score: from patterns and their tokens to a number per sequence and head.
        """
        read: dict[int, Tensor] = {}

        def look(pattern: Tensor, hook: HookPoint) -> None:
            assert hook.layer is not None
            rows = self.tokens.repeat(len(pattern) // len(self.tokens), 1)
            read[hook.layer] = score(at_least_float32(pattern), rows).double().cpu()

        layers = sorted({reader.layer for reader in readers})
        looking: list[Hook] = [(f"blocks.{layer}.attn.hook_pattern", look) for layer in layers]
        found: dict[int, Tensor] = {}
        for chunk, _ in self._runs(sets, looking, layers[-1] + 1, can_resume(self.model), latest=layers[0]):
            of_readers = torch.stack([read[reader.layer][:, reader.head] for reader in readers], dim=-1)
            found |= zip(chunk, of_readers.unflatten(0, (len(chunk), -1)), strict=True)
        return torch.stack([found[i] for i in range(len(sets))])

    # -- the runs ------------------------------------------------------------------------------------------------

    def _runs(
        self, sets: Sequence[Heads], looking: Sequence[Hook], stop: int, resumed: bool, latest: int | None = None
    ) -> Iterator[tuple[list[int], Float[Tensor, "set_and_batch pos *width"]]]:
        """Run some sets at a time up to layer ``stop``; give their numbers, and the streams (or logits) of their rows.

        All enter at the layer ``latest`` at most, so that what lies there is computed for every set.
        """
        latest = stop - 1 if latest is None else latest
        enters = [min([latest, *(head.layer for head in heads)]) for heads in sets]
        order = sorted(range(len(sets)), key=lambda i: enters[i])
        size = max(1, ROW_TOKENS // self.tokens.numel())
        chunks = [order[at : at + size] for at in range(0, len(order), size)]
        run = self._resumed if resumed else self._whole
        firsts = [enters[chunk[0]] for chunk in chunks]
        hooks = [[*self._hooks([sets[i] for i in chunk], stop), *looking] for chunk in chunks]
        done = 0
        for chunk, out in zip(chunks, run(chunks, firsts, hooks, stop), strict=True):
            yield chunk, out
            done += len(chunk)
            if self.progress is not None:
                self.progress(done, len(sets))

    def _resumed(
        self, chunks: list[list[int]], firsts: list[int], hooks: list[list[Hook]], stop: int
    ) -> Iterator[Float[Tensor, "set_and_batch pos d_model"]]:
        model = cast(ResumableModel, self.model)
        names = [f"blocks.{layer}.hook_resid_pre" for layer in sorted(set(firsts))]
        _, intact = model.run_with_cache(self.tokens, names_filter=names, return_type=None)
        step = model.step(self.tokens, None)
        for chunk, first, acting in zip(chunks, firsts, hooks, strict=True):
            stream = intact["resid_pre", first].repeat(len(chunk), 1, 1)
            with model.hooks(acting):
                for block in model.blocks[first:stop]:
                    stream = block(stream, step)
            yield stream

    def _whole(
        self, chunks: list[list[int]], firsts: list[int], hooks: list[list[Hook]], stop: int
    ) -> Iterator[Float[Tensor, "set_and_batch pos width"]]:
        until: dict[str, Any] = {} if stop == n_layers_of(self.model.cfg) else {"stop_at_layer": stop}
        for chunk, acting in zip(chunks, hooks, strict=True):
            yield self.model.run_with_hooks(self.tokens.repeat(len(chunk), 1), fwd_hooks=acting, **until)

    def _hooks(self, sets: Sequence[Heads], stop: int) -> list[Hook]:
        """Return the hooks that take each set's heads out of its own rows."""
        batch = len(self.tokens)
        rows_of: dict[int, list[tuple[slice, list[int]]]] = {}
        for i, heads in enumerate(sets):
            for layer in sorted({head.layer for head in heads if head.layer < stop}):
                chosen = [head.head for head in heads if head.layer == layer]
                rows_of.setdefault(layer, []).append((slice(i * batch, (i + 1) * batch), chosen))

        def replace(z: Float[Tensor, "batch pos head d_head"], hook: HookPoint) -> Tensor:
            assert hook.layer is not None
            assert self.mean_z is not None
            for rows, chosen in rows_of[hook.layer]:
                z[rows, :, chosen] = self.mean_z[hook.layer, chosen].to(z)
            return z

        def cut(scores: Float[Tensor, "batch head query_pos key_pos"], hook: HookPoint) -> Tensor:
            assert hook.layer is not None
            for rows, chosen in rows_of[hook.layer]:
                scores[rows, chosen, 1:, 0] = -torch.inf
            return scores

        where, act = ("hook_attn_scores", cut) if self.mean_z is None else ("hook_z", replace)
        return [(f"blocks.{layer}.attn.{where}", act) for layer in rows_of]

    def _of_streams(
        self, streams: Float[Tensor, "row column d_model"], targets: Int[Tensor, "row column"]
    ) -> Float[Tensor, "row column"]:
        """Return -log p of the targets from streams that leave the last block."""
        model = cast(ResumableModel, self.model)
        at_once = max(1, _LOGITS // (model.cfg.d_vocab * streams.shape[1]))
        parts = zip(streams.split(at_once), targets.split(at_once), strict=True)
        return torch.cat([_loss(model.unembed(model.ln_final(part)), which) for part, which in parts])


def _loss(
    logits: Float[Tensor, "row column d_vocab"], targets: Int[Tensor, "row column"]
) -> Float[Tensor, "row column"]:
    """Return -log p of each target in nats, float64: targets at any columns, which a model's own loss does not take."""
    logits = at_least_float32(logits)
    return (logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]).double().cpu()
