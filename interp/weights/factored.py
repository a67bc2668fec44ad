"""FactoredMatrix: a product A B kept as its two factors, because a head's circuits have rank d_head in d_model.

Everything is computed through the small inner dimension r:

    ||AB||_F^2 = tr((A^T A)(B B^T))      eig(AB) = eig(BA) and zeros      svd by QR of A and of B^T, then of r x r
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from models.errors import InputError


def at_least_float32(x: Tensor) -> Tensor:
    """Return half precision as float32; svd and eig know nothing smaller."""
    return x if x.is_complex() else x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """The matrix ``A @ B``, never written out unless asked; leading axes are a batch.

    Args:
        A: ``[..., rows, r]``.
        B: ``[..., r, columns]``.

    Raises:
        InputError: inner axes of different length.

    >>> product = FactoredMatrix(torch.ones(5, 2), torch.ones(2, 3))
    >>> product.shape, product.norm().item() == product.dense().norm().item()
    (torch.Size([5, 3]), True)
    """

    A: Float[Tensor, "*batch rows r"]
    B: Float[Tensor, "*batch r columns"]

    def __post_init__(self) -> None:
        if self.A.ndim < 2 or self.B.ndim < 2 or self.A.shape[-1] != self.B.shape[-2]:
            raise InputError(
                f"factors of shape {tuple(self.A.shape)} and {tuple(self.B.shape)} have no product; "
                "the last axis of A and the last but one of B must agree"
            )
        object.__setattr__(self, "A", at_least_float32(self.A))
        object.__setattr__(self, "B", at_least_float32(self.B))

    @property
    def shape(self) -> torch.Size:
        """The shape of the product."""
        batch = torch.broadcast_shapes(self.A.shape[:-2], self.B.shape[:-2])
        return torch.Size([*batch, self.A.shape[-2], self.B.shape[-1]])

    @property
    def rank(self) -> int:
        """The inner dimension: the rank is at most this."""
        return self.A.shape[-1]

    @property
    def T(self) -> FactoredMatrix:
        """The transpose of the last two axes."""
        return FactoredMatrix(self.B.mT, self.A.mT)

    def dense(self) -> Float[Tensor, "*batch rows columns"]:
        """Return the product written out."""
        return self.A @ self.B

    def __matmul__(self, other: Tensor | FactoredMatrix) -> FactoredMatrix:
        """Multiply from the right; the smaller inner dimension is kept."""
        if isinstance(other, FactoredMatrix):
            middle = self.B @ other.A
            if self.rank <= other.rank:
                return FactoredMatrix(self.A, middle @ other.B)
            return FactoredMatrix(self.A @ middle, other.B)
        return FactoredMatrix(self.A, self.B @ at_least_float32(other))

    def __rmatmul__(self, other: Tensor) -> FactoredMatrix:
        """Multiply from the left."""
        return FactoredMatrix(at_least_float32(other) @ self.A, self.B)

    def __mul__(self, number: float | Tensor) -> FactoredMatrix:
        """Scale by a number (or by ``[..., 1, 1]``)."""
        return FactoredMatrix(self.A * number, self.B)

    __rmul__ = __mul__

    def apply(self, x: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch columns"]:
        """Return the row vectors ``x`` times the product."""
        return at_least_float32(x) @ self.A @ self.B

    def bilinear(
        self, left: Float[Tensor, "*batch rows"], right: Float[Tensor, "*batch columns"]
    ) -> Float[Tensor, "*batch"]:
        """Return left . A B . right."""
        return ((at_least_float32(left) @ self.A) * (at_least_float32(right) @ self.B.mT)).sum(-1)

    def __getitem__(self, index: object) -> FactoredMatrix:
        """Index batch axes first, then rows and columns (kept as axes: use slices or lists for these)."""
        parts = index if isinstance(index, tuple) else (index,)
        n_batch = len(self.shape) - 2
        if Ellipsis in parts:
            where = parts.index(Ellipsis)
            fill = (slice(None),) * (n_batch + 2 - (len(parts) - 1))
            parts = (*parts[:where], *fill, *parts[where + 1 :])
        batch, rest = parts[:n_batch], parts[n_batch:]
        if any(isinstance(part, int) for part in rest):
            raise InputError("rows and columns stay axes: write m[2:3] or m[[2]], not m[2]")
        A = self.A.expand(*self.shape[:-2], *self.A.shape[-2:])[batch]
        B = self.B.expand(*self.shape[:-2], *self.B.shape[-2:])[batch]
        if rest:
            A = A[..., rest[0], :]
        if len(rest) > 1:
            B = B[..., rest[1]]
        return FactoredMatrix(A, B)

    def norm(self) -> Float[Tensor, "*batch"]:
        """Return the Frobenius norm, in O((rows + columns) r^2)."""
        gram = (self.A.mT @ self.A) * (self.B @ self.B.mT)  # tr(XY) = sum(X * Y^T), and B B^T is symmetric
        return gram.sum((-2, -1)).clamp(min=0).sqrt()

    def trace(self) -> Float[Tensor, "*batch"]:
        """Return the trace. Raises InputError where the product is not square."""
        self._check_square("a trace")
        return (self.A * self.B.mT).sum((-2, -1))

    def eigenvalues(self) -> Float[Tensor, "*batch r"]:
        """Return the r eigenvalues that may differ from zero, complex. Raises InputError where it is not square."""
        self._check_square("eigenvalues")
        return torch.linalg.eigvals(self.B @ self.A)

    def svd(
        self,
    ) -> tuple[Float[Tensor, "*batch rows r"], Float[Tensor, "*batch r"], Float[Tensor, "*batch columns r"]]:
        """Return U, S, V with ``U @ diag(S) @ V.mT`` equal to the product, of rank at most r."""
        q_a, r_a = torch.linalg.qr(self.A)
        q_b, r_b = torch.linalg.qr(self.B.mT)
        u, s, vh = torch.linalg.svd(r_a @ r_b.mT, full_matrices=False)
        return q_a @ u, s, q_b @ vh.mT

    def _check_square(self, what: str) -> None:
        if self.shape[-1] != self.shape[-2]:
            raise InputError(f"{what} needs a square matrix; this one is {self.shape[-2]} by {self.shape[-1]}")

    def __repr__(self) -> str:
        return f"FactoredMatrix({tuple(self.shape)}, rank at most {self.rank})"
