"""Titles that differ: a page with two logit lenses says of each which one it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from interp.report.views import View

LONGEST = 28  # characters of a prompt in a title


def distinguished(views: Sequence[View], results: Sequence[Any]) -> list[View]:
    """Return the views, equal titles followed by what tells them apart: model, prompt, both, or a number."""
    counts = Counter(view.title for view in views)
    titles = [view.title for view in views]
    for title in (title for title, count in counts.items() if count > 1):
        places = [i for i, view in enumerate(views) if view.title == title]
        for i, detail in zip(places, _details([results[i] for i in places]), strict=True):
            titles[i] = f"{title}: {detail}"
    return [replace(view, title=title) for view, title in zip(views, titles, strict=True)]


def _details(results: Sequence[Any]) -> list[str]:
    tried: tuple[Callable[[Any], str], ...] = (
        _model,
        _beginning,
        _end,
        lambda one: f"{_model(one)}, {_beginning(one)}",
    )
    for describe in tried:
        details = [describe(result) for result in results]
        if len(set(details)) == len(details):
            return details
    return [f"{number} of {len(results)}" for number in range(1, len(results) + 1)]


def _model(result: Any) -> str:
    return str(getattr(result, "model", ""))


def _prompt(result: Any) -> str:
    """Return the first prompt of a result on one line; nothing where it has none."""
    tokens = result.prompts()[0] if hasattr(result, "prompts") and result.prompts() else getattr(result, "tokens", ())
    words = tokens[0] if tokens and not isinstance(tokens[0], str) else tokens
    return " ".join("".join(words).split())


def _beginning(result: Any) -> str:
    prompt = _prompt(result)
    return prompt if len(prompt) <= LONGEST else prompt[: LONGEST - 1] + "…"


def _end(result: Any) -> str:
    prompt = _prompt(result)
    return prompt if len(prompt) <= LONGEST else "…" + prompt[1 - LONGEST :].lstrip()
