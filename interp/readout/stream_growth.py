"""How the residual stream grows with depth, and the few dimensions that dwarf all others.

A massive activation (Sun et al., arXiv 2402.17762) is a value above 100 in magnitude and above 1000 times the median
magnitude over all positions and dimensions of its sequence at that depth. They sit at a few fixed dimensions of a few
tokens, mostly the first, and feed attention sinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.decoders import check_decoder
from interp.finite import check_computed, check_model
from interp.precision import at_least_float32
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd

LEAST = 100.0
LEAST_OF_MEDIAN = 1000.0


class MassiveActivation(NamedTuple):
    """One value that dwarfs its stream: entering ``layer`` (n_layers: leaving the last), at a row and a column."""

    layer: int
    row: int
    column: int
    dimension: int
    value: float


@dataclass(frozen=True, eq=False)
class StreamGrowth:
    """The stream at every depth.

    Attributes:
        norms: length of the stream entering each layer and leaving the last, ``[n_layers + 1, batch, pos]``; NaN at
            padding.
        cosines: between the streams entering and leaving each block, ``[n_layers, batch, pos]``; NaN at padding.
        massive: massive activations at real tokens, in order of layer.
    """

    norms: Float[Tensor, "depth batch pos"]
    cosines: Float[Tensor, "layer batch pos"]
    massive: tuple[MassiveActivation, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per depth: mean and largest length, mean cosine with the depth before, massive activations."""
        import pandas as pd

        counts = [sum(one.layer == depth for one in self.massive) for depth in range(len(self.norms))]
        return pd.DataFrame(
            {
                "norm": self.norms.nanmean((1, 2)).tolist(),
                "largest": self.norms.nan_to_num().amax((1, 2)).tolist(),
                "cosine": [float("nan"), *self.cosines.nanmean((1, 2)).tolist()],
                "massive": counts,
            }
        )


@torch.no_grad()
def stream_growth(
    model: ResumableModel,
    tokens: Int[Tensor, "batch pos"],
    *,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
) -> StreamGrowth:
    """Run once and measure the stream at every depth.

    Args:
        model: a ``HookedDecoder``.
        tokens: ids, or text.
        attention_mask: True at real tokens.

    Raises:
        InputError: a model that is no ``HookedDecoder``.
        NonFiniteError: NaN or inf, with the first hook at which it appears.
    """
    check_decoder(model)
    tokens, real = model.prepare(tokens, attention_mask)
    check_model(model, tokens, real=real)
    n_layers = len(model.blocks)
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers)]
    names.append(f"blocks.{n_layers - 1}.hook_resid_post")
    _, cache = model.run_with_cache(tokens, attention_mask=real, names_filter=names, return_type=None)
    streams = torch.stack([at_least_float32(cache[name]) for name in names])
    check_computed(model, tokens, real=real, computed={"the stream": streams})
    if real is not None:
        streams = streams.masked_fill(~real[..., None], torch.nan)
    size = streams.abs()
    median = size.flatten(2).nanmedian(-1).values[..., None, None]
    large = (size > LEAST) & (size > LEAST_OF_MEDIAN * median)
    massive = [
        MassiveActivation(layer, row, column, dimension, float(streams[layer, row, column, dimension]))
        for layer, row, column, dimension in large.nonzero().tolist()
    ]
    cosines = torch.cosine_similarity(streams[:-1], streams[1:], dim=-1)
    return StreamGrowth(streams.norm(dim=-1), cosines, tuple(massive))
