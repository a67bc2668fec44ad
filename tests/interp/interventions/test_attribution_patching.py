"""Attribution patching: exact where the metric is linear, equal to finite differences everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.attribution_result import AttributionResult
from interp.metrics import KL, LogitDifference, LogProbability, Loss, Rank
from models import HookedDecoder
from models.errors import InputError
from tests.configurations import CONFIGS, random_model, random_tokens

METRIC = LogitDifference(3, 4)
LINEAR = CONFIGS["no-norm"].replace(n_heads=4, n_kv_heads=2, d_head=4)


def prompts(model: HookedDecoder, n: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    clean = random_tokens(model.cfg, batch=2, n=n)
    corrupted = clean.clone()
    corrupted[:, 1] = (corrupted[:, 1] + 1) % model.cfg.d_vocab
    return clean, corrupted


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize(
    ("site", "over"),
    [
        ("z", ("layer", "head")),
        ("z", ("pos", "layer", "head")),
        ("v", ("layer", "head")),
        ("v", ("kv_head", "pos", "layer")),
        ("pattern", ("layer", "head", "dest_pos", "src_pos")),
        ("result", ("layer", "head")),
        ("mlp_post", ("layer", "neuron")),
        ("mlp_post", ("neuron", "layer", "pos")),
        ("mlp_out", ("layer", "pos")),
        ("resid_post", ("layer",)),
    ],
)
def test_exact_where_the_metric_is_linear_in_the_activation(site: str, over: tuple[str, ...], direction: str) -> None:
    """In the last block of a model without norms: all writes are, and those of attention where there is no MLP."""
    cfg = LINEAR if site.startswith(("mlp", "resid")) else LINEAR.replace(attn_only=True, d_mlp=None)
    model = random_model(cfg)
    options = {"site": site, "over": over, "direction": direction}
    estimated = attribution_patching(model, *prompts(model), METRIC, **options)
    exact = activation_patching(model, *prompts(model), METRIC, **options)
    assert estimated.axes == exact.axes
    where = estimated.axes.index("layer")
    got, expected = (np.moveaxis(one.values["logit_difference"], where, 0)[-1] for one in (estimated, exact))
    np.testing.assert_allclose(got, expected, atol=1e-9)
    assert np.ptp(expected) > 1e-3


def nudged(
    model: HookedDecoder,
    tokens: torch.Tensor,
    hook: str,
    index: tuple,
    change: torch.Tensor,
    embed_change: torch.Tensor | None = None,
    frozen: dict[str, torch.Tensor] | None = None,
) -> np.ndarray:
    """Return the metric's derivative as a cell moves towards the other run, ``[batch]``, by central differences."""
    eps = 1e-5
    found = []
    for sign in (1, -1):

        def move(value: torch.Tensor, hook, sign: int = sign) -> None:
            value[index] += sign * eps * change[index]

        hooks = [(hook, move)]
        if embed_change is not None:
            hooks.append(("hook_embed", lambda value, hook: value + embed_change))
        hooks += [(name, lambda value, hook: frozen[hook.name]) for name in frozen or {}]
        with torch.no_grad():
            logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
        found.append((logits[:, -1, 3] - logits[:, -1, 4]).numpy())
    return (found[0] - found[1]) / (2 * eps)


HEAD_AT = (slice(None), 1, 1)  # position 1, head 1
POSITION = (slice(None), 1)
FD_CASES = [
    ("llama", "q", HEAD_AT, ("layer", "pos", "head")),
    ("llama", "k", HEAD_AT, ("layer", "pos", "head")),
    ("llama", "v", HEAD_AT, ("layer", "pos", "head")),
    ("llama", "pattern", (slice(None), 1, 2, 1), ("layer", "head", "dest_pos", "src_pos")),
    ("llama", "mlp_post", (slice(None), 1, slice(0, 6)), ("layer", "pos", "neuron")),
    ("gpt2", "resid_mid", POSITION, ("layer", "pos")),
    ("gpt2", "z", (slice(None), slice(None), 1), ("layer", "head")),
    ("gptj", "attn_out", POSITION, ("layer", "pos")),
    ("gptj", "k", HEAD_AT, ("layer", "pos", "head")),
    ("transformer-2017", "mlp_out", POSITION, ("layer", "pos")),
    ("post-rms-rotary", "resid_pre", POSITION, ("layer", "pos")),
]


def one_cell(result: AttributionResult, site: str) -> np.ndarray:
    """Return the change of the cell of layer 0 that ``FD_CASES`` move."""
    places = {"layer": 0, "pos": 1, "head": 1, "kv_head": 1, "dest_pos": 2, "src_pos": 1, "neuron": 0}
    index = tuple(places[axis] for axis in result.axes)
    return result.values["logit_difference"][index] - result.into()


def of_layer_0(model: HookedDecoder, site: str) -> str:
    return next(name for name in model.hook_names() if name.startswith("blocks.0.") and name.endswith(f"hook_{site}"))


@pytest.mark.parametrize(("name", "site", "index", "over"), FD_CASES)
def test_equals_finite_differences(name: str, site: str, index: tuple, over: tuple[str, ...]) -> None:
    cfg = CONFIGS[name].replace(n_kv_heads=CONFIGS[name].n_heads) if name.startswith("post") else CONFIGS[name]
    model = random_model(cfg)
    clean, corrupted = prompts(model)
    options = {"neuron_groups": 2} if site == "mlp_post" else {}
    result = attribution_patching(model, clean, corrupted, METRIC, site=site, over=over, direction="noise", **options)
    hook = of_layer_0(model, site.removeprefix("mlp_") if site == "mlp_post" else site)
    change = model.run_with_cache(corrupted)[1][hook] - model.run_with_cache(clean)[1][hook]
    expected = nudged(model, clean, hook, index, change.detach())
    np.testing.assert_allclose(one_cell(result, site), expected, rtol=1e-5, atol=1e-7)
    assert np.abs(expected).max() > 1e-4


def test_integrated_gradients_average_over_embeddings_between_the_runs() -> None:
    model = random_model(CONFIGS["llama"])
    clean, corrupted = prompts(model)
    result = attribution_patching(model, clean, corrupted, METRIC, site="z", over=("layer", "head"), ig_steps=3)
    hook = "blocks.0.attn.hook_z"
    of_clean, of_corrupted = (model.run_with_cache(side)[1] for side in (clean, corrupted))
    embed_change = of_clean["hook_embed"] - of_corrupted["hook_embed"]
    expected = np.mean(
        [
            nudged(
                model, corrupted, hook, (slice(None), slice(None), 1), of_clean[hook] - of_corrupted[hook],
                embed_change=share * embed_change,
            )
            for share in (0, 1 / 3, 2 / 3)
        ],
        axis=0,
    )  # fmt: skip
    np.testing.assert_allclose(one_cell(result, "z"), expected, rtol=1e-5, atol=1e-7)


def test_many_steps_at_the_embedding_add_up_to_the_whole_difference() -> None:
    model = random_model(CONFIGS["llama"])
    clean, corrupted = prompts(model)
    result = attribution_patching(
        model, clean, corrupted, METRIC, site="resid_pre", over=("layer",), direction="denoise", ig_steps=50
    )
    whole = result.clean["logit_difference"] - result.corrupted["logit_difference"]
    one_step = attribution_patching(model, clean, corrupted, METRIC, site="resid_pre", over=("layer",))
    change, rough = (r.values["logit_difference"][0] - r.into() for r in (result, one_step))
    np.testing.assert_allclose(change, whole, rtol=0.06, atol=0.06)
    assert np.abs(rough - whole).max() > 0.1, "one step misses it, or this tests nothing"


@pytest.mark.parametrize(
    ("name", "site", "divisor"), [("llama", "z", 2), ("gptj", "attn_out", 2), ("gpt2", "resid_pre", 3)]
)
def test_grad_drop_averages_magnitudes_with_one_layer_frozen(name: str, site: str, divisor: int) -> None:
    model = random_model(CONFIGS[name].replace(n_layers=3))
    clean, corrupted = prompts(model)
    over = ("layer", "head") if site == "z" else ("layer", "pos")
    result = attribution_patching(
        model, clean, corrupted, METRIC, site=site, over=over, direction="noise", grad_drop=True
    )
    hook = of_layer_0(model, site)
    of_clean, of_corrupted = (model.run_with_cache(side)[1] for side in (clean, corrupted))
    index = (slice(None), slice(None), 1) if site == "z" else POSITION
    dropped = range(1, 3) if divisor == 2 else range(3)  # its own layer dropped, nothing is left of it
    magnitudes = [
        np.abs(
            nudged(
                model, clean, hook, index, of_corrupted[hook] - of_clean[hook],
                frozen={f"blocks.{layer}.hook_{what}": of_clean[what, layer] for what in ("attn_out", "mlp_out")},
            )
        )
        for layer in dropped
    ]  # fmt: skip
    np.testing.assert_allclose(one_cell(result, site), np.sum(magnitudes, axis=0) / divisor, rtol=1e-5, atol=1e-7)
    with pytest.raises(InputError, match="magnitudes without a sign"):
        result.recovered()


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize(
    ("site", "over"),
    [
        ("q", ("layer", "head")),
        ("q", ("layer", "pos", "head")),
        ("k", ("layer", "head")),
        ("k", ("pos", "layer", "head")),
    ],
)
def test_the_qk_fix_is_exact_where_the_metric_is_linear_in_the_pattern(site, over, positions) -> None:
    model = random_model(LINEAR.replace(attn_only=True, d_mlp=None, positions=positions))
    model.blocks[1].attn.q.weight.data *= 20  # saturated, where a gradient through the softmax sees nothing
    exact = activation_patching(model, *prompts(model), METRIC, site=site, over=over)
    fixed, plain = (
        attribution_patching(model, *prompts(model), METRIC, site=site, over=over, qk_fix=fix) for fix in (True, False)
    )
    where = exact.axes.index("layer")
    of_fixed, of_plain, expected = (
        np.moveaxis(one.values["logit_difference"], where, 0)[-1] for one in (fixed, plain, exact)
    )
    np.testing.assert_allclose(of_fixed, expected, rtol=1e-6, atol=1e-8)
    assert np.abs(of_plain - expected).max() > 0.1


def test_the_qk_fix_raises_the_correlation_on_saturated_heads() -> None:
    model = random_model(CONFIGS["llama"].replace(n_layers=3))
    for block in model.blocks:
        block.attn.q.weight.data *= 4
    clean, corrupted = random_tokens(model.cfg, 2, 8), random_tokens(model.cfg, 2, 8, seed=1)
    corrupted[:, -1] = clean[:, -1]
    for site in ("q", "k"):
        options = {"site": site, "over": ("layer", "head")}
        exact = activation_patching(model, clean, corrupted, METRIC, **options)
        plain, fixed = (
            attribution_patching(model, clean, corrupted, METRIC, qk_fix=fix, **options).compare(exact, k=3)
            for fix in (False, True)
        )
        assert fixed.pearson > plain.pearson


def test_the_qk_fix_with_grad_drop_and_steps_keeps_the_grid() -> None:
    model = random_model(CONFIGS["llama"])
    result = attribution_patching(
        model, *prompts(model), METRIC, site="k", over=("layer", "pos", "head"), qk_fix=True, grad_drop=True, ig_steps=2
    )
    assert result.axes == ("layer", "pos", "kv_head")
    assert result.mean().shape == (2, 4, 2), "two key/value heads, nothing repeated"
    assert (result.change() >= 0).all()
    assert result.title.endswith("denoise, 2 gradient steps, QK fix, GradDrop, magnitudes")


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    model = random_model(CONFIGS["llama"])
    clean, corrupted = prompts(model)
    options = {"site": "k", "over": ("layer", "head"), "qk_fix": True, "ig_steps": 2}
    whole = attribution_patching(model, clean[:1], corrupted[:1], METRIC, **options)
    short = attribution_patching(model, clean[1:, :3], corrupted[1:, :3], METRIC, **options)
    real = torch.ones(2, 4, dtype=torch.bool)
    real[1, 0 if side == "left" else 3] = False
    padded = [tokens.clone() for tokens in (clean, corrupted)]
    for tokens, own, other in zip(padded, (clean, corrupted), (7, 8), strict=True):
        tokens[1, real[1]] = own[1, :3]
        tokens[1, ~real[1]] = other
    result = attribution_patching(model, *padded, METRIC, attention_mask=real, **options)
    expected = np.concatenate([whole.values["logit_difference"], short.values["logit_difference"]], axis=-1)
    np.testing.assert_allclose(result.values["logit_difference"], expected, atol=1e-9)


def test_several_metrics_share_the_runs_and_weights_get_no_gradient() -> None:
    model = random_model(CONFIGS["gpt2"])
    metrics = {"difference": METRIC, "log p": LogProbability(3)}
    together = attribution_patching(model, *prompts(model), metrics)
    with torch.inference_mode():
        alone = attribution_patching(model, *prompts(model), LogProbability(3))
    np.testing.assert_allclose(together.values["log p"], alone.values["log_probability"], atol=1e-12)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bfloat16_attributes_in_wider_arithmetic() -> None:
    model = random_model(CONFIGS["llama"], dtype=torch.bfloat16)
    result = attribution_patching(model, *prompts(model), METRIC, site="q", qk_fix=True)
    assert np.isfinite(result.values["logit_difference"]).all()
    assert result.values["logit_difference"].dtype == np.float64


def test_kl_at_its_minimum_is_refused_and_elsewhere_is_not() -> None:
    model = random_model(CONFIGS["gpt2"])
    clean, corrupted = prompts(model)
    with torch.no_grad():
        reference = model(clean)[:, -1]
    kl = KL(reference)
    with pytest.raises(InputError, match="kl is 0 on the run patched into, its minimum"):
        attribution_patching(model, clean, corrupted, kl, direction="noise")
    for options in ({"direction": "denoise"}, {"direction": "noise", "ig_steps": 2}):
        assert np.abs(attribution_patching(model, clean, corrupted, kl, **options).change()).max() > 0


@pytest.mark.parametrize(
    ("metric", "options", "message"),
    [
        (Rank(3), {}, "rank has no gradient with respect to the logits"),
        (METRIC, {"over": ("head",)}, "patches several layers at once"),
        (METRIC, {"ig_steps": 0}, "ig_steps is 0"),
        (METRIC, {"qk_fix": True}, "qk_fix is about queries and keys; the site is 'z'"),
        (METRIC, {"direction": "up"}, "direction is 'up'"),
        (METRIC, {"site": "zz"}, "no site 'zz'"),
        (METRIC, {"over": ("layer", "neuron")}, "z has no axis 'neuron'"),
        (METRIC, {"neuron_groups": 2}, "neuron_groups is 2"),
    ],
)
def test_what_cannot_be_is_refused(metric, options: dict, message: str) -> None:
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match=message):
        attribution_patching(model, *prompts(model), metric, **options)


def test_grad_drop_needs_two_layers() -> None:
    model = random_model(CONFIGS["one-layer-one-head"])
    with pytest.raises(InputError, match="leaves out one layer at a time"):
        attribution_patching(model, *prompts(model), METRIC, grad_drop=True)


@pytest.mark.parametrize("ig_steps", [1, 2])
def test_tensors_made_under_inference_mode_attribute_as_others(ig_steps: int) -> None:
    model = random_model(CONFIGS["llama"])
    clean, corrupted = prompts(model)
    real = torch.tensor([[False, True, True, True], [True] * 4])

    def attributed(pair: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor, answers: torch.Tensor) -> list:
        metrics = {"p": LogProbability(answers), "loss": Loss(pair[1], mask), "kl": KL(torch.ones(2, 11).double())}
        return list(attribution_patching(model, *pair, metrics, attention_mask=mask, ig_steps=ig_steps).values.values())

    wanted = attributed((clean, corrupted), real, torch.tensor([3, 4]))
    with torch.inference_mode():
        inside = (clean.clone(), corrupted.clone()), real.clone(), torch.tensor([3, 4])
        np.testing.assert_allclose(attributed(*inside), wanted)
    np.testing.assert_allclose(attributed(*inside), wanted)


@pytest.mark.parametrize("ig_steps", [0, 2.5, "2", True])
def test_steps_are_counted(ig_steps: object) -> None:
    model = random_model(CONFIGS["llama"])
    with pytest.raises(InputError, match=r"ig_steps is .*; expected a whole number, at least 1"):
        attribution_patching(model, *prompts(model), METRIC, ig_steps=ig_steps)
