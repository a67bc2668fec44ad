"""Path patching: what one component tells one other, and nothing else (IOI, arXiv 2211.00593, appendix B).

1. Keep every activation of both runs.
2. Run the original with every head frozen to it but the sender, which gets its activation of the other run; MLPs and
   norms recompute. Save what the receiver would read.
3. Run the original again with that put in as the receiver's input, all else recomputing.

So the change travels from sender to receiver along the residual stream and through MLPs, never through a third head.
With ``freeze_mlps`` it travels along the residual stream alone. Frozen heads need no attention to be computed, so
step 2 costs MLPs only; senders of one layer are stacked along the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast, get_args

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.checks import whole_number
from interp.decoders import can_resume, why_not_resumed
from interp.finite import check_computed, check_model
from interp.interventions.activation_patching import Direction
from interp.interventions.metric_result import by_metric, common_fields
from interp.interventions.path_result import PathPatchingResult
from interp.interventions.paths import (
    Receiver,
    ReceiverName,
    Sender,
    SenderName,
    parse_receivers,
    parse_senders,
)
from interp.interventions.prompts import Prompts, aligned
from interp.interventions.sweep import (
    DEFAULT_MEMORY,
    Progress,
    bytes_of_logits,
    judge,
    read_columns,
)
from interp.metrics import AnyMetric, Metric, fitting
from models.errors import InputError
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel, ResumableModel

Group = tuple[Receiver, ...]
Stream = Float[Tensor, "sender batch pos d_model"]
Place = tuple[str, int]
Carried = dict[Place, Stream]


def path_patching(
    model: HookedModel,
    clean: Prompts,
    corrupted: Prompts,
    metric: AnyMetric | Mapping[str, AnyMetric],
    *,
    senders: SenderName | Sequence[SenderName] | None = None,
    receivers: ReceiverName | Sequence[ReceiverName] = "logits",
    direction: Direction = "noise",
    freeze_mlps: bool = False,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> PathPatchingResult:
    """Patch every path from a sender to a receiver, one at a time.

    Args:
        model: a ``HookedDecoder`` with no hooks attached, ours or PyTorch's own.
        clean, corrupted: prompts that go in pairs of equal token length: ids ``[batch, pos]``, a text, or texts.
        metric: one of ``interp.metrics``, a function of logits ``[batch, pos, d_vocab]``, or several by name.
        senders: heads (``L5H1``, ``5.1``, ``(5, 1)``) and MLPs (``mlp5``); by default every head.
        receivers: ``L9H6.q`` (or ``.k``, ``.v``, these of key/value heads), ``L9.q`` (every head of the layer),
            ``mlp9``, ``logits``; a tuple of them receives together.
        direction: ``noise`` sends the corrupted run's activation within the clean run, as in the paper; ``denoise``
            the reverse.
        freeze_mlps: MLPs between sender and receiver are frozen as well: direct paths only.
        attention_mask: True at real tokens; both prompts share it. Texts make their own.
        memory: bytes that the stacked senders may take.
        progress: called with (paths done, in all).

    Returns:
        The metric of every path, ``values [sender, receiver, batch]``. A pair without a path (the receiver reads
        before the sender writes) has the value of the unpatched run.

    Raises:
        InputError: prompts that do not align, an unknown sender or receiver, a receiver that no sender reaches, a
            model that cannot be entered halfway.
        NonFiniteError: NaN or inf, with the first hook at which it appears.

    >>> from interp.metrics import LogitDifference
    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=10, n_ctx=8))
    >>> clean, corrupted = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 5, 4]])
    >>> found = path_patching(model, clean, corrupted, LogitDifference(3, 5), receivers=["L1H0.k", "logits"])
    >>> found.senders, found.by_head("L1H0.k").shape
    (('L0H0', 'L0H1', 'L1H0', 'L1H1'), (2, 2))
    """
    if not can_resume(model):
        raise InputError(
            f"path patching runs a model's blocks one by one, and cannot here: {why_not_resumed(model)}. It needs a "
            "HookedDecoder as it was built, with no hooks attached, ours or PyTorch's; load_model without "
            "backend='transformer-lens' gives one"
        )
    if direction not in get_args(Direction):
        raise InputError(f"direction is {direction!r}; expected 'denoise' or 'noise'")
    sending, groups = parse_senders(senders, model.cfg), parse_receivers(receivers, model.cfg)
    for group in groups:
        if not any(_reached(sender, group, model) for sender in sending):
            raise InputError(
                f"no path leads to {_label(group)}: it reads before any of the senders writes; use a later receiver "
                "or an earlier sender"
            )
    memory = whole_number(memory, "memory")
    pair, real = aligned(model, clean, corrupted, attention_mask)
    metrics = fitting(metric, pair[0] if direction == "noise" else pair[1], real, model.cfg.d_vocab)
    check_model(model, *pair, real=real)
    with torch.inference_mode():
        runs = _Runs.of(model, pair, real, direction, list(metrics.values()))
        baselines = [
            torch.stack([runs.unpatched(one, side) for side in (runs.clean, runs.corrupted)]) for one in runs.metrics
        ]
        of_base = [both[0 if direction == "noise" else 1] for both in baselines]
        check_computed(model, *pair, real=real, computed=by_metric(metrics, baselines, "the plain runs"))
        values, complete = _patch_all(runs, of_base, sending, groups, freeze_mlps, memory, progress)
    if complete:  # what an interrupt left out is NaN
        check_computed(model, *pair, real=real, computed=by_metric(metrics, values, "the patched"))
    return PathPatchingResult(
        axes=("sender", "receiver"),
        senders=tuple(map(str, sending)),
        receivers=tuple(map(_label, groups)),
        direction=direction,
        freeze_mlps=freeze_mlps,
        values={name: value.cpu().numpy() for name, value in zip(metrics, values, strict=True)},
        complete=complete,
        **common_fields(model, metrics, pair, baselines),
    )


@dataclass(frozen=True)
class _Runs:
    """Both runs; ``base`` is patched into and ``source`` gives the senders' activations."""

    model: ResumableModel
    clean: Mapping[str, Tensor]
    corrupted: Mapping[str, Tensor]
    direction: Direction
    metrics: Sequence[Metric]
    tokens: Int[Tensor, "batch pos"]
    real: Bool[Tensor, "batch pos"] | None
    read: list[int]

    @staticmethod
    def of(
        model: ResumableModel,
        pair: tuple[Tensor, Tensor],
        real: Tensor | None,
        direction: Direction,
        metrics: Sequence[Metric],
    ) -> _Runs:
        last = len(model.blocks) - 1
        names = [
            f"blocks.{layer}.{hook}"
            for layer, block in enumerate(model.blocks)
            for hook in ("hook_resid_pre", "attn.hook_z", *(sublayer.wires.out for sublayer in block.sublayers))
        ]
        names.append(f"blocks.{last}.hook_resid_post")
        clean, corrupted = (
            model.run_with_cache(side, attention_mask=real, names_filter=names, return_type=None)[1] for side in pair
        )
        tokens = pair[0] if direction == "noise" else pair[1]
        return _Runs(model, clean, corrupted, direction, metrics, tokens, real, read_columns(metrics, tokens, real))

    @property
    def base(self) -> Mapping[str, Tensor]:
        return self.clean if self.direction == "noise" else self.corrupted

    @property
    def source(self) -> Mapping[str, Tensor]:
        return self.corrupted if self.direction == "noise" else self.clean

    def unpatched(self, metric: Metric, run: Mapping[str, Tensor]) -> Float[Tensor, "batch"]:
        """Return a metric of one of the two runs."""
        return self.judge(metric, run[f"blocks.{len(self.model.blocks) - 1}.hook_resid_post"][None])[0]

    def judge(self, metric: Metric, stream: Stream) -> Float[Tensor, "sender batch"]:
        """Return a metric of streams leaving the last block."""
        return judge(self.model, metric, stream[:, :, self.read], self.read, self.tokens, self.real)


def _reached(sender: Sender, group: Group, model: ResumableModel) -> Group:
    """Return the receivers of a group that read what the sender writes."""
    return tuple(receiver for receiver in group if sender.place(model) < receiver.place(model))


def _label(group: Group) -> str:
    return "+".join(map(str, group))


def _patch_all(
    runs: _Runs,
    of_base: Sequence[Float[Tensor, "batch"]],
    senders: Sequence[Sender],
    groups: Sequence[Group],
    freeze_mlps: bool,
    memory: int,
    progress: Progress | None,
) -> tuple[list[Tensor], bool]:
    """Return per metric ``[sender, receiver, batch]``, and whether all of it was computed."""
    numbers = {sender: i for i, sender in enumerate(senders)}
    values = [value.double().expand(len(senders), len(groups), -1).clone() for value in of_base]
    todo = torch.tensor([[bool(_reached(sender, group, runs.model)) for group in groups] for sender in senders])
    total = int(todo.sum())
    try:
        for chunk in _chunks(senders, groups, runs, memory):
            rows = [numbers[sender] for sender in chunk]
            reached = {i: some for i, group in enumerate(groups) if (some := _reached(chunk[0], group, runs.model))}
            carried = _carried(
                runs, chunk, {receiver.reads for some in reached.values() for receiver in some}, freeze_mlps
            )
            for i, group in reached.items():
                final = _received(runs, group, carried)
                for value, metric in zip(values, runs.metrics, strict=True):
                    value[rows, i] = runs.judge(metric, final).to(value.dtype)
                todo[rows, i] = False
                if progress is not None:
                    progress(total - int(todo.sum()), total)
    except KeyboardInterrupt:
        for value in values:
            value[todo] = torch.nan
    return values, not bool(todo.any())


def _chunks(senders: Sequence[Sender], groups: Sequence[Group], runs: _Runs, memory: int) -> Iterator[list[Sender]]:
    """Give senders of one layer and kind, as many together as fit in ``memory`` bytes."""
    cfg = runs.model.cfg
    per_head = any(receiver.kind in ("q", "k", "v") for group in groups for receiver in group)
    kept = len({receiver.reads for group in groups for receiver in group})
    width = (8 + kept + (3 * cfg.n_heads if per_head else 0)) * cfg.d_model + 3 * (cfg.d_mlp or 0)
    size, batch = runs.model.W_E.element_size(), len(runs.tokens)
    logits = batch * bytes_of_logits(runs.metrics, len(runs.read), cfg.d_vocab, size)
    fit = max(1, memory // (width * runs.tokens.numel() * size + logits))

    def kind(sender: Sender) -> tuple[int, bool]:
        return sender.layer, sender.head is None

    for _, members in groupby(sorted(senders, key=kind), key=kind):
        several = list(members)
        for start in range(0, len(several), fit):
            yield several[start : start + fit]


def _carried(runs: _Runs, senders: Sequence[Sender], wanted: set[Place], freeze_mlps: bool) -> Carried:
    """Step 2: return the streams that receivers read, with all heads frozen but each row's sender."""
    carried: Carried = {}
    for place, stream in _frozen_run(runs, senders, freeze_mlps):
        if place in wanted:
            carried[place] = stream
        if len(carried) == len(wanted):
            break
    return carried


def _frozen_run(runs: _Runs, senders: Sequence[Sender], freeze_mlps: bool) -> Iterator[tuple[Place, Stream]]:
    """Give every stream that something reads, from the senders' layer on; they are all heads of it, or its MLP."""
    model, base, source = runs.model, runs.base, runs.source
    start, is_mlp = senders[0].layer, senders[0].head is None
    x = base[f"blocks.{start}.hook_resid_pre"].expand(len(senders), -1, -1, -1)
    for layer in range(start, len(model.blocks)):
        block, entering = model.blocks[layer], x
        for sublayer in block.sublayers:
            read, hook = entering if block.parallel else x, f"blocks.{layer}.{sublayer.wires.out}"
            yield (sublayer.name, layer), read
            sends = layer == start and is_mlp != sublayer.attends
            if sublayer.attends or freeze_mlps:
                out = base[hook]
            elif not sends:
                out = sublayer.out(read)
            if sends and sublayer.attends:
                z, heads = f"blocks.{layer}.attn.hook_z", [cast(int, sender.head) for sender in senders]
                change = (source[z] - base[z])[:, :, heads]
                out = out + einsum(change, block.attn.W_O[heads], "b p h e, h e d -> h b p d")
            elif sends:
                out = source[hook]
            x = sublayer.join(x, out)
    yield ("logits", len(model.blocks)), x


def _received(runs: _Runs, group: Group, carried: Carried) -> Stream:
    """Step 3: return the streams leaving the last block, with each receiver's input patched."""
    if group[0].kind == "logits":
        return carried[group[0].reads]
    model, start = runs.model, min(receiver.layer for receiver in group)
    n_senders = len(carried[group[0].reads])
    real = None if runs.real is None else runs.real.repeat(n_senders, 1)
    step = model.step(runs.tokens.repeat(n_senders, 1), real)
    x = runs.base[f"blocks.{start}.hook_resid_pre"].repeat(n_senders, 1, 1)
    with model.hooks(fwd_hooks=[_patch(receiver, carried[receiver.reads].flatten(0, 1)) for receiver in group]):
        for block in model.blocks[start:]:
            x = block(x, step)
    return x.unflatten(0, (n_senders, -1))


def _patch(receiver: Receiver, stream: Float[Tensor, "row pos d_model"]) -> Hook:
    """Return the hook that puts a stream in as the receiver's input."""
    if receiver.kind == "mlp":
        return f"blocks.{receiver.layer}.hook_mlp_in", lambda value, hook: stream

    def patch(value: Float[Tensor, "row pos head d_model"], hook: HookPoint) -> None:
        if receiver.head is None:
            value[:] = stream[:, :, None]
        else:
            value[:, :, receiver.head] = stream

    return f"blocks.{receiver.layer}.hook_{receiver.kind}_input", patch
