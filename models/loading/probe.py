"""Find out, in a few short runs, which hooks of a foreign model act and mean what their names say.

Three prompts that begin alike are run beside copies of the first, all in one batch. In each copy one hook's values,
from the middle on, are replaced by the second prompt's at layers 0, 2, ... and by the third's at layers 1, 3, ..., so
that no edit is what would have stood there anyway. Then, at every layer and in every row,

* the equations of ``models.loading.claims`` hold, so that the values mean what the names say and an edited value is
  what the rest of the layer reads;
* what follows from the replaced value alone is that other prompt's;
* the logits before the middle are the first prompt's, those from the middle on are not.

What contradicts one of these, or is confirmed by none, is not listed. A model whose logits are not those of the model
it wraps, which looks ahead, or whose residual stream cannot be read and written at every layer, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.config import DecoderConfig
from models.errors import UnsupportedModel
from models.hooks.module import Hook, HookedModule
from models.hooks.names import HookSpec
from models.loading.claims import EQUATIONS, REACHES, SPARES, STIRS, Equation, Layer, norm_equations

LENGTH = 6
PLAIN, OTHER, THIRD = "the first prompt", "the second prompt", "the third prompt"
LOGITS = "logits"
_STREAM = ("hook_resid_pre", "hook_resid_post")


def prompts(d_vocab: int, n_ctx: int, device: torch.device) -> Int[Tensor, "prompt=3 pos"]:
    """Return prompts that differ from the middle on, from the middle of the vocabulary: no special tokens."""
    length = min(LENGTH, n_ctx)
    tail = length - length // 2
    count = length + 2 * tail
    ids = (d_vocab // 4 + torch.arange(count) * max(d_vocab // (2 * count), 1)) % d_vocab
    return torch.stack(
        [torch.cat([ids[: length // 2], ids[start : start + tail]]) for start in (length // 2, length, length + tail)]
    ).to(device)


def check_causal(logits: Float[Tensor, "prompt=3 pos d_vocab"], what: str) -> None:
    """Raise UnsupportedModel unless the logits of the prompts agree where the prompts do, and differ after."""
    middle, tolerance = logits.shape[1] // 2, 4 * _tolerance(logits.dtype)
    first, second = logits[:2].float()
    if _differ(first[:middle], second[:middle], tolerance):
        raise UnsupportedModel(f"{what} is no causal decoder: a later token changes the logits of an earlier position")
    if not _differ(first[middle:], second[middle:]):
        raise UnsupportedModel(f"the logits of {what} do not depend on its tokens")


def probe(model: HookedModule, expected: Float[Tensor, "prompt=3 pos d_vocab"], blocks: Any) -> dict[str, str]:
    """Return the hooks that are not to be listed, each with the reason.

    Args:
        model: lists every hook that may be listed; ``cfg`` describes it.
        expected: the logits of ``prompts`` as the model that is wrapped gives them.
        blocks: one per layer, whose ``attn`` and ``mlp`` give ``W_O``, ``b_O``, ``W_out`` and ``b_out``.

    Raises:
        UnsupportedModel: other logits than ``expected``, or no residual stream at some layer.
    """
    with torch.no_grad():
        runs, failed = _runs(model, expected)
    evidence = _Evidence(model, runs, blocks, expected.dtype, idle=failed)
    evidence.weigh()
    unlisted = evidence.verdict()
    lost = [f"blocks.{layer}.{hook}" for layer in range(_cfg(model).n_layers) for hook in _STREAM]
    for name in lost:
        if name not in model.hook_names():
            raise UnsupportedModel(f"the residual stream cannot be followed: there is no {name}")
        if name in unlisted:
            raise UnsupportedModel(f"the residual stream cannot be followed: at {name}, {unlisted[name]}")
    return unlisted


# -- running -----------------------------------------------------------------------------------------------------------

Run = Mapping[str, Tensor]  # activations of one row, and its logits, in float32


def _runs(model: HookedModule, expected: Tensor) -> tuple[dict[str, Run], dict[str, str]]:
    """Return a run per edited hook (named without ``blocks.{l}.``), three unedited ones, and what cannot be edited."""
    cfg = _cfg(model)
    unedited = prompts(cfg.d_vocab, cfg.n_ctx, model.device)  # type: ignore[arg-type]
    plain, other, third = _rows(model, unedited, [])
    for row, wanted in zip((plain, other, third), expected.float(), strict=True):
        if _differ(row[LOGITS], wanted.to(row[LOGITS].device), 4 * _tolerance(expected.dtype)):
            gap = (row[LOGITS] - wanted.to(row[LOGITS].device)).abs().max()
            raise UnsupportedModel(f"TransformerLens's logits are not those of the model it wraps: off by {gap:.2g}")
    runs = {PLAIN: plain, OTHER: other, THIRD: third}
    hooks = list(dict.fromkeys(_hook(name) for name in model.hook_names()))
    try:
        return runs | _edited(model, unedited, hooks, plain), {}
    except Exception:  # of whatever type the foreign code meets; found again below, one hook at a time
        failed: dict[str, str] = {}
        for hook in hooks:
            try:
                runs |= _edited(model, unedited, [hook], plain)
            except Exception as error:
                reason = f"an edit fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
                failed |= {name: reason for name in model.hook_names() if _hook(name) == hook}
        return runs, failed


def _edited(model: HookedModule, unedited: Tensor, hooks: list[str], plain: Run) -> dict[str, Run]:
    rows = _rows(model, torch.cat([unedited, unedited[:1].expand(len(hooks), -1)]), hooks)
    if _differ(rows[0][LOGITS], plain[LOGITS], 4 * _tolerance(next(model.parameters()).dtype)):
        raise ArithmeticError("it changes the logits of the other prompts in the batch")
    return dict(zip(hooks, rows[3:], strict=True))


def _rows(model: HookedModule, tokens: Tensor, hooks: list[str]) -> list[Run]:
    """Run a batch; row 3 + i is edited at the i-th hook, to what row 1 (2 at odd layers) has from the middle on."""
    middle = tokens.shape[1] // 2
    specs = model.hook_names().specs

    def edit(row: int) -> Callable[..., None]:
        def replace(value: Tensor, hook: Any) -> None:
            value = value.movedim(_position_axis(specs[hook.name]), 1)
            if hook.name.endswith("hook_scale"):  # alike in all prompts, as are the positions' embeddings
                value[row, middle:] *= 2
            elif hook.name == "hook_pos_embed":
                value[row, middle:] = value[row, middle:].flip(0)
            else:
                value[row, middle:] = value[2 if _is_odd(hook.name) else 1, middle:]

        return replace

    edits: list[Hook] = [
        (lambda name, hook=hook: _hook(name) == hook, edit(3 + i))  # type: ignore[misc]
        for i, hook in enumerate(hooks)
    ]
    with model.hooks(edits):
        logits, cache = model.run_with_cache(tokens)
    values = {name: value.float() for name, value in cache.items()} | {LOGITS: logits.float()}
    return [{name: value[row] for name, value in values.items()} for row in range(len(tokens))]


# -- judging -----------------------------------------------------------------------------------------------------------


@dataclass
class _Evidence:
    """What the runs say about each hook.

    Attributes:
        wrong: by full name, why a value does not mean what the name says.
        idle: why an edit does not act, or not as it should; the value may be right.
        acting: the full names of which something confirms that an edit acts.
        meant: those of which an equation confirms what they mean.
    """

    model: HookedModule
    runs: dict[str, Run]
    blocks: Any
    dtype: torch.dtype
    wrong: dict[str, str] = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)
    acting: set[str] = field(default_factory=set)
    meant: set[str] = field(default_factory=set)

    def weigh(self) -> None:
        cfg = _cfg(self.model)
        self._look_ahead()
        last = f"blocks.{cfg.n_layers - 1}.hook_resid_post"
        self._chain("hook_embed", "blocks.0.hook_resid_pre")
        self._embedding()
        for layer in range(cfg.n_layers):
            below = f"blocks.{layer}.hook_resid_post"
            self._chain(below, f"blocks.{layer + 1}.hook_resid_pre" if below != last else LOGITS)
            self._layer(layer, cfg)
        if cfg.parallel:
            self._spared()
        for equation in norm_equations("ln_final", last):
            self._equation(equation, None, cfg)
        self._chain("ln_final.hook_normalized", LOGITS)
        self._logits()

    def verdict(self) -> dict[str, str]:
        explained = {equation.of for equation in EQUATIONS}
        reasons: dict[str, str] = {}
        for name in self.model.hook_names():
            if name not in self.acting:
                reasons[name] = "nothing confirms that an edit acts"
            elif _hook(name) in explained and name not in self.meant:
                reasons[name] = "nothing confirms what it means"
        reasons |= self.idle | self.wrong
        return {name: reasons[name] for name in self.model.hook_names() if name in reasons}

    def _there(self, name: str) -> bool:
        """Whether a value can be a witness. One at which edits do not act can: it is computed beside what does."""
        return name in self.runs[PLAIN] and name not in self.wrong

    def _look_ahead(self) -> None:
        for name in self.model.hook_names():
            first, second = (self._at_positions(self.runs[run], name) for run in (PLAIN, OTHER))
            middle = len(first) // 2
            if self._differ(first[:middle], second[:middle]):
                self.wrong.setdefault(name, "a later token changes it at an earlier position")

    def _layer(self, layer: int, cfg: DecoderConfig) -> None:
        for equation in EQUATIONS:
            self._equation(equation, layer, cfg)
        for hook, reached in REACHES.items():
            for other in reached:
                self._chain(f"blocks.{layer}.{hook}", f"blocks.{layer}.{other}")
        for hook, other in STIRS.items():
            name, other = f"blocks.{layer}.{hook}", f"blocks.{layer}.{other}"
            run = self.runs.get(hook, {})
            if name in run and self._there(other) and self._differ(run[other], self.runs[PLAIN][other]):
                self.acting.add(name)

    def _spared(self) -> None:
        """In a parallel block, an edit of what one sublayer reads leaves the other as it was; seen at layer 0."""
        for hook, other in SPARES.items():
            run, other = self.runs.get(hook, {}), f"blocks.0.{other}"
            if other in run and self._differ(run[other], self.runs[PLAIN][other]):
                self._idle(hook, f"an edit changes {_hook(other)} too")

    def _equation(self, equation: Equation, layer: int | None, cfg: DecoderConfig) -> None:
        def at(run: Run) -> Layer:
            return Layer(run, layer, cfg, None if layer is None else self.blocks[layer])

        plain = at(self.runs[PLAIN])
        of = plain.name(equation.of)
        names = [of, *(plain.name(hook) for hook in equation.reads)]
        if not equation.applies(cfg) or not all(self._there(name) for name in names):
            return
        if equation.without is not None and self._there(plain.name(equation.without)):
            return
        for run in (PLAIN, OTHER, THIRD):
            if not self._holds(equation, at(self.runs[run])):
                self.wrong.setdefault(of, equation.wrong)
                return
        self.meant.add(of)
        for hook in equation.acts:
            if hook not in self.runs:
                continue
            if self._holds(equation, at(self.runs[hook])):
                self.acting.add(plain.name(hook))
            else:
                self.idle.setdefault(plain.name(hook), f"an edit does not reach {equation.of}")

    def _holds(self, equation: Equation, layer: Layer) -> bool:
        sides = equation.sides(layer)
        return sides is None or not self._differ(*sides)

    def _embedding(self) -> None:
        entry, parts = "blocks.0.hook_resid_pre", [n for n in ("hook_embed", "hook_pos_embed") if n in self.runs[PLAIN]]

        def adds_up(run: Run) -> bool:
            return not self._differ(run[entry], torch.stack([run[part] for part in parts]).sum(0))

        for part in parts:
            if not all(adds_up(self.runs[run]) for run in (PLAIN, OTHER, THIRD)):
                self.wrong.setdefault(part, f"{' + '.join(parts)} is not the stream entering block 0")
            elif part in self.runs and not adds_up(self.runs[part]):
                self.idle.setdefault(part, "an edit does not reach block 0")
            elif part in self.runs:
                self.acting.add(part)

    def _chain(self, name: str, reached: str) -> None:
        """See whether another prompt's value at ``name`` makes ``reached`` that prompt's."""
        run = self.runs.get(_hook(name), {})
        if name not in run or reached not in run:
            return
        got, wanted = (
            self._at_positions(values, reached) for values in (run, self.runs[THIRD if _is_odd(name) else OTHER])
        )
        middle = len(got) // 2
        if not self._differ(got[middle:], wanted[middle:]):
            self.acting.add(name)
        elif self._there(reached):
            self.idle.setdefault(name, f"an edit does not reach {_hook(reached)}, or not as it should")

    def _at_positions(self, run: Run, name: str) -> Float[Tensor, "pos ..."]:
        axis = 0 if name == LOGITS else _position_axis(self.model.hook_names().specs[name]) - 1
        return run[name].movedim(axis, 0)

    def _logits(self) -> None:
        plain = self.runs[PLAIN][LOGITS]
        middle = len(plain) // 2
        for hook, run in self.runs.items():
            if hook in (PLAIN, OTHER, THIRD):
                continue
            early = self._differ(run[LOGITS][:middle], plain[:middle])
            if early or not self._differ(run[LOGITS][middle:], plain[middle:]):
                reason = "changes the logits of earlier positions" if early else "does not change the logits"
                self._idle(hook, f"an edit {reason}")

    def _idle(self, hook: str, reason: str) -> None:
        for name in self.runs[PLAIN]:
            if _hook(name) == hook:
                self.idle.setdefault(name, reason)

    def _differ(self, got: Tensor, wanted: Tensor) -> bool:
        return _differ(got, wanted, _tolerance(self.dtype))


def _differ(got: Tensor, wanted: Tensor, tolerance: float = 1e-3) -> bool:
    """Whether some vector, along the last axis, differs by more than a part ``tolerance`` of its largest entry."""
    size = torch.maximum(got.abs(), wanted.abs()).amax(-1)
    size = size.clamp(min=1e-4 * float(size.max()) if size.numel() else 0.0)
    return not bool(((got - wanted).abs().amax(-1) <= tolerance * size).all())


def _tolerance(dtype: torch.dtype) -> float:
    return max(1e-3, 8 * torch.finfo(dtype).eps)


def _position_axis(spec: HookSpec) -> int:
    return spec.axes.index("query_pos" if "query_pos" in spec.axes else "pos")


def _is_odd(name: str) -> bool:
    return name.startswith("blocks.") and int(name.split(".")[1]) % 2 == 1


def _hook(name: str) -> str:
    """Return a hook's name without ``blocks.{l}.``."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


def _cfg(model: HookedModule) -> DecoderConfig:
    assert isinstance(model.cfg, DecoderConfig)
    return model.cfg
