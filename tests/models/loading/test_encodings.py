"""Names and texts beyond ASCII, in a locale that knows ASCII alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.models.loading.families import build, save

ROOT = Path(__file__).parents[3]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(environment: dict[str, str], *command: str | bytes) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | environment, capture_output=True, timeout=600
    )


@pytest.mark.parametrize("environment", [{}, ASCII], ids=["this locale", "ASCII"])
def test_c5_shards_with_names_beyond_ascii_load_in_every_locale(environment, tmp_path):
    folder = save(build("GPT2"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"modèle-1.safetensors": names[::2], "模型-2.safetensors": names[1::2]}
    for shard, some in shards.items():
        save_file({name: tensors[name] for name in some}, folder / shard, metadata={"format": "pt"})
    index = {"weight_map": {name: shard for shard, some in shards.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
    code = f"from models.loading import load_model; print(load_model({str(folder)!r}).cfg.n_layers)"
    done = run(environment, "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, b"2"), done.stderr


@pytest.mark.parametrize("environment", [{}, ASCII], ids=["this locale", "ASCII"])
def test_c5_an_undecodable_byte_in_a_prompt_is_one_line(environment, tmp_path):
    done = run(environment, "analyses/logit_lens.py", "--prompt", b"AB\xff", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "error: the text is not UTF-8: the byte 0xFF at character 3 of 3; leave it out"
    ]
    assert not (tmp_path / "out").exists()
