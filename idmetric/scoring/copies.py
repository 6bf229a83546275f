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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.files import in_order
from idmetric.metric.images import SIZE

Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]
Matches = Array  # (2, P, 2): best correlation of P pairs, and the crop that has it; each plain and mirrored
THRESHOLD = 0.7  # from this agreement on, an image is a copy (measurements: benchmarks/reports/copies.md)
MANY = 0.1  # above this share of copies, the scores of a set of images are those of its copies
_SMALL = 32
_CROPS = (0.8, 0.87, 0.93, 1.0)  # of a side
_GATE = 0.7  # coarse correlation below which nothing is compared further
_BAND = (0.8, 3.0)  # Gaussian widths in pixels of SIZE; between them lies the detail that survives JPEG
_WINDOWS = 8  # in each direction, and as many halfway between them
_STRUCTURE = 0.014  # root mean square of a window's detail that counts
_LEAST = 0.05  # share of windows with structure that a comparison needs
_OVERLAP = 0.4  # share of the image that the reference must cover
_COLOR = 0.3  # difference of colors, 0..1, at which agreement is 0
_SATURATED = 0.97
_GRAY = np.array([0.299, 0.587, 0.114])
_COLORS_APART = 0.2  # agreement of colors at small size below which pairs are given up (`copies_only`)
_STEPS = 8  # of Gauss-Newton
_THREADS = min(8, os.cpu_count() or 1)
_AT_ONCE = 16  # pairs in a batch: more do not fit into a processor's cache


@dataclass(frozen=True)
class Print:
    """An image, ready to be compared: pixels (SIZE, SIZE, 3), small gray ones, and crops of these, of unit length."""

    pixels: Bytes
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


def take_print(pixels: Bytes) -> Print:
    """The print of an image, to compare with others.

    Args:
        pixels: (SIZE, SIZE, 3) RGB, uint8.
    """
    gray = _gray(_colors(pixels))
    return Print(pixels, _reduced(gray), _crops(gray))


def compare(a: Print, b: Print) -> Copy:
    """Whether one image is a copy of the other, in either direction."""
    agreement, mirrored = compare_prints([a], [b])
    return Copy(float(agreement[0, 0]), bool(mirrored[0, 0]))


def compare_prints(references: Sequence[Print], images: Sequence[Print]) -> tuple[Array, Truths]:
    """Compare each of R references with each of N images as `compare` does, at once.

    Returns:
        Agreement (R, N) in [-1, 1], and whether the mirrored image fits best (R, N).
    """
    shape = len(references), len(images)
    reference_views = _views(np.stack([reference.small for reference in references]))
    image_views = _views(np.stack([image.small for image in images]))
    reference_crops = np.empty((2, *shape, 2))
    for row, reference in enumerate(references):
        reference_crops[:, row] = _matches(reference.crops, image_views)
    image_crops = np.empty((2, *shape, 2))
    for column, image in enumerate(images):
        image_crops[:, :, column] = _matches(image.crops, reference_views)

    pictures = np.stack([print_.pixels for print_ in (*references, *images)])
    rows, columns = np.indices(shape).reshape(2, -1)
    agreement, mirrored = _agreements(
        pictures,
        rows,
        len(references) + columns,
        reference_crops.reshape(2, -1, 2),
        image_crops.reshape(2, -1, 2),
    )
    return agreement.reshape(shape), mirrored.reshape(shape)


def compare_pairs(
    pictures: Bytes,
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
    if not len(a):
        return np.empty(0), np.empty(0, bool)
    small = []
    for picture in pictures:
        gray = _gray(_colors(picture))
        small.append(_reduced(gray))
    views = _views(np.stack(small))

    # the crops of each image with all images that it is paired with, in either direction
    image = np.concatenate([a, b])
    partner = np.concatenate([b, a])
    matches = np.empty((2, len(image), 2))

    def match(pairs: Ints) -> None:  # of one image
        picture = pictures[image[pairs[0]]]
        crops = _crops(_gray(_colors(picture)))
        matches[:, pairs] = _matches(crops, views[partner[pairs]])

    order = np.argsort(image, kind="stable")
    is_last = np.diff(image[order]) != 0
    ends = np.flatnonzero(is_last) + 1
    pairs_of_images = np.split(order, ends)
    for _ in in_order(match, pairs_of_images, threads=_THREADS, waiting=64):
        pass
    a_crops, b_crops = np.split(matches, 2, axis=1)
    return _agreements(pictures, a, b, a_crops, b_crops, copies_only, done)


def _agreements(
    pictures: Bytes,
    a: Ints,
    b: Ints,
    a_crops: Matches,
    b_crops: Matches,
    copies_only: bool = False,
    done: Callable[[int, int], None] | None = None,
) -> tuple[Array, Truths]:
    """Agreements of pairs by the better direction.

    Args:
        a_crops: crops of a that match b. b_crops: crops of b that match a.
    """
    agreement, mirrored = _directed(pictures, a, b, a_crops, b_crops, copies_only, done)
    # a part that is saturated or cut off in one image exists in the other alone
    is_unsure = (agreement >= THRESHOLD / 2) & (agreement < THRESHOLD)
    unsure = np.flatnonzero(is_unsure)
    if len(unsure):
        b_crops = b_crops[:, unsure]
        a_crops = a_crops[:, unsure]
        reverse, reverse_mirrored = _directed(pictures, b[unsure], a[unsure], b_crops, a_crops, copies_only)
        is_better = reverse > agreement[unsure]
        better = unsure[is_better]
        agreement[better] = reverse[is_better]
        mirrored[better] = reverse_mirrored[is_better]
    return agreement, mirrored


def _directed(
    pictures: Bytes,
    reference: Ints,
    image: Ints,
    reference_crops: Matches,
    image_crops: Matches,
    copies_only: bool,
    done: Callable[[int, int], None] | None = None,
) -> tuple[Array, Truths]:
    """Agreements of images (P,) with their reference, cropped and relit."""
    likeness, mirrored, poses = _coarse(reference_crops, image_crops)
    agreement = np.zeros(len(reference))

    def measure(pairs: Ints) -> int:
        last_pair = int(pairs[-1])
        references = _colors(pictures[reference[pairs]])
        images = _colors(pictures[image[pairs]])
        is_mirrored = mirrored[pairs]
        images[is_mirrored] = images[is_mirrored, ..., ::-1]

        small_references = _reduced(references)
        small_images = _reduced(images)
        pose = _refined(_gray(small_references), _gray(small_images), poses[pairs])
        if copies_only:
            warped, inside = _warped(small_references, pose)
            relit = _relit(warped, small_images, inside)
            is_similar = _color(relit, small_images, inside) >= _COLORS_APART
            pairs = pairs[is_similar]
            pose = pose[is_similar]
            references = references[is_similar]
            images = images[is_similar]
        if len(pairs):
            pose = _refined(_gray(references), _gray(images), pose)
            agreement[pairs] = _agreement(references, images, pose)
        return last_pair

    alike = np.flatnonzero(likeness >= _GATE)
    starts = range(0, len(alike), _AT_ONCE)
    batches = [alike[start : start + _AT_ONCE] for start in starts]
    for last_pair in in_order(measure, batches, threads=_THREADS, waiting=64):
        if done is not None:
            done(last_pair + 1, len(reference))
    return agreement, mirrored


# Register: `pose` = (scale, shift) of rows and of columns, from the image's coordinates -1..1 to the reference's


def _crop_poses() -> Array:
    """Poses (4, crops, 4): a crop of the reference shows the image, one of the image the reference; both mirrored."""
    crops = []
    for share in _CROPS:
        side = round(_SMALL / share)
        starts = np.arange(side - _SMALL + 1)
        centers = -1 + (2 * starts + _SMALL) / side
        crops += [(_SMALL / side, y, x) for y, x in product(centers, centers)]
    scale, y, x = np.array(crops).T
    of_reference = [scale, y, scale, x]
    of_image = [1 / scale, -y / scale, 1 / scale, -x / scale]
    of_mirrored = [1 / scale, -y / scale, 1 / scale, x / scale]
    poses = np.array([of_reference, of_image, of_reference, of_mirrored])
    return poses.transpose(0, 2, 1)


_POSES = _crop_poses()


def _views(small: Array) -> Single:
    """Small images (M, _SMALL, _SMALL) as they are and mirrored, of unit length (M, 2, _SMALL * _SMALL)."""
    both = np.stack([small, small[:, :, ::-1]], axis=1)
    unit = _unit(both.reshape(len(small), 2, -1))
    return unit.astype(np.float32)


def _matches(crops: Single, views: Single) -> Matches:
    """Match the crops of one image with the views of M others."""
    rows = views.reshape(-1, views.shape[-1])
    likeness = rows @ crops.T
    best = np.array([likeness.max(-1), likeness.argmax(-1)])
    return best.reshape(2, -1, 2)


def _coarse(reference_crops: Matches, image_crops: Matches) -> tuple[Array, Truths, Array]:
    """Best correlation (P,), whether of the mirrored image (P,), and its pose (P, 4)."""
    matches = np.stack([reference_crops, image_crops], axis=-1)
    correlation, crop = matches.reshape(2, -1, len(_POSES))
    highest = correlation.max(1, keepdims=True)
    is_highest = correlation >= highest - 1e-6
    choice = is_highest.argmax(1)  # of equal ones the first
    pairs = np.arange(len(choice))
    chosen_crop = crop[pairs, choice].astype(np.int64)
    poses = _POSES[choice, chosen_crop]
    return correlation[pairs, choice], choice >= 2, poses


def _refined(reference: Array, image: Array, pose: Array) -> Array:
    """Gauss-Newton on poses (K, 4) of grays (K, n, n)."""
    n = reference.shape[-1]
    pose = pose.copy()
    moving = np.arange(len(pose))  # pairs that have not converged
    x = _centers(n)
    y = x[:, None]
    for _ in range(_STEPS):
        warped, inside = _warped(reference[moving], pose[moving])
        is_covered = inside.mean((1, 2)) >= _OVERLAP
        moving = moving[is_covered]
        warped = warped[is_covered]
        inside = inside[is_covered]
        if not len(moving):
            break

        # the derivatives of the relit reference by scale and shift of rows, by those of columns, gain and offset
        target = image[moving]
        gain, offset = _light(warped, target, inside)
        scales_and_shifts = pose[moving].T
        height, _, width, _ = scales_and_shifts[..., None, None]
        pixel = 2 / n
        down = gain * np.gradient(warped, pixel, axis=1) / height
        across = gain * np.gradient(warped, pixel, axis=2) / width
        constant = np.ones_like(warped)
        by_rows = [down * y, down]
        by_columns = [across * x, across]
        derivatives = np.stack([*by_rows, *by_columns, warped, constant], axis=1)
        derivatives *= inside[:, None]
        jacobian = derivatives.reshape(len(moving), 6, -1)

        # a step that stays small without evidence
        transposed = jacobian.transpose(0, 2, 1)
        normal = jacobian @ transposed
        trace = np.trace(normal, axis1=1, axis2=2)
        damping = np.full((len(moving), 6), 1e-9)
        damping[:, :4] += 1e-3 * trace[:, None] / 4
        normal += damping[:, None] * np.eye(6)
        residual = target - gain * warped - offset
        right = jacobian @ residual.reshape(len(moving), -1, 1)
        solution = np.linalg.solve(normal, right)
        step = solution[:, :4, 0].clip(-0.1, 0.1)

        pose[moving] += step
        scales = pose[:, [0, 2]]
        pose[:, [0, 2]] = scales.clip(0.6, 1.6)
        largest_step = np.abs(step).max(1)
        moving = moving[largest_step >= 0.04 / n]

    return pose


def _light(a: Array, b: Array, where: Truths) -> tuple[Array, Array]:
    """Gain and offset (K, 1, 1) by least squares of gain * a + offset - b, of grays (K, n, n) where they count."""
    count = len(a)
    basis = np.stack([a, np.ones_like(a)], axis=1)
    basis *= where[:, None]
    basis = basis.reshape(count, 2, -1)
    transposed = basis.transpose(0, 2, 1)
    normal = basis @ transposed
    inverse = np.linalg.pinv(normal, rcond=1e-12, hermitian=True)
    right = basis @ b.reshape(count, -1, 1)
    solution = inverse @ right
    return solution[:, :1], solution[:, 1:]


def _warped(x: Array, pose: Array) -> tuple[Array, Truths]:
    """References (K, n, n) or (K, 3, n, n) in their images' coordinates, and where they are defined (K, n, n)."""
    n = x.shape[-1]
    rows, row_inside = _sampling(pose[:, :2], n)
    columns, column_inside = _sampling(pose[:, 2:], n)
    inside = row_inside[:, :, None] & column_inside[:, None]
    if x.ndim == 4:
        rows = rows[:, None]
        columns = columns[:, None]
    return _separable(x, rows, columns), inside


def _sampling(pose: Array, n: int) -> tuple[Array, Truths]:
    """Matrices (K, n, n) that interpolate at scale and shift (K, 2), and where they do not leave the image (K, n)."""
    scale = pose[:, :1]
    shift = pose[:, 1:]
    position = (scale * _centers(n) + shift + 1) / 2 * n - 0.5
    within = position.clip(0, n - 1)
    distance = np.abs(np.arange(n) - within[..., None])
    weights = 1 - distance
    is_inside = (position > -0.75) & (position < n - 0.25)
    return weights.clip(0, None), is_inside


# Agreement


def _agreement(reference: Array, image: Array, pose: Array) -> Array:
    """Agreements (K,) of colors (K, 3, n, n)."""
    warped, inside = _warped(reference, pose)
    expected = _relit(warped, image, inside)
    detail = _detail(expected.mean(1), image.mean(1), inside)
    color = _color(expected, image, inside)
    agreement = np.minimum(detail, color).clip(-1, 1)
    is_covered = inside.mean((1, 2)) >= _OVERLAP
    is_defined = is_covered & ~np.isnan(agreement)
    return np.where(is_defined, agreement, 0.0)


def _relit(warped: Array, image: Array, inside: Truths) -> Array:
    """The references with their images' brightness and contrast, by least squares where neither is saturated."""
    a = warped.mean(1)
    b = image.mean(1)
    is_open = inside & (a < _SATURATED) & (b < _SATURATED)
    gain, offset = _light(a, b, is_open)
    gain = gain[:, None].clip(0.5, 2)
    lit = gain * warped + offset[:, None]
    lit = lit.clip(0, 1)
    open_pixels = is_open.sum((1, 2))
    is_enough = open_pixels >= 2 * a.shape[-1]
    return np.where(is_enough[:, None, None, None], lit, warped)


def _detail(a: Array, b: Array, inside: Truths) -> Array:
    """Lowest correlation (K,) of band-passed windows with structure; NaN where there are too few of them."""
    fine, coarse = _BAND
    fine_a = _blurred(a, fine) - _blurred(a, coarse)
    fine_b = _blurred(b, fine) - _blurred(b, coarse)
    area = _window_sums(inside.astype(np.float64))
    energy_a = _window_sums(fine_a * fine_a * inside)
    energy_b = _window_sums(fine_b * fine_b * inside)
    shared = _window_sums(fine_a * fine_b * inside)

    energy = np.maximum(energy_a, energy_b) / np.maximum(area, 1)
    is_strong = energy > _STRUCTURE**2
    half_of_a_window = (SIZE / _WINDOWS) ** 2 / 2
    counts = is_strong & (area > half_of_a_window)
    correlation = shared / np.sqrt(energy_a * energy_b + 1e-9)
    counted = np.where(counts, correlation, np.inf)
    lowest = counted.min((1, 2))
    too_few = counts.mean((1, 2)) < _LEAST
    return np.where(too_few, np.nan, lowest)


def _window_sums(x: Array) -> Array:
    """Sums of images (K, SIZE, SIZE) over windows that overlap by half of their sides."""
    count = 2 * _WINDOWS
    half = SIZE // count
    split = x.reshape(len(x), count, half, count, half)
    blocks = split.sum((2, 4))
    rows = blocks[:, 1:] + blocks[:, :-1]
    sums: Array = rows[:, :, 1:] + rows[:, :, :-1]
    return sums


def _color(a: Array, b: Array, inside: Truths) -> Array:
    """1 - the difference of blurred colors / 0.3 (K,), at all but the worst hundredth of the pixels."""
    width = 2 * a.shape[-1] / SIZE
    difference = np.abs(_blurred(a - b, width))
    of_pixels = difference.max(1)
    agreement = np.full(len(of_pixels), np.nan)
    for pair, is_inside in enumerate(inside):
        if is_inside.any():
            values = of_pixels[pair][is_inside]
            worst = np.quantile(values, 0.99)
            agreement[pair] = 1 - worst / _COLOR
    return agreement


# Arrays: images are the last two axes


def _colors(pixels: Bytes) -> Array:
    """Pixels (..., H, W, 3) as floats (..., 3, H, W)."""
    return np.moveaxis(pixels, -1, -3) / 255.0


def _gray(colors: Array) -> Array:
    gray: Array = np.einsum("c,...chw->...hw", _GRAY, colors)
    return gray


def _reduced(x: Array) -> Array:
    down = _resizer(SIZE, _SMALL)
    return _separable(x, down, down)


def _crops(gray: Array) -> Single:
    """The crops of an image at small size, each of unit length."""
    crops = []
    for share in _CROPS:
        side = round(_SMALL / share)
        size = _resizer(SIZE, side)
        resized = _separable(gray, size, size)
        views = np.lib.stride_tricks.sliding_window_view(resized, (_SMALL, _SMALL))
        crops.append(views.reshape(-1, _SMALL**2))
    unit = _unit(np.concatenate(crops))
    return unit.astype(np.float32)


def _centers(n: int) -> Array:
    return np.linspace(-1 + 1 / n, 1 - 1 / n, n)


def _separable(x: Array, rows: Array, columns: Array) -> Array:
    """rows @ x @ columns.T, for each image."""
    combined: Array = rows @ x @ np.swapaxes(columns, -1, -2)
    return combined


@cache
def _resizer(have: int, want: int) -> Array:
    """Matrix (want, have) of antialiased linear interpolation."""
    position = (np.arange(want) + 0.5) * have / want - 0.5
    distance = np.abs(np.arange(have) - position[:, None])
    reach = max(1.0, have / want)
    weights = (1 - distance / reach).clip(0, None)
    matrix: Array = weights / weights.sum(1, keepdims=True)
    return matrix


@cache
def _blur(n: int, width: float) -> Array:
    """Matrix (n, n) of a Gaussian blur that repeats pixels at the edges."""
    reach = int(3 * width + 0.5)
    rows = np.arange(n)[:, None]
    columns = np.arange(-reach, n + reach)
    offset = columns - rows
    weights = np.exp(-0.5 * (offset / width) ** 2)
    weights[np.abs(offset) > reach] = 0
    # each column of an image, continued at both ends
    repeated = np.pad(np.eye(n), ((reach, reach), (0, 0)), mode="edge")
    sums = weights.sum(1, keepdims=True)
    matrix: Array = weights @ repeated / sums
    return matrix


def _blurred(x: Array, width: float) -> Array:
    matrix = _blur(x.shape[-1], width)
    return _separable(x, matrix, matrix)


def _unit(rows: Array) -> Array:
    """Rows without their means, at unit length; constant rows become 0."""
    centered: Array = rows - rows.mean(-1, keepdims=True)
    squares = np.einsum("...i,...i->...", centered, centered)
    length = np.sqrt(squares)[..., None]
    centered /= np.maximum(length, 1e-6)
    return centered
