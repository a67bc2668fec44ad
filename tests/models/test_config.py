"""Configurations: defaults, round trips, and every refusal with its message."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from models.config import DecoderConfig, EncoderDecoderConfig, RotaryScaling
from models.config.part import values_of
from models.decoder import HookedDecoder
from models.errors import ConfigError, ResidscopeError
from tests.configurations import CONFIGS, random_config

BASE = {"n_layers": 2, "d_model": 12, "n_heads": 4, "d_vocab": 11, "n_ctx": 12}


def test_defaults_are_filled():
    cfg = DecoderConfig(**BASE)
    assert (cfg.d_head, cfg.n_kv_heads, cfg.d_mlp, cfg.group_size, cfg.rotary_dim) == (3, 4, 48, 1, None)
    assert DecoderConfig(**BASE, n_kv_heads=2, d_head=5).group_size == 2
    assert DecoderConfig(**{**BASE, "n_heads": 2}, positions="rotary").rotary_dim == 6
    assert DecoderConfig(**BASE, attn_only=True).d_mlp is None
    assert DecoderConfig(**BASE, norm="rms").norm_bias is False


@pytest.mark.parametrize("cfg", [*CONFIGS.values(), *map(random_config, range(20))])
def test_round_trip_through_json(cfg):
    assert DecoderConfig.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg
    assert cfg.replace() == cfg
    assert hash(cfg.replace()) == hash(cfg)


# what no tool decides by
NOT_DRAWN = {"d_vocab", "n_ctx", "norm_eps", "init"}
LAYERED = {"sliding_window", "rotary_base", "rotary_scaling"}


def choices(name: str) -> set[object]:
    """Return the values that an option may take, where its type lists them."""
    kind = get_type_hints(DecoderConfig)[name]
    return set(get_args(kind)) if get_origin(kind) is Literal else {True, False} if kind is bool else set()


@pytest.mark.parametrize("where", ["CONFIGS", "random_config"])
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DecoderConfig)])
def test_every_value_of_every_option_is_among_the_configurations(name, where):
    """An option that is never drawn would meet no engine."""
    if name in NOT_DRAWN:
        return
    drawn = [*CONFIGS.values()] if where == "CONFIGS" else [random_config(seed) for seed in range(300)]
    seen = {getattr(cfg, name) for cfg in drawn}
    assert choices(name) <= seen
    assert len(seen) > 1, f"{name} has one value in all configurations"
    assert any(isinstance(value, tuple) and len(set(value)) > 1 for value in seen) == (name in LAYERED)


def test_combinations_that_broke_tools_are_among_the_configurations():
    scalings = [one for cfg in CONFIGS.values() for one in values_of(cfg.rotary_scaling)]
    assert {scaling and scaling.kind for scaling in scalings} == {None, "linear", "llama3"}
    assert any(cfg.rotary_dim and cfg.rotary_dim < cfg.d_head for cfg in CONFIGS.values())
    assert any(cfg.d_head != cfg.d_model // cfg.n_heads for cfg in CONFIGS.values())
    assert {1, 2} <= {cfg.group_size for cfg in CONFIGS.values()}
    assert any(cfg.n_kv_heads == 1 < cfg.n_heads for cfg in CONFIGS.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": "alibi"}, "positions is 'alibi'; expected one of learned, rotary, sinusoidal, none"),
        ({"rotary_layout": "split"}, "rotary_layout is 'split'; expected one of half, interleaved"),
        ({"norm": "batch"}, "norm is 'batch'; expected one of layer, rms, none"),
        ({"norm_position": "sandwich"}, "norm_position is 'sandwich'; expected one of pre, post"),
        ({"act": "swiglu"}, "act is 'swiglu'; expected one of gelu, gelu_tanh, relu, silu"),
        ({"init": "xavier"}, "init is 'xavier'; expected one of gpt2, fan_in, torch"),
        ({"n_layers": 0}, "n_layers is 0; expected a positive integer"),
        ({"d_model": 12.0}, "d_model is 12.0; expected a positive integer"),
        ({"n_heads": -1}, "n_heads is -1; expected a positive integer"),
        ({"d_vocab": None}, "d_vocab is None; expected a positive integer"),
        ({"n_ctx": True}, "n_ctx is True; expected a positive integer"),
        ({"sliding_window": 0}, "sliding_window is 0; expected a positive integer"),
        ({"sliding_window": (4, 0)}, "sliding_window[1] is 0; expected a positive integer"),
        ({"sliding_window": (4, None, 4)}, "sliding_window has 3 values for 2 layers; give one per layer"),
        ({"sliding_window": (1, None)}, "sliding_window is 1: a query that sees itself alone"),
        ({"qk_norm": True}, "qk_norm is True; expected one of none, head, flat"),
        ({"act": ("relu", "silu")}, "act is ('relu', 'silu'); expected one of"),
        ({"sliding_window": 1}, "sliding_window is 1: a query that sees itself alone"),
        ({"gated": 1}, "gated is 1; expected True or False"),
        ({"tied": None}, "tied is None; expected True or False"),
        ({"n_heads": 5}, "d_model 12 is not a multiple of n_heads 5; give d_head explicitly"),
        ({"n_kv_heads": 3}, "n_heads 4 is not a multiple of n_kv_heads 3"),
        ({"n_kv_heads": 8}, "n_heads 4 is not a multiple of n_kv_heads 8"),
        ({"positions": "rotary"}, "rotary_dim is 3; expected an even number of at most d_head = 3"),
        ({"positions": "rotary", "d_head": 4, "rotary_dim": 6}, "rotary_dim is 6; expected an even number"),
        ({"positions": "rotary", "d_head": 4, "rotary_base": 1.0}, "rotary_base is 1.0; expected a number above 1"),
        ({"positions": "rotary", "d_head": 4, "rotary_base": math.nan}, "rotary_base is nan; expected a number"),
        ({"positions": "rotary", "d_head": 4, "rotary_base": "1e4"}, "rotary_base is '1e4'; expected a number"),
        ({"positions": "rotary", "d_head": 4, "rotary_scaling": {"factor": 2}}, "expected a RotaryScaling or None"),
        ({"rotary_dim": 2}, "rotary_dim and rotary_scaling belong to positions='rotary', not to positions='learned'"),
        ({"rotary_scaling": RotaryScaling(kind="linear", factor=2)}, "belong to positions='rotary'"),
        ({"positions": "sinusoidal", "d_model": 15, "d_head": 3}, "sinusoidal positions need an even d_model, not 15"),
        ({"norm_eps": 0}, "norm_eps is 0; expected a small positive number"),
        ({"norm_eps": -1e-5}, "norm_eps is -1e-05; expected a small positive number"),
        ({"norm_eps": math.inf}, "norm_eps is inf; expected a number"),
        ({"norm": "none", "norm_position": "post"}, "norm_position='post' needs a norm"),
        ({"parallel": True, "norm_position": "post"}, "parallel blocks with norm_position='post'"),
        ({"attn_only": True, "gated": True}, "attn_only=True has no MLP, so gated=True cannot act"),
        ({"attn_only": True, "parallel": True}, "attn_only=True has no MLP, so parallel=True cannot act"),
        ({"attn_only": True, "d_mlp": 8}, "attn_only=True has no MLP, so d_mlp=8 cannot act"),
    ],
)
def test_what_describes_no_model_is_refused(change, message):
    with pytest.raises(ConfigError) as raised:
        DecoderConfig(**{**BASE, **change})
    assert message in str(raised.value)
    with pytest.raises(ConfigError):
        DecoderConfig.from_dict({**BASE, **change})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "yarn", "factor": 2}, "rotary scaling kind is 'yarn'; expected 'linear' or 'llama3'"),
        ({"kind": "linear", "factor": 0}, "rotary scaling factor is 0; expected a positive number"),
        ({"kind": "linear", "factor": math.nan}, "rotary scaling factor is nan"),
        ({"kind": "llama3", "factor": 2, "low_freq": 4.0}, "low_freq 4.0 must be below high_freq 4.0"),
        ({"kind": "llama3", "factor": 2, "original_n_ctx": -1}, "rotary scaling original_n_ctx is -1"),
    ],
)
def test_rotary_scaling_refusals(values, message):
    with pytest.raises(ConfigError) as raised:
        RotaryScaling(**values)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**BASE, "n_head": 4}, "DecoderConfig has no field 'n_head'; nearest: n_heads"),
        ({**BASE, "dropout": 0.1}, "DecoderConfig has no field 'dropout'"),
        ({"n_layers": 2}, "DecoderConfig: .*missing 4 required"),
        ({**BASE, "positions": "rotary", "d_head": 4, "rotary_scaling": {"type": "linear"}}, "unexpected keyword"),
    ],
)
def test_from_dict_refuses_unknown_and_missing_keys(values, message):
    with pytest.raises(ConfigError, match=message):
        DecoderConfig.from_dict(values)


def test_replace_validates_and_says_what_else_to_change():
    cfg = CONFIGS["llama"]
    assert cfg.replace(n_layers=5).n_layers == 5
    with pytest.raises(ConfigError, match="rotary_dim and rotary_scaling belong to positions='rotary'"):
        cfg.replace(positions="learned")
    assert cfg.replace(positions="learned", rotary_dim=None).positions == "learned"
    with pytest.raises(TypeError):
        cfg.replace(n_layer=3)


def test_configurations_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIGS["gpt2"].n_layers = 3
    with pytest.raises(TypeError):
        DecoderConfig(2, 12, 4, 11, 12)


def test_errors_are_value_errors():
    assert issubclass(ConfigError, ResidscopeError)
    assert issubclass(ResidscopeError, ValueError)


@pytest.mark.parametrize("change", [{"parallel": True}, {"attn_only": True}, {"sliding_window": 4}])
def test_the_encoder_decoder_takes_no_decoder_only_options(change):
    values = {"n_encoder_layers": 1, "n_decoder_layers": 1, **{k: v for k, v in BASE.items() if k != "n_layers"}}
    EncoderDecoderConfig(**values)
    with pytest.raises(ConfigError, match="takes neither parallel nor attn_only nor sliding_window"):
        EncoderDecoderConfig(**values, **change)


def test_a_decoder_takes_a_decoder_config():
    cfg = EncoderDecoderConfig(n_encoder_layers=1, n_decoder_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4)
    with pytest.raises(ConfigError, match="HookedDecoder takes a DecoderConfig, not EncoderDecoderConfig"):
        HookedDecoder(cfg)
