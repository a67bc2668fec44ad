"""What a head analysis prints: for each kind the best heads, what they cause, and what to be careful about.

It fits the window, 80 columns where there is none, and stays plain text where it is piped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from analyses.table import Table
from analyses.terminal import model_line, say, visible
from interp.results import CausalEvidence, HeadEvidence, HeadReport

LOOKS = {
    "previous_token": "look one token back",
    "sink": "rest on the first token while nothing matches",
    "induction": "look at what followed this token last time",
    "duplicate_token": "look at earlier copies of the same token",
}
SHORT = {"previous_token": "previous", "duplicate_token": "duplicate"}
COLUMNS = (
    "null: score to expect of other heads; p: corrected over all heads; effect: of this head alone, in the unit "
    "of the causal line; also: the head's highest score of another kind"
)
SPARE = ("also", "null", "95 %", "p", "effect")  # columns that a narrow window does without, the first to go first
BAR = 8
NAMED = 20  # found heads to name beyond the table
WORTH_A_MENTION = 0.1


def show(report: HeadReport, published: Mapping[str, Any] | None, top: int, n_parameters: int, precision: str) -> None:
    """Print a report on stdout.

    Args:
        report: of ``find_heads``.
        published: what ``analyses.published.compare`` returned.
        top: heads to list per kind.
        n_parameters: of the model.
        precision: of the weights, and where they lie.
    """
    console = Console(highlight=False, emoji=False)
    _show_model(console, report, n_parameters, precision)
    for kind in report.kinds:
        _show_kind(console, report, kind, top)
    if published is not None:
        _show_published(console, published)
    console.print()
    say(console, "columns", COLUMNS, "dim")
    for warning in report.warnings:
        say(console, "warning", warning, "yellow")


def _show_model(console: Console, report: HeadReport, n_parameters: int, precision: str) -> None:
    settings = report.settings
    say(console, "model", model_line(report.model, report.config, n_parameters, precision), "cyan")
    length, bos = settings["length"], settings["prepended_bos"]
    first = f"{report.tokens_shown[0]!r} (prepended), " if bos else "nothing prepended, "
    first = f"{first}{length} distinct random tokens, the same {length} again; "
    shown = " ".join(visible(token) for token in report.tokens_shown[: 6 + bos])
    say(console, "tokens", f"{first}{settings['n_sequences']} sequences, seed {report.seed}", "cyan")
    say(console, "", f"the first begins {shown} …", "cyan")


def _show_kind(console: Console, report: HeadReport, kind: str, top: int) -> None:
    found, ranked = report.found(kind), report.of_kind(kind)
    label = kind.replace("_", "-")
    console.print()
    console.print(
        Text.assemble(
            (f"{label} heads: {len(found)} of {len(ranked)}", "bold green" if found else "bold yellow"),
            (f"  {LOOKS[kind]}", "dim"),
        )
    )
    causal = next((evidence for evidence in report.causal if evidence.kind == kind), None)
    rest = [evidence for evidence in ranked if not evidence.verdict]
    _head_table([*found, *rest][:top], _ascii(console)).show(console)
    if unlisted := [str(evidence.name) for evidence in found[top:]]:
        rest_of_them = f", and {len(unlisted) - NAMED} more in the record" if len(unlisted) > NAMED else ""
        say(console, "also", ", ".join(unlisted[:NAMED]) + rest_of_them, "green")
    if not found:
        say(console, "none", _why_none(report, kind), "yellow")
    if causal is not None:
        say(console, "causal", _causal_sentence(causal), "cyan")


def _head_table(rows: Sequence[HeadEvidence], ascii_only: bool) -> Table:
    table = Table("found", "head", "score", "95 %", "null>", "p>", "effect>", "also", spare=SPARE)
    for evidence in rows:
        other, score = max(evidence.confounds.items(), key=lambda item: item[1], default=("", 0.0))
        table.add_row(
            "yes" if evidence.verdict else "no",
            str(evidence.name),
            f"{_number(evidence.score):>4} {_bar(evidence.score, ascii_only):<{BAR}}",
            f"{_number(evidence.interval[0])} to {_number(evidence.interval[1])}",
            _number(evidence.null),
            _p_value(evidence.p_value),
            "" if evidence.effect is None else _signed(evidence.effect),
            f"{SHORT.get(other, other)} {_number(score)}" if score >= WORTH_A_MENTION else "",
            style="green" if evidence.verdict else "dim",
        )
    return table


def _why_none(report: HeadReport, kind: str) -> str:
    best = report.of_kind(kind)[0]
    return (
        f"no head passed; needed is {report.settings['thresholds'][kind]}, with p < {report.settings['alpha']}. "
        f"The highest score is {_number(best.score)} ({best.name}, p {_p_value(best.p_value)})"
    )


def _causal_sentence(causal: CausalEvidence) -> str:
    text = f"{_signed(causal.effect)} {causal.unit}: {causal.description}"
    if causal.null_effects:
        low, high = _signed(min(causal.null_effects)), _signed(max(causal.null_effects))
        n = len(causal.null_effects)
        least = ", the least possible" if causal.p_value <= 1 / (1 + n) else ""
        text += f", which gave {low if n == 1 else f'{low} to {high}'} (p {_p_value(causal.p_value)}{least})"
    elif causal.p_value < 1:  # a test of its own, which the description names
        text += f" (p {_p_value(causal.p_value)})"
    details = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in causal.details.items())
    return f"{text}. {details[:1].upper()}{details[1:]}" if details else text


def _show_published(console: Console, published: Mapping[str, Any]) -> None:
    console.print()
    console.print(Text(f"beside the published heads of {published['model']}", style="bold"))
    table = Table("found", "kind", "head", "published>", "here>", "rank>", "as reported", spare=("as reported", "rank"))
    for head in published["heads"]:
        table.add_row(
            "yes" if head["verdict"] else "no",
            SHORT.get(head["kind"], head["kind"]),
            f"L{head['layer']}H{head['head']}",
            "" if head["published_score"] is None else _number(head["published_score"]),
            _number(head["score"]),
            str(head["rank"]),
            head["note"],
            style="green" if head["verdict"] else "yellow",
        )
    table.show(console)
    for source in dict.fromkeys(head["source"] for head in published["heads"]):
        say(console, "source", source, "dim")
    for kind, names in published["not_published"].items():
        if names:
            say(console, "new", f"{kind.replace('_', '-')}: {', '.join(names)}", "cyan")


def _number(score: float) -> str:
    return f"{score:.2f}".replace("0.", ".", 1)


def _signed(effect: float) -> str:
    return f"{round(effect, 2) + 0.0:+.2f}"  # adding zero makes -0.0 positive


def _p_value(p: float) -> str:
    return "<.001" if p < 0.001 else "1" if p > 0.995 else f"{p:.3f}".removeprefix("0")


def _ascii(console: Console) -> bool:
    return not console.encoding.startswith("utf")


def _bar(score: float, ascii_only: bool) -> str:
    """Return a score in [0, 1] as a bar of up to 8 cells, in eighths of a cell where the terminal can."""
    eighths = round(8 * BAR * min(1.0, max(0.0, score)))
    if ascii_only:
        return "#" * round(eighths / 8)
    whole, part = divmod(eighths, 8)
    return "█" * whole + (chr(0x2590 - part) if part else "")
