"""Logits equal Hugging Face's, in float32 to 1e-4 of the logit range (scenario 8)."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import CheckpointMismatch
from models.loading import load_model
from tests.models.loading.families import LLAMA3_ROPE, NO_IDS, build, save, tokens

MODELS = {
    "gpt2": ("GPT2", {}),
    "gpt2 untied": ("GPT2", {"tie_word_embeddings": False}),
    "gpt2 inner width, exact gelu": ("GPT2", {"n_inner": 40, "activation_function": "gelu"}),
    "gpt2 relu, eps": ("GPT2", {"activation_function": "relu", "layer_norm_epsilon": 1e-2}),
    "llama mha": ("Llama", {"num_key_value_heads": 4}),
    "llama gqa": ("Llama", {}),
    "llama mqa": ("Llama", {"num_key_value_heads": 1}),
    "llama tied, eps": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("Llama", {"head_dim": 12}),
    "llama gelu": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama base": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "llama linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "mistral window": ("Mistral", {"sliding_window": 5}),
    "mistral no window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2 window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
}


def assert_parity(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours - theirs).abs().max() <= 1e-4 * (theirs.max() - theirs.min())


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_hugging_face(name, tmp_path):
    family, settings = MODELS[name]
    theirs = build(family, **settings)
    ours = load_model(save(theirs, tmp_path / "model"))
    ids = tokens(theirs)
    assert_parity(ours(ids), theirs(ids).logits)


def test_gpt2_small_at_full_size(tmp_path):
    import transformers

    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    ours = load_model(save(theirs, tmp_path / "gpt2-small"))
    ids = tokens(theirs, n=32, batch=1)
    with torch.no_grad():
        assert_parity(ours(ids), theirs(ids).logits)
    assert (ours.cfg.n_layers, ours.cfg.n_heads, ours.cfg.d_vocab) == (12, 12, 50257)


def test_old_names_of_the_rope_settings(tmp_path):
    theirs = build("Llama", rope_parameters=LLAMA3_ROPE)
    folder = save(theirs, tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    scaling = values.pop("rope_parameters")
    values["rope_theta"] = scaling.pop("rope_theta")
    values["rope_scaling"] = scaling
    (folder / "config.json").write_text(json.dumps(values))
    ids = tokens(theirs)
    assert_parity(load_model(folder)(ids), theirs(ids).logits)
    scaling["type"] = scaling.pop("rope_type")
    (folder / "config.json").write_text(json.dumps(values))
    assert_parity(load_model(folder)(ids), theirs(ids).logits)


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_shards(family, tmp_path):
    theirs = build(family)
    theirs.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    ids = tokens(theirs)
    assert_parity(load_model(tmp_path / "model")(ids), theirs(ids).logits)


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_keys_without_the_prefix_and_with_buffers(family, tmp_path):
    """As the hub's gpt2 is: no ``transformer.``, causal masks beside the weights."""
    theirs = build(family, tie_word_embeddings=True)
    folder = save(theirs, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer.").removeprefix("model."): value for name, value in tensors.items()}
    if family == "GPT2":
        bare |= {"h.0.attn.bias": torch.ones(1, 1, 64, 64), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    else:
        bare["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    ids = tokens(theirs)
    assert_parity(load_model(folder)(ids), theirs(ids).logits)


def test_a_tied_model_may_bring_its_unembedding(tmp_path):
    theirs = build("Llama", tie_word_embeddings=True)
    folder = save(theirs, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ours = load_model(folder)
    assert ours.unembed.weight is ours.embed.W_E
    assert_parity(ours(tokens(theirs)), theirs(tokens(theirs)).logits)


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_c2_a_tied_model_may_bring_its_unembedding_alone(family, tmp_path):
    theirs = build(family, tie_word_embeddings=True)
    folder = save(theirs, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    embedding = next(name for name in tensors if name.endswith(("wte.weight", "embed_tokens.weight")))
    tensors["lm_head.weight"] = tensors.pop(embedding)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ours = load_model(folder)
    assert ours.unembed.weight is ours.embed.W_E
    assert_parity(ours(tokens(theirs)), theirs(tokens(theirs)).logits)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointMismatch, match=r"1 tensors are missing: .* or lm_head\.weight"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_converts_each_tensor(dtype, tmp_path):
    theirs = build("Llama")
    folder = save(theirs, tmp_path / "model")
    ours = load_model(folder, dtype=dtype)
    assert {parameter.dtype for parameter in ours.parameters()} == {getattr(torch, dtype)}
    expected = theirs.model.layers[1].mlp.up_proj.weight.to(getattr(torch, dtype))
    assert torch.equal(ours.blocks[1].mlp.inp.weight, expected)
    assert load_model(folder, dtype=getattr(torch, dtype)).dtype == ours.dtype


def test_a_loaded_model_is_frozen_and_in_eval_mode(tmp_path):
    ours = load_model(save(build("GPT2"), tmp_path / "model"))
    assert not ours.training
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert ours.tokenizer is None


def test_loading_leaves_the_source_as_it_was(tmp_path):
    folder = save(build("GPT2", **NO_IDS), tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ours = load_model(folder)
    with torch.no_grad():
        ours.embed.W_E.zero_()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
