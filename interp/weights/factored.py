"""FactoredMatrix: a product A B kept as its two factors, because a head's circuits have rank d_head in d_model.

Everything is computed through the small inner dimension r. With A = Q_A R_A and B^T = Q_B R_B:

    ||AB||_F = ||R_A R_B^T||_F        svd(AB) from that of R_A R_B^T        eig(AB) = eig(BA), and zeros
"""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from interp.precision import at_least_float32
from models.errors import InputError

Index = int | slice | list[int] | Tensor | EllipsisType


@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """The matrix ``A @ B``, never written out unless asked; leading axes are a batch.

    Half precision is raised to float32: svd and eig know nothing smaller.

    Args:
        A: ``[..., rows, r]``.
        B: ``[..., r, columns]``.

    Raises:
        InputError: factors without a product.

    >>> product = FactoredMatrix(torch.ones(5, 2), torch.ones(2, 3))
    >>> product.shape, round(product.norm().item(), 4), round(product.dense().norm().item(), 4)
    (torch.Size([5, 3]), 7.746, 7.746)
    """

    A: Float[Tensor, "*batch rows r"]
    B: Float[Tensor, "*batch r columns"]

    def __post_init__(self) -> None:
        if self.A.ndim < 2 or self.B.ndim < 2 or self.A.shape[-1] != self.B.shape[-2]:
            raise InputError(
                f"factors of shape {tuple(self.A.shape)} and {tuple(self.B.shape)} have no product; "
                "the last axis of A and the last but one of B must agree"
            )
        dtype = torch.promote_types(self.A.dtype, self.B.dtype)
        object.__setattr__(self, "A", at_least_float32(self.A.to(dtype)))
        object.__setattr__(self, "B", at_least_float32(self.B.to(dtype)))

    @property
    def shape(self) -> torch.Size:
        """The shape of the product."""
        batch = torch.broadcast_shapes(self.A.shape[:-2], self.B.shape[:-2])
        return torch.Size([*batch, self.A.shape[-2], self.B.shape[-1]])

    @property
    def rank(self) -> int:
        """The inner dimension r: the rank is at most this."""
        return self.A.shape[-1]

    @property
    def T(self) -> FactoredMatrix:
        """The transpose of the last two axes."""
        return FactoredMatrix(self.B.mT, self.A.mT)

    def dense(self) -> Float[Tensor, "*batch rows columns"]:
        """Return the product written out."""
        return self.A @ self.B

    def __matmul__(self, other: Tensor | FactoredMatrix) -> FactoredMatrix:
        """Multiply from the right by a matrix; the smaller inner dimension is kept."""
        if not isinstance(other, FactoredMatrix):
            return FactoredMatrix(self.A, _product(self.B, _check_matrix(other)))
        middle = _product(self.B, other.A)
        if self.rank <= other.rank:
            return FactoredMatrix(self.A, _product(middle, other.B))
        return FactoredMatrix(_product(self.A, middle), other.B)

    def __rmatmul__(self, other: Tensor) -> FactoredMatrix:
        """Multiply from the left by a matrix."""
        return FactoredMatrix(_product(_check_matrix(other), self.A), self.B)

    def __mul__(self, number: float | Tensor) -> FactoredMatrix:
        """Scale by a number, or by one per matrix, ``[..., 1, 1]``."""
        return FactoredMatrix(self.A * number, self.B)

    __rmul__ = __mul__

    def apply(self, x: Float[Tensor, "*rest rows"]) -> Float[Tensor, "*rest columns"]:
        """Return the row vectors ``x`` times the product; a batch multiplies as in ``torch.matmul``."""
        return _product(_product(x, self.A), self.B)

    def bilinear(
        self, left: Float[Tensor, "*rest rows"], right: Float[Tensor, "*rest columns"]
    ) -> Float[Tensor, "*rest"]:
        """Return left . A B . right, row by row."""
        return (_product(left, self.A) * _product(right, self.B.mT)).sum(-1)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> FactoredMatrix:
        """Index batch axes first, then rows and columns, which stay axes: for these use slices or lists.

        Raises:
            InputError: more indices than axes, or an integer for rows or columns.
        """
        parts = index if isinstance(index, tuple) else (index,)
        n_axes = len(self.shape)
        ellipses = [i for i, part in enumerate(parts) if part is Ellipsis]
        if len(parts) - len(ellipses) > n_axes or len(ellipses) > 1:
            raise InputError(f"{len(parts)} indices are too many for {self!r}, which has {n_axes} axes")
        if ellipses:
            where = ellipses[0]
            parts = (*parts[:where], *[slice(None)] * (n_axes + 1 - len(parts)), *parts[where + 1 :])
        batch, (rows, columns) = parts[: n_axes - 2], (*parts[n_axes - 2 :], slice(None), slice(None))[:2]
        if isinstance(rows, int) or isinstance(columns, int):
            raise InputError("rows and columns stay axes: write m[..., 2:3, :] or m[..., [2], :] for row 2")
        A = self.A.expand(*self.shape[:-2], *self.A.shape[-2:])[batch]
        B = self.B.expand(*self.shape[:-2], *self.B.shape[-2:])[batch]
        return FactoredMatrix(A[..., rows, :], B[..., columns])

    def norm(self) -> Float[Tensor, "*batch"]:
        """Return the Frobenius norm, in O((rows + columns) r^2)."""
        return torch.linalg.matrix_norm(torch.linalg.qr(self.A).R @ torch.linalg.qr(self.B.mT).R.mT)

    def trace(self) -> Float[Tensor, "*batch"]:
        """Return the trace. Raises InputError where the product is not square."""
        self._check_square("a trace")
        return (self.A * self.B.mT).sum((-2, -1))

    def eigenvalues(self) -> Complex[Tensor, "*batch r"]:
        """Return r eigenvalues, complex: all that may differ from zero. Raises InputError where it is not square."""
        self._check_square("eigenvalues")
        return torch.linalg.eigvals(self.B @ self.A)

    def svd(
        self,
    ) -> tuple[Float[Tensor, "*batch rows k"], Float[Tensor, "*batch k"], Float[Tensor, "*batch columns k"]]:
        """Return U, S, V with ``U @ S.diag_embed() @ V.mT`` equal to the product, k at most r, S descending."""
        q_a, r_a = torch.linalg.qr(self.A)
        q_b, r_b = torch.linalg.qr(self.B.mT)
        u, s, vh = torch.linalg.svd(r_a @ r_b.mT, full_matrices=False)
        return q_a @ u, s, q_b @ vh.mT

    def _check_square(self, what: str) -> None:
        if self.shape[-1] != self.shape[-2]:
            raise InputError(f"{what} needs a square matrix; this one is {self.shape[-2]} by {self.shape[-1]}")

    def __repr__(self) -> str:
        return f"FactoredMatrix({tuple(self.shape)}, rank at most {self.rank})"


def _check_matrix(other: Tensor) -> Tensor:
    if other.ndim < 2:
        raise InputError(
            f"got a vector of shape {tuple(other.shape)} for a matrix; m.apply(v) is v times m, m.T.apply(v) m times v"
        )
    return other


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Return x @ y in the wider of their precisions. Raises InputError where they do not fit."""
    if x.shape[-1] != y.shape[-2]:
        raise InputError(
            f"a matrix with {x.shape[-1]} columns cannot be multiplied by one with {y.shape[-2]} rows; they must agree"
        )
    dtype = torch.promote_types(x.dtype, y.dtype)
    return at_least_float32(x.to(dtype)) @ at_least_float32(y.to(dtype))
