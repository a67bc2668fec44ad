"""A file appears whole, in a place where a file can be."""

from __future__ import annotations

import pytest
import torch

from interp.files import encodable, written_whole
from interp.readout import TunedLens, attention
from models.errors import InputError
from tests.configurations import CONFIGS, random_model


def test_after_an_error_nothing_is_left(tmp_path):
    def write() -> None:
        with written_whole(tmp_path / "new" / "a") as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_in_the_files_place_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = random_model(CONFIGS["gpt2"])
    for save in (attention(model, torch.tensor([1, 2])).save, TunedLens.identity(model).save):
        for path in (tmp_path, str(tmp_path), "", ".", ".."):
            with pytest.raises(InputError, match="which is a folder; give the name of a file"):
                save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_a_folders_place_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    for path in ("taken/a", "taken/deeper/a"):
        with pytest.raises(InputError, match="is a file; give another folder"), written_whole(tmp_path / path):
            pytest.fail("the body must not run")


def test_halves_of_surrogate_pairs_become_question_marks():
    assert encodable("a\ud83d🙂\udcff") == "a\ufffd🙂\ufffd"
