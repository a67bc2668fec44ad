"""What stands in a terminal: tokens as on pages, long prompts shortened, nothing that turns its direction."""

from __future__ import annotations

from rich.console import Console

from analyses.terminal import prompt_line, say, visible


def test_d12_line_ends_and_tabs_as_on_pages_and_long_prompts_shortened():
    assert visible(" a\n\t\x00\u202e") == "␣a↵⇥□□"
    line = prompt_line([f"t{i}" for i in range(317)])
    assert line.startswith("t0 t1 ")
    assert line.endswith(" t315 t316")
    assert "(269 more)" in line
    assert len(line.split()) == 48 + 4
    assert prompt_line([f"t{i}" for i in range(48)]).split() == [f"t{i}" for i in range(48)]


def test_d5_no_name_turns_the_direction_of_a_line(capsys):
    say(Console(), "model", "a\u202eb\u2067c\x1b[31md", "")
    shown = capsys.readouterr().out
    assert shown == "model    a□b□c□[31md\n"
