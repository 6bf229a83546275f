"""Run-length codes: what pycocotools wrote comes back, and no damaged code becomes a mask."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from idmetric.matching.codes import Polygons, RunLengths, decode

coco = pytest.importorskip("pycocotools.mask")


def mask_of(seed):
    """Long runs and short ones, of shares from nothing to everything."""
    rng = np.random.default_rng(seed)
    mask = rng.uniform(size=(rng.integers(1, 60), rng.integers(1, 60))) < seed / 40
    return mask.repeat(rng.integers(1, 12), 0)


@pytest.mark.parametrize("seed", range(0, 41, 4))
def test_masks_come_back(seed):
    mask = mask_of(seed)
    code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert np.array_equal(decode(code), mask)
    assert np.array_equal(decode({**code, "counts": code["counts"].decode()}), mask)


def test_nothing_warns_with_numpy_2():
    """pycocotools' own decoder gives a DeprecationWarning, an error under `python -W error`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code = RunLengths.of(mask_of(20))
        assert np.array_equal(decode(code.code), mask_of(20))


def test_text_that_ends_early_or_is_of_another_size_is_refused():
    mask = mask_of(20)
    height, width = mask.shape
    text = coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
    codes = [{"size": [height, width], "counts": text[:length]} for length in range(0, len(text), 7)]
    codes += [{"size": [height * 2, width], "counts": text}, {"size": [height, width + 1], "counts": text}]
    for code in codes:
        with pytest.raises(ValueError, match="not a run-length code"):
            decode(code)


@pytest.mark.parametrize("counts", [[-2, 8], [8, -2], [2**40, 6 - 2**40], [], "", b"", ["0", "6"], 6])
def test_numbers_that_are_no_runs_are_refused(counts):
    with pytest.raises(ValueError, match="not a run-length code"):
        decode({"size": [2, 3], "counts": counts})


def test_a_short_text_cannot_fill_the_memory():
    side = 2**15
    with pytest.raises(ValueError, match="not a run-length code"):
        decode({"size": [side, side], "counts": [side * side]})


def test_21_texts_are_read_as_pycocotools_reads_them_or_refused():
    """Texts with needless characters, and numbers of more than 30 bits, which are refused."""
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(5000):
        runs = rng.integers(0, 60, rng.integers(1, 7)).tolist()
        text = b""
        for number, run in enumerate(runs):
            value = run - (runs[number - 2] if number > 2 else 0)
            text += encoded(
                value + int(rng.choice([0, 0, 0, 2**32, -(2**32), 2**40])), int(rng.choice([1, 1, 4, 6, 8]))
            )
        height = max(sum(runs), 1)
        code = {"size": [height, 1], "counts": text}
        try:
            mask = decode(code)
        except ValueError:
            continue
        expected = decoded_by_pycocotools(code)
        assert np.array_equal(mask, expected)
        compared += 1
    assert compared > 500


def encoded(value: int, least: int) -> bytes:
    """A number in at least so many characters."""
    characters = []
    while not (-16 <= value < 16 and len(characters) >= least - 1):
        characters.append((value & 31 | 32) + 48)
        value >>= 5
    return bytes([*characters, (value & 31) + 48])


def decoded_by_pycocotools(code):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return coco.decode(code).astype(bool)


@pytest.mark.parametrize("counts", [[0.5, 5.5], [0, 6.5, -0.5], [True, 5], ["0", "6"], [0, "6"], [0, None], [0, 1e999]])
def test_21_runs_are_whole_numbers(counts):
    with pytest.raises(ValueError, match="not a run-length code"):
        decode({"size": [2, 3], "counts": counts})
    assert decode({"size": [2, 3], "counts": [1.0, 5]}).sum() == 5


def test_22_a_square_of_10_has_100_pixels():
    square = Polygons([[0, 0, 10, 0, 10, 10, 0, 10]])
    mask = np.asarray(square.drawn(20, 30, (30, 20))) > 0
    assert mask.sum() == 100
    assert mask[:10, :10].all()


def test_22_polygons_have_the_pixels_of_pycocotools():
    rng = np.random.default_rng(1)
    for number in range(1000):
        height, width = rng.integers(1, 100, 2).tolist()
        outlines = []
        for _ in range(rng.integers(1, 4)):
            corners = rng.uniform(-0.3, 1.3, (rng.integers(3, 12), 2)) * (width, height)
            if number % 2:
                corners = corners.round()
            outlines.append(corners.ravel().tolist())
        expected = decoded_by_pycocotools(coco.merge(coco.frPyObjects(outlines, height, width)))
        drawn = np.asarray(Polygons(outlines).drawn(height, width, (width, height))) > 0
        assert np.array_equal(drawn, expected)


@pytest.mark.parametrize(
    "outline",
    [[0, 0, 1e9, 0, 0, 1e9], [-1e300, 0, 5, 0, 0, 5], [0, 0, *([9999, 0, 0, 9999] * 600)]],
    ids=["far", "farther", "long"],
)
def test_polygons_that_would_fill_the_memory_are_refused(outline):
    with pytest.raises(ValueError, match=r"an outline (leaves its|is longer than)"):
        Polygons([outline]).drawn(10000, 10000, (10000, 10000))
