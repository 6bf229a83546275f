"""Gray images against references in color: color is a part of the identity, so their distances are too large."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_TINT = 3  # of 255: channels of a gray picture differ by no more; those of photos of gray things do (by 7 or more)
_SHOWN = 5


class GrayWarning(UserWarning):
    """Gray images are compared with references in color."""


def is_gray(small: NDArray[np.uint8] | None) -> bool | None:
    """Whether a small picture has no color, but for a hundredth of its pixels; None without a picture."""
    return None if small is None else bool((np.ptp(small, axis=-1) > _TINT).mean() < 0.01)


def warn_of_gray(names: Sequence[str]) -> None:
    """Give one `GrayWarning` that names the gray images, if there are any."""
    if not names:
        return
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    warnings.warn(
        f"gray, where the references are in color: {', '.join(names[:_SHOWN])}{more}; their distances are too large "
        "unless the references are made gray, too", GrayWarning, stacklevel=2,
    )  # fmt: skip
