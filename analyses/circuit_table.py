"""What the circuit analysis prints: the circuit in a line, its links, and what the weights say of its heads.

It fits the window, 80 columns where there is none, and stays plain text where it is piped.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from analyses.table import Table
from analyses.terminal import model_line, say
from interp.weights import InductionCircuit

COLUMNS = (
    "comp: composition score from the weights, z: against random rotations; effect: fall of the induction score when "
    "the earlier head is mean-ablated in that input alone, with its 95 % interval; other: the largest fall other heads "
    "of that layer make there; p (>other): sign test over sequences that the effect is larger than these (than 0 where "
    "there are none), corrected over all links; whole: the fall when it is ablated for everything; found: p < alpha "
    "and a tenth of the score; random weights give comp"
)
WEIGHT_COLUMNS = (
    "copying: whether the head's OV circuit raises the token it looks at, sum of eigenvalues over sum of their "
    "magnitudes, -1 to 1; by outputs: the share of the raise that goes to the attended token on random tokens, -1 to 1 "
    "(real induction heads can be low); one back by position: attention to the token before by positions alone"
)
INPUT = {"K": "keys", "Q": "queries"}


def show(circuit: InductionCircuit, top: int, n_parameters: int, precision: str) -> None:
    """Print a circuit on stdout.

    Args:
        circuit: of ``induction_circuit``.
        top: links to list.
        n_parameters: of the model.
        precision: of the weights, and where they lie.
    """
    console = Console(highlight=False, emoji=False)
    report, settings = circuit.report, circuit.settings
    say(console, "model", model_line(report.model, report.config, n_parameters, precision), "cyan")
    tokens = f"{report.settings['length']} distinct random tokens, the same again; seed {report.seed}"
    sequences = f"{report.settings['n_sequences']} sequences for heads, {settings['n_sequences']} for links"
    say(console, "tokens", f"{tokens}; {sequences}", "cyan")
    for kind in report.kinds:
        names = ", ".join(f"{e.name} {e.score:.2f}" for e in report.found(kind)) or "none"
        say(console, "heads", f"{kind.replace('_', '-')}: {names}", "cyan")
    confirmed, links = circuit.confirmed, circuit.links
    console.print()
    console.print(
        Text(
            f"links that ablation confirms: {len(confirmed)} of {len(links)}",
            style="bold green" if confirmed else "bold yellow",
        )
    )
    if links:
        _links(circuit, top).show(console)
    else:
        say(console, "none", "no pair of a previous-token head and an induction head in a later layer", "yellow")
    for line in _told(circuit):
        say(console, "circuit", line, "green")
    for causal in report.causal:
        p = f" (p {causal.p_value:.3g}, least {causal.least_p:.3g})" if causal.null_effects else ""
        say(console, "causal", f"{causal.effect:+.2f} {causal.unit}{p}: {causal.description}", "cyan")
    if circuit.weights:
        console.print()
        console.print(Text("what their weights say", style="bold"))
        _weights(circuit).show(console)
    console.print()
    say(console, "columns", f"{COLUMNS} {circuit.dimension_null:.2f}", "dim")
    if circuit.weights:
        say(console, "weights", WEIGHT_COLUMNS, "dim")
    for warning in report.warnings:
        say(console, "warning", warning, "yellow")


def _links(circuit: InductionCircuit, top: int) -> Table:
    table = Table(
        "found", "link", "comp>", "z>", "effect>", "95 %", "other>", "p (>other)>", "whole>",
        spare=("whole", "other", "comp", "95 %", "z", "p (>other)"),
    )  # fmt: skip
    for link in circuit.links[:top]:
        table.add_row(
            "yes" if link.verdict else "no",
            f"{link.earlier}→{link.later}.{link.route.lower()}",
            f"{link.composition:.2f}",
            f"{link.z:.0f}",
            f"{link.effect:+.2f}",
            f"{link.interval[0]:.2f}–{link.interval[1]:.2f}",
            f"{link.null:+.2f}" if link.null_heads else "",
            "<.001" if link.p_above_null < 0.001 else f"{link.p_above_null:.3f}",
            f"{link.whole:+.2f}",
            style="green" if link.verdict else "dim",
        )
    return table


def _told(circuit: InductionCircuit) -> list[str]:
    """Return one sentence per earlier head: whose keys (or queries) it writes, as ablation confirms."""
    lines = []
    for earlier, route in dict.fromkeys((link.earlier, link.route) for link in circuit.confirmed):
        readers = [k for k in circuit.confirmed if (k.earlier, k.route) == (earlier, route)]
        named = ", ".join(f"{link.later} ({link.share:.0%})" for link in readers)
        lines.append(f"{earlier} writes what the {INPUT[route]} of {named} read; in brackets, of their induction score")
    return lines


def _weights(circuit: InductionCircuit) -> Table:
    table = Table("head", "kind", "copying>", "by outputs>", "one back by position>", spare=("one back by position",))
    for one in circuit.weights:
        positional = circuit.positional_score(one.head)
        table.add_row(
            str(one.head),
            one.kind.replace("_", "-"),
            f"{one.copying:+.2f}",
            f"{one.copying_output:+.2f}",
            "" if positional is None else f"{positional:.2f}",
        )
    (eigen, eigen_sd), (output, output_sd) = circuit.copying_others
    table.add_row("others", "mean ± sd", f"{eigen:+.2f} ± {eigen_sd:.2f}", f"{output:+.2f} ± {output_sd:.2f}", "")
    return table
