"""Attributions and constants add up to the model's own logit, for every option, raw and folded (case 7)."""

from __future__ import annotations

import pytest
import torch

from interp.readout.logit_attribution import logit_attribution, source_attribution
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.loading import load_model
from models.loading.fold import fold
from tests.configurations import CONFIGS, random_config, random_model, random_tokens
from tests.oracles.decoder import decode

BY = ("component", "head", "neuron")
EVERY = {**CONFIGS, **{f"random-{seed}": random_config(seed) for seed in range(12)}}


def tolerance(logits: torch.Tensor) -> float:
    """Return 1e-4 of the logits' range."""
    return 1e-4 * float(logits.detach().max() - logits.detach().min())


def folded(model: HookedDecoder) -> HookedDecoder:
    pre = model.cfg.norm_position == "pre"
    return fold(model, norm=pre, centre_writes=pre and model.cfg.norm == "layer")


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("kind", ["raw", "folded"])
@pytest.mark.parametrize("name", EVERY)
def test_the_parts_add_up_to_the_logit(name, kind, by):
    cfg = EVERY[name]
    model, tokens = random_model(cfg, dtype=torch.float32), random_tokens(cfg)
    model = folded(model) if kind == "folded" else model
    logits = model(tokens)[:, -1]
    answer, wrong = torch.tensor([1, 2]), torch.tensor([3, 0])
    rows = torch.arange(2)
    for against in (None, wrong):
        found = logit_attribution(model, tokens, answer, against, by=by)
        expected = logits[rows, answer] - (0 if against is None else logits[rows, wrong])
        torch.testing.assert_close(found.logit, expected, rtol=0, atol=tolerance(logits))
        torch.testing.assert_close(found.values.sum(0), expected, rtol=0, atol=tolerance(logits))
        assert len(found.labels) == len(set(found.labels)) == len(found.values)
        assert found.remainder().abs().max() < tolerance(logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "no-norm", "neox"])
def test_a_heads_part_is_its_write_through_the_frozen_norm(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg)
    _, seen = decode(model, tokens)
    found = logit_attribution(model, tokens, answer=4)
    direction = model.W_U[:, 4]
    if model.cfg.norm != "none":
        direction = direction * model.ln_final.w
    for layer, head in ((0, 1), (1, 0)):
        write = seen[f"blocks.{layer}.attn.hook_result"][:, -1, head]
        if model.cfg.norm == "layer":
            write = write - write.mean(-1, keepdim=True)
        scale = seen["ln_final.hook_scale"][:, -1] if model.cfg.norm != "none" else 1
        expected = (write / scale * direction).sum(-1)
        got = found.values[found.labels.index(f"L{layer}H{head}")]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)  # angles are float32


def test_with_the_norms_frozen_an_attribution_is_the_effect_of_leaving_a_write_out():
    """Post-norm, take a write out where it is written, hold all scales and other writes: the logit falls by it."""
    model = random_model(CONFIGS["post-attn-only"])
    tokens = random_tokens(model.cfg)
    logits, cache = model.run_with_cache(tokens)
    found = logit_attribution(model, tokens, answer=4, by="head")
    frozen = [
        (name, lambda value, hook: cache[hook.name].clone())
        for name in model.hook_names()
        if name.endswith(("hook_scale", "hook_z"))
    ]

    def without(result, hook):
        result[:, :, 1] = 0

    edits = [*frozen, ("blocks.0.attn.hook_result", without)]
    fall = logits[:, -1, 4] - model.run_with_hooks(tokens, fwd_hooks=edits)[:, -1, 4]
    torch.testing.assert_close(found.values[found.labels.index("L0H1")], fall)


@pytest.mark.parametrize("name", EVERY)
def test_sources_add_up_to_the_head(name):
    cfg = EVERY[name]
    model, tokens = random_model(cfg), random_tokens(cfg)
    whole = logit_attribution(model, tokens, answer=4, wrong=5)
    for layer in range(cfg.n_layers):
        for head in range(cfg.n_heads):
            part = source_attribution(model, tokens, (layer, head), answer=4, wrong=5)
            assert str(part.head) == f"L{layer}H{head}"
            torch.testing.assert_close(part.values.sum(1), whole.values[whole.labels.index(str(part.head))])
            torch.testing.assert_close(part.pattern.sum(1), torch.ones(2, dtype=torch.float64))


def test_a_source_without_attention_gives_nothing():
    model = random_model(CONFIGS["mistral"])
    part = source_attribution(model, random_tokens(model.cfg), "L0H3", answer=1)
    assert (part.values[:, :3] == 0).all()  # a window of 3, read at column 5
    assert (part.values[:, 3:] != 0).all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017"])
def test_padding_changes_nothing(name, side):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg, n=6)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, slice(0, 2) if side == "left" else slice(4, 6)] = False
    alone = logit_attribution(model, tokens[:1, real[0]], answer=4, by="neuron")
    padded = logit_attribution(model, tokens, answer=4, by="neuron", attention_mask=real)
    assert padded.columns.tolist() == [{"left": 5, "right": 3}[side], 5]
    torch.testing.assert_close(padded.values[:, 0], alone.values[:, 0])
    sources = source_attribution(model, tokens, "L1H1", answer=4, attention_mask=real)
    assert (sources.values[0, ~real[0]] == 0).all()
    single = source_attribution(model, tokens[:1, real[0]], "L1H1", answer=4)
    torch.testing.assert_close(sources.values[0, real[0]], single.values[0])


def test_another_position():
    model = random_model(CONFIGS["llama"])
    tokens = random_tokens(model.cfg)
    logits = model(tokens)
    for position in (0, 2, -1):
        found = logit_attribution(model, tokens, answer=4, position=position)
        torch.testing.assert_close(found.values.sum(0), logits[:, position, 4])
    sources = source_attribution(model, tokens, "1.0", answer=4, position=2).values
    assert (sources[:, 3:] == 0).all()
    assert (sources[:, :3] != 0).all()


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017"])
def test_bfloat16_to_its_rounding(name, by):
    model = random_model(CONFIGS[name], dtype=torch.bfloat16)
    tokens = random_tokens(model.cfg)
    found = logit_attribution(model, tokens, answer=4, by=by)
    assert found.values.dtype == torch.float32
    logits = model(tokens).detach()
    assert found.remainder().abs().max() < 0.05 * float(logits.detach().max() - logits.detach().min())


def test_results_carry_no_graph_and_the_frame_is_sorted():
    model = random_model(CONFIGS["gpt2"])
    found = logit_attribution(model, random_tokens(model.cfg), answer=1)
    assert not found.values.requires_grad
    frame = found.to_frame()
    assert frame["logits"].abs().is_monotonic_decreasing
    assert set(frame["component"]) == set(found.labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answer": 11}, "token id 11 is outside this vocabulary, 0 to 10"),
        ({"answer": [3, -1]}, "token id -1 is outside this vocabulary"),
        ({"answer": [1, 2, 3]}, "3 token ids for 2 prompts; give one, or one per prompt"),
        ({"answer": 1, "wrong": 99}, "token id 99"),
        ({"answer": 1, "position": 6}, "position is 6; these prompts have columns 0 to 5"),
        ({"answer": 1, "by": "layer"}, "by is 'layer'"),
    ],
)
def test_refusals(arguments, message):
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match=message):
        logit_attribution(model, random_tokens(model.cfg), **arguments)


def test_a_padded_position_is_refused():
    model = random_model(CONFIGS["gpt2"])
    tokens = random_tokens(model.cfg)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, 0] = False
    with pytest.raises(InputError, match="position is 0, which is padding in some of these prompts"):
        logit_attribution(model, tokens, answer=1, position=0, attention_mask=real)
    with pytest.raises(InputError, match="layer 2 in 'L2H0' is out of range"):
        source_attribution(model, tokens, "L2H0", answer=1)


@pytest.mark.parametrize("by", BY)
def test_gpt2_small_size(by):
    cfg = DecoderConfig(n_layers=12, d_model=768, n_heads=12, d_vocab=1000, n_ctx=64, tied=True)
    model, tokens = HookedDecoder(cfg), random_tokens(cfg, batch=1, n=8)
    logits = model(tokens)[:, -1]
    assert logit_attribution(model, tokens, 7, 8, by=by).remainder().abs().max() < tolerance(logits)


@pytest.mark.smollm2
def test_smollm2():
    model = load_model("smollm2")
    tokens = model.to_tokens("The capital of France is")
    paris, rome = (model.to_single_token(text) for text in (" Paris", " Rome"))
    logits = model(tokens)[:, -1]
    for by in BY:
        found = logit_attribution(model, tokens, paris, rome, by=by)
        torch.testing.assert_close(found.logit, logits[:, paris] - logits[:, rome])
        assert found.remainder().abs().max() < tolerance(logits)


def test_an_answer_is_an_id_or_a_text_of_one_token_and_never_rounded():
    model = load_model("toy")
    tokens = model.to_tokens("ABCDEFABCDE")
    by_id = logit_attribution(model, tokens, model.to_single_token("F"), model.to_single_token("A"))
    assert logit_attribution(model, tokens, "F", "A") == by_id
    for wrong in (1.5, True, torch.tensor([2.9])):
        with pytest.raises(InputError, match="expected a token id, a text that is one token"):
            logit_attribution(model, tokens, wrong)
