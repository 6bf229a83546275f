"""LabelMe's JSON, one file for each image: rectangles, polygons, circles and masks."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from idmetric.matching.annotations import Annotation, checked_region, numbers_of, outline_of, size_of_image
from idmetric.matching.codes import Polygons, RunLengths
from idmetric.matching.regions import Box, Region
from idmetric.metric.errors import RequestError
from idmetric.metric.files import json_file
from idmetric.metric.images.coverage import read_mask
from idmetric.metric.images.kinds import MAX_PIXELS, ImageReadError

_MOST = 2**26  # bytes of a file, which may hold the image
_OUTLINES = ("polygon", "oriented_rectangle", "rotation")  # shapes by their corners
_CIRCLE_CORNERS = 64


def read_labelme(path: str) -> list[Annotation]:
    """The shapes of a file; polygons and masks of one label and group are one object."""
    content = json_file.read(path, _MOST)
    if not isinstance(content, Mapping) or not isinstance(content.get("shapes"), list):
        raise RequestError("it is not an annotation of LabelMe: it has no list `shapes`")
    groups: dict[Any, list[Any]] = {}
    for number, shape in enumerate(content["shapes"]):
        key: Any = number
        if isinstance(shape, Mapping) and shape.get("group_id") is not None and _kind(shape) in _OUTLINES:
            key = (str(shape.get("label")), str(shape["group_id"]))
        groups.setdefault(key, []).append((number, shape))
    annotations = []
    for numbered in groups.values():
        number, _ = numbered[0]
        shapes = [shape for _, shape in numbered]
        annotations.append(Annotation(f"{path}, shapes[{number}]", partial(_labelme_region, content, shapes)))
    return annotations


def _kind(shape: Mapping[str, Any]) -> str:
    return str(shape.get("shape_type") or "polygon")


def _labelme_region(content: Mapping[str, Any], shapes: Sequence[Any]) -> Region:
    image_size = size_of_image(content.get("imageWidth"), content.get("imageHeight"))
    box: Box | None = None
    mask: Polygons | RunLengths | None = None
    outlines = []
    for shape in shapes:
        if not isinstance(shape, Mapping):
            raise RequestError(f"{shape!r:.40} is not an object")
        points = _points(shape)
        kind = _kind(shape)
        if kind == "rectangle":
            box = _box_around(points, 2)
        elif kind == "mask":
            mask = _pasted(shape, _box_around(points, 2), image_size)
        elif kind in _OUTLINES:
            outlines.append(outline_of([side for point in points for side in point]))
        elif kind == "circle":
            outlines.append(_circle(points))
        else:
            raise RequestError(f"a {kind:.40} is no region: draw a rectangle, a polygon or a mask")
    if outlines:
        mask = Polygons(outlines)
    return checked_region(box, mask, shapes[0].get("label"), None, image_size)


def _points(shape: Mapping[str, Any]) -> list[list[float]]:
    points = shape.get("points")
    if not isinstance(points, list):
        raise RequestError("it has no list `points`")
    return [numbers_of(point, 2, "a point x, y") for point in points]


def _box_around(points: Sequence[Sequence[float]], count: int) -> Box:
    """The box of a rectangle's corners, two or all four."""
    if len(points) not in (count, 4):
        raise RequestError(f"it has {len(points)} points: two corners are needed")
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)


def _circle(points: Sequence[Sequence[float]]) -> list[float]:
    """The outline of a circle by its center and a point on it."""
    if len(points) != 2:
        raise RequestError(f"a circle has a center and a point on it, not {len(points)} points")
    (x, y), on_circle = points
    radius = math.dist((x, y), on_circle)
    outline = []
    for angle in np.linspace(0, 2 * math.pi, _CIRCLE_CORNERS, endpoint=False).tolist():
        outline += [x + radius * math.cos(angle), y + radius * math.sin(angle)]
    return outline


def _pasted(shape: Mapping[str, Any], box: Box, image_size: tuple[int, int] | None) -> RunLengths:
    """A mask that LabelMe stores as a PNG of its box."""
    if image_size is None:
        raise RequestError("it has a mask, and the file has no imageWidth and imageHeight")
    width, height = image_size
    if width * height > MAX_PIXELS:
        raise RequestError(f"its image has {width} x {height} pixels, more than the {MAX_PIXELS} allowed")
    try:
        data = base64.b64decode(str(shape.get("mask")), validate=True)
        cover = read_mask(data).numpy() >= 0.5
    except (binascii.Error, ImageReadError) as error:
        raise RequestError(f"its mask cannot be used: {error}") from error
    left, top = round(box[0]), round(box[1])
    if left < 0 or top < 0 or left + cover.shape[1] > width or top + cover.shape[0] > height:
        raise RequestError(f"its mask of {cover.shape[1]} x {cover.shape[0]} pixels at {left}, {top} leaves its image")
    mask = np.zeros((height, width), bool)
    mask[top : top + cover.shape[0], left : left + cover.shape[1]] = cover
    return RunLengths.of(mask)
