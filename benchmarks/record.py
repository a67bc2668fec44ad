"""The last line of every benchmark: its figures, and what they were measured with, as one line of JSON."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from typing import Any

import torch


def print_record(benchmark: str, rounds: int, rows: list[dict[str, Any]]) -> None:
    """Print the figures of a benchmark as one line of JSON."""
    packages = ("residscope", "torch", "transformers", "transformer-lens")
    record = {
        "benchmark": benchmark,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        "rows": rows,
    }
    print(json.dumps(record))
