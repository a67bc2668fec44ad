"""Other libraries' chatter, held back while we load."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TALKERS = ("transformers", "huggingface_hub", "gguf")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and log lines of the loading libraries away, and put their levels back on leaving."""
    loggers = [logging.getLogger(name) for name in _TALKERS]
    before = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
