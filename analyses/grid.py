"""The grid of a sweep, on the command line: which activation, over which axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from models import HookedDecoder

Site = Annotated[
    str,
    typer.Option(help="z, q, k, v, pattern, result, attn_out, mlp_out, mlp_post, resid_pre, resid_mid or resid_post."),
]
Over = Annotated[
    str | None, typer.Option(help="Axes of the grid, with commas.", show_default="layer,head or layer,pos")
]
Cells = Annotated[int, typer.Option("--top", min=1, help="Cells to list.")]


def axes_of(model: HookedDecoder, site: str, over: str | None) -> tuple[str, ...]:
    """Return the axes meant: by default layers and heads, for activations without heads layers and positions."""
    from interp.interventions.cells import find_site

    if over is not None:
        return tuple(axis.strip() for axis in over.split(","))
    return ("layer", "head" if find_site(site, model.cfg).head_axis else "pos")
