"""Groups cut from single photos: what is drawn, and what the pixels are."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from photos import (
    CROP_AREA,
    PART_AREA,
    PART_SIDE,
    Cuts,
    cut,
    draw_cuts,
    families,
    photo_files,
)
from PIL import Image

FOLDERS = [list(range(8))] * 8 + [[8, 9]] * 2  # eight photos, and two


def drawn(count: int = 6, pasted: float = 0.5, seed: int = 0) -> Cuts:
    return draw_cuts(FOLDERS, count, 3, np.random.default_rng(seed), pasted)


def photos(size: int = 64) -> NDArray[np.uint8]:
    """Ten photos whose red and green tell the place, and blue the photo."""
    line = np.rint((np.arange(size) + 0.5) / size * 255).astype(np.uint8)
    return np.stack(
        [np.stack([*np.meshgrid(line, line), np.full((size, size), 20 * k, np.uint8)], -1) for k in range(10)]
    )


def test_files_below_folders_are_the_photos(tmp_path: Path) -> None:
    for name in ("b/1.PNG", "b/0.jpg", "a/2.webp", "a/.hidden.jpg", "a/notes.txt", "a/folder.jpg/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files = photo_files([str(tmp_path / "b"), str(tmp_path / "a"), str(tmp_path / "b")])
    assert [file.name for file in files] == ["0.jpg", "1.PNG", "2.webp", "4.png"]  # each once
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: no image is there \(.jpg"):
        photo_files([str(tmp_path / "empty")])


def test_twins_are_of_the_same_folder_where_there_are_others() -> None:
    files = [Path(name) for name in ("a/0.jpg", "b/1.jpg", "a/2.jpg", "a/3.jpg")]
    assert families(files) == [[0, 2, 3], [0, 1, 2, 3], [0, 2, 3], [0, 2, 3]]
    with pytest.raises(ValueError, match="1 photo has no other"):
        families(files[:1])


def test_a_drawn_group_is_a_photo_and_another_of_its_folder() -> None:
    for seed in range(20):
        cuts = drawn(8, seed=seed)
        assert all(twin in FOLDERS[thing] and twin != thing for thing, twin in cuts.photos)
        assert len(set(cuts.photos[:, 0].tolist())) == 8  # ten photos: none in two groups
        assert cuts.pasted.tolist() == [True, False] * 4
        for pasted, own, scene in zip(cuts.pasted, cuts.photos, cuts.scene, strict=True):
            if pasted:  # one surrounding for both
                assert (scene[0] == scene[1]).all()
                assert own[0] not in scene
            else:
                assert (scene == own[:, None]).all()
    assert set(drawn(30).photos[:, 0].tolist()) <= set(range(10))  # more groups than photos
    assert {tuple(pair) for pair in drawn(2000).photos.tolist()} == {
        (thing, twin) for thing in range(10) for twin in FOLDERS[thing] if twin != thing
    }
    scenes = drawn(200, 1.0).scene
    assert (scenes[:, 0, 0] != scenes[:, 0, 1]).mean() > 0.8  # other surroundings in each view


def test_boxes_lie_in_the_photo_and_have_the_areas_that_are_told() -> None:
    cuts = draw_cuts(FOLDERS, 4000, 2, np.random.default_rng(0), 0.5)
    for box, (low, high) in ((cuts.crop, CROP_AREA), (cuts.part, PART_AREA)):
        area = box[..., 2] * box[..., 3]
        assert (np.abs(box[..., :2]) + box[..., 2:] <= 1 + 1e-6).all()
        assert low * 0.99 < area.min() < low * 1.05  # (a wide one may be cut at the photo's edge)
        assert area.max() <= high * 1.001
        assert area.mean() == pytest.approx((low + high) / 2, rel=0.03)
    place = cuts.place
    assert (np.abs(place[..., :2]) + place[..., 2:] <= 1 + 1e-6).all()
    side = np.sqrt(place[..., 2] * place[..., 3])
    assert side.mean() == pytest.approx(np.mean(PART_SIDE), rel=0.02)


def test_a_crop_shows_its_box() -> None:
    cuts, source = drawn(pasted=0.0), photos()
    images = cut(source, cuts, 32)
    assert images.shape == (6, 2, 3, 32, 32, 3)
    for group, which, view in np.ndindex(6, 2, 3):
        x, y, w, h = (cuts.crop[group, view] + (1, 1, 0, 0)) * 32  # in pixels of the photo
        crop = Image.fromarray(source[cuts.photos[group, which]]).resize(
            (32, 32), Image.Resampling.BILINEAR, box=(x - w, y - h, x + w, y + h)
        )
        np.testing.assert_allclose(images[group, which, view].astype(float), np.asarray(crop), atol=3)


def test_what_is_pasted_lies_where_it_is_told() -> None:
    cuts, source = drawn(4, 1.0), photos()
    images, seen = cut(source, cuts, 40), Counter[bool]()
    for group, which, view, row, column in np.ndindex(4, 2, 3, 8, 8):  # every fifth pixel, one by one
        row, column = 5 * row + 2, 5 * column + 2
        x, y = (column + 0.5) / 20 - 1, (row + 0.5) / 20 - 1
        cx, cy, w, h = cuts.place[group, view].tolist()
        angle, shear, along, across = cuts.turn[group, view].tolist()
        u = (math.cos(angle) * (x - cx) + math.sin(angle) * (y - cy)) / w
        v = (-math.sin(angle) * (x - cx) + math.cos(angle) * (y - cy)) / h
        u += shear * v
        depth = max(0.2, 1 + along * u + across * v)
        u, v = u / depth, v / depth
        power = float(cuts.roundness[group])
        radius = (abs(u) ** power + abs(v) ** power) ** (1 / power)
        if abs(radius - 1) < 0.3:
            continue  # near the edge, whose pixels are mixed
        seen[radius < 1] += 1
        box = cuts.part[group] if radius < 1 else cuts.crop[group, view]
        at = (u, v) if radius < 1 else (x, y)
        expected = [(box[k] + box[k + 2] * at[k] + 1) / 2 * 255 for k in range(2)]
        shown = cuts.photos[group, which] if radius < 1 else cuts.scene[group, which, view]
        found = images[group, which, view, row, column]
        assert found[2] == 20 * shown
        if all(3 < value < 252 for value in expected):  # the outermost pixels are reflected
            assert found[:2] == pytest.approx(expected, abs=3)
    assert min(seen[True], seen[False]) > 100


def test_an_outline_is_a_superellipse_with_a_soft_edge() -> None:
    cuts = drawn(1, 1.0)
    size, source = 200, photos()
    for power in (1.5, 2.0, 6.0):
        plain = replace(
            cuts,
            roundness=np.float32([power]),
            turn=np.zeros_like(cuts.turn),
            place=np.broadcast_to(np.float32([0.1, 0, 0.6, 0.4]), cuts.place.shape),
            photos=np.array([[1, 2]]),
            scene=np.full_like(cuts.scene, 9),
        )
        blue = cut(source, plain, size)[0, 0, 0, :, :, 2]
        area = 4 * 0.6 * 0.4 * math.gamma(1 + 1 / power) ** 2 / math.gamma(1 + 2 / power) / 4
        assert ((180 - blue.astype(float)) / 160).mean() == pytest.approx(area, rel=0.02)
        assert 0 < ((blue > 20) & (blue < 180)).mean() < 0.1
