"""A tuned lens is used on the model that it was trained for, and on no other."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import save_file

from interp.readout.logit_lens import logit_lens
from interp.readout.tuned_lens import TunedLens, own_text, train_tuned_lens
from models.errors import CheckpointMismatch, InputError, LoadError
from models.loading import load_model
from tests.configurations import CONFIGS, random_model, random_tokens

CFG = CONFIGS["gpt2"]
TOKENS = random_tokens(CFG)


def model_of(seed: int = 0, **changes: object):
    return random_model(CFG.replace(**changes), seed=seed, dtype=torch.float32)


def test_another_model_of_the_same_size_is_refused(tmp_path):
    lens = TunedLens.load(TunedLens.identity(model_of()).save(tmp_path / "lens"))
    assert logit_lens(model_of(), TOKENS, tuned=lens).lens == "tuned"
    with pytest.raises(InputError, match="another model of the same size"):
        logit_lens(model_of(seed=1), TOKENS, tuned=lens)
    edited = model_of()
    with torch.no_grad():
        edited.blocks[1].attn.o.weight *= 1.5
    with pytest.raises(InputError, match="another model of the same size"):
        logit_lens(edited, TOKENS, tuned=lens)


@pytest.mark.parametrize("changes", [{"n_layers": 1}, {"n_layers": 3}, {"d_model": 16}])
def test_another_size_is_refused(changes):
    with pytest.raises(InputError, match="of 2 layers and d_model 8; this one has"):
        logit_lens(model_of(**changes), TOKENS, tuned=TunedLens.identity(model_of()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precision_does_not_matter(dtype):
    TunedLens.identity(model_of()).check(model_of().to(dtype))
    TunedLens.identity(model_of().to(dtype)).check(model_of())
    toy = load_model("toy")
    TunedLens.identity(toy).check(load_model("toy").to(dtype))


def test_it_translates_no_stream_in_the_middle_of_a_block():
    with pytest.raises(InputError, match="translators of resid_post alone"):
        logit_lens(model_of(), TOKENS, at=("resid_mid",), tuned=TunedLens.identity(model_of()))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weight": torch.zeros(2, 8, 9)}, CheckpointMismatch, "expected floating-point weight"),
        ({"bias": torch.zeros(3, 8)}, CheckpointMismatch, "expected floating-point weight"),
        ({"bias": torch.zeros(16)}, CheckpointMismatch, "expected floating-point weight"),
        ({"kl": torch.zeros(2, 2)}, CheckpointMismatch, "expected floating-point weight"),
        ({"sample": torch.zeros(())}, CheckpointMismatch, "expected floating-point weight"),
        ({"weight": torch.zeros(2, 8, 8, dtype=torch.long)}, CheckpointMismatch, "expected floating-point weight"),
        ({"weight": torch.full((2, 8, 8), torch.nan)}, LoadError, "weight holds NaN or inf"),
        ({"bias": torch.full((2, 8), torch.inf)}, LoadError, "bias holds NaN or inf"),
    ],
)
def test_files_that_do_not_hold_together_are_refused(changes, error, message, tmp_path):
    lens = TunedLens.identity(model_of())
    tensors = {name: getattr(lens, name) for name in ("weight", "bias", "kl", "sample")} | changes
    save_file(tensors, tmp_path / "lens")
    with pytest.raises(error, match=message):
        TunedLens.load(tmp_path / "lens")


# -- training ------------------------------------------------------------------------------------------------------


def test_an_interrupt_keeps_what_is_trained(tmp_path):
    def interrupted():
        yield from itertools.repeat(TOKENS, 7)
        raise KeyboardInterrupt

    lens = train_tuned_lens(model_of(), interrupted(), n_steps=20)
    assert not lens.complete
    assert lens.weight.abs().sum() > 0
    assert lens.kl.isfinite().all()
    assert not TunedLens.load(lens.save(tmp_path / "lens")).complete
    whole = train_tuned_lens(model_of(), itertools.repeat(TOKENS), n_steps=2)
    assert whole.complete
    assert TunedLens.load(whole.save(tmp_path / "lens")).complete

    def at_once():
        raise KeyboardInterrupt
        yield

    nothing = train_tuned_lens(model_of(), at_once(), n_steps=20)
    assert not nothing.complete
    assert nothing.kl.isnan().all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_mode_does_not_matter(mode):
    model = model_of()
    expected = train_tuned_lens(model, itertools.repeat(TOKENS), n_steps=3)
    with mode():
        found = train_tuned_lens(model, itertools.repeat(TOKENS.clone()), n_steps=3)
    assert torch.equal(found.weight, expected.weight)


def test_a_model_made_under_inference_mode_is_refused():
    with torch.inference_mode():
        model = model_of()
    with pytest.raises(InputError, match=r"made under torch\.inference_mode"):
        train_tuned_lens(model, itertools.repeat(TOKENS), n_steps=1)


@pytest.mark.parametrize("lr", [0, -1e-3, float("nan"), float("inf"), "1", True, None])
def test_a_learning_rate_is_a_positive_number(lr):
    with pytest.raises(InputError, match=r"lr is .*; expected a positive number"):
        train_tuned_lens(model_of(), itertools.repeat(TOKENS), n_steps=1, lr=lr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length is 1; expected at least 3: BOS and a random token come first"),
        ({"length": 8.0}, "length is 8.0; expected a whole number"),
        ({"batch": 0}, "batch is 0; expected at least 1"),
    ],
)
def test_text_of_its_own_needs_room(options, message):
    with pytest.raises(InputError, match=message):
        own_text(load_model("toy"), **options)
