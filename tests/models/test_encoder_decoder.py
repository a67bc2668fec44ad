"""The encoder-decoder against ``torch.nn.Transformer``, and its hooks, masks and sampling."""

import pytest
import torch
from torch import nn

from models import EncoderDecoderConfig, HookedEncoderDecoder
from models.errors import ConfigError, HookError, InputError
from models.parts.attention import Attention
from models.parts.block import Block
from models.parts.positions import sinusoids

PAPER = EncoderDecoderConfig(
    n_encoder_layers=2,
    n_decoder_layers=2,
    d_model=16,
    n_heads=4,
    d_mlp=24,
    d_vocab=11,
    n_ctx=12,
    positions="sinusoidal",
    norm_position="post",
    act="relu",
    tied=True,
    scale_embedding=True,
)
MODERN = EncoderDecoderConfig(
    n_encoder_layers=1,
    n_decoder_layers=2,
    d_model=16,
    n_heads=4,
    n_kv_heads=2,
    d_vocab=11,
    n_ctx=12,
    positions="rotary",
    norm="rms",
    act="silu",
    gated=True,
    qkv_bias=False,
)
LEARNED = PAPER.replace(positions="learned", norm_position="pre", tied=False, unembed_bias=True)
CONFIGS = {"paper": PAPER, "modern": MODERN, "learned": LEARNED}


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> HookedEncoderDecoder:
    return _model(CONFIGS[request.param])


def _model(cfg: EncoderDecoderConfig) -> HookedEncoderDecoder:
    model = HookedEncoderDecoder(cfg, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():  # away from the neutral biases and gains of a fresh model
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
    return model


def _tokens(cfg: EncoderDecoderConfig) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(0, cfg.d_vocab, (2, 7), generator=generator)
    return source, torch.randint(0, cfg.d_vocab, (2, 5), generator=generator)


def _copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.k.weight, ours.v.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.k.bias, ours.v.bias]))
    theirs.out_proj.load_state_dict(ours.o.state_dict())


def _copy_block(ours: Block, theirs: nn.Module, norms: list[nn.Module]) -> None:
    _copy_attention(ours.attn, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.mlp.inp.state_dict())
    theirs.linear2.load_state_dict(ours.mlp.out.state_dict())
    ours_in_order = [ours.ln1, *([ours.ln_cross] if ours.cross_attn is not None else []), ours.ln2]
    for mine, torchs in zip(ours_in_order, norms, strict=True):
        torchs.weight.copy_(mine.w)
        torchs.bias.copy_(mine.b)
    if ours.cross_attn is not None:
        _copy_attention(ours.cross_attn, theirs.multihead_attn)


@torch.no_grad()
def test_the_papers_model_equals_torch_nn_transformer() -> None:
    model = _model(PAPER)
    torchs = nn.Transformer(16, 4, 2, 2, 24, dropout=0.0, activation="relu", batch_first=True)
    torchs.encoder.norm = torchs.decoder.norm = None  # the paper has no norm after the last layer
    for mine, layer in zip(model.encoder, torchs.encoder.layers, strict=True):
        _copy_block(mine, layer, [layer.norm1, layer.norm2])
    for mine, layer in zip(model.decoder, torchs.decoder.layers, strict=True):
        _copy_block(mine, layer, [layer.norm1, layer.norm2, layer.norm3])
    source, target = _tokens(PAPER)
    source_real = torch.ones_like(source, dtype=torch.bool)
    source_real[1, 5:] = False
    table = sinusoids(12, 16)
    embedded = [model.W_E[ids] * 4.0 + table[: ids.shape[1]] for ids in (source, target)]
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    states = torchs(*embedded, tgt_mask=causal, src_key_padding_mask=~source_real, memory_key_padding_mask=~source_real)
    torch.testing.assert_close(model(source, target, source_mask=source_real), states @ model.W_U, atol=1e-5, rtol=1e-5)


def test_every_hook_changes_the_logits_and_is_cached_with_its_axes(model: HookedEncoderDecoder) -> None:
    source, target = _tokens(model.cfg)
    sizes = {"batch": 2, "head": 4, "kv_head": model.cfg.n_kv_heads, "one": 1}
    sizes |= {"d_model": 16, "d_head": 4, "d_mlp": model.cfg.d_mlp}
    logits, cache = model.run_with_cache(source, target)
    for name, spec in model.hook_names().specs.items():
        for axis, size in zip(spec.axes, cache[name].shape, strict=True):
            assert size == sizes.get(axis, size), (name, axis)
        noise = torch.Generator().manual_seed(1)

        def disturb(value: torch.Tensor, hook: object, noise: torch.Generator = noise) -> torch.Tensor:
            return value + torch.rand(value.shape, generator=noise)

        changed = model.run_with_hooks(source, target, fwd_hooks=[(name, disturb)])
        assert (changed - logits).abs().max() > 1e-6, name


def test_cross_attention_reads_every_real_source_token_and_no_padding(model: HookedEncoderDecoder) -> None:
    source, target = _tokens(model.cfg)
    real = torch.ones_like(source, dtype=torch.bool)
    real[1, 5:] = False
    logits, cache = model.run_with_cache(source, target, source_mask=real)
    pattern = cache["decoder.1.cross_attn.hook_pattern"]
    assert pattern.shape == (2, 4, 5, 7)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 4, 5))
    assert (pattern[0] > 0).all()
    assert (pattern[1, ..., 5:] == 0).all()
    torch.testing.assert_close(model(source[1:, :5], target[1:]), logits[1:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model: HookedEncoderDecoder, side: str) -> None:
    source, target = _tokens(model.cfg)
    expected = model(source, target)

    def padded(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pad, real = torch.zeros(2, 3, dtype=torch.long), torch.ones_like(ids, dtype=torch.bool)
        parts = [(pad, pad.bool()), (ids, real)] if side == "left" else [(ids, real), (pad, pad.bool())]
        return torch.cat([p[0] for p in parts], 1), torch.cat([p[1] for p in parts], 1)

    (source, source_mask), (target, target_mask) = padded(source), padded(target)
    logits, loss = model(source, target, "both", source_mask=source_mask, target_mask=target_mask)
    torch.testing.assert_close(logits[target_mask].view_as(expected), expected, atol=1e-5, rtol=1e-5)
    other = torch.where(target_mask, target, torch.tensor(5))
    torch.testing.assert_close(
        model(source, other, "loss", source_mask=source_mask, target_mask=target_mask), loss, atol=1e-6, rtol=1e-6
    )


def test_the_decoder_is_causal_and_the_encoder_is_not(model: HookedEncoderDecoder) -> None:
    source, target = _tokens(model.cfg)
    logits = model(source, target)
    later = target.clone()
    later[:, 3] = (later[:, 3] + 1) % model.cfg.d_vocab
    difference = (model(source, later) - logits).abs().amax((0, 2))
    assert (difference[:3] == 0).all()
    assert (difference[3:] > 0).all()
    source = source.clone()
    source[:, -1] = (source[:, -1] + 1) % model.cfg.d_vocab
    assert ((model(source, target) - logits).abs().amax((0, 2)) > 0).all()


def test_post_norm_equations_hold_at_the_hooks() -> None:
    model = _model(PAPER)
    _, cache = model.run_with_cache(*_tokens(PAPER))
    block = model.decoder[0]
    resid = cache["decoder.0.hook_resid_pre"]
    for write, norm, after in (
        ("hook_attn_out", block.ln1, "hook_resid_mid"),
        ("hook_cross_attn_out", block.ln_cross, "hook_resid_mid_cross"),
        ("hook_mlp_out", block.ln2, "hook_resid_post"),
    ):
        resid = norm(resid + cache[f"decoder.0.{write}"])
        torch.testing.assert_close(cache[f"decoder.0.{after}"], resid)


def test_greedy_generation_equals_one_run_per_step(model: HookedEncoderDecoder) -> None:
    source, _ = _tokens(model.cfg)
    generated = model.generate(source, start=1, max_new_tokens=6, temperature=0)
    target = torch.full((2, 1), 1)
    for _ in range(6):
        target = torch.cat([target, model(source, target)[:, -1:].argmax(-1)], 1)
    assert torch.equal(generated, target)


def test_gradients_are_cached_at_cross_attention() -> None:
    model = _model(MODERN).requires_grad_(False)
    name = "decoder.0.cross_attn.hook_pattern"
    _, cache = model.run_with_cache(*_tokens(MODERN), return_type="loss", incl_bwd=True, names_filter=name)
    assert cache[name + "_grad"].abs().max() > 0


def test_it_learns_to_copy_its_source() -> None:
    cfg = LEARNED.replace(init="fan_in", d_model=32, d_head=8, d_mlp=64, scale_embedding=False)
    model = HookedEncoderDecoder(cfg)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        source = torch.randint(1, 11, (32, 6), generator=generator)
        target = torch.cat([torch.zeros(32, 1, dtype=torch.long), source], 1)
        loss = model(source, target, "loss")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.05, "uniform guessing is 2.3 nats"


def test_bad_input_is_refused_with_a_reason(model: HookedEncoderDecoder) -> None:
    source, target = _tokens(model.cfg)
    with pytest.raises(InputError, match="batch of 2, the target one of 1"):
        model(source, target[:1])
    with pytest.raises(InputError, match="n_ctx is 12"):
        model(torch.ones(2, 13, dtype=torch.long), target)
    with pytest.raises(HookError, match="takes no stop_at_layer"):
        model.run_with_cache(source, target, stop_at_layer=1)
    with pytest.raises(ConfigError, match="neither parallel nor attn_only"):
        MODERN.replace(parallel=True)
    with pytest.raises(ConfigError, match="takes an EncoderDecoderConfig"):
        HookedEncoderDecoder("large")  # type: ignore[arg-type]
