"""Group a gallery's images to clean a data set: near-duplicates, and images of one identity.

    near_duplicates(gallery).write("duplicates.csv")  # one row per image of a group, with a suggestion to keep
    identities(gallery).write("identities.csv")  # one row per image

No image is ever deleted or moved.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.embed.nearest import Double, Ints, Single, distances, nearest
from idmetric.evaluate.arrays import comparable
from idmetric.evaluate.copies import Copy, Print, compare, take_print
from idmetric.gallery.index import by_key
from idmetric.gallery.linkage import Linkage as Linkage
from idmetric.gallery.linkage import cluster as cluster
from idmetric.images.opening import Named, frames_of, open_file
from idmetric.scoring.copies import small_picture
from idmetric.scoring.records import Record, Records

if TYPE_CHECKING:
    from idmetric.gallery import Gallery, Item

Keep = Literal["largest", "sharpest"]
Progress = Callable[[int, int], None]

DUPLICATES = ("group", "size", "keep", "reason", "image", "name", "identity", "width", "height", "bytes", "sharpness",
              "distance", "copy_agreement", "mirrored")  # fmt: skip
IDENTITIES = ("group", "size", "center", "distance", "image", "name", "identity", "width", "height")
FIRST_FRAME = "first frame only"  # the reason where other frames or pages differ from the kept file's
_PRINTS = 512  # prints held in memory, 0.8 MB each
_AS_SHARP = 0.8  # share of the greatest sharpness that counts as sharp
_SHARPNESS_SIDE = 256  # longer side at which sharpness is measured, for any size of image


# Near-duplicates


def near_duplicates(
    gallery: Gallery,
    *,
    neighbors: int = 10,
    max_distance: float | None = None,
    keep: Keep = "largest",
    left_out: Collection[tuple[str, ...]] = (),
    progress: Progress | None = None,
) -> Records:
    """Find groups of images that repeat each other's pixels.

    Two images are linked if they have the same bytes, or if one is a copy of the other (compressed, scaled,
    cropped, relit, mirrored; `idmetric.evaluate.copies`) and is among its nearest neighbors. Of linked images one is
    kept, and those that repeat it are its group; of the rest another is kept, and so on. So a copy's copy that does not
    repeat the kept image is never suggested to go with it.

    Args:
        gallery: up to date.
        neighbors: number of nearest images that are compared with each.
        max_distance: also link images this near by `cls`, such as the pictures of a burst, with any pixels.
        keep: suggest the largest (of these, the sharpest), or the sharpest (of these, the largest). Images at least
            80 % as sharp as the sharpest count as sharp, since compression adds edges too; of these, the file with the
            most bytes.
        left_out: `Item.where` of images that are not compared, such as `info.faults`.
        progress: called with (pairs done, pairs in all).

    Returns:
        A row for each image of a group, large groups first. `keep` is true for one image of each group; `distance`,
        `copy_agreement` and `mirrored` compare the others with it; `reason` is "kept", "same bytes", "copy" or "near".
        Copies of several frames or pages repeat all of them; else `reason` is "first frame only", and `keep` is true.

    Raises:
        GalleryError: if a file has changed since the gallery was brought up to date.
        ValueError: for arguments out of range.
    """
    if neighbors < 1 or keep not in ("largest", "sharpest"):
        raise ValueError(f"neighbors must be at least 1 and keep largest or sharpest, got {neighbors} and {keep!r}")
    if max_distance is not None and not max_distance >= 0:
        raise ValueError(f"max_distance must be at least 0, got {max_distance}")
    if not len(gallery):
        return Records([], DUPLICATES)

    table = gallery.table()
    there = [item for item in gallery.items if item.where not in left_out]
    items = by_key(there)
    vectors = _Lookup(gallery, there)
    links = _Links(len(table.keys))
    pairs = nearest_pairs(table.vectors, neighbors)
    for number, (a, b, far) in enumerate(zip(*(x.tolist() for x in pairs), strict=True), 1):
        if links.root(a) != links.root(b) and table.keys[a] in items and table.keys[b] in items:
            near = max_distance is not None and comparable(far) <= comparable(max_distance)
            if near or compare(vectors.print(a), vectors.print(b)).found:
                links.join(a, b)
        if progress is not None:
            progress(number, len(pairs[0]))
    linked = [[item for row in rows for item in items.get(table.keys[row], ())] for rows in links.groups()]
    groups = [group for some in linked for group in _groups(some, vectors, keep, max_distance)]
    groups.sort(key=lambda group: (-len(group), min(row["image"] for row in group)))
    rows = [{"group": n, "size": len(group), **row} for n, group in enumerate(groups, 1) for row in group]
    return Records(rows, DUPLICATES)


def sharpness(image: Image.Image) -> float:
    """Variance of the Laplacian (Pech-Pacheco et al., ICPR 2000) over the variance of the grays, at 256 pixels.

    The division is ours: without it, a brighter copy would count as sharper. 0 for an image of a single gray.
    """
    scale = _SHARPNESS_SIDE / max(image.size)
    width, height = (max(3, round(side * scale)) for side in image.size)
    x = np.asarray(image.convert("L").resize((width, height), Image.Resampling.LANCZOS), np.float64) / 255
    inner = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]
    return float(inner.var() / x.var()) if x.std() > 1e-6 else 0.0


def _groups(items: Sequence[Item], lookup: _Lookup, keep: Keep, max_distance: float | None) -> Iterator[list[Record]]:
    """Yield the groups of linked images: rows of an image that is kept and of those that repeat it."""
    sharp = {item.key: sharpness(lookup.image(item)) for item in items} if len(items) > 1 else {}
    rest = list(items)
    while len(rest) > 1:
        first = _kept(rest, sharp, keep)
        compared = [first, *(item for item in rest if item is not first)]
        rows = [_row(first, item, sharp[item.key], lookup, max_distance) for item in compared]
        rest = [item for item, row in zip(compared, rows, strict=True) if not row["reason"]]
        if len(rest) < len(rows) - 1:
            yield [row for row in rows if row["reason"]]


def _row(first: Item, item: Item, sharp: float, lookup: _Lookup, max_distance: float | None) -> Record:
    """Compare an image with the one that is kept; `reason` is empty if it does not repeat it."""
    far = lookup.distance(first, item)
    copy = Copy(1.0, False) if item.key == first.key else compare(lookup.print_of(first), lookup.print_of(item))
    near = max_distance is not None and comparable(far) <= comparable(max_distance)
    reason = ("kept" if item is first else "same bytes" if item.key == first.key
              else FIRST_FRAME if (copy.found or near) and not lookup.later_frames_agree(first, item)
              else "copy" if copy.found else "near" if near else "")  # fmt: skip
    return {
        "keep": reason in ("kept", FIRST_FRAME),
        "reason": reason,
        "image": item.place,
        "name": item.name,
        "identity": item.identity,
        "width": item.width,
        "height": item.height,
        "bytes": item.size,
        "sharpness": sharp,
        "distance": far,
        "copy_agreement": copy.agreement,
        "mirrored": copy.mirrored,
    }


def _kept(items: Sequence[Item], sharp: Mapping[str, float], keep: Keep) -> Item:
    """See `near_duplicates`."""

    def largest(some: Sequence[Item]) -> list[Item]:
        most = max(item.width * item.height for item in some)
        return [item for item in some if item.width * item.height == most]

    def sharpest(some: Sequence[Item]) -> list[Item]:
        most = max(sharp[item.key] for item in some)
        return [item for item in some if sharp[item.key] >= _AS_SHARP * most]

    best = sharpest(largest(items)) if keep == "largest" else largest(sharpest(items))
    return min(best, key=lambda item: (-item.size, item.place))


def nearest_pairs(vectors: Single, neighbors: int) -> tuple[Ints, Ints, Double]:
    """Return pairs a < b in which one is among the other's nearest, and their distances, nearest first."""
    rows, far = nearest(vectors, vectors, neighbors + 1)
    one = np.broadcast_to(np.arange(len(vectors))[:, None], rows.shape)
    codes = (np.minimum(one, rows) * len(vectors) + np.maximum(one, rows))[one != rows]
    code, first = np.unique(codes, return_index=True)
    found = far[one != rows][first]
    order = np.lexsort((code, comparable(found)))
    return code[order] // len(vectors), code[order] % len(vectors), found[order]


class _Lookup:
    """Pictures and distances of a gallery's images, a few of them in memory."""

    def __init__(self, gallery: Gallery, items: Sequence[Item]) -> None:
        self.gallery, self.table = gallery, gallery.table()
        self.item = {item.key: item for item in reversed(items)}
        self.print = lru_cache(_PRINTS)(self._print)

    def image(self, item: Item) -> Image.Image:
        return self.gallery.metric.read_image(Named(self.gallery.read(item)[0], item.place))

    def _print(self, row: int) -> Print:
        return take_print(small_picture(self.image(self.item[self.table.keys[row]])))

    def print_of(self, item: Item) -> Print:
        return self.print(self.table.number[item.key])

    def later_frames_agree(self, a: Item, b: Item) -> bool:
        """Whether two files have as many frames or pages, and those after the first are copies of each other."""
        pairs = zip(self._later_frames(a), self._later_frames(b), strict=True)
        try:  # plain colors have no print that agrees
            return all(np.array_equal(x, y) or compare(take_print(x), take_print(y)).found for x, y in pairs)
        except (ValueError, EOFError, OSError, SyntaxError):  # another number of frames, or a damaged one
            return False

    def _later_frames(self, item: Item) -> Iterator[NDArray[np.uint8]]:
        with open_file(io.BytesIO(self.gallery.read(item)[0])) as image:
            for number in range(1, frames_of(image)):
                image.seek(number)
                yield small_picture(self.gallery.metric.read_image(image))

    def distance(self, a: Item, b: Item) -> float:
        x, y = self.table.rows_of([a.key, b.key])
        return float(distances(x[None], y[None])[0])


class _Links:
    """Connected components of N images."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def root(self, k: int) -> int:
        while self.parent[k] != k:
            self.parent[k] = k = self.parent[self.parent[k]]
        return k

    def join(self, a: int, b: int) -> None:
        low, high = sorted((self.root(a), self.root(b)))
        self.parent[high] = low

    def groups(self) -> list[list[int]]:
        """Return the members of each component, in order."""
        found: dict[int, list[int]] = {}
        for k in range(len(self.parent)):
            found.setdefault(self.root(k), []).append(k)
        return list(found.values())


# Identities


def identities(
    gallery: Gallery,
    *,
    threshold: float | None = None,
    false_accept_rate: float = 0.01,
    linkage: Linkage = "average",
) -> Records:
    """Group images that show the same identity, by `cls` distance.

    Args:
        gallery: up to date.
        threshold: largest distance within an identity; default: by the model's calibration at `false_accept_rate`.
        false_accept_rate: share of pairs of two identities below the threshold. In a large set most pairs are of two
            identities: choose a low rate.
        linkage: see `cluster`.

    Returns:
        A row for each image, large groups first; `center` marks the image nearest to all others of its group, and
        `distance` is the distance from it.

    Raises:
        ValueError, CalibrationError: without `threshold`, see `calibrated_threshold`.
        GalleryError: as `Gallery.query`. ImportError: without SciPy.
    """
    limit = calibrated_threshold(gallery, false_accept_rate) if threshold is None else threshold
    table = gallery.table()
    items, vectors = by_key(gallery.items), table.vectors
    labels = cluster(vectors, limit, linkage)
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(row)
    members = [[(row, item) for row in rows for item in items[table.keys[row]]] for rows in groups.values()]
    members.sort(key=lambda group: (-len(group), group[0][1].place))
    found: list[Record] = []
    for number, group in enumerate(members, 1):
        rows = np.array([row for row, _ in group])
        center = _center(vectors[rows])
        far = distances(np.broadcast_to(vectors[rows[center]], vectors[rows].shape), vectors[rows])
        for k, (_, item) in enumerate(group):
            found.append({"group": number, "size": len(group), "center": k == center, "distance": float(far[k]),
                          "image": item.place, "name": item.name, "identity": item.identity, "width": item.width,
                          "height": item.height})  # fmt: skip
    return Records(found, IDENTITIES)


def calibrated_threshold(gallery: Gallery, false_accept_rate: float) -> float:
    """Return the threshold at a false-accept rate, by the calibration of the gallery's model.

    Raises:
        ValueError: without a calibration, or a threshold at that rate. CalibrationError: if the calibration is for
            another distance or way of masking.
    """
    found = gallery.metric.calibration
    if found is None:
        raise ValueError(
            f"{gallery.metric.label} has no calibration: make one (`idmetric eval calibrate`) and give it by "
            "calibrate_with(file), or give threshold="
        )
    found.check_distance("cls")
    found.check_outside(gallery.about["outside"])
    rates = {round(float(t["false_accept_rate"]), 9): float(t["distance"]) for t in found.thresholds}
    if round(false_accept_rate, 9) not in rates:
        raise ValueError(
            f"the calibration has no threshold at a false-accept rate of {false_accept_rate}, only at "
            f"{', '.join(map(str, sorted(rates))) or 'none'}: make one, idmetric eval calibrate --rates"
        )
    found.warn()
    return rates[round(false_accept_rate, 9)]


def _center(vectors: Single) -> int:
    """Return the row nearest to the others on average, hence to their sum, as distances are linear in cosines."""
    return int((vectors.astype(np.float64) @ vectors.sum(0, dtype=np.float64)).argmax())
