"""Distances between genuine photos of one subject, as a scale for those of generated images."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.images import SIZE
from idmetric.metric.ties import numbers
from idmetric.scoring.copies import compare, take_print

_REMEMBERED = 64  # subjects with a known answer of `originals`, at 27 KB for each photo

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Aggregate = Literal["best", "mean"]


def originals(thumbnails: NDArray[np.uint8]) -> Ints:
    """The photo that each photo of a subject repeats, as another file, size or format; by `scoring.copies`.

    A copy lies next to its original, however far the subject's photos are from each other. Numbers from distances
    between photos, such as `leave_one_out`, therefore take each photo once: see `distinct`.

    Args:
        thumbnails: (N, SIZE, SIZE, 3) RGB, uint8.

    Returns:
        Shape (N,): the row of the first photo with the same picture; of a photo that repeats none, its own row.
    """
    return np.array(_originals(thumbnails.tobytes(), len(thumbnails)), dtype=np.int64)


@lru_cache(_REMEMBERED)
def _originals(pixels: bytes, count: int) -> tuple[int, ...]:
    """`originals` of pixels as bytes. A subject is asked again for each image that it is matched with."""
    thumbnails = np.frombuffer(pixels, np.uint8).reshape(count, SIZE, SIZE, 3)
    prints = [take_print(thumbnail) for thumbnail in thumbnails]
    original = list(range(count))
    for photo, copy in combinations(range(count), 2):
        # equal pixels with hardly any structure have no agreement
        is_equal = np.array_equal(thumbnails[photo], thumbnails[copy])
        if is_equal or compare(prints[photo], prints[copy]).found:
            original[copy] = min(original[copy], original[photo])
    return tuple(original)


def distinct(thumbnails: NDArray[np.uint8]) -> Ints:
    """The rows of a subject's photos without copies: of each picture the first.

    Args:
        thumbnails: see `originals`.
    """
    rows = np.arange(len(thumbnails))
    return np.flatnonzero(originals(thumbnails) == rows)


def leave_one_out(distances: ArrayLike, aggregate: Aggregate = "best") -> Array:
    """The distance of each genuine photo to all the others, aggregated like a candidate's to several references.

    The photos must be distinct, see `distinct`: a copy would be as near as no other photo.

    With `best`, a candidate has one more photo to be near to than each genuine photo. The distances of the genuine ones
    are therefore a little too high, and the more so the fewer photos there are.

    Args:
        distances: (N, N) of N photos of one subject to each other, N >= 2; the diagonal is not read.
        aggregate: "best", to the nearest of the others, or "mean".

    Returns:
        Shape (N,).
    """
    d = numbers("distances", distances, 2).astype(np.float64)
    count = len(d)
    if d.shape != (count, count) or count < 2:
        raise ValueError(f"distances must be (N, N) of at least two photos, got {d.shape}")
    is_other = ~np.eye(count, dtype=bool)
    to_others: Array = d[is_other].reshape(count, -1)
    if aggregate == "best":
        return np.asarray(to_others.min(1))
    return np.asarray(to_others.mean(1))
