"""Metrics of pairs (`baselines.PairBaseline`) over the images of a manifest: every two images are compared once.

Every image is decoded once and held at the metric's size. The part of a metric that concerns one image alone
(`features`) is computed for a tile of images at a time, and pairs are compared tile by tile, which bounds memory for
any number of images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.data.embed import Want, items_of, take_all
from idmetric.evaluate.protocols.common.columns import Array, Ints
from idmetric.stream import ImageModel, Look, PlainModel, Reader

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]
Prepared = tuple[Tensor, Mapping[int, int]]  # pixels (N, ...) of different images, and row -> its image

_TILE_BYTES = 2**30  # of features in a tile, of which two are held
_AHEAD = 64  # images
_AT_ONCE = 2**24  # bytes of features compared in one step: they fit a processor's cache


def prepare(
    manifest: DataFrame,
    models: Mapping[str, ImageModel],
    rows: Rows | None = None,
    *,
    look: Look = Look(),
    workers: int | None = None,
    progress: Progress | None = None,
    wants: Sequence[Want] = (),
) -> tuple[dict[str, Prepared], dict[int, str]]:
    """Read rows (default all) for each metric, one after the other; images that a metric sees alike are kept once.

    If some images cannot be used, nothing is prepared: row -> reason is returned, for all of them.

    Args:
        models: name -> metric.
        progress: called with (images read, images to read), of all metrics together.
        wants: see `idmetric.data.embed.embed`.
    """
    items, problems = items_of(manifest, rows, look)
    if problems:
        return {}, problems
    prepared: dict[str, Prepared] = {}
    for metric_number, (name, model) in enumerate(models.items()):
        also = partial(take_all, wants) if wants and not metric_number else None
        pixels: dict[bytes, Tensor] = {}  # by a digest of themselves
        number_of_row: dict[int, int] = {}
        numbers: dict[bytes, int] = {}
        with closing(Reader(model, look, also=also).read_ahead(items, workers, ahead=_AHEAD)) as stream:
            for done, image in enumerate(stream, 1):
                if image.problem is not None:
                    problems |= dict.fromkeys(image.item.source, str(image.problem))
                else:
                    digest = hashlib.sha256(image.pixels.numpy().tobytes()).digest()
                    pixels.setdefault(digest, image.pixels)
                    number = numbers.setdefault(digest, len(numbers))
                    number_of_row |= dict.fromkeys(image.item.source, number)
                if progress is not None:
                    progress(metric_number * len(items) + done, len(models) * len(items))
        if problems:
            return {}, problems
        prepared[name] = torch.stack(list(pixels.values())), number_of_row
    return prepared, {}


class PairModel(PlainModel):
    """A symmetric metric of two images: features of each image alone, and similarities of features."""

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """Features of prepared images, each (B, ...)."""
        raise NotImplementedError

    def between(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Similarities (B,) of features; the batch of `a` may be 1."""
        raise NotImplementedError


class PairScorer:
    """A metric of pairs bound to images, which compares each two of them once.

    Args:
        batch_size: of images that features are computed of. max_pairs: how many pairs it may compare in all.
        progress: called with (pairs compared, pairs to compare).
    """

    def __init__(
        self,
        model: PairModel,
        images: Prepared,
        *,
        batch_size: int,
        max_pairs: int,
        progress: Progress | None = None,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.max_pairs = max_pairs
        self.progress = progress
        self.pixels, self.number_of_row = images
        self._known_pairs = np.empty(0, np.int64)  # ascending
        self._known_values = np.empty(0)

    def signature(self) -> dict[str, str]:
        """See `Scorer`."""
        return self.model.signature()

    def matrix(self, rows: Rows, columns: Rows) -> Array:
        """See `Scorer`."""
        images_of_rows = self._images(rows)[:, None]
        return self._similarities(images_of_rows, self._images(columns))

    def pairs(self, a: Rows, b: Rows) -> Array:
        """See `Scorer`."""
        return self._similarities(self._images(a), self._images(b))

    def _images(self, rows: Rows) -> Ints:
        numbers = [self.number_of_row[int(row)] for row in rows]
        return np.array(numbers, dtype=np.int64)

    def _similarities(self, a: Ints, b: Ints) -> Array:
        low = np.minimum(a, b)
        high = np.maximum(a, b)
        pairs = low * len(self.pixels) + high

        new = np.setdiff1d(pairs, self._known_pairs)
        if len(new):
            values = self._compared(new)
            before = np.searchsorted(self._known_pairs, new)
            self._known_pairs = np.insert(self._known_pairs, before, new)
            self._known_values = np.insert(self._known_values, before, values)
        number = np.searchsorted(self._known_pairs, pairs)
        return np.asarray(self._known_values[number])

    @torch.no_grad()
    def _compared(self, pairs: Ints) -> Array:
        """The similarities of pairs of images, tile by tile of their features."""
        name = self.model.signature()["model"]
        if len(self._known_pairs) + len(pairs) > self.max_pairs:
            raise ValueError(
                f"{name} compares images pair by pair, and {len(pairs):,} pairs are more than --max-pairs "
                f"(max_pairs) allows, {self.max_pairs:,}: take fewer images, leave {name} out, or allow more"
            )
        low, high = np.divmod(pairs, len(self.pixels))
        features_of_one = self._features(self.pixels[:1])
        bytes_of_image = max(1, sum(feature.nbytes for feature in features_of_one))
        size = max(1, _TILE_BYTES // bytes_of_image)  # images of a tile
        step = max(1, _AT_ONCE // bytes_of_image)

        @lru_cache(2)
        def tile(number: int) -> tuple[Tensor, ...]:
            start = number * size
            return self._features(self.pixels[start : start + size])

        # by column tile, row tile and row: parts are pairs of one image with images of one tile
        column_tiles = high // size
        order = np.lexsort((high, low, low // size, column_tiles))
        is_last = np.diff(low[order]) | np.diff(column_tiles[order])
        values = np.empty(len(pairs))
        done = 0
        for part in np.split(order, np.flatnonzero(is_last) + 1):
            row = int(low[part[0]])
            column_features = tile(int(column_tiles[part[0]]))
            row_features = [feature[row % size][None] for feature in tile(row // size)]
            for start in range(0, len(part), step):
                numbers = part[start : start + step]
                in_tile = torch.from_numpy(high[numbers] % size)
                compared_features = [feature[in_tile] for feature in column_features]
                similarities = self.model.between(row_features, compared_features)
                values[numbers] = similarities.double().cpu().numpy()
            done += len(part)
            if self.progress is not None:
                self.progress(done, len(pairs))
        if not np.isfinite(values).all():
            raise ValueError(f"{name} gave a similarity that is not finite")
        return values

    def _features(self, images: Tensor) -> tuple[Tensor, ...]:
        size = self.batch_size
        starts = range(0, len(images), size)
        parts = [self.model.features(images[start : start + size]) for start in starts]
        return tuple(map(torch.cat, zip(*parts, strict=True)))
