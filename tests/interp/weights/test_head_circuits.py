"""Circuits reproduce the model's own scores and head outputs on real tokens; a wrong order of products does not."""

from __future__ import annotations

import pytest
import torch

from interp.weights import FactoredMatrix, ov_circuit, qk_circuit, stacked_ov, stacked_qk
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.parts.rope import Rotary
from tests.configurations import CONFIGS, random_config, random_model, random_tokens

EVERY = {**CONFIGS, **{f"random-{seed}": random_config(seed) for seed in range(12)}}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # the angles of rotary positions are float32


def streams(model, tokens):
    """Return for each layer the stream that its attention reads, with the cache of the run."""
    _, cache = model.run_with_cache(tokens)
    key = ("normalized", "ln1") if "ln_final.hook_scale" in model.hook_names() else ("resid_pre",)
    return [(cache[(key[0], layer, *key[1:])], cache) for layer in range(model.cfg.n_layers)]


def relative(model, query: int, key: int) -> int | None:
    return query - key if model.cfg.positions == "rotary" else None


def own_scores(model, read, layer, head, make=qk_circuit):
    """Return the scores of one sequence by the circuit, one (query, key) pair at a time."""
    n = len(read)
    scores = torch.full((n, n), -torch.inf, dtype=torch.float64)
    for query in range(n):
        for key in range(query + 1):
            circuit = make(model, layer, head, relative=relative(model, query, key))
            scores[query, key] = circuit.score(read[query], read[key])
    return scores


def divisors(model, cache, layer, head):
    """Return what the norms of queries and keys divide each score by, ``[query_pos, key_pos]``."""
    if model.cfg.qk_norm == "none":
        return torch.ones(())
    of_q, of_k = (cache[f"blocks.{layer}.attn.{side}_norm.hook_scale"][0, ..., 0] for side in ("q", "k"))
    q = of_q[:, 0 if model.cfg.qk_norm == "flat" else head]
    k = of_k[:, 0 if model.cfg.qk_norm == "flat" else head // model.cfg.group_size]
    return q[:, None] * k


@pytest.mark.parametrize("name", EVERY)
def test_qk_circuits_give_the_models_scores(name):
    model = random_model(EVERY[name])
    tokens = random_tokens(model.cfg, batch=1, n=5)
    for layer, (read, cache) in enumerate(streams(model, tokens)):
        for head in range(model.cfg.n_heads):
            expected = cache["attn_scores", layer][0, head] * divisors(model, cache, layer, head)
            got = own_scores(model, read[0], layer, head).masked_fill(expected == -torch.inf, -torch.inf)
            torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("name", EVERY)
def test_ov_circuits_give_the_models_head_outputs(name):
    model = random_model(EVERY[name])
    for layer, (read, cache) in enumerate(streams(model, random_tokens(model.cfg))):
        for head in range(model.cfg.n_heads):
            written = ov_circuit(model, layer, head).write(read)
            result = cache["pattern", layer][:, head] @ written
            torch.testing.assert_close(result, cache["result", layer][:, :, head], **CLOSE)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "qwen2", "interleaved-gqa", "gptj", "neox", "transformer-2017", "qwen3"]
)
def test_a_wrong_order_is_noticed(name):
    """What a mistaken reader could have written instead gives other scores and outputs."""
    model = random_model(EVERY[name])
    tokens = random_tokens(model.cfg, batch=1, n=5)
    read, cache = streams(model, tokens)[1]
    expected = cache["attn_scores", 1][0, 0]
    below = torch.ones(5, 5, dtype=torch.bool).tril(-1)

    def swapped(model, layer, head, relative):
        circuit = qk_circuit(model, layer, head, relative=relative)
        return type(circuit)(
            circuit.head, relative, circuit.matrix.T, circuit.key_term, circuit.query_term, circuit.constant
        )

    def turned_the_other_way(model, layer, head, relative):
        attn = model.blocks[layer].attn
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attn, "rotary", Rotary(-attn.rotary.theta, attn.rotary.layout))
            return qk_circuit(model, layer, head, relative=relative)

    wrong = [swapped, *([turned_the_other_way] if model.cfg.positions == "rotary" else [])]
    for make in wrong:
        got = own_scores(model, read[0], 1, 0, make)
        assert not torch.allclose(got[below], expected[below], **CLOSE), make.__name__
    circuit = ov_circuit(model, 1, 0)
    result = cache["result", 1][:, :, 0]
    for matrix in (circuit.matrix.T, FactoredMatrix(circuit.matrix.A, ov_circuit(model, 1, 1).matrix.B)):
        assert not torch.allclose(cache["pattern", 1][:, 0] @ (matrix.apply(read) + circuit.bias), result, **CLOSE)


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gptj"])
def test_scores_of_all_pairs_are_those_of_each(name):
    model = random_model(EVERY[name])
    circuit = qk_circuit(model, 1, 1, relative=relative(model, 3, 1))
    queries, keys = (torch.randn(n, model.cfg.d_model, dtype=torch.float64) for n in (3, 4))
    for i in range(3):
        for j in range(4):
            torch.testing.assert_close(circuit.scores(queries, keys)[i, j], circuit.score(queries[i], keys[j]))


def test_biases_are_terms_of_their_own():
    model = random_model(EVERY["qwen2"])
    circuit = qk_circuit(model, 0, 3, relative=2)
    zero, query, key = torch.zeros(3, 8, dtype=torch.float64)[0], *torch.randn(2, 8, dtype=torch.float64)
    torch.testing.assert_close(circuit.score(zero, zero), circuit.constant)
    torch.testing.assert_close(circuit.score(query, zero) - circuit.constant, query @ circuit.query_term)
    torch.testing.assert_close(circuit.score(zero, key) - circuit.constant, key @ circuit.key_term)
    bare = random_model(EVERY["llama"])
    assert not qk_circuit(bare, 0, 0, relative=1).query_term.any()
    assert not ov_circuit(bare, 0, 0).bias.any()


def test_a_softmax_sees_neither_the_query_term_nor_the_constant():
    model = random_model(EVERY["gpt2"])
    read, cache = streams(model, random_tokens(model.cfg, batch=1))[1]
    circuit = qk_circuit(model, 1, 0)
    last = circuit.matrix.bilinear(read[0, -1].expand_as(read[0]), read[0]) + read[0] @ circuit.key_term
    torch.testing.assert_close(last.softmax(-1), cache["pattern", 1][0, 0, -1])


def test_layernorms_centring_is_in_the_factors():
    model = random_model(EVERY["gpt2"])
    circuit, ov = qk_circuit(model, 1, 0), ov_circuit(model, 1, 0)
    for factor in (circuit.matrix.A, circuit.matrix.B.mT, ov.matrix.A):
        assert factor.mean(0).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017"])
def test_stacks_hold_every_head(name):
    model = random_model(EVERY[name])
    offset = 2 if model.cfg.positions == "rotary" else None
    qk, ov = stacked_qk(model, relative=offset), stacked_ov(model)
    assert qk.shape == ov.shape == (2, model.cfg.n_heads, 8, 8)
    for layer in range(2):
        for head in range(model.cfg.n_heads):
            own = qk_circuit(model, layer, head, relative=offset).matrix
            torch.testing.assert_close(qk[layer, head].dense(), own.dense())
            torch.testing.assert_close(ov[layer, head].dense(), ov_circuit(model, layer, head).matrix.dense())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["gpt2", "llama", "no-norm", "transformer-2017"])
def test_every_precision(name, dtype):
    model = random_model(EVERY[name], dtype=dtype)
    expected = torch.promote_types(dtype, torch.float32)
    circuit = qk_circuit(model, 0, 0, relative=1 if model.cfg.positions == "rotary" else None)
    assert circuit.matrix.A.dtype == circuit.constant.dtype == circuit.query_term.dtype == expected
    assert circuit.score(torch.ones(8), torch.ones(8, dtype=torch.bfloat16)).dtype == expected
    assert ov_circuit(model, 0, 0).write(torch.ones(8, dtype=dtype)).dtype == expected
    assert not circuit.matrix.A.requires_grad


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("llama", (0, 0, None), "a QK circuit holds at one offset: give relative=query position minus key position"),
        ("gpt2", (0, 0, 1), "relative is 1, and this model's positions rotate nothing; leave it out"),
        ("llama", (0, 0, -1), "relative is -1; a query sees no later key, so give 0 or more"),
        ("gpt2", (2, 0, None), "layer 2 in .* is out of range"),
        ("gpt2", (0, 2, None), "head 2 in .* is out of range"),
    ],
)
def test_refusals(name, arguments, message):
    layer, head, offset = arguments
    with pytest.raises(InputError, match=message):
        qk_circuit(random_model(EVERY[name]), layer, head, relative=offset)
    if offset is None and name == "gpt2":
        with pytest.raises(InputError, match=message):
            ov_circuit(random_model(EVERY[name]), layer, head)


def test_gpt2_small_size():
    cfg = DecoderConfig(n_layers=2, d_model=768, n_heads=12, d_vocab=100, n_ctx=64)
    model = HookedDecoder(cfg, seed=1)
    read, cache = streams(model, random_tokens(cfg, batch=1))[1]
    scores = qk_circuit(model, 1, 7).scores(read[0], read[0])
    expected = cache["attn_scores", 1][0, 7]
    seen = expected.isfinite()
    torch.testing.assert_close(scores[seen], expected[seen], rtol=1e-4, atol=1e-5)


@pytest.mark.smollm2
def test_smollm2(smollm2):
    model = smollm2
    tokens = model.to_tokens("When Mary and John went to the store")
    names = [
        f"blocks.17.{hook}"
        for hook in ("ln1.hook_normalized", "attn.hook_attn_scores", "attn.hook_pattern", "attn.hook_result")
    ]
    _, cache = model.run_with_cache(tokens, names_filter=names, return_type=None)
    read, scores, pattern, result = (cache[name][0] for name in names)
    for head in (0, 4, 8):
        for query, key in ((7, 0), (7, 6), (5, 5), (6, 2)):
            got = qk_circuit(model, 17, head, relative=query - key).score(read[query], read[key])
            torch.testing.assert_close(got, scores[head, query, key], rtol=1e-3, atol=1e-3)
        written = pattern[head] @ ov_circuit(model, 17, head).write(read)
        torch.testing.assert_close(written, result[:, head], rtol=1e-3, atol=1e-4)
