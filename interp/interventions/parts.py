"""Parts of a model that can be taken out, and how they are written.

============  ==========================================================================
``L5H1``      a head (also ``5.1`` and ``(5, 1)``): its z
``L5H1[7,3]`` one edge of a head's attention: from query 7 to key 3
``L5N17``     a neuron
``attn5``     all that attention writes in layer 5
``mlp5``      all that the MLP writes in layer 5
``resid_pre5``  the stream entering layer 5; likewise ``resid_mid5`` and ``resid_post5``
============  ==========================================================================

All but an edge may end in ``@p``: at position p alone, as in ``L5H1@4``. Positions are columns of the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from interp.interventions.cells import Site, find_site, n_layers_of
from interp.sites import Head, as_several, parse_head
from models.config import StackConfig
from models.errors import InputError

PartName = str | tuple[int, int] | Head

_SITES = {"attn": "attn_out", "mlp": "mlp_out"}
_EDGE = re.compile(r"(.+)\[(\d+),\s*(\d+)\]")
_NEURON = re.compile(r"[Ll](\d+)[Nn](\d+)")
_LAYER = re.compile(r"(attn|mlp|resid_pre|resid_mid|resid_post)(\d+)")


@dataclass(frozen=True)
class Part:
    """One part; ``index`` selects it in the site's activation, after the batch axis (None: all of an axis)."""

    name: str
    site: Site
    layer: int
    index: tuple[int | None, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def where(self) -> tuple[int | slice, ...]:
        """The index into the site's activation ``[batch, ...]``."""
        return (slice(None), *(slice(None) if entry is None else entry for entry in self.index))


def parse_parts(written: PartName | Sequence[PartName], cfg: StackConfig, width: int) -> tuple[Part, ...]:
    """Return the parts that are meant, in the order given.

    Args:
        written: one or several, see the table above.
        cfg: of the model they must exist in.
        width: number of columns of the tokens.

    Raises:
        InputError: another notation, a part that this model or these tokens do not have, or one given twice.
    """
    parts = tuple(_parse(one, cfg, width) for one in as_several(written))
    if not parts:
        raise InputError("no part to ablate was given; name at least one, such as 'L5H1'")
    for i, part in enumerate(parts):
        if part in parts[:i]:
            raise InputError(f"{part} is given twice")
    return parts


def _parse(written: PartName, cfg: StackConfig, width: int) -> Part:
    if not isinstance(written, str):
        head = parse_head(written, cfg)
        return Part(str(head), find_site("z", cfg), head.layer, (None, head.head))
    text = written.strip()
    if match := _EDGE.fullmatch(text):
        head = parse_head(match[1], cfg)
        query, key = (_in_range("position", int(number), width, written) for number in (match[2], match[3]))
        if key > query:
            raise InputError(f"{written!r}: query {query} cannot attend to key {key}, which comes later")
        return Part(f"{head}[{query},{key}]", find_site("pattern", cfg), head.layer, (head.head, query, key))
    body, at, column = text.partition("@")
    position = None
    if at:
        if not column.isdecimal():
            raise InputError(f"{written!r}: a position is a number, as in 'L5H1@4'")
        position = _in_range("position", int(column), width, written)
    suffix = "" if position is None else f"@{position}"
    if match := _NEURON.fullmatch(body):
        site = find_site("mlp_post", cfg)
        assert cfg.d_mlp is not None
        layer = _in_range("layer", int(match[1]), n_layers_of(cfg), written)
        neuron = _in_range("neuron", int(match[2]), cfg.d_mlp, written)
        return Part(f"L{layer}N{neuron}{suffix}", site, layer, (position, neuron))
    if match := _LAYER.fullmatch(body):
        site = find_site(_SITES.get(match[1], match[1]), cfg)
        layer = _in_range("layer", int(match[2]), n_layers_of(cfg), written)
        return Part(f"{match[1]}{layer}{suffix}", site, layer, (position,))
    try:
        head = parse_head(body, cfg)
    except InputError as error:
        if "is not a head" not in str(error):
            raise
        raise InputError(
            f"{written!r} is not a part; write a head 'L5H1', an edge 'L5H1[7,3]', a neuron 'L5N17', 'attn5', 'mlp5' "
            "or 'resid_pre5', each but an edge with '@4' for position 4 alone"
        ) from None
    return Part(f"{head}{suffix}", find_site("z", cfg), head.layer, (position, head.head))


def _in_range(what: str, number: int, count: int, written: PartName) -> int:
    if number >= count:
        raise InputError(f"{what} {number} in {written!r} is out of range: there are {what}s 0 to {count - 1}")
    return number
