"""SmolLM2, loaded once for all tests of the weights."""

from __future__ import annotations

import pytest

from models import HookedDecoder
from models.loading import load_model


@pytest.fixture(scope="session")
def smollm2() -> HookedDecoder:
    return load_model("smollm2")
