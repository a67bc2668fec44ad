"""Heads of GPT-2 small that the literature names, to set beside those that are found.

The figures are reports to compare with, never thresholds. ``primary`` says whether the figure was read in the paper
that measured it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from interp.results import HeadReport
from interp.sites import Head

_IOI = "Wang et al., arXiv 2211.00593 (the top of their scores on 2×100 random tokens)"
_REPEATED = "secondary: 2×50 random tokens after BOS"
_SECONDARY = "secondary: reported without a set-up"
_SHAPE = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_vocab": 50257, "positions": "learned"}


@dataclass(frozen=True)
class PublishedHead:
    """A head of GPT-2 small named in the literature.

    Attributes:
        kind, layer, head: which head is said to be what.
        score: as reported, where a number is.
        note: what was reported, in words.
        source: where.
        primary: read in the paper that measured it.
    """

    kind: str
    layer: int
    head: int
    score: float | None
    note: str
    source: str
    primary: bool


GPT2_SMALL = (
    PublishedHead("previous_token", 4, 11, None, "near perfect", _IOI, True),
    PublishedHead("previous_token", 2, 2, None, "less sharp", _IOI, True),
    PublishedHead("sink", 5, 1, 0.90, "at least, where nothing repeats", _SECONDARY, False),
    PublishedHead("induction", 5, 1, 0.91, "strong", _REPEATED, False),
    PublishedHead("induction", 5, 5, 0.93, "strong", _REPEATED, False),
    PublishedHead("induction", 6, 9, 0.91, "strong", _REPEATED, False),
    PublishedHead("induction", 7, 2, 0.83, "strong", _REPEATED, False),
    PublishedHead("induction", 7, 10, 0.91, "strong", _REPEATED, False),
    PublishedHead("induction", 10, 11, 0.3, "about; weaker, late", _REPEATED, False),
    PublishedHead("induction", 11, 9, 0.3, "about; weaker, late", _REPEATED, False),
    PublishedHead("duplicate_token", 3, 0, None, "in the top three", _IOI, True),
    PublishedHead("duplicate_token", 0, 1, None, "in the top three", _IOI, True),
    PublishedHead("duplicate_token", 0, 5, None, "strong", _SECONDARY, False),
)


def is_gpt2_small(model: str, config: Mapping[str, Any]) -> bool:
    """Return whether a model has GPT-2 small's shape and its name, as a hub id, a folder or a file.

    >>> shape = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_vocab": 50257, "positions": "learned"}
    >>> is_gpt2_small("openai-community/gpt2", shape), is_gpt2_small("random", shape)
    (True, False)
    """
    same_shape = all(config.get(name) == value for name, value in _SHAPE.items())
    return same_shape and PurePath(model).name.lower().startswith("gpt2")


def compare(report: HeadReport) -> dict[str, Any] | None:
    """Set the published heads of the kinds in a report beside what it found; None for any other model.

    Returns:
        ``model``; ``heads``: each published head with ``published_score``, ``note``, ``source``, ``primary``, and
        here ``score``, ``rank`` (1 is the best of its kind), ``pattern`` and ``confirmed``; ``not_published``: names of
        the found heads that are not among the published, by kind.
    """
    if not is_gpt2_small(report.model, report.config):
        return None
    heads = []
    for published in GPT2_SMALL:
        if published.kind not in report.kinds:
            continue
        ranked = report.of_kind(published.kind)
        rank, here = next(
            (rank, e) for rank, e in enumerate(ranked, 1) if (e.layer, e.head) == (published.layer, published.head)
        )
        values = asdict(published)
        values["published_score"] = values.pop("score")
        heads.append(values | {"score": here.score, "rank": rank, "pattern": here.pattern, "confirmed": here.confirmed})
    known = {(published.kind, Head(published.layer, published.head)) for published in GPT2_SMALL}
    not_published = {
        kind: [str(e.name) for e in report.found(kind) if (kind, e.name) not in known] for kind in report.kinds
    }
    return {"model": "GPT-2 small", "heads": heads, "not_published": not_published}
