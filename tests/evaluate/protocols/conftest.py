"""Fixtures of the tests of protocols."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from idmetric import VisIDEmbed
from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.metric.idsim import IDSim
from idmetric.metric.visid.config import VisIDConfig
from tests.conftest import random_model
from tests.evaluate.protocols.parts import Images, clip_folder


@pytest.fixture(scope="module")
def model() -> IDSim:
    return random_model("dinov3")


@pytest.fixture
def draw(tmp_path: Path) -> Images:
    return Images(tmp_path)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> VisIDEmbed:
    from idmetric.train.visme.small_qwen import write as write_qwen

    folder = tmp_path_factory.mktemp("qwen")
    write_qwen(folder)
    config = VisIDConfig(max_pixels=16 * 28 * 28, max_length=256)
    return VisIDEmbed(folder, config=config, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module", params=["clip", "siglip"])
def dual(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DualEncoder:
    folder = clip_folder(tmp_path_factory.mktemp(request.param), request.param)
    return open_model(f"dual:{folder}", device="cpu")
