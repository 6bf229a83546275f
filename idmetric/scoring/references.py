"""Genuine photos of one subject, as a scale for generated ones: which are copies, and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.scoring.copies import Print, take_print
from idmetric.scoring.copies import compare as copy_of
from idmetric.scoring.copy_warnings import warn_of_repeated_references
from idmetric.tables import rounded

Aggregate = Literal["best", "mean"]


def originals(thumbnails: Iterable[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """For each photo (96, 96, 3) the number of the first one with the same picture, as another file, size or format.

    A copy lies next to its original, however far the subject's photos are from each other.
    """
    prints = [take_print(thumbnail) for thumbnail in thumbnails]
    numbered = enumerate(prints)
    original = np.arange(len(prints))
    for (photo, a), (copy, b) in combinations(numbered, 2):
        # equal pixels with hardly any structure have no agreement
        is_equal = np.array_equal(a.pixels, b.pixels)
        if is_equal or copy_of(a, b).found:
            original[copy] = min(original[copy], original[photo])
    return original


def distinct(thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The numbers of the photos that repeat none before them, see `originals`."""
    photos = np.arange(len(thumbnails))
    repeats_none = originals(thumbnails) == photos
    return np.flatnonzero(repeats_none)


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
    is_square = d.shape == (count, count)
    is_finite = np.isfinite(d).all()
    is_usable = is_square and is_finite and count >= 2
    if not is_usable:
        raise ValueError(f"distances must be finite, (N, N) of at least two photos, got shape {d.shape}")
    is_other = ~np.eye(count, dtype=bool)
    to_others = d[is_other].reshape(count, -1)
    if aggregate == "best":
        return np.asarray(to_others.min(1))
    return np.asarray(to_others.mean(1))


def real_distances(
    distances: NDArray[np.float64], names: Sequence[str], prints: Sequence[Print], aggregate: Aggregate
) -> dict[str, float]:
    """The distance of each reference to the others by its name; of references with one picture the first counts.

    Args:
        distances: (N, N) of the references to each other.
        prints: of the references; without them, copies among the references are not looked for.
    """
    photos = list(range(len(names)))
    if prints:
        numbers = originals(reference.pixels for reference in prints)
        repeated = {}
        for photo, original in enumerate(numbers.tolist()):
            if original != photo:
                photos.remove(photo)
                repeated[names[photo]] = names[original]
        warn_of_repeated_references(repeated)
    if len(photos) < 2:
        return {}
    between_photos = distances[np.ix_(photos, photos)]
    to_others = leave_one_out(between_photos, aggregate).tolist()
    photo_names = [names[photo] for photo in photos]
    values = rounded(to_others)
    return dict(zip(photo_names, values, strict=True))
