"""Identities: agglomerative clusters of a gallery's images, also of more than have room for all their distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.data.nearest import Double, Ints, Single, distances, unit
from idmetric.metric.files import need
from idmetric.metric.ties import DIGITS, STEP, comparable
from idmetric.scoring.calibration import SEARCH_RATE, STORED, calibration_of
from idmetric.scoring.scores import Limit, Record

if TYPE_CHECKING:
    from idmetric.gallery.answer import Answer
    from idmetric.gallery.contents import Contents

Linkage = Literal["average", "complete", "single"]
LARGEST = 20_000  # most images for average and complete linkage at once (3.2 GB of distances)
_CELLS = 2**22  # similarities held at once (16 MB)
_NOISE = 1e-5  # of a similarity in float32, at most
_MEASURED = 2**14  # pairs measured in float64 at once


def cluster(vectors: NDArray[np.floating], threshold: float, linkage: Linkage = "average") -> Ints:
    """Cluster vectors agglomeratively by 1 - cos, and cut at a distance.

    Args:
        vectors: (N, D).
        threshold: groups are joined while their distance is at most this.
        linkage: a group's distance to another is the mean over their pairs ("average", UPGMA), the largest
            ("complete"), or the smallest ("single": connected components, where one false link joins two groups).

    Returns:
        Labels (N,), from 0 in the order of first members.

    With any linkage, two images farther apart than `threshold` join only if a chain of nearer pairs connects them. So
    connected components are found first, a block of similarities at a time, and SciPy needs all distances only within
    each.

    Raises:
        ImportError: without SciPy.
        ValueError: for a component too large for average or complete.
    """
    need("eval", "clustering", scipy="SciPy")
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    units = unit(vectors)
    labels = _components(units, threshold)
    for rows in members(labels) if linkage != "single" else []:
        if len(rows) > LARGEST:
            raise ValueError(
                f"{len(rows)} images hang together at the threshold {threshold}, more than the {LARGEST} that "
                f"{linkage} linkage takes: lower the threshold, or linkage='single'"
            )
        if len(rows) > 2:
            pairs = squareform(_all_distances(units[rows]), checks=False)
            tree = hierarchy.linkage(pairs, linkage)
            clusters = hierarchy.fcluster(tree, comparable(threshold), "distance")
            labels[rows] = labels.max() + clusters  # which begin at 1
    return _in_order_of_first(labels)


def _in_order_of_first(labels: Ints) -> Ints:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    numbers: Ints = np.argsort(np.argsort(first))[inverse]
    return numbers


def members(labels: Ints) -> list[Ints]:
    """The rows of each label."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(order, starts)


def connected(count: int, a: Ints, b: Ints) -> Ints:
    """A label for each of `count` rows, the same where links of rows a[i] and b[i] connect them."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    links = coo_matrix((np.ones(len(a), bool), (a, b)), (count, count))
    _, label = connected_components(links, directed=False)
    component: Ints = label.astype(np.int64)
    return component


def _components(units: Single, threshold: float) -> Ints:
    """A label for each row, the same for rows that are connected by pairs at most `threshold` apart."""
    count = len(units)
    label: Ints = np.arange(count)
    step = max(1, _CELLS // max(1, count))
    for start in range(0, count, step):
        similarity = units[start : start + step] @ units[start:].T
        a, b = np.nonzero(similarity >= 1 - threshold - STEP - _NOISE)
        is_near = similarity[a, b] >= 1 - threshold + _NOISE
        a += start
        b += start
        label = _joined(label, a[is_near], b[is_near])

        # pairs that float32 cannot decide
        unsure = np.flatnonzero(~is_near)
        for begin in range(0, len(unsure), _MEASURED):
            pairs = unsure[begin : begin + _MEASURED]
            pairs = pairs[label[a[pairs]] != label[b[pairs]]]
            exact = distances(units[a[pairs]], units[b[pairs]])
            near = pairs[comparable(exact) <= comparable(threshold)]
            label = _joined(label, a[near], b[near])
    return label


def _joined(label: Ints, a: Ints, b: Ints) -> Ints:
    """The labels after rows a[i] and b[i] are linked."""
    a, b = label[a], label[b]
    is_new = a != b
    if not is_new.any():
        return label
    return connected(len(label), a[is_new], b[is_new])[label]


def _all_distances(vectors: Single) -> Double:
    """1 - cos (N, N), as distances are compared; in place, as it may fill the memory."""
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    result: Double = exact @ exact.T
    np.subtract(1, result, out=result)
    np.maximum(result, 0, out=result)
    return np.round(result, DIGITS, out=result)


# The answer


def identities(gallery: Contents, *, threshold: float | Limit | None = None, linkage: Linkage = "average") -> Answer:
    """Group images that show the same identity, by `cls` distance; each content counts once.

    Args:
        gallery: up to date.
        threshold: largest distance within an identity; default: by the model's calibration at 1 % of pairs of two
            identities. In a large set most pairs are of two identities: choose a small one.
        linkage: see `cluster`.

    Returns:
        A row for each image that is neither missing nor changed, large groups first; `center` marks the image nearest
        to all others of its group, and `distance` is the distance from it. `threshold_source` says where the threshold
        comes from.

    Raises:
        CalibrationError: without `threshold` and a calibration with one.
        GalleryError: as `Gallery.query`. ImportError: without SciPy. ValueError: as `cluster`.
    """
    gallery.check()
    if threshold is None:
        calibration = calibration_of(gallery.metric, gallery.calibration or STORED, "cls", gallery.about["outside"])
        assert calibration is not None  # of one that was asked for
        threshold = calibration.threshold_at(SEARCH_RATE)
    limit = Limit.of(threshold)
    numbers, records = gallery.current()
    keys = [record["_key"] for record in records]
    _, first, content = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)  # contents in the order of their first images
    labels = np.empty(len(first), np.int64)
    labels[order] = cluster(gallery.features.unit(numbers[first[order]]), limit.distance, linkage)

    groups = sorted(members(labels[content]), key=lambda group: (-len(group), group[0]))
    rows: list[Record] = []
    for number, group in enumerate(groups, 1):
        units = gallery.features.unit(numbers[group])
        total = units.sum(0, dtype=np.float64)  # nearest to it: nearest on average, as 1 - cos is linear
        center = int((units.astype(np.float64) @ total).argmax())
        from_center = distances(np.broadcast_to(units[center], units.shape), units).tolist()
        for position, (image, distance) in enumerate(zip(group, from_center, strict=True)):
            row = {"group": number, "size": len(group), "center": position == center, "distance": distance}
            row |= {"threshold": limit.distance, "threshold_source": limit.source}
            rows.append(records[image] | row)

    single = sum(len(group) == 1 for group in groups)
    notes = [f"{len(rows)} images, {len(groups)} groups, {single} of them of one image; threshold {limit}"]
    columns = ("group", "size", "center", "distance")
    return gallery.answer("Identities", columns, rows, ("threshold", "threshold_source"), records, notes)
