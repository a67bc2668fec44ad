"""The short names, and which kind of source goes to which loader."""

import subprocess
import sys

import pytest

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import LoadError
from models.loading import load, load_model, save_native
from models.text import SymbolTokenizer
from tests.models.loading.families import build, save

TOY = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=12)


@pytest.mark.parametrize("name", load.TOYS)
def test_toys_are_read_from_the_checkpoints_folder(name, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "CHECKPOINTS", tmp_path)
    with pytest.raises(LoadError, match=f"the checkpoint of '{name}' is not at .*train_toy"):
        load_model(name)
    save_native(HookedDecoder(TOY, seed=5, tokenizer=SymbolTokenizer()), tmp_path / f"{name}.safetensors", {})
    assert load_model(name, dtype="bfloat16").to_str_tokens("AB") == ["<bos>", "A", "B"]


def test_a_native_file_and_a_folder_load_by_path(tmp_path):
    save_native(HookedDecoder(TOY), tmp_path / "x.safetensors", {})
    assert load_model(tmp_path / "x.safetensors").cfg == TOY
    assert load_model(str(tmp_path / "x.safetensors")).cfg == TOY
    assert load_model(save(build("GPT2"), tmp_path / "folder")).cfg.n_layers == 2


def test_a_local_folder_wins_over_a_hub_name(tmp_path, monkeypatch):
    save(build("GPT2"), tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    assert load_model("gpt2").cfg.d_model == 32


def test_loading_a_toy_needs_neither_transformers_nor_gguf(tmp_path):
    """What is imported decides how fast ``analyses/induction.py`` starts."""
    save_native(HookedDecoder(TOY), tmp_path / "x.safetensors", {})
    code = (
        "import sys; from models.loading import load_model; load_model(sys.argv[1]); "
        "print([name for name in ('transformers', 'transformer_lens', 'gguf', 'sympy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.safetensors")], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
