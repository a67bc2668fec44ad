"""A Hugging Face model object: its weights are copied, and it is left as it was."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from models.decoder import HookedDecoder
from models.errors import UnsupportedModel, nearest
from models.loading.hugging_face import FAMILIES, configuration
from models.loading.stream import empty_model, fill
from models.text import Tokenizer

_OWN = ("transformers.models.", "transformers.pytorch_utils", "transformers.activations", "torch.nn.modules.")


class _State:
    """The tensors of a module, as ``fill`` reads them."""

    def __init__(self, module: nn.Module) -> None:
        self.origin = type(module).__name__
        self._tensors = module.state_dict()

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def read(self, name: str) -> Tensor:
        return self._tensors[name].detach()


def load_object(
    theirs: nn.Module, tokenizer: Tokenizer | None, dtype: torch.dtype, device: torch.device
) -> HookedDecoder:
    """Return a copy of a Hugging Face model in memory, such as one that was fine-tuned or merged.

    Raises:
        UnsupportedModel: a class that is not handled, adapters, quantised or replaced parts, hooks, weights on no
            device, a setting that changes the mathematics.
        CheckpointMismatch: tensors that do not fit.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    classes = {family: str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]) for family in FAMILIES}
    config: Any = getattr(theirs, "config", None)
    model_type = str(getattr(config, "model_type", ""))
    name = type(theirs).__name__
    if classes.get(model_type) != name:
        handled = classes.values()
        raise UnsupportedModel(
            f"a {name} in memory cannot be loaded{nearest(name, handled)}; handled are {', '.join(handled)} (merge "
            "adapters first, such as with merge_and_unload())"
        )
    for part_name, part in theirs.named_modules():
        if (why := _not_as_built(part)) is not None:
            raise UnsupportedModel(
                f"{part_name or name} {why}, so that its weights do not say what it does; merge or remove it first"
            )
    if any(value.device.type == "meta" for value in theirs.state_dict().values()):
        raise UnsupportedModel(f"some weights of this {name} are on no device (meta); load them first")
    values = json.loads(config.to_json_string())
    cfg = configuration(values, f"the configuration of this {name}")
    model, source = empty_model(cfg, tokenizer, dtype, device), _State(theirs)
    return fill(model, source, FAMILIES[model_type].tensors(model, source.names()))


def _not_as_built(part: nn.Module) -> str | None:
    kind = type(part)
    if not kind.__module__.startswith(_OWN):
        return f"is a {kind.__module__}.{kind.__name__}"
    if "forward" in vars(part):
        return "has a forward of its own"
    if part._forward_hooks or part._forward_pre_hooks:
        return "has a hook of PyTorch's"
    if torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks:
        return "runs under a hook on all modules"
    return None
