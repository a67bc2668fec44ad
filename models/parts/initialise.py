"""How fresh weights are drawn.

========  ===========================================================================================
gpt2      normal, std .02; what writes to the residual stream, .02 / sqrt(2 * n_layers); biases 0
fan_in    normal, std 1 / sqrt(fan_in); attention output halved, the MLP's output zero; tables .1
          (forms induction circuits in small models quickly, and starts at the uniform loss)
torch     torch's own modules: linear weights and biases uniform in +-1/sqrt(fan_in), tables normal, std 1
========  ===========================================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.config import StackConfig
from models.parts.attention import Attention
from models.parts.embedding import Embedding, Unembedding
from models.parts.mlp import MLP
from models.parts.positions import PositionEmbedding

_TABLE_STD = {"gpt2": 0.02, "fan_in": 0.1, "torch": 1.0}


@torch.no_grad()
def initialise(model: nn.Module, cfg: StackConfig, n_sublayers: int, generator: torch.Generator) -> None:
    """Draw all weights of ``model`` in place.

    Args:
        model: anything built from ``models.parts``.
        cfg: gives ``init``.
        n_sublayers: writes to the residual stream, 2 * n_layers in a decoder.
        generator: the only source of randomness.
    """
    for module in model.modules():
        if isinstance(module, Embedding):
            module.W_E.normal_(0, _TABLE_STD[cfg.init], generator=generator)
        elif isinstance(module, PositionEmbedding) and isinstance(module.W_pos, nn.Parameter):
            module.W_pos.normal_(0, _TABLE_STD[cfg.init], generator=generator)
        elif isinstance(module, nn.Linear) or (isinstance(module, Unembedding) and not cfg.tied):
            _draw(module.weight, module.bias, cfg, generator)
    for module in model.modules():
        if not isinstance(module, (Attention, MLP)) or cfg.init == "torch":
            continue
        if cfg.init == "gpt2":
            module.writer.weight.div_(n_sublayers**0.5)
        else:
            module.writer.weight.mul_(0.5 if isinstance(module, Attention) else 0.0)


def _draw(weight: Tensor, bias: Tensor | None, cfg: StackConfig, generator: torch.Generator) -> None:
    bound = weight.shape[1] ** -0.5
    if cfg.init == "torch":
        weight.uniform_(-bound, bound, generator=generator)
        if bias is not None:
            bias.uniform_(-bound, bound, generator=generator)
        return
    weight.normal_(0, 0.02 if cfg.init == "gpt2" else bound, generator=generator)
    if bias is not None:
        bias.zero_()
