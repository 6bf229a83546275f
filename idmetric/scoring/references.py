"""Genuine photos of one subject, as a scale for generated ones: which are copies, and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.scoring.copies import compare as copy_of
from idmetric.scoring.copies import take_print

Aggregate = Literal["best", "mean"]


def originals(thumbnails: Iterable[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """For each photo (96, 96, 3) the number of the first one with the same picture, as another file, size or format.

    A copy lies next to its original, however far the subject's photos are from each other.
    """
    prints = [take_print(thumbnail) for thumbnail in thumbnails]
    original = np.arange(len(prints))
    for photo, copy in combinations(range(len(prints)), 2):
        # equal pixels with hardly any structure have no agreement
        is_equal = np.array_equal(prints[photo].pixels, prints[copy].pixels)
        if is_equal or copy_of(prints[photo], prints[copy]).found:
            original[copy] = min(original[copy], original[photo])
    return original


def distinct(thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The numbers of the photos that repeat none before them, see `originals`."""
    return np.flatnonzero(originals(thumbnails) == np.arange(len(thumbnails)))


def leave_one_out(distances: ArrayLike, aggregate: Aggregate = "best") -> NDArray[np.float64]:
    """The distance of each genuine photo to all the others, aggregated like an image's to several references.

    The photos must be distinct, see `originals`: a copy would be as near as no other photo. With `best`, an image has
    one more photo to be near to than each genuine photo, so that these distances are a little too high.

    Args:
        distances: (N, N) of N photos of one subject to each other, N >= 2; the diagonal is not read.
        aggregate: "best", to the nearest of the others, or "mean".

    Returns:
        Shape (N,).
    """
    d = np.asarray(distances, dtype=np.float64)
    count = len(d)
    if d.shape != (count, count) or count < 2 or not np.isfinite(d).all():
        raise ValueError(f"distances must be finite, (N, N) of at least two photos, got shape {d.shape}")
    to_others = d[~np.eye(count, dtype=bool)].reshape(count, -1)
    return np.asarray(to_others.min(1) if aggregate == "best" else to_others.mean(1))
