"""The tuned lens: better than the logit lens on held-out text, and the model untouched."""

from __future__ import annotations

import itertools

import pytest
import torch

from interp.readout.logit_lens import logit_lens
from interp.readout.tuned_lens import TunedLens, own_text, train_tuned_lens
from models.errors import CheckpointMismatch, InputError, LoadError
from models.loading import load_model
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.fixture(scope="module")
def trained():
    model = load_model("toy")
    seen: list[tuple[int, int, float]] = []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    text = itertools.islice(own_text(model, batch=16, length=32), 25)
    lens = train_tuned_lens(
        model, itertools.cycle(text), n_steps=100, lr=5e-3, progress=lambda *args: seen.append(args)
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    return model, lens, seen


def test_it_is_closer_to_the_output_on_held_out_text_at_every_depth_but_the_last(trained):
    model, lens, _ = trained
    held_out = next(own_text(model, batch=16, length=32, seed=99))
    plain = logit_lens(model, held_out)
    tuned = logit_lens(model, held_out, tuned=lens)
    better, worse = (result.mean_over_positions(result.kl) for result in (tuned, plain))
    assert (better[:-1] < 0.9 * worse[:-1]).all()
    assert better[-1] == pytest.approx(worse[-1], abs=1e-5)
    assert tuned.top_tokens[-1].tolist() == plain.top_tokens[-1].tolist()


def test_progress_falls_and_ends(trained):
    _, lens, seen = trained
    assert [step for step, _, _ in seen] == list(range(1, 101))
    assert seen[-1][1] == 100
    assert seen[-1][2] < seen[0][2]
    assert float(lens.kl.mean()) == pytest.approx(sum(kl for _, _, kl in seen[-10:]) / 10, rel=1e-4)


def test_what_is_saved_is_read_again(trained, tmp_path):
    _, lens, _ = trained
    again = TunedLens.load(lens.save(tmp_path / "lens.safetensors"))
    for name in ("weight", "bias", "kl"):
        assert torch.equal(getattr(again, name), getattr(lens, name))
    assert [file.name for file in tmp_path.iterdir()] == ["lens.safetensors"]


def test_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("no tensors")
    save_file({"weight": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(LoadError, match="not a readable safetensors file"):
        TunedLens.load(tmp_path / "text")
    with pytest.raises(CheckpointMismatch, match="weight and bias and kl and sample"):
        TunedLens.load(tmp_path / "other")


def test_what_does_not_fit_is_refused():
    model = random_model(CONFIGS["gpt2"], dtype=torch.float32)
    lens = TunedLens.identity(model)
    with pytest.raises(InputError, match="d_model 8; the stream has 9"):
        lens.translate(0, torch.zeros(9))
    with pytest.raises(InputError, match="depths 0 to 2"):
        lens.translate(3, torch.zeros(8))
    with pytest.raises(InputError, match="n_steps is 0"):
        train_tuned_lens(model, [], n_steps=0)
    with pytest.raises(InputError, match="ended after 1 steps; 2 are needed"):
        train_tuned_lens(model, [random_tokens(model.cfg)], n_steps=2)


def test_own_text_is_the_models_own_and_seeded():
    model = load_model("toy")
    first, again, other = (
        list(itertools.islice(own_text(model, batch=2, length=16, seed=seed), 2)) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert first[0].shape == (2, 16)
    assert (first[0][:, 0] == model.tokenizer.bos_token_id).all()
