"""The shipped toys hold their thresholds; so do freshly trained ones, and a model of one layer does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.loading.native import load_native, read_record, save_native
from models.text import SymbolTokenizer
from models.training import TOYS, train_toy
from models.training.toys import evaluate_shipped, phase_change_step
from tests.oracles import toys as oracle

SHIPPED = Path(__file__).parents[3] / "models" / "checkpoints"


@pytest.fixture(scope="module", params=TOYS)
def shipped(request):
    path = SHIPPED / f"{request.param}.safetensors"
    return request.param, path, load_native(path)


def test_a_shipped_toy_is_the_one_described(shipped):
    name, path, model = shipped
    record = read_record(path)
    assert model.cfg == TOYS[name].config
    assert model.to_tokens("AB").tolist() == [[64, 0, 1]]
    assert record["model"] == name
    assert record["command"].startswith(f"python analyses/train_toy.py --model {name} --seed {record['seed']}")
    assert path.stat().st_size < 600_000


def test_a_shipped_toy_holds_every_threshold(shipped):
    name, path, model = shipped
    got = evaluate_shipped(model)
    assert TOYS[name].thresholds.unmet(got) == []
    assert got.repeat_loss == pytest.approx(read_record(path)["metrics"]["repeat_loss"], abs=1e-3)


def test_a_shipped_toy_went_through_a_phase_change(shipped):
    _, path, _ = shipped
    record = read_record(path)
    assert 100 < record["phase_change_step"] < record["steps"][0]


# -- the circuit, by code that knows nothing of how the toys are trained or evaluated --------------------------------


def assert_copies_everywhere(model):
    """At every column, period and repeat that fits: the issue's bound."""
    assert oracle.places_not_copied(model, least=0.95) == {}


def assert_circuit_holds_at_every_column(model):
    scores = oracle.previous_token_by_thirds(oracle.patterns(model, oracle.distinct_rows(64, seed=1))[0])
    assert scores.min(1).max() >= 0.7  # one head, in each third


def induction_heads(model, tokens):
    scores = oracle.induction_scores(oracle.patterns(model, tokens)[1], period=20)
    return tuple(np.flatnonzero(scores > 0.3).tolist())


def assert_induction_heads_cost_more_than_any_fair_set(model, least_p):
    tokens = oracle.repeated_rows(64, period=20, seed=2)
    heads = induction_heads(model, tokens)
    fair = oracle.fair_sets(heads, model.cfg.n_heads)
    assert len(heads) >= 1
    assert 1 / (1 + len(fair)) <= least_p  # by the number of sets; a single head leaves 9
    cost = oracle.repeat_losses(model, tokens, 1, heads) - oracle.repeat_losses(model, tokens)
    assert oracle.lower_end(cost) > 1
    for chosen in fair:
        theirs = oracle.repeat_losses(model, tokens, 1, chosen) - oracle.repeat_losses(model, tokens)
        assert oracle.lower_end(cost - theirs) > 0, chosen


def assert_heads_rest_on_bos(model):
    """Gu's sense: alpha_1 > .3 on at least half of the sequences of 64 tokens that do not repeat."""
    alpha = oracle.patterns(model, oracle.distinct_rows(64, seed=3))[1][..., 0].mean(-1)
    shares = (alpha > 0.3).double().mean(0)
    assert (shares >= 0.5).any()


def test_b1_a_shipped_toy_copies_wherever_a_block_first_lies(shipped):
    assert_copies_everywhere(shipped[2])


def test_b1_a_shipped_toys_previous_token_head_holds_in_each_third_of_the_context(shipped):
    assert_circuit_holds_at_every_column(shipped[2])


def test_b1_a_shipped_toys_induction_heads_cost_more_than_any_fair_set(shipped):
    assert_induction_heads_cost_more_than_any_fair_set(shipped[2], least_p=0.05)


def test_heads_of_a_shipped_toy_rest_on_bos(shipped):
    assert_heads_rest_on_bos(shipped[2])


def test_b1_the_oracle_sees_a_circuit_that_ends_early():
    """A toy that cannot look one back beyond column 30 fails late and only late, whatever it does before."""
    model = load_native(SHIPPED / "toy.safetensors")
    head = int(
        oracle.previous_token_by_thirds(oracle.patterns(model, oracle.distinct_rows(8, seed=1))[0]).mean(1).argmax()
    )

    def rest_late(pattern, hook):
        pattern[:, head, 31:] = 0
        pattern[:, head, 31:, 0] = 1

    with model.hooks([("blocks.0.attn.hook_pattern", rest_late)]):
        right = oracle.copied_right(model, [(3, 10), (40, 10)], 32, seed=0)
        scores = oracle.previous_token_by_thirds(oracle.patterns(model, oracle.distinct_rows(8, seed=1))[0])
    assert right[3, 10, 1] > 0.95
    assert right[40, 10, 1] < 0.5
    assert scores[head, 0] > 0.7 > scores[head, 2]


def test_toys_trained_by_the_recipe_before_still_load(tmp_path):
    """The configuration of the toys up to December 2026, and their file format."""
    cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=65, n_ctx=64, act="gelu_tanh", init="fan_in")
    model = HookedDecoder(cfg, seed=1, tokenizer=SymbolTokenizer())
    save_native(model, tmp_path / "old.safetensors", {"seed": 1})
    loaded = load_native(tmp_path / "old.safetensors")
    assert loaded.cfg == cfg
    tokens = loaded.to_tokens("ABCAB")
    torch.testing.assert_close(loaded(tokens), model(tokens))


# -- slow: trained anew ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", TOYS)
def test_b1_retraining_holds_everything_again(name, seed):
    """Nine trainings of 1 to 2 minutes each on one thread, so about a quarter of an hour together."""
    model, record = train_toy(TOYS[name], seed=seed)
    assert model.cfg == TOYS[name].config
    assert TOYS[name].thresholds.unmet(evaluate_shipped(model)) == []
    assert_copies_everywhere(model)
    assert_circuit_holds_at_every_column(model)
    assert_induction_heads_cost_more_than_any_fair_set(model, least_p=0.1)
    assert_heads_rest_on_bos(model)
    plateau = [row for row in record.history if 50 <= row["step"] <= phase_change_step(record.history) - 100]
    assert min(row["repeat_loss"] for row in plateau) > 3  # a plateau, and then a drop
    assert max(row["induction"] for row in plateau) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_one_layer_does_not_form_induction(name):
    """Three trainings of a minute each."""
    recipe = TOYS[name].recipe
    one = [
        replace(stage, penalty=stage.penalty and replace(stage.penalty, by_layer=stage.penalty.by_layer[:1]))
        for stage in recipe.stages
    ]
    shallow = replace(
        TOYS[name], config=TOYS[name].config.replace(n_layers=1), recipe=replace(recipe, stages=tuple(one))
    )
    _, record = train_toy(shallow, longest_phase_1=800)
    assert phase_change_step(record.history) is None
    assert record.history[-1]["repeat_loss"] > 2.5
    assert max(row["induction"] for row in record.history) < 0.3
