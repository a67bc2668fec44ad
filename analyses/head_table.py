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
from interp.detectors.kinds import DETECTORS
from interp.results import CausalEvidence, HeadEvidence, HeadReport

COLUMNS = (
    "pattern: is the score above its bar (the kind's least score, and twice what confounds give), p corrected over all "
    "heads; effect: of this head alone, with its 95 % interval, in the unit of the causal line; confirmed: alone, "
    "jointly with others of its kind, or not; also: the head's highest score of another kind, or how a sink rests"
)
# columns that a narrow window does without, the first to go first
SPARE = ("also", "bar", "95 %", "p (> bar)", "effect, 95 %")
BAR = 6
CONFIRMED = {"no fair comparison": "no fair set", "not measured": ""}
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
    lengths = settings["lengths"]
    block = f"{length}" if min(lengths) == length else f"{min(lengths)} to {length}"
    first = f"{first}{block} distinct random tokens, and the same again; "
    shown = " ".join(visible(token) for token in report.tokens_shown[: 6 + bos])
    say(console, "tokens", f"{first}{settings['n_sequences']} sequences, seed {report.seed}", "cyan")
    say(console, "", f"the first begins {shown} …", "cyan")


def _show_kind(console: Console, report: HeadReport, kind: str, top: int) -> None:
    found, ranked = report.found(kind), report.of_kind(kind)
    label, confirmed = kind.replace("_", "-"), len(report.confirmed(kind))
    console.print()
    heading = f"{label} heads: {len(found)} of {len(ranked)}" + (f", {confirmed} confirmed" if found else "")
    console.print(Text(heading, style="bold green" if confirmed else "bold yellow"))
    say(console, "", DETECTORS[kind].looks, "dim")
    causal = next((evidence for evidence in report.causal if evidence.kind == kind), None)
    rest = [evidence for evidence in ranked if not evidence.found]
    listed = [*found, *rest][:top]
    _head_table(listed, kind, _ascii(console)).show(console)
    if unlisted := [str(evidence.name) for evidence in found[top:]]:
        rest_of_them = f", and {len(unlisted) - NAMED} more in the record" if len(unlisted) > NAMED else ""
        say(console, "also", ", ".join(unlisted[:NAMED]) + rest_of_them, "green")
    if in_part := [evidence for evidence in listed if evidence.in_part]:
        say(console, "in part", ", ".join(f"{evidence.name} ({_thirds(evidence)})" for evidence in in_part), "yellow")
    if not found:
        say(console, "none", _why_none(report, kind), "yellow")
    if kind == "sink" and report.sink_share:
        say(console, "share", _sink_share(report), "cyan")
    if causal is not None:
        say(console, "causal", _causal_sentence(causal), "cyan")


def _head_table(rows: Sequence[HeadEvidence], kind: str, ascii_only: bool) -> Table:
    score = DETECTORS[kind].score_name
    table = Table(
        "pattern",
        "head",
        score,
        "95 %",
        "bar>",
        "p (> bar)>",
        "effect, 95 %",
        "confirmed",
        "also",
        spare=SPARE,
    )
    for evidence in rows:
        table.add_row(
            evidence.pattern,
            str(evidence.name),
            f"{_number(evidence.score):>4} {_bar(evidence.score, ascii_only):<{BAR}}",
            f"{_number(evidence.interval[0])} to {_number(evidence.interval[1])}",
            _number(evidence.bar),
            _p_value(evidence.p_value),
            _effect(evidence),
            CONFIRMED.get(evidence.confirmed, evidence.confirmed),
            _also(evidence),
            style="green" if evidence.is_confirmed else "" if evidence.found else "dim",
        )
    return table


def _effect(evidence: HeadEvidence) -> str:
    if evidence.effect is None or evidence.effect_interval is None:
        return ""
    low, high = (f"{round(end, 2) + 0.0:.2f}" for end in evidence.effect_interval)
    return f"{_signed(evidence.effect)} [{low}, {high}]"


def _also(evidence: HeadEvidence) -> str:
    if asides := DETECTORS[evidence.kind].asides:
        return ", ".join(f"{label} {_number(evidence.details[name])}" for name, label in asides.items())
    other, score = max(evidence.confounds.items(), key=lambda item: item[1], default=("", 0.0))
    return f"{DETECTORS[other].short} {_number(score)}" if score >= WORTH_A_MENTION else ""


def _thirds(evidence: HeadEvidence) -> str:
    thirds = " ".join("-" if third is None else _number(third) for third in evidence.by_third)
    return f"by thirds of the tokens {thirds}"


def _sink_share(report: HeadReport) -> str:
    shares = {"random": "random tokens", "text": "text"}
    parts = [f"{report.sink_share[name]:.0%} on {words}" for name, words in shares.items() if name in report.sink_share]
    missing = "" if "text" in report.sink_share else "; the model reads no text"
    return f"of all heads, mean over sequences, are sinks (Gu et al.): {', '.join(parts)}{missing}"


def _why_none(report: HeadReport, kind: str) -> str:
    best = report.of_kind(kind)[0]
    return (
        f"no head has the pattern; needed is {report.settings['thresholds'][kind]}, with p < "
        f"{report.settings['alpha']}. The highest score is {_number(best.score)} ({best.name}, p "
        f"{_p_value(best.p_value)})"
    )


def _causal_sentence(causal: CausalEvidence) -> str:
    low, high = (_signed(end) for end in causal.interval)
    text = f"{_signed(causal.effect)} {causal.unit} (95 % {low} to {high}"
    text += "" if causal.share is None else f", {causal.share:.0%} of what there is to lose"
    text += f"): {causal.description}"
    if not causal.null_effects:
        return f"{text}; {causal.comparison}"
    least, most = _signed(min(causal.null_effects)), _signed(max(causal.null_effects))
    beside = f"{text}; beside {causal.comparison}, which give {least} to {most}"
    return f"{beside} (p {_p_value(causal.p_value)}, the least possible {_p_value(causal.least_p)})"


def _show_published(console: Console, published: Mapping[str, Any]) -> None:
    console.print()
    console.print(Text(f"beside the published heads of {published['model']}", style="bold"))
    table = Table(
        "pattern", "kind", "head", "published>", "here>", "rank>", "as reported", spare=("as reported", "rank")
    )
    for head in published["heads"]:
        table.add_row(
            head["pattern"],
            DETECTORS[head["kind"]].short,
            f"L{head['layer']}H{head['head']}",
            "" if head["published_score"] is None else _number(head["published_score"]),
            _number(head["score"]),
            str(head["rank"]),
            head["note"],
            style="green" if head["pattern"] == "yes" else "yellow",
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
