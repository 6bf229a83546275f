"""Preparation of a photo and its mask for a diffusion model: crop, scale, place on white, cut the mask.

Pure functions of an image (RGB), the mask of its foreground ("L", 0 and 255) and a random generator; `read_pair` reads
both. Masks are scaled by exact area: a pixel belongs to the foreground if at least half of it does.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.images import ImageLike, ImageReadError, describe, read_image
from idmetric.metric.masks import read_mask

Mode = Literal["small", "large"]
Parameters = dict[str, Any]  # JSON values by name
Size = tuple[int, int]  # width, height
Box = tuple[int, int, int, int]  # left, top, right, bottom
Pair = tuple[Image.Image, Image.Image]  # a photo and its mask
Bits = NDArray[np.bool_]

MODES: tuple[Mode, ...] = ("small", "large")
LEAST = 0.10  # smallest share of the canvas that the foreground covers (ID-Sim, A.2.1)
CANVAS_STEP = (64, 96)  # canvases are multiples of this: exactly 2:3, and divisible by 32
CANVAS_LONGEST = 1248  # ID-Sim, A.2.1; 13 steps
FIT_LONGEST = 720  # ID-Sim, A.2.2
REMOVED = (0.4, 0.6)  # share of the foreground that a partial mask leaves out (ID-Sim, A.2.2)
PADDING = 0.5  # largest padding as a share of the image's sides (ILGen, section 4.1)
NEARID_SIDE = 512  # NearID, appendix 0.B.1
HALF = 0.5 - 1e-6  # coverage is rounded to float32
WHITE = (255, 255, 255)


class Composed(NamedTuple):
    """An image that is ready for editing, the mask of its foreground, and random draws and measurements (JSON)."""

    image: Image.Image
    mask: Image.Image
    parameters: Parameters


def read_pair(image: ImageLike, mask: ImageLike) -> Pair:
    """A photo, RGB, and its mask, "L", 0 or 255; EXIF orientation is applied, 16 bits are scaled.

    Raises:
        ImageReadError: if one of them cannot be read, their shapes differ, or the mask is empty or covers everything.
    """
    photo = read_image(image)
    bits = read_mask(mask, (photo.height, photo.width), image=photo).numpy() >= HALF
    if bits.all() or not bits.any():
        problem = "covers everything" if bits.all() else "is empty"
        raise ImageReadError(describe(mask), f"the mask {problem}; it must select the foreground (white) alone")
    return photo, mask_image(bits)


def scale_mode(identity: str, seed: int = 0) -> Mode:
    """The scale mode of all frames of an identity; each mode gets half of the identities (A.2.1)."""
    digest = hashlib.sha256(f"{seed}/{identity}".encode()).digest()
    return MODES[digest[0] % 2]


def contextual_canvas(
    photo: Image.Image,
    mask: Image.Image,
    rng: Generator,
    mode: Mode,
) -> Composed:
    """The foreground, scaled and placed at random on a white canvas: the input of a contextual edit (ID-Sim, A.2.1).

    The crop is the largest window of ratio 2:3 or 3:2 within the image that can hold the foreground. If there is none,
    it is the smallest window that can, which exceeds the image. Only the size of the crop matters, because everything
    except the foreground becomes white. The canvas has exactly its ratio; its sides are divisible by 32 and at most
    1248 px.

    A foreground that covers less than 10 % of the crop is enlarged to 10 %, rounded to whole pixels; if it is too long
    for that, it is enlarged as far as it fits (`fits` is then false). Any other foreground is scaled by a factor that
    leaves between 10 % and its original share. Mode "small" draws from the lower half of these factors, "large" from
    the upper half; the paper names the two modes without defining them. The foreground is never clipped.

    Args:
        rng: draws the scale, then the place.
        mode: of the identity, see `scale_mode`.

    Returns:
        The canvas, with parameters mode, canvas (width, height), crop (width, height), box (of the foreground in the
        image), size (of the foreground on the canvas), left, top, scale (canvas pixels per image pixel),
        covered_before (share of the crop), covered and fits.
    """
    box = mask.getbbox()
    assert box is not None  # as `read_pair` has checked
    width, height = box[2] - box[0], box[3] - box[1]
    crop = _crop(photo.size, (width, height))
    canvas = _canvas(crop)
    share = area(mask) / (crop[0] * crop[1])

    # the factor that scales the foreground within its crop
    factor = lowest = math.sqrt(LEAST / share)
    if lowest < 1:
        middle = (lowest + 1) / 2
        bounds = (lowest, middle) if mode == "small" else (middle, 1)
        factor = rng.uniform(*bounds)

    wanted = factor * max(canvas) / max(crop)
    largest = min(canvas[0] / width, canvas[1] / height)
    scale = min(wanted, largest)
    size = (min(canvas[0], rounded(width * scale)), min(canvas[1], rounded(height * scale)))
    parameters = {
        "mode": mode,
        "canvas": list(canvas),
        "crop": [round(side, 3) for side in crop],
        "box": list(box),
        "size": list(size),
        "scale": scale,
        "covered_before": share,
        "fits": wanted <= largest * (1 + 1e-9),
    }
    return _place(photo, mask, box, size, canvas, rng, parameters)


def pad_randomly(
    photo: Image.Image,
    mask: Image.Image,
    rng: Generator,
) -> Composed:
    """The foreground on white, smaller and at a random place, in an image of the same size (ILGen, 3.2 and 4.1).

    "We add random padding (up to 50% of the image resolution) to the foreground-segmented instance, keeping the same
    aspect ratio": both sides grow by one share drawn uniformly from [0, 0.5], which is divided at random between left
    and right and between top and bottom. The result is resized back, so the object shrinks by 1 / (1 + share), to 2/3
    at least.

    Returns:
        The image, with parameters padding (the share), left, top, size (of the old image in the new one), scale and
        covered.
    """
    padding = rng.uniform(0, PADDING)
    scale = 1 / (1 + padding)
    width = rounded(photo.width * scale)
    height = rounded(photo.height * scale)
    size = (width, height)
    parameters = {"padding": padding, "size": list(size), "scale": scale}
    whole = (0, 0, *photo.size)
    return _place(photo, mask, whole, size, photo.size, rng, parameters)


def fit(
    photo: Image.Image,
    mask: Image.Image,
    longest: int,
    multiple: int,
) -> Pair:
    """Image and mask with sides of at most `longest` pixels, divisible by `multiple` (ID-Sim, A.2.2: 720 and 8).

    Images are only ever enlarged by rounding: each side is rounded to the nearest multiple, which changes it by less
    than half a multiple (by less than one if `longest` is not a multiple).
    """
    scale = min(1.0, longest / max(photo.size))
    cap = longest // multiple
    steps = [min(cap, math.floor(side * scale / multiple + 0.5)) for side in photo.size]
    if not all(steps):
        raise ImageReadError(
            describe(photo),
            f"{photo.width}x{photo.height} pixels cannot keep their shape with sides of at most {longest} pixels "
            f"divisible by {multiple}: enlarge or crop it",
        )
    size = (steps[0] * multiple, steps[1] * multiple)
    return photo.resize(size, Image.Resampling.LANCZOS), scaled_mask(mask, size)


def partial_mask(
    mask: Image.Image,
    rng: Generator,
) -> tuple[Image.Image, Parameters]:
    """The mask without 40-60 % of its foreground, cut off along a horizontal or vertical axis (ID-Sim, A.2.2).

    Axis, side and share are drawn at random. The cut removes whole columns (horizontal axis) or rows (vertical axis)
    from that side. Of all cuts that remove 40-60 %, it is the one closest to the drawn share. If the drawn axis has no
    such cut (a thin foreground), the other axis is cut.

    Returns:
        The mask, and the parameters axis, side (left, right, top or bottom), cut (first column or row after the cut,
        counted from the left or top), share (drawn) and removed (the actual share of the area).
    """
    low, high = REMOVED
    bits = np.asarray(mask) > 0
    total = area(mask)
    drawn_axis = int(rng.integers(2))
    from_end = int(rng.integers(2))
    share = rng.uniform(low, high)

    for axis in (drawn_axis, 1 - drawn_axis):  # 0 removes columns, 1 removes rows
        view = bits if axis == 0 else bits.T
        if from_end:
            view = view[:, ::-1]
        removed = np.cumsum(view.sum(axis=0))
        allowed = np.flatnonzero((removed >= low * total - 1e-9) & (removed <= high * total + 1e-9))
        if not len(allowed):
            continue

        distances = np.abs(removed[allowed] - share * total)
        last = int(allowed[distances.argmin()])
        view[:, : last + 1] = False  # of `bits`
        parameters = {
            "axis": ("horizontal", "vertical")[axis],
            "side": ("left", "right", "top", "bottom")[2 * axis + from_end],
            "cut": view.shape[1] - last - 1 if from_end else last + 1,
            "share": share,
            "removed": int(removed[last]) / total,
        }
        return mask_image(bits), parameters

    raise ImageReadError(
        describe(mask),
        f"no row or column cuts {low:.0%} to {high:.0%} off the mask's {total} pixels; leave the image out",
    )


def paste(
    edited: Image.Image,
    original: Image.Image,
    mask: Image.Image,
) -> Image.Image:
    """The edited image, resized by Lanczos, where the mask is 255, and the exact original elsewhere."""
    resized = edited.resize(original.size, Image.Resampling.LANCZOS)
    return Image.composite(resized, original, mask)


def mask_image(bits: Bits) -> Image.Image:
    """A mask as an image, "L", 0 or 255."""
    return Image.fromarray(bits.astype(np.uint8) * 255)


def area(mask: Image.Image) -> int:
    """Number of pixels that a mask selects."""
    return int(np.count_nonzero(np.asarray(mask)))


def scaled_mask(
    mask: Image.Image,
    size: Size,
    box: Box | None = None,
) -> Image.Image:
    """The mask, or a box of it, at (width, height): 255 where it covers at least half of a pixel."""
    width, height = size
    bits = read_mask(mask.crop(box), (height, width)).numpy() >= HALF
    if not bits.any():
        reason = f"the foreground is so thin that it vanishes at {width}x{height} pixels: leave it out"
        raise ImageReadError(describe(mask), reason)
    return mask_image(bits)


def _crop(image: Size, foreground: Size) -> tuple[float, float]:
    """Width and height of the crop, for the better of the two ratios.

    The better ratio exceeds the image less; then it keeps more of the image; then (for a square image) it is closer to
    the foreground's shape.
    """
    image_width, image_height = image
    least_width, least_height = foreground
    candidates = []
    for ratio in (3 / 2, 2 / 3):
        within = min(image_width, image_height * ratio)
        width = max(within, least_width, least_height * ratio)
        height = width / ratio
        excess = round(width / within, 9)
        is_other_shape = (ratio > 1) != (least_width >= least_height)
        candidates.append((excess, -round(width * height, 6), is_other_shape, width, height))
    return min(candidates)[3:]


def _canvas(crop: tuple[float, float]) -> Size:
    """The canvas of the crop's ratio that is closest to it in size."""
    short, long = CANVAS_STEP
    steps = rounded(max(crop) / long)
    steps = min(steps, CANVAS_LONGEST // long)
    width, height = short * steps, long * steps
    if crop[0] > crop[1]:
        width, height = height, width
    return width, height


def _place(
    photo: Image.Image,
    mask: Image.Image,
    box: Box,
    size: Size,
    canvas: Size,
    rng: Generator,
    parameters: Parameters,
) -> Composed:
    """The masked part of a box of the photo, resized and placed at random on white, with its place as parameters."""
    width, height = canvas
    left = int(rng.integers(width - size[0] + 1))
    top = int(rng.integers(height - size[1] + 1))
    scaled = scaled_mask(mask, size, box)
    foreground = photo.resize(size, Image.Resampling.LANCZOS, box=box)
    image = Image.new("RGB", canvas, WHITE)
    image.paste(foreground, (left, top), scaled)
    cover = Image.new("L", canvas)
    cover.paste(scaled, (left, top))
    covered = area(cover) / (width * height)
    parameters = {**parameters, "left": left, "top": top, "covered": covered}
    return Composed(image, cover, parameters)


def rounded(length: float) -> int:
    """The nearest whole number, at least 1."""
    return max(1, math.floor(length + 0.5))
