"""The faster kernel computes the same product, and is left alone where it cannot serve."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from models.parts import linear as module
from models.parts.linear import linear

LARGE = (640, 512)  # 327,680 weights
SMALL = (8, 6)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls of oneDNN's kernel."""
    calls: list[int] = []
    kernel = module._ONEDNN
    if kernel is None:
        pytest.skip("this build of torch has no oneDNN")

    def counted(*args: object) -> torch.Tensor:
        calls.append(1)
        return kernel(*args)

    monkeypatch.setattr(module, "_ONEDNN", counted)
    return calls


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 3, 4)])
def test_the_product_is_torchs(taken, shape, bias, batch):
    x, weight, b = draw(*batch, shape[1]), draw(*shape), draw(shape[0]) if bias else None
    torch.testing.assert_close(linear(x, weight, b), F.linear(x, weight, b), rtol=1e-4, atol=1e-4)
    assert bool(taken) == (shape == LARGE)


def test_inputs_need_not_be_contiguous(taken):
    x, weight = draw(2, LARGE[1], 3).transpose(1, 2), draw(*LARGE)
    torch.testing.assert_close(linear(x, weight, None), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    assert taken


@pytest.mark.parametrize("weight", [draw(512, 1280)[:, :640], draw(640, 512).T], ids=["columns", "transposed"])
def test_a_weight_that_is_a_view_goes_to_the_blas(taken, weight):
    x = draw(2, weight.shape[1])
    torch.testing.assert_close(linear(x, weight, None), F.linear(x, weight))
    assert not taken


def test_a_graph_is_recorded_where_one_is_wanted(taken):
    x, weight = draw(2, LARGE[1]).requires_grad_(), draw(*LARGE)
    linear(x, weight, None).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand_as(x), rtol=1e-4, atol=1e-4)
    assert not taken
    with torch.no_grad():
        linear(x, weight, None)
    assert taken


def test_other_precisions_go_to_torchs_own_kernel(taken):
    x, weight = draw(2, LARGE[1]).bfloat16(), draw(*LARGE).bfloat16()
    assert linear(x, weight, None).dtype == torch.bfloat16
    assert not taken
