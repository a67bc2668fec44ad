"""Results to one HTML file that opens anywhere, offline: style, script and data lie in it, and it asks for nothing.

Texts of prompts reach the page only as JSON or through the template's escaping, and become text nodes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from interp.files import encodable, written_whole
from interp.report.titles import distinguished, neutral
from interp.report.views import View, view_of
from interp.results import Result
from models.errors import InputError

ASSETS = Path(__file__).with_name("assets")
PARTS = ("base", "tokens", "colour", "data", "table", "chart", "matrix", "pattern")  # what views are made of
VIEWS = ("attention", "lens", "playground", "heads", "sweep", "attribution", "comparison", "circuit")
SCRIPTS = (*PARTS, *VIEWS, "page")  # the page last: it starts the views
STYLES = ("style", "print")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["neutral"] = neutral
    return environment.from_string((ASSETS / "page.html.j2").read_text(encoding="utf-8"))


@cache
def _script() -> str:
    return "\n".join((ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)


@cache
def _style() -> str:
    return "\n".join((ASSETS / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)


def to_html(
    results: Result | Sequence[Result],
    *,
    title: str | None = None,
    command: str | None = None,
    seed: int | None = None,
    answers: Sequence[tuple[str, str]] = (),
    framed: bool = False,
) -> str:
    """Return one self-contained page.

    Args:
        results: one, or several in the order they are to be shown.
        title: of the page; by default the first view's, with the model.
        command: that made the results, shown at the bottom.
        seed: of what was drawn, where the results themselves do not say.
        answers: per prompt of a sweep, the token that should follow and the one that should not.
        framed: made smaller, for a frame in another page.

    Raises:
        InputError: no result, or one that has no view.
    """
    shown: list[Any] = list(results) if isinstance(results, Sequence) else [results]
    if not shown:
        raise InputError("there is no result to report; give at least one")
    views = distinguished([view_of(result, f"pack-{i}", answers) for i, result in enumerate(shown)], shown)
    sources = [getattr(result, "report", result) for result in shown]  # a circuit's report says what it is of
    models = list(dict.fromkeys(str(source.model) for source in sources if hasattr(source, "model")))
    kinds = ", ".join(type(result).__name__ for result in shown)
    html = _template().render(
        title=title or _default_title(views, models),
        models=", ".join(models),
        views=views,
        css=_style(),
        script=_script(),
        provenance=[*_provenance(sources, models, command, seed), ("results", kinds)],
        configs=_configs(sources),
        framed=framed,
        heading=not framed or title is not None or len(views) > 1,
    )
    return encodable(html)


def write_report(
    results: Result | Sequence[Result],
    path: str | Path,
    *,
    title: str | None = None,
    command: str | None = None,
    seed: int | None = None,
    answers: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write the page of ``to_html`` to ``path``, whole or not at all, and return the path."""
    html = to_html(results, title=title, command=command, seed=seed, answers=answers)
    with written_whole(path) as partial:
        partial.write_text(html, encoding="utf-8")
    return Path(path)


def _default_title(views: Sequence[View], models: Sequence[str]) -> str:
    first = views[0].title
    return f"{first}: {models[0]}" if len(views) == 1 and models and models[0] not in first else first


def _provenance(
    results: Sequence[Any], models: Sequence[str], command: str | None, seed: int | None
) -> list[tuple[str, str]]:
    """Return what the foot of the page says: model, command, seed, versions."""
    seeds = dict.fromkeys(str(result.seed) for result in results if hasattr(result, "seed"))
    if seed is not None:
        seeds.setdefault(str(seed))
    versions: dict[str, str] = {}
    for result in results:
        versions |= getattr(result, "versions", {})
    return [
        ("model", ", ".join(models) or "not recorded by this result"),
        ("command", command or "made from Python, not by a command"),
        ("seed", ", ".join(seeds) or "none: nothing was drawn"),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items()) or "not recorded"),
    ]


def _configs(results: Sequence[Any]) -> list[tuple[str, str]]:
    """Return every model's configuration once, as text; models of one name are numbered."""
    texts: dict[str, dict[str, None]] = {}
    for result in results:
        if hasattr(result, "config"):
            text = ", ".join(f"{name}={value}" for name, value in result.config.items())
            texts.setdefault(str(result.model), {})[text] = None
    return [
        (f"{model} ({number} of {len(configs)})" if len(configs) > 1 else model, text)
        for model, configs in texts.items()
        for number, text in enumerate(configs, start=1)
    ]
