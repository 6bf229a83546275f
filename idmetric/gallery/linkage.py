"""Agglomerative clusters of vectors by 1 - cos, also of more vectors than have room for all their distances."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.distance.ties import STEP, comparable
from idmetric.metric.files.hints import need
from idmetric.metric.scoring.nearest import Ints, Single, distances

Linkage = Literal["average", "complete", "single"]
LARGEST = 20_000  # most images for average and complete linkage at once (3.2 GB of distances)
_CELLS = 2**24  # similarities held at once (64 MB)


def cluster(
    vectors: NDArray[np.floating],
    threshold: float,
    linkage: Linkage = "average",
) -> Ints:
    """Cluster vectors agglomeratively by 1 - cos, and cut at a distance.

    Args:
        vectors: unit vectors (N, D).
        threshold: groups are joined while their distance is at most this.
        linkage: a group's distance to another is the mean over their pairs ("average", UPGMA), the largest
            ("complete"), or the smallest ("single": connected components, where one false link joins two groups).

    Returns:
        Labels (N,), from 0 in the order of first members.

    With any linkage, two images farther apart than `threshold` join only if a chain of nearer pairs connects them. So
    connected components are found first, a block of distances at a time, and SciPy needs all distances only within
    each.

    Raises:
        ImportError: without SciPy.
        ValueError: for another linkage, a threshold below 0, or a component too large for average or complete.
    """
    if linkage not in ("average", "complete", "single") or not threshold >= 0:
        raise ValueError(
            f"linkage is average, complete or single, a threshold at least 0; got {linkage!r}, {threshold}"
        )
    need("gallery", "clustering", scipy="SciPy")
    from scipy.cluster import hierarchy

    table = np.ascontiguousarray(vectors, np.float32)
    component = _components(table, threshold)
    labels = component.copy()
    for rows in members(component) if linkage != "single" else []:
        if len(rows) > LARGEST:
            raise ValueError(
                f"{len(rows)} images hang together at the threshold {threshold}, more than the {LARGEST} that "
                f"{linkage} linkage takes: lower the threshold, or linkage='single'"
            )
        if len(rows) > 2:
            tree = hierarchy.linkage(_distances(table[rows]), linkage)
            clusters = hierarchy.fcluster(tree, comparable(threshold), "distance")
            for label in np.unique(clusters):
                joined = rows[clusters == label]
                labels[joined] = len(table) + joined.min()
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)]


def members(labels: Ints) -> list[Ints]:
    """Return the rows of each label."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(order, starts)


def _components(table: Single, threshold: float) -> Ints:
    """Return the first row of each row's component, where pairs at most `threshold` apart are connected."""
    count = len(table)
    slack = STEP + table.shape[1] * 2.0**-23  # float32 may be off by this much
    label = np.arange(count)
    step = max(1, _CELLS // max(1, count))
    for start in range(0, count, step):
        similarity = table[start : start + step] @ table[start:].T
        a, b = np.nonzero(similarity >= 1 - threshold - slack)
        is_near = similarity[a, b] >= 1 - threshold + slack
        a, b = a + start, b + start
        apart = label[a] != label[b]
        a, b, is_near = a[apart], b[apart], is_near[apart]
        for begin in range(0, len(a), 2**16):
            part = slice(begin, begin + 2**16)
            label = _joined(label, table, threshold, a[part], b[part], is_near[part])
    return label


def _joined(
    label: Ints,
    table: Single,
    threshold: float,
    a: Ints,
    b: Ints,
    is_near: NDArray[np.bool_],
) -> Ints:
    """Return the labels of components (their first rows) after pairs of rows a and b are connected, if they are near.

    Pairs that are not near for sure are measured.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    unsure = np.flatnonzero(~is_near)
    measured = distances(table[a[unsure]], table[b[unsure]])
    is_near[unsure] = comparable(measured) <= comparable(threshold)
    a, b = label[a[is_near]], label[b[is_near]]

    count = len(label)
    graph = coo_matrix((np.ones(len(a), bool), (a, b)), (count, count))
    _, component_of = connected_components(graph, directed=False)
    component: Ints = component_of[label]
    first_rows = np.full(count, count)
    np.minimum.at(first_rows, component, np.arange(count))
    return first_rows[component]


def _distances(vectors: Single) -> NDArray[np.float64]:
    """Return 1 - cos of each pair of unit vectors, in float64, in the order of SciPy's `pdist`."""
    from scipy.spatial.distance import squareform

    x = vectors.astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    pairs: NDArray[np.float64] = squareform(1 - x @ x.T, checks=False)
    return comparable(np.maximum(pairs, 0))
