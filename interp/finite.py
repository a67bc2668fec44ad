"""NaN and inf are never read as findings: the first hook at which they appear is named.

What a tool computed shows most of them. A run itself hides some: fused attention turns a score of NaN into a weight of
0, and a ReLU turns -inf into 0. So the weights that lead there are looked at too, by one sum each: a tenth of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from models.errors import NonFiniteError
from models.parts.mlp import MLP
from models.protocol import HookedModel


def check_model(model: HookedModel, *prompts: Tensor, real: Tensor | None = None) -> None:
    """Check a model before work is done with it.

    Where nothing can be hidden and no hook changes its runs, this runs nothing.

    Args:
        model: any hooked model.
        prompts: ids that it is about to run on, each ``[batch, pos]``.
        real: False at their padding.

    Raises:
        NonFiniteError: NaN or inf of the weights, or of what attached hooks return, reaches a run on the prompts.
    """
    if _are_finite(_hiding_weights(model)) and not any(point.acts for point in model.hook_dict.values()):
        return
    for tokens in prompts:
        model.check_finite(tokens, attention_mask=real)


def check_computed(
    model: HookedModel, *prompts: Tensor, real: Tensor | None = None, computed: Mapping[str, Tensor | np.ndarray]
) -> None:
    """Check what a tool computed, by name.

    Raises:
        NonFiniteError: some of it is NaN or inf; names the first hook, if one is to blame.
    """
    bad = [name for name, values in computed.items() if not torch.as_tensor(values).isfinite().all()]
    if not bad:
        return
    for tokens in prompts:
        model.check_finite(tokens, attention_mask=real)
    raise NonFiniteError(
        f"NaN or inf in {', '.join(bad)}, though every hook of a plain run on these prompts is finite: the numbers "
        "outgrow this precision, or the metric is undefined here; use dtype float32, or another metric"
    )


def _hiding_weights(model: HookedModel) -> list[Tensor]:
    """Return the weights whose NaN or inf a run may hide; all of them where the model's parts are not known."""
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        return list(model.parameters())
    vectors = [weight for weight in model.parameters() if weight.ndim < 2]
    matrices = [linear.weight for block in blocks for linear in (block.attn.q, block.attn.k)]
    mlps = [block.mlp for block in blocks if block.mlp is not None and _may_hide(block.mlp)]
    matrices += [weight for mlp in mlps for weight in mlp.parameters()]
    return vectors + matrices


def _may_hide(mlp: nn.Module) -> bool:
    """Return whether an activation function may turn -inf into a number: a ReLU does, and who knows of other parts."""
    return not isinstance(mlp, MLP) or mlp.act is relu


@torch.no_grad()
def _are_finite(weights: Sequence[Tensor]) -> bool:
    """Return False where some weight is NaN or inf; also, once in a blue moon, where a sum outgrows float32."""
    sums = [weight.sum(dtype=torch.float32) for weight in weights]
    return not sums or bool(torch.stack(sums).isfinite().all())
