"""Embedded images in memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from idmetric.models.embedding import Embedding
from idmetric.scoring.scores import File


class Kept(Protocol):
    """Data of a `Watcher` that is kept with an image."""

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""


@dataclass(frozen=True)
class Seen:
    """An embedded image. `small`: the picture from which copies are found. `extra`: kept for the `Watcher`."""

    embedding: Embedding
    small: NDArray[np.uint8] | None
    extra: Kept | None = None

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        e = self.embedding
        kept = (e.cls, e.patches, e.weights, self.small, self.extra)
        return sum(x.nbytes for x in kept if x is not None)


class Memory:
    """The most recently used images, up to a number of bytes; images in use or announced stay, however large."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._kept: OrderedDict[File, Seen] = OrderedDict()
        self._bytes = 0
        self._wanted: Counter[File] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def reserve(self, files: Iterable[File]) -> list[File]:
        """Announce the files to be used; returns the missing ones that have not been announced before."""
        missing = [file for file in files if file not in self._kept and not self._wanted[file]]
        self._wanted.update(files)
        return missing

    def put(self, file: File, seen: Seen) -> None:
        """Add an image that was missing."""
        self._kept[file] = seen
        self._bytes += seen.bytes

    def get(self, file: File) -> Seen | None:
        """An announced image; None if it could not be read."""
        if file in self._kept:
            self._kept.move_to_end(file)
        return self._kept.get(file)

    def release(self, files: Iterable[File]) -> None:
        """Take an announcement back, after use, and forget images that do not fit into memory."""
        self._wanted.subtract(files)
        self._wanted = +self._wanted
        spare, left = [], self._bytes
        for file, seen in self._kept.items():  # least recently used first
            if left <= self._limit:
                break
            if not self._wanted[file]:
                spare.append(file)
                left -= seen.bytes
        for file in spare:
            del self._kept[file]
        self._bytes = left
