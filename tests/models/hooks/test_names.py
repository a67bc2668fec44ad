"""The table of hook names is true: order, axes, and what is listed for whom."""

from __future__ import annotations

import pickle

import pytest

from models.decoder import HookedDecoder
from models.hooks import decoder_hooks
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.mark.parametrize("name", CONFIGS)
def test_the_order_is_that_of_the_forward_pass(name):
    model = random_model(CONFIGS[name])
    fired = []
    readers = [(hook, lambda value, hook: fired.append(hook.name)) for hook in model.hook_names()]
    with model._attached("readers", readers):
        model(random_tokens(model.cfg))
    assert tuple(fired) == model.hook_names()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_axes_are_the_shapes(name):
    cfg = CONFIGS[name]
    model = random_model(cfg)
    sizes = {
        **{"batch": 2, "pos": 6, "query_pos": 6, "key_pos": 6, "one": 1},
        **{"head": cfg.n_heads, "kv_head": cfg.n_kv_heads, "d_model": cfg.d_model, "d_head": cfg.d_head},
        "d_mlp": cfg.d_mlp,
    }
    _, cache = model.run_with_cache(random_tokens(cfg))
    for hook, spec in model.hook_names().specs.items():
        assert cache[hook].shape == tuple(sizes[axis] for axis in spec.axes), hook
        assert spec.name == hook


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("llama", ["hook_pos_embed"]),
        ("no-positions", ["hook_pos_embed", "hook_rot_q"]),
        ("gpt2", ["hook_rot_q", "hook_rot_k", "hook_pre_linear"]),
        ("gptj", ["hook_resid_mid", "hook_pos_embed"]),
        ("attn-only", ["hook_resid_mid", "hook_mlp_in", "hook_mlp_out", "mlp.", "ln2"]),
        ("transformer-2017", ["ln_final"]),
        ("no-norm", ["ln1", "ln2", "ln_final"]),
    ],
)
def test_what_does_not_happen_is_not_listed(name, absent):
    names = decoder_hooks(CONFIGS[name])
    assert not [hook for hook in names for part in absent if part in hook]


def test_printed_it_is_a_table():
    lines = str(HookedDecoder(CONFIGS["attn-only-bare"]).hook_names()).splitlines()
    assert len(lines) == len(decoder_hooks(CONFIGS["attn-only-bare"]))
    assert lines[0].split("  ")[0] == "hook_embed"
    assert "[batch, pos, d_model]" in lines[0]
    assert lines[0].endswith("token embeddings")
    assert {line.index("[batch") for line in lines} == {lines[0].index("[batch")}
    assert "[batch, head, query_pos, key_pos]" in next(line for line in lines if "hook_pattern" in line)


def test_the_names_of_gpt2_are_the_classic_ones():
    assert [name.removeprefix("blocks.0.") for name in decoder_hooks(CONFIGS["gpt2"].replace(n_layers=1))] == [
        "hook_embed",
        "hook_pos_embed",
        "hook_resid_pre",
        "attn.hook_attn_in",
        "ln1.hook_scale",
        "ln1.hook_normalized",
        "hook_q_input",
        "hook_k_input",
        "hook_v_input",
        "attn.hook_q",
        "attn.hook_k",
        "attn.hook_v",
        "attn.hook_attn_scores",
        "attn.hook_pattern",
        "attn.hook_z",
        "attn.hook_result",
        "hook_attn_out",
        "hook_resid_mid",
        "hook_mlp_in",
        "ln2.hook_scale",
        "ln2.hook_normalized",
        "mlp.hook_pre",
        "mlp.hook_post",
        "hook_mlp_out",
        "hook_resid_post",
        "ln_final.hook_scale",
        "ln_final.hook_normalized",
    ]


def test_names_survive_pickling():
    names = decoder_hooks(CONFIGS["llama"])
    copy = pickle.loads(pickle.dumps(names))
    assert copy == names
    assert str(copy) == str(names)
