"""A GPT-2-style model as a Hugging Face folder: config.json, model.safetensors, and its tokenizer."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from models.config import Activation, DecoderConfig
from models.decoder import HookedDecoder
from models.errors import InputError, UnsupportedModel
from models.loading.state import state_of
from models.loading.tokenizer import PretrainedTokenizer
from models.text import SymbolTokenizer, Tokenizer

_ACTIVATION_NAMES: dict[Activation, str] = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}

_GPT2_CHOOSES = ("n_layers", "d_model", "n_heads", "d_mlp", "d_vocab", "n_ctx", "act", "norm_eps", "tied", "init")


def save_hugging_face(model: HookedDecoder, folder: str | Path) -> None:
    """Write a model that ``GPT2LMHeadModel.from_pretrained`` loads, with the same logits and the same text interface.

    Args:
        model: learned positions, LayerNorm before each sublayer, a plain MLP, biases everywhere, one key/value head
            per query head.
        folder: new, or empty; it appears whole or not at all.

    Raises:
        UnsupportedModel: a configuration that GPT-2 does not have, with the fields that differ.
        ConfigError: parts or tensors that the configuration does not build.
        InputError: a folder with something in it, or a tokenizer of another kind.
    """
    _check(model.cfg)
    cfg, state = state_of(model)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder; choose a new one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        whole = Path(temporary) / folder.name
        whole.mkdir()
        (whole / "config.json").write_text(json.dumps(_configuration(model, cfg), indent=2) + "\n", encoding="utf-8")
        (whole / "model.safetensors").write_bytes(save(_tensors(cfg, state), metadata={"format": "pt"}))
        _save_tokenizer(model.tokenizer, whole)
        os.replace(whole, folder)


def _check(cfg: DecoderConfig) -> None:
    as_gpt2 = DecoderConfig(**{name: getattr(cfg, name) for name in _GPT2_CHOOSES})
    differing = [
        f"{field.name} = {value!r} (GPT-2: {expected!r})"
        for field in fields(cfg)
        if (value := getattr(cfg, field.name)) != (expected := getattr(as_gpt2, field.name))
    ]
    if differing:
        raise UnsupportedModel(f"only a GPT-2-style model can be saved as GPT-2; this one has {', '.join(differing)}")


def _configuration(model: HookedDecoder, cfg: DecoderConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": cfg.n_layers,
        "n_embd": cfg.d_model,
        "n_head": cfg.n_heads,
        "n_inner": cfg.d_mlp,
        "n_positions": cfg.n_ctx,
        "vocab_size": cfg.d_vocab,
        "activation_function": _ACTIVATION_NAMES[cfg.act],
        "layer_norm_epsilon": cfg.norm_eps,
        "tie_word_embeddings": cfg.tied,
        "bos_token_id": None if model.tokenizer is None else model.tokenizer.bos_token_id,
        "eos_token_id": None,
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def _tensors(cfg: DecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors = {
        "transformer.wte.weight": state["embed.W_E"],
        "transformer.wpe.weight": state["pos_embed.W_pos"],
        "transformer.ln_f.weight": state["ln_final.w"],
        "transformer.ln_f.bias": state["ln_final.b"],
    }
    if not cfg.tied:
        tensors["lm_head.weight"] = state["unembed.weight"]

    for layer in range(cfg.n_layers):
        ours, theirs = f"blocks.{layer}.", f"transformer.h.{layer}."

        def put(name: str, *parts: str, ours: str = ours, theirs: str = theirs) -> None:
            """Fuse linear layers side by side, in their layout [in, out]."""
            tensors[f"{theirs}{name}.weight"] = torch.cat([state[f"{ours}{part}.weight"] for part in parts]).T
            tensors[f"{theirs}{name}.bias"] = torch.cat([state[f"{ours}{part}.bias"] for part in parts])

        for norm in ("1", "2"):
            tensors[f"{theirs}ln_{norm}.weight"] = state[f"{ours}ln{norm}.w"]
            tensors[f"{theirs}ln_{norm}.bias"] = state[f"{ours}ln{norm}.b"]
        put("attn.c_attn", "attn.q", "attn.k", "attn.v")
        put("attn.c_proj", "attn.o")
        put("mlp.c_fc", "mlp.inp")
        put("mlp.c_proj", "mlp.out")
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def _save_tokenizer(tokenizer: Tokenizer | None, folder: Path) -> None:
    if tokenizer is None:
        return
    if isinstance(tokenizer, SymbolTokenizer):
        _as_pretrained(tokenizer).save_pretrained(folder)
    elif isinstance(tokenizer, PretrainedTokenizer):
        tokenizer.inner.save_pretrained(folder)
    else:
        raise InputError(
            f"a {type(tokenizer).__name__} cannot be saved; set model.tokenizer = None to save the weights alone"
        )


def _as_pretrained(symbols: SymbolTokenizer) -> Any:
    """Return the ``transformers`` tokenizer with the same ids: one symbol, one token, BOS last."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {symbol: i for i, symbol in enumerate(symbols.symbols)} | {"<bos>": symbols.bos_token_id}
    inner = Tokenizer(models.WordLevel(ids))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["<bos>"])
    if symbols.prepends_bos:
        special = [("<bos>", symbols.bos_token_id)]
        inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>")
