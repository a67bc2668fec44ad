"""The recipes of the toys: what they show, in which order, and that no data is shared."""

from math import cos, pi, sin, sqrt

import pytest
import torch

from models.training.recipes import HELD_OUT, LEARNED, ROTARY, waves
from models.training.toys import TOYS, train_toy

RECIPES = {"learned": LEARNED, "rotary": ROTARY}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_b1_first_occurrences_reach_the_end_of_the_context_after_the_first_stage(recipe):
    """The recipe before began every block within five columns of BOS, so that none was first met past column 34."""
    first, *later = recipe.phases(seed=0)

    def columns(phase, step):
        found = []
        for k in range(20):
            for row in phase.batches(step + k).tokens.tolist():
                repeated = next((i for i in range(1, len(row)) if row[i] in row[1:i]), None)
                if repeated is not None:
                    found.append(row.index(row[repeated]))
        return found

    assert max(columns(first, 0)) < 40
    for phase in later:
        found = columns(phase, phase.steps - 30)
        assert min(found) == 1
        for begin in range(1, 60, 12):  # no gap of twelve columns
            assert any(begin <= column < begin + 12 for column in found), begin


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_offsets_are_held_out_of_every_stage(recipe):
    assert all(stage.task.held_out == HELD_OUT for stage in recipe.stages)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_no_two_phases_share_data(recipe):
    seeds = [phase.batches.seed for seed in range(5) for phase in recipe.phases(seed)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_only_the_last_stage_lets_the_rate_fall(recipe):
    assert [stage.schedule for stage in recipe.stages] == ["constant"] * (len(recipe.stages) - 1) + ["linear"]
    assert recipe.stages[-1].penalty.power < 1


def test_waves_written_out():
    table = waves(40, 64)
    for column in (0, 7, 39):
        for pair in (0, 13, 31):
            period = 3 * (32 / 3) ** (pair / 31)
            angle = 2 * pi * column / period
            expected = (sqrt(0.5) * sin(angle), sqrt(0.5) * cos(angle))
            assert table[column, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(expected, abs=1e-4)
    assert table.square().mean().item() == pytest.approx(0.25, abs=1e-4)


def test_a_toy_keeps_the_first_columns_of_what_was_trained(monkeypatch):
    from models.training import toys

    kept = {}
    train = toys.train

    def seen(model, phases, *args, **options):
        kept["before"] = model.W_pos.detach().clone()
        model, record = train(model, [one_step(phase) for phase in phases], *args, **options)
        kept["after"] = {name: weight.clone() for name, weight in model.state_dict().items()}
        return model, record

    def one_step(phase):
        from dataclasses import replace

        return replace(phase, steps=1, until=None)

    monkeypatch.setattr(toys, "train", seen)
    model, record = train_toy(TOYS["toy"], seed=3)
    torch.testing.assert_close(kept["before"], waves(80, 64))
    assert model.cfg == TOYS["toy"].config
    assert record.config == model.cfg.to_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, kept["after"][name][: len(weight)]), name
    assert kept["after"]["pos_embed.W_pos"].shape == (80, 64)
    assert model.to_str_tokens("AB") == ["<bos>", "A", "B"]
