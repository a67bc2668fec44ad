"""GGUF files, llama.cpp's format: metadata, tokenizer and (mostly quantised) tensors in one file.

Tensors are read and dequantised one at a time, by the ``gguf`` package. Files of the ``llama`` architecture (Mistral
and SmolLM among them) keep the rows of their query and key weights in the interleaved order of the planes,
(plane, 2) within each head; here they are put back into Llama's half-split order, (2, plane).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from models.config import DecoderConfig, RotaryScaling
from models.decoder import HookedDecoder
from models.errors import ConfigError, LoadError, UnsupportedModel
from models.loading import tokenizer
from models.loading.quiet import quiet
from models.loading.settings import Settings
from models.loading.stream import Adapter, Transform, adapter, block_part, empty_model, fill
from models.parts.rope import frequencies

if TYPE_CHECKING:
    from gguf import GGUFReader

ARCHITECTURES = ("gpt2", "llama", "qwen2")
_ROWS_AT_ONCE = 1024  # dequantised in slices, so that intermediate values stay small
_IGNORED = re.compile(r"rope_freqs\.weight")  # read into the configuration
_HARMLESS = {"vocab_size", "rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout"}

_OUTSIDE = {
    "embed.W_E": "token_embd.weight",
    "pos_embed.W_pos": "position_embd.weight",
    "ln_final.w": "output_norm.weight",
    "ln_final.b": "output_norm.bias",
    "unembed.weight": "output.weight",
}
_IN_BLOCK = {
    "ln1": "attn_norm",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.o": "attn_output",
    "ln2": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.inp": "ffn_up",
    "mlp.out": "ffn_down",
}


def load_gguf(path: Path, dtype: torch.dtype, device: torch.device) -> HookedDecoder:
    """Load a GGUF file.

    Raises:
        LoadError: a file that is missing or broken.
        UnsupportedModel: an architecture, a setting or a tensor type that is not handled.
        CheckpointMismatch: tensors that do not fit.
    """
    reader = _reader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    weights = GGUFTensors(path, reader)
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(f"{path}: architecture {architecture!r}; handled are {', '.join(ARCHITECTURES)}")
    own = {name.removeprefix(f"{architecture}."): value for name, value in metadata.items() if "general." not in name}
    own = {name: value for name, value in own.items() if not name.startswith(("GGUF.", "quantize."))}
    try:
        cfg = configuration(Settings(own, str(path)), architecture, weights)
    except (ConfigError, TypeError) as error:
        raise LoadError(f"{path} describes no model: {error}") from None
    texts = tokenizer.from_gguf(path) if "tokenizer.ggml.model" in reader.fields else None
    model = empty_model(cfg, texts, dtype, device)
    return fill(model, weights, tensors(model, architecture))


def _reader(path: Path) -> GGUFReader:
    from gguf import GGUFReader

    if not path.is_file():
        raise LoadError(f"no file {path}")
    try:
        with quiet():
            return GGUFReader(path)
    except Exception as error:  # it parses as it goes: a broken file ends in any kind of error
        raise LoadError(
            f"{path} is not a whole GGUF file ({type(error).__name__}: {' '.join(str(error).split())[:120]}); "
            "fetch or write it again"
        ) from None


class GGUFTensors:
    """The tensors of a GGUF file, in float32."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self.origin = str(path)
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape as torch has it, rows first. Raises LoadError where there is no such tensor."""
        if name not in self._tensors:
            raise LoadError(f"{self.origin} has no tensor {name!r}; is it a language model?")
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def read(self, name: str) -> Tensor:
        from gguf.quants import dequantize

        info = self._tensors[name]
        # read, not mapped: pages of a lasting map would add up to a copy of the file in memory
        stored = np.fromfile(self._path, np.uint8, count=info.n_bytes, offset=info.data_offset)
        rows = stored.view(info.data.dtype).reshape(-1, info.data.shape[-1])
        out = np.empty((len(rows), self.shape(name)[-1]), np.float32)
        try:
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                out[start : start + _ROWS_AT_ONCE] = dequantize(rows[start : start + _ROWS_AT_ONCE], info.tensor_type)
        except NotImplementedError:
            raise UnsupportedModel(
                f"{self.origin}: {name} is stored as {info.tensor_type.name}, which the gguf "
                "package cannot read; use a file in F16, Q8_0 or a K-quant"
            ) from None
        return torch.from_numpy(out).reshape(self.shape(name))


def configuration(settings: Settings, architecture: str, weights: GGUFTensors) -> DecoderConfig:
    """Translate the metadata, given without the architecture's name in front."""
    settings.expect("expert_count", 0)
    settings.expect("attention.causal", True)
    names = weights.names()
    common: dict[str, Any] = {
        "n_layers": settings.take("block_count"),
        "d_model": settings.take("embedding_length"),
        "n_heads": settings.take("attention.head_count"),
        "d_mlp": settings.take("feed_forward_length"),
        "n_ctx": settings.take("context_length"),
        "d_vocab": weights.shape("token_embd.weight")[0],
        "tied": "output.weight" not in names,
    }
    if architecture == "gpt2":
        cfg = DecoderConfig(**common, norm_eps=settings.take("attention.layer_norm_epsilon"), act="gelu_tanh")
    else:
        d_head = settings.take("attention.key_length", None) or common["d_model"] // common["n_heads"]
        settings.expect("attention.value_length", d_head)
        settings.expect("rope.dimension_count", d_head)
        cfg = DecoderConfig(
            **common,
            n_kv_heads=settings.take("attention.head_count_kv", None),
            d_head=d_head,
            positions="rotary",
            rotary_base=settings.take("rope.freq_base", 10_000.0),
            rotary_scaling=_linear_scaling(settings),
            sliding_window=settings.take("attention.sliding_window", None) or None,
            norm="rms",
            norm_eps=settings.take("attention.layer_norm_rms_epsilon"),
            act="silu",
            gated=True,
            qkv_bias="blk.0.attn_q.bias" in names,
            out_bias="blk.0.attn_output.bias" in names,
            mlp_bias="blk.0.ffn_up.bias" in names,
        )
        if "rope_freqs.weight" in names:
            cfg = cfg.replace(rotary_scaling=_llama3_scaling(cfg, weights.read("rope_freqs.weight"), settings.origin))
    settings.finish(_HARMLESS)
    return cfg


def _linear_scaling(settings: Settings) -> RotaryScaling | None:
    settings.expect("rope.scaling.type", "none", "linear")
    factor = settings.take("rope.scaling.factor", 1.0)
    return RotaryScaling(kind="linear", factor=factor) if factor not in (0.0, 1.0) else None


def _llama3_scaling(cfg: DecoderConfig, divisors: Tensor, origin: str) -> RotaryScaling:
    """Recognise Llama 3's scaling by what its frequencies are divided by. Raises UnsupportedModel on any other."""
    unscaled = frequencies(cfg.replace(rotary_scaling=None))
    scaling = RotaryScaling(kind="llama3", factor=float(divisors.max()), low_freq=1.0, high_freq=4.0)
    expected = unscaled / frequencies(cfg.replace(rotary_scaling=scaling))
    if cfg.rotary_scaling is not None or not torch.allclose(divisors, expected, rtol=1e-4):
        raise UnsupportedModel(
            f"{origin}: rope_freqs.weight scales the rotary frequencies in a way that is not Llama 3's "
            f"(factor {scaling.factor:g}, wavelengths 8192/4 to 8192/1)"
        )
    return scaling


def tensors(model: HookedDecoder, architecture: str) -> Adapter:
    """Return the places of a GGUF file's tensors."""
    cfg = model.cfg

    def locate(ours: str) -> tuple[str, Transform | None]:
        if ours in _OUTSIDE:
            return _OUTSIDE[ours], None
        layer, part, kind = block_part(ours)
        if architecture == "gpt2" and part in ("attn.q", "attn.k", "attn.v"):
            return f"blk.{layer}.attn_qkv.{kind}", _third("qkv".index(part[-1]))
        theirs = f"blk.{layer}.{_IN_BLOCK[part]}.{kind}"
        if architecture == "llama" and part in ("attn.q", "attn.k"):
            return theirs, _half_split(cfg.n_heads if part == "attn.q" else cfg.n_kv_heads)
        return theirs, None

    return adapter(model, locate, tied_copy="output.weight", ignored=_IGNORED)


def _third(i: int) -> Callable[[Tensor], Tensor]:
    return lambda fused: fused.tensor_split(3)[i]


def _half_split(n_heads: int) -> Callable[[Tensor], Tensor]:
    """Undo llama.cpp's row order of query and key weights."""
    return lambda rows: rearrange(rows, "(head plane two) ... -> (head two plane) ...", head=n_heads, two=2)
