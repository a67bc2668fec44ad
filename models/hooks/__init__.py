"""Hook points, the table of their names, and the cache of what passed them."""

from models.hooks.cache import ActivationCache
from models.hooks.module import HookedModule
from models.hooks.names import HookNames, HookSpec, decoder_hooks, encoder_decoder_hooks
from models.hooks.point import HookPoint

__all__ = [
    "ActivationCache",
    "HookNames",
    "HookPoint",
    "HookSpec",
    "HookedModule",
    "decoder_hooks",
    "encoder_decoder_hooks",
]
