"""Copy detection: does an image repeat the pixels of another, background and all?

An identity score does not distinguish a new picture from a copy of the reference. Two photos of one subject differ
somewhere in fine detail; a copy that was compressed, scaled, cropped, brightened or mirrored differs nowhere. So one
image is brought into register with a part of the other, and the number is how far they agree where they agree least:

1. Coarse: normalized cross-correlation (Lewis, "Fast normalized cross-correlation", 1995) of each image with crops of
   the other of 80 to 100 % of its sides, plain and mirrored, at 16 x 16.
2. Fine: the edges of the crop by Gauss-Newton at 32 and 64 pixels (Lucas and Kanade 1981; Baker and Matthews 2004).
3. Brightness and contrast made equal; then in windows of an eighth of the side the correlation of both after a
   band-pass, where either has structure; and the difference of blurred colors, for parts without structure.

The same background with another subject fails at the subject, the same subject on another background at the background.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image, ImageOps

Bytes = NDArray[np.uint8]
Floats = NDArray[np.floating]
Box = NDArray[np.float64]  # the rows and columns where a part begins and ends, (2, 2), as shares of the sides
THRESHOLD = 0.7  # from this agreement on, an image is a copy (measurements: benchmarks/reports/copies.md)
MANY = 0.1  # above this share of copies, the scores of a set of images are those of its copies
_COARSE = 16
_LARGER = (20, 19, 18, 17, 16)  # sides of images whose crops of 16 x 16 are compared
_ALIKE = 0.7  # coarse correlation below which nothing is compared further
_STAGES = ((32, 5), (64, 3))  # side, and steps of Gauss-Newton
_REGISTERED = 0.8  # correlation that images in register have at least
_FINE = 64
_BAND = (0.53, 2.0)  # Gaussian widths in pixels of 64; between them lies the detail that survives JPEG
_WINDOW = _FINE // 8
_STRUCTURE = 0.014  # root mean square of a window's detail that counts
_LEAST = 0.05  # share of windows with structure that a comparison needs
_COLOR = 0.3  # difference of colors, 0 to 1, at which agreement is 0
_WHOLE = np.array([[0.0, 1.0], [0.0, 1.0]])


@dataclass(frozen=True)
class Print:
    """An image, ready to be compared: pixels (96, 96, 3), and its grays at each side of `_LARGER`."""

    pixels: Bytes
    grays: list[Bytes]


@dataclass(frozen=True)
class Copy:
    """The extent to which an image is a copy of another.

    The agreement is that where they agree least, in [-1, 1]; 1 = the same pixels. It is 0 if no crop of one resembles
    the other, or both have hardly any structure.
    """

    agreement: float
    mirrored: bool  # whether the mirrored image fits best

    @property
    def found(self) -> bool:
        """Whether the agreement reaches `THRESHOLD`."""
        return self.agreement >= THRESHOLD


def take_print(pixels: Bytes) -> Print:
    """The print of an image, (96, 96, 3) RGB."""
    gray = Image.fromarray(pixels).convert("L")
    return Print(pixels, [np.asarray(gray.resize((side, side), Image.Resampling.BILINEAR)) for side in _LARGER])


def compare(a: Print, b: Print) -> Copy:
    """Whether one image is a copy of the other, in either direction."""
    crops_a, crops_b = _crops(a), _crops(b)
    likeness = crops_a @ _views(crops_b).T
    reverse = crops_b @ _views(crops_a).T
    if reverse.max() > likeness.max():
        a, b, likeness = b, a, reverse
    crop, view = divmod(int(likeness.argmax()), 2)
    mirrored = view == 1
    different = Copy(0.0, mirrored)
    if likeness.max() < _ALIKE:
        return different

    whole = Image.fromarray(a.pixels)
    part = Image.fromarray(b.pixels)
    if mirrored:
        part = ImageOps.mirror(part)
    box = _boxes()[crop]
    for side, steps in _STAGES:
        box, correlation = _registered(whole.convert("L"), part.convert("L"), box, side, steps)
        if correlation < _REGISTERED:
            return different
    return Copy(_agreement(_cut(whole, box, _FINE), _cut(part, _WHOLE, _FINE)), mirrored)


@cache
def _boxes() -> list[Box]:
    """The box of each crop."""
    boxes = []
    for side in _LARGER:
        for corner in np.ndindex(side - _COARSE + 1, side - _COARSE + 1):
            start = np.array(corner)
            boxes.append(np.stack([start, start + _COARSE], axis=1) / side)
    return boxes


def _crops(image: Print) -> Floats:
    """Crops (crops, 256) of mean 0 and unit length; the last one is the whole image."""
    crops = [sliding_window_view(gray, (_COARSE, _COARSE)).reshape(-1, _COARSE**2) for gray in image.grays]
    centered = np.concatenate(crops).astype(np.float32)
    centered -= centered.mean(1, keepdims=True)
    centered /= np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-3)
    return centered


def _views(crops: Floats) -> Floats:
    """The whole image as it is and mirrored, (2, 256); a symmetric image counts as it is."""
    whole = crops[-1].reshape(_COARSE, _COARSE)
    return np.stack([whole.ravel(), (1 - 1e-6) * whole[:, ::-1].ravel()])


def _registered(whole: Image.Image, part: Image.Image, box: Box, side: int, steps: int) -> tuple[Box, float]:
    """The box of `whole` that shows `part`, and their correlation before the last step; 0 if the box shrinks away.

    Ends early where the first step has not brought them into register, as it does for copies.
    """
    end = (np.arange(side, dtype=np.float32) + 0.5) / side
    weights = np.stack([1 - end, end])  # by which the edges move each row or column
    target = _unit(_cut(part, _WHOLE, side))
    correlation = 0.0
    for step_number in range(steps):
        size = box[:, 1:] - box[:, :1]
        if size.min() < 0.5:
            return box, 0.0
        window = _unit(_cut(whole, box, side))
        correlation = float((window * target).sum())
        if step_number > 0 and correlation < _REGISTERED:
            return box, correlation

        # damped, so that a step stays small without evidence
        down, across = np.gradient((window + target) / 2, 1 / side)
        jacobian = np.concatenate([down * weights[:, :, None], across * weights[:, None]]).reshape(4, -1)
        normal = jacobian @ jacobian.T
        normal += 1e-3 * np.trace(normal) / 4 * np.eye(4, dtype=np.float32)
        step = np.linalg.solve(normal, jacobian @ (target - window).ravel())
        box = (box + size * step.reshape(2, 2).clip(-0.1, 0.1)).clip(0, 1)
    return box, correlation


def _cut(image: Image.Image, box: Box, side: int) -> Floats:
    """A part of an image at side x side pixels, from 0 to 1: (side, side) or (side, side, 3)."""
    (top, bottom), (left, right) = box * np.array([[image.height], [image.width]])
    part = image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    return np.asarray(part, np.float32) / 255


def _unit(x: Floats) -> Floats:
    """Values less their mean, at unit length; equal ones become 0."""
    centered: Floats = x - x.mean()
    centered /= max(float(np.linalg.norm(centered)), 1e-6)
    return centered


def _agreement(a: Floats, b: Floats) -> float:
    """The agreement of two pictures (64, 64, 3) in register."""
    a, b = _relit(a, b)
    detail = _detail(a.mean(-1), b.mean(-1))
    blurred = [_blurred(channel, 1.33) for channel in np.moveaxis(a - b, -1, 0)]
    worst = np.quantile(np.abs(blurred).max(0), 0.99)
    return float(np.clip(min(detail, 1 - worst / _COLOR), -1, 1))


def _relit(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Both with the brightness and contrast of the one with more contrast, measured where neither is saturated."""
    gray_a, gray_b = a.mean(-1), b.mean(-1)
    is_saturated = np.maximum(gray_a, gray_b) >= 0.97
    is_open = _blurred(is_saturated.astype(np.float32), 1) < 0.05
    if is_open.sum() < 2 * _FINE:
        return a, b
    open_a = gray_a[is_open]
    open_b = gray_b[is_open]
    if open_a.std() > open_b.std():
        a, b, open_a, open_b = b, a, open_b, open_a
    gain = min(open_b.std() / max(open_a.std(), 1e-6), 2)
    lit = gain * (a - open_a.mean()) + open_b.mean()
    return lit.clip(0, 1), b


def _detail(a: Floats, b: Floats) -> float:
    """The lowest correlation of band-passed windows with structure; 0 where there are too few of them."""
    fine_a = _blurred(a, _BAND[0]) - _blurred(a, _BAND[1])
    fine_b = _blurred(b, _BAND[0]) - _blurred(b, _BAND[1])
    energy_a, energy_b = _window_means(fine_a * fine_a), _window_means(fine_b * fine_b)
    is_strong = np.maximum(energy_a, energy_b) > _STRUCTURE**2
    if is_strong.mean() < _LEAST:
        return 0.0
    correlation = _window_means(fine_a * fine_b) / np.sqrt(energy_a * energy_b + 1e-13)
    return float(correlation[is_strong].min())


def _window_means(x: Floats) -> Floats:
    """Means of (64, 64) over windows of an eighth of its sides that overlap by half, (15, 15)."""
    windows = sliding_window_view(x, (_WINDOW, _WINDOW))
    means: Floats = windows[:: _WINDOW // 2, :: _WINDOW // 2].mean((2, 3))
    return means


def _blurred(x: Floats, width: float) -> Floats:
    """A Gaussian blur of (64, 64) that repeats the pixels at the edges."""
    matrix = _blur(width)
    blurred: Floats = matrix @ x @ matrix.T
    return blurred


@cache
def _blur(width: float) -> Floats:
    rows = np.arange(-_FINE, 2 * _FINE)
    weights = np.exp(-0.5 * ((rows - np.arange(_FINE)[:, None]) / width) ** 2)
    nearest = np.eye(_FINE)[rows.clip(0, _FINE - 1)]
    return np.asarray(weights @ nearest / weights.sum(1, keepdims=True), np.float32)
