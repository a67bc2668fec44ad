"""The transformers under study, and how to get one."""

from models.config import DecoderConfig, EncoderDecoderConfig, RotaryScaling
from models.decoder import HookedDecoder
from models.encoder_decoder import HookedEncoderDecoder
from models.hooks import ActivationCache, HookNames, HookPoint

__all__ = [
    "ActivationCache",
    "DecoderConfig",
    "EncoderDecoderConfig",
    "HookNames",
    "HookPoint",
    "HookedDecoder",
    "HookedEncoderDecoder",
    "RotaryScaling",
]
