"""What of a model is not what its configuration built.

Some tools do not run a model as a whole: they enter it halfway, or read weights and take them for what the model does
with them. That is right only where the code that runs is the code they know. Here it is decided, once and for all of
them, from what really runs: the exact class of every part, its methods on class and instance, hooks of PyTorch's on it
or on all modules, and function transforms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_modules
from torch.utils.module_tracker import ModuleTracker

from models.hooks.point import HookPoint
from models.parts.attention import Attention
from models.parts.block import Block
from models.parts.embedding import Embedding, Unembedding
from models.parts.linear import Linear
from models.parts.mlp import MLP
from models.parts.norm import NoNorm, Norm
from models.parts.positions import PositionEmbedding
from models.parts.step import Step
from models.parts.sublayer import AttentionSublayer, CrossAttentionSublayer, MLPSublayer, Sublayer
from models.parts.transforms import in_transform

_CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "__getattr__")


def _functions(kind: type) -> dict[str, Any]:
    """Return what a class itself defines to be called or computed."""
    return {
        name: value
        for name, value in vars(kind).items()
        if callable(value) or isinstance(value, (property, staticmethod, classmethod))
    }


_CALLED = {name: vars(nn.Module)[name] for name in _CALLS}
_KNOWN: dict[type, dict[str, Any]] = {}
_METHODS: dict[type, frozenset[str]] = {}


def know(kind: type) -> None:
    """Take a class, as it is now, for one whose passes are known."""
    _KNOWN[kind] = _functions(kind)
    _METHODS[kind] = frozenset(name for base in kind.__mro__ for name in _functions(base))


for _kind in (
    Attention, Block, Embedding, HookPoint, Linear, MLP, NoNorm, Norm, PositionEmbedding, Unembedding, nn.ModuleList,
    Sublayer, AttentionSublayer, CrossAttentionSublayer, MLPSublayer, Step,
):  # fmt: skip
    know(_kind)


def replaced_part(model: nn.Module, under: Iterable[str] = ()) -> str | None:
    """Return what of a model is not what was built, as the subject and verb of a sentence, or None.

    Args:
        model: the model.
        under: the names of the parts that matter, such as ``("ln_final", "unembed")``; none for all of them.
    """
    prefixes = tuple(under)
    for name, part in model.named_modules():
        if (not prefixes or name.startswith(prefixes)) and (why := _of_part(part)) is not None:
            return f"{name or 'the model'} {why}"
    return next(_everywhere(), None)


def _of_part(part: nn.Module) -> str | None:
    kind = type(part)
    if kind not in _KNOWN:
        return f"is {_a(kind.__name__)}"
    if own := vars(part).keys() & _METHODS[kind]:
        return f"has {_a(min(own))} of its own"
    if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
        return "has a hook of PyTorch's"
    if part._compiled_call_impl is not None:
        return "is compiled"
    return None


def _everywhere() -> Iterator[str]:
    for kind, known in _KNOWN.items():
        now = _functions(kind)
        if now != known:
            changed = min(name for name in now.keys() | known.keys() if now.get(name) is not known.get(name))
            yield f"{kind.__name__}.{changed} was replaced"
    for name, known in _CALLED.items():
        if vars(nn.Module)[name] is not known:
            yield f"torch.nn.Module.{name} was replaced"
    if any(not _only_counts(hook) for hook in _global_hooks()):
        yield "a hook of PyTorch's is on all modules"
    if in_transform():
        yield "a function transform of PyTorch's is in play"


def _global_hooks() -> Iterator[Any]:
    yield from torch_modules._global_forward_hooks.values()
    yield from torch_modules._global_forward_pre_hooks.values()
    yield from torch_modules._global_backward_hooks.values()
    yield from torch_modules._global_backward_pre_hooks.values()


def _only_counts(hook: Any) -> bool:
    """Return whether a hook is that of PyTorch's counters of operations, which change nothing."""
    return isinstance(getattr(hook, "__self__", None), ModuleTracker)


def _a(name: str) -> str:
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
