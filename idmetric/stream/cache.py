"""A folder of embeddings: a `Store` for each encoder and each part of images that it sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.files.output import writing
from idmetric.stream.encoders import VectorModel
from idmetric.stream.item import Look
from idmetric.stream.keys import folder_name, is_masked
from idmetric.stream.store import Store


@dataclass
class Tally:
    """How many embeddings of images were asked of caches, and how many of them were made."""

    asked: int = 0
    made: int = 0

    def __str__(self) -> str:
        return f"embedded {self.made:,} of {self.asked:,} images"


_tally: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Count what caches that are opened in the block are asked for."""
    tally = Tally()
    token = _tally.set(tally)
    try:
        yield tally
    finally:
        _tally.reset(token)


class Cache:
    """Embeddings on disk by encoder; whole images and masked ones lie apart.

    Args:
        folder: made if it does not exist.
        patches: keep patch tokens as well.
        is_needed: embeddings are read from here, so that a full disk is an error; otherwise nothing more is kept then,
            with a warning.

    Raises:
        OutputError: if the folder cannot be made, or, where it is needed, written to.
    """

    def __init__(
        self,
        folder: Path,
        encoders: Sequence[VectorModel],
        look: Look,
        *,
        patches: bool = False,
        is_needed: bool = False,
    ) -> None:
        with writing(folder):  # before anything is embedded
            folder.mkdir(parents=True, exist_ok=True)
        self.tally = _tally.get() or Tally()
        self._is_needed = is_needed
        self._is_full = False
        self._stores: list[tuple[Store, Store]] = []  # of each encoder, for whole and for masked images
        for encoder in encoders:
            of_whole = folder / folder_name(encoder.about())
            of_masked = folder / folder_name(encoder.about(look.outside, look.mask_id))
            whole_store = Store(of_whole, patches, encoder.model_id)
            masked_store = Store(of_masked, patches, encoder.model_id)
            self._stores.append((whole_store, masked_store))

    @classmethod
    def of_store(cls, store: Store) -> Cache:
        """A cache of one encoder that has whole and masked images in one store."""
        cache = cls.__new__(cls)
        cache.tally = _tally.get() or Tally()
        cache._is_needed = True
        cache._is_full = False
        cache._stores = [(store, store)]
        return cache

    def has(self, encoder: int, key: str) -> bool:
        """Whether an encoder's embedding of this content is kept; encoders are numbered."""
        return key in self._stores[encoder][is_masked(key)]

    def add(self, encoder: int, row_of_key: Mapping[str, int], embedding: Embedding) -> None:
        """Keep rows of an embedding on the CPU, by their contents."""
        for masked, store in enumerate(self._stores[encoder]):
            rows = {key: row for key, row in row_of_key.items() if is_masked(key) == masked}
            if rows:
                self._write(store.add, list(rows), embedding[list(rows.values())])

    def readable(self, encoder: int, keys: Sequence[str]) -> dict[str, Embedding]:
        """The embeddings of those contents that are kept; errors as in `embedding`."""
        embeddings: dict[str, Embedding] = {}
        for masked, store in enumerate(self._stores[encoder]):
            if store.unsaved:
                self._write(store.save)
            embeddings |= store.readable([key for key in keys if is_masked(key) == masked])
        return embeddings

    def vectors(self, encoder: int, keys: Sequence[str]) -> NDArray[np.float32]:
        """Global features (N, D) of kept contents; raises as `embedding`."""
        whole, masked = self._stores[encoder]
        rows_of_masked = [row for row, key in enumerate(keys) if is_masked(key)]
        if not rows_of_masked:
            return whole.vectors(keys)
        rows_of_whole = [row for row, key in enumerate(keys) if not is_masked(key)]
        if not rows_of_whole:
            return masked.vectors(keys)
        of_whole = whole.vectors([keys[row] for row in rows_of_whole])
        vectors = np.empty((len(keys), of_whole.shape[1]), dtype=np.float32)
        vectors[rows_of_whole] = of_whole
        vectors[rows_of_masked] = masked.vectors([keys[row] for row in rows_of_masked])
        return vectors

    def embedding(self, encoder: int, keys: Sequence[str]) -> Embedding:
        """Embeddings of kept contents, with patches if they are kept.

        Raises:
            KeyError, ShardError, OSError: as `Store.embedding`.
        """
        parts = []
        order: list[int] = []
        for masked, store in enumerate(self._stores[encoder]):
            rows = [row for row, key in enumerate(keys) if is_masked(key) == masked]
            if rows:
                parts.append(store.embedding([keys[row] for row in rows]))
                order += rows
        return concatenate(parts)[torch.tensor(order).argsort()]

    def save(self) -> None:
        """Write everything that is not in a file yet."""
        for store in self._all():
            self._write(store.save)

    def _all(self) -> list[Store]:
        stores: list[Store] = []
        for of_encoder in self._stores:
            stores += of_encoder
        return stores

    def _write(self, write: Callable[..., None], *args: Any) -> None:
        if self._is_full:
            return
        try:
            write(*args)
        except OSError as error:
            if self._is_needed:
                raise
            self._is_full = True
            for store in self._all():
                store.drop()
            warnings.warn(f"the cache is not complete ({error}); the scores are", stacklevel=2)
