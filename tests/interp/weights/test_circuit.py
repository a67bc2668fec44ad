"""The circuit of the shipped toys is found and confirmed; where there is none, none is named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from interp.detectors import find_heads
from interp.sites import Head
from interp.weights import induction_circuit
from interp.weights.circuit_result import InductionCircuit
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.loading import load_model
from models.text import SymbolTokenizer

TOYS = ("toy", "toy-attn", "toy-rope")
KINDS = ("previous_token", "induction")


@pytest.fixture(scope="module", params=TOYS)
def toy(request) -> tuple[HookedDecoder, InductionCircuit]:
    model = load_model(request.param)
    return model, induction_circuit(model, name=request.param)


def test_previous_token_heads_are_confirmed_as_what_induction_heads_read(toy):
    _, circuit = toy
    previous = [e.name for e in circuit.report.found("previous_token")]
    induction = {e.name for e in circuit.report.found("induction")}
    assert {link.earlier for link in circuit.confirmed} <= set(previous)
    assert {link.later for link in circuit.confirmed if link.earlier == previous[0]} == induction
    for link in circuit.confirmed:
        assert link.route == "K"
        assert link.interval[0] > link.null
    best = circuit.links[0]
    assert best.share > 0.5
    assert best.whole > 0.4
    assert abs(best.null) < 0.05
    assert best.composition > 1.3 * circuit.dimension_null
    assert best.z > 5


def test_links_are_in_order_and_judged_by_the_rule(toy):
    _, circuit = toy
    assert list(circuit.links) == sorted(circuit.links, key=lambda link: (not link.verdict, -link.effect))
    for link in circuit.links:
        assert link.verdict == (link.p_above_null < 0.05 and link.share >= 0.1)
        assert link.earlier.layer < link.later.layer
        assert all(head.layer == link.earlier.layer for head in link.null_heads)
        taken = {e.name for kind in KINDS for e in circuit.report.found(kind)}
        assert not taken & set(link.null_heads)


def test_induction_heads_copy_and_the_rest_is_told_beside(toy):
    _, circuit = toy
    kinds = {one.head: one.kind for one in circuit.weights}
    assert set(kinds) == {e.name for kind in KINDS for e in circuit.report.found(kind)}
    assert all(one.copying > 0.8 for one in circuit.weights if one.kind == "induction")


def test_the_best_previous_token_head_looks_back_by_position_alone(toy):
    _, circuit = toy
    best = circuit.report.found("previous_token")[0]
    assert circuit.positional_score(best.name) > 0.3
    pattern = circuit.positional[str(best.name)]
    np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-3)
    assert circuit.positional_score(Head(1, 0)) is None


def test_it_is_saved_and_loaded(toy, tmp_path):
    _, circuit = toy
    path = circuit.save(tmp_path / "circuit.json")
    again = InductionCircuit.load(path)
    assert again == circuit
    assert again.links == circuit.links
    assert np.isnan(again.composition[str(circuit.links[0].later)][1]).all()
    assert "NaN" not in path.read_text()
    assert len(circuit.to_frame()) == len(circuit.links)
    assert f"{len(circuit.confirmed)} of {len(circuit.links)}" in circuit.summary_html()


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_untrained_model_has_no_circuit(positions, seed):
    cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=65, n_ctx=64, positions=positions, init="fan_in")
    circuit = induction_circuit(HookedDecoder(cfg, seed=seed, tokenizer=SymbolTokenizer()))
    assert circuit.links == circuit.confirmed == circuit.weights == ()
    assert json.loads(json.dumps(circuit.to_dict(), allow_nan=False))["links"] == []


def test_heads_that_are_said_to_be_of_a_kind_are_not_believed():
    """An untrained model whose report names heads all the same: no link of theirs is confirmed."""
    cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=65, n_ctx=64, init="fan_in")
    model = HookedDecoder(cfg, tokenizer=SymbolTokenizer())
    report = find_heads(model, KINDS, causal=False)
    named = {("previous_token", 0, 1), ("previous_token", 0, 2), ("induction", 1, 0), ("induction", 1, 3)}
    evidence = tuple(replace(e, pattern="yes" if (e.kind, e.layer, e.head) in named else "no") for e in report.evidence)
    circuit = induction_circuit(model, report=replace(report, evidence=evidence))
    assert len(circuit.links) == 4
    assert circuit.confirmed == ()


def test_a_duplicate_token_head_is_tested_through_the_queries():
    model = load_model("toy")
    report = find_heads(model, KINDS, causal=False)
    evidence = tuple(
        replace(e, confounds=e.confounds | {"duplicate_token": 0.9}) if (e.layer, e.head) == (0, 0) else e
        for e in report.evidence
    )
    circuit = induction_circuit(model, report=replace(report, evidence=evidence))
    through_queries = [link for link in circuit.links if link.route == "Q"]
    assert {link.earlier for link in through_queries} == {Head(0, 0)}
    assert not any(link.verdict for link in through_queries)
    assert {link.route for link in circuit.confirmed} == {"K"}


def test_the_seed_decides_and_progress_is_told():
    model = load_model("toy-attn")
    stages: list[str] = []
    first = induction_circuit(model, seed=3, progress=lambda stage, share: stages.append(stage))
    assert induction_circuit(model, seed=3) == first
    assert induction_circuit(model, seed=4) != first
    assert "links (K)" in stages
    assert stages[-1] == "weights"


def test_a_report_of_other_kinds_is_refused():
    model = load_model("toy")
    with pytest.raises(InputError, match="kind 'induction' is not in this report"):
        induction_circuit(model, report=find_heads(model, ["sink"], causal=False))


@pytest.mark.smollm2
@pytest.mark.slow
def test_smollm2(smollm2):
    report = find_heads(smollm2, KINDS, causal=False)
    circuit = induction_circuit(smollm2, report=report)
    by_pair = {(str(link.earlier), str(link.later)): link for link in circuit.links if link.route == "K"}
    for later in ("L17H3", "L17H4", "L17H5", "L18H6", "L18H7"):
        link = by_pair["L16H0", later]
        assert link.verdict
        assert link.share > 0.5
        assert link.composition > 3 * circuit.dimension_null
        assert link.z > 20
        assert by_pair["L11H1", later].z > 5
