"""The MLP as a key-value memory (Geva et al. 2012.14913).

Row i of the input matrix is a *key*: neuron i fires on streams that lie along it. Row i of the output matrix is its
*value*: what it writes when it fires, read as tokens through the unembedding. In a gated MLP the key is the gate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.readout.logit_attribution import Ids, logit_attribution
from interp.weights.factored import at_least_float32
from interp.weights.head_circuits import final_directions
from models.errors import InputError
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd

_CHUNK = 4096  # rows of the vocabulary at a time

Texts = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Memory:
    """One neuron as a memory.

    Attributes:
        layer, neuron: which.
        key_tokens: the tokens whose embeddings, as ln2 would read them, excite it most, with pre-activations less bias.
        value_tokens, suppressed_tokens: the tokens whose logits its value raises, and lowers, most (the final norm's
            gain included, its scale not).
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
        text: some tokens up to and including that column; the last one is where it fired.
    """

    activation: float
    row: int
    column: int
    text: str


@dataclass(frozen=True, eq=False)
class FiredMemories:
    """Which memories fired on a prompt, and what they added to the answer.

    Attributes:
        names: ``L3N17`` ...
        activations: ``[memory]``, ``mlp.hook_post`` at the predicting column.
        attributions: ``[memory]``, logits added to the answer (or difference), norms frozen.
        memories: the same, as tokens.
    """

    names: tuple[str, ...]
    activations: Float[Tensor, "memory"]
    attributions: Float[Tensor, "memory"]
    memories: tuple[Memory, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per memory, as listed."""
        import pandas as pd

        return pd.DataFrame(
            {
                "memory": self.names,
                "activation": self.activations.tolist(),
                "logits": self.attributions.tolist(),
                "writes": [" ".join(repr(token) for token, _ in memory.value_tokens[:5]) for memory in self.memories],
            }
        )


def _check_neurons(model: ResumableModel, layer: int, neurons: Sequence[int]) -> None:
    if model.cfg.attn_only or model.cfg.d_mlp is None:
        raise InputError("this model is attention-only and has no MLP to read")
    if not 0 <= layer < len(model.blocks):
        raise InputError(f"layer is {layer}; this model has layers 0 to {len(model.blocks) - 1}")
    for neuron in neurons:
        if not 0 <= neuron < model.cfg.d_mlp:
            raise InputError(f"neuron {neuron} is out of range: this MLP has neurons 0 to {model.cfg.d_mlp - 1}")


def memories(model: ResumableModel, layer: int, neurons: Sequence[int], *, n_tokens: int = 8) -> tuple[Memory, ...]:
    """Read some neurons of a layer as memories.

    Peak memory: d_vocab x len(neurons) twice, and 4096 rows of the vocabulary.
    Raises InputError on a layer or neuron out of range, or an attention-only model.
    """
    _check_neurons(model, layer, neurons)
    block = model.blocks[layer]
    index = torch.tensor(list(neurons), device=model.device)
    keys_in = block.mlp.W_in if block.mlp.W_gate is None else block.mlp.W_gate
    keys, values = at_least_float32(keys_in[:, index]), at_least_float32(block.mlp.W_out[index])
    by_key, by_value = [], []
    for tokens in torch.arange(model.cfg.d_vocab, device=model.device).split(_CHUNK):
        vectors = model.embed(tokens[None])[0]
        read = block.ln2.unhooked(vectors) if model.cfg.norm_position == "pre" else vectors
        by_key.append(at_least_float32(read) @ keys)
        by_value.append(final_directions(model, tokens) @ values.T)
    key_scores, value_scores = torch.cat(by_key), torch.cat(by_value)
    return tuple(
        Memory(
            layer,
            int(neuron),
            _texts(model, key_scores[:, i], n_tokens),
            _texts(model, value_scores[:, i], n_tokens),
            _texts(model, value_scores[:, i], n_tokens, largest=False),
        )
        for i, neuron in enumerate(neurons)
    )


def _texts(model: ResumableModel, scores: Tensor, n: int, largest: bool = True) -> Texts:
    best = scores.topk(min(n, len(scores)), largest=largest)
    names = model.to_str_tokens(best.indices.tolist())
    return tuple((name, float(score)) for name, score in zip(names, best.values, strict=True))


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
    """Return where in some token streams a neuron fires most, with the text before. Raises InputError out of range."""
    _check_neurons(model, layer, [neuron])
    tokens, real = model.prepare(tokens, attention_mask)
    name = f"blocks.{layer}.mlp.hook_post"
    with torch.inference_mode():
        _, cache = model.run_with_cache(tokens, attention_mask=real, names_filter=name, return_type=None)
    activation = at_least_float32(cache[name][..., neuron])
    if real is not None:
        activation = activation.masked_fill(~real, -torch.inf)
    best = activation.flatten().topk(min(n_contexts, activation.numel() if real is None else int(real.sum())))
    contexts = []
    for value, where in zip(best.values, best.indices, strict=True):
        row, column = divmod(int(where), tokens.shape[1])
        columns = [c for c in range(max(0, column - window + 1), column + 1) if real is None or real[row, c]]
        text = "".join(model.to_str_tokens(tokens[row, columns]))
        contexts.append(Context(float(value), row, column, text))
    return tuple(contexts)


def fired_memories(
    model: ResumableModel,
    tokens: Int[Tensor, "1 pos"],
    answer: Ids,
    wrong: Ids | None = None,
    *,
    n_memories: int = 10,
    n_tokens: int = 8,
) -> FiredMemories:
    """Return the memories that added most to an answer's logit (or a difference), of all layers, on one prompt.

    Raises InputError on more than one prompt, or an attention-only model.
    """
    tokens, _ = model.prepare(tokens)
    _check_neurons(model, 0, [])
    if len(tokens) != 1:
        raise InputError(f"fired_memories reads one prompt; got {len(tokens)}")
    found = logit_attribution(model, tokens, answer, wrong, by="neuron")
    rows = [i for i, label in enumerate(found.labels) if "N" in label and " " not in label]
    values = found.values[rows, 0]
    best = values.abs().topk(min(n_memories, len(values))).indices.tolist()
    names = [found.labels[rows[i]] for i in best]
    places = [tuple(int(part) for part in name.removeprefix("L").split("N")) for name in names]
    hooks = sorted({f"blocks.{layer}.mlp.hook_post" for layer, _ in places})
    with torch.inference_mode():
        _, cache = model.run_with_cache(tokens, names_filter=hooks, return_type=None)
    activations = torch.stack(
        [at_least_float32(cache[f"blocks.{layer}.mlp.hook_post"][0, -1, neuron]) for layer, neuron in places]
    )
    read = {
        layer: memories(model, layer, [n for at, n in places if at == layer], n_tokens=n_tokens)
        for layer in {layer for layer, _ in places}
    }
    by_name = {memory.name: memory for layer in read.values() for memory in layer}
    return FiredMemories(tuple(names), activations, values[best], tuple(by_name[name] for name in names))
