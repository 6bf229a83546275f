"""The embeddings of a store as a table to search in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from idmetric.store.nearest import Ints, Single, unit
from idmetric.store.store import Store

_HELD = 2**30  # bytes of vectors that a table keeps in memory; a larger one is read from its files in each search


class StoredTable:
    """Unit vectors of a store, in the order of `keys`; a `nearest.Table`."""

    def __init__(self, store: Store, keys: Sequence[str]) -> None:
        self.store, self.keys = store, list(keys)
        self._kept: Single | None = None
        self._flat: Any  # FAISS's index, once `nearest` has made it

    def __len__(self) -> int:
        return len(self.keys)

    def blocks(self) -> Iterator[tuple[Ints, Single]]:
        """See `nearest.Table`."""
        if self._kept is not None:
            yield np.arange(len(self.keys)), self._kept
            return
        kept: Single | None = None
        for at, block in self.store.blocks(self.keys):
            vectors = unit(block)
            if kept is None and len(self.keys) * vectors[0].nbytes <= _HELD:
                kept = np.empty((len(self.keys), vectors.shape[1]), np.float32)
            if kept is not None:
                kept[at] = vectors
            yield np.array(at), vectors
        self._kept = kept

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each key's row."""
        return {key: k for k, key in enumerate(self.keys)}

    def rows_of(self, keys: Iterable[str]) -> Single:
        """The vectors of keys, in their order."""
        return self.rows(np.array([self.number[key] for key in keys], np.int64))

    def rows(self, numbers: Ints) -> Single:
        """See `nearest.Table`."""
        if self._kept is not None:
            return self._kept[numbers]
        return unit(self.store.vectors([self.keys[k] for k in numbers]))
