"""The decoder-only article's own numbers: its three-token example, its 103,296-parameter model, its training run.

"How a Transformer Works: A Decoder-Only Model, End to End". Everything here is a configuration of the package.
"""

import pytest
import torch
import torch.nn.functional as F

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.hooks.point import Registration
from models.parts.attention import Attention
from models.parts.masks import causal_mask
from models.training import Batch, Optimiser, Phase, train

VOCABULARY = ["<unk>", "The", "cat", "sat", "on", "the", "mat", "dog", "."]
CORPUS = "The cat sat on the mat . The dog sat on the mat . The cat sat on the mat . The dog sat on the cat ."
PROMPT = "The cat sat on the"

TINY_GPT = DecoderConfig(
    d_vocab=len(VOCABULARY), d_model=64, n_heads=4, d_mlp=256, n_layers=2, n_ctx=32, act="gelu", init="torch"
)


def ids(text):
    return torch.tensor([[VOCABULARY.index(word) for word in text.split()]])


def words(tokens):
    return " ".join(VOCABULARY[i] for i in tokens)


# -- the three-token example --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hooked", [True, False])
def test_three_token_attention(hooked):
    q = torch.tensor([[1.0, 0], [0, 1], [1, 1]]).view(1, 3, 1, 2)
    k = torch.tensor([[1.0, 0], [1, 1], [0, 1]]).view(1, 3, 1, 2)
    v = torch.tensor([[1.0, 0], [0, 1], [2, 2]]).view(1, 3, 1, 2)
    attention = Attention(DecoderConfig(n_layers=1, d_model=2, n_heads=1, d_head=2, d_vocab=3, n_ctx=3))
    mask = causal_mask(3, 3, device=torch.device("cpu"))
    seen = []
    if hooked:  # step by step; without a hook the fused kernel runs
        attention.hook_pattern.attach(Registration("readers", lambda value, hook: seen.append(value.detach())))
    z = attention.attend(q, k, v, mask)[0, :, 0]
    torch.testing.assert_close(z[0], torch.tensor([1.0, 0.0]))
    # the article's .744 is 3 x .248; in full it is .74477
    torch.testing.assert_close(z[2], torch.tensor([0.744, 1.0]), atol=1e-3, rtol=0)
    if hooked:
        expected = torch.tensor([[1.0, 0, 0], [0.33, 0.67, 0], [0.25, 0.50, 0.25]])
        torch.testing.assert_close(seen[0][0, 0], expected, atol=5e-3, rtol=0)


# -- the model ----------------------------------------------------------------------------------------------------


def test_parameter_count():
    assert sum(p.numel() for p in HookedDecoder(TINY_GPT).parameters()) == 103_296


def test_shape_trace():
    """The article prints the shapes at every stage; here they are the cached activations'."""
    model = HookedDecoder(TINY_GPT)
    logits, cache = model.run_with_cache(ids(PROMPT))
    assert cache["hook_embed"].shape == cache["hook_pos_embed"].shape == (1, 5, 64)
    for layer in (0, 1):
        assert cache["q", layer].shape == cache["k", layer].shape == cache["v", layer].shape == (1, 5, 4, 16)
        assert cache["attn_scores", layer].shape == cache["pattern", layer].shape == (1, 4, 5, 5)
        assert cache["z", layer].shape == (1, 5, 4, 16)
        assert cache["attn_out", layer].shape == (1, 5, 64)
        assert cache["post", layer].shape == (1, 5, 256)
        assert cache["resid_post", layer].shape == (1, 5, 64)
        torch.testing.assert_close(cache["pattern", layer].sum(-1), torch.ones(1, 4, 5))
        assert (cache["pattern", layer].triu(1) == 0).all()
    assert logits.shape == (1, 5, 9)


def test_gradient_at_the_logits_is_p_minus_y():
    z = torch.tensor([[3.2, 2.4, 2.1, 1.8, 0.9, 0.6]], requires_grad=True)
    loss = F.cross_entropy(z, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.790, abs=5e-4)
    printed = torch.tensor([[-0.546, 0.204, 0.151, 0.112, 0.046, 0.034]])
    torch.testing.assert_close(z.grad, printed, atol=5e-4, rtol=0)


def test_the_models_own_loss_has_that_gradient():
    """d loss / d logits = (p - y) / (number of predictions), read off b_U: its gradient is the sum over positions."""
    model = HookedDecoder(TINY_GPT.replace(unembed_bias=True))
    tokens = ids(PROMPT)
    logits, loss = model(tokens, return_type="both")
    loss.backward()
    p = logits[0, :-1].softmax(-1)
    y = F.one_hot(tokens[0, 1:], len(VOCABULARY))
    torch.testing.assert_close(model.unembed.bias.grad, (p - y).sum(0).detach() / 4)


# -- the training run ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    data = Batch(ids(CORPUS))
    return train(HookedDecoder(TINY_GPT, seed=0), [Phase(batches=lambda step: data, steps=200)], Optimiser(lr=3e-3))


def test_training_run(trained):
    model, record = trained
    assert len(record.losses) == 200
    assert record.losses[0] == pytest.approx(2.5, abs=0.5)
    assert record.losses[-1] < 0.01
    probabilities = model(ids(PROMPT))[0, -1].softmax(-1)
    assert probabilities[VOCABULARY.index("mat")] > 0.99


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 3}, {"top_k": 3, "use_cache": False}])
def test_generation(trained, options):
    model, _ = trained
    generated = model.generate(ids(PROMPT), max_new_tokens=4, **options)
    assert words(generated[0].tolist()) == "The cat sat on the mat . The dog"
