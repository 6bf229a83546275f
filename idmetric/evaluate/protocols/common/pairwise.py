"""Metrics of pairs (`baselines.PairBaseline`) over the images of a manifest: every two images are compared once.

Every image is decoded once and held at the metric's size. The part of a metric that concerns one image alone
(`features`) is computed for a tile of images at a time, and pairs are compared tile by tile, which bounds memory for
any number of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.data.embed import ImageModel, Item, items_of, read_item
from idmetric.data.look import Look, UnreadableError
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.common.columns import Array, Ints
from idmetric.metric.scoring.pipeline import Input, batches

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]
Prepared = tuple[Tensor, Mapping[int, int]]  # pixels (N, ...) of different images, and row -> its image

_TILE_BYTES = 2**30  # of features in a tile, of which two are held
_BATCH = 32  # images read at once
_AT_ONCE = 2**24  # bytes of features compared in one step: they fit a processor's cache


def prepare(
    manifest: Manifest,
    models: Mapping[str, ImageModel],
    rows: Rows | None = None,
    *,
    look: Look = Look(),
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Prepared]:
    """Read rows (default all) for each metric, equal images once.

    Args:
        models: name -> metric.
        progress: called with (images read, images to read).

    Raises:
        UnreadableError: naming all images that cannot be used.
    """
    items, problems = items_of(manifest, rows, look)
    if problems:
        raise UnreadableError(manifest, problems)
    readers: dict[str, Item] = {}  # key of content -> the item that is prepared for all equal ones

    def read(item: Item) -> Input[Item]:
        return read_item(item, models, look, lambda name, key: readers.setdefault(key, item) is not item)

    numbers: dict[str, int] = {}  # key of content -> place among the pixels
    pixels: dict[str, list[Tensor]] = {name: [] for name in models}
    keys: dict[int, str] = {}
    broken: dict[str, str] = {}  # key of content -> why it cannot be used
    done = 0
    with closing(batches(items, read, batch_size=_BATCH, workers=workers)) as ahead:
        for batch in ahead:
            for image in batch:
                keys |= dict.fromkeys(items[image.item], image.key)
                if image.problem:
                    problems |= dict.fromkeys(items[image.item], image.problem)
                    broken[image.key] = image.problem
                if image.pixels is not None:
                    numbers[image.key] = len(numbers)
                    for name, prepared in image.pixels.items():
                        pixels[name].append(prepared)
            done += len(batch)
            if progress is not None:
                progress(done, len(items))

    for row, key in keys.items():
        if key in broken:
            problems.setdefault(row, broken[key])
    if problems:
        raise UnreadableError(manifest, dict(sorted(problems.items())))
    number_of_row = {row: numbers[key] for row, key in keys.items()}
    return {name: (torch.stack(images), number_of_row) for name, images in pixels.items()}


class PairScorer:
    """A metric of pairs bound to images.

    Args:
        max_pairs: how many pairs it may compare in all.
        progress: called with (pairs compared, pairs to compare).
    """

    def __init__(
        self,
        model: Any,
        images: Prepared,
        *,
        batch_size: int = 32,
        max_pairs: int,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.batch_size, self.max_pairs, self.progress = model, batch_size, max_pairs, progress
        self.pixels, self.place = images
        self._cells, self._values = np.empty(0, np.int64), np.empty(0)  # known pairs, ascending, and their similarities

    def signature(self) -> dict[str, str]:
        """See `Scorer`."""
        found: dict[str, str] = self.model.signature()
        return found

    def matrix(self, rows: Rows, columns: Rows) -> Array:
        """See `Scorer`."""
        return self._similarities(self._places(rows)[:, None], self._places(columns)[None, :])

    def pairs(self, a: Rows, b: Rows) -> Array:
        """See `Scorer`."""
        return self._similarities(self._places(a), self._places(b))

    def _places(self, rows: Rows) -> Ints:
        return np.array([self.place[int(row)] for row in rows], dtype=np.int64)

    def _similarities(self, a: Ints, b: Ints) -> Array:
        cells = np.minimum(a, b) * len(self.pixels) + np.maximum(a, b)
        new = np.setdiff1d(cells, self._cells)
        name = str(self.model.signature()["model"])
        if len(self._cells) + len(new) > self.max_pairs:
            raise ValueError(
                f"{name} compares images pair by pair, and {len(new):,} pairs are more than --max-pairs "
                f"(max_pairs) allows, {self.max_pairs:,}: take fewer images, leave {name} out, or allow more"
            )
        if len(new):
            values = np.empty(len(new))
            done = 0
            for at, own in self._tiled(*np.divmod(new, len(self.pixels))):
                values[at] = own
                done += len(at)
                if self.progress is not None:
                    self.progress(done, len(new))
            if not np.isfinite(values).all():
                raise ValueError(f"{name} gave a similarity that is not finite")
            at = np.searchsorted(self._cells, new)
            self._cells, self._values = np.insert(self._cells, at, new), np.insert(self._values, at, values)
        found: Array = self._values[np.searchsorted(self._cells, cells)]
        return found

    @torch.no_grad()
    def _tiled(self, low: Ints, high: Ints) -> Iterator[tuple[Ints, Array]]:
        """Places of pairs and their similarities, by column tile, row tile and row."""

        def computed(images: Tensor) -> tuple[Tensor, ...]:
            batches = (images[k : k + self.batch_size] for k in range(0, len(images), self.batch_size))
            parts = [self.model.features(batch) for batch in batches]
            return tuple(torch.cat(column) for column in zip(*parts, strict=True))

        each = sum(t.nbytes for t in computed(self.pixels[:1]))
        size, step = (max(1, most // max(1, each)) for most in (_TILE_BYTES, _AT_ONCE))
        tile = lru_cache(2)(lambda number: computed(self.pixels[number * size : (number + 1) * size]))
        order = np.lexsort((high, low, low // size, high // size))
        ends = np.flatnonzero(np.diff(low[order]) | np.diff(high[order] // size)) + 1
        for at in np.split(order, ends):  # pairs of one image with images of one tile
            row, columns = int(low[at[0]]), high[at]
            others = tile(int(columns[0]) // size)
            one = [t[row % size][None] for t in tile(row // size)]
            parts = [
                self.model.between(one, [t[torch.from_numpy(columns[k : k + step] % size)] for t in others])
                for k in range(0, len(columns), step)
            ]
            yield at, torch.cat(parts).double().cpu().numpy()
