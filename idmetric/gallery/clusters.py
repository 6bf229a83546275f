"""Group a gallery's images to clean a data set: near-duplicates, and images of one identity.

    near_duplicates(gallery).write("duplicates.csv")  # one row per image of a group, with a suggestion to keep
    identities(gallery).write("identities.csv")  # one row per image

No image is ever deleted or moved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np

from idmetric.data.nearest import Double, Ints, distances
from idmetric.gallery.index import by_key, row_of
from idmetric.gallery.linkage import Linkage, cluster, connected, members
from idmetric.gallery.looks import Looks
from idmetric.metric.files import need
from idmetric.metric.ties import comparable
from idmetric.scoring.copies import THRESHOLD
from idmetric.scoring.scores import Limit, Record, Records

if TYPE_CHECKING:
    from idmetric.gallery import Gallery, GalleryItem

Keep = Literal["largest", "sharpest"]
Progress = Callable[[int, int], None]

DUPLICATES = (
    "group", "size", "keep", "reason", "image", "name", "identity", "width", "height", "bytes", "sharpness", "distance",
    "copy_agreement", "mirrored",
)  # fmt: skip
LIMIT = ("threshold", "threshold_source")  # the largest distance that groups images, and where it comes from
IDENTITIES = ("group", "size", "center", "distance", "image", "name", "identity", "width", "height", *LIMIT)
FIRST_FRAME = "first frame only"  # the reason for animations and files of several pages, which are not compared whole
SAME_FILE = "same file"  # the reason of a link to a kept file, or of another mask of it
_AS_SHARP = 0.8  # share of the greatest sharpness that counts as sharp


# Near-duplicates


def near_duplicates(
    gallery: Gallery,
    *,
    neighbors: int = 10,
    max_distance: float | Limit | None = None,
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
        max_distance: also link images this near by `cls`, such as the pictures of a burst, with any pixels. It becomes
            the columns `threshold` and `threshold_source`. It has no default: a calibration's threshold would also link
            different photos of one identity.
        keep: suggest the largest (of these, the sharpest), or the sharpest (of these, the largest). Images at least
            80 % as sharp as the sharpest count as sharp, since compression adds edges too; of these, the file with the
            most bytes.
        progress: called with (done, all) of images that are read, then of pairs that are compared. Both are kept in
            the gallery's folder, and are not done again for images that stay the same.

    Returns:
        A row for each image of a group, large groups first. `keep` is true for one image of each group; `distance`,
        `copy_agreement` and `mirrored` compare the others with it; `reason` is "kept", "same bytes", "copy" or "near".
        Of files with several frames or pages only the first is compared: unless they have the same bytes, `reason` is
        "first frame only", and `keep` is true. So it is for links to a file that is kept, and other masks of it, of the
        reason "same file".

    Images that are missing or have changed since the last update are left out, see `Gallery.current`.

    Raises:
        GalleryError: if all images are missing, or one changes meanwhile. ImportError: without SciPy.
    """
    need("eval", "finding duplicates", scipy="SciPy")
    limit = None if max_distance is None else Limit.of(max_distance)
    columns = DUPLICATES if limit is None else (*DUPLICATES, *LIMIT)
    if not len(gallery):
        return Records([], columns)

    table = gallery.table()
    current = gallery.current()
    items = by_key(current)
    looks = Looks(gallery, current, progress)

    # pairs of neighbors that repeat each other, or are near enough
    a, b, distance = nearest_pairs(*table.near(neighbors + 1))
    is_current = np.array([key in items for key in table.keys])
    pairs_current = is_current[a] & is_current[b]
    a, b, distance = a[pairs_current], b[pairs_current], distance[pairs_current]
    linked = np.zeros(len(a), bool)
    if limit is not None:
        linked = comparable(distance) <= comparable(limit.distance)
    rest = np.flatnonzero(~linked)
    keys = np.array(table.keys, object)
    pairs = list(zip(keys[a[rest]], keys[b[rest]], strict=True))
    linked[rest] = [agreement >= THRESHOLD for agreement, _ in looks.agreements(pairs)]

    groups: list[list[Record]] = []
    for rows in members(connected(len(keys), a[linked], b[linked])):
        images: list[GalleryItem] = []
        for key in keys[rows]:
            images += items.get(key, ())
        groups += _groups(images, gallery, looks, keep, limit)
    looks.save()
    return Records(_numbered(groups, limit), columns)


def _numbered(groups: list[list[Record]], limit: Limit | None) -> list[Record]:
    """The rows of groups, large groups first; a file that is kept by one path or mask is kept by all."""
    all_rows = list(chain.from_iterable(groups))
    kept_files = {os.path.realpath(row["image"]) for row in all_rows if row["keep"]}
    for row in all_rows:
        if not row["keep"] and os.path.realpath(row["image"]) in kept_files:
            row.update(keep=True, reason=SAME_FILE)

    groups.sort(key=lambda group: (-len(group), min(row["image"] for row in group)))
    rows: list[Record] = []
    for number, group in enumerate(groups, 1):
        rows += [{"group": number, "size": len(group), **row} for row in group]
    return _with_limit(rows, limit)


def _with_limit(rows: list[Record], limit: Limit | None) -> list[Record]:
    """The rows with the columns `LIMIT`; without a limit as they are."""
    if limit is None:
        return rows
    return [row | {"threshold": limit.distance, "threshold_source": limit.source} for row in rows]


def _groups(
    images: list[GalleryItem], gallery: Gallery, looks: Looks, keep: Keep, limit: Limit | None
) -> Iterator[list[Record]]:
    """Yield the groups of linked images: rows of an image that is kept and of its repetitions."""
    while len(images) > 1:
        kept_image = _image_to_keep(images, looks.sharpness, keep)
        compared = [kept_image, *(image for image in images if image is not kept_image)]
        rows = _rows(compared, gallery, looks, limit)
        images = [image for image, row in zip(compared, rows, strict=True) if not row["reason"]]
        if len(images) < len(rows) - 1:
            yield [row for row in rows if row["reason"]]


def _rows(
    images: Sequence[GalleryItem],
    gallery: Gallery,
    looks: Looks,
    limit: Limit | None,
) -> list[Record]:
    """Compare images with the first, which is kept; `reason` is empty where one does not repeat it."""
    first = images[0]
    image_keys = [image.key for image in images]
    vectors = gallery.table().rows_of(image_keys)
    far = distances(np.broadcast_to(vectors[0], vectors.shape), vectors)
    keys = [key for key in dict.fromkeys(image_keys) if key != first.key]
    pairs = [(first.key, key) for key in keys]
    agreements = looks.agreements(pairs)
    copies = dict(zip(keys, agreements, strict=True))
    copies[first.key] = (1.0, False)

    rows: list[Record] = []
    for image, distance in zip(images, far.tolist(), strict=True):
        agreement, mirrored = copies[image.key]
        is_near = limit is not None and comparable(distance) <= comparable(limit.distance)
        if image is first:
            reason = "kept"
        elif image.key == first.key:
            reason = "same bytes"
        elif agreement < THRESHOLD and not is_near:
            reason = ""
        elif looks.animated[first.key] or looks.animated[image.key]:
            reason = FIRST_FRAME
        else:
            reason = "copy" if agreement >= THRESHOLD else "near"
        rows.append(
            {
                "keep": reason in ("kept", FIRST_FRAME),
                "reason": reason,
                **row_of(image, gallery.relative),
                "bytes": image.size,
                "sharpness": looks.sharpness[image.key],
                "distance": distance,
                "copy_agreement": agreement,
                "mirrored": mirrored,
            }
        )
    return rows


def _image_to_keep(
    images: Sequence[GalleryItem],
    sharpness: Mapping[str, float],
    keep: Keep,
) -> GalleryItem:
    """See `near_duplicates`."""

    area = {image: float(image.width * image.height) for image in images}
    sharp = {image: sharpness[image.key] for image in images}
    measures = [(area, 1.0), (sharp, _AS_SHARP)]
    if keep == "sharpest":
        measures.reverse()
    for measure, share in measures:
        least = share * max(measure[image] for image in images)
        images = [image for image in images if measure[image] >= least]
    return min(images, key=lambda image: (-image.size, image.place))


def nearest_pairs(neighbors: Ints, distance: Double) -> tuple[Ints, Ints, Double]:
    """Return pairs a < b in which one is among the other's nearest, and their distances, nearest first.

    Args:
        neighbors, distance: the nearest of each row, perhaps itself, and their distances.
    """
    count = len(neighbors)
    row = np.broadcast_to(np.arange(count)[:, None], neighbors.shape)
    is_pair = row != neighbors
    low = np.minimum(row, neighbors)
    high = np.maximum(row, neighbors)
    code = low * count + high

    pair, position = np.unique(code[is_pair], return_index=True)
    pair_distance = distance[is_pair][position]
    order = np.lexsort((pair, comparable(pair_distance)))
    a, b = np.divmod(pair[order], count)
    return a, b, pair_distance[order]


# Identities


def identities(
    gallery: Gallery,
    *,
    threshold: float | Limit | None = None,
    linkage: Linkage = "average",
) -> Records:
    """Group images that show the same identity, by `cls` distance.

    Args:
        gallery: up to date.
        threshold: largest distance within an identity; default: by the model's calibration, see
            `Gallery.calibrated_limit`. In a large set most pairs are of two identities: choose a small one.
        linkage: see `cluster`.

    Returns:
        A row for each image that is neither missing nor changed, large groups first; `center` marks the image nearest
        to all others of its group, and `distance` is the distance from it. `threshold_source` says where the threshold
        comes from.

    Raises:
        ValueError, CalibrationError: without `threshold`, see `Gallery.calibrated_limit`.
        GalleryError: as `Gallery.query`. ImportError: without SciPy.
    """
    limit = gallery.calibrated_limit() if threshold is None else Limit.of(threshold)
    table = gallery.table()
    items = by_key(gallery.current())
    labels = cluster(table.rows_of(items), limit.distance, linkage).tolist()
    by_label: dict[int, list[GalleryItem]] = {}
    for key, label in zip(items, labels, strict=True):
        by_label.setdefault(label, []).extend(items[key])

    rows: list[Record] = []
    groups = sorted(by_label.values(), key=lambda images: (-len(images), images[0].place))
    for number, images in enumerate(groups, 1):
        vectors = table.rows_of(image.key for image in images)
        total = vectors.sum(0, dtype=np.float64)  # nearest to it: nearest on average, as 1 - cos is linear
        closeness = vectors.astype(np.float64) @ total
        center = int(closeness.argmax())
        far = distances(np.broadcast_to(vectors[center], vectors.shape), vectors)
        for position, (image, distance) in enumerate(zip(images, far.tolist(), strict=True)):
            row = {"group": number, "size": len(images), "center": position == center, "distance": distance}
            rows.append({**row, **row_of(image, gallery.relative)})
    return Records(_with_limit(rows, limit), IDENTITIES)
