"""Hugging Face tokenizers behind the ``Tokenizer`` protocol of ``models.text``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.errors import InputError, LoadError
from models.loading.quiet import quiet

# any of them says that there is a tokenizer; which class reads which of them, AutoTokenizer knows
_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "spm.model",
)  # fmt: skip


class PretrainedTokenizer:
    """A tokenizer of the ``transformers`` library.

    Args:
        inner: the library's tokenizer.

    Attributes:
        bos_token_id: the BOS it declares, or None.
        prepends_bos: measured: whether its own encoding of a text leads with BOS.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.bos_token_id: int | None = inner.bos_token_id
        self.prepends_bos = self.bos_token_id is not None and self._prepends()

    def _prepends(self) -> bool:
        """Return whether BOS leads what the tokenizer makes of a text, the first that its vocabulary has."""
        for text in ("0", *self.inner.get_vocab()):
            try:
                plain = self.encode(text)
            except InputError:  # a vocabulary of other symbols, without an unknown token
                continue
            if plain and self.bos_token_id not in plain:
                return list(self.inner.encode(text))[: len(plain) + 1] == [self.bos_token_id, *plain]
        return False

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, without anything added. Raises InputError where it has no ids for it."""
        try:
            return list(self.inner.encode(text, add_special_tokens=False, verbose=False))
        except Exception as error:  # the Rust tokenizers raise plain Exception for a symbol outside their vocabulary
            raise InputError(f"the tokenizer cannot encode {text!r}: {error}") from None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens shown.

        A lone token shows what it is in running text: with its leading space, as U+FFFD where it is a fragment of a
        character's bytes, and as ``<id 123>`` where the vocabulary has no such token.
        """
        ids = [int(i) for i in ids]
        text = self.inner.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if len(ids) != 1:
            return text
        piece = self.inner.convert_ids_to_tokens(ids[0])
        if piece is None:
            return f"<id {ids[0]}>"
        return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text

    def bytes_of(self, token: int) -> bytes | None:
        """Return the bytes of a token of a byte-level vocabulary, or of a byte token ``<0xF0>``; None for others."""
        piece = self.inner.convert_ids_to_tokens(int(token)) or ""
        if re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes.fromhex(piece[3:5])
        return bytes(_BYTES[symbol] for symbol in piece) if piece and _BYTES.keys() >= set(piece) else None


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's spelling of bytes: the printable ones as themselves, the others from U+0100 on, in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def from_folder(folder: Path) -> PretrainedTokenizer | None:
    """Return a folder's tokenizer, or None where it has no tokenizer files, or none with a vocabulary."""
    if not any((folder / name).is_file() for name in _FILES):
        return None
    tokenizer = _load(folder, str(folder))
    # a class that finds none of the files it reads makes one of special tokens alone, to which every text is empty
    inner = tokenizer.inner
    return None if inner.get_vocab().keys() <= set(inner.all_special_tokens) else tokenizer


def from_gguf(path: Path) -> PretrainedTokenizer:
    """Return the tokenizer inside a GGUF file."""
    return _load(path.parent, str(path), gguf_file=path.name)


def _load(folder: Path, origin: str, **options: str) -> PretrainedTokenizer:
    from transformers import AutoTokenizer

    with quiet():
        try:
            return PretrainedTokenizer(AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **options))
        except Exception as error:  # whatever the library meets in a broken file, of any type
            reason = " ".join(str(error).split())[:200]
            raise LoadError(f"the tokenizer of {origin} cannot be read: {type(error).__name__}: {reason}") from error
