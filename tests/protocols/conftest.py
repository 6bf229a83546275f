"""Fixtures of the tests of protocols."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.models.idsim import IDSim
from tests.conftest import random_model
from tests.protocols.parts import Images


@pytest.fixture(scope="module")
def model() -> IDSim:
    return random_model("dinov3")


@pytest.fixture
def draw(tmp_path: Path) -> Images:
    return Images(tmp_path)
