"""Lengths and cosines of the stream, and massive activations where they were put."""

from __future__ import annotations

import pytest
import torch

from interp.readout.stream_growth import MassiveActivation, stream_growth
from models import DecoderConfig, HookedDecoder
from models.loading import load_model
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017", "attn-only"])
def test_lengths_and_cosines(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg)
    _, cache = model.run_with_cache(tokens)
    streams = [cache["resid_pre", 0], cache["resid_post", 0], cache["resid_post", 1]]
    growth = stream_growth(model, tokens)
    for depth, stream in enumerate(streams):
        torch.testing.assert_close(growth.norms[depth], stream.square().sum(-1).sqrt())
    dots = (streams[0] * streams[1]).sum(-1) / streams[0].norm(dim=-1) / streams[1].norm(dim=-1)
    torch.testing.assert_close(growth.cosines[0], dots)
    assert growth.massive == ()
    frame = growth.to_frame()
    assert frame["norm"].tolist() == pytest.approx([float(stream.norm(dim=-1).mean().detach()) for stream in streams])


def test_massive_activations_are_named_where_they_are():
    model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=11, n_ctx=12))
    with torch.no_grad():
        model.embed.W_E.fill_(0.1)
        model.embed.W_E[4, 6] = -300.0
        model.embed.W_E[5, 2] = 99.0  # not large enough
        model.pos_embed.W_pos.zero_()
        for block in model.blocks:
            block.attn.o.weight.zero_()
            block.mlp.out.weight.zero_()
    growth = stream_growth(model, torch.tensor([[1, 4, 5]]))
    assert [one[:4] for one in growth.massive] == [(depth, 0, 1, 6) for depth in range(3)]
    assert growth.massive[0] == MassiveActivation(0, 0, 1, 6, -300.0)
    assert growth.to_frame()["massive"].tolist() == [1, 1, 1]


def test_padding_counts_for_nothing():
    model = random_model(CONFIGS["gpt2"])
    tokens = random_tokens(model.cfg)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, :2] = False
    growth = stream_growth(model, tokens, attention_mask=real)
    assert growth.norms.isnan().equal((~real).expand(3, -1, -1))
    alone = stream_growth(model, tokens[1:, 2:])
    torch.testing.assert_close(growth.norms[:, 1, 2:], alone.norms[:, 0])
    assert growth.to_frame()[["norm", "largest"]].notna().all(axis=None)


@pytest.mark.smollm2
def test_smollm2_has_massive_activations_at_its_first_token():
    model = load_model("smollm2")
    growth = stream_growth(model, model.to_tokens("The capital of France is Paris, and that of Italy is"))
    assert {(one.column, one.dimension) for one in growth.massive if abs(one.value) > 1e4} == {(0, 507)}
    assert {one.column for one in growth.massive} == {0}
