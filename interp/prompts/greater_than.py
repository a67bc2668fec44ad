"""Greater than (arXiv 2305.00586): a war cannot end before it began.

    clean       The war lasted from the year 1752 to the year 17   -> 68, not 31
    corrupted   The war lasted from the year 1701 to the year 17      (both may follow)

Years are compared in the unit that the tokenizer gives: two digits at once (GPT-2), or the tens digit (SmolLM2, whose
tokens are single digits).
"""

from __future__ import annotations

import numpy as np

from interp.checks import whole_number
from interp.prompts.pairs import PromptBatch, PromptPair, encoded, prompt_batch
from models.errors import InputError
from models.protocol import HookedModel

TEMPLATE = "The{event} lasted from the year 17{year} to the year 17"
EVENTS = ["war", "siege", "strike", "reign", "voyage", "mission"]


def greater_than_prompts(model: HookedModel, n: int = 8, *, seed: int = 0) -> PromptBatch:
    """Draw pairs of start years, the corrupted one being the earliest.

    The answer is drawn from what lies after the clean start, the wrong one from between the two starts.

    Args:
        model: its tokenizer must split ``1752`` after the century.
        n: how many pairs.
        seed: of the draw.

    Returns:
        Pairs with the positions ``year`` (the start year's last token) and ``end``.

    Raises:
        InputError: a tokenizer that gives years no unit to compare.
    """
    n, seed = whole_number(n, "n", 1), whole_number(seed, "seed")
    values, texts = _units(model)
    earliest = min(values, key=lambda year: (values[year], year))
    possible = sorted({value for value in values.values() if value > values[earliest]})
    starts = [year for year, value in values.items() if possible[0] < value < possible[-1]]
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n):
        year, event = str(rng.choice(starts)), str(rng.choice(EVENTS))
        answer = rng.choice([value for value in possible if value > values[year]])
        wrong = rng.choice([value for value in possible if value < values[year]])
        clean, corrupted = (TEMPLATE.format(event=f" {event}", year=one) for one in (year, earliest))
        pairs.append(PromptPair(clean, corrupted, texts[answer], texts[wrong], {"year": f" 17{year}"}))
    return prompt_batch(model, pairs, "greater than, years")


def _units(model: HookedModel) -> tuple[dict[str, int], dict[int, str]]:
    """Return what each year (its last two digits) counts as in the model's unit, and the text of each value."""
    century = encoded(model, " the year 17")
    split: dict[str, list[int]] = {}
    for number in range(1, 100):
        year = f"{number:02d}"
        ids = encoded(model, f" the year 17{year}")
        if ids[: len(century)] == century:
            split[year] = ids[len(century) :]
    for n_tokens, digits in ((1, 2), (2, 1)):
        years = {year: int(year[:digits]) for year, ids in split.items() if len(ids) == n_tokens}
        texts = {value: year[:digits] for year, value in years.items()}
        if len(texts) >= 5:
            return years, texts
    raise InputError(
        f"this tokenizer gives ' the year 1752' as {model.to_str_tokens(encoded(model, ' the year 1752'))}; years can "
        "be compared where the century stands apart from the rest, and the rest is one token or two digits"
    )
