"""The GPT-2 path from end to end: a toy that has the heads, saved as a Hugging Face GPT-2, given by its path."""

import json

from analyses.command import run
from analyses.induction import app
from models.loading import load_model, save_hugging_face


def test_a_toy_saved_as_a_hugging_face_gpt2_shows_the_same_heads(tmp_path, capsys):
    save_hugging_face(load_model("toy"), tmp_path / "gpt2")
    found = []
    for number, source in enumerate(("toy", tmp_path / "gpt2")):
        out = tmp_path / str(number)
        assert run(app, ["--model", str(source), "--out", str(out)]) == 0
        heads = json.loads((out / "induction.json").read_text())["heads"]
        found.append({(h["kind"], h["layer"], h["head"]): round(h["score"], 4) for h in heads if h["verdict"]})
    assert found[0] == found[1]
    assert {kind for kind, _, _ in found[0]} == {"induction", "previous_token", "sink"}
