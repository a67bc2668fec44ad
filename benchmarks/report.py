"""A long attention report in a browser: 1,000 tokens and 12 x 12 heads. How large it is, and how soon a tap answers.

python benchmarks/report.py [--tokens N] [--layers N] [--heads N] [--taps N]

Scores are made up, one half of the heads sharp (previous token, sinks, matches), the other half noise, which is harder
to pack than what trained models show. Headless Chromium opens the page from a file with the network refused. A tap is
timed from the click to the frame after the page has answered. Prints a table, and as its last line one line of JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.browser import open_report
from interp.readout.attention import AttentionResult
from interp.report import write_report

TAP = """
(position) => new Promise((done) => {
  const word = document.querySelector(`.word[data-pos="${position}"]`);
  const start = performance.now();
  word.click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start), 0));
})
"""
PICK = """
(head) => new Promise((done) => {
  const list = document.querySelectorAll('#view-0 select')[1];
  const start = performance.now();
  const shown = (_, watcher) => {
    watcher.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start), 0));
  };
  new MutationObserver(shown).observe(document.querySelector('#view-0 h3'), { childList: true });
  list.value = head;
  list.dispatchEvent(new Event('change'));
})
"""


def made_up(n: int, layers: int, heads: int, seed: int = 0) -> AttentionResult:
    """Return scores of a long prompt: sharp heads and noisy ones by turns."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((layers, heads, n, n), dtype=np.float32)
    future = np.triu(np.ones((n, n), dtype=bool), 1)
    rows = np.arange(n)
    for layer, head in np.ndindex(layers, heads):
        own = scores[layer, head]
        kind = (layer + head) % 4
        if kind == 1:
            own[rows[1:], rows[:-1]] += 8
        elif kind == 3:
            own[:, 0] += 9
        own[future] = -np.inf
    names = [f" word{i}" if i % 3 else f" {chr(97 + i % 26)}" for i in range(n)]
    return AttentionResult(
        tokens=tuple(names), layers=tuple(range(layers)), scores=scores, model="made up", config={}, versions={}
    )


def measure(n: int, layers: int, heads: int, taps: int) -> dict[str, Any]:
    """Return sizes in bytes and times in milliseconds."""
    result = made_up(n, layers, heads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        start = time.perf_counter()
        write_report(result, path)
        written = time.perf_counter() - start
        del result
        with open_report(path, width=1440) as page:
            opened = page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
            positions = np.random.default_rng(1).permutation(n)[: taps + 3].tolist()
            tapped = [page.evaluate(TAP, position) for position in positions][3:]
            picked = [page.evaluate(PICK, str(1 + i % (heads - 1))) for i in range(min(taps, 2 * heads))]
            page.locator("#view-0 [data-value=all]").click()
            page.locator("[data-drawn]").nth(heads - 1).wait_for()
        size = path.stat().st_size
    return {
        "bytes": size,
        "writing_ms": round(1e3 * written),
        "opening_ms": round(opened),
        "tap_ms": round(statistics.median(tapped), 1),
        "tap_worst_ms": round(max(tapped), 1),
        "head_ms": round(statistics.median(picked), 1),
    }


def main(
    tokens: Annotated[int, typer.Option(min=2)] = 1000,
    layers: Annotated[int, typer.Option(min=1)] = 12,
    heads: Annotated[int, typer.Option(min=2)] = 12,
    taps: Annotated[int, typer.Option(min=1, help="how many taps are timed; the median is shown")] = 25,
) -> None:
    """Measure the size of a long attention report, and how soon a browser answers a tap in it."""
    found = measure(tokens, layers, heads, taps)
    table = Table(title=f"Attention of {tokens:,} tokens, {layers} x {heads} heads, as one HTML file")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("wanted", justify="right")
    table.add_row("size", f"{found['bytes'] / 1e6:.1f} MB", "below 25 MB")
    table.add_row("a tap on a token, median", f"{found['tap_ms']:.0f} ms", "below 100 ms")
    table.add_row("a tap on a token, worst", f"{found['tap_worst_ms']:.0f} ms", "")
    table.add_row("another head", f"{found['head_ms']:.0f} ms", "")
    table.add_row("opening the file", f"{found['opening_ms']} ms", "")
    table.add_row("writing the file", f"{found['writing_ms']} ms", "")
    Console().print(table)
    record = {
        "benchmark": "report",
        "tokens": tokens,
        "layers": layers,
        "heads": heads,
        "taps": taps,
        "python": platform.python_version(),
        "versions": {package: version(package) for package in ("residscope", "playwright")},
        **found,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    typer.run(main)
