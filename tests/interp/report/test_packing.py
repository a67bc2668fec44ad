"""Packed attention: unpacked by hand it is what it was, within the error it states and the bytes it may take."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest

from interp.readout.attention import AttentionResult, attention
from interp.report.packing import LADDER, SCORE_LEVELS, PackedHead, pack_heads
from tests.configurations import CONFIGS, random_model, random_tokens


def unpack(head: PackedHead, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores (of weights: NaN) and weights, cell by cell, as the page's own script reads them."""
    raw = zlib.decompress(base64.b64decode(head.text))
    first, second = np.frombuffer(raw, "<f4", n), np.frombuffer(raw, "<f4", n, 4 * n)
    codes = np.frombuffer(raw, "<u2" if head.kind == "scores" else "u1", offset=8 * n)
    assert len(codes) == n * (n + 1) // 2
    scores, weights = np.full((n, n), -np.inf), np.zeros((n, n))
    at = 0
    for query in range(n):
        for key in range(query + 1):
            code = int(codes[at])
            at += 1
            if head.kind == "weights":
                weights[query, key] = code / head.levels * first[query]
            elif code:
                scores[query, key] = first[query] + (code - 1) / head.levels * (second[query] - first[query])
    if head.kind == "scores":
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return scores, weights


def noisy(n: int = 40, layers: int = 2, heads: int = 3) -> AttentionResult:
    scores = np.random.default_rng(0).standard_normal((layers, heads, n, n)).astype(np.float32) * 2
    scores[:, 0, :, 0] += 30  # sharp
    scores[..., np.triu(np.ones((n, n), bool), 1)] = -np.inf
    return AttentionResult(
        tokens=tuple("a" * n), layers=tuple(range(layers)), scores=scores, model="made", config={}, versions={}
    )


@pytest.mark.parametrize("name", ["gpt2", "mistral", "learned-mqa"])
def test_short_prompts_keep_their_scores(name):
    model = random_model(CONFIGS[name])
    result = attention(model, random_tokens(model.cfg, 1, 8))
    for head in pack_heads(result):
        scores, weights = unpack(head, 8)
        expected = result.head_scores(*head.head)
        assert (head.kind, head.levels) == ("scores", SCORE_LEVELS)
        assert (np.isfinite(scores) == np.isfinite(expected)).all()
        seen = np.isfinite(expected)
        assert np.abs(scores[seen] - expected[seen]).max() <= head.error + 1e-6
        np.testing.assert_allclose(weights, result.pattern(*head.head), atol=1e-4)


@pytest.mark.parametrize("budget", [4000, 6000, 8000])
def test_a_budget_is_kept_and_the_error_is_the_stated_one(budget):
    result = noisy()
    packed = pack_heads(result, budget)
    assert sum(len(head.packed) for head in packed) <= budget
    assert [head.head for head in packed] == [(layer, head) for layer in range(2) for head in range(3)]
    for head in packed:
        _, weights = unpack(head, 40)
        pattern = result.pattern(*head.head)
        allowed = head.error * pattern.max(1, keepdims=True) if head.kind == "weights" else 1e-3
        assert (np.abs(weights - pattern) <= allowed + 1e-6).all()


def test_the_noisy_pay_before_the_sharp():
    levels = {head.head: head.levels for head in pack_heads(noisy(), 3000)}
    assert min(levels[layer, 0] for layer in range(2)) > max(
        levels[layer, head] for layer in range(2) for head in (1, 2)
    )


def test_an_impossible_budget_gets_the_coarsest():
    assert {head.levels for head in pack_heads(noisy(), 1)} == {LADDER[-1]}


def test_a_row_of_equal_scores_survives():
    result = noisy(3, 1, 1)
    scores = result.scores.copy()
    scores[np.isfinite(scores)] = 1.5
    flat = AttentionResult(tokens=result.tokens, layers=(0,), scores=scores, model="made", config={}, versions={})
    (head,) = pack_heads(flat)
    found, weights = unpack(head, 3)
    assert found[2].tolist() == [1.5, 1.5, 1.5]
    np.testing.assert_allclose(weights[2], 1 / 3)
