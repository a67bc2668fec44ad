"""Indirect object identification (IOI, arXiv 2211.00593): who is given the drink?

    clean       When Mary and John went to the store, John gave a drink to   -> Mary
    flip        When Mary and John went to the store, Mary gave a drink to   -> John
    abc         When Anna and Paul went to the store, Mark gave a drink to      (neither name is told apart)

IO is the indirect object (Mary), S1 and S2 are the subject's two mentions (John). Half of the prompts name IO first
(ABBA), half S first (BABA). ``flip`` replaces one token, and turns the answer over (arXiv 2309.16042 prefers it);
``abc`` is the paper's own, and takes the answer away.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from interp.checks import whole_number
from interp.prompts.pairs import PromptBatch, PromptPair, prompt_batch, single_token, single_tokens
from models.errors import InputError
from models.protocol import HookedModel

TEMPLATE = "When{first} and{second} went to the{place},{subject} gave a{object} to"
NAMES = (
    "Mary", "John", "Tom", "James", "Dan", "Anna", "Kate", "Emma", "Jack", "Paul", "Mark", "Sarah", "Alice", "Bob",
    "David", "Peter", "Susan", "Laura", "Martin", "Simon", "George", "Henry", "Robert", "Michael", "William", "Thomas",
    "Jane", "Ruth", "Adam",
)  # fmt: skip
PLACES = ("store", "park", "school", "office", "station", "garden", "restaurant", "hospital")
OBJECTS = ("drink", "ring", "book", "basketball", "computer", "kiss", "bone", "snack")

_FIELDS = ("first", "second", "subject")
Corruption = Literal["flip", "abc"]


def ioi_prompts(
    model: HookedModel,
    n: int = 8,
    *,
    corruption: Corruption = "flip",
    names: Sequence[str] | None = None,
    templates: Sequence[str] = (TEMPLATE,),
    seed: int = 0,
) -> PromptBatch:
    """Draw IOI pairs, alternating ABBA and BABA.

    Args:
        model: its tokenizer decides which of the built-in names, places and objects are single tokens and may be used.
        n: how many pairs.
        corruption: ``flip`` or ``abc``.
        names: to draw from; each must be a single token with a space in front.
        templates: taken in turn, with ``{first}``, ``{second}``, ``{subject}``, and if wanted ``{place}`` and
            ``{object}``, each filled with its leading space. Different lengths are padded.
        seed: of the draw.

    Returns:
        Pairs with the positions ``IO``, ``S1``, ``S2`` and ``end``.

    Raises:
        InputError: too few names, a name of several tokens, a template without a field.
    """
    if corruption not in get_args(Corruption):
        raise InputError(f"corruption is {corruption!r}; expected 'flip' or 'abc'")
    n, seed = whole_number(n, "n", 1), whole_number(seed, "seed")
    for what, given in (("names", names), ("templates", templates)):
        if isinstance(given, str):
            raise InputError(f"{what} is the text {given!r}; expected a list of texts: {what}=[{given!r}]")
    if not templates:
        raise InputError("no templates were given")
    for template in templates:
        _check_template(template)
    usable = _usable_names(model, names, 5 if corruption == "abc" else 2)
    places, objects = (single_tokens(model, [f" {word}" for word in words]) for words in (PLACES, OBJECTS))
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(n):
        io, s, *others = (usable[i] for i in rng.permutation(len(usable))[:5])
        place, given = rng.choice(places), rng.choice(objects)
        template = templates[number // 2 % len(templates)]
        abba = number % 2 == 0

        def filled(first: str, second: str, subject: str) -> str:
            return template.format(first=first, second=second, subject=subject, place=place, object=given)  # noqa: B023

        first, second = (io, s) if abba else (s, io)
        corrupted = filled(first, second, io) if corruption == "flip" else filled(*others)
        labels: dict[str, str | tuple[str, int]] = {"IO": io, "S1": s, "S2": (s, 2)}
        pairs.append(PromptPair(filled(first, second, s), corrupted, io, s, labels))
    return prompt_batch(model, pairs, f"indirect object identification, {corruption}")


def _usable_names(model: HookedModel, names: Sequence[str] | None, least: int) -> list[str]:
    if names is None:
        usable = single_tokens(model, [f" {name}" for name in NAMES])
        source = f"of the {len(NAMES)} built-in names are single tokens of this model"
    else:
        usable = list(dict.fromkeys(f" {name.strip()}" for name in names))
        for name in usable:
            single_token(model, name)
        source = "names were given"
    if len(usable) < least:
        raise InputError(f"{len(usable)} {source}; IOI needs {least}: give others with names=[...]")
    return usable


def _check_template(template: str) -> None:
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InputError(f"template {template!r} cannot be read: {error}; write '{{{{' for a brace itself") from None
    unknown = sorted(set(fields) - {*_FIELDS, "place", "object"})
    if sorted(name for name in fields if name in _FIELDS) != sorted(_FIELDS) or unknown:
        raise InputError(
            f"template {template!r} has the fields {fields}; expected 'first', 'second' and 'subject', each once, and "
            "nothing else but 'place' and 'object'"
        )
