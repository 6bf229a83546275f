"""Regions of photos that EXIF turns: drawn on the upright photo, or on the pixels as they are stored.

Annotation tools with a canvas (CVAT, Label Studio, LabelMe, VIA) show the upright photo. Programs that open the file
without turning it (`Image.open` without `ImageOps.exif_transpose`) give regions of the stored pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from PIL import Image

from idmetric.matching.codes import Polygons, RunLengths
from idmetric.matching.regions import Box, Region, are_fractions
from idmetric.metric.images.coverage import read_mask, same_shape
from idmetric.metric.images.kinds import STORED, ImageReadError, Picture, is_array, stored_orientation
from idmetric.metric.images.masks import Labeled
from idmetric.metric.images.opening import open_image

Drawn = Literal["upright", "stored"]
_TO_STORED = "add --regions-of stored, in Python regions_of='stored'"

# EXIF orientation -> a point of the stored image (width, height), as a point of the upright one
_POINT: dict[int, Callable[[float, float, float, float], tuple[float, float]]] = {
    2: lambda x, y, width, height: (width - x, y),
    3: lambda x, y, width, height: (width - x, height - y),
    4: lambda x, y, width, height: (x, height - y),
    5: lambda x, y, width, height: (y, x),
    6: lambda x, y, width, height: (height - y, x),
    7: lambda x, y, width, height: (height - y, width - x),
    8: lambda x, y, width, height: (y, width - x),
}
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def upright_region(region: Region, picture: Picture, name: str) -> Region:
    """A region of the upright picture.

    Args:
        region: turned as EXIF turned the picture if it `is_stored`.
        name: of the picture, for messages.

    Raises:
        ImageReadError: for a region of an image of the turned size, which was drawn the other way.
    """
    orientation = _orientation(picture)
    if orientation == 1:
        return replace(region, is_stored=False) if region.is_stored else region
    assert isinstance(picture, Image.Image)
    stored_size = picture.size
    if orientation >= 5:
        stored_size = (picture.height, picture.width)
    needed_size = stored_size if region.is_stored else picture.size
    other_size = picture.size if region.is_stored else stored_size
    if region.image_size is not None and not _are_alike(region.image_size, needed_size):
        if _are_alike(region.image_size, other_size):
            raise ImageReadError(name, _drawn_otherwise(region, picture.size))
        return region  # of an image of another shape, as `Cut` says
    if not region.is_stored:
        return region
    return _turned(region, orientation, stored_size)


def warn_if_unclear(region: Region, picture: Picture) -> None:
    """Warn if nothing shows whether a region is of the upright photo or of its stored pixels."""
    orientation = _orientation(picture)
    mask_is_drawn = isinstance(region.mask, Polygons | RunLengths)
    if orientation == 1 or (region.box is None and not mask_is_drawn):  # `read_mask` warns of other masks
        return
    is_square = region.image_size is not None and _are_alike(region.image_size, region.image_size[::-1])
    if orientation >= 5 and region.image_size is not None and not is_square:
        return
    # without a name, so that it is shown once
    warnings.warn(
        "EXIF turns photos, and their regions are taken as drawn on the upright photo, as CVAT, Label Studio, LabelMe "
        f"and VIA show it. If a program drew them on the pixels as stored: {_TO_STORED}; if not: --regions-of upright",
        stacklevel=2,
    )


def _orientation(picture: Picture) -> int:
    if not isinstance(picture, Image.Image):
        return 1
    return stored_orientation(picture) or 1


def _are_alike(size: tuple[int, int], other_size: tuple[int, int]) -> bool:
    return same_shape(size[::-1], other_size[::-1])


def _drawn_otherwise(region: Region, upright_size: tuple[int, int]) -> str:
    width, height = upright_size
    drawn_width, drawn_height = region.image_size or upright_size
    drawn = f"{region} is of an image of {drawn_width} x {drawn_height} pixels"
    if region.is_stored:
        return f"{drawn}, which is this photo upright, as annotation tools show it: leave out --regions-of stored"
    return (
        f"{drawn}, as this photo is stored, and EXIF turns it to {width} x {height}. Annotation tools show the upright "
        f"photo, programs that open the file without turning it see the stored one: {_TO_STORED}"
    )


def _turned(region: Region, orientation: int, stored_size: tuple[int, int]) -> Region:
    """A region of the stored pixels, as one of the upright picture."""
    turn = _POINT[orientation]
    size: tuple[float, float] = region.image_size or stored_size
    image_size = region.image_size
    if image_size is not None and orientation >= 5:
        image_size = (image_size[1], image_size[0])

    box: Box | None = None
    if region.box is not None:
        box_size = size
        if region.image_size is None and are_fractions(region.box):
            box_size = (1, 1)
        left, top, right, bottom = region.box
        x0, y0 = turn(left, top, *box_size)
        x1, y1 = turn(right, bottom, *box_size)
        box = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))

    mask: Any = region.mask
    if isinstance(mask, Polygons):
        outline_size = (1, 1) if mask.in_fractions else size
        outlines = []
        for outline in mask.outlines:
            turned_outline: list[float] = []
            for x, y in zip(outline[::2], outline[1::2], strict=True):
                turned_outline += turn(x, y, *outline_size)
            outlines.append(turned_outline)
        mask = replace(mask, outlines=outlines)
    elif isinstance(mask, RunLengths):
        mask = replace(mask, turn=_TRANSPOSE[orientation])
    elif mask is not None:
        mask = _turned_mask(mask, orientation)
    return replace(region, box=box, mask=mask, image_size=image_size, is_stored=False)


def _turned_mask(mask: Any, orientation: int) -> Any:
    """A mask of the stored pixels, turned; one with an EXIF orientation of its own stays as it is."""
    source = mask.source if isinstance(mask, Labeled) else mask
    if is_array(source):
        image = Image.fromarray(read_mask(mask).numpy())
    else:
        image = open_image(source)
        if stored_orientation(image) is not None:
            return mask
    turned = image.transpose(_TRANSPOSE[orientation])
    turned.info[STORED] = 1  # it needs no turning
    if isinstance(mask, Labeled) and not is_array(source):
        return Labeled(turned, mask.mask_id)
    return turned
