"""The prompt pairs of an analysis: a built-in batch, or one pair from the command line."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from interp.prompts import PromptBatch
    from models import HookedDecoder


class Questions(StrEnum):
    """The built-in batches."""

    default = "default"
    ioi = "ioi"
    repeated = "repeated"
    facts = "facts"
    years = "years"


Prompts = Annotated[
    Questions, typer.Option(help="Built-in pairs; the default is ioi where the model knows names, else repeated.")
]
Pairs = Annotated[int, typer.Option("--n", min=1, help="How many built-in pairs.")]
Clean = Annotated[str | None, typer.Option(help="A prompt of your own, instead of built-in ones.")]
Corrupted = Annotated[str | None, typer.Option(help="Its corrupted twin, of as many tokens.")]
Answer = Annotated[str | None, typer.Option(help="What follows the clean prompt: one token, leading space included.")]
Wrong = Annotated[str | None, typer.Option(help="What must not follow it.")]


def ask(
    model: HookedDecoder,
    prompts: Questions,
    n: int,
    seed: int,
    clean: str | None,
    corrupted: str | None,
    answer: str | None,
    wrong: str | None,
) -> PromptBatch:
    """Return the pairs that the flags mean.

    Raises:
        InputError: only some of the four flags of one's own pair, or pairs that this model cannot have.
    """
    from interp import prompts as built_in
    from models.errors import InputError

    own = {"--clean": clean, "--corrupted": corrupted, "--answer": answer, "--wrong": wrong}
    if missing := [flag for flag, value in own.items() if value is None]:
        if len(missing) < len(own):
            raise InputError(f"a pair of your own needs {', '.join(own)}; {', '.join(missing)} is missing")
        makers: dict[Questions, Callable[..., PromptBatch]] = {
            Questions.default: built_in.default_prompts,
            Questions.ioi: built_in.ioi_prompts,
            Questions.repeated: partial(built_in.repeated_token_prompts, corruption="cue"),
            Questions.facts: built_in.factual_prompts,
            Questions.years: built_in.greater_than_prompts,
        }
        return makers[prompts](model, n, seed=seed)
    assert clean is not None
    assert corrupted is not None
    assert answer is not None
    assert wrong is not None
    return built_in.prompt_batch(model, [built_in.PromptPair(clean, corrupted, answer, wrong)], "a pair of your own")


def answers_of(batch: PromptBatch, model: HookedDecoder) -> list[tuple[str, str]]:
    """Return the answer and the wrong answer of every pair."""
    pairs = zip(batch.answer, batch.wrong, strict=True)
    return [(model.to_str_tokens(right[None])[0], model.to_str_tokens(wrong[None])[0]) for right, wrong in pairs]


def question_values(batch: PromptBatch, model: HookedDecoder) -> dict[str, Any]:
    """Return the pairs as JSON-able values, but for their tokens, which results have."""
    return {
        "about": batch.about,
        "answers": [model.to_str_tokens(one[None])[0] for one in batch.answer],
        "wrong_answers": [model.to_str_tokens(one[None])[0] for one in batch.wrong],
        "positions": {label: columns.tolist() for label, columns in batch.positions.items()},
    }
