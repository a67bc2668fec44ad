"""A model run by TransformerLens behaves as the same model run by us: logits, activations, edits, gradients.

Importing TransformerLens takes seconds, so all of its tests are in this file.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from interp.interventions import activation_patching
from interp.metrics import Logit
from models.errors import ConfigError, HookNeverFired, InputError, LoadError, UnknownHook
from models.loading import load_model, save_native
from models.protocol import HookedModel
from tests.models.loading.families import LLAMA3_ROPE, build, save
from tests.models.loading.test_tokenizer import byte_tokenizer

CASES = {
    "gpt2": ("GPT2", {}),
    "llama": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen2": ("Qwen2", {}),
}
IDS = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
REAL = torch.ones(2, 9, dtype=torch.bool)
REAL[0, :3] = False
ABSENT = ("hook_q_input", "hook_k_input", "hook_v_input", "hook_result")


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """Return one model twice: run by us, and run by TransformerLens."""
    family, settings = CASES[request.param]
    folder = save(build(family, vocab_size=300, **settings), tmp_path_factory.mktemp("model") / "model")
    byte_tokenizer(bos=True, prepends=True).save_pretrained(folder)
    return load_model(folder), load_model(folder, backend="transformer-lens")


def close(got, expected, msg=""):
    scale = expected[expected.isfinite()].abs().max().item()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * max(scale, 1e-3), msg=lambda m: f"{msg}: {m}")


def double_and_shift(value, hook):
    return value * 1.5 + 0.3


def test_it_is_a_hooked_model(pair):
    ours, bridge = pair
    assert isinstance(bridge, HookedModel)
    assert bridge.cfg == ours.cfg
    assert bridge.device == torch.device("cpu")
    assert not bridge.training
    assert not any(parameter.requires_grad for parameter in bridge.parameters())


def test_it_has_our_hooks_but_the_per_head_inputs_and_results(pair):
    ours, bridge = pair
    missing = set(ours.hook_names()) - set(bridge.hook_names())
    assert missing == {name for name in ours.hook_names() if name.endswith(ABSENT)}
    assert set(bridge.hook_names()) < set(ours.hook_names())


def test_logits_and_loss_are_the_same(pair):
    ours, bridge = pair
    close(bridge(IDS), ours(IDS))
    close(bridge(IDS, "loss"), ours(IDS, "loss"))
    close(bridge(IDS, "loss", loss_per_token=True), ours(IDS, "loss", loss_per_token=True))
    assert bridge(IDS, None) is None


@pytest.mark.parametrize("real", [REAL, REAL.flip(1)], ids=["left", "right"])
def test_padding(pair, real):
    ours, bridge = pair
    close(bridge(IDS, attention_mask=real)[real], ours(IDS, attention_mask=real)[real])


def test_activations_are_the_same(pair):
    ours, bridge = pair
    _, expected = ours.run_with_cache(IDS)
    _, got = bridge.run_with_cache(IDS)
    assert set(got) == set(bridge.hook_names())
    for name, value in got.items():
        if name.endswith("attn_scores"):
            value = value.masked_fill(expected[name] == -torch.inf, -torch.inf)  # the lowest number there
        close(value, expected[name], name)


def test_an_edit_at_every_hook_does_the_same(pair):
    ours, bridge = pair
    plain = bridge(IDS)
    for name in bridge.hook_names():
        edit = [(name, double_and_shift)]
        got = bridge.run_with_hooks(IDS, fwd_hooks=edit)
        assert not torch.equal(got, plain), name
        close(got, ours.run_with_hooks(IDS, fwd_hooks=edit), name)
    torch.testing.assert_close(bridge(IDS), plain, rtol=0, atol=0)


def test_gradients_at_every_hook_are_the_same(pair):
    ours, bridge = pair
    names = list(bridge.hook_names())
    _, expected = ours.run_with_cache(IDS, names_filter=names, return_type="loss", incl_bwd=True)
    _, got = bridge.run_with_cache(IDS, names_filter=names, return_type="loss", incl_bwd=True)
    for name in names:
        close(got[f"{name}_grad"], expected[f"{name}_grad"], name)


def test_stop_at_layer(pair):
    ours, bridge = pair
    for layer in (0, 1, 2, -1):
        close(bridge(IDS, stop_at_layer=layer), ours(IDS, stop_at_layer=layer))
    with pytest.raises(InputError, match="stop_at_layer is 3; this model has 2 layers"):
        bridge(IDS, stop_at_layer=3)
    close(bridge(IDS), ours(IDS))


def test_errors_are_ours(pair):
    _, bridge = pair
    with pytest.raises(UnknownHook, match=r"nearest: blocks\.0\.hook_resid_pre"):
        bridge.run_with_cache(IDS, names_filter="blocks.0.hook_reisd_pre")
    with pytest.raises(HookNeverFired):
        bridge.run_with_hooks(IDS, fwd_hooks=[("blocks.1.hook_resid_post", double_and_shift)], stop_at_layer=1)
    with pytest.raises(InputError, match="this vocabulary is 0 to 299"):
        bridge(torch.tensor([[300]]))
    with pytest.raises(InputError, match="return_type is 'probs'"):
        bridge(IDS, "probs")
    bridge.check_finite(IDS)


def test_a_failing_hook_leaves_nothing_behind(pair):
    _, bridge = pair
    plain = bridge(IDS)

    def fail(value, hook):
        raise RuntimeError("stop")

    edits = [("blocks.0.hook_resid_mid", double_and_shift), ("blocks.0.mlp.hook_post", fail)]
    with pytest.raises(RuntimeError, match="stop"):
        bridge.run_with_hooks(IDS, fwd_hooks=edits)
    torch.testing.assert_close(bridge(IDS), plain, rtol=0, atol=0)


def test_a_hook_sees_absolute_positions(pair):
    _, bridge = pair
    seen = []
    keep = [("hook_embed", lambda value, hook: seen.append(hook.positions))]
    bridge.run_with_hooks(IDS, fwd_hooks=keep, attention_mask=REAL)
    assert seen[0].tolist() == [[0, 0, 0, 0, 1, 2, 3, 4, 5], list(range(9))]


@pytest.mark.parametrize("name", ["W_E", "W_U", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_out"])
def test_weight_views_are_the_same(pair, name):
    ours, bridge = pair
    torch.testing.assert_close(getattr(bridge, name), getattr(ours, name))


def test_position_table(pair):
    ours, bridge = pair
    if ours.cfg.positions == "learned":
        torch.testing.assert_close(bridge.W_pos, ours.W_pos)
    else:
        with pytest.raises(ConfigError, match="no W_pos"):
            bridge.W_pos  # noqa: B018


def test_text(pair):
    ours, bridge = pair
    assert bridge.to_str_tokens("hi") == ["<s>", "h", "i"]
    close(bridge("hi"), ours("hi"))
    close(bridge(["hi", "hello"], "loss"), ours(["hi", "hello"], "loss"))


def test_unlisted_says_why_and_a_close_name_is_still_suggested(pair):
    ours, bridge = pair
    assert set(bridge.unlisted) == set(ours.hook_names()) - set(bridge.hook_names())
    with pytest.raises(
        UnknownHook, match=r"hook_result is not listed on this bridge: TransformerLens has no such hook"
    ):
        bridge.run_with_hooks(IDS, fwd_hooks=[("blocks.0.attn.hook_result", double_and_shift)])


@pytest.mark.parametrize("part", ["bridge", "attention"])
def test_a10_a_model_in_training_mode_is_refused(pair, part):
    """Dropout between two identical prompts would count as an effect; Llama and Qwen 2 have it on their patterns."""
    _, bridge = pair
    prompts = (IDS[:1], IDS[:1], Logit(40))
    module = bridge if part == "bridge" else bridge.bridge.blocks[1].attn.original_component
    module.train()
    try:
        for run in (lambda: activation_patching(bridge, *prompts, site="z"), lambda: bridge.run_with_cache(IDS)):
            with pytest.raises(InputError, match=r"in training mode: its dropout would .*; call model.eval\(\) first"):
                run()
        assert module.training
    finally:
        bridge.eval()
    swept = activation_patching(bridge, *prompts, site="z")
    assert abs(swept.mean() - swept.into().mean()).max() < 1e-5  # identical prompts: nothing to patch


def test_a10_it_is_in_evaluation_mode_as_loaded_and_repeats_itself(pair):
    _, bridge = pair
    assert not any(module.training for module in bridge.modules())
    torch.testing.assert_close(bridge(IDS), bridge(IDS), rtol=0, atol=0)


def test_a2_threads_see_their_own_hooks(pair):
    _, bridge = pair
    names = ("blocks.0.hook_resid_mid", "blocks.1.hook_mlp_out", "blocks.1.attn.hook_z")
    prompts = [torch.randint(0, 256, (1, 7), generator=torch.Generator().manual_seed(i)) for i in range(12)]

    def edited(i):
        return bridge.run_with_hooks(prompts[i], fwd_hooks=[(names[i % 3], double_and_shift)])

    alone = [edited(i) for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(edited, range(12)))
    for got, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_a_run_inside_a_hook_leaves_the_edit_of_the_outer_run(pair):
    """An edit in the middle of a block is carried to its end, also where the model runs in between."""
    _, bridge = pair
    middle = ("blocks.0.hook_resid_mid", double_and_shift)
    depth = [1]
    expected = bridge.run_with_hooks(IDS, fwd_hooks=[middle])

    def run_again(value, hook):
        if len(depth) == 1:
            depth.append(1)
            bridge(IDS)

    got = bridge.run_with_hooks(IDS, fwd_hooks=[middle, ("blocks.0.mlp.hook_post", run_again)])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_it_is_not_copied(pair):
    with pytest.raises(InputError, match="cannot be copied; load it again"):
        copy.deepcopy(pair[1])


def test_an_architecture_that_only_transformer_lens_runs(tmp_path):
    """GPT-NeoX: parallel blocks, so no ``hook_resid_mid``."""
    from transformers import GPTNeoXForCausalLM

    theirs = build("GPTNeoX", vocab_size=300, num_key_value_heads=None, rotary_pct=0.5)
    assert isinstance(theirs, GPTNeoXForCausalLM)
    folder = save(theirs, tmp_path / "model")
    byte_tokenizer(bos=True, prepends=False).save_pretrained(folder)
    bridge = load_model(folder, backend="transformer-lens")
    assert bridge.cfg.parallel
    assert "blocks.0.hook_resid_mid" not in bridge.hook_names()
    close(bridge(IDS), theirs(IDS).logits)
    _, cache = bridge.run_with_cache(IDS)
    written = cache["attn_out", 0] + cache["mlp_out", 0]
    close(cache["resid_post", 0], cache["resid_pre", 0] + written)
    for name in bridge.hook_names():
        got = bridge.run_with_hooks(IDS, fwd_hooks=[(name, double_and_shift)])
        assert not torch.equal(got, bridge(IDS)), name


def test_what_cannot_be_bridged_is_refused(pair, tmp_path):
    ours, _ = pair
    with pytest.raises(LoadError, match="no tokenizer, and TransformerLens boots no model without one"):
        load_model(save(build("GPT2"), tmp_path / "bare"), backend="transformer-lens")
    ours.tokenizer, kept = None, ours.tokenizer
    save_native(ours, tmp_path / "model.safetensors", {})
    ours.tokenizer = kept
    with pytest.raises(LoadError, match=r"reads a Hugging Face folder or hub id, and .* is a file"):
        load_model(tmp_path / "model.safetensors", backend="transformer-lens")
