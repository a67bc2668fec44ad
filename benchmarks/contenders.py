"""One GPT-2 with random weights, run by three libraries: ours, Hugging Face's and TransformerLens's.

Each gets a module of its own, since TransformerLens rebuilds the one that it is given, and runs it with the attention
that it takes by default: fused for ours and Hugging Face's, eager for TransformerLens, whose hooks need the pattern.
"""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor

from models import HookedDecoder
from models.loading import load_model


@dataclass(frozen=True)
class Contenders:
    """The same weights three times, in eval mode."""

    ours: HookedDecoder
    hugging_face: Any
    transformer_lens: Any

    def logits(self, tokens: Int[Tensor, "batch pos"]) -> dict[str, Float[Tensor, "batch pos d_vocab"]]:
        """Return every library's logits, by the names that the benchmarks show."""
        return {
            "residscope": self.ours(tokens),
            "Hugging Face": self.hugging_face(tokens, use_cache=False).logits,
            "TransformerLens": self.transformer_lens(tokens),
        }


def gpt2(seed: int = 0, **sizes: int) -> Contenders:
    """Draw a GPT-2 and load it three times.

    Args:
        seed: of the weights.
        sizes: fields of ``transformers.GPT2Config``, such as ``n_layer``; GPT-2 small by default.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theirs = GPT2LMHeadModel._from_config(GPT2Config(**sizes), attn_implementation="sdpa").eval()
    bridged = copy.deepcopy(theirs)
    bridged.set_attn_implementation("eager")
    with tempfile.TemporaryDirectory() as folder:
        theirs.config.save_pretrained(folder)
        save_file(theirs.transformer.state_dict(), f"{folder}/model.safetensors")
        ours = load_model(folder)
    bridge = build_bridge_from_module(bridged, "GPT2LMHeadModel", hf_config=bridged.config, model_name="gpt2")
    return Contenders(ours, theirs, bridge.eval())
