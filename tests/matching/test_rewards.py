"""Rewards of several subjects: worked values, NumPy's twin, and gradients against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from idmetric.matching import Region, match, published
from idmetric.matching.rewards import assigned_similarities, umo_reward
from idmetric.matching.table import Table
from idmetric.stream.subjects import embed_subject
from tests.conftest import random_model
from tests.matching.scenes import ANN, REX, SIDE, references, scene

RIGHT = [[0.80, 0.45], [0.42, 0.78]]
MISSING = [[0.80], [0.42]]


def table_of(*images, references=1):
    """A table by the similarities (S, R) of each image; further references of a subject are farther."""
    widest = max(len(image[0]) for image in images)
    values = torch.full((len(images), len(images[0]), references, widest), math.nan)
    for time, image in enumerate(images):
        for reference in range(references):
            values[time, :, reference, : len(image[0])] = 1 - torch.tensor(image) + 0.1 * reference
    regions = tuple((Region(),) * len(image[0]) for image in images)
    names = tuple(f"image {time}" for time in range(len(images)))
    subjects = tuple(f"subject {number}" for number in range(len(images[0])))
    photos = tuple(tuple(map(str, range(references))) for _ in subjects)
    seconds = (math.nan,) * len(images)
    return Table(values, names, subjects, photos, regions, ("",) * len(images), seconds, (-1,) * len(images))


@pytest.mark.parametrize("references", [1, 3])
def test_worked_values(references):
    swapped = [row[::-1] for row in RIGHT]
    table = table_of(RIGHT, swapped, MISSING, [[0.62], [0.60]], references=references)
    assert umo_reward(table).tolist() == pytest.approx([0.1775, 0.1775, 0.19, 0.01], abs=1e-6)
    expected = [[0.80, 0.78], [0.80, 0.78], [0.80, 0], [0.62, 0]]
    assert assigned_similarities(table).tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


@pytest.mark.parametrize("aggregate", ["best", "mean"])
def test_the_reward_is_its_twin_on_arrays(aggregate):
    values = np.random.default_rng(0).uniform(-0.5, 1, (20, 3, 4)).round(6)
    table = table_of(*values.tolist(), references=2)
    farther = 0 if aggregate == "best" else 0.05
    expected = [published.umo_reward(similarity - farther) for similarity in values]
    assert umo_reward(table, aggregate).tolist() == pytest.approx(expected, abs=1e-6)


def test_an_image_without_regions_has_no_reward():
    table = table_of(RIGHT, [[math.nan, math.nan]] * 2)
    assert umo_reward(table).tolist() == pytest.approx([0.1775, 0], abs=1e-6)
    assert assigned_similarities(table)[1].tolist() == [0, 0]


@pytest.mark.parametrize("reward", [umo_reward, assigned_similarities])
def test_gradients_of_the_pixels_are_finite_differences(reward):
    """Of two subjects with two references each, in the crops of three boxes; the assignment stays the same."""
    smooth = random_model("dinov3").double()
    subjects = [embed_subject(smooth, references(badge, 2), name=name) for name, badge in (("ann", ANN), ("rex", REX))]
    picture, (left, right) = scene((ANN, REX))
    boxes = [left, (SIDE // 2, 10, SIDE + SIDE // 2, SIDE), right]
    start = torch.from_numpy(np.array(picture)).permute(2, 0, 1).double().div(255).clamp(0.05, 0.95)
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def total(pixels):
        return reward(match(smooth, subjects, pixels, regions=boxes).table).sum()

    pixels = start.clone().requires_grad_()
    total(pixels).backward()
    step = 1e-3
    with torch.no_grad():
        slope = (total(start + step * direction) - total(start - step * direction)) / (2 * step)
    assert float((pixels.grad * direction).sum()) == pytest.approx(float(slope), rel=1e-2)
