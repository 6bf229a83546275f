"""Warnings about images that repeat the pixels of a reference, and about gray ones against references in color."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.files import is_same_file
from idmetric.scoring.copies import Copy, Print, compare
from idmetric.scoring.scores import Record
from idmetric.tables import first_few

_TINT = 3  # of 255: channels of a gray picture differ by no more; those of photos of gray things do (by 7 or more)
_SHOWN = 5


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


def warn_of_repeated_references(repeated: Mapping[str, str]) -> None:
    """Give a `CopyWarning` for each reference that repeats another one.

    Args:
        repeated: name of the reference -> name of the one that it repeats.
    """
    for name, original in repeated.items():
        message = f"the references {original} and {name} are one picture, and count once among the real ones"
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


def is_gray(small: NDArray[np.uint8] | None) -> bool | None:
    """Whether a small picture has no color, but for a hundredth of its pixels; None without a picture."""
    if small is None:
        return None
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
