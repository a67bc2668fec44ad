"""Token circuits are what the first layer of a model without added positions does with single tokens."""

from __future__ import annotations

import pytest
import torch

from interp.readout.logit_attribution import logit_attribution
from interp.weights import full_ov_circuit, full_qk_circuit
from interp.weights.token_circuits import final_directions, normalised_embeddings, top_texts, vocabulary_chunks
from models.text import SymbolTokenizer
from tests.configurations import CONFIGS, random_model

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
WITHOUT_POSITIONS = ["llama", "llama-tied", "qwen2", "gptj", "no-positions", "attn-only-bare", "post-rms-rotary"]
SAMPLE = torch.tensor([3, 1, 7])


@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_ov_is_the_attribution_of_one_token_before_norms_divide(name):
    model = random_model(CONFIGS[name])
    outputs = torch.tensor([0, 5])
    circuit = full_ov_circuit(model, 0, 1, SAMPLE, outputs)
    assert circuit.values.shape == (3, 2)
    for i, token in enumerate(SAMPLE.tolist()):
        tokens = torch.tensor([[token]])
        _, cache = model.run_with_cache(tokens)
        scales = ["ln_final.hook_scale"] if model.cfg.norm_position == "pre" and model.cfg.norm != "none" else []
        if model.cfg.norm_position == "post":
            scales = [name for name in model.hook_names() if name.endswith("hook_scale")]
        scale = torch.stack([torch.ones(()), *(cache[name][0, 0, 0] for name in scales)]).prod()
        for j, output in enumerate(outputs.tolist()):
            found = logit_attribution(model, tokens, output)
            expected = found.values[found.labels.index("L0H1"), 0] * scale
            torch.testing.assert_close(circuit.values[i, j], expected, **CLOSE)


@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_qk_is_the_score_of_two_tokens(name):
    model = random_model(CONFIGS[name])
    rotary = model.cfg.positions == "rotary"
    circuit = full_qk_circuit(model, 0, 1, SAMPLE, torch.tensor([2, 4]), relative=1 if rotary else None)
    for i, query in enumerate(SAMPLE.tolist()):
        for j, key in enumerate((2, 4)):
            _, cache = model.run_with_cache(torch.tensor([[key, query]]))
            torch.testing.assert_close(circuit.values[i, j], cache["attn_scores", 0][0, 1, 1, 0], **CLOSE)


def test_top_entries_are_texts():
    model = random_model(CONFIGS["gpt2"])
    model.tokenizer = SymbolTokenizer("ABCDEFGHIJ")
    circuit = full_ov_circuit(model, 1, 0, torch.arange(10))
    best = circuit.top(5)
    values = [value for _, _, value in best]
    assert values == sorted(values, reverse=True)
    row, column = divmod(int(circuit.values.argmax()), 10)
    assert best[0] == ("ABCDEFGHIJ"[row], "ABCDEFGHIJ"[column], pytest.approx(float(circuit.values.max())))
    assert len(circuit.top(1000)) == 100


@pytest.mark.parametrize("name", ["gpt2", "llama", "no-norm", "transformer-2017", "geglu"])
def test_directions_and_embeddings(name):
    model = random_model(CONFIGS[name])
    tokens = torch.arange(4)
    x = torch.randn(4, 8, dtype=torch.float64)
    if model.cfg.norm == "none" or model.cfg.norm_position == "post":
        torch.testing.assert_close(normalised_embeddings(model, 1, tokens), model.embed(tokens).detach())
        expected = x @ model.W_U[:, :4]
    else:
        ln1, ln_final = model.blocks[1].ln1, model.ln_final
        torch.testing.assert_close(ln1.affine(normalised_embeddings(model, 1, tokens)), ln1(model.embed(tokens)))
        _, scale = ln_final.statistics(x)
        bias = 0 if ln_final.b is None else ln_final.b
        expected = (ln_final(x) - bias) * scale @ model.W_U[:, :4]
    torch.testing.assert_close(x @ final_directions(model, tokens).T, expected.detach())


def test_vocabulary_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr("interp.weights.token_circuits.CHUNK", 4)
    model = random_model(CONFIGS["gpt2"])
    pieces = list(vocabulary_chunks(model))
    assert [len(piece) for piece in pieces] == [4, 4, 3]
    assert torch.cat(pieces).tolist() == list(range(11))


def test_extremes_are_named_the_most_extreme_first():
    model = random_model(CONFIGS["gpt2"])
    scores = torch.linspace(-1, 1, 11)
    assert top_texts(model, scores, 2) == (("10", 1.0), ("9", pytest.approx(0.8)))
    assert top_texts(model, scores, 1, largest=False) == (("0", -1.0),)
