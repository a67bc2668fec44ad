"""A Hugging Face folder: config.json, safetensors, and a tokenizer where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError, LoadError, UnsupportedModel, nearest
from models.loading import gpt2, llama, tokenizer
from models.loading.safetensors_files import SafetensorsFiles
from models.loading.settings import Settings
from models.loading.stream import Adapter, empty_model, fill


@dataclass(frozen=True)
class Family:
    """What one architecture needs: its configuration translated, and its tensor names adapted."""

    configuration: Callable[[Settings], DecoderConfig]
    tensors: Callable[[HookedDecoder, Collection[str]], Adapter]


_LLAMA = Family(llama.configuration, llama.tensors)
FAMILIES = {"gpt2": Family(gpt2.configuration, gpt2.tensors), "llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA}


def load_folder(folder: Path, dtype: torch.dtype, device: torch.device) -> HookedDecoder:
    """Load a folder that ``save_pretrained`` wrote, or that the hub gave.

    Raises:
        LoadError: a folder without config or weights, or a broken file.
        UnsupportedModel: an architecture or a setting that is not handled.
        CheckpointMismatch: tensors that do not fit.
    """
    values = read_config(folder)
    family = FAMILIES[values["model_type"]]
    cfg = configuration(values, str(folder / "config.json"))
    weights = SafetensorsFiles.in_folder(folder)
    model = empty_model(cfg, tokenizer.from_folder(folder), dtype, device)
    return fill(model, weights, family.tensors(model, weights.names()))


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a supported architecture."""
    path = folder / "config.json"
    if not path.is_file():
        raise LoadError(f"{folder} has no config.json; expected a folder as save_pretrained writes it, or a .gguf file")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{path} is not JSON ({error}); fetch or write it again") from None
    if not isinstance(values, dict):
        raise LoadError(f"{path} holds a {type(values).__name__}; expected an object with a 'model_type'")
    model_type = values.get("model_type")
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"{path}: model_type is {model_type!r}{nearest(str(model_type), FAMILIES)}; "
            f"handled are {', '.join(FAMILIES)}"
        )
    return values


def configuration(values: dict[str, Any], origin: str) -> DecoderConfig:
    """Translate the values of a config.json."""
    try:
        return FAMILIES[values["model_type"]].configuration(Settings(values, origin))
    except (ConfigError, TypeError) as error:
        raise LoadError(f"{origin} describes no model: {error}") from None
