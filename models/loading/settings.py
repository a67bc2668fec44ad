"""The settings of a checkpoint, of which none that changes the mathematics may go unread."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from models.config import Activation
from models.errors import LoadError, UnsupportedModel, nearest

# What Hugging Face's config.json may say without changing logits: bookkeeping, training, sampling.
NOT_MATHEMATICS = frozenset(
    {
        "architectures", "attention_dropout", "attn_implementation", "attn_pdrop", "bos_token_id",
        "do_sample", "dtype", "embd_pdrop", "eos_token_id", "finetuning_task", "gradient_checkpointing",
        "id2label", "initializer_range", "is_llama_config", "label2id", "max_length", "max_seq_len",
        "max_seq_length", "max_sequence_length", "model_max_length", "model_type", "output_attentions",
        "output_hidden_states", "output_past", "pad_token_id", "pretraining_tp", "problem_type",
        "reorder_and_upcast_attn", "repetition_penalty", "resid_pdrop", "return_dict", "seq_length",
        "task_specific_params", "temperature", "tokenizer_class", "tokenizer_version", "top_k", "top_p", "torch_dtype",
        "transformers.js_config", "transformers_version", "unk_token_id", "use_cache",
    }
)  # fmt: skip

# What tools of training, merging and export write about themselves.
_TOOLS = ("unsloth", "axolotl", "mergekit", "peft", "lora_train", "trl_", "wandb", "onnx", "transformers.js")


def is_bookkeeping(name: str, value: Any = None) -> bool:
    """Return whether a setting is known to say nothing about the mathematics.

    That is: private names, a tool's own, a version written as releases are, and the list above. The lengths in it are
    of training or of a tokenizer: how far positions reach is read from each family's own name.

    >>> [is_bookkeeping(name) for name in ("_attn_implementation_autoset", "unsloth_fixed", "axolotl_version")]
    [True, True, True]
    >>> is_bookkeeping("llamafactory_version", "0.9.1"), is_bookkeeping("rope_version", 2)
    (True, False)
    >>> [is_bookkeeping(name) for name in ("quantization_config", "logit_softcapping", "version_of_attention")]
    [False, False, False]
    """
    is_release = isinstance(value, str) and re.match(r"v?\d+\.\d+", value) is not None
    return name.startswith(("_", *_TOOLS)) or (name.endswith("_version") and is_release) or name in NOT_MATHEMATICS


_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

_REQUIRED = object()


class Settings:
    """Values by name that remember which of them were read.

    Args:
        values: what the file says.
        origin: what messages call the file.
    """

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self._values = dict(values)
        self._unread = set(values)
        self.origin = origin

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a value and count it as handled. Raises LoadError where it is missing and has no default."""
        self._unread.discard(name)
        if name in self._values:
            return self._values[name]
        if default is _REQUIRED:
            raise LoadError(f"{self.origin} has no {name!r}{nearest(name, self._values)}; this architecture needs it")
        return default

    def expect(self, name: str, *allowed: Any) -> None:
        """Accept a setting at these values only, or absent. Raises UnsupportedModel at any other."""
        value = self.take(name, allowed[0])
        if value not in allowed:
            wanted = " or ".join(repr(one) for one in allowed)
            raise UnsupportedModel(f"{self.origin}: {name} = {value!r} changes the mathematics; handled is {wanted}")

    def activation(self, name: str, default: Any = _REQUIRED) -> Activation:
        """Read an activation function by Hugging Face's name."""
        value = self.take(name, default)
        if value not in _ACTIVATIONS:
            raise UnsupportedModel(
                f"{self.origin}: {name} = {value!r} is not an activation function handled here; "
                f"expected one of {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[value]

    def finish(self, harmless: Collection[str] = ()) -> None:
        """Raise UnsupportedModel where a setting was not read, is not known to be harmless, and is not off."""
        unread = {name: self._values[name] for name in self._unread - set(harmless)}
        unknown = {name: value for name, value in unread.items() if not is_bookkeeping(name, value)}
        on = [
            f"{name} = {value!r}" for name, value in sorted(unknown.items()) if value not in (None, False, {}, [], "")
        ]
        if on:
            raise UnsupportedModel(
                f"{self.origin}: settings that this loader does not know and that may change the mathematics: "
                f"{', '.join(on)}"
            )
