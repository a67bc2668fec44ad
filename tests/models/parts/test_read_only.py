"""A write to what looks like a weight acts, or is refused."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from einops import einsum, rearrange, repeat

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.encoder_decoder import EncoderDecoderConfig, HookedEncoderDecoder
from models.errors import InputError

CFG = DecoderConfig(
    n_layers=2,
    d_model=8,
    n_heads=4,
    n_kv_heads=2,
    d_vocab=10,
    n_ctx=8,
    gated=True,
    positions="rotary",
    norm="rms",
    init="torch",
)
STACKED = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out", "b_Q", "b_K", "b_V", "b_O", "b_in", "b_out", "b_U")
TOKENS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture
def model():
    return HookedDecoder(CFG, seed=1).requires_grad_(False)


WRITES = {
    "item": lambda w: w.__setitem__(0, 0),
    "cell": lambda w: w[0].__setitem__(0, 0),
    "view": lambda w: w.flatten().view(-1).add_(1),
    "transposed": lambda w: w.movedim(-1, 0).zero_(),
    "einops": lambda w: rearrange(w, "a ... -> ... a").mul_(2),
    "augmented": lambda w: w.__iadd__(1),
    "filled": lambda w: w.fill_(1),
    "copied": lambda w: w.copy_(torch.zeros_like(w)),
    "out": lambda w: torch.add(torch.zeros(w.shape), 1, out=w),
    "row of many": lambda w: next(iter(w)).zero_(),
    "split": lambda w: w.unbind(0)[0].zero_() if w.ndim > 1 else w.split(1)[0].zero_(),
    "detached": lambda w: w.detach().zero_(),
    "data": lambda w: w.data.zero_(),
    "masked": lambda w: w.masked_fill_(w > 0, 0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", STACKED)
def test_a14_a_write_to_a_stacked_copy_is_refused(name, write, model):
    with pytest.raises(InputError, match=r"copy.*model\.blocks\[0\]\.attn\.W_Q"):
        WRITES[write](getattr(model, name))


def test_a14_the_plain_statement(model):
    with pytest.raises(InputError):
        model.W_Q[0, 0] = 0
    with pytest.raises(ValueError, match="read-only"):
        model.W_Q.numpy()[0] = 0
    with pytest.raises(InputError):
        HookedEncoderDecoder(
            EncoderDecoderConfig(n_encoder_layers=1, n_decoder_layers=1, d_model=8, n_heads=2, d_vocab=10, n_ctx=8)
        ).b_U[0] = 1


@pytest.mark.parametrize(
    "write",
    [
        lambda m: m.W_E,
        lambda m: m.W_U,
        lambda m: m.blocks[0].attn.W_Q,
        lambda m: m.blocks[1].attn.W_O,
        lambda m: m.blocks[0].mlp.W_in,
    ],
)
def test_a14_a_write_to_a_weight_acts(write, model):
    before = model(TOKENS)
    write(model)[..., 0] += 1
    assert (model(TOKENS) - before).abs().max() > 1e-3


def test_a14_what_is_computed_is_plain_and_right(model):
    W = torch.stack([block.attn.W_Q for block in model.blocks])
    for computed, expected in (
        (model.W_Q + 1, W + 1),
        (model.W_Q.clone(), W),
        (model.W_Q[0] @ model.W_Q[0].mT, W[0] @ W[0].mT),
        (torch.linalg.svd(model.W_Q).S, torch.linalg.svd(W).S),
        (einsum(model.W_Q, model.W_Q, "l h d e, l h d f -> l h e f"), torch.einsum("lhde,lhdf->lhef", W, W)),
        (model.repeat_kv(model.W_V), model.W_V.repeat_interleave(2, 1)),
        (repeat(model.W_Q, "l h d e -> (two l) h d e", two=2), torch.cat([W, W])),
        (model.W_Q.double(), W.double()),
        (torch.func.vmap(lambda w: w.sum())(model.W_Q), W.sum((1, 2, 3))),
        (torch.func.grad(lambda w: w.square().sum())(model.W_Q), 2 * W),
        (copy.deepcopy(model.W_Q), W),
        (pickle.loads(pickle.dumps(model.W_Q)), W),
    ):
        assert type(computed) is torch.Tensor
        torch.testing.assert_close(computed, expected)
        computed.zero_()
    np.testing.assert_array_equal(np.asarray(model.W_Q), W.numpy())
    file = io.BytesIO()
    torch.save(model.W_Q, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True), W)
    other = torch.zeros_like(W)
    other += model.W_Q
    other[0] = model.W_Q[1]
    torch.testing.assert_close(other, torch.stack([W[1], W[1]]))
    torch.testing.assert_close(torch.stack([block.attn.W_Q for block in model.blocks]), W)


def test_a14_gradients_pass(model):
    model.requires_grad_(True)
    model.W_Q.square().sum().backward()
    weight = model.blocks[1].attn.q.weight
    torch.testing.assert_close(weight.grad, 2 * weight.detach())
