"""The JSON record of a head analysis.

One object, strict JSON (no NaN), the same bytes for the same command. ``HeadReport.load`` reads it back.

===================  ===================================================================================
``result``           ``"HeadReport"``
``schema_version``   2; a change that breaks readers raises it
``analysis``         ``induction``, ``previous_token``, ``sinks`` or ``heads``
``command``          the command that gives this record again
``model``            as given to ``--model``
``kinds``            the kinds of head looked for
``seed``             of sequences, bootstrap and random sets
``heads``            every head of the model once per kind: ``kind``, ``layer``, ``head``, ``score``,
                     ``interval`` [low, high] of 95 %, ``null`` (what confounds give), ``bar`` (to be above),
                     ``p_value`` (of score > bar, corrected over all heads), ``pattern`` (yes, borderline, no),
                     ``by_third`` (the score in each third of the tokens), ``bar_of_thirds`` (what these must reach;
                     null: ``bar``), ``confounds`` (the other kinds' scores),
                     ``details`` (description), ``effect`` and ``effect_interval`` (in the unit of ``causal``, or null
                     where not measured), ``confirmed`` (alone, jointly, no, no fair comparison, not measured)
``causal``           per kind with heads found: ``heads`` (names), ``description``, ``effect``, ``interval``, ``unit``,
                     ``share`` (of what there is to lose), ``null_effects`` (of fair sets), ``comparison`` (what they
                     are), ``p_value``, ``least_p``, ``confirmed``, ``details``
``published``        heads of the literature beside those found, for GPT-2 small; else null
``config``           of the model
``versions``         of what computed this
``settings``         how it was measured, and what was prepended to the tokens
``sink_share``       share of heads that are sinks, on ``random`` tokens and on ``text``
``tokens_shown``     the sequence that ``patterns`` belong to, one string per position
``token_loss``       nats, mean over sequences; entry i is the prediction of token i + 1
``token_loss_ablated``  the same without the induction heads, or null
``warnings``         what a reader must know
``figures``          names of the PNG files beside the record
``patterns``         best heads' attention, ``"L5H1"`` -> rows of queries
===================  ===================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from analyses.published import compare
from interp.results import HeadReport


def record(report: HeadReport, analysis: str, command: str, figures: Sequence[str]) -> dict[str, Any]:
    """Return the record of one analysis as JSON-able values."""
    values = report.to_dict()
    patterns = values.pop("patterns")  # to the end: long, and the last thing a reader looks for
    ours = {"analysis": analysis, "command": command, "published": compare(report), "figures": list(figures)}
    return values | ours | {"patterns": patterns}


def to_json(values: dict[str, Any]) -> str:
    """Return strict JSON that a person can scroll: one line per entry of a list or an object.

    What UTF-8 cannot write, such as a path of odd bytes in the command, is escaped.
    """
    parts = [f"{json.dumps(key)}: {_spread(value)}" for key, value in values.items()]
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _spread(value: Any) -> str:
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(key)}: {_dumps(inner)}" for key, inner in value.items()]
        return "{\n  " + ",\n  ".join(lines) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(map(_dumps, value)) + "\n]"
    return _dumps(value)


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
