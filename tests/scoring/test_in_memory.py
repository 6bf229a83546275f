"""Images in memory in `score` and `score_pairs`: the same numbers as of their files, under names such as image[3]."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import idmetric
from idmetric.matching.matching import match
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError


@pytest.fixture(scope="module")
def metric() -> Any:
    return idmetric.IDSim("tiny")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("photos")
    paths = []
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)
        paths.append(str(folder / f"{number}.png"))
        Image.fromarray(pixels).resize((64, 64)).save(paths[-1])
    return paths


def forms(path: str) -> list[Any]:
    """One picture in each form that the metric takes."""
    picture = Image.open(path)
    picture.load()
    array = np.asarray(picture)
    data = Path(path).read_bytes()
    return [
        picture,
        array,
        torch.from_numpy(array.copy()).permute(2, 0, 1),
        data,
        io.BytesIO(data),
        {"bytes": data, "path": None},
        {"bytes": None, "path": path},
        Path(path),
    ]


def test_score_takes_images_in_memory_and_names_them_by_their_place(metric: Any, files: list[str]) -> None:
    expected = idmetric.score(metric, files[0], files[1]).rows[0]["distance"]
    scores = idmetric.score(metric, forms(files[0])[0], forms(files[1]), copies=False)
    assert [row["distance"] for row in scores.rows] == pytest.approx([expected] * 8, rel=1e-5)
    names = [f"image[{index}]" for index in range(7)] + [files[1]]
    assert sorted(row["image"] for row in scores.rows) == sorted(names)
    assert {row["reference"] for row in scores.rows} == {"reference[0]"}
    assert {type(row["image"]) for row in scores.rows} == {str}


def test_a_batch_is_a_list_of_images(metric: Any, files: list[str]) -> None:
    arrays = np.stack([np.asarray(Image.open(path)) for path in files])
    pixels = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    expected = {row["image"]: row["distance"] for row in idmetric.score(metric, files[0], files[1:]).rows}
    for batch in (arrays[1:], pixels[1:], list(arrays[1:]), pandas.Series(list(arrays[1:]))):
        rows = idmetric.score(metric, arrays[0], batch).rows
        assert {row["image"]: row["distance"] for row in rows} == {
            f"image[{index}]": expected[path] for index, path in enumerate(files[1:])
        }


def test_references_among_the_images_are_left_out_by_object(metric: Any, files: list[str]) -> None:
    pictures = [Image.open(path) for path in files]
    scores = idmetric.score(metric, pictures[:2], pictures)
    assert sorted(row["image"] for row in scores.rows) == ["image[2]", "image[3]"]
    assert list(scores.left_out) == ["image[0]", "image[1]"]
    assert scores.baseline is not None
    assert list(scores.baseline.distances) == ["reference[0]", "reference[1]"]


def test_score_pairs_takes_images_in_tuples_dicts_and_data_frames(metric: Any, files: list[str]) -> None:
    reference = Image.open(files[0])
    pictures = [Image.open(path) for path in files[1:]]
    paths = [(files[0], path) for path in files[1:]]
    expected = [row["distance"] for row in idmetric.score_pairs(metric, paths).rows]
    frame = pandas.DataFrame({"ref": [reference] * 3, "gen": pictures, "seed": [1, 2, 3]})
    for pairs in (
        [(reference, picture) for picture in pictures],
        [{"a": reference, "b": np.asarray(picture)} for picture in pictures],
        frame,
    ):
        rows = idmetric.score_pairs(metric, pairs).rows
        assert [row["distance"] for row in rows] == expected
        assert [row["image"] for row in rows] == ["image[0]", "image[1]", "image[2]"]
        assert {row["reference"] for row in rows} == {"reference[0]"}
    assert [row["seed"] for row in rows] == ["1", "2", "3"]


def test_masks_in_memory_are_those_of_files(metric: Any, files: list[str], tmp_path: Path) -> None:
    mask = Image.new("L", (64, 64))
    mask.paste(255, (16, 16, 48, 48))
    mask.save(tmp_path / "mask.png")
    path = str(tmp_path / "mask.png")
    of_files = idmetric.score_pairs(metric, [(files[0], files[1], path, path)]).rows[0]
    in_memory = idmetric.score_pairs(metric, [(Image.open(files[0]), files[1], mask, mask)]).rows[0]
    assert in_memory["distance"] == of_files["distance"]
    assert of_files["distance"] != idmetric.score_pairs(metric, [(files[0], files[1])]).rows[0]["distance"]


def test_messages_name_the_image(metric: Any, files: list[str]) -> None:
    images = [Image.open(files[1]), np.full((8, 8, 3), 7.0)]
    with pytest.raises(ImageReadError, match=r"image\[1\]: float pixels must lie in \[0, 1\]"):
        idmetric.score(metric, files[0], images)
    scores = idmetric.score(metric, files[0], images, on_error="skip")
    assert [skipped["image"] for skipped in scores.skipped] == ["image[1]"]
    assert scores.skipped[0]["reason"].startswith("float pixels")
    with pytest.raises(RequestError, match=r"image\[1\] is a list: give one flat list"):
        idmetric.score(metric, files[0], [images[0], images])
    with pytest.raises(RequestError, match="pair 2: two images are needed"):
        idmetric.score_pairs(metric, [(images[0], files[1]), (images[0], None)])


def test_the_cache_keeps_files_alone(metric: Any, files: list[str], tmp_path: Path) -> None:
    images = [Image.open(files[1]), files[2]]
    first = idmetric.score(metric, files[0], images, cache=tmp_path)
    again = idmetric.score(metric, files[0], images, cache=tmp_path)
    for row, row_again in zip(first.rows, again.rows, strict=True):  # old versions of torch round by batch size
        assert row_again == {**row, "distance": pytest.approx(row["distance"], abs=1e-6)}
    assert [row["distance"] for row in idmetric.score(metric, files[0], images).rows] == pytest.approx(
        [row["distance"] for row in first.rows], abs=1e-6
    )


def test_an_image_of_datasets_is_an_image_everywhere(metric: Any, files: list[str]) -> None:
    stored = {"bytes": Path(files[0]).read_bytes(), "path": "cat.png"}
    assert float(metric(stored, files[1])) == float(metric(files[0], files[1]))
    assert float(metric([stored, {"bytes": None, "path": files[1]}], [files[1]] * 2)[0]) > 0
    with pytest.raises(ImageReadError, match=r"cat\.png: it is not an image"):
        metric({"bytes": b"text", "path": "cat.png"}, files[1])
    with pytest.raises(ImageReadError, match="empty"):
        metric({"bytes": None, "path": None}, files[1])
    matched = match(metric, {"cat": [stored]}, [stored], regions=[[(0, 0, 64, 64)]])
    assert matched.rows[0]["distance"] == pytest.approx(0, abs=1e-6)
