"""Our own file format: what is saved comes back, and nothing half-written stays."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import CheckpointMismatch, ConfigError, InputError, LoadError, UnsupportedModel
from models.loading import load_native, read_record, save_native
from models.text import SymbolTokenizer

TOY = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=12)
CONFIGS = {
    "learned": TOY,
    "tied": TOY.replace(tied=True),
    "rotary": TOY.replace(positions="rotary", norm="rms", gated=True, act="silu", n_kv_heads=1),
    "sinusoidal": TOY.replace(positions="sinusoidal", norm_position="post", unembed_bias=True),
    "attn_only": TOY.replace(attn_only=True, d_mlp=None),
}
TOKENS = torch.tensor([[64, 1, 2, 3, 1, 2]])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_model_comes_back_exactly(name, tmp_path):
    model = HookedDecoder(CONFIGS[name], seed=3, tokenizer=SymbolTokenizer())
    save_native(model, tmp_path / "new" / "model.safetensors", {"seed": 3})
    loaded = load_native(tmp_path / "new" / "model.safetensors")
    assert loaded.cfg == model.cfg
    assert loaded.tokenizer == SymbolTokenizer()
    torch.testing.assert_close(loaded(TOKENS), model(TOKENS), rtol=0, atol=0)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_a_tied_matrix_is_stored_once_and_stays_tied(tmp_path):
    path = tmp_path / "model.safetensors"
    save_native(HookedDecoder(CONFIGS["tied"]), path, {})
    with safe_open(path, "pt") as file:
        assert "unembed.weight" not in file.keys()  # noqa: SIM118
    loaded = load_native(path)
    assert loaded.unembed.weight is loaded.embed.W_E


def test_the_record_comes_back(tmp_path):
    record = {"seed": 0, "command": "python x.py", "metrics": {"loss": [0.5, 0.25]}}
    save_native(HookedDecoder(TOY), tmp_path / "model.safetensors", record)
    assert read_record(tmp_path / "model.safetensors") == record


def test_dtype(tmp_path):
    save_native(HookedDecoder(CONFIGS["rotary"]), tmp_path / "model.safetensors", {})
    loaded = load_native(tmp_path / "model.safetensors", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded.blocks[0].attn.rotary.theta.dtype == torch.float32  # angles need the precision


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "model.safetensors"
    save_native(HookedDecoder(TOY), path, {"version": 1})
    with pytest.raises(TypeError, match="JSON serializable"):
        save_native(HookedDecoder(TOY), path, {"version": object()})
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    assert read_record(path) == {"version": 1}


def test_another_tokenizer_is_refused(tmp_path):
    class Other:
        bos_token_id = None
        prepends_bos = False

    with pytest.raises(InputError, match="SymbolTokenizer, not a Other"):
        save_native(HookedDecoder(TOY, tokenizer=Other()), tmp_path / "model.safetensors", {})
    assert not list(tmp_path.iterdir())


def test_bad_files_are_named_in_one_line(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(LoadError, match="no file"):
        load_native(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(UnsupportedModel, match="no config, record, tokenizer in its metadata"):
        load_native(path)
    save_native(HookedDecoder(TOY), path, {})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(LoadError, match="not a whole safetensors file") as caught:
        load_native(path)
    assert "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_the_config_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    model = HookedDecoder(TOY)
    texts = {"config": json.dumps(CONFIGS["rotary"].to_dict()), "tokenizer": "", "record": "{}"}
    save_file(dict(model.state_dict()), path, metadata=texts)
    with pytest.raises(CheckpointMismatch, match=r"pos_embed\.W_pos.*missing.*mlp\.gate\.weight"):
        load_native(path)
    model.cfg = CONFIGS["rotary"]
    with pytest.raises(ConfigError, match="but the configuration gives"):
        save_native(model, path, {})
