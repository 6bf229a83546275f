"""Fixtures of the tests of protocols."""

from __future__ import annotations

import pytest

from idmetric.models.idsim import IDSim
from tests.conftest import random_model


@pytest.fixture(scope="module")
def model() -> IDSim:
    return random_model("dinov3")
