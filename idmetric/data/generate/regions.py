"""Connected regions of a mask."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def regions(mask: NDArray[np.bool_], diagonal: bool = False) -> NDArray[np.int64]:
    """Label of each pixel's connected region, (H, W): 0, 1, ... in reading order of first pixels, -1 outside the mask.

    Args:
        mask: (H, W).
        diagonal: whether corners connect (8 neighbours instead of 4).
    """
    number = np.full(mask.shape, -1, dtype=np.int64)
    count = int(mask.sum())
    number[mask] = np.arange(count)
    steps = [(0, 1), (1, 0)] + ([(1, 1), (1, -1)] if diagonal else [])
    pairs = []
    for down, right in steps:
        here = number[: len(number) - down, max(0, -right) : mask.shape[1] - max(0, right)]
        there = number[down:, max(0, right) : mask.shape[1] + min(0, right)]
        both = (here >= 0) & (there >= 0)
        pairs.append(np.stack([here[both], there[both]]))
    a, b = np.concatenate(pairs, axis=1)
    root = np.arange(count)
    while len(a):  # hang the larger root below the smaller one, then shorten all paths
        low, high = np.minimum(root[a], root[b]), np.maximum(root[a], root[b])
        np.minimum.at(root, high, low)
        while True:
            shorter = root[root]
            if (shorter == root).all():
                break
            root = shorter
        apart = root[a] != root[b]
        a, b = a[apart], b[apart]
    number[mask] = np.unique(root, return_inverse=True)[1]
    return number
