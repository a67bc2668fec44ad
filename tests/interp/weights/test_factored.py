"""Every operation on a FactoredMatrix equals the one on the matrix written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.weights.factored import FactoredMatrix
from models.errors import InputError

SHAPES = [((), 5, 3, 4), ((2,), 4, 2, 6), ((2, 3), 3, 5, 3), ((2, 3), 6, 6, 6), ((), 2, 7, 2), ((), 4, 1, 4)]


def factored(batch=(), rows=5, r=3, columns=4, seed=0, dtype=torch.float64) -> FactoredMatrix:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(*batch, rows, r, generator=generator, dtype=torch.float64)
    B = torch.randn(*batch, r, columns, generator=generator, dtype=torch.float64)
    return FactoredMatrix(A.to(dtype), B.to(dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_transpose_norm_and_scaling(shape):
    m = factored(*shape)
    dense = m.A @ m.B
    assert m.shape == dense.shape
    torch.testing.assert_close(m.dense(), dense)
    torch.testing.assert_close(m.T.dense(), dense.mT)
    torch.testing.assert_close(m.norm(), torch.linalg.matrix_norm(dense))
    for scaled in (m * 3.0, 3.0 * m, m * torch.tensor(3.0), torch.tensor(3.0) * m):
        torch.testing.assert_close(scaled.dense(), 3 * dense)
    assert m.rank == shape[2]


@pytest.mark.parametrize("shape", SHAPES)
def test_svd(shape):
    m = factored(*shape)
    u, s, v = m.svd()
    torch.testing.assert_close(u @ s.diag_embed() @ v.mT, m.dense())
    k = s.shape[-1]
    assert k <= m.rank
    torch.testing.assert_close(s, torch.linalg.svdvals(m.dense())[..., :k])
    eye = torch.eye(k, dtype=torch.float64).expand(*m.shape[:-2], k, k)
    torch.testing.assert_close(u.mT @ u, eye)
    torch.testing.assert_close(v.mT @ v, eye)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1] == shape[3]])
def test_eigenvalues_and_trace(shape):
    m = factored(*shape)
    ours, dense = (
        x.flatten(0, -2) if x.ndim > 1 else x[None] for x in (m.eigenvalues(), torch.linalg.eigvals(m.dense()))
    )
    torch.testing.assert_close(m.trace(), m.dense().diagonal(dim1=-2, dim2=-1).sum(-1))
    for got, expected in zip(ours, dense, strict=True):
        n = min(len(got), len(expected))
        for values in (got, expected):
            assert (values.abs().sort(descending=True).values[n:] < 1e-9).all()
        key = lambda z: (round(abs(z), 6), round(z.real, 6), round(z.imag, 6))  # noqa: E731
        pairs = zip(sorted(got.tolist(), key=key)[-n:], sorted(expected.tolist(), key=key)[-n:], strict=True)
        assert all(abs(a - b) < 1e-6 for a, b in pairs)


@pytest.mark.parametrize("inner", [2, 3, 5])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_products(batch, inner):
    m, other = factored(batch, 5, 3, 4), factored(batch, 4, inner, 6, seed=1)
    product = m @ other
    torch.testing.assert_close(product.dense(), m.dense() @ other.dense())
    assert product.rank == min(3, inner)
    right, left = torch.randn(4, 2, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    torch.testing.assert_close((m @ right).dense(), m.dense() @ right)
    torch.testing.assert_close((left @ m).dense(), left @ m.dense())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_apply_and_bilinear(rows, r, columns, seed):
    m = factored((), rows, r, columns, seed)
    left, right = torch.randn(7, rows, dtype=torch.float64), torch.randn(7, columns, dtype=torch.float64)
    torch.testing.assert_close(m.apply(left), left @ m.dense())
    torch.testing.assert_close(m.apply(left[0]), left[0] @ m.dense())
    torch.testing.assert_close(m.bilinear(left, right), torch.einsum("ni,ij,nj->n", left, m.dense(), right))


INDICES = [
    0, -1, slice(0, 1), (0, 1), (1, slice(None), slice(1, 3)), (..., slice(1, 2)), (..., slice(0, 2), [1, 0]),
    ([0, 1], [2, 1]), (0, ..., slice(1, 4)), (slice(None), 1, [3, 0], slice(None, None, 2)), ..., [1],
    (torch.tensor([1, 0]),),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing(index):
    m = factored((2, 3), 5, 3, 4)
    torch.testing.assert_close(m[index].dense(), m.dense()[index])


def test_broadcast_batches():
    A, B = torch.randn(2, 1, 4, 3), torch.randn(5, 3, 4)
    m = FactoredMatrix(A, B)
    assert m.shape == (2, 5, 4, 4)
    torch.testing.assert_close(m.norm(), torch.linalg.matrix_norm(A @ B))
    torch.testing.assert_close(m.trace(), (A @ B).diagonal(dim1=-2, dim2=-1).sum(-1))
    torch.testing.assert_close(m[1, 2].dense(), (A @ B)[1, 2])
    torch.testing.assert_close(m.svd()[1], torch.linalg.svdvals(A @ B)[..., :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_raised(dtype):
    m = factored((), 4, 2, 4, dtype=dtype)
    assert m.dense().dtype == m.norm().dtype == m.svd()[1].dtype == torch.float32
    assert m.eigenvalues().dtype == torch.complex64
    assert m.apply(torch.ones(4, dtype=dtype)).dtype == torch.float32
    assert (m @ torch.ones(4, 4, dtype=dtype)).dense().dtype == torch.float32


def test_mixed_precision_takes_the_wider():
    wide, narrow = factored(rows=4, dtype=torch.float64), factored(rows=4, dtype=torch.float32)
    for product in (wide @ narrow, narrow @ wide, FactoredMatrix(wide.A, narrow.B)):
        assert product.A.dtype == product.B.dtype == torch.float64
    assert narrow.bilinear(torch.ones(4).double(), torch.ones(4)).dtype == torch.float64


def test_a_small_product_of_large_factors_keeps_its_norm():
    A = torch.tensor([[1e4, 1e4], [0, 0]])
    m = FactoredMatrix(A, torch.tensor([[1.0, 0], [-1.0 + 1e-5, 0]]))
    torch.testing.assert_close(m.norm(), m.dense().norm(), rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda m: FactoredMatrix(m.A, m.A), r"factors of shape \(5, 3\) and \(5, 3\) have no product"),
        (lambda m: FactoredMatrix(m.A, m.A[0]), "have no product"),
        (lambda m: m.trace(), "a trace needs a square matrix; this one is 5 by 4"),
        (lambda m: m.eigenvalues(), "eigenvalues needs a square matrix"),
        (lambda m: m @ torch.ones(4), r"got a vector of shape \(4,\) for a matrix; m.apply\(v\) is v times m"),
        (lambda m: torch.ones(5) @ m, "got a vector"),
        (lambda m: m @ torch.ones(5, 5), "a matrix with 4 columns cannot be multiplied by one with 5 rows"),
        (lambda m: m @ m, "a matrix with 4 columns cannot be multiplied by one with 5 rows"),
        (lambda m: m.apply(torch.ones(4)), "a matrix with 4 columns cannot be multiplied"),
        (lambda m: m[0], "rows and columns stay axes"),
        (lambda m: m[:, 1], "rows and columns stay axes"),
        (lambda m: m[:, :, :], r"3 indices are too many for FactoredMatrix\(\(5, 4\), rank at most 3\)"),
    ],
)
def test_refusals(operation, message):
    with pytest.raises(InputError, match=message):
        operation(factored())
