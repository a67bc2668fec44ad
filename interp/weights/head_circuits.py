"""A head as two circuits (Elhage et al. 2021): QK says where it looks, OV what it moves.

With n the normalised stream (``ln1.hook_normalized``), gain w and bias b of the norm:

    score(q, k) = ((n_q w + b) W_Q + b_Q) R ((n_k w + b) W_K + b_K)^T / sqrt(d_head)
                = n_q QK n_k + query_term . n_q + key_term . n_k + constant
    write(k)    = (n_k w + b) W_V W_O + b_V W_O  =  n_k OV + bias

R is the rotation by the offset q - k (rotary models; the static circuit holds at that offset only). The factors are
d_model x d_head, and no d_vocab x d_vocab matrix is ever written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.sites import Head, parse_head
from interp.weights.factored import FactoredMatrix, at_least_float32
from models.errors import InputError
from models.protocol import ResumableModel


@dataclass(frozen=True, eq=False)
class QKCircuit:
    """Where a head looks: a bilinear form of two normalised streams, with its bias terms.

    Attributes:
        head: which head.
        relative: query position minus key position that the circuit holds for; None where positions are not rotated.
        matrix: ``[d_model, d_model]``, of rank d_head, 1 / sqrt(d_head) included.
        query_term, key_term: ``[d_model]``; what the key's (query's) biases make of the query (key) alone.
        constant: both biases.
    """

    head: Head
    relative: int | None
    matrix: FactoredMatrix
    query_term: Float[Tensor, "d_model"]
    key_term: Float[Tensor, "d_model"]
    constant: Float[Tensor, ""]

    def score(
        self, query: Float[Tensor, "*batch d_model"], key: Float[Tensor, "*batch d_model"]
    ) -> Float[Tensor, "*batch"]:
        """Return the attention score of normalised streams, before the mask."""
        query, key = at_least_float32(query), at_least_float32(key)
        return self.matrix.bilinear(query, key) + query @ self.query_term + key @ self.key_term + self.constant


@dataclass(frozen=True, eq=False)
class OVCircuit:
    """What a head moves: a linear map of a normalised stream, with its bias.

    Attributes:
        head: which head.
        matrix: ``[d_model, d_model]``, of rank d_head.
        bias: ``[d_model]``; written whatever is attended to, without b_O.
    """

    head: Head
    matrix: FactoredMatrix
    bias: Float[Tensor, "d_model"]

    def write(self, source: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return what full attention to a normalised stream writes."""
        return self.matrix.apply(source) + self.bias


def qk_circuit(
    model: ResumableModel, layer: int, head: int, *, relative: int | None = None, fold_norm: bool = True
) -> QKCircuit:
    """Return the QK circuit of a head.

    Args:
        layer, head: a query head; its kv head follows.
        relative: query position minus key position, at least 0; needed by rotary models, refused by others.
        fold_norm: fold the norm's gain and bias in; False takes streams that already have them.

    Raises:
        InputError: a head out of range, or ``relative`` missing or out of place.
    """
    name = parse_head((layer, head), model.cfg)
    rotary = model.cfg.positions == "rotary"
    if rotary and relative is None:
        raise InputError(
            "with rotary positions a QK circuit holds at one offset: give relative=query minus key position"
        )
    if not rotary and relative is not None:
        raise InputError(f"relative={relative} has no meaning for positions={model.cfg.positions!r}; leave it out")
    attn = model.blocks[layer].attn
    kv = head // model.cfg.group_size
    gain, bias = norm_parameters(model, layer) if fold_norm else _neutral(model)
    W_Q, W_K = (at_least_float32(w) for w in (attn.W_Q[head], attn.W_K[kv]))
    b_Q, b_K = (_bias(linear, i, attn.d_head, W_Q) for linear, i in ((attn.q, head), (attn.k, kv)))
    query_bias, key_bias = bias @ W_Q + b_Q, bias @ W_K + b_K
    W_Q, W_K = gain[:, None] * W_Q, gain[:, None] * W_K
    if relative is not None:
        turn = model.rotation(torch.tensor([[relative]], device=W_Q.device))
        W_Q, query_bias = (_turned(attn, x, turn) for x in (W_Q, query_bias[None]))
        query_bias = query_bias[0]
    scale = attn.scale
    return QKCircuit(
        head=name,
        relative=relative,
        matrix=FactoredMatrix(W_Q * scale, W_K.mT),
        query_term=W_Q @ key_bias * scale,
        key_term=W_K @ query_bias * scale,
        constant=query_bias @ key_bias * scale,
    )


def ov_circuit(model: ResumableModel, layer: int, head: int) -> OVCircuit:
    """Return the OV circuit of a head, the norm's gain and bias folded in. Raises InputError out of range."""
    name = parse_head((layer, head), model.cfg)
    attn = model.blocks[layer].attn
    kv = head // model.cfg.group_size
    gain, bias = norm_parameters(model, layer)
    W_V, W_O = at_least_float32(attn.W_V[kv]), at_least_float32(attn.W_O[head])
    b_V = _bias(attn.v, kv, attn.d_head, W_V)
    return OVCircuit(name, FactoredMatrix(gain[:, None] * W_V, W_O), (bias @ W_V + b_V) @ W_O)


def norm_parameters(model: ResumableModel, layer: int) -> tuple[Float[Tensor, "d_model"], Float[Tensor, "d_model"]]:
    """Return gain and bias of what attention reads: ln1's before it (pre-norm), else 1 and 0."""
    if model.cfg.norm == "none" or model.cfg.norm_position == "post":
        return _neutral(model)
    norm = model.blocks[layer].ln1
    gain = at_least_float32(norm.w)
    return gain, torch.zeros_like(gain) if norm.b is None else at_least_float32(norm.b)


def _neutral(model: ResumableModel) -> tuple[Tensor, Tensor]:
    ones = torch.ones(model.cfg.d_model, device=model.W_E.device)
    return ones, torch.zeros_like(ones)


def _bias(linear: torch.nn.Linear, head: int, d_head: int, like: Tensor) -> Float[Tensor, "d_head"]:
    if linear.bias is None:
        return like.new_zeros(d_head)
    return at_least_float32(linear.bias.unflatten(0, (-1, d_head))[head])


def _turned(attn: torch.nn.Module, rows: Float[Tensor, "row d_head"], turn: object) -> Float[Tensor, "row d_head"]:
    rotate = attn.rotate
    return rotate(rows[:, None, None, :], turn)[:, 0, 0]  # type: ignore[operator]


def stacked_qk(model: ResumableModel, *, relative: int | None = None) -> FactoredMatrix:
    """Return every head's QK matrix, ``[layer, head, d_model, d_model]``, as factors."""
    circuits = [
        [qk_circuit(model, layer, head, relative=relative).matrix for head in range(model.cfg.n_heads)]
        for layer in range(len(model.blocks))
    ]
    return _stack(circuits)


def stacked_ov(model: ResumableModel) -> FactoredMatrix:
    """Return every head's OV matrix, ``[layer, head, d_model, d_model]``, as factors."""
    circuits = [
        [ov_circuit(model, layer, head).matrix for head in range(model.cfg.n_heads)]
        for layer in range(len(model.blocks))
    ]
    return _stack(circuits)


def _stack(circuits: list[list[FactoredMatrix]]) -> FactoredMatrix:
    A, B = (
        torch.stack([torch.stack([getattr(circuit, side) for circuit in row]) for row in circuits]) for side in "AB"
    )
    return FactoredMatrix(A, B)


@dataclass(frozen=True, eq=False)
class TokenCircuit:
    """A circuit between tokens: ``values[i, j]`` from token ``rows[i]`` to token ``columns[j]``, with texts.

    For OV, rows are attended tokens and columns the tokens whose logits rise; for QK, rows are queries, columns keys.
    """

    rows: Int[Tensor, "row"]
    columns: Int[Tensor, "column"]
    row_texts: tuple[str, ...]
    column_texts: tuple[str, ...]
    values: Float[Tensor, "row column"]

    def top(self, n: int = 10) -> list[tuple[str, str, float]]:
        """Return the n largest entries as (row text, column text, value)."""
        best = self.values.flatten().topk(min(n, self.values.numel()))
        width = self.values.shape[1]
        return [
            (self.row_texts[int(i) // width], self.column_texts[int(i) % width], float(value))
            for value, i in zip(best.values, best.indices, strict=True)
        ]


def normalised_embeddings(
    model: ResumableModel, layer: int, tokens: Int[Tensor, "token"]
) -> Float[Tensor, "token d_model"]:
    """Return embeddings as ``layer`` would read them if nothing else had been written: centred and scaled, no gain."""
    vectors = at_least_float32(model.embed(tokens[None])[0])
    norm = model.blocks[layer].ln1
    if model.cfg.norm == "none" or model.cfg.norm_position == "post":
        return vectors
    centred, scale = norm.statistics(vectors)
    return centred / scale


def full_ov_circuit(
    model: ResumableModel,
    layer: int,
    head: int,
    tokens: Int[Tensor, "token"],
    outputs: Int[Tensor, "token"] | None = None,
) -> TokenCircuit:
    """Return W_E OV W_U over a sample: how attending to a row's token changes a column's logit, before the final norm.

    Args:
        tokens: sample of attended tokens.
        outputs: sample of output tokens, by default the same. Memory is len(tokens) x len(outputs).
    """
    tokens = tokens.to(model.device)
    outputs = tokens if outputs is None else outputs.to(model.device)
    written = ov_circuit(model, layer, head).write(normalised_embeddings(model, layer, tokens))
    values = written @ at_least_float32(final_directions(model, outputs)).T
    return _token_circuit(model, tokens, outputs, values)


def full_qk_circuit(
    model: ResumableModel, layer: int, head: int, tokens: Int[Tensor, "token"], *, relative: int | None = None
) -> TokenCircuit:
    """Return W_E QK W_E^T over a sample: the score of a row's token as query for a column's token as key."""
    tokens = tokens.to(model.device)
    vectors = normalised_embeddings(model, layer, tokens)
    circuit = qk_circuit(model, layer, head, relative=relative)
    values = (vectors @ circuit.matrix.A) @ (circuit.matrix.B @ vectors.T)
    values = values + (vectors @ circuit.query_term)[:, None] + vectors @ circuit.key_term + circuit.constant
    return _token_circuit(model, tokens, tokens, values)


def final_directions(model: ResumableModel, tokens: Int[Tensor, "token"]) -> Float[Tensor, "token d_model"]:
    """Return the unembedding's columns of some tokens, the final norm's gain and centring folded in."""
    directions = at_least_float32(model.W_U.T[tokens])
    norm = model.ln_final
    if model.cfg.norm == "none" or model.cfg.norm_position == "post":
        return directions
    directions = directions * at_least_float32(norm.w)
    return directions - directions.mean(-1, keepdim=True) if norm.centred else directions


def positional_qk(model: ResumableModel, layer: int, head: int) -> Float[Tensor, "query_pos key_pos"]:
    """Return the score that positions alone give: W_pos QK W_pos^T, or for rotary models the score by offset.

    A previous-token head shows as an off-diagonal. For learned or sinusoidal positions the streams are the normalised
    position vectors; for rotary models they are the mean normalised embedding, and entry (q, k) holds at offset q - k.
    Entries above the diagonal are NaN: a query sees no later key.
    """
    n_ctx = min(model.cfg.n_ctx, 128)
    if model.cfg.positions in ("learned", "sinusoidal"):
        vectors = at_least_float32(model.W_pos[:n_ctx])
        if model.cfg.norm != "none" and model.cfg.norm_position == "pre":
            centred, scale = model.blocks[layer].ln1.statistics(vectors)
            vectors = centred / scale
        circuit = qk_circuit(model, layer, head)
        scores = (vectors @ circuit.matrix.A) @ (circuit.matrix.B @ vectors.T)
        scores = scores + (vectors @ circuit.query_term)[:, None] + vectors @ circuit.key_term + circuit.constant
    elif model.cfg.positions == "rotary":
        sample = torch.arange(0, model.cfg.d_vocab, max(1, model.cfg.d_vocab // 512), device=model.device)
        mean = normalised_embeddings(model, layer, sample).mean(0)
        by_offset = torch.stack(
            [qk_circuit(model, layer, head, relative=offset).score(mean, mean) for offset in range(n_ctx)]
        )
        positions = torch.arange(n_ctx, device=model.device)
        scores = by_offset[(positions[:, None] - positions).clamp(min=0)]
    else:
        raise InputError("a model without positions has no positional QK structure")
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, torch.nan)


def _token_circuit(model: ResumableModel, rows: Tensor, columns: Tensor, values: Tensor) -> TokenCircuit:
    texts = [tuple(model.to_str_tokens(side.tolist())) for side in (rows, columns)]
    return TokenCircuit(rows, columns, texts[0], texts[1], values)
