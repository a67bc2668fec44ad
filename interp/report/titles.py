"""Titles that differ and read as they were written, in any script.

A page with two logit lenses says of each which one it is. Parts of a prompt are isolated from the direction of what
stands around them (U+2068 to U+2069), and what would turn that direction is written out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.report.views import View

LONGEST = 28  # characters of a prompt in a title
TURNS = "\u061c\u200e\u200f\u202a-\u202e\u2066\u2067"  # marks, embeddings and overrides of direction
ISOLATE, END = "\u2068", "\u2069"
FRAGMENTS = re.compile(r"(?:⟨[0-9A-F]{2}(?: [0-9A-F]{2})*⟩)+")  # of characters, as to_str_tokens writes them


def neutral(text: str) -> str:
    """Return a text on one line in which nothing turns the direction of writing: that is written out.

    >>> neutral("a\\u202eb\\nc")
    'a⟨U+202E⟩b c'
    """
    return re.sub(f"[{TURNS}]", lambda found: f"⟨U+{ord(found[0]):04X}⟩", " ".join(text.split()))


def isolated(text: str) -> str:
    """Return a text that keeps its direction to itself, for the inside of another."""
    return ISOLATE + neutral(re.sub(f"[{ISOLATE}{END}]", "", text)) + END


def whole(tokens: Sequence[str]) -> str:
    """Return the text of tokens; fragments of a character that stand together become that character.

    >>> whole(["a ", "⟨F0 9F⟩", "⟨99 82⟩", "⟨F0⟩"])
    'a 🙂⟨F0⟩'
    """

    def character(found: re.Match[str]) -> str:
        raw = bytes.fromhex(found[0].replace("⟨", " ").replace("⟩", " "))
        text = raw.decode("utf-8", "surrogateescape")
        return re.sub(r"[\udc80-\udcff]", lambda one: f"⟨{ord(one[0]) - 0xDC00:02X}⟩", text)

    return FRAGMENTS.sub(character, "".join(tokens))


def distinguished(views: Sequence[View], results: Sequence[Any]) -> list[View]:
    """Return the views, equal titles followed by what tells them apart: model, prompt, both, or a number."""
    counts = Counter(view.title for view in views)
    titles = [view.title for view in views]
    for title in (title for title, count in counts.items() if count > 1):
        places = [i for i, view in enumerate(views) if view.title == title]
        for i, detail in zip(places, _details([results[i] for i in places]), strict=True):
            titles[i] = f"{title}: {isolated(detail)}"
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
    return neutral(whole(words))


def _beginning(result: Any) -> str:
    prompt = _prompt(result)
    return prompt if len(prompt) <= LONGEST else prompt[: LONGEST - 1] + "…"


def _end(result: Any) -> str:
    prompt = _prompt(result)
    return prompt if len(prompt) <= LONGEST else "…" + prompt[1 - LONGEST :].lstrip()
