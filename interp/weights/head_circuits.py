"""A head as two circuits (Elhage et al. 2021): QK says where it looks, OV what it moves.

With n the normalised stream that attention reads (``ln1.hook_normalized``; without a norm before it, the stream
itself), w and b the norm's gain and bias, and A = diag(w) W_Q, C = diag(w) W_K:

    score(q, k) = ((n_q w + b) W_Q + b_Q) R ((n_k w + b) W_K + b_K)^T / sqrt(d_head)
                = n_q (A R C^T / sqrt(d_head)) n_k  +  query_term . n_q  +  key_term . n_k  +  constant
    write(k)    = ((n_k w + b) W_V + b_V) W_O
                = n_k (diag(w) W_V W_O)  +  bias

R is the rotation by the offset q - k: with rotary positions a QK circuit holds at one offset only. LayerNorm's centring
is folded in as well: n has no mean, so that the factors lose theirs over d_model. The factors are d_model x d_head.

Where queries and keys are normed before they meet, the gains are in W_Q and W_K, and what each query and each key is
divided by is left out: a score is then that of the circuit up to these two positive factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.decoders import check_parts
from interp.precision import at_least_float32
from interp.sites import Head, parse_head
from interp.weights.factored import FactoredMatrix
from models.errors import InputError
from models.parts.attention import Attention
from models.protocol import ResumableModel


@dataclass(frozen=True, eq=False)
class QKCircuit:
    """Where a head looks: a bilinear form of two normalised streams, with its bias terms.

    Attributes:
        head: which head.
        relative: query position minus key position that the circuit holds for; None where nothing is rotated.
        matrix: ``[d_model, d_model]``, query first, of rank d_head; 1 / sqrt(d_head) is in it.
        query_term, key_term: ``[d_model]``, what the key's (the query's) biases make of the query (the key) alone.
        constant: both biases; no softmax sees it, nor ``query_term``.
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
        """Return the attention score of pairs of normalised streams, before mask and softmax."""
        query, key = (x.to(self.constant.dtype) for x in (query, key))
        return self.matrix.bilinear(query, key) + query @ self.query_term + key @ self.key_term + self.constant

    def scores(
        self, queries: Float[Tensor, "query d_model"], keys: Float[Tensor, "key d_model"]
    ) -> Float[Tensor, "query key"]:
        """Return the attention score of every query for every key."""
        queries, keys = (x.to(self.constant.dtype) for x in (queries, keys))
        products = (queries @ self.matrix.A) @ (self.matrix.B @ keys.T)
        return products + (queries @ self.query_term)[:, None] + keys @ self.key_term + self.constant


@dataclass(frozen=True, eq=False)
class OVCircuit:
    """What a head moves: a linear map of a normalised stream, with its bias.

    Attributes:
        head: which head.
        matrix: ``[d_model, d_model]``, source first, of rank d_head.
        bias: ``[d_model]``; written whatever is attended to. b_O is not in it: it belongs to the sublayer.
    """

    head: Head
    matrix: FactoredMatrix
    bias: Float[Tensor, "d_model"]

    def write(self, source: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return what full attention to a normalised stream writes."""
        return self.matrix.apply(source) + self.bias


@torch.no_grad()
def qk_circuit(model: ResumableModel, layer: int, head: int, *, relative: int | None = None) -> QKCircuit:
    """Return the QK circuit of a head.

    Args:
        model: a ``HookedDecoder``.
        layer, head: a query head; its key/value head follows.
        relative: query position minus key position, 0 or more; needed with rotary positions, refused without.

    Raises:
        InputError: a head out of range, ``relative`` missing, negative or out of place.

    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=10, n_ctx=8))
    >>> qk_circuit(model, 0, 1).matrix
    FactoredMatrix((16, 16), rank at most 8)
    """
    check_parts(model)
    name = parse_head((layer, head), model.cfg)
    _check_relative(model.blocks[layer].attn, relative)
    attn = model.blocks[layer].attn
    W_Q, b_Q = _reading_weights(model, layer, attn.q, head)
    W_K, b_K = _reading_weights(model, layer, attn.k, head // model.cfg.group_size)
    W_Q, b_Q = attn.linear_query(head, W_Q, relative), attn.linear_query(head, b_Q, relative)
    W_K, b_K = (attn.linear_key(head // model.cfg.group_size, part) for part in (W_K, b_K))
    return QKCircuit(
        head=name,
        relative=relative,
        matrix=FactoredMatrix(W_Q * attn.scale, W_K.mT),
        query_term=W_Q @ b_K * attn.scale,
        key_term=W_K @ b_Q * attn.scale,
        constant=b_Q @ b_K * attn.scale,
    )


def _check_relative(attn: Attention, relative: int | None) -> None:
    if attn.rotary is not None and relative is None:
        raise InputError(
            "with rotary positions a QK circuit holds at one offset: give relative=query position minus key position"
        )
    if attn.rotary is None and relative is not None:
        raise InputError(f"relative is {relative}, and this model's positions rotate nothing; leave it out")
    if relative is not None and relative < 0:
        raise InputError(f"relative is {relative}; a query sees no later key, so give 0 or more")


@torch.no_grad()
def ov_circuit(model: ResumableModel, layer: int, head: int) -> OVCircuit:
    """Return the OV circuit of a head; its key/value head follows. Raises InputError on a head out of range."""
    check_parts(model)
    name = parse_head((layer, head), model.cfg)
    attn = model.blocks[layer].attn
    W_V, b_V = _reading_weights(model, layer, attn.v, head // model.cfg.group_size)
    W_O = at_least_float32(attn.W_O[head])
    return OVCircuit(name, FactoredMatrix(W_V, W_O), b_V @ W_O)


def _reading_weights(
    model: ResumableModel, layer: int, linear: torch.nn.Linear, head: int
) -> tuple[Float[Tensor, "d_model d_head"], Float[Tensor, "d_head"]]:
    """Return one head's projection as it acts on the normalised stream, and its bias."""
    d_head = model.cfg.d_head
    weight = at_least_float32(linear.weight.unflatten(0, (-1, d_head))[head]).mT
    bias = weight.new_zeros(d_head)
    if linear.bias is not None:
        bias = at_least_float32(linear.bias.unflatten(0, (-1, d_head))[head])
    norm = model.blocks[layer].attention.norm_in
    if norm.b is not None:
        bias = bias + at_least_float32(norm.b) @ weight
    return norm.centre(norm.gain(weight.mT)).mT, bias


def carried(
    model: ResumableModel, writes: Float[Tensor, "*any d_model"], layer: int, to: int, *, of_mlp: bool = False
) -> Float[Tensor, "*any d_model"]:
    """Return what has become of writes when layer ``to`` reads them: as much of them as that can see.

    A LayerNorm takes the mean, so that whatever is written along (1, ..., 1) reaches no reader. Post-norm, every norm
    on the way does so and then gives its gain; what they divide by is one factor, and is left out.

    Args:
        writes: of the attention of ``layer``.
        to: a later layer; their number stands for the unembedding.
        of_mlp: they are the MLP's instead.
    """
    for at in range(layer, to):
        for sublayer in model.blocks[at].sublayers:
            if not (of_mlp and at == layer and sublayer.attends):
                writes = sublayer.norm_sum.gain(sublayer.norm_sum.centre(writes))
    return model.ln_final.centre(writes)


def stacked_qk(model: ResumableModel, *, relative: int | None = None) -> FactoredMatrix:
    """Return every head's QK matrix, ``[layer, head, d_model, d_model]``, as factors. Raises as ``qk_circuit``."""
    check_parts(model)
    return _stacked(
        [
            [qk_circuit(model, layer, head, relative=relative).matrix for head in range(model.cfg.n_heads)]
            for layer in range(len(model.blocks))
        ]
    )


def stacked_ov(model: ResumableModel) -> FactoredMatrix:
    """Return every head's OV matrix, ``[layer, head, d_model, d_model]``, as factors."""
    check_parts(model)
    return _stacked(
        [
            [ov_circuit(model, layer, head).matrix for head in range(model.cfg.n_heads)]
            for layer in range(len(model.blocks))
        ]
    )


def _stacked(circuits: list[list[FactoredMatrix]]) -> FactoredMatrix:
    return FactoredMatrix(
        torch.stack([torch.stack([circuit.A for circuit in row]) for row in circuits]),
        torch.stack([torch.stack([circuit.B for circuit in row]) for row in circuits]),
    )
