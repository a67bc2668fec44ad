"""The command line that analyses share: one line for bad input, the traceback for a mistake of ours."""

from __future__ import annotations

import pytest
import typer

from analyses.command import Seed, progress_bar, run
from models.errors import LoadError


def app_raising(error: BaseException | None) -> typer.Typer:
    app = typer.Typer(add_completion=False)

    @app.command()
    def main(seed: Seed = 0) -> None:
        if error is not None:
            raise error

    return app


def test_a_good_run_returns_0():
    assert run(app_raising(None), []) == 0


@pytest.mark.parametrize(
    ("error", "args", "line"),
    [
        (LoadError("no file\n or folder"), [], "error: no file or folder"),
        (OSError(28, "No space left on device", "a.json"), [], "error: [Errno 28] No space left on device: 'a.json'"),
        (None, ["--seed", "x"], "error: Invalid value for '--seed'"),
        (None, ["--seed", "-1"], "error: Invalid value for '--seed'"),
        (None, ["--sead", "1"], "error: No such option: --sead"),
    ],
)
def test_bad_input_is_one_line_and_2(error, args, line, capsys):
    assert run(app_raising(error), args) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1


def test_an_interrupt_is_one_line_and_130(capsys):
    assert run(app_raising(KeyboardInterrupt()), []) == 130
    assert capsys.readouterr().err == "interrupted; no file is half-written\n"


def test_our_own_mistakes_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run(app_raising(ZeroDivisionError()), [])


def test_no_progress_is_shown_where_nobody_watches(capsys):
    with progress_bar() as progress:
        progress("scores", 0.5)
    assert capsys.readouterr() == ("", "")
