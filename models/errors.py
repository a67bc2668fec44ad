"""Every error this toolkit raises on purpose.

::

    ResidscopeError (ValueError)
    ├── ConfigError            a configuration that cannot describe a model
    ├── InputError             tokens, masks, text or flags that do not fit the model
    │   └── TokenizerMissing   text was given to a model without a tokenizer
    ├── HookError              anything about hooks
    │   ├── UnknownHook        a name or filter that matches no hook
    │   ├── HookNeverFired     a hook was registered and the run did not pass it
    │   └── HookShapeError     a hook returned another shape, dtype or device
    ├── CacheError             an activation that was not cached, caches that do not match
    ├── NonFiniteError         NaN or inf, with the first hook at which it appears
    └── LoadError              a checkpoint that cannot be found or read
        ├── HubUnreachable     the Hugging Face hub cannot be reached
        ├── UnsupportedModel   an architecture, setting or file type no loader handles
        └── CheckpointMismatch tensors left over, missing, or of another shape

A message says what was got, what was expected and what to change. All are ``ValueError``, so that
``except ValueError`` catches bad input; a broken invariant of our own is an ``AssertionError``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ResidscopeError(ValueError):
    """Base of all errors raised on purpose."""


class ConfigError(ResidscopeError):
    """A configuration that cannot describe a model."""


class InputError(ResidscopeError):
    """Tokens, masks, text or flags that do not fit the model."""


class TokenizerMissing(InputError):
    """Text was given to a model without a tokenizer."""


class HookError(ResidscopeError):
    """Anything about hooks."""


class UnknownHook(HookError):
    """A name or filter that matches no hook."""


class HookNeverFired(HookError):
    """A hook was registered and the run did not pass it."""


class HookShapeError(HookError):
    """A hook returned a tensor of another shape, dtype or device."""


class CacheError(ResidscopeError):
    """An activation that was not cached, or caches that do not match."""


class NonFiniteError(ResidscopeError):
    """NaN or inf, with the first hook at which it appears."""


class LoadError(ResidscopeError):
    """A checkpoint that cannot be found or read."""


class HubUnreachable(LoadError):
    """The Hugging Face hub cannot be reached."""


class UnsupportedModel(LoadError):
    """An architecture, setting or file type that no loader handles."""


class CheckpointMismatch(LoadError):
    """Tensors left over, missing, or of another shape."""


def nearest(got: str, known: Iterable[str], n: int = 3) -> str:
    """Return ``"; nearest: a, b, c"`` for an unknown name, or ``""`` when nothing is close.

    >>> nearest("blocks.0.hook_reisd_pre", ["blocks.0.hook_resid_pre", "hook_embed"])
    '; nearest: blocks.0.hook_resid_pre'
    """
    close = difflib.get_close_matches(got, list(known), n=n, cutoff=0.5)
    return f"; nearest: {', '.join(close)}" if close else ""
