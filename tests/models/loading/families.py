"""Tiny random Hugging Face models, drawn wide enough that every part matters."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 65,
    "max_position_embeddings": 64,
}
GPT2_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 65, "n_positions": 64}
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def build(family: str, **settings):
    """Return a Hugging Face model in eval mode, with random gains and biases too; eager attention."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    sizes = GPT2_SIZES if family == "GPT2" else SIZES
    config = getattr(transformers, f"{family}Config")(**(sizes | NO_IDS | settings))
    config._attn_implementation = "eager"
    name = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if is_gain(parameter, model) else 0.3 * noise)
    return model.requires_grad_(False)


def is_gain(parameter, model) -> bool:
    """Whether a parameter is a norm's gain."""
    names = [name for name, one in model.named_parameters() if one is parameter]
    return any(part in names[0] for part in ("norm.weight", "layernorm.weight", "ln_1.weight", "ln_2.weight", "ln_f.w"))


def save(model, folder: Path) -> Path:
    """Write a model as a folder, without the library's chatter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


def tokens(model, n: int = 20, batch: int = 2) -> torch.Tensor:
    """Return random ids ``[batch, n]``."""
    return torch.randint(0, model.config.vocab_size, (batch, n), generator=torch.Generator().manual_seed(1))
