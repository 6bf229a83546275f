"""Features of images in tiles, for metrics that compare pairs of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idmetric.protocols.common.arrays import Array, Ints

Features = tuple[Tensor, ...]  # each (B, ...)

_TILE, _TILE_BYTES = 64, 2**27  # images, and bytes of their features, in a tile
_TILES_BYTES = 2**29  # of features in memory, though never less than two tiles
_AT_ONCE = 2**24  # bytes of features compared in one step: they fit a processor's cache


class Tiles:
    """Features of images by tiles of `size` images; the ones used last stay in memory."""

    def __init__(self, model: Any, pixels: Tensor, batch_size: int) -> None:
        self.model, self.pixels, self.batch_size = model, pixels, batch_size
        self._whole = not hasattr(model, "features")
        self._held: dict[int, Features] = {}
        self.size, self._most = _TILE, 2

    def fit(self) -> None:
        """Choose the size of tiles before the first comparison."""
        if not self._held:
            each = sum(t.numel() * t.element_size() for t in self._features(self.pixels[:1]))
            self.size = max(1, min(_TILE, _TILE_BYTES // max(1, each)))
            self._most = max(2, _TILES_BYTES // max(1, each * self.size))

    def __getitem__(self, tile: int) -> Features:
        found = self._held.pop(tile, None)
        if found is None:
            while len(self._held) >= self._most:
                del self._held[next(iter(self._held))]  # the one used longest ago
            found = self._features(self.pixels[tile * self.size : (tile + 1) * self.size])
        self._held[tile] = found
        return found

    def _features(self, images: Tensor) -> Features:
        if self._whole:
            return (images,)
        with torch.no_grad():
            parts = [
                self.model.features(images[k : k + self.batch_size]) for k in range(0, len(images), self.batch_size)
            ]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def between(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Similarities (B,) of one image to others, by their features."""
        with torch.no_grad():
            if self._whole:
                return self.model.compare(a[0].expand_as(b[0]), b[0])  # type: ignore[no-any-return]
            return self.model.between(a, b)  # type: ignore[no-any-return]

    def image(self, number: int) -> list[Tensor]:
        """Features (1, ...) of one image."""
        at = number % self.size
        return [t[at : at + 1] for t in self[number // self.size]]

    def row(self, low: int, high: Ints) -> Array:
        """Similarities of an image to images of one tile."""
        tile, one = self[int(high[0]) // self.size], self.image(low)
        at = high % self.size
        step = max(1, _AT_ONCE // max(1, sum(t[0].numel() * t.element_size() for t in tile)))
        parts = [self.between(one, [t[_places(at[k : k + step])] for t in tile]) for k in range(0, len(at), step)]
        found: Array = torch.cat(parts).double().cpu().numpy()
        return found

    def runs(self, low: Ints, high: Ints) -> Iterator[slice]:
        """Slices of consecutive pairs of one image with images of one tile."""
        if len(low):
            ends = np.flatnonzero((np.diff(low) != 0) | (np.diff(high // self.size) != 0)) + 1
            for start, stop in zip([0, *ends.tolist()], [*ends.tolist(), len(low)], strict=True):
                yield slice(start, stop)


def _places(at: Ints) -> slice | Tensor:
    """Places as an index; a slice, which copies nothing, if they are consecutive."""
    first, last = int(at[0]), int(at[-1])
    return slice(first, last + 1) if last - first + 1 == len(at) else torch.from_numpy(at)
