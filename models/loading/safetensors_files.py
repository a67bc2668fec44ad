"""Tensors from one or several safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.errors import LoadError


def _open(path: Path):  # type: ignore[no-untyped-def]  # safe_open's class is not exported
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise LoadError(f"no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise LoadError(
            f"{path} is not a whole safetensors file ({_one_line(error)}); fetch or write it again"
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class SafetensorsFiles:
    """A checkpoint in one safetensors file, or in several with disjoint names.

    Args:
        paths: the files.
        origin: what messages call the checkpoint; the first path by default.
    """

    def __init__(self, paths: Sequence[Path], origin: str | None = None) -> None:
        self.origin = origin or str(paths[0])
        self._file_of: dict[str, Path] = {}
        for path in paths:
            with _open(path) as file:
                self._file_of |= dict.fromkeys(file.keys(), path)

    @classmethod
    def in_folder(cls, folder: Path) -> SafetensorsFiles:
        """The weights of a Hugging Face folder: ``model.safetensors``, or the shards that its index lists."""
        index = folder / "model.safetensors.index.json"
        if (folder / "model.safetensors").is_file():
            return cls([folder / "model.safetensors"])
        if index.is_file():
            return cls([folder / name for name in _shards(index)], origin=str(folder))
        if list(folder.glob("pytorch_model*.bin")):
            raise LoadError(
                f"{folder} has pytorch_model.bin only, a pickle that may run code; convert it once with transformers: "
                "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder) writes safetensors"
            )
        raise LoadError(f"{folder} has no weights; expected model.safetensors or model.safetensors.index.json in it")

    def names(self) -> Collection[str]:
        return self._file_of.keys()

    def read(self, name: str) -> Tensor:
        # A file opened anew for each tensor: pages of a lasting map would add up to a second copy of the model.
        with _open(self._file_of[name]) as file:
            return file.get_tensor(name)


def metadata(path: Path) -> dict[str, str]:
    """Return the free text beside a file's tensors. Raises LoadError for a file that is missing or broken."""
    with _open(path) as file:
        return file.metadata() or {}


def _shards(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return [os.fsdecode(name.encode("utf-8")) for name in names]  # whatever the locale, names are UTF-8 on disk
    except (ValueError, KeyError, AttributeError, TypeError):
        raise LoadError(f"{index} is corrupt; expected JSON with a 'weight_map' from tensor to file name") from None
