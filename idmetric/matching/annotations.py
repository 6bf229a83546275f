"""Annotations of images, as any file states them, checked when their image is asked for.

Each format gives a mapping from the paths of images to `Annotation`s; `idmetric.matching.region_files` turns them into
regions. What one annotation has wrong concerns its image alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

from idmetric.matching.codes import Polygons, RunLengths
from idmetric.matching.regions import Box, Region, are_fractions
from idmetric.metric.errors import RequestError


class Annotation(NamedTuple):
    """A region in a file.

    Attributes:
        where: file and annotation, for messages.
        read: returns the region; RequestError if it cannot be used.
    """

    where: str
    read: Callable[[], Region]

    def region(self) -> Region:
        """The region; RequestError naming file and annotation."""
        try:
            return self.read()
        except RequestError as error:
            raise RequestError(f"{self.where}: {error}") from error


Annotations = Mapping[str, Sequence[Annotation]]  # path of an image -> its annotations; an empty list: it has none


def checked_region(
    box: Box | None,
    mask: Polygons | RunLengths | None = None,
    label: Any = "",
    score: Any = None,
    image_size: tuple[int, int] | None = None,
) -> Region:
    """A region of a file.

    Args:
        box: left, top, right, bottom; None: that of the mask.
        label, score: as the file has them.
        image_size: width and height of the image that it was drawn in, if the file has them. A box is in pixels then.

    Raises:
        RequestError: for a region that cannot be used.
    """
    if box is None and mask is None:
        raise RequestError("it has neither a box nor a mask")
    if isinstance(mask, RunLengths):
        image_size = _size_with_code(mask, image_size)
    region = Region(box, mask, label_text(label), score=confidence(score), image_size=image_size)
    if box is not None and image_size is not None and are_fractions(box):
        width, height = image_size
        raise RequestError(
            f"its box {_shown(box)} is in fractions, or no larger than a pixel, and its image has {width} x {height} "
            "pixels: give left, top, ... in pixels"
        )
    return region


def _size_with_code(mask: RunLengths, image_size: tuple[int, int] | None) -> tuple[int, int]:
    try:
        code_size = mask.image_size
    except (LookupError, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"its mask cannot be used: {error}") from error
    if image_size not in (None, code_size):
        width, height = image_size or code_size
        raise RequestError(
            f"its run-length code is of {code_size[0]} x {code_size[1]} pixels, its image has {width} x {height}"
        )
    return code_size


# Values of files


def number_of(value: Any) -> float:
    """A finite number, also in text; RequestError for anything else."""
    number = math.nan
    if isinstance(value, Real | str) and not isinstance(value, bool):
        try:
            number = float(str(value).replace("_", "?"))  # Python reads 1_000
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        raise RequestError(f"{value!r:.40} is not a finite number")
    return number


def numbers_of(values: Any, count: int, what: str) -> list[float]:
    """So many finite numbers; RequestError naming what they should be."""
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not is_list or len(values) != count:
        raise RequestError(f"{values!r:.80} is not {what}")
    try:
        return [number_of(value) for value in values]
    except RequestError as error:
        raise RequestError(f"{values!r:.80} is not {what}: {error}") from error


def box_by_size(values: Any) -> Box:
    """A box by left, top, width and height."""
    left, top, width, height = numbers_of(values, 4, "a box x,y,w,h")
    return left, top, left + width, top + height


def box_by_corners(values: Any) -> Box:
    """A box by left, top, right and bottom."""
    left, top, right, bottom = numbers_of(values, 4, "a box left, top, right, bottom")
    return left, top, right, bottom


def outline_of(values: Any) -> list[float]:
    """A polygon, x and y of each corner in turn."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) < 6 or len(values) % 2:
        raise RequestError(f"a polygon has x and y of three corners or more, not {values!r:.60}")
    return numbers_of(values, len(values), "a polygon")


def size_of_image(width: Any, height: Any) -> tuple[int, int] | None:
    """Width and height in pixels; None where a file has neither."""
    if width in (None, "") and height in (None, ""):
        return None
    size = [number_of(width), number_of(height)]
    if min(size) < 1 or not all(side.is_integer() for side in size):
        raise RequestError(
            f"the size of its image is {width!r:.20} x {height!r:.20} pixels: correct it, or leave it out"
        )
    return int(size[0]), int(size[1])


def label_text(label: Any) -> str:
    """A label without blanks around it; "" where a file has none."""
    is_missing = label is None or (isinstance(label, float) and math.isnan(label))
    return "" if is_missing else str(label).strip()


def confidence(score: Any) -> float:
    """A detector's confidence, 1 where a file has none."""
    if score in (None, "") or score != score:  # NaN marks an empty cell of a DataFrame
        return 1.0
    try:
        value = number_of(score)
    except RequestError:
        value = math.nan
    if not 0 <= value <= 1:
        raise RequestError(f"its score is {score!r:.40}: a detector's confidence is in 0..1")
    return value


def _shown(box: Box) -> str:
    sides = ", ".join(f"{side:g}" for side in box)
    return f"({sides})"
