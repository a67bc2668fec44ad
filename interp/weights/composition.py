"""Composition: how much of what an earlier head writes a later head reads (Elhage et al. 2021).

Written for row vectors, with OV_1 the earlier head's ``[d_model, d_model]`` map and QK_2, OV_2 the later head's:

    score = ||OV_1 M||_F / (||OV_1||_F ||M||_F)
    M = QK_2 (Q: the write is read by queries),  QK_2^T (K: by keys),  OV_2 (V: it is moved on)

OV_1 (and OV_2 where it is M) stand for what can be read of their writes: a LayerNorm takes the mean, so that what is
written along (1, ..., 1) counts for nothing, see ``head_circuits.carried``. RMSNorm takes nothing.

Two nulls. *Dimension*: the root mean square cosine of two independent random directions, 1/sqrt(d_model), or
1/sqrt(d_model - 1) where all that is read has no mean. *Rotation*: the earlier head's output turned by a random
orthogonal matrix (one that keeps means, there), which keeps both spectra; z = (score - its mean) / its standard
deviation.

A high score says that the later head could listen, not that it does: with 16 rotations and hundreds of pairs some z are
large by chance, and heads that share a busy subspace compose without need. Whether a link matters, an ablation says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.decoders import check_parts
from interp.sites import Head, parse_head
from interp.weights.factored import FactoredMatrix
from interp.weights.head_circuits import carried, ov_circuit, stacked_ov, stacked_qk
from models.errors import InputError
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["Q", "K", "V"]
HeadName = str | tuple[int, int] | Head


@dataclass(frozen=True, eq=False)
class CompositionScores:
    """Composition of earlier heads with later ones.

    Attributes:
        kind: which input of the later head: Q, K or V.
        scores: ``[layer, head, later_layer, later_head]``, in [0, 1]; NaN where the second is not in a later layer, or
            was not asked for.
        null_mean, null_sd: of the rotation null, the same shape.
        dimension_null: 1/sqrt(d_model), or 1/sqrt(d_model - 1).
        relative: the offset at which rotary QK circuits were taken, else None.
    """

    kind: Kind
    scores: Float[Tensor, "layer head later_layer later_head"]
    null_mean: Float[Tensor, "layer head later_layer later_head"]
    null_sd: Float[Tensor, "layer head later_layer later_head"]
    dimension_null: float
    relative: int | None

    @property
    def z(self) -> Float[Tensor, "layer head later_layer later_head"]:
        """How many standard deviations of the rotation null each score lies above its mean."""
        return (self.scores - self.null_mean) / self.null_sd

    def to_frame(self) -> pd.DataFrame:
        """Return one row per pair, the highest score first: earlier, later, score, null (rotation's mean), z."""
        import pandas as pd

        pairs = self.scores.isfinite().nonzero()
        at = tuple(pairs.T)
        frame = pd.DataFrame(
            {
                "earlier": [str(Head(l1, h1)) for l1, h1, _, _ in pairs.tolist()],
                "later": [str(Head(l2, h2)) for _, _, l2, h2 in pairs.tolist()],
                "score": self.scores[at].tolist(),
                "null": self.null_mean[at].tolist(),
                "z": self.z[at].tolist(),
            }
        )
        return frame.sort_values("score", ascending=False, ignore_index=True, kind="stable")


@torch.no_grad()
def composition_scores(
    model: ResumableModel,
    kind: Kind = "K",
    *,
    later: Sequence[HeadName] | None = None,
    relative: int | None = None,
    n_rotations: int = 16,
    seed: int = 0,
) -> CompositionScores:
    """Return the composition of pairs of heads in different layers, beside both nulls.

    Args:
        model: a ``HookedDecoder``.
        kind: which input of the later head: ``Q``, ``K`` or ``V``.
        later: the reading heads, by default all. A pair costs O(d_model d_head^2), times n_rotations.
        relative: for rotary models and kinds Q and K, query minus key position; by default 1.
        n_rotations: random orthogonal matrices behind the rotation null.
        seed: of these; the global random state is left alone.

    Peak memory: the factors of all heads (2 n_layers n_heads d_model d_head numbers) six times, and the rotations.

    Raises:
        InputError: another kind, a head out of range, no reading heads, fewer than two rotations.

    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=10, n_ctx=8))
    >>> found = composition_scores(model, "K", later=["L1H0"])
    >>> null = round(found.dimension_null, 3)
    >>> null, 0.05 < found.scores[0, 2, 1, 0].item() < 0.25, found.scores[1, 2, 1, 0].isnan().item()
    (0.126, True, True)
    """
    check_parts(model)
    if kind not in get_args(Kind):
        raise InputError(f"kind is {kind!r}; expected 'Q', 'K' or 'V'")
    if n_rotations < 2:
        raise InputError(f"n_rotations is {n_rotations}; a spread needs at least 2")
    if later is not None and not later:
        raise InputError("later is empty; name the reading heads, or leave it out for all")
    n_layers, n_heads = len(model.blocks), model.cfg.n_heads
    every = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    chosen = every if later is None else [parse_head(head, model.cfg) for head in later]
    layers, heads = [head.layer for head in chosen], [head.head for head in chosen]
    if model.blocks[0].attn.rotary is not None and kind != "V" and relative is None:
        relative = 1

    earlier = stacked_ov(model)
    if kind == "V":
        moved = [carried(model, B, layer, layer + 1) for layer, B in enumerate(earlier.B)]
        reads = FactoredMatrix(earlier.A, torch.stack(moved))
    else:
        reads = stacked_qk(model, relative=relative)
    reads = FactoredMatrix(reads.A[layers, heads], reads.B[layers, heads])
    reads = reads.T if kind == "K" else reads
    # ||A_1 B_1 A_2 B_2|| = ||R_1 B_1 A_2 R_2^T|| with A_1 = Q_1 R_1 and B_2^T = Q_2 R_2, for Q_1 and Q_2 keep norms
    rows = torch.linalg.qr(earlier.A).R @ earlier.B
    columns = reads.A @ torch.linalg.qr(reads.B.mT).R.mT
    meanless = _read_without_mean(model)
    turns = _rotations(model.cfg.d_model, n_rotations, seed, like=columns, keep_means=meanless)
    grids = [columns.new_full((n_layers, n_heads, n_layers, n_heads), torch.nan) for _ in range(3)]
    for layer in range(1, n_layers):
        rows[:layer] = carried(model, rows[:layer], layer - 1, layer)
        here = [i for i, head in enumerate(chosen) if head.layer == layer]
        if here:
            nulls = torch.stack([_scores(rows[:layer], turn @ columns[here]) for turn in turns])
            found = (_scores(rows[:layer], columns[here]), nulls.mean(0), nulls.std(0))
            for grid, pairs in zip(grids, found, strict=True):
                grid[:layer, :, layer, [chosen[i].head for i in here]] = pairs
    return CompositionScores(
        kind=kind,
        scores=grids[0],
        null_mean=grids[1],
        null_sd=grids[2],
        dimension_null=dimension_null(model),
        relative=relative,
    )


def dimension_null(model: ResumableModel) -> float:
    """Return the root mean square cosine of two random directions, of those that readers can tell apart."""
    return (model.cfg.d_model - _read_without_mean(model)) ** -0.5


def _read_without_mean(model: ResumableModel) -> bool:
    return model.ln_final.centred


def _scores(
    rows: Float[Tensor, "layer head r d_model"], columns: Float[Tensor, "later d_model r"]
) -> Float[Tensor, "layer head later"]:
    """Return ||row_i column_j|| / (||row_i|| ||column_j||) for all pairs."""
    products = torch.stack([torch.linalg.matrix_norm(row @ columns) for row in rows.flatten(0, 1)])
    lengths = torch.linalg.matrix_norm(rows).flatten()[:, None] * torch.linalg.matrix_norm(columns)
    return (products / lengths).unflatten(0, rows.shape[:2])


def _rotations(
    d_model: int, n: int, seed: int, like: Tensor, *, keep_means: bool
) -> list[Float[Tensor, "d_model d_model"]]:
    """Draw orthogonal matrices uniformly: QR of normal ones, with the signs of R's diagonal (Mezzadri 2007).

    With ``keep_means``, among those that turn only what is orthogonal to (1, ..., 1).
    """
    generator = torch.Generator().manual_seed(seed)
    basis = torch.eye(d_model)
    if keep_means:
        basis = torch.linalg.qr(torch.cat([torch.ones(d_model, 1), basis[:, 1:]], dim=1)).Q[:, 1:]
    rotations = []
    for _ in range(n):
        q, r = torch.linalg.qr(torch.randn(2 * [basis.shape[1]], generator=generator))
        rotations.append((basis @ (q * r.diagonal().sign()) @ basis.T).to(like))
    return rotations


def virtual_head(model: ResumableModel, earlier: HeadName, later: HeadName) -> FactoredMatrix:
    """Return OV_1 OV_2, what the later head moves of what the earlier one wrote: of both writes what can be read.

    Raises:
        InputError: a head out of range, or the first not in an earlier layer than the second.
    """
    first, second = parse_head(earlier, model.cfg), parse_head(later, model.cfg)
    if first.layer >= second.layer:
        raise InputError(f"{first} does not write before {second} reads; name the earlier head first")
    wrote, moves = (ov_circuit(model, *head).matrix for head in (first, second))
    read = FactoredMatrix(wrote.A, carried(model, wrote.B, first.layer, second.layer))
    return read @ FactoredMatrix(moves.A, carried(model, moves.B, second.layer, second.layer + 1))
