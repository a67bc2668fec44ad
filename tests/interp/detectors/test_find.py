"""find_heads on a model whose heads are known, on models that have none, and on input that cannot work."""

import numpy as np
import pytest
import torch

from interp import Head, HeadReport, find_heads
from interp.detectors.kinds import KINDS
from interp.prompts import mixed_repeats
from models import DecoderConfig, EncoderDecoderConfig, HookedDecoder
from models.encoder_decoder import HookedEncoderDecoder
from models.errors import InputError, NonFiniteError
from models.text import SymbolTokenizer
from tests.interp.detectors.built import CONFIG, built_model
from tests.oracles import heads as oracle

BUILT_HEADS = {
    "previous_token": Head(0, 0),
    "sink": Head(0, 1),
    "duplicate_token": Head(0, 2),
    "induction": Head(1, 0),
}


@pytest.fixture(scope="module")
def report() -> HeadReport:
    return find_heads(built_model(), name="built")


# -- known answers ---------------------------------------------------------------------------------------------------


def test_exactly_the_built_heads_are_found(report: HeadReport) -> None:
    for kind, head in BUILT_HEADS.items():
        assert [evidence.name for evidence in report.found(kind)] == [head]
    assert len(report.evidence) == len(KINDS) * 2 * 8
    assert report.scores("induction").shape == (2, 8)


@pytest.mark.parametrize(
    ("kind", "score", "null"),
    [
        ("previous_token", 1.0, 0.0),
        ("sink", 1.0, 0.0),
        ("induction", 1.0, None),  # uniform where nothing repeats
        ("duplicate_token", 0.5, 0.0),  # the other half goes to the query itself
    ],
)
def test_scores_nulls_and_p_values_are_the_known_ones(
    report: HeadReport, kind: str, score: float, null: float | None
) -> None:
    best = report.found(kind)[0]
    if null is None:
        null = uniform_on_matches()
    assert best.score == pytest.approx(score, abs=1e-4)
    assert best.null == pytest.approx(null, abs=1e-4)
    if kind == "sink":  # a share: 16 of 16 sequences, by Clopper and Pearson
        assert best.interval == pytest.approx((0.025 ** (1 / 16), 1))
    else:
        assert best.interval == pytest.approx((score, score), abs=1e-4)
    assert best.bar == pytest.approx(0.5 if kind == "sink" else max(0.3, 2 * null), abs=1e-2)
    assert best.p_value == pytest.approx(16 / 2**16)  # wins in all 16 sequences, times 16 heads
    assert set(best.confounds) == set(KINDS) - {kind}
    assert best.confounds["induction" if kind != "induction" else "sink"] < 0.1


def uniform_on_matches() -> float:
    """Return what uniform attention puts on the cells of induction, mean over the sequences of the report."""
    tokens = mixed_repeats(built_model(), 16).repeated
    n = tokens.shape[1]
    uniform = (torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None])[None, None]
    return float(oracle.induction(uniform.expand(len(tokens), -1, -1, -1), tokens).mean())


def test_only_what_works_in_a_circuit_is_confirmed(report: HeadReport) -> None:
    """The sink writes nothing, and nothing reads the duplicate-token head."""
    confirmed = {kind: [one.confirmed for one in report.found(kind)] for kind in KINDS}
    assert confirmed == {
        "previous_token": ["alone"],
        "induction": ["alone"],
        "sink": ["no"],
        "duplicate_token": ["no"],
        "current_token": [],
    }
    for causal in report.causal:
        assert len(causal.null_effects) == 7  # the other heads of the layer
        assert causal.least_p == pytest.approx(1 / 8)
        assert causal.comparison == "all 7 other sets of 1 head in the same layers"


def test_without_the_induction_head_the_repeat_loss_rises_to_chance(report: HeadReport) -> None:
    evidence = next(causal for causal in report.causal if causal.kind == "induction")
    assert evidence.heads == (Head(1, 0),)
    assert evidence.details["intact"] == pytest.approx(0, abs=1e-3)
    assert evidence.effect == pytest.approx(np.log(65), abs=0.1)
    assert evidence.unit == "nats"
    assert max(map(abs, evidence.null_effects)) < 1e-6
    assert evidence.p_value == pytest.approx(1 / (1 + len(evidence.null_effects)))
    assert report.found("induction")[0].effect == pytest.approx(evidence.effect)
    assert evidence.interval[0] <= evidence.effect <= evidence.interval[1]
    assert 0.9 < evidence.share < 1  # where nothing repeats, it writes what is wrong: a little worse than chance
    repeat = report.loss_repeat_column
    assert report.token_loss[repeat:].max() < 1e-3
    assert report.token_loss[:repeat].min() > 3
    assert report.token_loss_ablated is not None
    assert report.token_loss_ablated[repeat:].mean() == pytest.approx(np.log(65), abs=0.1)


def test_without_the_previous_token_head_the_induction_score_falls(report: HeadReport) -> None:
    evidence = next(causal for causal in report.causal if causal.kind == "previous_token")
    assert evidence.effect == pytest.approx(1, abs=0.05)  # what is left is uniform attention's
    assert max(map(abs, evidence.null_effects)) < 1e-6
    assert "L1H0" in evidence.description


def test_heads_that_do_nothing_downstream_have_no_effect(report: HeadReport) -> None:
    for kind in ("sink", "duplicate_token"):
        evidence = next(causal for causal in report.causal if causal.kind == kind)
        assert evidence.effect == pytest.approx(0, abs=1e-6)
        assert evidence.p_value == 1
    (resting,) = report.found("sink")
    assert resting.details == pytest.approx({"alpha_1": 1, "dormant": 1, "active": 1, "value_norm_ratio": 0})


def test_what_figures_need_is_there(report: HeadReport) -> None:
    assert set(report.patterns) == {str(head) for head in BUILT_HEADS.values()}
    n, length, repeat = len(report.tokens_shown), report.settings["length"], report.repeat_column
    assert n == report.settings["n_tokens"] == 64
    assert report.tokens_shown[0] == report.settings["sink_token"] == "<bos>"
    assert (length, repeat) == (25, 26)
    assert report.tokens_shown[1:26] == report.tokens_shown[26:51]
    assert len(set(report.settings["lengths"])) > 8
    assert report.patterns["L0H0"].shape == (n, n)
    np.testing.assert_allclose(report.patterns["L0H0"].diagonal(-1), 1)
    third = sorted(report.settings["lengths"], reverse=True)[5]  # what 6 of 16 reach
    assert report.token_loss.shape == (2 * third,)


def test_the_same_seed_gives_the_same_report_and_the_global_state_is_left_alone(report: HeadReport) -> None:
    before = torch.get_rng_state()
    assert find_heads(built_model(), name="built") == report
    assert find_heads(built_model(), name="built", seed=1) != report
    assert torch.equal(before, torch.get_rng_state())


def test_some_kinds_without_causal_evidence_give_the_same_scores(report: HeadReport) -> None:
    part = find_heads(built_model(), ["induction"], causal=False)
    assert part.kinds == ("induction",)
    np.testing.assert_array_equal(part.scores("induction"), report.scores("induction"))
    assert part.causal == ()
    assert part.token_loss_ablated is None
    assert part.found("induction")[0].effect is None
    with pytest.raises(InputError, match="'sink' is not in this report; it has induction"):
        part.scores("sink")


def test_progress_is_told_stage_by_stage_up_to_one() -> None:
    told: list[tuple[str, float]] = []
    find_heads(built_model(), progress=lambda stage, share: told.append((stage, share)))
    stages = list(dict.fromkeys(stage for stage, _ in told))
    assert stages[0] == "scores"
    assert len(stages) == 5
    for stage in stages:
        shares = [share for name, share in told if name == stage]
        assert shares == sorted(shares)
        assert shares[-1] == 1


def test_a_previous_token_head_that_nothing_can_read_is_not_measured() -> None:
    one_layer = HookedDecoder(CONFIG.replace(n_layers=1), tokenizer=SymbolTokenizer())
    built = built_model().state_dict()
    one_layer.load_state_dict({name: built[name] for name in one_layer.state_dict()})
    report = find_heads(one_layer, ["previous_token"])
    assert [evidence.name for evidence in report.found("previous_token")] == [Head(0, 0)]
    assert report.causal == ()
    assert report.found("previous_token")[0].confirmed == "not measured"
    assert "no induction head in a later layer that could read them" in report.warnings[0]


# -- negative controls -----------------------------------------------------------------------------------------------

_BASE = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_vocab": 65, "n_ctx": 64}
UNTRAINED = {
    "gpt2": {},
    "llama": {"positions": "rotary", "norm": "rms", "n_kv_heads": 2, "act": "silu", "gated": True, "qkv_bias": False},
    "gptj": {"positions": "rotary", "rotary_layout": "interleaved", "parallel": True},
    "2017": {"norm_position": "post", "positions": "sinusoidal", "act": "relu", "scale_embedding": True},
    "attention-only": {"attn_only": True},
    "one layer": {"n_layers": 1},
    "one head": {"n_heads": 1},
    "no positions": {"positions": "none"},
    "no norm": {"norm": "none"},
    "deep": {"n_layers": 16},
    "window": {"sliding_window": 20},
}


@pytest.mark.parametrize("init", ["gpt2", "fan_in", "torch"])
@pytest.mark.parametrize("options", UNTRAINED.values(), ids=UNTRAINED.keys())
def test_an_untrained_model_has_no_heads(options: dict, init: str) -> None:
    for seed in range(2):
        tokenizer = SymbolTokenizer() if seed else None
        model = HookedDecoder(DecoderConfig(**{**_BASE, **options, "init": init}), seed=seed, tokenizer=tokenizer)
        report = find_heads(model, seed=seed)
        assert [evidence for evidence in report.evidence if evidence.is_confirmed] == []
        assert [evidence for evidence in report.evidence if evidence.found and evidence.kind != "sink"] == []


def test_the_first_token_of_a_deep_untrained_model_without_norms_is_no_confirmed_sink() -> None:
    """Its length draws attention, more than Gu's threshold; but nothing is worse off without."""
    cfg = DecoderConfig(n_layers=24, d_model=64, n_heads=4, d_vocab=65, n_ctx=64, norm="none", init="torch")
    report = find_heads(HookedDecoder(cfg, seed=2), ["sink"])
    assert max(evidence.details["alpha_1"] for evidence in report.of_kind("sink")) > 0.3
    assert report.confirmed("sink") == ()


class Shuffled(HookedDecoder):
    """Runs on its tokens in another order than it is given them in."""

    def forward(self, input: torch.Tensor, *args: object, **options: object) -> object:
        order = torch.randperm(input.shape[1] - 1, generator=torch.Generator().manual_seed(0)) + 1
        return super().forward(input[:, [0, *order.tolist()]], *args, **options)


def test_shuffled_tokens_have_no_induction_or_duplicate_token_heads() -> None:
    shuffled = Shuffled(CONFIG, tokenizer=SymbolTokenizer())
    shuffled.load_state_dict(built_model().state_dict())
    report = find_heads(shuffled)
    assert report.found("induction") == report.found("duplicate_token") == ()
    assert [evidence.name for evidence in report.found("previous_token")] == [Head(0, 0)]


def test_an_attention_stripe_that_ignores_tokens_is_no_induction_head() -> None:
    """A head that looks 24 back, whatever stands there, hits every induction cell at N = 25."""

    def look_back(pattern: torch.Tensor, hook: object) -> torch.Tensor:
        n = pattern.shape[-1]
        pattern[:, 0] = torch.eye(n).roll(24, 0).tril() + torch.eye(n).where(torch.arange(n) < 24, 0).tril()
        return pattern

    model = HookedDecoder(DecoderConfig(**_BASE), tokenizer=SymbolTokenizer())
    with model.hooks([("blocks.0.attn.hook_pattern", look_back)]):
        report, of_one_length = find_heads(model, ["induction"]), find_heads(model, ["induction"], length=25)
    assert report.scores("induction")[0, 0] < 0.3
    assert of_one_length.scores("induction")[0, 0] == pytest.approx(1, abs=1e-3)
    assert report.found("induction") == of_one_length.found("induction") == ()


# -- input that cannot work ------------------------------------------------------------------------------------------


def test_a_short_sequence_gives_no_sink_verdict_and_says_why() -> None:
    report = find_heads(built_model(), ["sink"], length=6)
    assert report.scores("sink")[0, 1] == pytest.approx(1)
    assert report.found("sink") == ()
    assert "sink scores on 13 tokens" in report.warnings[0]
    assert find_heads(built_model(), ["induction"], length=6).warnings == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["inductoin"]}, "no kind of head 'inductoin'; nearest: induction"),
        ({"kinds": []}, "expected a list of previous_token"),
        ({"kinds": "sink"}, "expected a list of previous_token"),
        ({"n_sequences": 7}, "with 7 sequences no head of 16 can be significant at 0.05: use n_sequences 9"),
        ({"alpha": 1.5}, "alpha is 1.5; expected a probability"),
        ({"length": 33}, "vocabulary has 64 of 65: use length 32"),
        ({"length": 32}, "n_ctx is 64: use length 31"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_heads(built_model(), **options)


def test_an_encoder_decoder_is_refused() -> None:
    cfg = EncoderDecoderConfig(n_encoder_layers=1, n_decoder_layers=1, d_model=8, n_heads=2, d_vocab=20, n_ctx=20)
    with pytest.raises(InputError, match="HookedEncoderDecoder does not have; give a decoder"):
        find_heads(HookedEncoderDecoder(cfg))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_inf_are_named_by_the_first_hook_they_reach(bad: float) -> None:
    model = HookedDecoder(DecoderConfig(**_BASE))
    with torch.no_grad():
        model.blocks[1].attn.W_V[2, 0, 0] = bad
    with pytest.raises(NonFiniteError, match=r"first at blocks\.1\.attn\.hook_v.*blocks\.1\.attn\.v\.weight"):
        find_heads(model)
