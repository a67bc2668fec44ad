"""Memories equal a brute-force reading of the MLP, plain and gated, and what fired adds up."""

from __future__ import annotations

import pytest
import torch

from interp.readout.logit_attribution import logit_attribution
from interp.weights import exciting_contexts, fired_memories, memories
from models.errors import InputError
from tests.configurations import CONFIGS, random_model, random_tokens

WITH_MLP = [name for name, cfg in CONFIGS.items() if not cfg.attn_only]


@pytest.mark.parametrize("name", WITH_MLP)
def test_memories_are_rows_of_the_matrices_as_tokens(name, monkeypatch):
    monkeypatch.setattr("interp.weights.token_circuits.CHUNK", 4)
    model = random_model(CONFIGS[name])
    d_vocab, layer = model.cfg.d_vocab, model.cfg.n_layers - 1
    block, every = model.blocks[layer], torch.arange(d_vocab)
    read = model.embed(every)
    if model.cfg.norm_position == "pre":
        read = block.ln2(read)
    key_layer = block.mlp.gate if model.cfg.gated else block.mlp.inp
    pre = key_layer(read) - (0 if key_layer.bias is None else key_layer.bias)
    for memory, neuron in zip(memories(model, layer, [4, 0], n_tokens=d_vocab), (4, 0), strict=True):
        assert memory.name == f"L{layer}N{neuron}"
        assert dict(memory.key_tokens) == pytest.approx(
            {str(t): float(pre[t, neuron].detach()) for t in range(d_vocab)}
        )
        scores = [score for _, score in memory.key_tokens]
        assert scores == sorted(scores, reverse=True)
        assert memory.value_tokens == memory.suppressed_tokens[::-1]


@pytest.mark.parametrize("name", ["gpt2", "llama", "no-norm", "gptj"])
def test_a_value_is_what_the_neuron_adds_to_logits(name):
    """Fire one neuron by one more, hold the final norm: each logit moves by the value over the norm's scale."""
    model = random_model(CONFIGS[name])
    tokens, layer = random_tokens(model.cfg, batch=1), model.cfg.n_layers - 1
    logits, cache = model.run_with_cache(tokens)

    def one_more(post, hook):
        post[:, -1, 3] += 1

    edits = [(f"blocks.{layer}.mlp.hook_post", one_more)]
    scale = 1.0
    if model.cfg.norm != "none":
        edits.append(("ln_final.hook_scale", lambda value, hook: cache[hook.name].clone()))
        scale = float(cache["ln_final.hook_scale"][0, -1, 0])
    change = (model.run_with_hooks(tokens, fwd_hooks=edits) - logits)[0, -1].detach()
    (memory,) = memories(model, layer, [3], n_tokens=11)
    assert {t: v / scale for t, v in memory.value_tokens} == pytest.approx(
        {str(t): float(change[t]) for t in range(11)}
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017", "geglu"])
def test_fired_memories_are_the_largest_attributions(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg, batch=1)
    whole = logit_attribution(model, tokens, 4, 5, by="neuron")
    by_label = dict(zip(whole.labels, whole.values[:, 0].tolist(), strict=True))
    neurons = {label: value for label, value in by_label.items() if "N" in label}
    assert len(neurons) == model.cfg.n_layers * model.cfg.d_mlp
    found = fired_memories(model, tokens, 4, 5, n_memories=5)
    _, cache = model.run_with_cache(tokens)
    expected = sorted(neurons, key=lambda label: -abs(neurons[label]))[:5]
    assert [memory.name for memory in found.memories] == expected
    assert found.attributions.tolist() == pytest.approx([neurons[label] for label in expected])
    for memory, activation in zip(found.memories, found.activations, strict=True):
        torch.testing.assert_close(activation, cache["post", memory.layer][0, -1, memory.neuron])
    logits = model(tokens)[0, -1]
    assert found.logit == pytest.approx(float((logits[4] - logits[5]).detach()))
    assert found.to_frame()["memory"].tolist() == expected


def test_contexts_are_where_the_neuron_fires_most():
    model = random_model(CONFIGS["llama"])
    tokens = random_tokens(model.cfg, batch=3)
    _, cache = model.run_with_cache(tokens)
    activation = cache["post", 1][..., 5]
    contexts = exciting_contexts(model, 1, 5, tokens, n_contexts=4, window=3)
    assert [one.activation for one in contexts] == pytest.approx(
        activation.flatten().sort(descending=True).values[:4].tolist()
    )
    for one in contexts:
        assert one.activation == pytest.approx(float(activation[one.row, one.column]))
        shown = tokens[one.row, max(0, one.column - 2) : one.column + 1]
        assert one.text == "".join(str(int(token)) for token in shown)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_excites_nothing_and_is_not_shown(side):
    model = random_model(CONFIGS["gpt2"])
    tokens = random_tokens(model.cfg)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, slice(0, 2) if side == "left" else slice(4, 6)] = False
    contexts = exciting_contexts(model, 0, 1, tokens, attention_mask=real, n_contexts=99)
    assert len(contexts) == 10
    assert all(real[one.row, one.column] for one in contexts)
    longest = max((one for one in contexts if one.row == 0), key=lambda one: one.column)
    assert longest.text == "".join(str(int(token)) for token in tokens[0, real[0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: memories(m, 2, [0]), "layer is 2; this model has layers 0 to 1"),
        (lambda m: memories(m, 0, [12]), "neuron is 12; this MLP has neurons 0 to 11"),
        (lambda m: exciting_contexts(m, 0, -1, random_tokens(m.cfg)), "neuron is -1"),
        (lambda m: fired_memories(m, random_tokens(m.cfg), 1), "fired_memories reads one prompt; got 2"),
        (lambda m: fired_memories(m, random_tokens(m.cfg, batch=1), 11), "token id 11 is outside this vocabulary"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call(random_model(CONFIGS["gpt2"]))


def test_a_model_without_mlps_has_no_memories():
    model = random_model(CONFIGS["attn-only"])
    for call in (lambda: memories(model, 0, [0]), lambda: fired_memories(model, random_tokens(model.cfg, batch=1), 1)):
        with pytest.raises(InputError, match="attention-only and has no MLP to read"):
            call()
