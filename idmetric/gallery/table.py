"""The vectors of a gallery in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from idmetric.data.nearest import Double, Ints, Single, nearest

NEIGHBORS = 12  # nearest images that pages show


@dataclass
class VectorTable:
    """Unit vectors (N, D) of different images, and their keys."""

    keys: list[str]
    vectors: Single
    _near: tuple[Ints, Double] | None = None

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each key's row."""
        return {key: row for row, key in enumerate(self.keys)}

    def near(self, k: int) -> tuple[Ints, Double]:
        """Rows of the k nearest vectors of each, itself among them, and their distances; found once."""
        k = min(k, len(self.keys))
        if self._near is None or self._near[0].shape[1] < k:
            count = max(k, NEIGHBORS + 1)
            self._near = nearest(self.vectors, self.vectors, count)
        rows, distances = self._near
        return rows[:, :k], distances[:, :k]

    def rows_of(self, keys: Iterable[str]) -> Single:
        """The vectors of keys, in their order."""
        return self.vectors[[self.number[key] for key in keys]]
