"""The writes add up to the stream, and the parts of a read to what the sublayer gets, for every option (cases 6, 9)."""

from __future__ import annotations

import pytest
import torch

from interp.readout.decompose import residual_reads, residual_writes
from interp.readout.writes import hooks_needed
from models import DecoderConfig, HookedDecoder
from models.errors import CacheError, InputError
from models.loading import load_model
from tests.configurations import CONFIGS, random_config, random_model, random_tokens
from tests.oracles.decoder import decode

BY = ("component", "head", "neuron")
EVERY = {**CONFIGS, **{f"random-{seed}": random_config(seed) for seed in range(12)}}


def places(cfg: DecoderConfig):
    """Give every stream that can be asked for."""
    for at in [*range(cfg.n_layers + 1), None]:
        yield {"at": at}
    if not cfg.attn_only:
        yield from ({"at": at, "mlp_input": True} for at in range(cfg.n_layers))


def cached(cfg: DecoderConfig, dtype=torch.float32):
    model, tokens = random_model(cfg, dtype=dtype), random_tokens(cfg)
    _, cache = model.run_with_cache(tokens)
    return model, tokens, cache


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", EVERY)
def test_writes_add_up_to_every_stream(name, by):
    model, _, cache = cached(EVERY[name])
    for place in places(model.cfg):
        writes = residual_writes(model, cache, **place, by=by)
        assert writes.relative_error() < 1e-5, place
        assert len(writes.labels) == len(set(writes.labels)) == len(writes.values)
        torch.testing.assert_close(writes.residual, cache[writes.hook], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj", "no-norm", "reglu-gqa"])
def test_a_write_is_what_the_slow_decoder_says(name):
    model, tokens, cache = cached(EVERY[name], torch.float64)
    _, seen = decode(model, tokens)
    heads, parts = (residual_writes(model, cache, by=by) for by in ("head", "component"))
    close = {"rtol": 1e-5, "atol": 1e-5}  # the angles of rotary positions are float32
    torch.testing.assert_close(heads["L1H1"], seen["blocks.1.attn.hook_result"][:, :, 1], **close)
    torch.testing.assert_close(parts["L0 mlp"], seen["blocks.0.hook_mlp_out"], **close)
    torch.testing.assert_close(parts["L1 attn"], seen["blocks.1.hook_attn_out"], **close)
    torch.testing.assert_close(parts.residual, seen["blocks.1.hook_resid_post"], **close)


def test_behind_post_norms_a_write_is_as_it_is_by_then():
    model, _, cache = cached(EVERY["transformer-2017"], torch.float64)
    norm, x = model.blocks[0].ln1, cache["resid_pre", 0] + cache["attn_out", 0]
    scale = cache["scale", 0, "ln1"]
    writes = residual_writes(model, cache, at=0, mlp_input=True)
    own = cache["attn_out", 0]
    torch.testing.assert_close(writes["L0 attn"], (own - own.mean(-1, keepdim=True)) / scale * norm.w)
    torch.testing.assert_close(writes["L0 ln1 bias"], norm.b.expand_as(x))


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", EVERY)
def test_reads_are_what_the_sublayer_gets(name, by):
    model, _, cache = cached(EVERY[name], torch.float64)
    for layer in range(model.cfg.n_layers):
        block = model.blocks[layer]
        got = {"attn": block.attention.read(cache["attn_in", layer])}
        if not model.cfg.attn_only:
            mlp_in = cache["mlp_in", layer]
            got["mlp"] = block.ln2(mlp_in) if model.cfg.norm_position == "pre" else mlp_in
        for sublayer, expected in got.items():
            reads = residual_reads(model, cache, layer, sublayer, by=by)
            torch.testing.assert_close(reads.read, expected)
            torch.testing.assert_close(reads.shares.sum(0), torch.ones(2, 6, dtype=torch.float64))
            assert len(reads.labels) == len(reads.values)
            if model.cfg.norm == "none" or model.cfg.norm_position == "post":
                assert (reads.scale == 1).all()
            else:
                ln = "ln1" if sublayer == "attn" else "ln2"
                torch.testing.assert_close(reads.scale, cache["scale", layer, ln].squeeze(-1))


def test_queries_come_of_the_read():
    model, _, cache = cached(EVERY["qwen2"], torch.float64)
    read = residual_reads(model, cache, 1).read
    q = torch.einsum("bpd,hde->bphe", read, model.W_Q[1]) + model.b_Q[1]
    torch.testing.assert_close(q, cache["q", 1])


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017", "gptj"])
@pytest.mark.parametrize("by", BY)
def test_bfloat16_to_its_rounding(name, by):
    model, _, cache = cached(EVERY[name], torch.bfloat16)
    for place in places(model.cfg):
        writes = residual_writes(model, cache, **place, by=by)
        assert writes.values.dtype == torch.float32
        assert writes.relative_error() < 0.03, place


@pytest.mark.parametrize("by", BY)
def test_a_cache_of_the_hooks_needed_at_some_positions_is_enough(by):
    cfg = EVERY["gpt2"]
    model = random_model(cfg, dtype=torch.float32)
    _, cache = model.run_with_cache(random_tokens(cfg), names_filter=hooks_needed(model, by), pos_slice=slice(-2, None))
    for place in places(cfg):
        writes = residual_writes(model, cache, **place, by=by)
        assert writes.values.shape[1:] == (2, 2, cfg.d_model)
        assert writes.relative_error() < 1e-5


def test_padding_on_either_side():
    cfg = EVERY["llama"]
    model, tokens = random_model(cfg, dtype=torch.float32), random_tokens(cfg)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :2] = False
    for mask in (real, real.flip(1)):
        _, cache = model.run_with_cache(tokens, attention_mask=mask)
        assert residual_writes(model, cache, by="head").relative_error() < 1e-5


def test_frames_add_up():
    model, _, cache = cached(EVERY["gpt2"])
    frame = residual_writes(model, cache, by="head").to_frame()
    assert frame["share"].sum() == pytest.approx(1, abs=1e-5)
    assert frame["cosine"].between(-1, 1).all()
    reads = residual_reads(model, cache, 1, "mlp").to_frame()
    assert reads["share"].sum() == pytest.approx(1, abs=1e-5)
    assert reads["share"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gpt2", {"at": 3}, "at is 3; expected 0 to 2, a layer, or 2 for the stream leaving the last"),
        ("gpt2", {"at": -1}, "at is -1; expected 0 to 2"),
        ("gpt2", {"mlp_input": True}, "at is None; expected 0 to 1, a layer"),
        ("attn-only", {"at": 0, "mlp_input": True}, "attention-only, so no MLP reads its stream"),
        ("gpt2", {"by": "token"}, "by is 'token'; expected 'component', 'head' or 'neuron'"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused(name, arguments, message):
    model, _, cache = cached(EVERY[name])
    with pytest.raises(InputError, match=message):
        residual_writes(model, cache, **arguments)


def test_other_refusals():
    model, tokens, cache = cached(EVERY["gpt2"])
    writes = residual_writes(model, cache)
    with pytest.raises(InputError, match=r"nothing named 'L0 atn' wrote to .*hook_resid_post; nearest: L0 attn"):
        writes["L0 atn"]
    with pytest.raises(InputError, match="got layer 2 and sublayer 'attn'; expected 0 to 1, and 'attn' or 'mlp'"):
        residual_reads(model, cache, 2)
    with pytest.raises(InputError, match="sublayer 'ln1'"):
        residual_reads(model, cache, 0, "ln1")
    _, other = model.run_with_cache(tokens, names_filter="hook_embed")
    with pytest.raises(CacheError, match="was not cached"):
        residual_writes(model, other)


@pytest.mark.parametrize("by", BY)
def test_gpt2_small_size(by):
    cfg = DecoderConfig(n_layers=12, d_model=768, n_heads=12, d_vocab=1000, n_ctx=64, tied=True)
    model = HookedDecoder(cfg)
    one = slice(-1, None) if by == "neuron" else slice(-3, None)
    _, cache = model.run_with_cache(
        random_tokens(cfg, batch=1, n=8), names_filter=hooks_needed(model, by), return_type=None, pos_slice=one
    )
    for place in ({"at": None}, {"at": 6, "mlp_input": True}):
        assert residual_writes(model, cache, **place, by=by).relative_error() < 1e-5


@pytest.mark.smollm2
@pytest.mark.parametrize("by", BY)
def test_smollm2(smollm2, by):
    tokens = smollm2.to_tokens("The capital of France is")
    one = slice(-1, None) if by == "neuron" else slice(None)
    _, cache = smollm2.run_with_cache(tokens, names_filter=hooks_needed(smollm2, by), return_type=None, pos_slice=one)
    assert residual_writes(smollm2, cache, by=by).relative_error() < 1e-5
    assert residual_writes(smollm2, cache, at=15, mlp_input=True, by=by).relative_error() < 1e-5


@pytest.fixture(scope="module")
def smollm2():
    return load_model("smollm2")
