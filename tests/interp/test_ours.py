"""A folder ``models`` of the user's own in the way is named in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script: Path, *flags: str) -> subprocess.CompletedProcess:
    """Run a script of a user's project, with residscope on the path as an installation has it: at its end."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    start = f"import runpy, sys; sys.path.append({str(ROOT)!r}); sys.argv = [{str(script)!r}]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, *flags, "-c", start]
    return subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("kind", ["a folder", "a package", "a module"])
@pytest.mark.parametrize("first", ["", "import models\n"])
def test_d16_what_is_in_the_way_of_our_models_is_named_in_one_line(kind, first, tmp_path):
    if kind == "a module":
        (tmp_path / "models.py").write_text("mine = 1\n")
    else:
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / ("net.py" if kind == "a folder" else "__init__.py")).write_text("mine = 1\n")
    script = tmp_path / "mine.py"
    script.write_text(f"{first}import interp\n")
    done = run(script)
    if kind == "a folder":  # a namespace package never hides a regular one that is installed
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: residscope's package 'models' is hidden by ")
    assert str(tmp_path / "models") in last
    assert "rename that" in last


def test_d16_without_anything_in_the_way_it_imports(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import interp\nprint(interp.find_heads.__name__)\n")
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "find_heads\n", "")
