"""Path patching against whole runs with hooks, and on a model built by hand whose paths are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from interp.interventions.path_patching import path_patching
from interp.interventions.path_result import PathPatchingResult
from interp.metrics import LogitDifference, Probability
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from tests.configurations import CONFIGS, random_model, random_tokens
from tests.oracles.path_patching import kept, patched_logits

ARCHITECTURES = ["gpt2", "llama", "gptj", "transformer-2017", "post-rms-rotary", "attn-only"]
METRIC = LogitDifference(3, 4)


def three_layers(name: str) -> HookedDecoder:
    return random_model(CONFIGS[name].replace(n_layers=3))


def prompts(model: HookedDecoder, n: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    clean = random_tokens(model.cfg, batch=2, n=n)
    corrupted = clean.clone()
    corrupted[:, 1] = (corrupted[:, 1] + 1) % model.cfg.d_vocab
    return clean, corrupted


def ends(model: HookedDecoder) -> tuple[list[str], list[tuple[str, ...]]]:
    last_kv = model.cfg.n_kv_heads - 1
    receivers = [(f"L2H{last_kv}.k",), ("L2.v",), ("L1H0.k", "L2H1.q"), ("logits",)]
    if model.cfg.attn_only:
        return ["L0H1", "L1H0"], receivers
    return ["L0H1", "mlp0", "L1H0"], [*receivers, ("mlp1",)]


@pytest.mark.parametrize(
    ("name", "direction", "freeze_mlps"),
    [
        *((name, "noise", False) for name in ARCHITECTURES),
        ("llama", "denoise", False),
        ("gpt2", "noise", True),
        ("gptj", "denoise", True),
    ],
)
def test_every_path_equals_two_whole_runs(name: str, direction: str, freeze_mlps: bool) -> None:
    model = three_layers(name)
    clean, corrupted = prompts(model)
    senders, receivers = ends(model)
    result = path_patching(
        model, clean, corrupted, METRIC, senders=senders, receivers=receivers,
        direction=direction, freeze_mlps=freeze_mlps,
    )  # fmt: skip
    base, source = (clean, corrupted) if direction == "noise" else (corrupted, clean)
    of_base, of_source = kept(model, base), kept(model, source)
    moved = 0
    for (i, sender), (j, group) in product(enumerate(senders), enumerate(receivers)):
        logits = patched_logits(model, base, of_base, of_source, sender, group, freeze_mlps)
        expected = (logits[:, -1, 3] - logits[:, -1, 4]).numpy()
        got = result.values["logit_difference"][i, j]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=f"{sender} -> {group}")
        moved += np.abs(expected - result.into()).max() > 1e-4
    assert moved >= len(receivers), "most paths carry something, or this tests nothing"


E, POS, PREVIOUS, OUT, UNREAD = slice(0, 5), slice(5, 11), slice(11, 16), slice(16, 21), slice(21, 26)
A, B, C, D, START = range(5)


def built_by_hand() -> HookedDecoder:
    """Return a model in which one path matters.

    L0H0 looks at the previous token and writes which it was; L1H0's keys read that, its queries the current token, its
    values the token attended to: an induction head. L0H1 writes the mean of all tokens where nothing of L1H0 reads it,
    but L1H1's queries do, which attends by it and writes where nobody reads. Attention is all or nothing, in float64.
    """
    cfg = DecoderConfig(
        n_layers=2, d_model=26, n_heads=2, d_head=6, d_vocab=5, n_ctx=6, attn_only=True, norm="none",
        qkv_bias=False, out_bias=False,
    )  # fmt: skip
    model = HookedDecoder(cfg).double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    model.embed.W_E[:, E] = torch.eye(5).double()
    model.pos_embed.W_pos[:, POS] = torch.eye(6).double()
    model.unembed.weight[:, OUT] = torch.eye(5).double()
    first, second = (block.attn for block in model.blocks)
    sharp = 1000 * 6**0.5

    first.W_Q[0, POS, :5] = sharp * torch.eye(6).double()[:, 1:]  # position i asks for i - 1
    first.W_K[0, POS] = torch.eye(6).double()
    first.W_V[0, E, :5] = torch.eye(5).double()
    first.W_O[0, :5, PREVIOUS] = torch.eye(5).double()
    first.W_V[1, E, :5] = torch.eye(5).double()
    first.W_O[1, :5, UNREAD] = torch.eye(5).double()

    second.W_Q[0, E, :5] = sharp * torch.eye(5).double()
    second.W_K[0, PREVIOUS, :5] = torch.eye(5).double()
    second.W_V[0, E, :5] = torch.eye(5).double()
    second.W_O[0, :5, OUT] = torch.eye(5).double()
    second.W_Q[1, UNREAD, :5] = torch.eye(5).double()
    second.W_K[1, E, :5] = torch.eye(5).double()
    second.W_V[1, E, :5] = torch.eye(5).double()
    second.W_O[1, :5, UNREAD] = torch.eye(5).double()
    return model


@pytest.mark.parametrize(("direction", "before", "after"), [("noise", 1.0, -1.0), ("denoise", -1.0, 1.0)])
def test_the_known_path_carries_all_and_every_other_nothing(direction: str, before: float, after: float) -> None:
    clean = torch.tensor([[START, A, B, D, C, A]])  # A was followed by B
    corrupted = torch.tensor([[START, D, B, A, C, A]])  # and here by C
    receivers = [f"L1H{head}.{kind}" for head in (0, 1) for kind in "qkv"] + ["logits"]
    result = path_patching(
        built_by_hand(), clean, corrupted, LogitDifference(B, C),
        senders=["L0H0", "L0H1", "L1H0", "L1H1"], receivers=receivers, direction=direction,
    )  # fmt: skip
    assert (result.clean["logit_difference"][0], result.corrupted["logit_difference"][0]) == (1.0, -1.0)
    expected = np.full((4, 7), before)
    expected[0, receivers.index("L1H0.k")] = after
    expected[2, receivers.index("logits")] = after
    assert np.array_equal(result.values["logit_difference"][..., 0], expected)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_changes_nothing(name: str, side: str) -> None:
    model = three_layers(name)
    clean, corrupted = prompts(model)
    options = {"senders": ["L0H1", "mlp0"], "receivers": ["L1.q", "L2H0.k", "mlp1", "logits"]}
    whole = path_patching(model, clean[:1], corrupted[:1], METRIC, **options)
    short = path_patching(model, clean[1:, :3], corrupted[1:, :3], METRIC, **options)
    real = torch.ones(2, 5, dtype=torch.bool)
    padded = [tokens.clone() for tokens in (clean, corrupted)]
    real[1, slice(0, 2) if side == "left" else slice(3, 5)] = False
    for tokens, own in zip(padded, (clean, corrupted), strict=True):
        tokens[1, real[1]] = own[1, :3]
        tokens[1, ~real[1]] = 7
    result = path_patching(model, *padded, METRIC, attention_mask=real, **options)
    expected = np.concatenate([whole.values["logit_difference"], short.values["logit_difference"]], axis=-1)
    np.testing.assert_allclose(result.values["logit_difference"], expected, rtol=1e-5, atol=1e-5)


def test_a_little_memory_gives_the_same_numbers_and_progress_counts_paths() -> None:
    model = three_layers("llama")
    seen: list[tuple[int, int]] = []
    options = {"senders": None, "receivers": ["L2.q", "L1H1.v"]}
    at_once = path_patching(model, *prompts(model), METRIC, **options)
    chunked = path_patching(
        model, *prompts(model), METRIC, memory=1, progress=lambda *counts: seen.append(counts), **options
    )
    np.testing.assert_allclose(
        chunked.values["logit_difference"], at_once.values["logit_difference"], rtol=1e-5, atol=1e-5
    )
    assert seen[0] == (1, 12)
    assert seen[-1] == (12, 12)
    assert len(at_once.senders) == 12


def test_an_interrupt_keeps_what_is_done() -> None:
    model = three_layers("gpt2")

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    result = path_patching(
        model, *prompts(model), METRIC, senders=["L0H0", "L0H1"], receivers=["L1.q", "mlp1", "logits"], memory=1,
        progress=stop,
    )  # fmt: skip
    assert not result.complete
    assert np.isfinite(result.values["logit_difference"][0]).all()
    assert np.isnan(result.values["logit_difference"][1]).all()
    assert "Interrupted" in result.summary_html()


def test_the_result_names_its_axes_and_survives_a_file(tmp_path) -> None:
    model = three_layers("llama")
    metrics = {"difference": METRIC, "p": Probability(3)}
    result = path_patching(
        model, *prompts(model), metrics, senders=["2.1", (0, 1), "mlp1"], receivers=["logits", ("2.0.q", "2.1.k")]
    )
    assert result.axes == ("sender", "receiver")
    assert (result.senders, result.receivers) == (("L2H1", "L0H1", "mlp1"), ("logits", "L2H0.q+L2H1.k"))
    assert result.mean("p").shape == (3, 2)
    grid = result.by_head("logits", "difference")
    assert grid.shape == (3, 4)
    assert grid[2, 1] == result.change("difference")[0, 0]
    assert np.isnan(grid).sum() == 10
    frame = result.to_frame("p")
    assert list(frame.columns) == ["sender", "receiver", "p", "change"]
    assert list(frame["sender"][:2]) == ["L2H1", "L2H1"]
    assert frame["change"][1] == 0, "a layer-2 head says nothing to layer 2"
    assert PathPatchingResult.load(result.save(tmp_path / "paths.json")) == result
    assert "path patching of" in result.summary_html()
    with pytest.raises(InputError, match="several receivers; name one of logits, L2H0"):
        result.by_head(metric="p")
    with pytest.raises(InputError, match="no receiver 'logit'; nearest: logits"):
        result.by_head("logit", "p")
    with pytest.raises(InputError, match="several metrics; name one of difference, p"):
        result.mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"senders": "L3H0"}, "layer 3 in 'L3H0' is out of range"),
        ({"senders": "mlp3"}, "layer 3 in 'mlp3' is out of range: this model has layers 0 to 2"),
        ({"senders": ["L0H0", "0.0"]}, "senders name L0H0 twice"),
        ({"senders": []}, "no senders"),
        ({"senders": "attn0"}, "'attn0' is not a head"),
        ({"receivers": []}, "no receivers"),
        ({"receivers": "L1H2.k"}, "key/value head 2 in 'L1H2.k' is out of range: .* key/value heads 0 to 1"),
        ({"receivers": "L9.q"}, "layer 9 in 'L9.q' is out of range"),
        ({"receivers": "L1H0"}, "'L1H0' is not a receiver; write 'L9H6.q'"),
        ({"receivers": [("logits", "mlp2")]}, "'logits' replaces the whole last stream"),
        ({"receivers": ["mlp1", "mlp1"]}, "receivers name mlp1 twice"),
        ({"senders": "L1H0", "receivers": ["logits", "L1.q"]}, r"no path leads to L1\.q"),
        ({"direction": "both"}, "direction is 'both'"),
        ({"senders": 5}, "5 names no part of a model; write 'L5H1', or a list of names"),
        ({"senders": [5]}, "5 is not a head"),
        ({"receivers": 5}, "5 names no part of a model"),
        ({"receivers": (1, 0)}, "1 is not a receiver"),
        ({"memory": -1}, "memory is -1; expected a whole number, at least 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, message: str) -> None:
    model = three_layers("llama")
    with pytest.raises(InputError, match=message):
        path_patching(model, *prompts(model), METRIC, **options)


def test_an_mlp_of_an_attention_only_model_is_refused() -> None:
    model = three_layers("attn-only")
    for options in ({"senders": "mlp0"}, {"receivers": "mlp1"}):
        with pytest.raises(InputError, match="is an MLP, and this model is attention-only"):
            path_patching(model, *prompts(model), METRIC, **options)


@pytest.mark.parametrize("written", [(0, 1), "L0H1", "0.1", [(0, 1)], ((0, 1),)])
def test_one_sender_needs_no_list(written) -> None:
    model = three_layers("llama")
    assert path_patching(model, *prompts(model), METRIC, senders=written).senders == ("L0H1",)


def test_prompts_of_different_length_are_refused() -> None:
    model = three_layers("gpt2")
    clean, corrupted = prompts(model)
    with pytest.raises(InputError, match="5 tokens and the corrupted one 4"):
        path_patching(model, clean, corrupted[:, :4], METRIC)


def test_a_model_with_hooks_attached_is_refused() -> None:
    model = three_layers("gpt2")
    with (
        pytest.raises(InputError, match=r"a hook is attached to blocks\.0\.hook_resid_pre.*with no hooks attached"),
        model.hooks([("blocks.0.hook_resid_pre", lambda value, hook: None)]),
    ):
        path_patching(model, *prompts(model), METRIC)
