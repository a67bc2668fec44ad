"""What is saved, folded or copied is what the weights say, whatever the configuration claims."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from models import DecoderConfig, HookedDecoder
from models.errors import ConfigError
from models.loading import load_model
from models.loading.fold import fold
from models.loading.native import load_native, save_native
from models.loading.save_hugging_face import save_hugging_face
from models.parts.rope import Rotary
from tests.configurations import random_model

TIED = DecoderConfig(n_layers=1, d_model=8, n_heads=2, d_vocab=11, n_ctx=8, tied=True)
TOKENS = torch.tensor([[1, 2, 3]])


def assigned(model: HookedDecoder) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["unembed.weight"] = torch.randn(11, 8, generator=torch.Generator().manual_seed(1))
    model.load_state_dict(state, assign=True)


def unembedding_replaced(model: HookedDecoder) -> None:
    model.unembed.weight = nn.Parameter(torch.randn(11, 8, generator=torch.Generator().manual_seed(1)))


def embedding_replaced(model: HookedDecoder) -> None:
    model.embed.W_E = nn.Parameter(torch.randn(11, 8, generator=torch.Generator().manual_seed(1)))


BREAKS: list[Callable[[HookedDecoder], None]] = [assigned, unembedding_replaced, embedding_replaced]


def through_native(model: HookedDecoder, folder: Path) -> HookedDecoder:
    save_native(model, folder / "model.safetensors", {})
    return load_native(folder / "model.safetensors")


def through_hugging_face(model: HookedDecoder, folder: Path) -> HookedDecoder:
    save_hugging_face(model, folder / "gpt2")
    return load_model(str(folder / "gpt2"))


WAYS: list[Callable[[HookedDecoder, Path], HookedDecoder]] = [
    through_native,
    through_hugging_face,
    lambda model, folder: copy.deepcopy(model),
    lambda model, folder: fold(model, norm=False, centre_writes=False, centre_unembed=False),
]


@pytest.mark.parametrize("way", WAYS, ids=["native", "hugging-face", "deepcopy", "fold"])
@pytest.mark.parametrize("break_tie", BREAKS)
def test_a5_a_broken_tie_is_kept_as_it_is(break_tie, way, tmp_path):
    model = random_model(TIED, dtype=torch.float32)
    before = model(TOKENS)
    break_tie(model)
    expected = model(TOKENS)
    assert (expected - before).abs().max() > 0.1
    torch.testing.assert_close(way(model, tmp_path)(TOKENS), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("break_tie", BREAKS)
def test_a5_whole_folding_keeps_the_log_probabilities_of_a_broken_tie(break_tie):
    model = random_model(TIED, dtype=torch.float64)
    break_tie(model.double())
    model.double()
    expected = model(TOKENS).log_softmax(-1)
    torch.testing.assert_close(fold(model)(TOKENS).log_softmax(-1), expected, rtol=0, atol=1e-9)


def test_a5_two_copies_of_one_matrix_stay_tied(tmp_path):
    model = random_model(TIED, dtype=torch.float32)
    model.unembed.weight = nn.Parameter(model.embed.W_E.detach().clone())
    assert through_native(model, tmp_path).cfg.tied


class Adapter(nn.Module):
    """Half of a layer's output; weight and bias are passed through, as adapters do."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * self.inner(x)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[3]], ids=["native", "hugging-face", "fold"])
def test_a5_weights_that_a_copy_would_lose_are_refused(way, tmp_path):
    model = random_model(TIED, dtype=torch.float32)
    plain = copy.deepcopy(model)
    model.blocks[0].attn.o = Adapter(model.blocks[0].attn.o)
    with pytest.raises(ConfigError, match=r"blocks\.0\.attn\.o is an Adapter"):
        way(model, tmp_path)
    plain.blocks[0].attn.q.bias = None
    with pytest.raises(ConfigError, match=r"blocks\.0\.attn\.q\.bias is nothing, but the configuration builds \(8,\)"):
        way(plain, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[3]], ids=["native", "hugging-face", "fold"])
def test_a5_settings_that_a_copy_would_lose_are_refused(way, tmp_path):
    model = random_model(TIED, dtype=torch.float32)
    model.blocks[0].attn.scale = 1.0
    with pytest.raises(ConfigError, match=r"blocks\.0\.attn\.scale is 1\.0, but the configuration gives 0\.5"):
        way(model, tmp_path)
    model.blocks[0].attn.scale = 0.5
    model.blocks[0].mlp.act = torch.tanh
    with pytest.raises(ConfigError, match=r"blocks\.0\.mlp\.act is "):
        way(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a5_rotary_frequencies_that_a_copy_would_lose_are_refused(tmp_path):
    model = HookedDecoder(DecoderConfig(n_layers=1, d_model=8, n_heads=2, d_vocab=11, n_ctx=8, positions="rotary"))
    save_native(model, tmp_path / "kept.safetensors", {})
    rotary = model.blocks[0].attn.rotary
    model.blocks[0].attn.rotary = Rotary(2 * rotary.theta, rotary.layout)
    with pytest.raises(ConfigError, match=r"blocks\.0\.attn\.rotary is .*, but the configuration gives"):
        save_native(model, tmp_path / "lost.safetensors", {})


def test_a5_two_matrices_for_a_tied_models_one_are_refused():
    model = random_model(TIED, dtype=torch.float32)
    before = model(TOKENS)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    state["unembed.weight"] = state["unembed.weight"] + 1
    with pytest.raises(ConfigError, match="one matrix for the embedding and another for the unembedding"):
        model.load_state_dict(state)
    torch.testing.assert_close(model(TOKENS), before, rtol=0, atol=0)
    untied = HookedDecoder(TIED.replace(tied=False))
    untied.load_state_dict(state)
    model.load_state_dict(state, assign=True)
    torch.testing.assert_close(model(TOKENS), untied(TOKENS))
