"""Titles: the prompt's own text, isolated."""

from __future__ import annotations

import re

from interp.report import to_html
from interp.report.titles import isolated, neutral, whole
from tests.interp.report import examples


def test_d5_fragments_that_make_a_character_become_it():
    family = "👨\u200d👩 مرحبا"
    for width in (1, 2, 3):
        raw = family.encode()
        pieces = [raw[i : i + width] for i in range(0, len(raw), width)]
        tokens = ["".join(f"⟨{piece.hex(' ').upper()}⟩") for piece in pieces]
        assert whole(tokens) == family
    assert whole(["a", "⟨F0 9F⟩", "b"]) == "a⟨F0⟩⟨9F⟩b"


def test_d5_what_turns_the_direction_is_written_out_and_a_part_isolated():
    turns = [chr(code) for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2066, 0x2067)]
    for turn in turns:
        assert turn not in neutral(f"a{turn}b")
        assert isolated(f"a{turn}b\u2069\u2068") == f"\u2068a⟨U+{ord(turn):04X}⟩b\u2069"
    html = to_html(examples.lens(), title="x\u202ey", command="python \u202ez")
    assert re.search("<title>x⟨U\\+202E⟩y</title>", html)
    assert "<h1><bdi>x⟨U+202E⟩y</bdi></h1>" in html
    assert "\u202e" not in html
