"""Agglomerative clusters of vectors by 1 - cos, also of more vectors than have room for all their distances."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.data.nearest import Double, Ints
from idmetric.metric.files import need
from idmetric.metric.ties import STEP, comparable

Linkage = Literal["average", "complete", "single"]
LARGEST = 20_000  # most images for average and complete linkage at once (3.2 GB of distances)
_CELLS = 2**22  # distances held at once (32 MB)


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
        ValueError: for a component too large for average or complete.
    """
    need("eval", "clustering", scipy="SciPy")
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    unit = np.asarray(vectors, np.float64)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    labels = _components(unit, threshold)
    for rows in members(labels) if linkage != "single" else []:
        if len(rows) > LARGEST:
            raise ValueError(
                f"{len(rows)} images hang together at the threshold {threshold}, more than the {LARGEST} that "
                f"{linkage} linkage takes: lower the threshold, or linkage='single'"
            )
        if len(rows) > 2:
            pairs = squareform(_rounded(unit[rows] @ unit[rows].T), checks=False)
            tree = hierarchy.linkage(pairs, linkage)
            clusters = hierarchy.fcluster(tree, comparable(threshold), "distance")
            labels[rows] = labels.max() + clusters  # which begin at 1
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)]


def members(labels: Ints) -> list[Ints]:
    """Return the rows of each label."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(order, starts)


def connected(count: int, a: Ints, b: Ints) -> Ints:
    """Return a label for each of `count` rows, the same where links of rows a[i] and b[i] connect them.

    Labels are numbered from 0 in the order of first rows.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    links = coo_matrix((np.ones(len(a), bool), (a, b)), (count, count))
    _, label = connected_components(links, directed=False)
    component: Ints = label.astype(np.int64)
    return component


def _components(unit: Double, threshold: float) -> Ints:
    """Return a label for each row, the same for rows that are connected by pairs at most `threshold` apart."""
    count = len(unit)
    label: Ints = np.arange(count)
    step = max(1, _CELLS // max(1, count))
    for start in range(0, count, step):
        similarities = unit[start : start + step] @ unit[start:].T
        a, b = np.nonzero(similarities >= 1 - threshold - 2 * STEP)  # rounding all would take as long as the product
        near = _rounded(similarities[a, b]) <= comparable(threshold)
        a, b = label[a[near] + start], label[b[near] + start]
        apart = a != b
        if apart.any():
            label = connected(count, a[apart], b[apart])[label]
    return label


def _rounded(similarities: Double) -> Double:
    """Return 1 - cos, as distances are compared."""
    return comparable(np.maximum(1 - similarities, 0))
