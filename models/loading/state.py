"""What a model's weights are, for whoever copies or saves them: its state, and the configuration that it fits."""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError
from models.parts.rope import Rotary


def state_of(model: HookedDecoder) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """Return a model's configuration as its weights have it, and its tensors by name.

    A tied model whose unembedding has been given a matrix of its own (``load_state_dict(..., assign=True)``, a new
    parameter) comes out untied. Of a tied one, ``unembed.weight`` is left out.

    Raises:
        ConfigError: parts or tensors that the configuration does not build, which a copy would lose.
    """
    if (why := model.replaced_part()) is not None:
        raise ConfigError(f"weights are copied by the configuration, but {why}; merge or remove it")
    state = {name: value.detach() for name, value in model.state_dict().items()}
    cfg = model.cfg
    if cfg.tied and not _equal(state["unembed.weight"], state["embed.W_E"]):
        cfg = cfg.replace(tied=False)
    with torch.device("meta"):
        copy = HookedDecoder(cfg)
    _check_settings(model, copy)
    built = copy.state_dict()
    for name in sorted(built.keys() | state.keys()):
        expected, got = (tuple(side[name].shape) if name in side else "nothing" for side in (built, state))
        if expected != got:
            raise ConfigError(
                f"{name} is {got}, but the configuration builds {expected}; make a model of the configuration that "
                "these weights have"
            )
    if cfg.tied:
        del state["unembed.weight"]
    elif model.unembed.weight is model.embed.W_E:  # tied by hand: a file holds no tensor under two names
        state["unembed.weight"] = state["unembed.weight"].clone()
    return cfg, state


def _check_settings(model: HookedDecoder, built: HookedDecoder) -> None:
    """Raise ConfigError where a number or a function of a part is another than the configuration gives it."""
    parts = dict(model.named_modules())
    for name, part in built.named_modules():
        for key, expected in vars(part).items() if name in parts else ():
            plain = isinstance(expected, (bool, int, float, str, Rotary)) or callable(expected)
            if not plain or key.startswith("_") or key in ("training", "name"):
                continue
            if (got := getattr(parts[name], key)) != expected:
                raise ConfigError(
                    f"{name}.{key} is {got}, but the configuration gives {expected}, and a copy would have that; make "
                    "a model of the configuration that is meant"
                )


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))
