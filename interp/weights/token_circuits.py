"""A head's circuits between tokens: W_E QK W_E^T and W_E OV W_U over a sample of the vocabulary.

They hold where a stream is a token's embedding alone: exactly for the first layer of a model without added positions,
as a first look elsewhere. The whole matrices are d_vocab x d_vocab and are never made; give a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.decoders import check_parts
from interp.precision import at_least_float32
from interp.weights.head_circuits import carried, ov_circuit, qk_circuit
from models.protocol import ResumableModel
from models.tokens import check_sample

CHUNK = 4096  # rows of the vocabulary at a time: the tables are never copied whole


@dataclass(frozen=True, eq=False)
class TokenCircuit:
    """A circuit between tokens.

    Attributes:
        rows: OV: attended tokens; QK: queries.
        columns: OV: output tokens; QK: keys.
        row_texts, column_texts: the same as text.
        values: ``[row, column]``; OV: logits, before norms divide; QK: attention scores.
    """

    rows: Int[Tensor, "row"]
    columns: Int[Tensor, "column"]
    row_texts: tuple[str, ...]
    column_texts: tuple[str, ...]
    values: Float[Tensor, "row column"]

    def top(self, n: int = 10) -> list[tuple[str, str, float]]:
        """Return the n largest entries, largest first, as (row text, column text, value)."""
        best = self.values.flatten().topk(min(n, self.values.numel()))
        places = [divmod(int(i), self.values.shape[1]) for i in best.indices]
        return [
            (self.row_texts[row], self.column_texts[column], float(value))
            for (row, column), value in zip(places, best.values, strict=True)
        ]


@torch.no_grad()
def full_ov_circuit(
    model: ResumableModel,
    layer: int,
    head: int,
    tokens: Int[Tensor, "token"],
    outputs: Int[Tensor, "token"] | None = None,
) -> TokenCircuit:
    """Return W_E OV W_U over a sample: what attending to a row's token adds to a column's logit.

    Args:
        tokens: attended tokens.
        outputs: output tokens, by default the same.

    Returns:
        Logits before the norms on the way divide by their scales. Memory: len(tokens) x (len(outputs) + d_model).
    """
    tokens = check_sample(tokens, model.cfg, model.device)
    outputs = tokens if outputs is None else check_sample(outputs, model.cfg, model.device, "outputs")
    written = ov_circuit(model, layer, head).write(normalised_embeddings(model, layer, tokens))
    written = carried(model, written, layer, len(model.blocks))
    return _token_circuit(model, tokens, outputs, written @ final_directions(model, outputs).T)


@torch.no_grad()
def full_qk_circuit(
    model: ResumableModel,
    layer: int,
    head: int,
    tokens: Int[Tensor, "token"],
    keys: Int[Tensor, "token"] | None = None,
    *,
    relative: int | None = None,
) -> TokenCircuit:
    """Return W_E QK W_E^T over a sample: the attention score of a row's token for a column's.

    Args:
        tokens: queries.
        keys: keys, by default the same tokens.
        relative: see ``qk_circuit``.

    Memory: len(tokens) x len(keys), and (len(tokens) + len(keys)) x d_model.
    """
    tokens = check_sample(tokens, model.cfg, model.device)
    keys = tokens if keys is None else check_sample(keys, model.cfg, model.device, "keys")
    circuit = qk_circuit(model, layer, head, relative=relative)
    queries_read, keys_read = (normalised_embeddings(model, layer, sample) for sample in (tokens, keys))
    return _token_circuit(model, tokens, keys, circuit.scores(queries_read, keys_read))


@torch.no_grad()
def normalised_embeddings(
    model: ResumableModel, layer: int, tokens: Int[Tensor, "token"]
) -> Float[Tensor, "token d_model"]:
    """Return embeddings as ``layer`` would read them if nothing else had been written: normalised, without gain."""
    check_parts(model)
    vectors = at_least_float32(model.embed(tokens))
    return model.blocks[layer].attention.norm_in.normalised(vectors)


@torch.no_grad()
def final_directions(model: ResumableModel, tokens: Int[Tensor, "token"]) -> Float[Tensor, "token d_model"]:
    """Return the direction that raises each token's logit: W_U's column with the final norm's gain and centring in."""
    directions = at_least_float32(model.W_U.T[tokens])
    return model.ln_final.centre(model.ln_final.gain(directions))


def vocabulary_chunks(model: ResumableModel) -> Iterator[Int[Tensor, "token"]]:
    """Give all token ids, ``CHUNK`` at a time."""
    yield from torch.arange(model.cfg.d_vocab, device=model.device).split(CHUNK)


def top_texts(
    model: ResumableModel, scores: Float[Tensor, "d_vocab"], n: int, *, largest: bool = True
) -> tuple[tuple[str, float], ...]:
    """Return the n tokens with the largest (or smallest) scores, as (text, score), the most extreme first."""
    best = scores.topk(min(n, len(scores)), largest=largest)
    texts = model.to_str_tokens(best.indices.tolist())
    return tuple((text, float(score)) for text, score in zip(texts, best.values, strict=True))


def _token_circuit(model: ResumableModel, rows: Tensor, columns: Tensor, values: Tensor) -> TokenCircuit:
    texts = [tuple(model.to_str_tokens(side.tolist())) for side in (rows, columns)]
    return TokenCircuit(rows, columns, texts[0], texts[1], values)
