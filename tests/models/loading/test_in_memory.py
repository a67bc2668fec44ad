"""A Hugging Face model in memory is copied, equal to it, and left as it was; what was changed about it is refused."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from torch import Tensor, nn

from models.errors import InputError, UnsupportedModel
from models.loading import load_model
from models.text import SymbolTokenizer
from tests.models.loading.families import build, tokens
from tests.models.loading.test_tokenizer import byte_tokenizer

CASES = {
    "GPT2": {},
    "GPT2, untied": {"tie_word_embeddings": False},
    "Llama": {},
    "Llama, tied": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": 8},
    "Qwen2": {},
}


@pytest.mark.parametrize("case", CASES)
def test_c7_logits_are_equal_and_the_source_is_untouched(case):
    theirs = build(case.split(",")[0], **CASES[case]).train()
    theirs.requires_grad_(True)
    before = copy.deepcopy(theirs.state_dict())
    ours = load_model(theirs)
    ids = tokens(theirs)
    with torch.no_grad():
        expected = theirs.eval()(ids).logits
        theirs.train()
        torch.testing.assert_close(ours(ids), expected, rtol=0, atol=1e-5 * float(expected.max() - expected.min()))
        for parameter in ours.parameters():
            parameter.zero_()
    assert theirs.training
    assert all(parameter.requires_grad for parameter in theirs.parameters())
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())
    assert not any(module._forward_hooks for module in theirs.modules())


def test_c7_dtype_and_tokenizer_are_taken():
    theirs = build("GPT2", vocab_size=300)
    ours = load_model(theirs, dtype="bfloat16", tokenizer=byte_tokenizer(bos=True, prepends=False))
    assert ours.dtype == torch.bfloat16
    assert ours.to_str_tokens("ab") == ["a", "b"]
    assert ours.name == "GPT2LMHeadModel"
    assert load_model("toy", tokenizer=SymbolTokenizer()).tokenizer is not None
    with pytest.raises(InputError, match="tokenizer is a str; expected one of the transformers library"):
        load_model(theirs, tokenizer="gpt2")
    with pytest.raises(InputError, match="not an object in memory"):
        load_model(theirs, backend="transformer-lens")


class LoraLinear(nn.Module):
    """What an adapter library puts in a layer's place."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.base_layer(x)


def adapted(model: nn.Module) -> None:
    model.model.layers[1].mlp.up_proj = LoraLinear(model.model.layers[1].mlp.up_proj)


def replaced(model: nn.Module) -> None:
    part = model.model.layers[0].mlp
    part.forward = types.MethodType(lambda self, x: 2 * x, part)


def hooked(model: nn.Module) -> None:
    model.lm_head.register_forward_hook(lambda *args: None)


def parametrized(model: nn.Module) -> None:
    nn.utils.parametrize.register_parametrization(model.lm_head, "weight", nn.Identity())


def nowhere(model: nn.Module) -> None:
    model.to("meta")


def scaled(model: nn.Module) -> None:
    model.config.logit_softcapping = 30.0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (adapted, r"model\.layers\.1\.mlp\.up_proj is a tests.*LoraLinear.*merge or remove"),
        (replaced, r"model\.layers\.0\.mlp has a forward of its own"),
        (hooked, "lm_head has a hook of PyTorch's"),
        (parametrized, "lm_head is a .*Parametrized"),
        (nowhere, "on no device"),
        (scaled, "logit_softcapping = 30.0"),
    ],
)
def test_c7_what_the_weights_do_not_say_is_refused_in_one_line(change, match):
    theirs = build("Llama")
    change(theirs)
    with pytest.raises(UnsupportedModel, match=match) as caught:
        load_model(theirs)
    assert "\n" not in str(caught.value)


def test_c7_other_classes_are_refused():
    with pytest.raises(UnsupportedModel, match="a Linear in memory cannot be loaded"):
        load_model(nn.Linear(2, 2))
    with pytest.raises(UnsupportedModel, match="a GPT2Model in memory cannot be loaded; nearest: GPT2LMHeadModel"):
        load_model(build("GPT2").transformer)
