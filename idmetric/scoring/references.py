"""Genuine photos of one subject, as a scale for generated ones: which are copies, and how far they are apart.

Also the warnings about images that repeat the pixels of a reference, and about gray ones against references in color.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.files import is_same_file
from idmetric.scoring.copies import Copy, Print, compare, take_print
from idmetric.scoring.scores import Record
from idmetric.tables import first_few, rounded

Aggregate = Literal["best", "mean"]
_TINT = 3  # of 255: channels of a gray picture differ by no more; those of photos of gray things do (by 7 or more)
_SHOWN = 5


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
        if is_equal or compare(a, b).found:
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
        for photo, original in enumerate(numbers.tolist()):
            if original != photo:
                photos.remove(photo)
                pair = f"the references {names[original]} and {names[photo]}"
                message = f"{pair} are one picture, and count once among the real ones"
                warnings.warn(message, CopyWarning, stacklevel=2)
    if len(photos) < 2:
        return {}
    between_photos = distances[np.ix_(photos, photos)]
    to_others = leave_one_out(between_photos, aggregate).tolist()
    photo_names = [names[photo] for photo in photos]
    values = rounded(to_others)
    return dict(zip(photo_names, values, strict=True))


# Warnings


class CopyWarning(UserWarning):
    """An image repeats another's pixels."""


class GrayWarning(UserWarning):
    """Gray images are compared with references in color."""


def mark_copy(row: Record, path: str, name: str, copy: Copy) -> None:
    """Add `copy` and `copy_agreement` to a row; a `CopyWarning` names an image that is a copy.

    Args:
        name: of the reference that the image agrees with most. copy: their agreement.
    """
    row["copy"] = copy.found
    row["copy_agreement"] = copy.agreement
    if copy.found and not is_same_file(path, name):  # a reference among the candidates is expected
        mirrored = ", mirrored" if copy.mirrored else ""
        message = (
            f"{path} repeats the pixels of {name}{mirrored} (agreement {copy.agreement:.4f}): a copy, not a new "
            "picture of the subject"
        )
        warnings.warn(message, CopyWarning, stacklevel=2)


def warn_of_no_pictures() -> None:
    """Give a `CopyWarning` for references that are embeddings."""
    message = "copies are not looked for, as the references are embeddings without pictures (in Python copies=False)"
    warnings.warn(message, CopyWarning, stacklevel=2)


def closest(references: Sequence[Print], image: Print) -> tuple[int, Copy]:
    """The number of the reference with the highest agreement, and their agreement."""
    copies = [compare(reference, image) for reference in references]
    agreements = [copy.agreement for copy in copies]
    number = agreements.index(max(agreements))
    return number, copies[number]


def is_gray(small: NDArray[np.uint8]) -> bool:
    """Whether a small picture has no color, but for a hundredth of its pixels."""
    channels = np.moveaxis(small, -1, 0)
    has_color = channels.max(0) - channels.min(0) > _TINT
    return bool(has_color.mean() < 0.01)


def warn_of_gray(names: Sequence[str]) -> None:
    """Give one `GrayWarning` that names the gray images, if there are any: color is a part of the identity."""
    if names:
        message = (
            f"gray, where the references are in color: {', '.join(first_few(names, _SHOWN))}; their distances are too "
            "large unless the references are made gray, too"
        )
        warnings.warn(message, GrayWarning, stacklevel=2)
