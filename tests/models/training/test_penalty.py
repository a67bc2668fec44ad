"""The price on what heads write: its value against the heads' results, its gradient, and what it does."""

import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError
from models.training import HeadPenalty, Optimiser, Phase, RepeatStream, RepeatTask, train
from models.training.penalty import head_writes

CONFIG = DecoderConfig(n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_vocab=65, n_ctx=16, init="fan_in")
TOKENS = torch.randint(64, (3, 9), generator=torch.Generator().manual_seed(0))


def test_writes_are_the_mean_norms_of_the_heads_results():
    model = HookedDecoder(CONFIG)
    with head_writes(model) as writes:
        model(TOKENS)
    _, cache = model.run_with_cache(TOKENS, names_filter=lambda name: name.endswith("hook_result"))
    assert len(writes) == 2
    for layer, write in enumerate(writes):
        expected = cache["result", layer].norm(dim=-1).mean((0, 1))
        torch.testing.assert_close(write, expected)


def test_the_penalty_written_out():
    writes = [torch.tensor([1.0, 4.0]), torch.tensor([9.0, 0.25])]
    penalty = HeadPenalty(by_layer=(0.1, 0.2), begin=0.5, ramp=10, power=0.5)
    whole = 0.1 * (1 + 2) + 0.2 * (3 + 0.5)
    assert penalty.at(10, writes).item() == pytest.approx(whole)
    assert penalty.at(500, writes).item() == pytest.approx(whole)
    assert penalty.at(0, writes).item() == pytest.approx(0.5 * whole)
    assert penalty.at(5, writes).item() == pytest.approx(0.75 * whole)
    assert HeadPenalty(by_layer=(0.1, 0.2)).at(0, writes).item() == pytest.approx(0.1 * 5 + 0.2 * 9.25)


def test_a_head_that_writes_nothing_has_a_finite_gradient():
    model = HookedDecoder(CONFIG)
    with torch.no_grad():
        model.blocks[0].attn.o.weight.zero_()
    with head_writes(model) as writes:
        model(TOKENS)
    HeadPenalty(by_layer=(1.0, 1.0), power=0.5).at(0, writes).backward()
    assert model.blocks[1].attn.o.weight.grad.abs().sum() > 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def trained(penalty):
    stream = RepeatStream(task=RepeatTask(period=(3, 5), max_jump_rate=0.1), seed=0, batch=8, n_ctx=16)
    phase = Phase(batches=stream, steps=40, penalty=penalty)
    model, record = train(HookedDecoder(CONFIG), [phase], Optimiser(lr=1e-2))
    with head_writes(model) as writes, torch.no_grad():
        model(TOKENS)
    return writes, record


def test_training_with_a_penalty_makes_heads_write_less_where_it_is_dear():
    free, _ = trained(None)
    dear, record = trained(HeadPenalty(by_layer=(0.0, 0.5)))
    assert dear[1].sum() < 0.2 * free[1].sum()
    assert dear[0].sum() > 0.5 * free[0].sum()
    assert max(record.losses) < 6  # the loss recorded is that of the tokens alone


def test_no_hooks_are_left():
    model = HookedDecoder(CONFIG)
    with head_writes(model):
        model(TOKENS)
    assert not model.blocks[0].attn.hook_z.in_use


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by_layer": ()}, r"by_layer \(\)"),
        ({"by_layer": (0.1, -0.1)}, "by_layer"),
        ({"by_layer": (0.1,), "begin": 2}, "begin 2"),
        ({"by_layer": (0.1,), "ramp": -1}, "ramp -1"),
        ({"by_layer": (0.1,), "power": 0.0}, "power 0.0"),
    ],
)
def test_impossible_penalties_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        HeadPenalty(**options)


def test_a_penalty_for_another_number_of_layers_is_refused():
    stream = RepeatStream(task=RepeatTask(period=(3, 5), max_jump_rate=0.1), seed=0, batch=8, n_ctx=16)
    phase = Phase(batches=stream, steps=1, penalty=HeadPenalty(by_layer=(0.1,)))
    with pytest.raises(ConfigError, match="a penalty for 1 layers, a model of 2"):
        train(HookedDecoder(CONFIG), [phase], Optimiser(lr=1e-2))
