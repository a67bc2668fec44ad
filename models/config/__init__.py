"""What a model is made of: frozen configurations, and all of their validation.

Each part's options stand in the file of its name. ``StackConfig`` holds what one stack of blocks needs;
``DecoderConfig`` and ``EncoderDecoderConfig`` add the depth. A combination that describes no model is refused here,
with a reason, so that the modules in ``models.parts`` may trust what they are given.
"""

from models.config.attention import AttentionConfig
from models.config.embedding import EmbeddingConfig, UnembeddingConfig
from models.config.mlp import Activation, MLPConfig
from models.config.model import DecoderConfig, EncoderDecoderConfig, Init, StackConfig
from models.config.norm import NormConfig, NormKind, NormPosition
from models.config.part import PerLayer, of_layer
from models.config.positions import Positions, PositionsConfig, RotaryLayout, RotaryScaling

__all__ = [
    "Activation",
    "AttentionConfig",
    "DecoderConfig",
    "EmbeddingConfig",
    "EncoderDecoderConfig",
    "Init",
    "MLPConfig",
    "NormConfig",
    "NormKind",
    "NormPosition",
    "PerLayer",
    "Positions",
    "PositionsConfig",
    "RotaryLayout",
    "RotaryScaling",
    "StackConfig",
    "UnembeddingConfig",
    "of_layer",
]
