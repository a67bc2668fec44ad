"""Pairs of a clean and a corrupted prompt: of equal token length, token by token, with an answer and a wrong one.

A pair differs in what the question is about and nothing else, so that patching between the two runs is about that.
Where a word stands is labelled by its last token's column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.checks import as_ids
from interp.metrics import LogitDifference
from models.errors import InputError, TokenizerMissing
from models.protocol import HookedModel
from models.tokens import as_mask


@dataclass(frozen=True)
class PromptPair:
    """One pair, as text.

    Attributes:
        clean, corrupted: the prompts; they must have equally many tokens.
        answer, wrong: what follows the clean prompt, and what must not; each a single token, leading space included.
        labels: name -> word of the clean prompt, or (word, which occurrence from 1).

    >>> PromptPair("When Mary and John met, John gave Mary's hat to", "When Mary and John met, Mary gave Mary's hat to",
    ...            answer=" Mary", wrong=" John", labels={"IO": " Mary", "S2": (" John", 2)}).answer
    ' Mary'
    """

    clean: str
    corrupted: str
    answer: str
    wrong: str
    labels: Mapping[str, str | tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """Pairs as token ids, checked.

    Attributes:
        clean, corrupted: ids ``[batch, pos]``; shorter pairs are padded.
        answer, wrong: ids ``[batch]``.
        positions: label -> column in each example, ``[batch]``; ``end`` is the last real token.
        attention_mask: True at real tokens; None where all are.
        about: what the pairs ask, in a few words.
    """

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    answer: Int[Tensor, "batch"]
    wrong: Int[Tensor, "batch"]
    positions: Mapping[str, Int[Tensor, "batch"]]
    attention_mask: Bool[Tensor, "batch pos"] | None = None
    about: str = ""

    def __post_init__(self) -> None:
        for name in ("clean", "corrupted", "answer", "wrong"):
            object.__setattr__(self, name, as_ids(getattr(self, name), name))
        if self.clean.ndim != 2 or 0 in self.clean.shape:
            raise InputError(f"clean has shape {tuple(self.clean.shape)}; expected ids [batch, pos], neither of them 0")
        if self.clean.shape != self.corrupted.shape:
            raise InputError(
                f"clean has shape {tuple(self.clean.shape)} and corrupted {tuple(self.corrupted.shape)}; they go in "
                "pairs of equal length"
            )
        batch, width = self.clean.shape
        for name, ids in (("answer", self.answer), ("wrong", self.wrong)):
            if ids.shape != (batch,):
                raise InputError(f"{name} has shape {tuple(ids.shape)}; expected one id per pair, [{batch}]")
        self._check_mask()
        differs = self.clean != self.corrupted
        if self.attention_mask is not None:
            differs = differs & self.attention_mask
        if (same := ~differs.any(1)).any():
            raise InputError(f"clean and corrupted are the same in pair {int(same.nonzero()[0])}; there is no question")
        if (self.answer == self.wrong).any():
            pair = int((self.answer == self.wrong).nonzero()[0])
            raise InputError(f"answer and wrong answer are the same token in pair {pair}")
        columns_of = {name: as_ids(columns, f"positions of {name!r}") for name, columns in self.positions.items()}
        object.__setattr__(self, "positions", columns_of)
        for label, columns in columns_of.items():
            if columns.shape != (batch,) or int(columns.min()) < 0 or int(columns.max()) >= width:
                raise InputError(
                    f"the positions of {label!r} are {columns.tolist()}; expected {batch} of 0 to {width - 1}"
                )

    def _check_mask(self) -> None:
        if self.attention_mask is None:
            return
        mask = as_mask(self.attention_mask)
        if mask.shape != self.clean.shape or not bool(((mask == 0) | (mask == 1)).all()):
            raise InputError(
                f"attention_mask is {tuple(mask.shape)}; expected True at real tokens and False at padding, "
                f"{tuple(self.clean.shape)}"
            )
        object.__setattr__(self, "attention_mask", mask.bool())

    def __len__(self) -> int:
        return len(self.clean)

    def metric(self) -> LogitDifference:
        """Return logit(answer) - logit(wrong) at each example's last real token."""
        return LogitDifference(self.answer, self.wrong)


def prompt_batch(model: HookedModel, pairs: Sequence[PromptPair], about: str = "") -> PromptBatch:
    """Return pairs as ids of this model, padded on the right where their lengths differ.

    Raises:
        InputError: no pairs; a pair of different token lengths (both tokenisations are shown); an answer of several
            tokens; a label whose word is not there; a pair that asks nothing.
        TokenizerMissing: the model has none.
    """
    if not pairs:
        raise InputError("no pairs were given")
    sides: list[list[Tensor]] = [[], []]
    labelled: list[dict[str, int]] = []
    for number, pair in enumerate(pairs):
        clean, corrupted = (model.to_tokens(text)[0] for text in (pair.clean, pair.corrupted))
        if len(clean) != len(corrupted):
            raise InputError(describe_misalignment(model, clean, corrupted, f" of pair {number}"))
        sides[0].append(clean)
        sides[1].append(corrupted)
        labelled.append(_labelled(model, pair))
        if list(labelled[-1]) != list(labelled[0]):
            raise InputError(
                f"pair {number} labels {list(labelled[-1])}, pair 0 {list(labelled[0])}; label the same words in every "
                "pair"
            )
    lengths = torch.tensor([len(side) for side in sides[0]])
    clean, corrupted = (pad_sequence(side, batch_first=True) for side in sides)
    real = torch.arange(clean.shape[1]) < lengths[:, None]

    def vector(ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, device=clean.device)

    return PromptBatch(
        clean,
        corrupted,
        vector([single_token(model, pair.answer) for pair in pairs]),
        vector([single_token(model, pair.wrong) for pair in pairs]),
        {label: vector([columns[label] for columns in labelled]) for label in labelled[0]}
        | {"end": (lengths - 1).to(clean.device)},
        None if real.all() else real.to(clean.device),
        about,
    )


def single_token(model: HookedModel, word: str) -> int:
    """Return the id of a word, leading space included. Raises InputError where it is not one token."""
    ids = encoded(model, word)
    if len(ids) != 1:
        raise InputError(
            f"{word!r} is {len(ids)} tokens of this model, {model.to_str_tokens(ids)}; a single token is needed: "
            "choose another word"
        )
    return ids[0]


def single_tokens(model: HookedModel, words: Sequence[str]) -> list[str]:
    """Return the words that are one token each. Raises TokenizerMissing."""
    found = []
    for word in words:
        try:
            ids = encoded(model, word)
        except InputError:  # not in the vocabulary of a toy at all
            if model.tokenizer is None:
                raise
            continue
        if len(ids) == 1:
            found.append(word)
    return found


def encoded(model: HookedModel, text: str) -> list[int]:
    """Return the ids of a text without BOS. Raises TokenizerMissing."""
    if model.tokenizer is None:
        raise TokenizerMissing("this model has no tokenizer; use repeated_token_prompts, or make a PromptBatch of ids")
    return model.tokenizer.encode(text)


def _labelled(model: HookedModel, pair: PromptPair) -> dict[str, int]:
    """Return the column of each labelled word's last token."""
    whole = model.to_tokens(pair.clean)[0]
    columns = {}
    for label, which in pair.labels.items():
        word, occurrence = (which, 1) if isinstance(which, str) else which
        found = list(re.finditer(re.escape(word) + r"(?!\w)", pair.clean))
        if not 1 <= occurrence <= len(found):
            raise InputError(
                f"label {label!r} is about occurrence {occurrence} of {word!r}, which stands {len(found)} times in "
                f"{pair.clean!r}"
            )
        up_to_it = model.to_tokens(pair.clean[: found[occurrence - 1].end()])[0]
        if not torch.equal(whole[: len(up_to_it)], up_to_it):
            raise InputError(
                f"{word!r} does not end with a token in {model.to_str_tokens(whole)}, so label {label!r} has no "
                "position"
            )
        columns[label] = len(up_to_it) - 1
    return columns


def describe_misalignment(model: HookedModel, clean: Tensor, corrupted: Tensor, which: str = "") -> str:
    """Return the message for a pair of different token lengths: both tokenisations, the first difference marked."""
    texts = [model.to_str_tokens(side) for side in (clean, corrupted)]
    shorter = min(len(clean), len(corrupted))
    differs = next((i for i in range(shorter) if clean[i] != corrupted[i]), shorter)
    shown = [
        " ".join(f">>{token!r}<<" if i == differs else repr(token) for i, token in enumerate(text)) for text in texts
    ]
    return (
        f"the clean prompt{which} has {len(clean)} tokens and the corrupted one {len(corrupted)}; patching needs "
        f"equal lengths, token by token.\n  clean:     {shown[0]}\n  corrupted: {shown[1]}\n"
        f"They first differ at position {differs}; choose words of as many tokens"
    )
