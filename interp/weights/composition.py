"""Composition: how much of what an earlier head writes a later head reads (Elhage et al. 2021).

    score = ||A W_OV||_F / (||A||_F ||W_OV||_F),     A = W_QK^T read by queries (Q), by keys (K), or W_OV by values (V)

Written for row vectors, with OV_1 the earlier head's ``[d_model, d_model]`` map:

    Q: OV_1 QK_2 (the write enters as the query)      K: OV_1 QK_2^T      V: OV_1 OV_2

Two nulls. *Dimension*: two independent random directions meet with 1/sqrt(d_model). *Rotation*: the earlier head's
output turned by a random orthogonal matrix, which keeps both spectra; z = (score - its mean) / its spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.sites import Head
from interp.weights.factored import FactoredMatrix
from interp.weights.head_circuits import stacked_ov, stacked_qk
from models.errors import InputError
from models.protocol import ResumableModel

Kind = Literal["Q", "K", "V"]


@dataclass(frozen=True, eq=False)
class CompositionScores:
    """Composition of every earlier with every later head.

    Attributes:
        kind: Q, K or V.
        scores: ``[layer, head, later_layer, later_head]``; NaN unless the second layer is later.
        null_mean, null_sd: of the rotation null, the same shape.
        dimension_null: 1/sqrt(d_model).
        relative: the offset at which rotary QK circuits were taken.
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

    def top(self, n: int = 10) -> list[tuple[Head, Head, float, float]]:
        """Return the n pairs with the highest score: (earlier, later, score, z)."""
        flat = self.scores.nan_to_num(-torch.inf).flatten()
        n = min(n, int(self.scores.isfinite().sum()))
        pairs = []
        for i in flat.topk(n).indices:
            l1, h1, l2, h2 = (int(x) for x in torch.unravel_index(i, self.scores.shape))
            pairs.append(
                (Head(l1, h1), Head(l2, h2), float(self.scores[l1, h1, l2, h2]), float(self.z[l1, h1, l2, h2]))
            )
        return pairs


def composition_scores(
    model: ResumableModel,
    kind: Kind = "K",
    *,
    later: Sequence[Head] | None = None,
    relative: int | None = None,
    n_rotations: int = 16,
    seed: int = 0,
) -> CompositionScores:
    """Return the composition of pairs of heads in different layers, beside both nulls.

    Args:
        kind: which input of the later head: ``Q``, ``K`` or ``V``.
        later: the reading heads wanted, by default all; each costs a product with every other head.
        relative: for rotary models and kinds Q and K, query minus key position; default 1.
        n_rotations: random orthogonal matrices behind the rotation null.
        seed: of these.

    Raises:
        InputError: another kind, fewer than two rotations.
    """
    if kind not in get_args(Kind):
        raise InputError(f"kind is {kind!r}; expected 'Q', 'K' or 'V'")
    if n_rotations < 2:
        raise InputError(f"n_rotations is {n_rotations}; a spread needs at least 2")
    if model.cfg.positions == "rotary" and kind != "V" and relative is None:
        relative = 1
    earlier = stacked_ov(model)
    reads = earlier if kind == "V" else stacked_qk(model, relative=relative)
    reads = reads.T if kind == "K" else reads
    n_layers, n_heads = earlier.shape[:2]
    wanted = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)] if later is None else later
    index = ([head.layer for head in wanted], [head.head for head in wanted])

    def everywhere(pairs: Tensor) -> Tensor:
        full = pairs.new_full((n_layers, n_heads, n_layers, n_heads), torch.nan)
        full[:, :, index[0], index[1]] = pairs
        later_than = torch.arange(n_layers)[:, None] < torch.arange(n_layers)
        return full.masked_fill(~later_than[:, None, :, None].to(full.device), torch.nan)

    chosen = FactoredMatrix(reads.A[index], reads.B[index])
    scores = _pairwise(earlier, chosen)
    generator = torch.Generator().manual_seed(seed)
    nulls = []
    for _ in range(n_rotations):
        d_model = model.cfg.d_model
        turn, r = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator))
        turn = (turn * r.diagonal().sign()).to(earlier.B)  # uniform over rotations (Mezzadri 2007)
        nulls.append(_pairwise(FactoredMatrix(earlier.A, earlier.B @ turn), chosen))
    null = torch.stack(nulls)
    return CompositionScores(
        kind=kind,
        scores=everywhere(scores),
        null_mean=everywhere(null.mean(0)),
        null_sd=everywhere(null.std(0)),
        dimension_null=model.cfg.d_model**-0.5,
        relative=relative,
    )


def _pairwise(earlier: FactoredMatrix, later: FactoredMatrix) -> Float[Tensor, "layer head later"]:
    """Return ||E_i L_j|| / (||E_i|| ||L_j||) for all heads, by r x r products only.

    ||A_1 B_1 A_2 B_2|| = ||R_1 B_1 A_2 R_2^T|| with A_1 = Q_1 R_1 and B_2^T = Q_2 R_2, for Q_1 and Q_2 keep norms.
    """
    rows = (torch.linalg.qr(earlier.A).R @ earlier.B).flatten(0, 1)  # [earlier, r, d_model]
    columns = later.A @ torch.linalg.qr(later.B.mT).R.mT  # [later, d_model, r]
    norms = torch.stack([(row @ columns).flatten(1).norm(dim=1) for row in rows])
    norms = norms / rows.flatten(1).norm(dim=1)[:, None] / columns.flatten(1).norm(dim=1)
    return norms.unflatten(0, earlier.shape[:2])


def virtual_head(model: ResumableModel, earlier: Head, later: Head) -> FactoredMatrix:
    """Return OV_1 OV_2: what the later head moves of what the earlier one wrote. Raises InputError on a wrong order."""
    if earlier.layer >= later.layer:
        raise InputError(f"{earlier} does not write before {later} reads; name the earlier head first")
    ov = stacked_ov(model)
    return ov[earlier.layer, earlier.head] @ ov[later.layer, later.head]
