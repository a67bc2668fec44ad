"""The two ends of a path: who sends, who receives, and whether one reads what the other writes.

A sender is a head (``L5H1``, ``5.1``, ``(5, 1)``) or an MLP (``mlp5``). A receiver is the input of a head's query, key
or value (``L9H6.q``; ``L9.q`` for all heads of the layer), of an MLP (``mlp9``), or of the final norm (``logits``).
Keys and values have heads of their own: ``L9H1.k`` is key/value head 1, and reaches every query head of its group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from interp.sites import Head, as_several, parse_head
from models.config import StackConfig
from models.errors import InputError
from models.parts.block import Block
from models.parts.sublayer import SublayerName
from models.protocol import ResumableModel

ReceiverKind = Literal["q", "k", "v", "mlp", "logits"]
SenderName = str | tuple[int, int] | Head
ReceiverName = str | tuple[str, ...]
Place = tuple[int, int]
T = TypeVar("T")

_MLP = re.compile(r"(?:mlp|MLP)\.?(\d+)")
_INPUT = re.compile(r"(?P<whose>.+)\.(?P<kind>[qkv])")
_LAYER = re.compile(r"[Ll]?(\d+)")


@dataclass(frozen=True)
class Sender:
    """A head, or an MLP where ``head`` is None."""

    layer: int
    head: int | None

    def __str__(self) -> str:
        return f"mlp{self.layer}" if self.head is None else str(Head(self.layer, self.head))

    def place(self, model: ResumableModel) -> Place:
        """Return when it writes: its layer, and the number of its sublayer there."""
        block = model.blocks[self.layer]
        if block.parallel:
            return self.layer, len(block.sublayers) - 1
        return self.layer, _number(block, "mlp" if self.head is None else "attn")


@dataclass(frozen=True)
class Receiver:
    """One input: of ``head`` (None: of all heads of the layer), of an MLP, or of the final norm."""

    kind: ReceiverKind
    layer: int
    head: int | None = None

    def __str__(self) -> str:
        if self.kind in ("mlp", "logits"):
            return "logits" if self.kind == "logits" else f"mlp{self.layer}"
        return f"{f'L{self.layer}' if self.head is None else Head(self.layer, self.head)}.{self.kind}"

    def place(self, model: ResumableModel) -> Place:
        """Return when it reads: it sees every sender of an earlier place."""
        if self.kind == "logits" or model.blocks[self.layer].parallel:
            return self.layer, 0
        return self.layer, _number(model.blocks[self.layer], self.reads[0])

    @property
    def reads(self) -> tuple[str, int]:
        """The stream that it reads: ``attn``, ``mlp`` or ``logits``, and the layer."""
        return ("attn" if self.kind in ("q", "k", "v") else self.kind), self.layer


def _number(block: Block, name: str) -> int:
    return [sublayer.name for sublayer in block.sublayers].index(cast(SublayerName, name))


def parse_senders(written: SenderName | Sequence[SenderName] | None, cfg: StackConfig) -> list[Sender]:
    """Return the senders meant; None stands for every head. Raises InputError on other notation or out of range."""
    if written is None:
        n_layers = cast(Any, cfg).n_layers
        return [Sender(layer, head) for layer in range(n_layers) for head in range(cfg.n_heads)]
    return _each_once([_sender(one, cfg) for one in as_several(written)], "senders")


def _sender(written: SenderName, cfg: StackConfig) -> Sender:
    if isinstance(written, str) and (match := _MLP.fullmatch(written.strip())):
        return Sender(_mlp_layer(int(match[1]), written, cfg), None)
    return Sender(*parse_head(written, cfg))


def parse_receivers(written: ReceiverName | Sequence[ReceiverName], cfg: StackConfig) -> list[tuple[Receiver, ...]]:
    """Return the groups of receivers meant; a tuple is a group, patched together.

    Raises:
        InputError: other notation, out of range, or ``logits`` beside others in a group.
    """
    several = [written] if isinstance(written, tuple) else as_several(written)
    groups = [
        tuple(
            _each_once(
                [_receiver(name, cfg) for name in (one if isinstance(one, (tuple, list)) else (one,))], "receivers"
            )
        )
        for one in several
    ]
    for group in groups:
        if len(group) > 1 and any(receiver.kind == "logits" for receiver in group):
            raise InputError(
                f"receivers {'+'.join(map(str, group))}: 'logits' replaces the whole last stream, so that nothing "
                "beside it could act; give it a group of its own"
            )
    return _each_once(groups, "receivers")


def _receiver(written: object, cfg: StackConfig) -> Receiver:
    n_layers = cast(Any, cfg).n_layers
    text = written.strip() if isinstance(written, str) else ""
    if text == "logits":
        return Receiver("logits", n_layers)
    if match := _MLP.fullmatch(text):
        return Receiver("mlp", _mlp_layer(int(match[1]), written, cfg))
    if match := _INPUT.fullmatch(text):
        kind = cast(ReceiverKind, match["kind"])
        if layer := _LAYER.fullmatch(match["whose"]):
            return Receiver(kind, _in_range("layer", int(layer[1]), n_layers, written))
        found = parse_head(match["whose"], cfg)
        if kind in ("k", "v"):
            _in_range("key/value head", found.head, cfg.n_kv_heads, written)
        return Receiver(kind, *found)
    raise InputError(
        f"{written!r} is not a receiver; write 'L9H6.q' (or .k, .v), 'L9.q' for all heads of layer 9, 'mlp9' or "
        "'logits'"
    )


def _mlp_layer(layer: int, written: Any, cfg: StackConfig) -> int:
    if cfg.d_mlp is None:
        raise InputError(f"{written!r} is an MLP, and this model is attention-only")
    return _in_range("layer", layer, cast(Any, cfg).n_layers, written)


def _in_range(what: str, got: int, count: int, written: Any) -> int:
    if got >= count:
        raise InputError(f"{what} {got} in {written!r} is out of range: this model has {what}s 0 to {count - 1}")
    return got


def _each_once(parsed: list[T], what: str) -> list[T]:
    if not parsed:
        raise InputError(f"no {what} were given")
    for i, one in enumerate(parsed):
        if one in parsed[:i]:
            name = "+".join(map(str, one)) if isinstance(one, tuple) else str(one)
            raise InputError(f"{what} name {name} twice")
    return parsed
