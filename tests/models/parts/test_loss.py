"""The next-token loss, token by token."""

from __future__ import annotations

import math

import pytest
import torch

from models.parts.loss import next_token_loss


@pytest.mark.parametrize("masked", [True, False])
def test_the_loss_is_minus_log_p_of_the_next_token(masked):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    tokens = torch.randint(7, (2, 5), generator=generator)
    real = torch.tensor([[True] * 5, [True, True, False, True, True]]) if masked else None
    values = []
    for row in range(2):
        for pos in range(4):
            if masked and not (real[row, pos] and real[row, pos + 1]):
                values.append(math.nan)
                continue
            p = logits[row, pos].exp() / logits[row, pos].exp().sum()
            values.append(-math.log(p[tokens[row, pos + 1]]))
    expected = torch.tensor(values, dtype=torch.float64).view(2, 4)
    torch.testing.assert_close(next_token_loss(logits, tokens, real, per_token=True), expected, equal_nan=True)
    torch.testing.assert_close(next_token_loss(logits, tokens, real), expected.nanmean())
    assert expected.isnan().sum() == 2 * masked


def test_half_precision_logits_give_a_float32_loss():
    logits = torch.randn(1, 4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens = torch.tensor([[1, 2, 3, 4]])
    loss = next_token_loss(logits, tokens)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, next_token_loss(logits.double(), tokens).float())
