"""Run-length codes: what pycocotools wrote comes back, and no damaged code becomes a mask."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from idmetric.match.codes import RunLengths, decode

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
