"""Taking heads out, and random sets of heads to compare with.

Mean ablation: a head's z is replaced, at every position, by its mean over sequences and positions of intact runs, so
that what the head says everywhere stays and what it says about this token goes. A joint effect is measured jointly:
single effects do not add up, because heads stand in for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.prompts import RepeatedTokens
from interp.results import CausalEvidence, HeadKind
from interp.sites import Head
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel

BATCH = 8


def token_loss(logits: Float[Tensor, "batch pos d_vocab"], tokens: Tensor) -> Float[Tensor, "batch pos-1"]:
    """Return -log p of each next token, in nats; entry i is the prediction of token i + 1."""
    logits, following = logits[:, :-1].float(), tokens[:, 1:, None]
    return logits.logsumexp(-1) - logits.gather(-1, following)[..., 0]


@dataclass(frozen=True)
class Knockout:
    """What heads are ablated with.

    Attributes:
        model: the model.
        prompts: the sequences on which effects are measured.
        mean_z: what stands in for a head, ``[layer, head, d_head]``.
        tick: called after every run.
    """

    model: HookedModel
    prompts: RepeatedTokens
    mean_z: Float[Tensor, "layer head d_head"]
    tick: Callable[[], None]

    def hooks(self, heads: Sequence[Head]) -> list[Hook]:
        """Return the hooks that mean-ablate ``heads``."""

        def ablate(z: Float[Tensor, "batch pos head d_head"], hook: HookPoint) -> Tensor:
            chosen = [head.head for head in heads if head.layer == hook.layer]
            z[:, :, chosen] = self.mean_z[hook.layer, chosen].to(z.dtype)
            return z

        return [(f"blocks.{layer}.attn.hook_z", ablate) for layer in sorted({head.layer for head in heads})]

    def read(self, heads: Sequence[Head], readers: Sequence[Hook], stop_at_layer: int) -> None:
        """Run the layers below ``stop_at_layer`` without ``heads``, with ``readers`` attached."""
        reached = [head for head in heads if head.layer < stop_at_layer]
        hooks = [*self.hooks(reached), *readers]
        self.model.run_with_hooks(self.prompts.repeated, fwd_hooks=hooks, stop_at_layer=stop_at_layer)
        self.tick()

    def loss(self, heads: Sequence[Head]) -> Float[np.ndarray, "pos-1"]:
        """Return the next-token loss without ``heads``, mean over sequences."""
        losses = [
            token_loss(self.model.run_with_hooks(tokens, fwd_hooks=self.hooks(heads)), tokens)
            for tokens in self.prompts.repeated.split(BATCH)
        ]
        self.tick()
        return torch.cat(losses).double().mean(0).cpu().numpy()

    def repeat_loss(self, heads: Sequence[Head]) -> float:
        """Return the loss on the repeated half, from its second token on: the first has nothing to be copied from."""
        return float(self.loss(heads)[self.prompts.second_half].mean())


@dataclass(frozen=True)
class RandomSets:
    """Random sets of heads to hold against a given set, of its size where enough other heads are left.

    Attributes:
        sets: distinct sets; empty where there are no other heads.
        note: where the heads come from.
    """

    sets: tuple[tuple[Head, ...], ...]
    note: str


def random_sets(
    heads: Sequence[Head], detected: Sequence[Head], n_layers: int, n_heads: int, n_sets: int, seed: int
) -> RandomSets:
    """Draw sets of as many heads as ``heads`` has, from the same layers as far as other heads are left there.

    Args:
        heads: the set to match; none of its heads is drawn.
        detected: further heads that are not drawn: they may matter in their own way.
        n_layers, n_heads: of the model.
        n_sets: how many distinct sets to draw; fewer where fewer exist.
        seed: of the draw.
    """
    every = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    pool = [head for head in every if head not in {*heads, *detected}]
    if not pool:
        return RandomSets((), "no random sets, because no other heads are left")
    wanted = [sum(head.layer == layer for head in heads) for layer in range(n_layers)]
    there = [[head for head in pool if head.layer == layer] for layer in range(n_layers)]
    size = min(len(heads), len(pool))
    elsewhere = size - sum(min(n, len(left)) for n, left in zip(wanted, there, strict=True))
    rng = np.random.default_rng(seed)

    def draw() -> tuple[Head, ...]:
        shuffled = [[left[i] for i in rng.permutation(len(left))] for left in there]
        chosen = [head for n, left in zip(wanted, shuffled, strict=True) for head in left[:n]]
        rest = [head for n, left in zip(wanted, shuffled, strict=True) for head in left[n:]]
        chosen += [rest[i] for i in rng.permutation(len(rest))[:elsewhere]]
        return tuple(sorted(chosen))

    sets = tuple(dict.fromkeys(draw() for _ in range(10 * n_sets)))[:n_sets]
    note = f"{_count(len(sets), 'random set')} of {_count(size, 'other head')}"
    if size < len(heads):
        note += ", all that are of no detected kind"
    where = f"{elsewhere} of them in other layers" if elsewhere else "in the same layers"
    return RandomSets(sets, f"{note}, {where}")


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def evidence_against_random(
    kind: HeadKind,
    heads: Sequence[Head],
    effect: Callable[[Sequence[Head]], float],
    random_sets: RandomSets,
    *,
    description: str,
    unit: str,
    details: dict[str, float],
) -> CausalEvidence:
    """Return the effect of ``heads`` beside those of the random sets, with p = (1 + #{null >= effect}) / (1 + n)."""
    of_heads = effect(heads)
    nulls = tuple(effect(chosen) for chosen in random_sets.sets)
    p_value = (1 + sum(null >= of_heads for null in nulls)) / (1 + len(nulls))
    text = f"{description}; against {random_sets.note}" if nulls else f"{description}; {random_sets.note}"
    return CausalEvidence(kind, tuple(heads), text, of_heads, unit, nulls, p_value, details)


def repeat_loss_evidence(
    kind: HeadKind, knockout: Knockout, heads: Sequence[Head], random_sets: RandomSets, singly: Sequence[Head]
) -> tuple[CausalEvidence, dict[Head, float]]:
    """Return the rise in repeat loss without ``heads``, against random sets, and without each of ``singly``."""
    intact = knockout.repeat_loss(())
    evidence = evidence_against_random(
        kind,
        heads,
        lambda ablated: knockout.repeat_loss(ablated) - intact,
        random_sets,
        description=(
            f"rise in the loss on the repeated half when all {kind.replace('_', '-')} heads found ({len(heads)}) are "
            "mean-ablated"
        ),
        unit="nats",
        details={"intact": intact},
    )
    return evidence, {head: knockout.repeat_loss([head]) - intact for head in singly}
