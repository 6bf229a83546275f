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

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.files.threads import in_order, one_thread

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]
Matches = tuple[Array, Ints]  # of P pairs, plain and mirrored (P, 2): best correlation, and the crop that has it
SIZE = 96  # side in pixels at which images are compared; callers may resize them to it by a better filter
THRESHOLD = 0.7  # from this agreement on, an image is a copy (measurements: benchmarks/reports/copies.md)
MANY = 0.1  # above this share of copies, the scores of a set of images are those of its copies
_SMALL = 32
_CROPS = (0.8, 0.87, 0.93, 1.0)  # of a side
_GATE = 0.7  # coarse correlation below which nothing is compared further
_BAND = (0.8, 3.0)  # Gaussian widths in pixels of SIZE; between them lies the detail that survives JPEG
_STRUCTURE = 0.014  # root mean square of a window's detail that counts
_LEAST = 0.05  # share of windows with structure that a comparison needs
_COLOR = 0.3  # difference of colors, 0..1, at which agreement is 0
_SATURATED = 0.97
_GRAY = np.array([0.299, 0.587, 0.114])
_COLORS_APART = 0.2  # agreement of colors at small size below which pairs are given up (`copies_only`)
_THREADS = min(8, os.cpu_count() or 1)
_AT_ONCE = 16  # pairs in a batch: more do not fit into a processor's cache


@dataclass(frozen=True)
class Print:
    """An image, ready to be compared: pixels (SIZE, SIZE, 3), small gray ones, and crops of these, of unit length."""

    pixels: Array
    small: Array
    crops: Single


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
    x = _values(np.asarray(pixels))
    squashed = _both(x, _resizer(x.shape[1], SIZE), _resizer(x.shape[2], SIZE))
    gray = _gray(squashed)
    return Print(squashed.transpose(1, 2, 0), _reduced(gray), _crops(gray))


@one_thread()
def compare(a: Print, b: Print) -> Copy:
    """Whether one image is a copy of the other, in either direction."""
    ab, ba = _matches(a.crops, b.small[None]), _matches(b.crops, a.small[None])
    agreement, mirrored = _agreements(np.stack([a.pixels, b.pixels]), np.array([0]), np.array([1]), ab, ba)
    return Copy(float(agreement[0]), bool(mirrored[0]))


@one_thread()
def compare_pairs(
    pictures: NDArray[np.uint8],
    a: Ints,
    b: Ints,
    *,
    copies_only: bool = False,
    done: Callable[[int, int], None] | None = None,
) -> tuple[Array, Truths]:
    """Compare many pairs of images as `compare` does, but faster.

    Args:
        pictures: (N, SIZE, SIZE, 3) RGB. a, b: the pairs, rows of the pictures (P,).
        copies_only: give up pairs with other colors once they are in register at small size: an agreement of 0.
        done: called with (pairs done, pairs in all).

    Returns:
        Agreement (P,) in [-1, 1], and whether the mirrored image fits best (P,).
    """
    small = np.stack([_reduced(_gray(_values(picture))) for picture in pictures]) if len(pictures) else np.empty(0)
    first, second = np.concatenate([a, b]), np.concatenate([b, a])
    order = np.argsort(first, kind="stable")
    value, which = np.empty((len(order), 2)), np.empty((len(order), 2), np.int64)

    def match(own: Ints) -> None:  # one image's crops with all images that it is paired with
        value[own], which[own] = _matches(_crops(_gray(_values(pictures[first[own[0]]]))), small[second[own]])

    images = np.split(order, np.flatnonzero(np.diff(first[order])) + 1) if len(order) else []
    deque(in_order(match, images, threads=_THREADS, waiting=64), 0)
    ab, ba = ((value[half], which[half]) for half in (slice(len(a)), slice(len(a), None)))
    return _agreements(pictures, a, b, ab, ba, copies_only, done)


def _agreements(
    pictures: NDArray[Any], a: Ints, b: Ints, ab: Matches, ba: Matches,
    copies_only: bool = False, done: Callable[[int, int], None] | None = None,
) -> tuple[Array, Truths]:  # fmt: skip
    """Agreements of pairs by the better direction."""
    found, mirrored = _directed(pictures, a, b, ab, ba, copies_only, done)
    # a part that is saturated or cut off in one image exists in the other alone
    again = np.flatnonzero((found >= THRESHOLD / 2) & (found < THRESHOLD))
    if len(again):
        inside, around = ((value[again], which[again]) for value, which in (ba, ab))
        other, turned = _directed(pictures, b[again], a[again], inside, around, copies_only)
        better = other > found[again]
        found[again[better]], mirrored[again[better]] = other[better], turned[better]
    return found, mirrored


def _directed(
    pictures: NDArray[Any], reference: Ints, image: Ints, inside: Matches, around: Matches,
    copies_only: bool, done: Callable[[int, int], None] | None = None,
) -> tuple[Array, Truths]:  # fmt: skip
    """Agreements of images (P,) with their reference, cropped and relit."""
    likeness, mirrored, place = _coarse(inside, around)
    found = np.zeros(len(reference))
    alike = np.flatnonzero(likeness >= _GATE)

    def measure(rows: Ints) -> int:
        last = int(rows[-1])
        first, second = _values(pictures[reference[rows]]), _values(pictures[image[rows]])
        second[mirrored[rows]] = second[mirrored[rows], ..., ::-1]
        small, other = _reduced(first), _reduced(second)
        at = _refined(_gray(small), _gray(other), place[rows])
        if copies_only:
            warped, shown = _warped(small, at)
            near = _color(_relit(warped, other, shown), other, shown) >= _COLORS_APART
            rows, first, second, at = rows[near], first[near], second[near], at[near]
        if len(rows):
            found[rows] = _agreement(first, second, _refined(_gray(first), _gray(second), at))
        return last

    batches = [alike[begin : begin + _AT_ONCE] for begin in range(0, len(alike), _AT_ONCE)]
    for last in in_order(measure, batches, threads=_THREADS, waiting=64):
        if done is not None:
            done(last + 1, len(reference))
    return found, mirrored


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


def _matches(crops: Single, small: Array) -> Matches:
    """Match the crops of one image with others (M, _SMALL, _SMALL), plain and mirrored."""
    turned = np.stack([small, small[:, :, ::-1]], 1).reshape(len(small), 2, -1)
    likeness = _unit(turned).astype(np.float32) @ crops.T
    best = likeness.argmax(-1)
    return np.take_along_axis(likeness, best[..., None], -1)[..., 0].astype(np.float64), best


def _coarse(inside: Matches, around: Matches) -> tuple[Array, Truths, Array]:
    """Best correlation (P,), whether of the mirrored image (P,), and its place (P, 4).

    Args:
        inside: the images as crops of their references. around: the references as crops of their images.
    """
    best, mirrored = np.full(len(inside[0]), -1.0), np.zeros(len(inside[0]), bool)
    place = np.tile([1.0, 0.0, 1.0, 0.0], (len(best), 1))
    for turn in (0, 1):
        for (value, which), inverse in ((inside, False), (around, True)):
            scale, y, x = _PLACES[which[:, turn]].T
            if inverse:  # the reference is a crop of the image
                scale, y, x = 1 / scale, -y / scale, (x if turn else -x) / scale
            better = value[:, turn] > best + 1e-6
            best[better], mirrored[better] = value[better, turn], bool(turn)
            place[better] = np.stack([scale, y, scale, x], 1)[better]
    return best, mirrored, place


def _refined(reference: Array, image: Array, place: Array, steps: int = 8) -> Array:
    """Gauss-Newton on places (K, 4) of grays (K, n, n)."""
    n, place, going = reference.shape[-1], place.copy(), np.arange(len(place))
    at = _centers(n)
    for _ in range(steps):
        warped, inside = _warped(reference[going], place[going])
        enough = inside.mean((1, 2)) >= 0.4
        going, warped, inside = going[enough], warped[enough], inside[enough]
        if not len(going):
            break

        target = image[going]
        gain, offset = (x[:, None, None] for x in _light(warped, target, inside))
        height, width = (place[going, k][:, None, None] for k in (0, 2))
        down = np.gradient(warped, 2 / n, axis=1) / height
        across = np.gradient(warped, 2 / n, axis=2) / width
        moves = [gain * down * at[:, None], gain * down, gain * across * at, gain * across]
        jacobian = (np.stack([*moves, warped, np.ones_like(warped)], 1) * inside[:, None]).reshape(len(going), 6, -1)
        normal = jacobian @ jacobian.transpose(0, 2, 1)
        some = range(4)  # steps stay small without evidence
        normal[:, some, some] += (1e-3 * np.trace(normal, axis1=1, axis2=2) / 4 + 1e-9)[:, None]
        normal[:, range(4, 6), range(4, 6)] += 1e-9
        rest = (target - gain * warped - offset).reshape(len(going), -1, 1)
        step = np.linalg.solve(normal, jacobian @ rest)[:, :4, 0].clip(-0.1, 0.1)

        place[going] += step
        place[going[:, None], [0, 2]] = place[going[:, None], [0, 2]].clip(0.6, 1.6)
        going = going[np.abs(step).max(1) >= 0.04 / n]

    return place


def _light(a: Array, b: Array, where: Truths) -> tuple[Array, Array]:
    """Gain and offset (K,) with the least squares of gain * a + offset - b, of grays (K, n, n) where they count."""
    of = np.stack([a, np.ones_like(a)], 1) * where[:, None]
    of = of.reshape(len(a), 2, -1)
    normal, right = of @ of.transpose(0, 2, 1), of @ b.reshape(len(b), -1, 1)
    found = (np.linalg.pinv(normal, rcond=1e-12, hermitian=True) @ right)[..., 0]
    return found[:, 0], found[:, 1]


def _warped(x: Array, place: Array) -> tuple[Array, Truths]:
    """References (K, n, n) or (K, 3, n, n) in their images' coordinates, and where they are defined (K, n, n)."""
    n = x.shape[-1]
    sampled, there = [], []
    for k in (0, 2):
        position = (place[:, k, None] * _centers(n) + place[:, k + 1, None] + 1) / 2 * n - 0.5
        weights = 1 - np.abs(np.arange(n) - position.clip(0, n - 1)[..., None])
        sampled.append(weights.clip(0, None) if x.ndim == 3 else weights.clip(0, None)[:, None])
        there.append((position > -0.75) & (position < n - 0.25))
    return _both(x, *sampled), there[0][:, :, None] & there[1][:, None]


# Agreement


def _agreement(reference: Array, image: Array, place: Array) -> Array:
    """Agreements (K,) of colors (K, 3, n, n)."""
    warped, inside = _warped(reference, place)
    expected = _relit(warped, image, inside)
    found = np.minimum(_detail(expected.mean(1), image.mean(1), inside), _color(expected, image, inside)).clip(-1, 1)
    return np.where((inside.mean((1, 2)) < 0.4) | np.isnan(found), 0.0, found)


def _relit(warped: Array, image: Array, inside: Truths) -> Array:
    """The references with their images' brightness and contrast, by least squares where neither is saturated."""
    a, b = warped.mean(1), image.mean(1)
    open_ = inside & (a < _SATURATED) & (b < _SATURATED)
    gain, offset = (x[:, None, None, None] for x in _light(a, b, open_))
    lit = (gain.clip(0.5, 2) * warped + offset).clip(0, 1)
    return np.where((open_.sum((1, 2)) < 2 * a.shape[-1])[:, None, None, None], warped, lit)


def _detail(a: Array, b: Array, inside: Truths) -> Array:
    """Lowest correlation (K,) of band-passed windows with structure; NaN where there are too few of them."""
    side = SIZE // 8
    starts = np.arange(0, SIZE - side + 1, side // 2)[:, None]
    windows = ((np.arange(SIZE) >= starts) & (np.arange(SIZE) < starts + side)).astype(np.float64)

    def sums(x: Array) -> Array:
        return _both(x, windows, windows)

    high_a, high_b = (_blurred(x, _BAND[0]) - _blurred(x, _BAND[1]) for x in (a, b))
    shown = sums(inside.astype(np.float64))
    energy_a, energy_b, both = (sums(x * y * inside) for x, y in ((high_a, high_a), (high_b, high_b), (high_a, high_b)))
    strong = np.maximum(energy_a, energy_b) / np.maximum(shown, 1) > _STRUCTURE**2
    counts = strong & (shown > side**2 / 2)
    lowest = np.where(counts, both / np.sqrt(energy_a * energy_b + 1e-9), np.inf).min((1, 2))
    return np.where(counts.mean((1, 2)) < _LEAST, np.nan, lowest)


def _color(a: Array, b: Array, inside: Truths) -> Array:
    """1 - the difference of blurred colors / 0.3 (K,), at all but the worst hundredth of the pixels."""
    apart = np.abs(_blurred(a - b, 2 * a.shape[-1] / SIZE)).max(1)
    worst = [np.quantile(x[of], 0.99) if of.any() else np.nan for x, of in zip(apart, inside, strict=True)]
    return 1 - np.array(worst) / _COLOR


# Arrays: images are the last two axes


def _values(pixels: NDArray[Any]) -> Array:
    """Pixels (..., H, W, 3) as floats (..., 3, H, W)."""
    x = np.moveaxis(pixels, -1, -3)
    return x / 255.0 if x.dtype == np.uint8 else x.astype(np.float64)


def _gray(colors: Array) -> Array:
    found: Array = np.einsum("c,...chw->...hw", _GRAY, colors)
    return found


def _reduced(x: Array) -> Array:
    down = _resizer(SIZE, _SMALL)
    return _both(x, down, down)


def _crops(gray: Array) -> Single:
    """The crops of an image at small size, each of unit length."""
    found = []
    for part in _CROPS:
        size = _resizer(SIZE, round(_SMALL / part))
        views = np.lib.stride_tricks.sliding_window_view(_both(gray, size, size), (_SMALL, _SMALL))
        found.append(views.reshape(-1, _SMALL**2))
    return _unit(np.concatenate(found)).astype(np.float32)


def _centers(n: int) -> Array:
    found: Array = (np.arange(n) + 0.5) / n * 2 - 1
    return found


def _both(x: Array, rows: Array, columns: Array) -> Array:
    """rows @ x @ columns.T, for each image."""
    found: Array = rows @ x @ np.swapaxes(columns, -1, -2)
    return found


@cache
def _resizer(have: int, want: int) -> Array:
    """Matrix (want, have) of antialiased linear interpolation."""
    if have == want:
        return np.eye(have)
    position, width = (np.arange(want) + 0.5) * have / want - 0.5, max(1.0, have / want)
    weights = np.clip(1 - np.abs(np.arange(have) - position[:, None]) / width, 0, None)
    found: Array = weights / weights.sum(1, keepdims=True)
    return found


@cache
def _blur(n: int, width: float) -> Array:
    """Matrix (n, n) of a Gaussian blur that repeats pixels at the edges."""
    reach = int(3 * width + 0.5)
    matrix = np.zeros((n, n))
    for d in range(-reach, reach + 1):
        matrix[np.arange(n), np.clip(np.arange(n) + d, 0, n - 1)] += np.exp(-0.5 * (d / width) ** 2)
    found: Array = matrix / matrix.sum(1, keepdims=True)
    return found


def _blurred(x: Array, width: float) -> Array:
    matrix = _blur(x.shape[-1], width)
    return _both(x, matrix, matrix)


def _unit(rows: Array) -> Array:
    """Rows without their means, at unit length; constant rows become 0."""
    centered = rows - rows.mean(-1, keepdims=True)
    found: Array = centered / np.maximum(np.linalg.norm(centered, axis=-1, keepdims=True), 1e-6)
    return found
