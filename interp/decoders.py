"""What tools that read weights and blocks ask of a model."""

from __future__ import annotations

from models.errors import InputError

_NEEDED = ("blocks", "embed", "ln_final", "unembed", "prepare", "step")


def check_decoder(model: object) -> None:
    """Raise InputError unless a model's blocks and weights can be read, as a ``HookedDecoder``'s can."""
    if not all(hasattr(model, name) for name in _NEEDED):
        raise InputError(
            f"this reads a decoder's blocks and weights, which {type(model).__name__} does not give; use a "
            "HookedDecoder, such as load_model returns without backend='transformer-lens'"
        )
