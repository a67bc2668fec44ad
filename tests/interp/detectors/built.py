"""A model with one head of each kind, built by hand: what every detector must say about it is known.

The residual stream has four parts: the token, the token before, what is predicted (one-hot each), and the position.

    L0H0  previous token: position i looks for position i - 1 and writes its token as "the token before"
    L0H1  sink: every query looks for position 0, whose value is zero
    L0H2  duplicate token: looks for its own token, and so sees itself and earlier occurrences, equally
    L1H0  induction: looks for "the token before is mine" and writes that token as predicted
    the others: zero weights, uniform attention
"""

from __future__ import annotations

import torch
from torch import Tensor

from models import DecoderConfig, HookedDecoder
from models.text import SymbolTokenizer

D_VOCAB, N_CTX = 65, 64
TOKEN, BEFORE, PREDICTED = (slice(i * D_VOCAB, (i + 1) * D_VOCAB) for i in range(3))
POSITION = slice(3 * D_VOCAB, 3 * D_VOCAB + N_CTX)
SHARP = 1000.0

CONFIG = DecoderConfig(
    n_layers=2,
    d_model=POSITION.stop,
    n_heads=8,  # so that a single head of a kind has enough others to be compared with
    d_head=D_VOCAB,
    d_vocab=D_VOCAB,
    n_ctx=N_CTX,
    attn_only=True,
    norm="none",
    qkv_bias=False,
    out_bias=False,
)


@torch.no_grad()
def built_model() -> HookedDecoder:
    """Return the model."""
    model = HookedDecoder(CONFIG, tokenizer=SymbolTokenizer())
    for parameter in model.parameters():
        parameter.zero_()
    tokens, positions = torch.eye(D_VOCAB), torch.eye(N_CTX)
    model.W_E[:, TOKEN] = tokens
    model.W_pos[:, POSITION] = positions
    model.unembed.weight[:, PREDICTED] = 20 * tokens

    first, second = (block.attn for block in model.blocks)
    before = torch.diag(torch.ones(N_CTX - 1), -1)  # row i -> i - 1
    _attend(first, 0, POSITION, before, POSITION, positions)
    _write(first, 0, BEFORE)
    _attend(first, 1, TOKEN, torch.ones(D_VOCAB, 1), POSITION, positions[:, :1])
    first.W_V[1, TOKEN] = tokens
    first.W_V[1, model.tokenizer.bos_token_id] = 0
    _attend(first, 2, TOKEN, tokens, TOKEN, tokens)
    _attend(second, 0, TOKEN, tokens, BEFORE, tokens)
    _write(second, 0, PREDICTED)
    return model


def _attend(attn: torch.nn.Module, head: int, query: slice, queries: Tensor, key: slice, keys: Tensor) -> None:
    """Let the head's query read ``queries`` from one part of the stream and its key ``keys`` from another."""
    attn.W_Q[head, query, : queries.shape[1]] = SHARP * queries
    attn.W_K[head, key, : keys.shape[1]] = keys


def _write(attn: torch.nn.Module, head: int, part: slice) -> None:
    """Let the head write the attended token's one-hot to a part of the stream."""
    attn.W_V[head, TOKEN] = torch.eye(D_VOCAB)
    attn.W_O[head, :, part] = torch.eye(D_VOCAB)
