"""Preparation of a photo and its mask for a diffusion model: crop, scale, place on white, cut the mask.

Pure functions of an image (RGB), the mask of its foreground ("L", 0 and 255) and a random generator; `read_pair` reads
both. Masks are scaled by exact area: a pixel belongs to the foreground if at least half of it does.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.images.masks import read_mask
from idmetric.metric.images.read import ImageLike, describe, read_image

Mode = Literal["small", "large"]
Box = tuple[int, int, int, int]  # left, top, right, bottom
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


class ComposeError(ValueError):
    """A photo and mask that cannot be composed; the message says why."""


class Composed(NamedTuple):
    """An image that is ready for editing, the mask of its foreground, and random draws and measurements (JSON)."""

    image: Image.Image
    mask: Image.Image
    parameters: dict[str, Any]


def read_pair(image: ImageLike, mask: ImageLike) -> tuple[Image.Image, Image.Image]:
    """A photo, RGB, and its mask, "L", 0 or 255; EXIF orientation is applied, 16 bits are scaled.

    Raises:
        ImageReadError: if one of them cannot be read.
        ComposeError: if their sizes differ, or the mask is empty or covers everything.
    """
    photo = read_image(image)
    bits = read_mask(mask, image=photo).numpy() >= HALF
    if bits.shape != (photo.height, photo.width):
        raise ComposeError(
            f"{describe(mask)}: the mask has {bits.shape[1]}x{bits.shape[0]} pixels, its image "
            f"{photo.width}x{photo.height}: scale the mask to the image if they show the same picture"
        )
    if bits.all() or not bits.any():
        says = "covers everything" if bits.all() else "is empty"
        raise ComposeError(f"{describe(mask)}: the mask {says}; it must select the foreground (white) alone")
    return photo, mask_image(bits)


def scale_mode(identity: str, seed: int = 0) -> Mode:
    """The scale mode of all frames of an identity; each mode gets half of the identities (A.2.1)."""
    digest = hashlib.sha256(f"{seed}/{identity}".encode()).digest()
    return MODES[digest[0] % 2]


def contextual_canvas(photo: Image.Image, mask: Image.Image, rng: np.random.Generator, mode: Mode) -> Composed:
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
    before = np.count_nonzero(np.asarray(mask)) / (crop[0] * crop[1])
    low = math.sqrt(LEAST / before)
    factor = low
    if low < 1:
        middle = (low + 1) / 2
        factor = float(rng.uniform(low, middle) if mode == "small" else rng.uniform(middle, 1))
    largest = min(canvas[0] / width, canvas[1] / height)
    wanted = factor * max(canvas) / max(crop)
    scale = min(wanted, largest)
    size = (_whole(width * scale, canvas[0]), _whole(height * scale, canvas[1]))
    parameters = {
        "mode": mode, "canvas": list(canvas), "crop": [round(side, 3) for side in crop], "box": list(box),
        "size": list(size), "scale": scale, "covered_before": before, "fits": wanted <= largest * (1 + 1e-9),
    }  # fmt: skip
    return _place(photo, mask, box, size, canvas, rng, parameters)


def pad_randomly(photo: Image.Image, mask: Image.Image, rng: np.random.Generator) -> Composed:
    """The foreground on white, smaller and at a random place, in an image of the same size (ILGen, 3.2 and 4.1).

    "We add random padding (up to 50% of the image resolution) to the foreground-segmented instance, keeping the same
    aspect ratio": both sides grow by one share drawn uniformly from [0, 0.5], which is divided at random between left
    and right and between top and bottom. The result is resized back, so the object shrinks by 1 / (1 + share), to 2/3
    at least.

    Returns:
        The image, with parameters padding (the share), left, top, size (of the old image in the new one), scale and
        covered.
    """
    padding = float(rng.uniform(0, PADDING))
    scale = 1 / (1 + padding)
    size = (_whole(photo.width * scale, photo.width), _whole(photo.height * scale, photo.height))
    parameters = {"padding": padding, "size": list(size), "scale": scale}
    return _place(photo, mask, (0, 0, *photo.size), size, photo.size, rng, parameters)


def fit(photo: Image.Image, mask: Image.Image, longest: int, multiple: int) -> tuple[Image.Image, Image.Image]:
    """Image and mask with sides of at most `longest` pixels, divisible by `multiple` (ID-Sim, A.2.2: 720 and 8).

    Images are only ever enlarged by rounding: each side is rounded to the nearest multiple, which changes it by less
    than half a multiple (by less than one if `longest` is not a multiple).
    """
    scale = min(1.0, longest / max(photo.size))
    cap = longest // multiple
    width, height = (min(cap, math.floor(side * scale / multiple + 0.5)) * multiple for side in photo.size)
    if not width or not height:
        raise ComposeError(
            f"{photo.width}x{photo.height} pixels cannot keep their shape with sides of at most {longest} pixels "
            f"divisible by {multiple}: enlarge or crop the image"
        )
    return photo.resize((width, height), Image.Resampling.LANCZOS), scaled_mask(mask, (width, height))


def partial_mask(mask: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, dict[str, Any]]:
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
    area = int(bits.sum())
    first, from_end, share = int(rng.integers(2)), bool(rng.integers(2)), float(rng.uniform(low, high))
    for axis in (first, 1 - first):  # 0 removes columns, 1 removes rows
        line = bits.sum(axis=axis)[:: -1 if from_end else 1]
        gone = np.cumsum(line)
        allowed = np.flatnonzero((gone >= low * area - 1e-9) & (gone <= high * area + 1e-9))
        if not len(allowed):
            continue
        count = int(allowed[np.argmin(np.abs(gone[allowed] - share * area))]) + 1
        cut = len(line) - count if from_end else count
        kept, along = bits.copy(), slice(cut, None) if from_end else slice(None, cut)
        kept[(slice(None), along) if axis == 0 else along] = False
        side = (("left", "right") if axis == 0 else ("top", "bottom"))[from_end]
        name = "horizontal" if axis == 0 else "vertical"
        parameters = {"axis": name, "side": side, "cut": cut, "share": share, "removed": int(gone[count - 1]) / area}
        return mask_image(kept), parameters

    raise ComposeError(
        f"no row or column cuts {low:.0%} to {high:.0%} off the foreground of {area} pixels; leave the image out"
    )


def paste(made: Image.Image, original: Image.Image, mask: Image.Image) -> Image.Image:
    """The made image, resized by Lanczos, where the mask is 255, and the exact original elsewhere."""
    if made.size != original.size:
        made = made.resize(original.size, Image.Resampling.LANCZOS)
    return Image.composite(made.convert("RGB"), original, mask)


def mask_image(bits: Bits) -> Image.Image:
    """A mask as an image, "L", 0 or 255."""
    return Image.fromarray(bits.astype(np.uint8) * 255)


def scaled_mask(mask: Image.Image, size: tuple[int, int], box: Box | None = None) -> Image.Image:
    """The mask, or a box of it, at (width, height): 255 where it covers at least half of a pixel."""
    bits = read_mask(mask if box is None else mask.crop(box), (size[1], size[0])).numpy() >= HALF
    if not bits.any():
        raise ComposeError(f"the foreground is so thin that it vanishes at {size[0]}x{size[1]} pixels: leave it out")
    return mask_image(bits)


def _crop(image: tuple[int, int], box: tuple[int, int]) -> tuple[float, float]:
    """Width and height of the crop, for the better of the two ratios.

    The better ratio exceeds the image less; then it keeps more of the image; then (for a square image) it is closer to
    the foreground's shape.
    """
    found = []
    for ratio in (3 / 2, 2 / 3):
        within = min(image[0], image[1] * ratio)
        needed = max(box[0], box[1] * ratio)
        width = max(within, needed)
        other_shape = (ratio > 1) != (box[0] >= box[1])
        found.append((round(max(needed / within, 1), 9), -round(width * width / ratio, 6), other_shape, width, ratio))
    _, _, _, width, ratio = min(found)
    return width, width / ratio


def _canvas(crop: tuple[float, float]) -> tuple[int, int]:
    """The canvas of the crop's ratio that is closest to it in size."""
    short, long = CANVAS_STEP
    steps = min(CANVAS_LONGEST // long, max(1, math.floor(max(crop) / long + 0.5)))
    return (long * steps, short * steps) if crop[0] > crop[1] else (short * steps, long * steps)


def _place(
    photo: Image.Image, mask: Image.Image, box: Box, size: tuple[int, int], canvas: tuple[int, int],
    rng: np.random.Generator, parameters: dict[str, Any],
) -> Composed:  # fmt: skip
    """The masked part of a box of the photo, resized and placed at random on white, with its place as parameters."""
    left, top = (int(rng.integers(room - side + 1)) for room, side in zip(canvas, size, strict=True))
    scaled = scaled_mask(mask, size, box)
    image, cover = Image.new("RGB", canvas, (255, 255, 255)), Image.new("L", canvas)
    image.paste(photo.resize(size, Image.Resampling.LANCZOS, box=box), (left, top), scaled)
    cover.paste(scaled, (left, top))
    covered = np.count_nonzero(np.asarray(scaled)) / (canvas[0] * canvas[1])
    return Composed(image, cover, {**parameters, "left": left, "top": top, "covered": covered})


def _whole(length: float, most: int) -> int:
    return min(most, max(1, math.floor(length + 0.5)))
