"""A direction lands where it was asked for: by absolute position, under padding, and while text is generated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.interventions.steer import steer
from models.errors import HookNeverFired, InputError
from tests.configurations import CONFIGS, random_model, random_tokens

CFG = CONFIGS["llama"]
DIRECTION = torch.randn(CFG.d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture(scope="module")
def model():
    return random_model(CFG).requires_grad_(False)


@pytest.mark.parametrize("site", ["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"])
@pytest.mark.parametrize(
    ("positions", "columns"),
    [(None, range(6)), (2, [2]), ([0, 4], [0, 4]), (slice(3, None), [3, 4, 5]), (slice(None, 2), [0, 1])],
)
def test_a_direction_is_added_at_its_layers_and_positions_alone(model, site, positions, columns):
    tokens = random_tokens(CFG)
    name = f"blocks.1.hook_{site}"

    def by_hand(value: Tensor, hook: object) -> None:
        value[:, list(columns)] += 1.5 * DIRECTION

    wanted = model.run_with_hooks(tokens, fwd_hooks=[(name, by_hand)])
    with steer(model, DIRECTION, layers=1, positions=positions, site=site, scale=1.5):
        steered = model(tokens)
    torch.testing.assert_close(steered, wanted)
    assert not torch.allclose(steered, model(tokens))


@pytest.mark.parametrize(
    "positions", [np.array([1, 2]), torch.tensor([1, 2]), range(1, 3), (1, 2), slice(np.int64(1), 3), [np.int64(1), 2]]
)
def test_positions_may_be_any_whole_numbers(model, positions):
    tokens = random_tokens(CFG)
    with steer(model, DIRECTION, layers=np.int64(1), positions=[1, 2], scale=2):
        wanted = model(tokens)
    with steer(model, DIRECTION, layers=torch.tensor([1]), positions=positions, scale=torch.tensor(2.0)):
        torch.testing.assert_close(model(tokens), wanted, rtol=0, atol=0)


def test_several_layers_each_get_it(model):
    tokens = random_tokens(CFG)
    with steer(model, DIRECTION, layers=[0, 1], positions=3):
        both = model(tokens)
    with steer(model, DIRECTION, layers=0, positions=3), steer(model, DIRECTION, layers=1, positions=3):
        nested = model(tokens)
    torch.testing.assert_close(both, nested)


def test_positions_count_real_tokens_under_left_padding(model):
    tokens = random_tokens(CFG, batch=1, n=6)
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), tokens], dim=1)
    real = torch.tensor([[False] * 2 + [True] * 6])
    with steer(model, DIRECTION, layers=1, positions=[0, 4]):
        torch.testing.assert_close(model(padded, attention_mask=real)[:, 2:], model(tokens))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("positions", [3, 7, slice(5, None), slice(4, 8)])
def test_generation_with_a_cache_is_steered_as_without(model, positions, padded):
    tokens, mask = random_tokens(CFG, n=5), None
    if padded:
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[0, :2] = False
    with steer(model, 3 * DIRECTION, layers=1, positions=positions):
        cached, whole = (
            model.generate(tokens, 6, temperature=0, attention_mask=mask, use_cache=use) for use in (True, False)
        )
    assert torch.equal(cached, whole)


def test_hooks_are_gone_afterwards(model):
    tokens = random_tokens(CFG)
    before = model(tokens)
    with steer(model, DIRECTION, layers=1):
        model(tokens)
    torch.testing.assert_close(model(tokens), before, rtol=0, atol=0)
    with pytest.raises(HookNeverFired), steer(model, DIRECTION, layers=1):
        pass


@pytest.mark.parametrize(
    ("positions", "shown"), [(4, "4"), ([1, 4], "4"), ([4, 5, 6, 7], "4, 5, 6 and more"), (slice(4, None), "4, 5, 6")]
)
def test_a12_positions_that_no_run_reaches_are_an_error_at_the_end(model, positions, shown):
    tokens = random_tokens(CFG)[:, :4]
    with pytest.raises(HookNeverFired, match=f"positions that no run inside the block reached: {shown}"):  # noqa: SIM117
        with steer(model, DIRECTION, layers=1, positions=positions):
            model(tokens)
    assert not any(point.attached for point in model.hook_dict.values())


def test_a12_positions_reached_by_some_run_are_no_error(model):
    tokens = random_tokens(CFG)
    with steer(model, DIRECTION, layers=[0, 1], positions=[1, 4]):
        model(tokens[:, :2])
        model(tokens[:, :5])
    with steer(model, DIRECTION, layers=1, positions=slice(3, None)):
        model.generate(tokens[:, :2], 3, temperature=0)  # its last run reads position 3
    with pytest.raises(RuntimeError, match="another"), steer(model, DIRECTION, layers=1, positions=4):
        raise RuntimeError("another")


@pytest.mark.parametrize(
    ("direction", "options", "message"),
    [
        (DIRECTION[:3], {}, r"direction is \(3,\); expected a tensor \[d_model\] = \(8,\)"),
        ([0.0] * 8, {}, "direction is list"),
        (DIRECTION, {"layers": 2}, "layers is 2; this model has layers 0 to 1"),
        (DIRECTION, {"layers": []}, r"layers is \[\]"),
        (DIRECTION, {"positions": -1}, "counted from 0, never from the end"),
        (DIRECTION, {"positions": slice(-2, None)}, "never from the end"),
        (DIRECTION, {"positions": slice(0, 6, 2)}, "takes no step"),
        (DIRECTION, {"positions": []}, r"positions is \[\], which is empty"),
        (DIRECTION, {"positions": slice(3, 1)}, "which is empty"),
        (DIRECTION, {"positions": slice(1000, None)}, "which is empty"),
        (DIRECTION, {"positions": 1000}, f"this model's context has positions 0 to {CFG.n_ctx - 1}"),
        (DIRECTION, {"positions": [2, 1000]}, "this model's context"),
        (DIRECTION, {"positions": 1.5}, "positions is 1.5; expected integers"),
        (DIRECTION, {"positions": True}, "positions is True; expected integers"),
        (DIRECTION, {"positions": (i for i in range(2))}, "positions is .*generator"),
        (DIRECTION, {"positions": slice("a", None)}, "an end of positions is 'a'"),
        (DIRECTION, {"layers": True}, "layers is True; expected integers"),
        (DIRECTION, {"layers": 1.0}, "layers is 1.0; expected integers"),
        (DIRECTION * float("nan"), {}, r"direction is not finite \(NaN or inf\)"),
        (DIRECTION + 1j, {}, "direction is complex"),
        (DIRECTION, {"scale": float("inf")}, "scale is inf; expected one finite number"),
        (DIRECTION, {"scale": "2"}, "scale is '2'"),
        (DIRECTION, {"scale": torch.ones(8)}, "expected one finite number"),
        (DIRECTION, {"scale": 1j}, "expected one finite number"),
        (DIRECTION, {"site": "z"}, "site is 'z'; a direction of the stream"),
    ],
)
def test_what_cannot_be_steered_is_refused(model, direction, options, message):
    with pytest.raises(InputError, match=message):
        steer(model, direction, **{"layers": 1, **options})
