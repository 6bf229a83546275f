"""Copy detection: does an image repeat the pixels of another, background and all?

An identity score does not distinguish a new picture of a subject from a copy of the reference. Two photos of one
subject, however alike, differ somewhere in fine detail; a copy that was compressed, scaled, cropped, brightened or
mirrored differs nowhere. The images are therefore brought into register, and the number is their agreement where they
agree least:

1. Coarse: normalized cross-correlation (Lewis, "Fast normalized cross-correlation", 1995) of either image with crops of
   the other of 80 to 100 % of its sides, also mirrored, at 32 x 32.
2. Fine: scale and shift of each axis, gain and offset by Gauss-Newton at 32 and 96 pixels (Lucas and Kanade 1981; Baker
   and Matthews 2004).
3. One gain and offset for all three channels (brightness, contrast), then in windows of an eighth of the side the
   correlation of both after a band-pass, where either has structure; and the difference of blurred colors everywhere,
   for parts without structure and subjects of another color.

The same background with another subject fails at the subject, the same subject on another background at the background.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.io.threads import one_thread

Array = NDArray[np.float64]
SIZE = 96  # side in pixels at which images are compared; callers may resize them to it by a better filter
THRESHOLD = 0.7  # from this agreement on, an image is a copy (measurements: docs/reports/copies.md)
MANY = 0.1  # above this share of copies, the scores of a set of images are those of its copies
_SMALL = 32
_CROPS = (0.8, 0.87, 0.93, 1.0)  # of a side
_GATE = 0.7  # coarse correlation below which nothing is compared further
_BAND = (0.8, 3.0)  # Gaussian widths in pixels of SIZE; between them lies the detail that survives JPEG
_STRUCTURE = 0.014  # root mean square of a window's detail that counts
_LEAST = 0.05  # share of windows with structure that a comparison needs
_COLOR = 0.3  # difference of colors, 0..1, at which agreement is 0
_SATURATED = 0.97


@dataclass(frozen=True)
class Print:
    """An image, ready to be compared: pixels (SIZE, SIZE, 3), gray, and crops at small size, each of unit length."""

    pixels: Array
    gray: Array
    small: Array
    crops: NDArray[np.float32]


@dataclass(frozen=True)
class Copy:
    """The extent to which an image is a copy of another.

    Attributes:
        agreement: where they agree least, in [-1, 1]; 1 = the same pixels. 0 if no crop of one resembles the other, or
            both have hardly any structure.
        mirrored: whether the mirrored image fits best.
    """

    agreement: float
    mirrored: bool

    @property
    def found(self) -> bool:
        """Whether the agreement reaches `THRESHOLD`."""
        return self.agreement >= THRESHOLD


@one_thread()
def take_print(pixels: ArrayLike) -> Print:
    """The print of an image, to compare with others.

    Args:
        pixels: (H, W, 3) RGB, uint8, or floats in [0, 1]; squashed to SIZE x SIZE.
    """
    x = np.asarray(pixels)
    values = x / 255.0 if x.dtype == np.uint8 else x.astype(np.float64)
    squashed = _both(values, _resizer(x.shape[0], SIZE), _resizer(x.shape[1], SIZE))
    gray = squashed @ np.array([0.299, 0.587, 0.114])
    down = _resizer(SIZE, _SMALL)
    crops = [
        np.lib.stride_tricks.sliding_window_view(_both(gray, m, m), (_SMALL, _SMALL)).reshape(-1, _SMALL**2)
        for m in (_resizer(SIZE, round(_SMALL / part)) for part in _CROPS)
    ]

    return Print(squashed, gray, _both(gray, down, down), _unit(np.concatenate(crops)).astype(np.float32))


@one_thread()
def compare(a: Print, b: Print) -> Copy:
    """Whether one image is a copy of the other, in either direction."""
    one = _compare(a, b)
    if one.found or one.agreement < THRESHOLD / 2:
        return one
    other = _compare(b, a)  # a part that is saturated or cut off in one image exists in the other alone
    return max(one, other, key=lambda copy: copy.agreement)


def _compare(reference: Print, image: Print) -> Copy:
    """Whether the image is the reference, cropped and relit."""
    likeness, mirrored, place = _coarse(reference, image)
    if likeness < _GATE:
        return Copy(0.0, mirrored)
    pixels, gray = (image.pixels[:, ::-1], image.gray[:, ::-1]) if mirrored else (image.pixels, image.gray)
    down = _resizer(SIZE, _SMALL)
    place = _refined(_both(reference.gray, down, down), _both(gray, down, down), place)
    place = _refined(reference.gray, gray, place)
    return Copy(_agreement(reference.pixels, pixels, place), mirrored)


# Register: `place` = (scale, shift) of rows and of columns, from the image's coordinates -1..1 to the reference's


def _places() -> Array:
    """(scale, y, x) of each of a print's crops."""
    found = []
    for part in _CROPS:
        side = round(_SMALL / part)
        at = [-1 + (2 * k + _SMALL) / side for k in range(side - _SMALL + 1)]
        found += [(_SMALL / side, y, x) for y in at for x in at]
    return np.array(found)


_PLACES = _places()


def _coarse(reference: Print, image: Print) -> tuple[float, bool, Array]:
    best: tuple[float, bool, Array] = (-1.0, False, np.array([1.0, 0.0, 1.0, 0.0]))
    for mirrored in (False, True):
        turn = slice(None, None, -1 if mirrored else 1)
        inside = reference.crops @ _unit(image.small[:, turn].reshape(-1)).astype(np.float32)
        k = int(inside.argmax())
        if inside[k] > best[0] + 1e-6:
            scale, y, x = _PLACES[k]
            best = float(inside[k]), mirrored, np.array([scale, y, scale, x])
        around = image.crops @ _unit(reference.small[:, turn].reshape(-1)).astype(np.float32)
        k = int(around.argmax())
        if around[k] > best[0] + 1e-6:  # the reference is a crop of the image: the inverse map
            scale, y, x = _PLACES[k]
            x = -x if mirrored else x
            best = float(around[k]), mirrored, np.array([1 / scale, -y / scale, 1 / scale, -x / scale])

    return best


def _refined(reference: Array, image: Array, place: Array, steps: int = 8) -> Array:
    n = len(reference)
    at = _centers(n)
    for _ in range(steps):
        warped, inside = _warped(reference, place)
        if inside.mean() < 0.4:
            break
        down, across = np.gradient(warped, 2 / n)
        down, across = down / place[0], across / place[2]
        light = np.stack([warped[inside], np.ones(inside.sum())], 1)
        gain, offset = np.linalg.lstsq(light, image[inside], rcond=None)[0]
        moves = [gain * down * at[:, None], gain * down, gain * across * at, gain * across]
        jacobian = np.concatenate([np.stack([m[inside] for m in moves], 1), light], 1)
        normal = jacobian.T @ jacobian
        normal[range(4), range(4)] += 1e-3 * normal.trace() / 4 + 1e-9  # steps stay small without evidence
        normal[range(4, 6), range(4, 6)] += 1e-9
        step = np.linalg.solve(normal, jacobian.T @ (image - gain * warped - offset)[inside])[:4].clip(-0.1, 0.1)
        place = place + step
        place[[0, 2]] = place[[0, 2]].clip(0.6, 1.6)
        if np.abs(step).max() < 0.04 / n:
            break

    return place


def _warped(x: Array, place: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The reference in the image's coordinates, and where it is defined."""
    n = len(x)
    sampled, there = [], []
    for scale, shift in (place[:2], place[2:]):
        position = (scale * _centers(n) + shift + 1) / 2 * n - 0.5
        sampled.append(np.clip(1 - np.abs(np.arange(n) - position.clip(0, n - 1)[:, None]), 0, None))
        there.append((position > -0.75) & (position < n - 0.25))
    return _both(x, *sampled), there[0][:, None] & there[1]


# Agreement


def _agreement(reference: Array, image: Array, place: Array) -> float:
    warped, inside = _warped(reference, place)
    if inside.mean() < 0.4:
        return 0.0
    expected = _relit(warped, image, inside)
    detail, color = _detail(expected.mean(2), image.mean(2), inside), _color(expected, image, inside)
    return 0.0 if detail is None else float(np.clip(min(detail, color), -1, 1))


def _relit(warped: Array, image: Array, inside: NDArray[np.bool_]) -> Array:
    """The reference with the image's brightness and contrast, by least squares where neither is saturated."""
    a, b = warped.mean(2), image.mean(2)
    open_ = inside & (a < _SATURATED) & (b < _SATURATED)
    if open_.sum() < 2 * len(a):
        return warped
    light = np.stack([a[open_], np.ones(open_.sum())], 1)
    gain, offset = np.linalg.lstsq(light, b[open_], rcond=None)[0]
    lit: Array = np.clip(np.clip(gain, 0.5, 2) * warped + offset, 0, 1)
    return lit


def _detail(a: Array, b: Array, inside: NDArray[np.bool_]) -> float | None:
    """Lowest correlation of band-passed windows with structure; None if there are too few of them."""
    side = SIZE // 8

    def windows(x: Array) -> Array:
        return np.lib.stride_tricks.sliding_window_view(x, (side, side))[:: side // 2, :: side // 2]

    high_a, high_b = (_blurred(x, _BAND[0]) - _blurred(x, _BAND[1]) for x in (a, b))
    shown = windows(inside.astype(np.float64)).sum((2, 3))
    energy_a, energy_b, both = (windows(x * y * inside).sum((2, 3)) for x, y in
                                ((high_a, high_a), (high_b, high_b), (high_a, high_b)))  # fmt: skip
    strong = np.maximum(energy_a, energy_b) / np.maximum(shown, 1) > _STRUCTURE**2
    counts = strong & (shown > side**2 / 2)
    if counts.mean() < _LEAST:
        return None

    return float((both / np.sqrt(energy_a * energy_b + 1e-9))[counts].min())


def _color(a: Array, b: Array, inside: NDArray[np.bool_]) -> float:
    """1 - the difference of blurred colors / 0.3, at all but the worst hundredth of the pixels."""
    apart = np.abs(_blurred(a, 2.0) - _blurred(b, 2.0)).max(2)[inside]
    return 1 - float(np.quantile(apart, 0.99)) / _COLOR


# Arrays


def _centers(n: int) -> Array:
    found: Array = (np.arange(n) + 0.5) / n * 2 - 1
    return found


def _both(x: Array, rows: Array, columns: Array) -> Array:
    """rows @ x @ columns.T, for each channel."""
    if x.ndim == 2:
        return np.asarray(rows @ x @ columns.T)
    channels: Array = np.stack([rows @ x[..., c] @ columns.T for c in range(x.shape[2])], -1)
    return channels


def _resizer(have: int, want: int) -> Array:
    """Matrix (want, have) of antialiased linear interpolation."""
    if have == want:
        return np.eye(have)
    position, width = (np.arange(want) + 0.5) * have / want - 0.5, max(1.0, have / want)
    weights = np.clip(1 - np.abs(np.arange(have) - position[:, None]) / width, 0, None)
    found: Array = weights / weights.sum(1, keepdims=True)
    return found


def _blurred(x: Array, width: float) -> Array:
    """Gaussian blur that repeats pixels at the edges."""
    n, reach = len(x), int(3 * width + 0.5)
    matrix = np.zeros((n, n))
    for d in range(-reach, reach + 1):
        matrix[np.arange(n), np.clip(np.arange(n) + d, 0, n - 1)] += np.exp(-0.5 * (d / width) ** 2)
    matrix /= matrix.sum(1, keepdims=True)
    return _both(x, matrix, matrix)


def _unit(rows: Array) -> Array:
    """Rows without their means, at unit length; constant rows become 0."""
    centered = rows - rows.mean(-1, keepdims=True)
    found: Array = centered / np.maximum(np.linalg.norm(centered, axis=-1, keepdims=True), 1e-6)
    return found
