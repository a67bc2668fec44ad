"""Our own file: a ``HookedDecoder`` in one safetensors file, as the toys are shipped.

The tensors are the model's state (a tied unembedding once, as the embedding). The text beside them is JSON:

=============  =================================================================================
``config``     ``cfg.to_dict()``
``tokenizer``  the fields of a ``SymbolTokenizer``, or nothing
``record``     how the weights came about: seed, command, metrics, whatever the writer knows
=============  =================================================================================
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError, InputError, UnsupportedModel
from models.loading.safetensors_files import SafetensorsFiles, metadata
from models.loading.state import state_of
from models.loading.stream import Adapter, Place, empty_model, fill
from models.text import SymbolTokenizer, Tokenizer


def save_native(model: HookedDecoder, path: str | Path, record: Mapping[str, Any]) -> None:
    """Write a model to one file; the file appears whole or not at all.

    Args:
        model: without a tokenizer, or with a ``SymbolTokenizer``.
        path: ends in ``.safetensors``; its folder is made where it is missing.
        record: JSON-able values to keep beside the weights; ``read_record`` gives them back.

    Raises:
        InputError: another kind of tokenizer.
        ConfigError: parts or tensors that the configuration does not build.
    """
    cfg, state = state_of(model)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    texts = {
        "config": json.dumps(cfg.to_dict()),
        "tokenizer": _tokenizer_text(model.tokenizer),
        "record": json.dumps(dict(record)),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        whole = Path(folder) / path.name
        whole.write_bytes(save(tensors, metadata=texts))  # save_file would let nobody else read it
        os.replace(whole, path)


def load_native(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> HookedDecoder:
    """Read a file that ``save_native`` wrote; the model is in eval mode and frozen.

    Raises:
        LoadError: a file that is missing, broken, or not one of ours.
        CheckpointMismatch: tensors that do not fit the configuration.
    """
    cfg, tokenizer = _configuration(Path(path))
    model = empty_model(cfg, tokenizer, dtype, torch.device(device))
    places = {name: (Place(name),) for name, _ in model.named_parameters()}
    return fill(model, SafetensorsFiles([Path(path)]), Adapter(places))


def read_record(path: str | Path) -> dict[str, Any]:
    """Return what was given to ``save_native`` as ``record``."""
    return json.loads(_texts(Path(path))["record"])


def _texts(path: Path) -> dict[str, str]:
    texts = metadata(path)
    if missing := {"config", "tokenizer", "record"} - set(texts):
        raise UnsupportedModel(
            f"{path} has no {', '.join(sorted(missing))} in its metadata, so save_native did not write it; "
            "for a Hugging Face checkpoint give the folder instead"
        )
    return texts


def _configuration(path: Path) -> tuple[DecoderConfig, Tokenizer | None]:
    texts = _texts(path)
    try:
        cfg = DecoderConfig.from_dict(json.loads(texts["config"]))
        fields = json.loads(texts["tokenizer"]) if texts["tokenizer"] else None
        return cfg, None if fields is None else SymbolTokenizer(**fields)
    except (json.JSONDecodeError, TypeError, ConfigError) as error:
        raise UnsupportedModel(f"{path} describes no model that this version can build: {error}") from None


def _tokenizer_text(tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return ""
    if isinstance(tokenizer, SymbolTokenizer):
        return json.dumps(dataclasses.asdict(tokenizer))
    raise InputError(
        f"save_native keeps a SymbolTokenizer, not a {type(tokenizer).__name__}; set model.tokenizer = None to save "
        "the weights alone"
    )
