"""Text to tokens and back, for models that have a tokenizer.

Nothing is added behind the caller's back:

===============  ==================================================================================================
``prepend_bos``
===============  ==================================================================================================
None             as the tokenizer does by itself, but a BOS is not added before one that the text begins with
True             exactly one BOS leads, however many the text begins with
False            none leads, however many the text begins with
===============  ==================================================================================================

A BOS further on in the text is the text's own, and stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.config import StackConfig
from models.errors import InputError, TokenizerMissing
from models.tokens import as_ids, check_mask, check_tokens, shown, texts_in

Ids = Int[Tensor, "batch pos"] | Int[Tensor, "pos"] | np.ndarray | Sequence[int] | Sequence[Sequence[int]]
ModelInput = str | Sequence[str] | Ids


@runtime_checkable
class Tokenizer(Protocol):
    """What a model needs of a tokenizer.

    Attributes:
        bos_token_id: the token that may lead a sequence, or None.
        prepends_bos: whether the tokenizer leads with it by itself.
    """

    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def prepends_bos(self) -> bool: ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, without anything added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens shown."""
        ...


@dataclass(frozen=True)
class SymbolTokenizer:
    """One character, one token: the toy models' vocabulary, with BOS as its last id.

    >>> toy = SymbolTokenizer()
    >>> toy.encode("AB"), toy.decode([64, 0, 1]), toy.bos_token_id
    ([0, 1], '<bos>AB', 64)
    """

    symbols: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
    prepends_bos: bool = True

    @property
    def bos_token_id(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            if text.startswith("<bos>"):
                ids.append(self.bos_token_id)
                text = text.removeprefix("<bos>")
                continue
            if text[0] not in self.symbols:
                raise InputError(f"{text[0]!r} is not in this model's vocabulary {self.symbols!r}")
            ids.append(self.symbols.index(text[0]))
            text = text[1:]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        for i in ids:
            if not 0 <= i <= self.bos_token_id:
                raise InputError(f"id {i} is not in this model's vocabulary, 0 to {self.bos_token_id}")
        return "".join("<bos>" if i == self.bos_token_id else self.symbols[i] for i in ids)


def encode(tokenizer: Tokenizer | None, text: str, prepend_bos: bool | None) -> list[int]:
    """Return the ids of one text, led as ``prepend_bos`` says (see above). Raises InputError where nothing is left."""
    if tokenizer is None:
        raise TokenizerMissing("this model has no tokenizer; pass token ids [batch, pos] instead of text")
    ids = tokenizer.encode(check_text(text))
    bos = tokenizer.bos_token_id
    wanted = tokenizer.prepends_bos if prepend_bos is None else prepend_bos
    if prepend_bos and bos is None:
        raise InputError("prepend_bos=True, but this tokenizer has no BOS token")
    if bos is not None:
        if prepend_bos is not None:
            ids = list(dropwhile(lambda token: token == bos, ids))
        if wanted and ids[:1] != [bos]:
            ids = [bos, *ids]
    if not ids:
        raise InputError("the text has no tokens; give at least one character")
    return ids


def check_text(text: str) -> str:
    """Return a text that has a UTF-8 form. Raises InputError where it holds a byte that could not be decoded.

    A command line with bytes that are no UTF-8 gives such a text, and so does a cut in the middle of an emoji.
    """
    if found := re.search("[\ud800-\udfff]", text):
        code = ord(found[0])
        what = f"the byte 0x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"half a character, U+{code:04X}"
        raise InputError(f"the text is not UTF-8: {what} at character {found.start() + 1} of {len(text)}; leave it out")
    return text


class TextInterface:
    """``to_tokens`` and its inverses; a model mixes this in and sets ``tokenizer``."""

    cfg: StackConfig
    tokenizer: Tokenizer | None

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    def to_tokens(self, text: str | Sequence[str], prepend_bos: bool | None = None) -> Int[Tensor, "batch pos"]:
        """Return token ids ``[batch, pos]``.

        Args:
            text: one text or several.
            prepend_bos: None: as the tokenizer does by itself, never before a BOS that the text begins with; True:
                exactly one BOS leads, False: none does, however many the text begins with.

        Raises:
            TokenizerMissing: the model has no tokenizer.
            InputError: texts of different token length (``to_batch`` pads them), or no text at all.
        """
        texts = _texts(text)
        rows = [encode(self.tokenizer, one, prepend_bos) for one in texts]
        if len({len(row) for row in rows}) != 1:
            raise InputError(
                f"the texts have {[len(row) for row in rows]} tokens; to_tokens needs equal lengths, "
                "to_batch pads them and returns the attention mask"
            )
        return torch.tensor(rows, device=self.device)

    def to_batch(
        self, texts: str | Sequence[str], prepend_bos: bool | None = None, padding: Literal["left", "right"] = "right"
    ) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
        """Return token ids and the attention mask of texts of any lengths, padded on one side."""
        texts = _texts(texts)
        if not texts:
            raise InputError("no texts were given")
        if padding not in ("left", "right"):
            raise InputError(f"padding is {padding!r}; expected 'left' or 'right'")
        rows = [encode(self.tokenizer, text, prepend_bos) for text in texts]
        width = max(len(row) for row in rows)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        real = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, row in enumerate(rows):
            columns = slice(width - len(row), width) if padding == "left" else slice(0, len(row))
            tokens[i, columns] = torch.tensor(row)
            real[i, columns] = True
        return tokens.to(self.device), real.to(self.device)

    def prepare(
        self,
        input: ModelInput,
        attention_mask: Any = None,
        prepend_bos: bool | None = None,
        padding: Literal["left", "right"] = "right",
    ) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"] | None]:
        """Return checked token ids, and which of them are real (None for all).

        Every way into a model asks here, so that all take the same: ids as a tensor, an array or lists, or texts.

        Raises:
            InputError: anything else, ids outside the vocabulary, a mask that does not fit.
        """
        texts = texts_in(input)
        if texts is None:
            tokens = check_tokens(input, self.cfg, self.device)
            return tokens, check_mask(attention_mask, tokens)
        if attention_mask is not None:
            raise InputError("attention_mask goes with token ids; texts make their own")
        tokens, real = self.to_batch(texts, prepend_bos, padding)
        return check_tokens(tokens, self.cfg, self.device), None if real.all() else real

    def to_string(self, tokens: Int[Tensor, "pos"] | Sequence[int] | int) -> str:
        """Return the text of one sequence of ids."""
        if self.tokenizer is None:
            raise TokenizerMissing("this model has no tokenizer, so ids have no text")
        return self.tokenizer.decode(_ids(tokens))

    def to_str_tokens(
        self, text: str | Int[Tensor, "pos"] | Sequence[int], prepend_bos: bool | None = None
    ) -> list[str]:
        """Return one string per token, for the eye; without a tokenizer, the ids themselves.

        A fragment of a character, which has no text of its own, is shown as its bytes: ``⟨F0 9F⟩``.
        """
        ids = encode(self.tokenizer, text, prepend_bos) if isinstance(text, str) else _ids(text)
        if self.tokenizer is None:
            return [str(i) for i in ids]
        return [_shown(self.tokenizer, i) for i in ids]

    def to_single_token(self, text: str) -> int:
        """Return the id of a text that is exactly one token. Raises InputError where it is not."""
        if self.tokenizer is None:
            raise TokenizerMissing("this model has no tokenizer, so text has no ids")
        ids = self.tokenizer.encode(check_text(text))
        if len(ids) != 1:
            raise InputError(f"{text!r} is {len(ids)} tokens, {self.to_str_tokens(ids)}; a single token is needed")
        return ids[0]


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text, bytes that are no whole character in hexadecimal: all would be the same U+FFFD."""
    text = tokenizer.decode([token])
    bytes_of = getattr(tokenizer, "bytes_of", None)  # only tokenizers with a byte-level vocabulary have it
    raw = bytes_of(token) if bytes_of is not None and "\ufffd" in text else None
    if raw is None:
        return text
    escaped = raw.decode("utf-8", "surrogateescape")
    return re.sub(
        "[\udc80-\udcff]+", lambda run: f"⟨{run[0].encode('utf-8', 'surrogateescape').hex(' ').upper()}⟩", escaped
    )


def _texts(given: Any) -> list[str]:
    texts = texts_in(given)
    if texts is None:
        raise InputError(f"expected a text or texts, got {shown(given)}")
    return texts


def _ids(tokens: Any) -> list[int]:
    ids = as_ids(tokens, "a sequence of token ids")
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim > 1:
        raise InputError(f"one sequence of ids is needed; got one of shape {tuple(ids.shape)}")
    return ids.reshape(-1).tolist()
