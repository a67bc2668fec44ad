"""The MLP as a key-value memory (Geva et al., arXiv 2012.14913).

    out = sum_i act(x . key_i) value_i                            gated: act(x . key_i) (x . factor_i) value_i

Neuron i's *key* is its column of the input matrix (gated: of the gate's), and it fires on streams that lie along it.
Its *value* is its row of the output matrix: what it writes when it fires, as tokens through the unembedding. The factor
of a gated neuron may be negative, and then the neuron writes against its value: look at the activation's sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.checks import Followed
from interp.decoders import check_parts
from interp.precision import at_least_float32
from interp.readout.logit_attribution import logit_attribution
from interp.weights.head_circuits import carried
from interp.weights.token_circuits import final_directions, top_texts, vocabulary_chunks
from models.errors import InputError
from models.parts.sublayer import MLPSublayer
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd

Texts = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Memory:
    """One neuron as a memory.

    Attributes:
        layer, neuron: which.
        key_tokens: the tokens whose embeddings, as the MLP would read them alone, lie most along the key, with dot
            products (pre-activations without the bias).
        value_tokens, suppressed_tokens: the tokens whose logits the value raises, and lowers, most; per unit of
            activation, before norms divide.
    """

    layer: int
    neuron: int
    key_tokens: Texts
    value_tokens: Texts
    suppressed_tokens: Texts

    @property
    def name(self) -> str:
        """``L3N17``."""
        return f"L{self.layer}N{self.neuron}"


@dataclass(frozen=True)
class Context:
    """A place where a neuron fired.

    Attributes:
        activation: of the neuron (``mlp.hook_post``).
        row, column: in the tokens given.
        text: some real tokens up to and including that column.
    """

    activation: float
    row: int
    column: int
    text: str


@dataclass(frozen=True, eq=False)
class FiredMemories:
    """Which memories fired on a prompt, and what they added to the answer; the largest magnitude first.

    Attributes:
        memories: as tokens.
        activations: ``[memory]``, ``mlp.hook_post`` at the column that predicts.
        attributions: ``[memory]``, what they add to the answer's logit (or the difference), norms frozen.
        logit: the model's own logit or difference.
    """

    memories: tuple[Memory, ...]
    activations: Float[Tensor, "memory"]
    attributions: Float[Tensor, "memory"]
    logit: float

    def to_frame(self) -> pd.DataFrame:
        """Return one row per memory."""
        import pandas as pd

        return pd.DataFrame(
            {
                "memory": [memory.name for memory in self.memories],
                "activation": self.activations.tolist(),
                "logits": self.attributions.tolist(),
                "value": [" ".join(repr(token) for token, _ in memory.value_tokens[:5]) for memory in self.memories],
            }
        )


@torch.no_grad()
def memories(model: ResumableModel, layer: int, neurons: Sequence[int], *, n_tokens: int = 8) -> tuple[Memory, ...]:
    """Read some neurons of a layer as memories.

    Args:
        model: a ``HookedDecoder`` with MLPs.
        layer, neurons: which.
        n_tokens: tokens per list.

    Peak memory: d_vocab x len(neurons) twice, and 4096 rows of the vocabulary.

    Raises:
        InputError: a layer or neuron out of range, an attention-only model.
    """
    mlp = _checked_mlp(model, layer, neurons)
    index = torch.tensor(list(neurons), device=model.device)
    W_key = mlp.core.W_in if mlp.core.W_gate is None else mlp.core.W_gate
    keys, values = at_least_float32(W_key[:, index]), at_least_float32(mlp.core.W_out[index])
    values = carried(model, values, layer, len(model.blocks), of_mlp=True)
    by_key, by_value = [], []
    for tokens in vocabulary_chunks(model):
        read = mlp.norm_in.unhooked(model.embed(tokens))
        by_key.append(at_least_float32(read) @ keys)
        by_value.append(final_directions(model, tokens) @ values.T)
    key_scores, value_scores = torch.cat(by_key), torch.cat(by_value)
    return tuple(
        Memory(
            layer,
            int(neuron),
            top_texts(model, key_scores[:, i], n_tokens),
            top_texts(model, value_scores[:, i], n_tokens),
            top_texts(model, value_scores[:, i], n_tokens, largest=False),
        )
        for i, neuron in enumerate(neurons)
    )


@torch.no_grad()
def exciting_contexts(
    model: ResumableModel,
    layer: int,
    neuron: int,
    tokens: Int[Tensor, "batch pos"],
    *,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    n_contexts: int = 5,
    window: int = 8,
) -> tuple[Context, ...]:
    """Return where in some texts a neuron fires most, with the tokens before; the highest activation first.

    Args:
        model: a ``HookedDecoder`` with MLPs.
        layer, neuron: which.
        tokens: ids, or texts.
        attention_mask: True at real tokens.
        n_contexts: how many places.
        window: tokens of each.

    Raises:
        InputError: a layer or neuron out of range, an attention-only model.
    """
    _checked_mlp(model, layer, [neuron])
    tokens, real = model.prepare(tokens, attention_mask)
    name = f"blocks.{layer}.mlp.hook_post"
    _, cache = model.run_with_cache(tokens, attention_mask=real, names_filter=name, return_type=None)
    fired = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    activation = at_least_float32(cache[name][..., neuron]).masked_fill(~fired, -torch.inf)
    best = activation.flatten().topk(min(n_contexts, int(fired.sum())))
    contexts = []
    for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        row, column = divmod(place, tokens.shape[1])
        seen = tokens[row, : column + 1][fired[row, : column + 1]][-window:]
        contexts.append(Context(value, row, column, "".join(model.to_str_tokens(seen))))
    return tuple(contexts)


@torch.no_grad()
def fired_memories(
    model: ResumableModel,
    tokens: Int[Tensor, "1 pos"],
    answer: Followed,
    wrong: Followed | None = None,
    *,
    n_memories: int = 10,
    n_tokens: int = 8,
) -> FiredMemories:
    """Return the memories of all layers that added most to an answer's logit, or took most from it, on one prompt.

    Args:
        model: a ``HookedDecoder`` with MLPs.
        tokens: one prompt, ids or text; its last token predicts.
        answer, wrong: token ids; with both, the difference of their logits is meant.
        n_memories, n_tokens: how many memories, and how many tokens of each.

    Raises:
        InputError: more than one prompt, ids that do not fit, an attention-only model.
    """
    _checked_mlp(model, 0, [])
    tokens, _ = model.prepare(tokens)
    if len(tokens) != 1:
        raise InputError(f"fired_memories reads one prompt; got {len(tokens)}")
    d_mlp = cast(int, model.cfg.d_mlp)
    found = logit_attribution(model, tokens, answer, wrong, by="neuron")
    by_label = dict(zip(found.labels, found.values[:, 0], strict=True))
    every = [(layer, neuron) for layer in range(len(model.blocks)) for neuron in range(d_mlp)]
    added = torch.stack([by_label[f"L{layer}N{neuron}"] for layer, neuron in every])
    best = added.abs().topk(min(n_memories, len(every))).indices
    places = [every[i] for i in best.tolist()]
    hooks = {layer: f"blocks.{layer}.mlp.hook_post" for layer, _ in places}
    _, cache = model.run_with_cache(tokens, names_filter=list(hooks.values()), return_type=None)
    activations = torch.stack([at_least_float32(cache[hooks[layer]][0, -1, neuron]) for layer, neuron in places])
    read = {
        (layer, memory.neuron): memory
        for layer in hooks
        for memory in memories(model, layer, [n for at, n in places if at == layer], n_tokens=n_tokens)
    }
    return FiredMemories(tuple(read[place] for place in places), activations, added[best], float(found.logit))


def _checked_mlp(model: ResumableModel, layer: int, neurons: Sequence[int]) -> MLPSublayer:
    check_parts(model)
    if model.cfg.d_mlp is None:
        raise InputError("this model is attention-only and has no MLP to read")
    if not 0 <= layer < len(model.blocks):
        raise InputError(f"layer is {layer}; this model has layers 0 to {len(model.blocks) - 1}")
    for neuron in neurons:
        if not 0 <= neuron < model.cfg.d_mlp:
            raise InputError(f"neuron is {neuron}; this MLP has neurons 0 to {model.cfg.d_mlp - 1}")
    return cast(MLPSublayer, model.blocks[layer].sublayer("mlp"))
