"""Images of a training run, logged to TensorBoard or a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import IdentityLoss, IDSim

COLORS = [(200, 30, 30), (30, 30, 200)]


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("references")
    for number, color in enumerate(COLORS):
        Image.new("RGB", (80, 60), color).save(folder / f"{number}.png")
    return [str(folder / f"{number}.png") for number in range(2)]


@pytest.fixture
def batch(references: list[str]) -> torch.Tensor:
    """Noise, and one of the references."""
    noise = torch.rand(3, 3, 60, 80, generator=torch.Generator().manual_seed(0))
    noise[1] = torch.from_numpy(np.array(Image.open(references[1]))).permute(2, 0, 1) / 255
    return noise


def test_the_worst_images_stand_next_to_their_nearest_reference(
    metric: IDSim, references: list[str], batch: torch.Tensor
) -> None:
    loss = IdentityLoss(metric, references, aggregate="min")
    calls: list[Any] = []
    pairs = loss.log_images(lambda pairs, step: calls.append((pairs, step)), batch.requires_grad_(), 7, count=3)
    with torch.no_grad():
        expected = IdentityLoss(metric, references, aggregate="min", reduction="none")(batch)
    order = expected.argsort(descending=True).tolist()
    assert calls == [(pairs, 7)]
    assert [pair.row for pair in pairs] == order
    assert order[-1] == 1
    assert [pair.loss for pair in pairs] == pytest.approx(expected[order].tolist())
    last = np.asarray(pairs[-1].picture)
    assert last.shape == (256 + 16, 512, 3)
    for left in (128, 384):  # the image on the left is the reference on the right
        np.testing.assert_allclose(last[128, left], COLORS[1], atol=2)
    assert loss.log_images(None, batch, 0, count=1)[0].row == order[0]


def test_the_colors_of_a_decoders_range_and_no_reference_of_an_embedding(
    metric: IDSim, references: list[str], batch: torch.Tensor
) -> None:
    loss = IdentityLoss(metric, metric.embed(references), value_range=(-1, 1))
    [pair] = loss.log_images(None, 2 * batch[1:2] - 1, 0)
    np.testing.assert_allclose(np.asarray(pair.picture)[128, 128], COLORS[1], atol=2)
    assert np.asarray(pair.picture)[128, 384].tolist() == [255, 255, 255]


def test_references_may_come_from_a_generator_and_their_files_may_go(
    metric: IDSim, batch: torch.Tensor, tmp_path: Path
) -> None:
    for number, color in enumerate(COLORS):
        Image.new("RGB", (80, 60), color).save(tmp_path / f"{number}.png")
    loss = IdentityLoss(metric, (str(path) for path in sorted(tmp_path.glob("*.png"))), aggregate="min")
    Image.new("RGB", (80, 60), (0, 200, 0)).save(tmp_path / "0.png")
    (tmp_path / "1.png").unlink()
    [pair] = loss.log_images(None, batch[1:2], 0)
    np.testing.assert_allclose(np.asarray(pair.picture)[128, 384], COLORS[1], atol=2)


def test_tensorboard_gets_one_image_for_each_pair(
    metric: IDSim, references: list[str], batch: torch.Tensor, tmp_path: Path
) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loss = IdentityLoss(metric, references)
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        loss.log_images(writer, batch, 5, count=2)
    accumulator = events.EventAccumulator(str(tmp_path)).Reload()
    [image] = accumulator.Images("identity")
    assert (image.step, image.width, image.height) == (5, 2 * 512, 272)  # a grid of both
