"""The slow, obvious path patching: two whole runs with hooks for one sender and one receiver at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from models import ActivationCache
from models.decoder import HookedDecoder


def kept(model: HookedDecoder, tokens: Tensor) -> ActivationCache:
    """Return what may have to be frozen: every head's z and every MLP's write."""
    names = [name for name in model.hook_names() if name.endswith(("hook_z", "hook_mlp_out"))]
    return model.run_with_cache(tokens, names_filter=names)[1]


@torch.no_grad()
def patched_logits(
    model: HookedDecoder,
    base: Tensor,
    of_base: ActivationCache,
    of_source: ActivationCache,
    sender: str,
    receivers: tuple[str, ...],
    freeze_mlps: bool,
) -> Tensor:
    """Return the logits ``[batch, pos, d_vocab]`` of one path, as the paper words it.

    Args:
        base: ids ``[batch, pos]`` of the run patched into.
        of_base, of_source: what is ``kept`` of it, and of the other run.
        sender: ``L0H1`` or ``mlp0``.
        receivers: ``L1H0.q``, ``L1.q``, ``mlp1`` or ``logits``; several are patched together.
        freeze_mlps: also freeze every MLP but the sender.
    """

    def z(value: Tensor, hook) -> None:
        value[:] = of_base[hook.name]
        if not sender.startswith("mlp"):
            layer, head = (int(part) for part in sender.removeprefix("L").split("H"))
            if layer == hook.layer:
                value[:, :, head] = of_source[hook.name][:, :, head]

    def mlp_out(value: Tensor, hook) -> Tensor:
        if sender == f"mlp{hook.layer}":
            return of_source[hook.name]
        return of_base[hook.name] if freeze_mlps else value

    saved: dict[str, Tensor] = {}

    def save(value: Tensor, hook) -> None:
        saved[hook.name] = value

    frozen = [(name, z if name.endswith("hook_z") else mlp_out) for name in of_base]
    inputs = {receiver: reads(receiver) for receiver in receivers if receiver != "logits"}
    readers = [(name, save) for name in dict.fromkeys(name for name, _, _ in inputs.values())]
    logits = model.run_with_hooks(base, fwd_hooks=frozen + readers)
    if receivers == ("logits",):
        return logits

    hooks = []
    for read, patched, head in inputs.values():

        def patch(value: Tensor, hook, stream: Tensor = saved[read], head: int | None = head) -> None:
            if value.ndim == 3:
                value[:] = stream
            else:
                for h in range(value.shape[2]) if head is None else [head]:
                    value[:, :, h] = stream

        hooks.append((patched, patch))
    return model.run_with_hooks(base, fwd_hooks=hooks)


def reads(receiver: str) -> tuple[str, str, int | None]:
    """Return the hook at which a receiver's input is saved, the hook at which it is put in, and the head."""
    if receiver.startswith("mlp"):
        name = f"blocks.{receiver.removeprefix('mlp')}.hook_mlp_in"
        return name, name, None
    whose, kind = receiver.split(".")
    layer, _, head = whose.removeprefix("L").partition("H")
    return f"blocks.{layer}.hook_resid_pre", f"blocks.{layer}.hook_{kind}_input", int(head) if head else None
