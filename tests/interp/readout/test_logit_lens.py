"""The logit lens against full logits, for every architecture; its failures named; its memory counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.readout.logit_lens import LensResult, logit_lens
from interp.readout.tuned_lens import TunedLens
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.loading import load_model
from models.loading.fold import fold
from tests.configurations import CONFIGS, random_config, random_model, random_tokens
from tests.oracles import lens as oracle
from tests.oracles.live_bytes import LiveBytes

ALL = {**CONFIGS, **{f"random-{seed}": random_config(seed) for seed in range(12)}}


@pytest.mark.parametrize("cfg", ALL.values(), ids=ALL)
@pytest.mark.parametrize("chunk", [4, 1000])
def test_every_figure_equals_the_slow_lens(cfg, chunk):
    model, tokens = random_model(cfg), random_tokens(cfg)
    targets = [2, 5]
    found = logit_lens(model, tokens, target=targets, top_k=3, chunk=chunk)
    expected = oracle.lens_logits(model, tokens)
    assert found.rows == ("embed", *(f"L{layer}" for layer in range(cfg.n_layers)))
    top = expected.topk(3)
    assert found.top_tokens.tolist() == top.indices.tolist()
    probabilities = expected.softmax(-1)
    np.testing.assert_allclose(found.top_probabilities, probabilities.gather(-1, top.indices), atol=1e-6)
    for row, example, pos in np.ndindex(found.entropy.shape):
        logits, target = expected[row, example, pos], targets[example]
        assert found.entropy[row, example, pos] == pytest.approx(oracle.entropy(logits), abs=1e-6)
        kl = oracle.kl(expected[-1, example, pos], logits)
        assert found.kl[row, example, pos] == pytest.approx(kl, abs=1e-6)
        assert found.target_logit[row, example, pos] == pytest.approx(float(logits[target]), abs=1e-6)
        assert found.target_rank[row, example, pos] == oracle.rank(logits, target)
        assert found.target_probability[row, example, pos] == pytest.approx(float(logits.softmax(-1)[target]), abs=1e-6)


@pytest.mark.parametrize("cfg", ALL.values(), ids=ALL)
def test_the_last_row_is_the_models_logits(cfg):
    model, tokens = random_model(cfg, dtype=torch.float32), random_tokens(cfg)
    logits = model(tokens).detach()
    for target in range(cfg.d_vocab):
        found = logit_lens(model, tokens, target=target, top_k=1)
        np.testing.assert_allclose(found.target_logit[-1], logits[..., target], rtol=1e-4, atol=1e-4)
    assert (found.kl[-1] < 1e-5).all()
    assert found.top_tokens[-1, ..., 0].tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj"])
def test_folding_changes_no_distribution(name):
    model, tokens = random_model(CONFIGS[name]), random_tokens(CONFIGS[name])
    folded = fold(model, centre_writes=model.cfg.norm == "layer")
    raw, folded = (logit_lens(m, tokens, top_k=CONFIGS[name].d_vocab) for m in (model, folded))
    assert raw.top_tokens.tolist() == folded.top_tokens.tolist()
    np.testing.assert_allclose(raw.top_probabilities, folded.top_probabilities, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "transformer-2017", "llama"])
def test_rows_between_attention_and_mlp(name):
    model, tokens = random_model(CONFIGS[name]), random_tokens(CONFIGS[name])
    found = logit_lens(model, tokens, at=("resid_mid", "resid_post"))
    assert found.rows == ("embed", "L0 mid", "L0", "L1 mid", "L1")
    expected = oracle.lens_logits(model, tokens, ("resid_mid", "resid_post"))
    assert found.top_tokens[..., 0].tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side):
    model = random_model(CONFIGS["gpt2"])
    short, long = random_tokens(model.cfg, 1, 4, seed=1), random_tokens(model.cfg, 1, 7, seed=2)
    pad = torch.zeros(1, 3, dtype=torch.long)
    padded = torch.cat([pad, short] if side == "left" else [short, pad], 1)
    real = torch.tensor([[False] * 3 + [True] * 4 if side == "left" else [True] * 4 + [False] * 3, [True] * 7])
    both = logit_lens(model, torch.cat([padded, long]), target=3, attention_mask=real)
    alone = logit_lens(model, short, target=3)
    columns = np.flatnonzero(real[0].numpy())
    np.testing.assert_allclose(both.target_logit[:, 0, columns], alone.target_logit[:, 0], atol=1e-6)
    np.testing.assert_allclose(both.kl[:, 0, columns], alone.kl[:, 0], atol=1e-6)
    assert both.real.tolist() == real.tolist()
    averaged = both.mean_over_positions(both.kl)
    kept = np.concatenate([both.kl[:, 0, columns[1:]], both.kl[:, 1, 1:]], 1)
    np.testing.assert_allclose(averaged, kept.mean(1))


def test_the_norm_is_the_streams_own():
    model, tokens = random_model(CONFIGS["gpt2"]), random_tokens(CONFIGS["gpt2"])
    _, cache = model.run_with_cache(tokens)
    found = logit_lens(model, tokens)
    np.testing.assert_allclose(found.residual_norm[0], cache["resid_pre", 0].detach().norm(dim=-1))
    np.testing.assert_allclose(found.residual_norm[2], cache["resid_post", 1].detach().norm(dim=-1))


def made(ranks: list[int], guesses: list[int]) -> LensResult:
    """A result of one position, made by hand."""
    grid = np.array(guesses)[:, None, None]
    zero = np.zeros_like(grid, dtype=float)
    return LensResult(
        rows=("embed", *(f"L{i}" for i in range(len(guesses) - 1))),
        tokens=(("a",),),
        real=np.ones((1, 1), bool),
        top_tokens=grid[..., None],
        top_probabilities=zero[..., None],
        top_texts={g: str(g) for g in guesses},
        entropy=zero,
        kl=zero,
        residual_norm=zero,
        stable_from=np.zeros((1, 1), int),
        target=("t",),
        target_tokens=np.array([7]),
        target_probability=zero,
        target_logit=zero,
        target_rank=np.array(ranks)[:, None, None],
        lens="logit",
        warnings=(),
        model="made",
        config={},
        versions={},
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([5, 2, 0, 0], "L1"), ([0, 3, 0, 0], "L1"), ([0, 0, 0, 0], "embed"), ([9, 9, 9, 0], "L2"), ([0, 0, 0, 1], None)],
)
def test_where_the_target_takes_over(ranks, expected):
    assert made(ranks, [1, 2, 7, 7]).takeover() == expected


@pytest.mark.parametrize("name", ["gpt2", "llama", "one-layer-one-head"])
def test_stable_from_is_the_first_row_that_never_changes_again(name):
    model, tokens = random_model(CONFIGS[name]), random_tokens(CONFIGS[name], 3)
    found = logit_lens(model, tokens)
    guesses = found.top_tokens[..., 0]
    for example, pos in np.ndindex(found.stable_from.shape):
        column = guesses[:, example, pos]
        slow = next(row for row in range(len(column)) if len(set(column[row:].tolist())) == 1)
        assert found.stable_from[example, pos] == slow


def test_a_token_that_tops_every_position_is_named():
    model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=11, n_ctx=12, unembed_bias=True))
    with torch.no_grad():
        model.unembed.bias[4] = 1e4
    warnings = logit_lens(model, random_tokens(model.cfg, 1, 6)).warnings
    assert len(warnings) == 1
    assert "embed ('4'), L0 ('4')" in warnings[0]


def test_a_depth_that_copies_its_input_is_named():
    model = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=11, n_ctx=12, tied=True))
    with torch.no_grad():
        model.pos_embed.W_pos.zero_()
        model.embed.W_E.copy_(10 * torch.eye(11, 16))
    found = logit_lens(model, torch.arange(8)[None])
    assert any("embed" in warning and "input token" in warning for warning in found.warnings)
    assert not logit_lens(random_model(CONFIGS["llama"]), random_tokens(CONFIGS["llama"], 2, 8)).warnings


def test_what_is_saved_is_read_again(tmp_path):
    model = random_model(CONFIGS["gpt2"])
    for target in (None, 3):
        found = logit_lens(model, random_tokens(model.cfg), target=target)
        assert LensResult.load(found.save(tmp_path / "lens.json")) == found
    frame = found.to_frame()
    assert list(frame["depth"]) == list(found.rows)
    assert frame["target_rank"].tolist() == found.target_rank[:, 0, -1].tolist()
    assert "depth" in found.summary_html()


def test_text_goes_in_and_the_texts_of_guesses_come_out():
    model = load_model("toy")
    found = logit_lens(model, "QWERTYuiopQWERTYui", target="o")
    assert found.tokens[0][0] == "<bos>"
    assert found.guess(-1)[0] == "o"
    assert found.takeover() == "L1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": ("attn_out",)}, "not 'attn_out'"),
        ({"top_k": 0}, "top_k is 0; expected 1 to d_vocab = 11"),
        ({"top_k": 12}, "top_k is 12"),
        ({"target": 11}, "target 11 is outside this vocabulary, 0 to 10"),
        ({"target": -1}, "target -1 is outside"),
        ({"target": [1, 2, 3]}, "3 targets for 2 prompts"),
        ({"chunk": 0}, "chunk is 0"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match=message):
        logit_lens(model, random_tokens(model.cfg), **options)


def test_a_parallel_block_has_no_middle():
    model = random_model(CONFIGS["gptj"])
    with pytest.raises(InputError, match="no resid_mid"):
        logit_lens(model, random_tokens(model.cfg), at=("resid_mid",))


def test_a_lens_that_changes_nothing_is_the_logit_lens():
    model, tokens = random_model(CONFIGS["llama"]), random_tokens(CONFIGS["llama"])
    plain, tuned = logit_lens(model, tokens), logit_lens(model, tokens, tuned=TunedLens.identity(model))
    assert tuned.lens == "tuned"
    np.testing.assert_allclose(tuned.kl, plain.kl, atol=1e-6)


@pytest.mark.smollm2
def test_memory_is_as_stated():
    """The streams twice, then once, and six buffers of token x chunk; never a [token, d_vocab] matrix."""
    model = load_model("smollm2")
    n, chunk, top_k = 96, 2048, 5
    tokens = torch.arange(100, 100 + n)[None]
    rows, d_model = model.cfg.n_layers + 1, model.cfg.d_model
    with LiveBytes() as counter:
        found = logit_lens(model, tokens, target=5, top_k=top_k, chunk=chunk)
    assert found.kl.shape == (rows, 1, n)
    streams = 4 * rows * n * d_model
    buffers = 6 * 4 * n * chunk
    small = 4 * rows * n * 2 * (6 + 3 * top_k) + 4 * model.cfg.d_vocab
    one_block = 4 * n * (6 * d_model + 3 * model.cfg.d_mlp)
    assert counter.peak <= max(2 * streams + one_block, streams + buffers) + small
    assert counter.peak < streams + 4 * rows * n * model.cfg.d_vocab / 8


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_default_position_is_the_last_real_token(side):
    model = random_model(CONFIGS["gpt2"])
    short, long = random_tokens(model.cfg, 1, 4, seed=1), random_tokens(model.cfg, 1, 7, seed=2)
    pad = torch.zeros(1, 3, dtype=torch.long)
    tokens = torch.cat([torch.cat([pad, short] if side == "left" else [short, pad], 1), long])
    real = torch.tensor([[side == "right"] * 3 + [True] + [side == "left"] * 3, [True] * 7])
    both, alone = logit_lens(model, tokens, target=3, attention_mask=real), logit_lens(model, short, target=3)
    last = 6 if side == "left" else 3
    assert both.place() == (0, last)
    assert both.place(-1, -2) == (1, 5)
    assert both.guess(-1)[0] == alone.guess(-1)[0]
    assert both.takeover() == alone.takeover()
    np.testing.assert_allclose(both.to_frame()["kl"], alone.to_frame()["kl"], atol=1e-6)
    assert both.to_frame().to_html(index=False, float_format="{:.3g}".format) in both.summary_html()
    padding = 0 if side == "left" else -1
    for read in (
        lambda: both.guess(-1, 0, padding),
        lambda: both.takeover(0, padding),
        lambda: both.to_frame(0, padding),
    ):
        with pytest.raises(InputError, match=r"padding in prompt 0: its tokens are in columns \d to \d; leave pos out"):
            read()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ((0, 2), "batch is 2; this result has 0 to 1, and -2 to -1 from the end"),
        ((0, -3), "batch is -3"),
        ((0, 0, 6), "pos is 6; this result has 0 to 5"),
        ((0, 0, -7), "pos is -7"),
        ((3,), "row is 3; this result has 0 to 2"),
        ((-4,), "row is -4"),
        ((0.0,), "row is 0.0; expected a whole number"),
        ((0, True), "batch is True"),
        ((0, 0, 1.5), "pos is 1.5"),
    ],
)
def test_places_that_are_not_there_are_refused(where, message):
    found = logit_lens(random_model(CONFIGS["gpt2"]), random_tokens(CONFIGS["gpt2"]))
    with pytest.raises(InputError, match=message):
        found.guess(*where)


def test_the_first_position_does_not_hide_that_one_token_tops_all_others():
    model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=11, n_ctx=12, unembed_bias=True))
    tokens, target = random_tokens(model.cfg, 1, 6), 7
    with torch.no_grad():
        model.unembed.bias[4] = 1e4
        model.pos_embed.W_pos[0] = 1e4 * model.W_U[:, target]  # position 0 alone says something else
        model.unembed.weight[target] *= 1e5
        model.pos_embed.W_pos[1:] = -1e4 * model.W_U[:, target]
    found = logit_lens(model, tokens)
    assert found.guess(0, 0, 0)[0] == "7"
    assert "embed ('4')" in found.warnings[0]
    assert "every position but the first" in found.warnings[0]


def test_targets_in_every_form_are_followed():
    model = load_model("toy")
    tokens = model.to_tokens(["ABAB", "CDCD"])
    expected = logit_lens(model, tokens, target=[0, 3])
    for target in (["A", "D"], ("A", 3), torch.tensor([0, 3]), np.array([0, 3]), [np.int64(0), torch.tensor(3)]):
        assert logit_lens(model, tokens, target=target) == expected
    assert logit_lens(model, tokens, at="resid_post").rows == expected.rows


@pytest.mark.parametrize(
    "target", [2.0, True, float("nan"), [[1, 2]], [1.0, 2.0], torch.tensor([1.0, 2.0]), {"a": 1}, [True, False]]
)
def test_targets_that_are_no_tokens_are_refused(target):
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match="expected a token id, a text that is one token, or one of these per prompt"):
        logit_lens(model, random_tokens(model.cfg), target=target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": ()}, r"at is \(\); expected 'resid_post'"),
        ({"at": 3}, "at is 3; expected 'resid_post'"),
        ({"top_k": 2.0}, "top_k is 2.0; expected a whole number"),
        ({"top_k": True}, "top_k is True; expected a whole number"),
        ({"chunk": 1.5}, "chunk is 1.5; expected a whole number"),
        ({"chunk": float("nan")}, "chunk is nan; expected a whole number"),
    ],
)
def test_arguments_of_another_kind_are_refused(options, message):
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match=message):
        logit_lens(model, random_tokens(model.cfg), **options)
