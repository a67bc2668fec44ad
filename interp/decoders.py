"""What tools that read weights and blocks ask of a model."""

from __future__ import annotations

from typing import TypeGuard, cast

from models.errors import InputError
from models.protocol import HookedModel, ResumableModel

_NEEDED = ("blocks", "embed", "ln_final", "unembed", "prepare", "step", "replaced_part", "hook_dict")
READ_BY_A_LENS = ("ln_final", "unembed")


def is_resumable(model: object) -> TypeGuard[ResumableModel]:
    """Return whether a model has blocks that can be entered halfway."""
    # isinstance(model, ResumableModel) would compute every property that it looks for: whole stacks of weights
    return all(hasattr(model, name) for name in _NEEDED)


def check_decoder(model: object) -> None:
    """Raise InputError unless a model has a decoder's blocks and weights, as a ``HookedDecoder`` does."""
    if not is_resumable(model):
        raise InputError(
            f"this reads a decoder's blocks and weights, which {type(model).__name__} does not give; use a "
            "HookedDecoder, such as load_model returns without backend='transformer-lens'"
        )


def check_parts(model: object, *under: str) -> None:
    """Raise InputError unless a decoder's parts are what was built, so that their weights say what they do.

    Args:
        model: any model.
        under: the parts that are read, such as ``READ_BY_A_LENS``; all of them by default.
    """
    check_decoder(model)
    if (why := cast(ResumableModel, model).replaced_part(*under)) is not None:
        raise InputError(
            f"this reads weights for what the parts built around them do, but {why}; merge it into the weights, or use "
            "tools that only run the model, such as sweeps and find_heads"
        )


def can_resume(model: HookedModel) -> TypeGuard[ResumableModel]:
    """Return whether the model's blocks can be entered halfway, and do exactly what the engines know.

    Where they do not, whole runs give the same numbers, more slowly.
    """
    return why_not_resumed(model) is None


def why_not_resumed(model: HookedModel) -> str | None:
    """Return what keeps a model from being entered halfway, or None."""
    if not is_resumable(model):
        return f"{type(model).__name__} has no blocks to enter"
    for name, point in model.hook_dict.items():
        if point.in_use:
            return f"a hook is attached to {name}"
    return model.replaced_part()
