"""Fast decoding: JPEG files alone, never below what the model's resize needs, and never taken for exact scores."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import idmetric
from idmetric import IDSim, ImageReadError
from idmetric.adapters.export import export
from idmetric.cli.main import main
from idmetric.cli.options import DECODES
from idmetric.matching.heatmaps import heatmaps
from idmetric.metric.calibration.apply import CalibrationError
from idmetric.metric.errors import RequestError
from idmetric.metric.images.fit import SQUASH, Fit
from idmetric.metric.images.opening import LEAST, MARGIN, checked
from idmetric.metric.images.read import read_image, to_image, to_pixels
from idmetric.metric.images.small import small_picture
from idmetric.metric.models.vbench import FramePreprocessor
from idmetric.stream.keys import folder_name
from tests.conftest import random_model
from tests.metric.images.batches import load_batch

SIDE = 112  # of the model; twice that is more than LEAST


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes and grain."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height))
    values = np.asarray(coarse) + rng.normal(0, 4, (height, width, 1))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def needed(height: int, width: int) -> tuple[int, int]:
    return SIDE, SIDE


@pytest.fixture(scope="module")
def exact() -> IDSim:
    return random_model("cnn")


@pytest.fixture(scope="module")
def fast(exact: IDSim) -> IDSim:
    model = copy.deepcopy(exact)
    model.decode = "fast"
    return model


# Files


@pytest.mark.parametrize(
    ("size", "scale"),
    [
        ((1792, 1792), 8),
        ((1791, 3000), 4),  # one pixel short of 8 times the least side
        ((900, 700), 2),
        ((447, 900), 1),
        ((300, 200), 1),
    ],
)
def test_both_sides_keep_the_margin_at_the_smallest_scale(size: tuple[int, int], scale: int) -> None:
    data = jpeg(photo(*size))
    found = read_image(data, needed=needed)
    assert found.size == tuple(-(-side // scale) for side in size)
    assert min(found.size) >= min(MARGIN * SIDE, *size)
    by_hand = Image.open(io.BytesIO(data))
    by_hand.draft("RGB", (size[0] // scale, size[1] // scale))
    assert np.array_equal(np.asarray(found), np.asarray(by_hand.convert("RGB")))


def test_no_side_becomes_smaller_than_the_search_for_copies_needs() -> None:
    assert read_image(jpeg(photo(1600, 1600)), needed=lambda *_: (8, 8)).size == (200, 200)
    assert read_image(jpeg(photo(1500, 1500)), needed=lambda *_: (8, 8)).size == (375, 375)
    assert 2 * small_picture(photo(400, 300)).shape[0] == LEAST


def test_the_small_picture_of_a_large_one_is_nearly_that_of_all_pixels() -> None:
    picture = photo(1800, 1300)
    slow = np.asarray(picture.resize((96, 96), Image.Resampling.LANCZOS)).astype(int)
    assert np.abs(small_picture(picture) - slow).max() <= 3


def test_a_photo_that_exif_turns_is_measured_upright() -> None:
    asked: list[tuple[int, int]] = []

    def tall(height: int, width: int) -> tuple[int, int]:
        asked.append((height, width))
        return 400, 100  # more rows than columns

    data = jpeg(photo(1700, 850), exif=turned(6))
    assert read_image(data, needed=tall).size == (425, 850)  # upright 850 x 1700, by 1/2: a quarter has too few rows
    assert read_image(data, needed=tall, preprocessing="release").size == (
        1700,
        850,
    )  # not turned: 850 rows, not 800 x 2
    assert asked == [(1700, 850), (850, 1700)]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_other_formats_keep_all_pixels(kind: str) -> None:
    data = jpeg(photo(1000, 1000), kind)
    assert np.array_equal(np.asarray(read_image(data, needed=needed)), np.asarray(read_image(data)))


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (photo(1000, 1000).convert("CMYK"), {}),
        (photo(1000, 1000).convert("L"), {}),
        (photo(1000, 1000), {"progressive": True}),
        (photo(1000, 1000), {"kind": "MPO", "save_all": True, "append_images": [photo(320, 240)]}),
    ],
)
def test_every_kind_of_jpeg_looks_the_same(image: Image.Image, options: dict[str, Any]) -> None:
    data = jpeg(image, **options)
    assert read_image(data, needed=needed).size == (250, 250)
    pixels = [to_pixels(data, (SIDE, SIDE), decode=decode) for decode in ("exact", "fast")]
    assert not torch.equal(*pixels)
    assert (pixels[0] - pixels[1]).abs().mean() < 1 / 255


def test_a_file_cut_short_is_reported_as_before() -> None:
    data = jpeg(photo(1000, 1000))
    with pytest.raises(ImageReadError, match="cut short"):
        read_image(data[: len(data) // 2], needed=needed)


@pytest.mark.parametrize("fit", [SQUASH, Fit("crop", 0.5), Fit("pad")])
def test_a_fit_decides_how_many_pixels_it_needs(fit: Fit) -> None:
    data = jpeg(photo(1800, 1200))
    planned = fit.plan(1200, 1800, (SIDE, SIDE))[0]
    by_hand = read_image(data, needed=lambda *_: planned)
    expected = to_pixels(by_hand, (SIDE, SIDE), fit=fit)
    assert torch.equal(load_batch(data, (SIDE, SIDE), fit=fit, decode="fast")[0], expected)
    assert by_hand.size == {"crop 0.5": (900, 600), "squash": (450, 300), "pad": (450, 300)}[str(fit)]


# Models


def test_exact_is_the_default_and_unchanged(exact: IDSim) -> None:
    data = jpeg(photo(1000, 800))
    assert exact.decode == "exact" == checked(DECODES[0])
    full = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(np.asarray(exact.read_image(data, whole=False)), np.asarray(full))
    assert torch.equal(exact.embed(data).cls, exact.embed(full).cls)


def test_fast_embeds_the_smaller_picture_everywhere(fast: IDSim, tmp_path: Path) -> None:
    data = jpeg(photo(1000, 800))
    (tmp_path / "a.jpg").write_bytes(data)
    picture = fast.read_image(data, whole=False)
    assert picture.size == (250, 200)
    assert fast.read_image(data).size == (1000, 800)
    expected = fast.embed(picture).cls
    assert torch.equal(fast.embed(tmp_path / "a.jpg").cls, expected)
    assert torch.equal(fast.embed([data], workers=2).cls, expected)
    assert torch.equal(fast.preprocessor.load_image(data)[0], fast.preprocessor.load_image(picture)[0])


def test_heatmaps_see_references_and_targets_alike(fast: IDSim) -> None:
    file = jpeg(photo(1000, 950))
    [found] = heatmaps(fast, file, file, match="nearest")
    assert found.shape == (950, 1000)
    assert found.min() > 1 - 1e-5  # each patch finds itself


def test_a_masked_image_keeps_all_pixels(exact: IDSim, fast: IDSim) -> None:
    data, mask = jpeg(photo(1000, 800), exif=turned(6)), np.zeros((800, 1000), np.uint8)
    mask[100:180, 600:690] = 255
    for outside in ("black", "crop"):
        pixels, cover = fast.preprocessor.load_image(data, mask, outside)  # type: ignore[arg-type]  # a literal
        expected, expected_cover = exact.preprocessor.load_image(data, mask, outside)  # type: ignore[arg-type]  # a literal
        assert torch.equal(pixels, expected)
        assert cover is not None
        assert expected_cover is not None
        assert torch.equal(cover, expected_cover)


def test_fast_is_never_taken_for_exact(exact: IDSim, fast: IDSim) -> None:
    assert "[fast decoding]" in fast.label
    assert "decoding" not in exact.label
    assert fast.signature()["model"] == fast.label
    assert fast.about().items() - exact.about().items() == {("model", fast.label), ("decode", "fast")}
    with pytest.raises(ValueError, match="embed its images again"):
        exact(fast.embed(photo(60, 60)), photo(60, 60))
    assert not fast.calibrated_model().is_same(exact.calibrated_model())
    assert folder_name(fast.about()) != folder_name(exact.about())


def test_an_unknown_way_and_a_model_that_needs_all_pixels_are_refused(fast: IDSim) -> None:
    with pytest.raises(ValueError, match="unknown decode 'quick': choose exact or fast"):
        idmetric.load("tiny", decode="quick")
    with pytest.raises(ValueError, match=r"'package\.module:Class' needs all pixels"):
        idmetric.load("package.module:Class", decode="fast")
    assert idmetric.load("tiny", device="cpu", decode="fast").decode == "fast"
    assert not FramePreprocessor.scales_files
    model = copy.copy(fast)
    model.preprocessor.scales_files = False  # of the copy alone
    with pytest.raises(ValueError, match="needs all pixels"):
        model.decode = "fast"
    assert fast.preprocessor.scales_files


# Commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fast")
    (root / "photos").mkdir()
    for k in range(3):
        (root / "photos" / f"{k}.jpg").write_bytes(jpeg(photo(1000, 950, k)))
    return root


def scores(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    args = ["score", f"{folder}/photos/0.jpg", f"{folder}/photos", "--model", "tiny", "--device", "cpu", "--quiet"]
    assert main([*args, "--format", "json", *words]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def test_scores_and_caches_are_kept_apart(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = scores(folder, capsys)
    cached = ["--cache", str(tmp_path / "kept")]
    assert scores(folder, capsys, "--decode", "exact", *cached) == plain
    fast = scores(folder, capsys, "--decode", "fast", *cached)
    assert scores(folder, capsys, "--decode", "fast") == fast == scores(folder, capsys, "--decode", "fast", *cached)
    assert scores(folder, capsys, *cached) == plain
    assert {row["model"] for row in plain} == {"IDSim:tiny"}
    assert {row["model"] for row in fast} == {"IDSim:tiny[fast decoding]"}
    moved = [abs(a["distance"] - b["distance"]) for a, b in zip(plain, fast, strict=True)]
    assert 0 < max(moved) < 0.01


def test_a_gallery_remembers_how_it_was_decoded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--gallery", str(tmp_path / "index"), "--device", "cpu", "--quiet"]
    assert main(["gallery", "build", f"{folder}/photos", *at, "--model", "tiny", "--decode", "fast"]) == 0
    capsys.readouterr()
    query = ["gallery", "query", f"{folder}/photos/0.jpg", *at, "--format", "json"]
    assert main(query) == 0
    assert "IDSim:tiny[fast decoding]" in capsys.readouterr().out
    assert main(["gallery", "build", f"{folder}/photos", *at, "--model", "tiny"]) == 0  # a second one, of all pixels
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(query)
    assert "fast decoding): say which, by --model" in capsys.readouterr().err
    assert main([*query, "--decode", "exact"]) == 0
    assert "fast decoding" not in capsys.readouterr().out


def test_evaluations_pass_it_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for k in range(4):
        (tmp_path / "data" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "ab"[k % 2] / f"{k}.jpg").write_bytes(jpeg(photo(500, 500, k)))
    words = ["eval", "folder", "--data", str(tmp_path / "data"), "--model", "tiny", "--model", "hsv", "--device", "cpu"]
    assert main([*words, "--decode", "fast", "--quiet", "--bootstrap", "0", "--format", "json"]) == 0
    assert "IDSim:tiny[fast decoding]" in capsys.readouterr().out


def test_a_calibration_of_exact_scores_is_not_used_for_fast_ones() -> None:
    image = photo(40, 30)
    metric = IDSim("tiny", device="cpu")
    assert metric.probability(image, image).shape == (1,)
    metric.decode = "fast"
    with pytest.raises(CalibrationError, match="fast decoding"):
        metric.probability(image, image)


def test_a_fast_model_is_not_exported(fast: IDSim, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="without decode="):
        export(fast, tmp_path / "fast.onnx")


def test_the_size_is_chosen_by_all_pixels() -> None:
    sizes: list[tuple[int, int]] = []

    def size(height: int, width: int) -> tuple[int, int]:
        sizes.append((height, width))
        return 64, 64

    to_image(jpeg(photo(1601, 1201)), size, decode="fast")
    assert set(sizes) == {(1201, 1601)}
