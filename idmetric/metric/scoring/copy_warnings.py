"""Warnings about images that repeat the pixels of a reference, and about gray ones against references in color."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.files.output import is_same_file
from idmetric.metric.files.tables import first_few
from idmetric.metric.scoring.copies import SIZE, Copy, Print, compare
from idmetric.metric.scoring.records import Record

_TINT = 3  # of 255: channels of a gray picture differ by no more; those of photos of gray things do (by 7 or more)
_SHOWN = 5


class CopyWarning(UserWarning):
    """An image repeats another's pixels."""


class GrayWarning(UserWarning):
    """Gray images are compared with references in color."""


def small_picture(picture: Image.Image) -> NDArray[np.uint8]:
    """Resize a picture to (SIZE, SIZE, 3) for the search of copies; large ones by averages of blocks first.

    Of 12 megapixels that takes a tenth of the time. Values of photos differ by up to 3 of 255, those of fine regular
    patterns by more.
    """
    return np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.LANCZOS, reducing_gap=4.0))


def mark_copy(row: Record, path: str, own: Print | None, references: Mapping[str, Print | None]) -> None:
    """Add `copy` and `copy_agreement` to a row, if prints were taken; a `CopyWarning` names an image that is a copy."""
    found = _closest(own, references)
    if found is None:
        return
    name, copy = found
    row |= {"copy": copy.found, "copy_agreement": copy.agreement}
    if copy.found and not is_same_file(path, name):  # a reference among the candidates is expected
        warnings.warn(
            f"{path} repeats the pixels of {name}{', mirrored' if copy.mirrored else ''} (agreement "
            f"{copy.agreement:.4f}): a copy, not a new picture of the subject", CopyWarning, stacklevel=2,
        )  # fmt: skip


def warn_of_repeated_references(prints: Mapping[str, Print | None]) -> None:
    """Give a `CopyWarning` for each reference that is a copy of one before it."""
    names = list(prints)
    for k, name in enumerate(names):
        found = _closest(prints[name], {earlier: prints[earlier] for earlier in names[:k]})
        if found is not None and found[1].found:
            warnings.warn(
                f"the references {found[0]} and {name} are one picture: the distances between real ones are too "
                "small", CopyWarning, stacklevel=2,
            )  # fmt: skip


def _closest(own: Print | None, references: Mapping[str, Print | None]) -> tuple[str, Copy] | None:
    """Find the reference with the highest agreement; None without references or prints."""
    if own is None:
        return None
    looks = [(name, compare(other, own)) for name, other in references.items() if other is not None]
    return max(looks, key=lambda look: look[1].agreement, default=None)


def is_gray(small: NDArray[np.uint8] | None) -> bool | None:
    """Whether a small picture has no color, but for a hundredth of its pixels; None without a picture."""
    return None if small is None else bool((np.ptp(small, axis=-1) > _TINT).mean() < 0.01)


def warn_of_gray(names: Sequence[str]) -> None:
    """Give one `GrayWarning` that names the gray images, if there are any: color is a part of the identity."""
    if names:
        warnings.warn(
            f"gray, where the references are in color: {', '.join(first_few(names, _SHOWN))}; their distances are too "
            "large unless the references are made gray, too", GrayWarning, stacklevel=2,
        )  # fmt: skip
