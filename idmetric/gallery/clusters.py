"""Group a gallery's images to clean a data set: near-duplicates, and images of one identity.

    near_duplicates(gallery).write("duplicates.csv")  # one row per image of a group, with a suggestion to keep
    identities(gallery).write("identities.csv")  # one row per image

No image is ever deleted or moved.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.gallery.index import by_key
from idmetric.gallery.linkage import Linkage as Linkage
from idmetric.gallery.linkage import cluster as cluster
from idmetric.gallery.looks import Looks
from idmetric.gallery.looks import sharpness as sharpness
from idmetric.metric.distance.ties import comparable
from idmetric.metric.images.opening import open_file
from idmetric.metric.scoring.copies import THRESHOLD, compare, take_print
from idmetric.metric.scoring.copy_warnings import small_picture
from idmetric.metric.scoring.nearest import Double, Ints, distances
from idmetric.metric.scoring.records import Record, Records

if TYPE_CHECKING:
    from idmetric.gallery import Gallery, Item

Keep = Literal["largest", "sharpest"]
Progress = Callable[[int, int], None]

DUPLICATES = ("group", "size", "keep", "reason", "image", "name", "identity", "width", "height", "bytes", "sharpness",
              "distance", "copy_agreement", "mirrored")  # fmt: skip
IDENTITIES = ("group", "size", "center", "distance", "image", "name", "identity", "width", "height")
_MOST_FRAMES = 1000
FIRST_FRAME = "first frame only"  # the reason where other frames or pages differ from the kept file's
SAME_FILE = "same file"  # the reason of a link to a kept file, or of another mask of it
_AS_SHARP = 0.8  # share of the greatest sharpness that counts as sharp


# Near-duplicates


def near_duplicates(
    gallery: Gallery,
    *,
    neighbors: int = 10,
    max_distance: float | None = None,
    keep: Keep = "largest",
    progress: Progress | None = None,
) -> Records:
    """Find groups of images that repeat each other's pixels.

    Two images are linked if they have the same bytes, or if one is a copy of the other (compressed, scaled,
    cropped, relit, mirrored; `scoring.copies`) and is among its nearest neighbors. Of linked images one is
    kept, and the images that repeat it are its group; of the rest another is kept, and so on. So a copy's copy
    that does not repeat the kept image is never suggested to go with it.

    Args:
        gallery: up to date.
        neighbors: number of nearest images that are compared with each.
        max_distance: also link images this near by `cls`, such as the pictures of a burst, with any pixels.
        keep: suggest the largest (of these, the sharpest), or the sharpest (of these, the largest). Images at least
            80 % as sharp as the sharpest count as sharp, since compression adds edges too; of these, the file with the
            most bytes.
        progress: called with (done, all) of images that are read, then of pairs that are compared. Both are kept in
            the gallery's folder, and are not done again for images that stay the same.

    Returns:
        A row for each image of a group, large groups first. `keep` is true for one image of each group; `distance`,
        `copy_agreement` and `mirrored` compare the others with it; `reason` is "kept", "same bytes", "copy" or "near".
        Copies of several frames or pages repeat all of them; else `reason` is "first frame only", and `keep` is true.
        So it is for links to a file that is kept, and other masks of it, of the reason "same file".

    Images that are missing or have changed since the last update are left out, see `Gallery.current`.

    Raises:
        GalleryError: if all images are missing, or one changes meanwhile. ValueError: for arguments out of range.
    """
    if neighbors < 1 or keep not in ("largest", "sharpest"):
        raise ValueError(f"neighbors must be at least 1 and keep largest or sharpest, got {neighbors} and {keep!r}")
    if max_distance is not None and not max_distance >= 0:
        raise ValueError(f"max_distance must be at least 0, got {max_distance}")
    if not len(gallery):
        return Records([], DUPLICATES)

    table = gallery.table()
    there = gallery.current()
    items = by_key(there)
    looks = Looks(gallery, there, progress)
    a, b, far = nearest_pairs(*table.near(neighbors + 1))
    present = np.array([key in items for key in table.keys])
    a, b, far = (x[present[a] & present[b]] for x in (a, b, far))
    alike = np.zeros(len(a), bool) if max_distance is None else comparable(far) <= comparable(max_distance)
    unlike = np.flatnonzero(~alike)
    found = looks.agreements([(table.keys[i], table.keys[j]) for i, j in zip(a[unlike], b[unlike], strict=True)])
    alike[unlike] = [agreement >= THRESHOLD for agreement, _ in found]
    linked = [[item for row in rows for item in items.get(table.keys[row], ())]
              for rows in _connected(len(table.keys), a[alike], b[alike])]  # fmt: skip
    groups = [group for some in linked for group in _groups(some, gallery, looks, keep, max_distance)]
    looks.save()
    return numbered(groups, DUPLICATES)


def numbered(groups: list[list[Record]], columns: tuple[str, ...]) -> Records:
    """The rows of groups, large groups first; a file that is kept by one path or mask is kept by all."""
    kept = {os.path.realpath(row["image"]) for group in groups for row in group if row["keep"]}
    for row in chain.from_iterable(groups):
        if not row["keep"] and os.path.realpath(row["image"]) in kept:
            row.update(keep=True, reason=SAME_FILE)

    groups.sort(key=lambda group: (-len(group), min(row["image"] for row in group)))
    rows = [{"group": n, "size": len(group), **row} for n, group in enumerate(groups, 1) for row in group]
    return Records(rows, columns)


def _groups(
    items: Sequence[Item], gallery: Gallery, looks: Looks, keep: Keep, max_distance: float | None
) -> Iterator[list[Record]]:
    """Yield the groups of linked images: rows of an image that is kept and of its repetitions."""
    rest = list(items)
    while len(rest) > 1:
        first = _kept(rest, looks.sharpness, keep)
        compared = [first, *(item for item in rest if item is not first)]
        rows = _rows(compared, gallery, looks, max_distance)
        rest = [item for item, row in zip(compared, rows, strict=True) if not row["reason"]]
        if len(rest) < len(rows) - 1:
            yield [row for row in rows if row["reason"]]


def _rows(items: Sequence[Item], gallery: Gallery, looks: Looks, max_distance: float | None) -> list[Record]:
    """Compare images with the first, which is kept; `reason` is empty where one does not repeat it."""
    first, table = items[0], gallery.table()
    vectors = table.rows_of([item.key for item in items])
    far = distances(np.broadcast_to(vectors[0], vectors.shape), vectors)
    others = list(dict.fromkeys(item.key for item in items if item.key != first.key))
    pairs = [(first.key, key) for key in others]
    copies = dict(zip(others, looks.agreements(pairs, copies_only=max_distance is None), strict=True))
    copies[first.key] = (1.0, False)

    found = []
    for item, distance in zip(items, far.tolist(), strict=True):
        agreement, mirrored = copies[item.key]
        near = max_distance is not None and comparable(distance) <= comparable(max_distance)
        repeats = agreement >= THRESHOLD or near
        if item is first or item.key == first.key:
            reason = "kept" if item is first else "same bytes"
        elif repeats and not _later_frames_agree(first, item, gallery, looks):
            reason = FIRST_FRAME
        else:
            reason = ("copy" if agreement >= THRESHOLD else "near") if repeats else ""
        found.append({
            "keep": reason in ("kept", FIRST_FRAME), "reason": reason, "image": gallery.shown(item), "name": item.name,
            "identity": item.identity, "width": item.width, "height": item.height, "bytes": item.size,
            "sharpness": looks.sharpness[item.key], "distance": distance, "copy_agreement": agreement,
            "mirrored": mirrored,
        })  # fmt: skip
    return found


def _later_frames_agree(a: Item, b: Item, gallery: Gallery, looks: Looks) -> bool:
    """Whether two files have as many frames or pages, and those after the first are copies of each other.

    Files of more than `_MOST_FRAMES` are not compared: counted as different.
    """
    if looks.animated[a.key] != looks.animated[b.key]:
        return False
    if not looks.animated[a.key]:
        return True

    def later(item: Item) -> Iterator[NDArray[np.uint8]]:
        with open_file(io.BytesIO(gallery.read(item)[0])) as image:
            for number in range(1, _MOST_FRAMES):
                try:
                    image.seek(number)
                except EOFError:  # there are no more
                    return
                yield small_picture(gallery.metric.read_image(image))
            raise ValueError("too many frames")

    try:  # plain colors have no print that agrees
        pairs = zip(later(a), later(b), strict=True)
        return all(np.array_equal(x, y) or compare(take_print(x), take_print(y)).found for x, y in pairs)
    except (ValueError, EOFError, OSError, SyntaxError):  # a damaged frame
        return False


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


def nearest_pairs(rows: Ints, far: Double) -> tuple[Ints, Ints, Double]:
    """Return pairs a < b in which one is among the other's nearest, and their distances, nearest first.

    Args:
        rows, far: the nearest of each row, perhaps itself, and their distances.
    """
    one = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)
    codes = (np.minimum(one, rows) * len(rows) + np.maximum(one, rows))[one != rows]
    code, first = np.unique(codes, return_index=True)
    found = far[one != rows][first]
    order = np.lexsort((code, comparable(found)))
    return code[order] // len(rows), code[order] % len(rows), found[order]


def _connected(count: int, a: Ints, b: Ints) -> list[list[int]]:
    """Return the connected components of rows 0 to count - 1, where rows a and b are linked."""
    label, before = np.arange(count), np.array([])
    while not np.array_equal(label, before):
        before = label.copy()
        np.minimum.at(label, a, before[b])
        np.minimum.at(label, b, before[a])
        label = label[label]
    order = np.argsort(label, kind="stable")
    return [part.tolist() for part in np.split(order, np.flatnonzero(np.diff(label[order])) + 1)]


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
        A row for each image that is neither missing nor changed, large groups first; `center` marks the image nearest
        to all others of its group, and `distance` is the distance from it.

    Raises:
        ValueError, CalibrationError: without `threshold`, see `calibrated_threshold`.
        GalleryError: as `Gallery.query`. ImportError: without SciPy.
    """
    limit = calibrated_threshold(gallery, false_accept_rate) if threshold is None else threshold
    table = gallery.table()
    items = by_key(gallery.current())
    keys = list(items)
    vectors = table.rows_of(keys)
    labels = cluster(vectors, limit, linkage)
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(row)
    members = [[(row, item) for row in rows for item in items[keys[row]]] for rows in groups.values()]
    members.sort(key=lambda group: (-len(group), group[0][1].place))
    found: list[Record] = []
    for number, group in enumerate(members, 1):
        rows = np.array([row for row, _ in group])
        total = vectors[rows].sum(0, dtype=np.float64)  # nearest to it: nearest on average, as 1 - cos is linear
        center = int((vectors[rows].astype(np.float64) @ total).argmax())
        far = distances(np.broadcast_to(vectors[rows[center]], vectors[rows].shape), vectors[rows])
        for k, (_, item) in enumerate(group):
            found.append({"group": number, "size": len(group), "center": k == center, "distance": float(far[k]),
                          "image": gallery.shown(item), "name": item.name, "identity": item.identity,
                          "width": item.width, "height": item.height})  # fmt: skip
    return Records(found, IDENTITIES)


def calibrated_threshold(gallery: Gallery, false_accept_rate: float, distance: str = "cls") -> float:
    """Return the threshold of a distance at a false-accept rate, by the calibration of the gallery's model.

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
    found.check_distance(distance)
    found.check_outside(gallery.about["outside"])
    rates = {round(float(t["false_accept_rate"]), 9): float(t["distance"]) for t in found.thresholds}
    if round(false_accept_rate, 9) not in rates:
        raise ValueError(
            f"the calibration has no threshold at a false-accept rate of {false_accept_rate}, only at "
            f"{', '.join(map(str, sorted(rates))) or 'none'}: make one, idmetric eval calibrate --rates"
        )
    found.warn()
    return rates[round(false_accept_rate, 9)]
