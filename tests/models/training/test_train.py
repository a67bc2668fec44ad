"""The training loop against a plain one, and its promises: resumable, atomic, nothing global."""

import json

import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError, InputError, LoadError, NonFiniteError
from models.training import Batch, HeadPenalty, Optimiser, Phase, RepeatStream, RepeatTask, train

CONFIG = DecoderConfig(n_layers=1, d_model=8, n_heads=2, d_vocab=65, n_ctx=16, init="fan_in")
TASK = RepeatTask(period=(3, 5), max_jump_rate=0.1, held_out=(4,))
OPTIMISER = Optimiser(lr=1e-2, betas=(0.9, 0.98), weight_decay=0.05, warmup=4, clip=0.5)


def stream(seed=0):
    return RepeatStream(task=TASK, seed=seed, batch=4, n_ctx=16)


def phases():
    return [Phase(batches=stream(0), steps=7), Phase(batches=stream(1), steps=5, schedule="linear")]


def norm_figure(model):
    return {"norm": model.W_E.norm().item()}


def plain_loop():
    """The same training, written out: its losses and the model."""
    model = HookedDecoder(CONFIG, seed=1)
    adam = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.05)
    losses = []
    for step in range(12):
        batch = stream(0)(step) if step < 7 else stream(1)(step - 7)
        logits = model(batch.tokens)
        kept = [
            -logits[row, i].log_softmax(-1)[batch.tokens[row, i + 1]]
            for row in range(4)
            for i in range(15)
            if batch.counts[row, i]
        ]
        loss = sum(kept) / len(kept)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in adam.param_groups:
            group["lr"] = 1e-2 * min(1, (step + 1) / 4) * (1 if step < 7 else (12 - step) / 5)
        adam.step()
        losses.append(loss.item())
    return losses, model


def test_train_equals_a_loop_written_out():
    losses, expected = plain_loop()
    model, record = train(HookedDecoder(CONFIG, seed=1), phases(), OPTIMISER, seed=1)
    assert record.losses == pytest.approx(losses, abs=1e-5)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, expected.state_dict()[name], atol=1e-5, rtol=1e-4)


def test_record():
    model = HookedDecoder(CONFIG)
    before = norm_figure(model)["norm"]
    same, record = train(model, phases(), OPTIMISER, seed=5, evaluate=norm_figure, evaluate_every=5)
    assert same is model
    assert record.steps == (7, 5)
    assert [row["step"] for row in record.history] == [0, 5, 7, 10, 12]
    assert record.history[0]["norm"] == before
    assert record.history[-1]["norm"] == norm_figure(model)["norm"] != before
    assert DecoderConfig.from_dict(record.config) == CONFIG
    assert record.seed == 5
    assert json.loads(json.dumps(record.to_dict()))["losses"] == list(record.losses)
    with pytest.raises(AttributeError):
        record.seed = 1


def test_until_ends_a_phase_early():
    seen = []

    def until(history):
        seen.append(len(history))
        return history[-1]["step"] >= 4

    first = Phase(batches=stream(), steps=100, until=until)
    second = Phase(batches=stream(), steps=3)
    _, record = train(HookedDecoder(CONFIG), [first, second], OPTIMISER, evaluate=norm_figure, evaluate_every=2)
    assert record.steps == (4, 3)
    assert seen == [2, 3]


def test_progress_counts_up_to_the_end():
    told = []
    train(HookedDecoder(CONFIG), phases(), OPTIMISER, progress=told.append, evaluate=norm_figure)
    assert [progress.step for progress in told] == list(range(1, 13))
    assert {progress.at_most for progress in told} == {12}
    assert told[-1].figures["step"] == 12
    assert all(progress.loss > 0 for progress in told)


def test_at_most_shrinks_when_a_phase_ends_early():
    told = []
    early = Phase(batches=stream(), steps=100, until=lambda history: history[-1]["step"] >= 2)
    train(
        HookedDecoder(CONFIG), [early, Phase(batches=stream(), steps=3)], OPTIMISER,
        progress=told.append, evaluate=norm_figure, evaluate_every=2,
    )  # fmt: skip
    assert [progress.at_most for progress in told] == [103, 5, 5, 5, 5]


def interrupt_at(step):
    def progress(told):
        if told.step == step:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path):
    whole, record = train(HookedDecoder(CONFIG), phases(), OPTIMISER, evaluate=norm_figure, evaluate_every=3)
    path = tmp_path / "run.pt"
    options = {"evaluate": norm_figure, "evaluate_every": 3, "checkpoint": path, "checkpoint_every": 2}
    for step in (5, 8, 11):  # in the first phase, in the second, near the end
        with pytest.raises(KeyboardInterrupt):
            train(HookedDecoder(CONFIG), phases(), OPTIMISER, progress=interrupt_at(step), **options)
        assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]
    told = []
    resumed, again = train(HookedDecoder(CONFIG), phases(), OPTIMISER, progress=told.append, **options)
    assert told[0].step == 11
    assert again == record
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_checkpoint_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train(HookedDecoder(CONFIG), phases(), OPTIMISER, progress=interrupt_at(3), checkpoint=path, checkpoint_every=2)
    kept = path.read_bytes()

    def full_disk(content, file):
        file.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="no space"):
        train(HookedDecoder(CONFIG), phases(), OPTIMISER, checkpoint=path, checkpoint_every=2)
    assert path.read_bytes() == kept
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train(HookedDecoder(CONFIG), phases(), OPTIMISER, progress=interrupt_at(3), checkpoint=path, checkpoint_every=2)
    with pytest.raises(ConfigError, match="belongs to another run: seed differ"):
        train(HookedDecoder(CONFIG), phases(), OPTIMISER, seed=1, checkpoint=path)
    with pytest.raises(ConfigError, match="config differ"):
        train(HookedDecoder(CONFIG.replace(d_mlp=8)), phases(), OPTIMISER, checkpoint=path)
    path.write_bytes(b"something else")
    with pytest.raises(LoadError, match="is not a checkpoint of a training run"):
        train(HookedDecoder(CONFIG), phases(), OPTIMISER, checkpoint=path)


def test_training_leaves_the_global_random_state_alone():
    model = HookedDecoder(CONFIG)
    before = torch.get_rng_state()
    train(model, phases(), OPTIMISER)
    assert torch.equal(before, torch.get_rng_state())


def test_a_diverging_run_is_stopped():
    model = HookedDecoder(CONFIG)
    with torch.no_grad():
        model.W_E[64, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="the loss became nan; lower lr"):
        train(model, phases(), OPTIMISER)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train(HookedDecoder(CONFIG), [], OPTIMISER), "0 phases"),
        (lambda: train(HookedDecoder(CONFIG), phases(), OPTIMISER, evaluate_every=0), "evaluate_every 0"),
        (
            lambda: train(
                HookedDecoder(CONFIG), [Phase(batches=stream(), steps=2, until=lambda history: True)], OPTIMISER
            ),
            "until needs evaluate",
        ),
        (lambda: Phase(batches=stream(), steps=0), "a phase has 0 steps"),
        (lambda: Phase(batches=stream(), steps=1, schedule="cosine"), "schedule is 'cosine'"),
        (lambda: Optimiser(lr=0), "lr 0"),
        (lambda: Optimiser(lr=1, clip=0.0), "clip 0.0"),
    ],
)
def test_impossible_runs_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_batches_that_do_not_fit_are_refused():
    tokens = torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(InputError, match=r"counts has shape \(2, 5\)"):
        Batch(tokens, torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="leaves out every prediction"):
        Batch(tokens, torch.zeros(2, 4, dtype=torch.bool))


# -- phases with more of their own -----------------------------------------------------------------------------------


def test_each_phase_counts_its_own_steps_and_a_new_optimiser_warms_up_again():
    asked = []

    def batches(step):
        asked.append(step)
        return stream()(step)

    again = Phase(batches=batches, steps=3, anew=True)
    first, second = HookedDecoder(CONFIG), HookedDecoder(CONFIG)
    train(first, [Phase(batches=batches, steps=4), again], OPTIMISER)
    assert asked == [0, 1, 2, 3, 0, 1, 2]
    train(second, [Phase(batches=stream(), steps=4)], OPTIMISER)
    train(second, [Phase(batches=stream(), steps=3)], OPTIMISER)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name


def test_without_a_new_optimiser_moments_and_rate_carry_over():
    first, second = HookedDecoder(CONFIG), HookedDecoder(CONFIG)
    train(first, [Phase(batches=stream(), steps=4), Phase(batches=stream(), steps=3)], OPTIMISER)
    train(second, [Phase(batches=stream(), steps=4), Phase(batches=stream(), steps=3, anew=True)], OPTIMISER)
    assert not torch.equal(first.W_E, second.W_E)


def test_an_interrupted_run_with_penalty_and_new_optimiser_goes_on_to_the_same_result(tmp_path):
    penalty = HeadPenalty(by_layer=(0.1,), ramp=3)
    several = [
        Phase(batches=stream(0), steps=4),
        Phase(batches=stream(1), steps=6, penalty=penalty, anew=True, schedule="linear"),
    ]
    whole, _ = train(HookedDecoder(CONFIG), several, OPTIMISER)
    for step in (4, 5, 9):  # where the phase begins, and within it
        path = tmp_path / f"{step}.pt"
        with pytest.raises(KeyboardInterrupt):
            train(
                HookedDecoder(CONFIG), several, OPTIMISER,
                progress=interrupt_at(step), checkpoint=path, checkpoint_every=1,
            )  # fmt: skip
        resumed, _ = train(HookedDecoder(CONFIG), several, OPTIMISER, checkpoint=path)
        for name, weight in whole.state_dict().items():
            assert torch.equal(weight, resumed.state_dict()[name]), name


def test_a_checkpoint_of_a_run_with_another_penalty_is_refused(tmp_path):
    def with_price(price):
        return [Phase(batches=stream(), steps=5, penalty=HeadPenalty(by_layer=(price,)))]

    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train(
            HookedDecoder(CONFIG), with_price(0.1), OPTIMISER,
            progress=interrupt_at(3), checkpoint=path, checkpoint_every=1,
        )  # fmt: skip
    with pytest.raises(ConfigError, match="phases differ"):
        train(HookedDecoder(CONFIG), with_price(0.2), OPTIMISER, checkpoint=path)
