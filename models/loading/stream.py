"""From a file of tensors to a model, one tensor at a time.

A family's adapter says where each checkpoint tensor goes; ``fill`` copies it there and keeps nothing else, so that
loading takes the model's own memory and one tensor more. Nothing is skipped in silence: a tensor that has no place, a
parameter that has no tensor and a shape that does not fit are each a ``CheckpointMismatch``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import CheckpointMismatch
from models.text import Tokenizer


class TensorSource(Protocol):
    """A checkpoint: names, and one tensor at a time."""

    @property
    def origin(self) -> str:
        """What messages call it: a file or a folder."""
        ...

    def names(self) -> Collection[str]: ...
    def read(self, name: str) -> Tensor: ...


Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Place:
    """Where a checkpoint tensor, or a part of it, goes: ``parameter = transform(tensor)``."""

    parameter: str
    transform: Transform | None = None


@dataclass(frozen=True)
class Adapter:
    """The map from one family's checkpoint names to our parameters.

    Attributes:
        places: for each checkpoint tensor, the parameters made from it. Two tensors with the same place must agree.
        either: names of one and the same tensor, of which some may be absent: a tied model's embedding.
        ignored: names of tensors that hold no weights, such as causal masks.
    """

    places: Mapping[str, tuple[Place, ...]]
    either: tuple[str, ...] = ()
    ignored: re.Pattern[str] | None = None

    def check_names(self, source: TensorSource) -> list[str]:
        """Return the names to read, in order. Raises CheckpointMismatch on names left over or missing."""
        ignored = {name for name in source.names() if self.ignored is not None and self.ignored.fullmatch(name)}
        found = set(source.names()) - ignored
        left_over, missing = sorted(found - set(self.places)), sorted(set(self.places) - found - set(self.either))
        if self.either and not found & set(self.either):
            missing.append(" or ".join(self.either))
        problems = []
        if left_over:
            problems.append(f"{len(left_over)} tensors have no place in this architecture: {_some(left_over)}")
        if missing:
            problems.append(f"{len(missing)} tensors are missing: {_some(missing)}")
        if problems:
            raise CheckpointMismatch(
                f"{source.origin}: {'; '.join(problems)}. Does the configuration belong to this checkpoint?"
            )
        return [name for name in self.places if name in found]


def adapter(
    model: HookedDecoder,
    locate: Callable[[str], tuple[str, Transform | None]],
    *,
    tied_copy: str,
    ignored: re.Pattern[str] | None = None,
) -> Adapter:
    """Return the adapter that finds each parameter of ``model`` in the checkpoint.

    Args:
        model: gives the parameters to be filled.
        locate: from our parameter's name to the checkpoint tensor it comes from, and how.
        tied_copy: the unembedding's name; a tied model may have it instead of the embedding, or beside it, and then
            they must be equal.
        ignored: see ``Adapter``.
    """
    places: dict[str, tuple[Place, ...]] = {}
    for ours, _ in model.named_parameters():
        theirs, transform = locate(ours)
        places[theirs] = (*places.get(theirs, ()), Place(ours, transform))
    if not model.cfg.tied:
        return Adapter(places, ignored=ignored)
    embedding, _ = locate("embed.W_E")
    places[tied_copy] = (Place("embed.W_E"),)
    return Adapter(places, either=(embedding, tied_copy), ignored=ignored)


def block_part(ours: str) -> tuple[int, str, str]:
    """Split the name of a parameter inside a block.

    >>> block_part("blocks.3.attn.q.bias"), block_part("blocks.0.ln1.w")
    ((3, 'attn.q', 'bias'), (0, 'ln1', 'weight'))
    """
    _, layer, rest = ours.split(".", 2)
    part, _, kind = rest.rpartition(".")
    return int(layer), part, {"w": "weight", "b": "bias"}.get(kind, kind)


def _some(names: list[str], n: int = 6) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


def empty_model(
    cfg: DecoderConfig, tokenizer: Tokenizer | None, dtype: torch.dtype, device: torch.device
) -> HookedDecoder:
    """Return a frozen model in eval mode whose parameters are allocated and not yet written."""
    with torch.device("meta"):
        model = HookedDecoder(cfg, tokenizer=tokenizer)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            memory = torch.empty(parameter.shape, dtype=dtype, device=device)
            module.register_parameter(name, nn.Parameter(memory, requires_grad=False))
        for name, table in module.named_buffers(recurse=False):
            module.register_buffer(name, table.to(device, dtype), persistent=False)  # computed, on the CPU
    if cfg.tied:
        model.unembed.weight = model.embed.W_E  # the loop gave each of the two names memory of its own
    return model.eval()


@torch.no_grad()
def fill(model: HookedDecoder, source: TensorSource, adapter: Adapter) -> HookedDecoder:
    """Copy every tensor of ``source`` to its place in ``model``, in place, and return the model.

    Raises:
        CheckpointMismatch: tensors left over, missing, of another shape, or two that should agree and do not.
    """
    parameters = dict(model.named_parameters())
    filled: set[str] = set()
    for name in adapter.check_names(source):
        tensor = source.read(name)
        for place in adapter.places[name]:
            parameter = parameters[place.parameter]
            value = tensor if place.transform is None else place.transform(tensor)
            if value.shape != parameter.shape:
                raise CheckpointMismatch(_wrong_shape(source, name, tensor, place, value, parameter))
            if place.parameter not in filled:
                parameter.copy_(value)
                filled.add(place.parameter)
            elif not torch.equal(parameter, value.to(parameter)):
                raise CheckpointMismatch(
                    f"{source.origin}: {name} differs from the tensor that is already at {place.parameter}; "
                    "a tied model has one matrix. If it is untied, set tie_word_embeddings to false in config.json"
                )
    assert filled == set(parameters), sorted(set(parameters) - filled)
    return model


def _wrong_shape(
    source: TensorSource, name: str, tensor: Tensor, place: Place, value: Tensor, parameter: Tensor
) -> str:
    message = (
        f"{source.origin}: {name} has shape {tuple(tensor.shape)}, which gives {place.parameter} "
        f"{tuple(value.shape)}; the configuration says {tuple(parameter.shape)}"
    )
    rows = value.shape[0] if value.ndim else 0
    if place.parameter in ("embed.W_E", "unembed.weight") and rows > parameter.shape[0]:
        message += f". The vocabulary seems padded: set vocab_size to {rows} to use all of its rows"
    return message
