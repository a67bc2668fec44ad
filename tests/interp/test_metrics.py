"""Metrics against their formulas, one example and one position at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.metrics import (
    KL,
    Custom,
    Logit,
    LogitDifference,
    LogProbability,
    Loss,
    Metric,
    Probability,
    Rank,
    as_metric,
    as_metrics,
    fitting,
    recovered_fraction,
)
from models.errors import InputError

BATCH, WIDTH, D_VOCAB = 3, 5, 7
ANSWER, WRONG = [1, 2, 6], [0, 0, 3]
LOGITS = torch.randn(BATCH, WIDTH, D_VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TOKENS = torch.randint(D_VOCAB, (BATCH, WIDTH), generator=torch.Generator().manual_seed(1))
REFERENCE = torch.randn(BATCH, D_VOCAB, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
LEFT = torch.tensor([[False, False, True, True, True], [True] * 5, [False, True, True, True, True]])
RIGHT = LEFT.flip(1)
MASKS = {"none": None, "left": LEFT, "right": RIGHT}


def by_hand(metric: Metric, logits: Tensor, last: int, example: int) -> float:
    """Return a metric of one example from its formula."""
    row = [float(x) for x in logits[last]]
    total = sum(np.exp(x) for x in row)
    p = [np.exp(x) / total for x in row]
    answer, wrong = ANSWER[example], WRONG[example]
    if isinstance(metric, LogitDifference):
        return row[answer] - row[wrong]
    if isinstance(metric, Logit):
        return row[answer]
    if isinstance(metric, Probability):
        return p[answer]
    if isinstance(metric, LogProbability):
        return float(np.log(p[answer]))
    if isinstance(metric, Rank):
        return sorted(row, reverse=True).index(row[answer])
    q = np.exp(REFERENCE[example].numpy())
    q /= q.sum()
    return float(sum(a * np.log(a / b) for a, b in zip(q, p, strict=True)))


METRICS = [
    LogitDifference(ANSWER, WRONG),
    Logit(ANSWER),
    Probability(ANSWER),
    LogProbability(torch.tensor(ANSWER)),
    Rank(ANSWER),
    KL(REFERENCE),
]


@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_equals_its_formula_at_the_last_real_token(metric, padding):
    real = MASKS[padding]
    found = metric.of_logits(LOGITS, real)
    for example in range(BATCH):
        last = WIDTH - 1 if real is None else max(i for i in range(WIDTH) if real[example, i])
        assert float(found[example]) == pytest.approx(by_hand(metric, LOGITS[example], last, example))


@pytest.mark.parametrize("padding", MASKS)
def test_loss_is_the_mean_over_pairs_of_real_tokens(padding):
    real = MASKS[padding]
    found = Loss(TOKENS, real).of_logits(LOGITS, real)
    for example in range(BATCH):
        pairs = [i for i in range(WIDTH - 1) if real is None or (real[example, i] and real[example, i + 1])]
        losses = [
            -float(LOGITS[example, i, TOKENS[example, i + 1]] - LOGITS[example, i].exp().sum().log()) for i in pairs
        ]
        assert float(found[example]) == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("metric", [*METRICS, Loss(TOKENS), Custom(lambda logits: logits[:, 2, 1])])
def test_leading_cell_axes_are_kept(metric):
    cells = torch.stack([LOGITS, 2 * LOGITS, -LOGITS]).double()
    where = metric.positions(TOKENS, None)
    picked = cells.gather(2, where[None, :, :, None].expand(3, -1, -1, D_VOCAB))
    vocabulary = metric.vocabulary()
    if vocabulary is not None:
        picked = picked.gather(3, vocabulary[None, :, None].expand(3, -1, picked.shape[2], -1))
    together = metric(picked)
    assert together.shape == (3, BATCH)
    torch.testing.assert_close(together, torch.stack([metric.of_logits(cell) for cell in cells]))


def test_one_token_stands_for_every_example():
    torch.testing.assert_close(Probability(2).of_logits(LOGITS), Probability([2, 2, 2]).of_logits(LOGITS))
    torch.testing.assert_close(
        LogitDifference(ANSWER, 0).of_logits(LOGITS), LogitDifference(ANSWER, [0, 0, 0]).of_logits(LOGITS)
    )


def test_kl_to_itself_is_zero_and_rank_of_the_top_is_zero():
    torch.testing.assert_close(KL(LOGITS[:, -1]).of_logits(LOGITS), torch.zeros(BATCH, dtype=torch.float64))
    assert Rank(LOGITS[:, -1].argmax(-1)).of_logits(LOGITS).tolist() == [0, 0, 0]


def test_half_precision_is_widened_before_differences():
    logits = torch.tensor([[[300.0, 299.0]]], dtype=torch.bfloat16)
    assert Probability(0).of_logits(logits).dtype == torch.float32
    logits = torch.randn(1, 1, 500).to(torch.bfloat16)
    exact = logits.double().log_softmax(-1)[0, 0, 3]
    assert float(LogProbability(3).of_logits(logits)) == pytest.approx(float(exact), abs=1e-5)


def test_a_function_may_return_one_number_per_example_or_one_for_all():
    per_example = as_metric(lambda logits: logits[:, -1, 1] - logits[:, -1, 0])
    torch.testing.assert_close(per_example.of_logits(LOGITS), LogitDifference(1, 0).of_logits(LOGITS))
    scalar = as_metric(lambda logits: (logits[:, -1, 1] - logits[:, -1, 0]).mean().item())
    assert scalar.of_logits(LOGITS).tolist() == pytest.approx([float(per_example.of_logits(LOGITS).mean())] * BATCH)
    with pytest.raises(InputError, match=r"returned shape \(3, 5\); expected one number per example, \[3\]"):
        as_metric(lambda logits: logits[..., 0]).of_logits(LOGITS)


def test_several_metrics_are_named():
    named = as_metrics({"p": Probability(1), "f": lambda logits: logits[:, -1, 0]})
    assert [(name, type(metric)) for name, metric in named.items()] == [("p", Probability), ("f", Custom)]
    assert list(as_metrics(Rank(3))) == ["rank"]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (LogitDifference([1, 2], 0), "logit_difference has answers for 2 examples; the batch has 3"),
        (Probability([1, 2]), "probability has answers for 2 examples"),
        (Logit(7), "logit names token 7; this vocabulary is 0 to 6"),
        (Rank(-1), "rank names token -1"),
        (KL(None), "kl's reference is NoneType; expected logits"),
        (KL(REFERENCE[:2]), r"reference has shape \(2, 7\); expected \[batch, d_vocab\] = \(3, 7\)"),
        (Loss(TOKENS[:, 1:]), r"loss predicts tokens of shape \(3, 4\); the run's are \(3, 5\)"),
        (Loss(TOKENS, LEFT[:2]), r"a mask of shape \(2, 5\)"),
        (Loss(TOKENS, torch.eye(5)[:3].bool()), "two real tokens side by side in every example"),
    ],
)
def test_what_does_not_fit_the_batch_is_refused(metric, message):
    with pytest.raises(InputError, match=message):
        metric.check(TOKENS, D_VOCAB)


def test_answers_and_wrong_answers_go_in_pairs():
    with pytest.raises(InputError, match="3 answers and 2 wrong answers"):
        LogitDifference([1, 2, 3], [0, 1]).check(TOKENS, D_VOCAB)


@pytest.mark.parametrize("given", [3.9, True, "a", None, [1.5, 2, 3], torch.tensor([1.0]), float("nan")])
@pytest.mark.parametrize("make", [Logit, Probability, lambda answer: LogitDifference(answer, 5)])
def test_what_is_no_id_is_no_answer(make, given):
    with pytest.raises(InputError, match="an answer"):
        make(given)


def test_an_answer_is_not_its_own_wrong_answer():
    with pytest.raises(InputError, match="the same token, 3, in example 1"):
        LogitDifference([1, 3], 3)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_loss_never_counts_the_runs_padding(padding):
    real = MASKS[padding]
    found = Loss(TOKENS).of_logits(LOGITS, real)
    torch.testing.assert_close(found, Loss(TOKENS, real).of_logits(LOGITS, real))
    other = torch.where(real, TOKENS, (TOKENS + 1) % D_VOCAB)
    torch.testing.assert_close(Loss(other).of_logits(LOGITS, real), found)
    fewer = torch.ones_like(real)
    fewer[1, 3] = False
    both = Loss(TOKENS, fewer).of_logits(LOGITS, real)
    torch.testing.assert_close(both, Loss(TOKENS, fewer & real).of_logits(LOGITS, None))


def test_loss_takes_lists_and_refuses_ids_that_are_not_there():
    torch.testing.assert_close(Loss(TOKENS.tolist()).of_logits(LOGITS), Loss(TOKENS).of_logits(LOGITS))
    with pytest.raises(InputError, match=r"loss predicts ids from .*; this vocabulary is 0 to 6"):
        Loss(TOKENS + 5).check(TOKENS, D_VOCAB)
    with pytest.raises(InputError, match="loss's tokens: got a tensor of"):
        Loss(TOKENS.float())


@dataclass(frozen=True, eq=False)
class At(Metric):
    name: ClassVar[str] = "at"
    unit: ClassVar[str] = "logits"
    where: Any = None

    def positions(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        return self.where

    def __call__(self, logits: Tensor) -> Tensor:
        return logits[..., 0, 0]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (torch.full((3, 1), -1), "at.positions returned columns -1 to -1; expected integers .* of 0 to 4, batch 3"),
        (torch.full((3, 1), 5), "returned columns 5 to 5"),
        (torch.zeros(3, 0, dtype=torch.long), r"returned shape \(3, 0\)"),
        (torch.zeros(3, dtype=torch.long), r"returned shape \(3,\)"),
        (torch.zeros(2, 1, dtype=torch.long), r"returned shape \(2, 1\)"),
        (torch.zeros(3, 1), "returned a tensor of torch.float32"),
        (4, "returned a int"),
    ],
)
def test_columns_that_are_not_there_are_not_read(where, message):
    with pytest.raises(InputError, match=message):
        fitting(At(where), TOKENS, None, D_VOCAB)
    assert list(fitting(At(torch.tensor([[0], [4], [2]])), TOKENS, None, D_VOCAB)) == ["at"]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "the metric returned a NoneType; expected one real number per example"),
        ("x", "the metric returned a str"),
        (1j, "the metric returned complex numbers"),
        (torch.ones(3) + 1j, "complex numbers"),
    ],
)
def test_a_function_returns_real_numbers(returned, message):
    with pytest.raises(InputError, match=message):
        as_metric(lambda logits: returned).of_logits(LOGITS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (1, "1 names a metric; expected text"),
        ("", "'' names a metric"),
        *(
            (taken, "like a column of every result's table")
            for taken in ("change", "p_mean_change", "layer", "src_pos", "part")
        ),
    ],
)
def test_metrics_have_names_of_their_own(name, message):
    with pytest.raises(InputError, match=message):
        as_metrics({name: Logit(1)})


@pytest.mark.parametrize(("given", "shown"), [(Probability, "Probability"), ("logit", "str"), (3, "int")])
def test_what_is_no_metric_is_refused(given, shown):
    with pytest.raises(InputError, match=f"got {shown}"):
        as_metric(given)


def test_no_metric_at_all_is_refused():
    with pytest.raises(InputError, match="no metric was given"):
        as_metrics({})


def test_recovered_fraction_lies_between_the_runs():
    assert recovered_fraction(np.array([-1.0, 0.5, 3.0]), 3.0, -1.0).tolist() == [0.0, 0.375, 1.0]
    assert recovered_fraction(np.array([0.0, 1.0]), 0.0, 2.0, higher_is_better=False).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(  # scenario 14
    ("clean", "corrupted", "higher", "message"),
    [
        (2.0, 2.0, True, "loss is 2 nats on the clean run and 2 on the corrupted one.*on which the runs differ"),
        (2.0, 2.0005, True, "on which the runs differ"),
        (0.0, 0.0, True, "on which the runs differ"),
        (float("nan"), 1.0, True, "on which the runs differ"),
        (1.0, 2.0, True, "the wrong way round. Swap the prompts"),
        (2.0, 1.0, False, "the wrong way round"),
    ],
)
def test_a_fraction_of_nothing_is_refused(clean, corrupted, higher, message):
    with pytest.raises(InputError, match=message):
        recovered_fraction(np.zeros(2), clean, corrupted, name="loss", unit="nats", higher_is_better=higher)
