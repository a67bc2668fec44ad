"""Odd shapes, odd dtypes, copies: what a model must survive."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError, InputError
from models.protocol import HookedModel
from tests.configurations import CONFIGS, random_model, random_tokens
from tests.oracles.decoder import decode


@pytest.mark.parametrize("name", CONFIGS)
def test_one_token_and_the_whole_context(name):
    model = random_model(CONFIGS[name])
    for n in (1, model.cfg.n_ctx):
        tokens = random_tokens(model.cfg, 1, n)
        logits, cache = model.run_with_cache(tokens)
        torch.testing.assert_close(logits, decode(model, tokens)[0], rtol=1e-5, atol=1e-5)
        assert set(cache) == set(model.hook_names())
    with pytest.raises(InputError, match="the sequence reaches position 12, but n_ctx is 12; shorten it"):
        model(random_tokens(model.cfg, 1, 13))


@pytest.mark.parametrize("change", [{"n_ctx": 1}, {"d_vocab": 1}, {"d_mlp": 1}, {"n_heads": 1}, {"d_head": 1}])
def test_smallest_sizes(change):
    cfg = DecoderConfig(**{"n_layers": 1, "d_model": 2, "n_heads": 2, "d_vocab": 3, "n_ctx": 4, **change})
    model = random_model(cfg)
    tokens = random_tokens(cfg, 1, min(3, cfg.n_ctx))
    logits, _ = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, decode(model, tokens)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32]
)
def test_integer_types_of_tokens(dtype):
    model = random_model(CONFIGS["gpt2"])
    tokens = random_tokens(model.cfg)
    torch.testing.assert_close(model(tokens.to(dtype)), model(tokens))
    torch.testing.assert_close(model(tokens.to(dtype), "loss"), model(tokens, "loss"))
    assert model.generate(tokens.to(dtype), 2).dtype == torch.int64


def test_layouts_of_tokens():
    model = random_model(CONFIGS["llama"])
    tokens = random_tokens(model.cfg, 4, 6)
    logits = model(tokens)
    torch.testing.assert_close(model(tokens.t().contiguous().t()), logits)
    torch.testing.assert_close(model(torch.stack([tokens, tokens], -1)[..., 0]), logits)
    torch.testing.assert_close(model(tokens[:1].expand(4, -1)), logits[:1].expand_as(logits))
    torch.testing.assert_close(model(tokens[0]), logits[:1])
    real = torch.ones(6, 4, dtype=torch.bool).t()
    torch.testing.assert_close(model(tokens, attention_mask=real), logits)
    before = tokens.clone()
    model.generate(tokens, 2)
    assert torch.equal(tokens, before)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(1, 2, 3).long(), r"token ids have shape \(1, 2, 3\); expected \[batch, pos\]"),
        (torch.zeros(0, 3).long(), r"shape \(0, 3\); expected \[batch, pos\], neither of them 0"),
        (torch.zeros(2, 0).long(), r"shape \(2, 0\)"),
        (torch.tensor(3), r"shape \(\)"),
        (torch.tensor([]).long(), r"shape \(1, 0\)"),
        ([], "no texts were given"),
        (torch.tensor([[1.0, 2.0]]), "token ids: got a tensor of torch.float32; expected integers"),
        (torch.tensor([[True, False]]), "token ids: got a tensor of torch.bool"),
        (torch.tensor([[0, 11]]), "token ids reach from 0 to 11; this vocabulary is 0 to 10"),
        (torch.tensor([[-1, 2]]), "token ids reach from -1 to 2"),
    ],
)
def test_tokens_that_are_none(tokens, message):
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match=message):
        model(tokens)


@pytest.mark.parametrize("return_type", ["logit", "", 0])
def test_return_types(return_type):
    with pytest.raises(InputError, match="expected 'logits', 'loss', 'both' or None"):
        random_model(CONFIGS["gpt2"])(torch.tensor([[1, 2]]), return_type)


@pytest.mark.parametrize("name", CONFIGS)
def test_copies_are_whole_and_independent(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg)
    logits = model(tokens)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    fresh = HookedDecoder(model.cfg, seed=5).double()
    fresh.load_state_dict(model.state_dict())
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    copies += [fresh, torch.load(stream, weights_only=False)]
    for other in copies:
        torch.testing.assert_close(other(tokens), logits, rtol=0, atol=0)
        assert (other.unembed.weight is other.embed.W_E) == model.cfg.tied
        with other.hooks([("hook_embed", lambda value, hook: torch.zeros_like(value))]):
            assert not torch.allclose(other(tokens), logits)
            assert torch.equal(model(tokens), logits)
            assert not model.hook_dict["hook_embed"].in_use
        seen = []
        with other.hooks([("hook_embed", lambda value, hook, seen=seen: seen.append(hook.positions))]):
            other(tokens)
        assert seen[0].tolist() == [list(range(6))]
        with torch.no_grad():
            other.embed.W_E.add_(1.0)
        assert torch.equal(model(tokens), logits)


def test_a_copy_taken_while_hooks_are_attached_keeps_its_own():
    model = random_model(CONFIGS["gpt2"])
    tokens = random_tokens(model.cfg)
    with model.hooks([("hook_embed", lambda value, hook: torch.zeros_like(value))]):
        model(tokens)
        clone = copy.deepcopy(model)
    assert not model.hook_dict["hook_embed"].in_use
    assert clone.hook_dict["hook_embed"].in_use  # a faithful copy of the moment; it is the caller's to have made


def test_state_dicts_are_strict_and_hold_weights_only():
    model = random_model(CONFIGS["llama"])
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    with pytest.raises(RuntimeError, match="size mismatch"):
        HookedDecoder(CONFIGS["llama"].replace(d_vocab=12)).load_state_dict(model.state_dict())


@pytest.mark.parametrize("name", CONFIGS)
def test_weight_views(name):
    """The stacked views are the weights of the equations: x W_Q + b_Q = q, and so on."""
    model = random_model(CONFIGS[name])
    cfg = model.cfg
    tokens = random_tokens(cfg)
    logits, cache = model.run_with_cache(tokens)
    L = cfg.n_layers
    assert model.W_Q.shape == (L, cfg.n_heads, cfg.d_model, cfg.d_head)
    assert model.W_K.shape == model.W_V.shape == (L, cfg.n_kv_heads, cfg.d_model, cfg.d_head)
    assert model.W_O.shape == (L, cfg.n_heads, cfg.d_head, cfg.d_model)
    assert model.W_U.shape == (cfg.d_model, cfg.d_vocab)
    assert model.repeat_kv(model.W_V).shape == (L, cfg.n_heads, cfg.d_model, cfg.d_head)
    torch.testing.assert_close(model.repeat_kv(model.b_V)[:, -1], model.b_V[:, -1])
    scale = cfg.d_model**0.5 if cfg.scale_embedding else 1
    torch.testing.assert_close(cache["hook_embed"], model.W_E[tokens] * scale)
    if cfg.positions in ("learned", "sinusoidal"):
        torch.testing.assert_close(cache["hook_pos_embed"][0], model.W_pos[:6])
    last = cache["resid_post", -1]
    torch.testing.assert_close(model.ln_final(last) @ model.W_U + model.b_U, logits)
    for layer, block in enumerate(model.blocks):
        pre = cache["resid_pre", layer]
        x = block.ln1(pre) if cfg.norm_position == "pre" else pre
        for which in "QKV":
            weight, bias = getattr(model, f"W_{which}")[layer], getattr(model, f"b_{which}")[layer]
            expected = torch.einsum("bpm,hmd->bphd", x, weight) + bias
            torch.testing.assert_close(cache[which.lower(), layer], expected)
        if cfg.attn_only:
            continue
        mlp_in = cache["mlp_in", layer]
        y = block.ln2(mlp_in) if cfg.norm_position == "pre" else mlp_in
        linear = y @ model.W_in[layer] + model.b_in[layer]
        torch.testing.assert_close(cache["pre_linear" if cfg.gated else "pre", layer], linear)
        if cfg.gated and not cfg.mlp_bias:
            torch.testing.assert_close(cache["pre", layer], y @ model.W_gate[layer])


@pytest.mark.parametrize(
    ("name", "view", "message"),
    [
        ("llama", "W_pos", "positions='rotary' has no W_pos"),
        ("gpt2", "W_gate", "not gated, so it has no W_gate"),
        ("attn-only", "W_in", "W_in belongs to the MLP, and this model is attention-only"),
        ("attn-only", "b_out", "an attention-only model has no MLP biases"),
    ],
)
def test_weights_that_are_not_there(name, view, message):
    with pytest.raises(ConfigError, match=message):
        getattr(random_model(CONFIGS[name]), view)


def test_a_decoder_fits_the_protocol():
    assert isinstance(random_model(CONFIGS["gpt2"]), HookedModel)


def test_training_reaches_every_parameter():
    for name in CONFIGS:
        model = random_model(CONFIGS[name])
        model(random_tokens(model.cfg), "loss").backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, (name, key)
            assert parameter.grad.any() or key.endswith("attn.k.bias"), (name, key)
