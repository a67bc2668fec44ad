"""HookedModule: attach functions to hook points for the length of a run, and cache what passes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from models.config import StackConfig
from models.errors import HookError, HookNeverFired, InputError, NonFiniteError, UnknownHook, nearest
from models.hooks.cache import ActivationCache, snapshot
from models.hooks.names import HookNames
from models.hooks.point import HookFunction, HookPoint, Kind, Registration, RunState

NameFilter = str | Callable[[str], bool]
NamesFilter = None | NameFilter | Sequence[NameFilter]
Hook = tuple[NameFilter, HookFunction]

_SPLIT_INPUTS = ("hook_q_input", "hook_k_input", "hook_v_input")


class HookedModule(nn.Module, ABC):
    """A module whose forward pass is a map of hook points.

    A subclass sets ``cfg`` and calls ``_name_hook_points()`` at the end of its ``__init__``. ``name`` is what results
    call the model; ``load_model`` sets it.
    """

    cfg: StackConfig
    name: str | None = None
    stops_at_layer = True  # whether ``forward`` takes stop_at_layer

    @abstractmethod
    def hook_names(self) -> HookNames:
        """Return every hook name; printed, it is a table with axes and meanings."""

    def _name_hook_points(self) -> None:
        self.run_state = RunState()
        points: dict[str, HookPoint] = {}
        for name, module in self.named_modules():
            if isinstance(module, HookPoint):
                module.name, module.run_state = name, self.run_state
                points[name] = module
        listed = self.hook_names()
        assert set(listed) == set(points), sorted(set(listed) ^ set(points))
        self._points = {name: points[name] for name in listed}

    @property
    def _n_layers(self) -> int | None:
        """How many blocks a decoder has; None for other models, whose layers are not counted in one row."""
        return getattr(self.cfg, "n_layers", None)

    @contextmanager
    def _at(self, positions: Int[Tensor, "batch pos"]) -> Iterator[None]:
        """Tell the hook points, for the length of a pass, where its columns stand."""
        before, self.run_state.positions = self.run_state.positions, positions
        try:
            yield
        finally:
            self.run_state.positions = before

    @property
    def hook_dict(self) -> dict[str, HookPoint]:
        """The hook points by name."""
        return dict(self._points)

    def _matching(self, wanted: NameFilter) -> list[str]:
        """Return the names a filter selects. Raises UnknownHook where there are none."""
        names = self._points
        if isinstance(wanted, str):
            if wanted not in names:
                raise UnknownHook(
                    f"no hook {wanted!r} in this model{nearest(wanted, names)}; hook_names() lists all {len(names)}"
                )
            return [wanted]
        if not callable(wanted):
            raise UnknownHook(f"a hook filter is a name or a function of a name, not {type(wanted).__name__}")
        selected = [name for name in names if wanted(name)]
        if not selected:
            raise UnknownHook(f"the filter selects none of the {len(names)} hooks; hook_names() lists them")
        return selected

    def _select(self, names_filter: NamesFilter) -> list[str]:
        if names_filter is None:
            return list(self.hook_names())
        if isinstance(names_filter, str) or not isinstance(names_filter, Iterable):
            names_filter = [names_filter]
        selected = {name for wanted in names_filter for name in self._matching(wanted)}
        if not selected:
            raise UnknownHook("names_filter is empty; give a name, a list of names, a function, or None for all")
        return [name for name in self.hook_names() if name in selected]

    @contextmanager
    def _attached(self, kind: Kind, hooks: Iterable[Hook]) -> Iterator[None]:
        """Attach functions to their points; on leaving, remove them and check that all fired."""
        attached: list[tuple[HookPoint, Registration]] = []
        resolved = [(self._points[name], fn) for wanted, fn in _pairs(hooks) for name in self._matching(wanted)]
        try:
            for point, fn in resolved:
                registration = Registration(kind, fn)
                attached.append((point, registration))
                point.attach(registration)
            self._check_split_inputs()
            yield
        finally:
            for point, registration in attached:
                point.detach(registration)
        silent = [(point.name, registration) for point, registration in attached if not registration.fired]
        if silent:
            raise HookNeverFired(self._why_silent(kind, silent))

    def _why_silent(self, kind: Kind, silent: list[tuple[str, Registration]]) -> str:
        names = [name for name, _ in silent]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        if any(registration.passed_elsewhere for _, registration in silent):
            return (
                f"hooks that never fired: {shown}. Runs of other threads passed them, and hooks act in the thread that "
                "attached them alone: attach and run in one thread"
            )
        if kind in ("backward", "trackers"):
            return (
                f"backward hooks never reached: {shown}. No gradient was recorded there: run under "
                "torch.enable_grad(), and let the forward pass reach these hooks"
            )
        return (
            f"hooks that never fired: {shown}. The run inside the context did not reach them: "
            "run the model, and let stop_at_layer lie beyond them"
        )

    def _check_split_inputs(self) -> None:
        """Refuse to act on ln1 and on the per-head copies taken before it, which each pass a norm of their own."""
        if self.cfg.norm_position == "post":
            return
        for name, point in self._points.items():
            if not name.endswith(_SPLIT_INPUTS) or not point.acts:
                continue
            block = name.rsplit(".", 1)[0]
            for norm_hook in (f"{block}.ln1.hook_scale", f"{block}.ln1.hook_normalized"):
                norm = self._points.get(norm_hook)
                if norm is not None and norm.acts:
                    raise HookError(
                        f"{norm_hook} and {name} cannot both be acted on in one run: each per-head input is "
                        "normalised on its own, past the ln1 hooks. Use two runs, or hook attn.hook_attn_in instead"
                    )

    @contextmanager
    def hooks(self, fwd_hooks: Sequence[Hook] = (), bwd_hooks: Sequence[Hook] = ()) -> Iterator[HookedModule]:
        """Attach hooks for the length of a ``with`` block.

        Args:
            fwd_hooks: pairs ``(name, fn)``; a name may be a function of names. ``fn(value, hook)`` gets a copy it
                may write to; it returns the replacement, or None.
            bwd_hooks: the same for gradients, ``fn(grad, hook)``; they act whenever a loss computed inside the block
                is differentiated, be it after the block.

        Raises:
            UnknownHook: a name that the model does not have.
            HookNeverFired: on leaving the block, where a hook was not passed by any run.
            HookShapeError: a hook returned another shape, dtype or device.

        Threads: hooks act in the runs of the thread that attached them and in no others, so that several threads may
        use one model. Weights and ``train()`` are shared: no thread may change them while another runs.
        """
        with self._attached("edits", fwd_hooks), self._attached("backward", bwd_hooks):
            yield self

    def run_with_hooks(
        self, *args: Any, fwd_hooks: Sequence[Hook] = (), bwd_hooks: Sequence[Hook] = (), **kwargs: Any
    ) -> Any:
        """Run once with hooks attached; arguments and result are those of the model itself. See ``hooks``."""
        with self.hooks(fwd_hooks, bwd_hooks):
            return self(*args, **kwargs)

    def run_with_cache(
        self,
        *args: Any,
        names_filter: NamesFilter = None,
        stop_at_layer: int | None = None,
        incl_bwd: bool = False,
        device: torch.device | str | None = None,
        pos_slice: slice | int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ActivationCache]:
        """Run once and keep the activations.

        Args:
            names_filter: which hooks: a name, a function of names, a list of these, or None for all.
            stop_at_layer: the first layer that is not computed; the result is then the residual stream entering it.
                With ``return_type=None`` the run stops by itself after the last layer that is cached.
            incl_bwd: also keep the gradient of the (scalar) result with respect to each activation, as
                ``name + "_grad"``; weights get no ``.grad``. With ``names_filter=None`` the per-head
                inputs ``hook_{q,k,v}_input`` are left out of the gradients: name them to have theirs.
            device: where the cache is kept.
            pos_slice: keep these query positions only; an int drops the axis.

        Returns:
            The model's result, and the ``ActivationCache``.

        Raises:
            UnknownHook: a filter that matches nothing.
            HookNeverFired: a named hook beyond ``stop_at_layer``.
        """
        names = self._select(names_filter)
        kwargs |= self._stopping(names, names_filter, stop_at_layer, kwargs)
        if names_filter is None and stop_at_layer is not None:
            names = [name for name in names if self._is_before(name, stop_at_layer)]
        specs = self.hook_names().specs
        stored: dict[str, Tensor] = {}
        nodes: dict[str, Tensor] = {}

        def trim(name: str, value: Tensor) -> Tensor:
            if pos_slice is None:
                return value
            axes = specs[name].axes
            axis = axes.index("pos") if "pos" in axes else axes.index("query_pos")
            return _at_positions(value, axis, pos_slice)

        def keep(value: Tensor, hook: HookPoint) -> None:
            kept = snapshot(trim(hook.name, value))
            stored[hook.name] = kept if device is None else kept.to(device)

        def track(value: Tensor, hook: HookPoint) -> None:
            nodes[hook.name] = value

        readers: list[Hook] = [(name, keep) for name in names]
        if not incl_bwd:
            with self._attached("readers", readers):
                result = self(*args, **kwargs)
            return result, ActivationCache(stored, self._n_layers)

        tracked = [name for name in names if names_filter is not None or not name.endswith(_SPLIT_INPUTS)]
        with torch.inference_mode(False), torch.enable_grad():
            with self._attached("trackers", [(name, track) for name in tracked]), self._attached("readers", readers):
                result = self(*args, **kwargs)
            if not isinstance(result, Tensor) or result.ndim:
                raise HookError("incl_bwd needs a scalar result to differentiate: pass return_type='loss'")
            gradients = torch.autograd.grad(result, [nodes[name] for name in tracked])
        for name, gradient in zip(tracked, gradients, strict=True):
            kept = snapshot(trim(name, gradient))
            stored[f"{name}_grad"] = kept if device is None else kept.to(device)
        return result.detach(), ActivationCache(stored, self._n_layers)

    def _stopping(
        self, names: list[str], names_filter: NamesFilter, stop_at_layer: int | None, kwargs: dict[str, Any]
    ) -> dict[str, int]:
        if not self.stops_at_layer:
            if stop_at_layer is not None:
                raise HookError(f"{type(self).__name__} has two stacks of layers and takes no stop_at_layer")
            return {}
        if stop_at_layer is not None:
            return {"stop_at_layer": stop_at_layer}
        if names_filter is not None and "return_type" in kwargs and kwargs["return_type"] is None:
            layers = [self._points[name].layer for name in names]
            if not any(name.startswith("ln_final") for name in names):
                return {"stop_at_layer": max((layer for layer in layers if layer is not None), default=-1) + 1}
        return {}

    def _is_before(self, name: str, stop_at_layer: int) -> bool:
        layer = self._points[name].layer
        if stop_at_layer < 0:
            stop_at_layer += 1 + max(point.layer for point in self._points.values() if point.layer is not None)
        return not name.startswith("ln_final") if layer is None else layer < stop_at_layer

    @torch.no_grad()
    def check_finite(self, *args: Any, **kwargs: Any) -> None:
        """Run once and raise NonFiniteError at the first hook where NaN or inf appears.

        Masked scores are -inf by design and do not count.
        """

        def check(value: Tensor, hook: HookPoint) -> None:
            bad = value.isnan() | value.isposinf() if hook.name.endswith("attn_scores") else ~value.isfinite()
            if bad.any():
                raise NonFiniteError(
                    f"{int(bad.sum())} of {bad.numel()} values are NaN or inf, first at {hook.name}; "
                    f"weights with NaN or inf: {self._nonfinite_weights()}"
                )

        with self._attached("readers", [(name, check) for name in self.hook_names()]):
            result = self(*args, **kwargs)
        if isinstance(result, Tensor) and not result.isfinite().all():
            raise NonFiniteError(
                f"the output is NaN or inf though every hook is finite; weights: {self._nonfinite_weights()}"
            )

    def _nonfinite_weights(self) -> str:
        bad = [name for name, weight in self.named_parameters() if not weight.isfinite().all()]
        return ", ".join(bad[:5]) or "none"


def _pairs(hooks: Iterable[Hook]) -> Iterator[Hook]:
    for hook in hooks:
        if not isinstance(hook, (tuple, list)) or len(hook) != 2 or not callable(hook[1]):
            raise HookError(f"hooks are a list of pairs (name, function); got {hook!r} for a pair")
        yield hook[0], hook[1]


def _at_positions(value: Tensor, axis: int, which: slice | int) -> Tensor:
    """Keep some positions of an axis; an int drops the axis. Raises InputError where nothing is left."""
    n = value.shape[axis]
    if isinstance(which, int):
        if not -n <= which < n:
            raise InputError(f"pos_slice is {which}; this run has the positions 0 to {n - 1}")
        return value.select(axis, which)
    kept = value[(slice(None),) * axis + (which,)]
    if not kept.shape[axis]:
        raise InputError(f"pos_slice is {which}, which selects none of the positions 0 to {n - 1}")
    return kept
