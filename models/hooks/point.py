"""HookPoint: a named place in the forward pass at which functions may read or change the activation.

Four kinds of function can be attached, all by ``HookedModule``'s context managers:

* an **edit** ``fn(value, hook) -> Tensor | None`` gets a copy of its own, so that it may write in place; what it
  returns (or, for None, the copy) goes on;
* a **reader** is one of our own that only looks; it sees the value itself;
* a **backward hook** ``fn(grad, hook) -> Tensor | None`` does to the gradient of the output with respect to this
  point what an edit does to the value; it belongs to the graph of the runs made while it was attached;
* a **tracker** collects the value as a node of the autograd graph, to differentiate with respect to it.

Without any of them the point is the identity and costs one Python call.

**Threads**: what a thread attaches acts in that thread's runs alone, and so does what it is told of a run. Two threads
may use one model at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from models.errors import HookShapeError

HookFunction = Callable[..., Tensor | None]
Kind = Literal["edits", "readers", "backward", "trackers"]

_CHANGING = Lock()  # two threads that attach to one point at a time must not lose either's function


class RunState:
    """What the hook points of one model share about the pass in progress, thread by thread."""

    def __init__(self) -> None:
        self._positions: dict[int, Int[Tensor, "batch pos"]] = {}

    @property
    def positions(self) -> Int[Tensor, "batch pos"] | None:
        """Where the columns of this thread's pass stand; None while it makes none."""
        return self._positions.get(get_ident())

    @positions.setter
    def positions(self, positions: Int[Tensor, "batch pos"] | None) -> None:
        if positions is None:
            self._positions.pop(get_ident(), None)
        else:
            self._positions[get_ident()] = positions


@dataclass(eq=False)
class Registration:
    """One attached function.

    Attributes:
        kind: what it is, see above.
        fn: the function.
        thread: the thread that attached it, in whose runs alone it acts.
        fired: whether such a run has passed it.
        passed_elsewhere: whether a run of another thread has passed its point.
    """

    kind: Kind
    fn: Callable[..., Tensor | None]
    thread: int = field(default_factory=get_ident)
    fired: bool = False
    passed_elsewhere: bool = False


class HookPoint(nn.Module):
    """The identity, until functions are attached.

    Attributes:
        name: full dotted name in its model, such as ``blocks.3.attn.hook_z``.
        positions: while a run is in progress, the absolute positions of the columns this call is about.
        attached: every thread's functions, in the order in which they act. Never changed in place, so that a run may
            walk it while another thread attaches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.run_state = RunState()
        self.attached: tuple[Registration, ...] = ()

    def attach(self, registration: Registration) -> None:
        """Let a function act."""
        with _CHANGING:
            self.attached = (*self.attached, registration)

    def detach(self, registration: Registration) -> None:
        """Undo ``attach``."""
        with _CHANGING:
            self.attached = tuple(other for other in self.attached if other is not registration)

    def _own(self, *kinds: Kind) -> list[Registration]:
        """Return what this thread attached, of some kinds."""
        thread = get_ident()
        return [one for one in self.attached if one.thread == thread and one.kind in kinds]

    @property
    def positions(self) -> Int[Tensor, "batch pos"] | None:
        """Absolute position of each column in this call, ``[batch, pos]`` (batch 1 where all rows agree)."""
        return self.run_state.positions

    @property
    def layer(self) -> int | None:
        """The layer this point belongs to, None for points outside the blocks."""
        parts = self.name.split(".")
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None

    @property
    def in_use(self) -> bool:
        """Whether anything at all acts in this thread's runs."""
        return bool(self.attached) and bool(self._own("edits", "readers", "backward", "trackers"))

    @property
    def acts(self) -> bool:
        """Whether the value must lie on the path to the output: something may change it or differentiate by it."""
        return bool(self.attached) and bool(self._own("edits", "backward", "trackers"))

    def forward(self, value: Tensor) -> Tensor:
        if not self.attached:
            return value
        thread, own = get_ident(), []
        for registration in self.attached:
            if registration.thread == thread:
                own.append(registration)
            else:
                registration.passed_elsewhere = True
        for registration in own:
            if registration.kind == "edits":
                value = self._edit(value, registration)
        for registration in own:
            if registration.kind == "readers":
                registration.fired = True
                registration.fn(value, hook=self)
        return self._differentiable(value) if self._own("backward", "trackers") else value

    def _edit(self, value: Tensor, registration: Registration) -> Tensor:
        registration.fired = True
        return self._replacement(registration.fn, value, "hook")

    def _replacement(self, fn: HookFunction, value: Tensor, kind: str) -> Tensor:
        """Call ``fn`` on a copy of its own and return what goes on: what it returned or, for None, the copy."""
        own = value.clone(memory_format=torch.contiguous_format)
        returned = fn(own, hook=self)
        changed = own if returned is None else returned
        if not isinstance(changed, Tensor):
            raise HookShapeError(
                f"the {kind} at {self.name} returned {type(changed).__name__}; expected a tensor of shape "
                f"{tuple(value.shape)}, or None for no replacement"
            )
        for what, got, expected in (
            ("shape", tuple(changed.shape), tuple(value.shape)),
            ("dtype", changed.dtype, value.dtype),
            ("device", changed.device, value.device),
        ):
            if got != expected:
                raise HookShapeError(
                    f"the {kind} at {self.name} returned {what} {got}; expected {expected}, as it was given"
                )
        return changed

    def _differentiable(self, value: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return value  # the backward hooks stay unfired, and the context manager says so
        # A node of its own: several points may be given one and the same tensor. With frozen weights it is the root.
        node = value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
        for registration in self._own("trackers"):
            registration.fired = True
            registration.fn(node, hook=self)
        for registration in self._own("backward"):
            registration.fired = True
            node.register_hook(self._on_gradient(registration))
        return node

    def _on_gradient(self, registration: Registration) -> Callable[[Tensor], Tensor]:
        return lambda grad: self._replacement(registration.fn, grad, "backward hook")

    def extra_repr(self) -> str:
        return f"{self.name!r}"
