"""Tiny random Hugging Face models of the architectures that TransformerLens boots, as folders with a tokenizer."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from tests.models.loading.families import is_gain, save
from tests.models.loading.test_tokenizer import byte_tokenizer

_NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_B = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    **_NO_IDS,
}
_G = {**_B, "num_key_value_heads": 2}  # grouped keys
_D = {**_G, "head_dim": 8}
_GPT2 = {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **_NO_IDS}
_OPT = {**_B, "word_embed_proj_dim": 32, "ffn_dim": 48, "pad_token_id": 1}
del _OPT["intermediate_size"]  # it calls it ffn_dim
_TRANSLATOR = {
    "vocab_size": 300, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_GRANITE = {"attention_multiplier": 0.5, "residual_multiplier": 0.7, "embedding_multiplier": 2.0, "logits_scaling": 3.0}

SETTINGS = {
    "gpt2": _GPT2,
    "llama": _G,
    "mistral": _G,
    "qwen2": _G,
    "qwen3": _D,
    "gemma": _D,
    "gemma2": {**_D, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_D, "query_pre_attn_scalar": 8, "sliding_window": 32},
    "opt": _OPT,
    "gptj": {**_GPT2, "rotary_dim": 4},
    "gpt_neo": {
        "vocab_size": 300, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1]], **_NO_IDS,
    },
    "gpt_neox": _B,
    "xglm": {
        "vocab_size": 300, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48,
        "max_position_embeddings": 64,
    },
    "glm": _D,
    "glm4": _D,
    "olmo": _G,
    "olmo2": _G,
    "olmo3": _G,
    "granite": {**_G, **_GRANITE},
    "gpt_oss": {**_D, "num_local_experts": 2, "num_experts_per_tok": 1},
    "codegen": {**_GPT2, "rotary_dim": 4},
    "phi": _G,
    "phi3": {**_G, "pad_token_id": 0},
    "falcon": {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **_NO_IDS},
    "stablelm": _G,
    "bloom": {"vocab_size": 300, "hidden_size": 32, "n_layer": 2, "n_head": 4, **_NO_IDS},
    "mixtral": {**_G, "num_local_experts": 2},
    "qwen3_moe": {**_D, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "smollm3": {**_G, "pad_token_id": 0},
    "cohere": _G,
    "starcoder2": _G,
    "gpt_bigcode": _GPT2,
    "hunyuan_v1_dense": _D,
    "exaone4": _G,
    "openai-gpt": _GPT2,
    "marian": _TRANSLATOR,
    "bart": _TRANSLATOR,
    "t5": {"vocab_size": 300, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "bert": _B,
    "roberta": {**_B, "pad_token_id": 1},
}  # fmt: skip
_CLASSES = {"marian": "MarianMTModel", "bart": "BartForConditionalGeneration", "t5": "T5ForConditionalGeneration"} | {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
}
_GAINS_AROUND_0 = ("gemma", "gemma2", "gemma3_text")  # they multiply by 1 + weight


def build(architecture: str, **settings):
    """Return a Hugging Face model in eval mode, with random gains and biases too; eager attention."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = transformers.AutoConfig.for_model(architecture, **(SETTINGS[architecture] | settings))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    if architecture in _CLASSES:
        model = getattr(transformers, _CLASSES[architecture])(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    around = 0 if architecture in _GAINS_AROUND_0 else 1
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(around + 0.2 * noise if is_gain(parameter, model) else 0.3 * noise)
    return model.eval().requires_grad_(False)


def folder_of(architecture: str, folder: Path, **settings) -> Path:
    """Write such a model, with a byte-level tokenizer."""
    save(build(architecture, **settings), folder)
    byte_tokenizer(bos=True, prepends=True).save_pretrained(folder)
    return folder
