"""What a bridge lists acts and means what its name says; what does not is not listed, with the reason.

Values are checked against Hugging Face's own eager attentions and hidden states, and against slow arithmetic written
here. TransformerLens boots every architecture; the default suite takes a few of them.
"""

import re

import pytest
import torch

from interp.interventions import activation_patching, attribution_patching
from interp.metrics import Logit
from models.errors import LoadError, UnknownHook, UnsupportedModel
from models.loading import load_model, probe
from tests.models.loading.architectures import build, folder_of

SCORES, PATTERN = "attn.hook_attn_scores", "attn.hook_pattern"
_POST_HOC = {SCORES: "", PATTERN: "an edit does not reach attn.hook_z"}  # Hugging Face's module has read it by then
_NORM_BETWEEN = {"hook_attn_out": "z W_O", "hook_mlp_out": "post W_out"}
_SHARED_NORM = {"attn.hook_attn_in": "an edit changes hook_mlp_out too"}

# What TransformerLens 4.3 has but must not be listed, and part of the reason.
UNLISTED = {
    "gpt2": {},
    "llama": {},
    "opt": _POST_HOC,
    "gpt_neo": _POST_HOC,
    "olmo": {f"{norm}.hook_{what}": "AttributeError" for norm in ("ln1", "ln2") for what in ("scale", "normalized")}
    | {f"ln_final.hook_{what}": "AttributeError" for what in ("scale", "normalized")},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {SCORES: "q.k", **_NORM_BETWEEN},  # capped after the product
    "gemma3_text": _NORM_BETWEEN,
    "gptj": {**_POST_HOC, **_SHARED_NORM},
    "gpt_neox": {},
    "xglm": {**_POST_HOC, "hook_embed": "block 0"},
    "glm": {},
    "glm4": _NORM_BETWEEN,
    "olmo2": _NORM_BETWEEN,
    "olmo3": _NORM_BETWEEN,
    "granite": {SCORES: "q.k", **_NORM_BETWEEN},
    "gpt_oss": {SCORES: "softmax", PATTERN: "sum to 1"},
    "phi": _SHARED_NORM,
    "phi3": {},
    "falcon": _SHARED_NORM,
    "stablelm": {},
    "mixtral": {},
    "qwen3_moe": {},
    "smollm3": {},
    "cohere": _SHARED_NORM,
    "starcoder2": {},
    "gpt_bigcode": {},
    "hunyuan_v1_dense": {SCORES: "q.k"},  # normed after the rotation
    "exaone4": _NORM_BETWEEN,
}
DEFAULT = ("gpt2", "llama", "opt", "gpt_neo", "olmo")
REFUSED = {
    "bert": "is no causal decoder: a later token changes the logits of an earlier position",
    "bart": r"is an encoder-decoder \(bart\); only decoders are bridged",
    "codegen": "TransformerLens cannot boot .*: AttributeError: ",
    "marian": r"is an encoder-decoder \(marian\)",
    "t5": r"is an encoder-decoder \(t5\)",
    "roberta": "is no causal decoder",
    "openai-gpt": r"the residual stream cannot be followed: there is no blocks\.0\.hook_resid_post",
    "bloom": "our configuration cannot describe it",
}
IDS = torch.randint(20, 250, (2, 9), generator=torch.Generator().manual_seed(3))
AT = 4  # the column that is edited


def _slow(names, default):
    return [name if name in default else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(scope="module", params=_slow(UNLISTED, DEFAULT))
def case(request, tmp_path_factory):
    """Return an architecture's name, the Hugging Face model, and the bridge to it."""
    name = request.param
    folder = folder_of(name, tmp_path_factory.mktemp(name) / "model")
    return name, build(name), load_model(folder, backend="transformer-lens")


def close(got, expected, what):
    size = expected.abs().max().item()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3 * max(size, 1e-3), msg=lambda m: f"{what}: {m}")


def suffix(name):
    return re.sub(r"^blocks\.\d+\.", "", name)


def test_a6_a7_what_is_wrong_is_not_listed_and_says_why(case):
    name, _, bridge = case
    for hook, reason in UNLISTED[name].items():
        names = [full for full in bridge.unlisted if suffix(full) == hook]
        assert len(names) == (2 if hook not in ("hook_embed",) and "ln_final" not in hook else 1), hook
        assert all(reason in bridge.unlisted[full] for full in names), bridge.unlisted[names[0]]
        with pytest.raises(UnknownHook, match=re.escape(f"{names[0]} is not listed on this bridge: ")) as caught:
            bridge.run_with_cache(IDS, names_filter=names[0])
        assert "\n" not in str(caught.value)
    rest = {full for full in bridge.unlisted if suffix(full) not in UNLISTED[name]}
    assert all(bridge.unlisted[full].startswith(("TransformerLens has no such hook", "its shape is")) for full in rest)
    for hook in ("hook_embed", "blocks.1.attn.hook_z", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post"):
        assert hook in bridge.hook_names() or hook in UNLISTED[name]
    assert not set(bridge.unlisted) & set(bridge.hook_names())


@torch.no_grad()
def test_a6_every_listed_hook_acts_from_its_position_on(case):
    """Row i of a batch of one prompt is edited at the i-th hook, by noise in one column."""
    _, _, bridge = case
    names = bridge.hook_names()
    prompt = IDS[:1]
    plain = bridge(prompt)
    generator = torch.Generator().manual_seed(0)

    def edit(row):
        def change(value, hook):
            axis = 2 if hook.name.endswith((SCORES, PATTERN)) else 1
            at = value[row].movedim(axis - 1, 0)[AT]
            noise = 0.5 * torch.randn(at.shape, generator=generator) * at[at.abs() < 1e4].std(correction=0)
            at += at if hook.name.endswith("scale") else torch.where(at.abs() < 1e4, noise, 0)

        return change

    edits = [(name, edit(row)) for row, name in enumerate(names)]
    got = bridge.run_with_hooks(prompt.expand(len(names), -1), fwd_hooks=edits)
    for name, logits in zip(names, got, strict=True):
        moved = (logits - plain[0]).abs().amax(-1)
        assert moved[AT:].max() > 1e-4 * plain.abs().max(), name
        assert moved[:AT].max() < 1e-4 * plain.abs().max(), name
    close(bridge(prompt), plain, "after all edits")


@torch.no_grad()
def test_a7_values_are_hugging_faces(case):
    _, theirs, bridge = case
    expected = theirs(IDS, output_hidden_states=True, output_attentions=True, use_cache=False)
    logits, cache = bridge.run_with_cache(IDS)
    close(logits, expected.logits, "logits")
    for layer in range(2):
        close(cache["resid_pre", layer], expected.hidden_states[layer], f"resid_pre {layer}")
        if ("pattern", layer) in cache:
            close(cache["pattern", layer], expected.attentions[layer], f"pattern {layer}")


@torch.no_grad()
def test_a7_values_mean_what_their_names_say(case):
    """In slow arithmetic, head by head, without a table."""
    _, _, bridge = case
    _, cache = bridge.run_with_cache(IDS)
    group = bridge.cfg.n_heads // bridge.cfg.n_kv_heads
    for layer in range(2):
        has = {
            short
            for short in ("attn_scores", "pattern", "z", "attn_out", "mlp_out", "resid_mid")
            if (short, layer) in cache
        }
        turned = "rot_q" if ("rot_q", layer) in cache else "q"
        for head in range(bridge.cfg.n_heads):
            v = cache["v", layer][:, :, head // group]
            if "attn_scores" in has:
                scores = cache["attn_scores", layer][:, head].tril()
                if turned == "rot_q" or bridge.cfg.positions == "learned":
                    k = cache[turned.replace("q", "k"), layer][:, :, head // group]
                    products = cache[turned, layer][:, :, head] @ k.mT / bridge.cfg.d_head**0.5
                    close(scores, products.tril(), "scores")
                ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
                close(cache["pattern", layer][:, head], scores.masked_fill(ahead, -torch.inf).softmax(-1), "pattern")
            if "pattern" in has:
                close(cache["z", layer][:, :, head], cache["pattern", layer][:, head] @ v, "z")
        if "attn_out" in has:
            written = cache["z", layer].flatten(2) @ bridge.W_O[layer].flatten(0, 1)
            bias = bridge.bridge.blocks[layer].attn.b_O
            close(cache["attn_out", layer], written + (0 if bias is None else bias), "attn_out")
        if {"resid_mid", "attn_out"} <= has:
            close(cache["resid_mid", layer], cache["resid_pre", layer] + cache["attn_out", layer], "resid_mid")
        if {"resid_mid", "mlp_out"} <= has:
            close(cache["resid_post", layer], cache["resid_mid", layer] + cache["mlp_out", layer], "resid_post")
        for norm, reads in (("ln1", "resid_pre"), ("ln2", "mlp_in")):
            if f"blocks.{layer}.{norm}.hook_normalized" in cache:
                x = cache[reads, layer]
                x = x - x.mean(-1, keepdim=True) if bridge.cfg.norm == "layer" else x
                divided = x / cache["scale", layer, norm]
                close(cache["normalized", layer, norm], divided, norm)
                close(divided.pow(2).mean(-1), torch.ones(2, 9), norm)


@pytest.mark.parametrize("name", _slow(REFUSED, ("bert", "bart", "codegen")))
def test_a7_a8_a9_what_is_no_decoder_is_refused_in_one_line(name, tmp_path):
    folder = folder_of(name, tmp_path / "model")
    with pytest.raises(LoadError, match=REFUSED[name]) as caught:
        load_model(folder, backend="transformer-lens")
    assert isinstance(caught.value, UnsupportedModel) or name == "codegen"
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def opt(tmp_path_factory):
    return load_model(folder_of("opt", tmp_path_factory.mktemp("opt") / "model"), backend="transformer-lens")


def test_a6_a_sweep_of_opts_pattern_is_refused_and_others_are_not_zero(opt):
    prompts = (IDS[:1, :6], IDS[1:, :6], Logit(40))
    with pytest.raises(
        UnknownHook, match=r"hook_pattern is not listed on this bridge: an edit does not reach attn.hook_z"
    ):
        activation_patching(opt, *prompts, site="pattern", over=("layer", "head"))
    for site in ("resid_mid", "mlp_post", "z", "q"):
        swept = activation_patching(opt, *prompts, site=site, over=("layer", "head" if site in "zq" else "pos"))
        assert swept.mean().std() > 1e-4, site


@pytest.mark.slow
def test_a7_gradients_are_not_dropped_at_half_of_the_writes(tmp_path):
    """GradDrop silences what a layer writes; where one of its writes is not listed it says so."""
    glm4 = load_model(folder_of("glm4", tmp_path / "model"), backend="transformer-lens")
    with pytest.raises(UnknownHook, match="hook_attn_out is not listed on this bridge: it is not z W_O"):
        attribution_patching(glm4, IDS[:1, :6], IDS[1:, :6], Logit(40), site="z", grad_drop=True)


# -- the probe itself: a bridge is made to lie -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Return a bridge, and the logits that it must have."""
    bridge = load_model(folder_of("llama", tmp_path_factory.mktemp("llama") / "model"), backend="transformer-lens")
    return bridge, bridge(probe.prompts(300, 64, bridge.device))


def _probed(llama):
    bridge, expected = llama
    return probe.probe(bridge, expected, bridge.bridge.blocks)


def test_a_sound_bridge_passes_and_nothing_is_left_behind(llama):
    bridge, _ = llama
    state, modes = torch.get_rng_state(), [module.training for module in bridge.modules()]
    plain = bridge(IDS)
    assert _probed(llama) == {}
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in bridge.modules()] == modes
    assert not any(point.in_use for point in bridge.hook_dict.values())
    torch.testing.assert_close(bridge(IDS), plain, rtol=0, atol=0)


def _hooks_of_llama():
    from models.config import DecoderConfig
    from models.hooks import decoder_hooks

    cfg = DecoderConfig(
        n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, positions="rotary", norm="rms", gated=True
    )
    absent = ("hook_q_input", "hook_k_input", "hook_v_input", "hook_result")
    return [name for name in decoder_hooks(cfg) if not name.startswith("blocks.0") and not name.endswith(absent)]


@pytest.mark.parametrize("name", _hooks_of_llama())
def test_a6_a_hook_that_does_not_act_is_found(llama, name):
    """Behind our point, the value from before it goes on: edits are seen by readers and reach nothing."""
    bridge, _ = llama
    their = bridge.bridge.hook_dict[_their_name(name)]
    before = []
    first = their.add_hook(lambda value, hook: before.append(value.clone()), prepend=True)
    last = their.add_hook(lambda value, hook: before.pop())
    try:
        if "resid_p" in name:
            with pytest.raises(UnsupportedModel, match=f"the residual stream cannot be followed: at {name}, "):
                _probed(llama)
        else:
            assert "an edit does not reach" in _probed(llama)[name]
    finally:
        for handle in (first, last):
            handle.hook.remove()
            their.fwd_hooks.remove(handle)


MEANINGS = [
    *("attn.hook_attn_in", "ln1.hook_scale", "ln1.hook_normalized", SCORES, PATTERN, "attn.hook_z", "hook_attn_out"),
    *("hook_resid_mid", "hook_mlp_in", "ln2.hook_scale", "ln2.hook_normalized", "mlp.hook_post", "hook_mlp_out"),
]


@pytest.mark.parametrize("hook", MEANINGS)
def test_a7_a_value_off_by_a_factor_is_found(llama, hook):
    """Our point sees 1.3 times the value, and what goes on is divided by it: edits act, and mean something else."""
    bridge, _ = llama
    name = f"blocks.1.{hook}"
    their = bridge.bridge.hook_dict[_their_name(name)]
    first = their.add_hook(lambda value, hook: value * 1.3, prepend=True)
    last = their.add_hook(lambda value, hook: value / 1.3)
    try:
        assert name in _probed(llama)
    finally:
        for handle in (first, last):
            handle.hook.remove()
            their.fwd_hooks.remove(handle)


def _their_name(name):
    return {"blocks.1.attn.hook_attn_in": "blocks.1.ln1.hook_in", "blocks.1.hook_resid_mid": "blocks.1.ln2.hook_in",
            "blocks.1.hook_mlp_in": "blocks.1.ln2.hook_in"}.get(name, name)  # fmt: skip


def test_a8_other_logits_than_the_wrapped_models_are_refused(llama):
    bridge, expected = llama
    with pytest.raises(
        UnsupportedModel, match="TransformerLens's logits are not those of the model it wraps: off by 1"
    ):
        probe.probe(bridge, expected + 1.0, bridge.bridge.blocks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_is_listed_in_half_precision(opt, tmp_path, dtype):
    half = load_model(folder_of("opt", tmp_path / "model"), backend="transformer-lens", dtype=dtype)
    assert half.unlisted == opt.unlisted
