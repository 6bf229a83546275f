"""Metrics of pairs over the images of a manifest: every two images are compared once.

A metric is a `baselines.PairBaseline` (SSIM, LPIPS, DiffSim), or has `compare(a, b)` of prepared images in place of
`features` and `between`.

Every image is decoded once and held at the metric's size. The part of a metric that concerns one image alone
(`features`) is computed for a tile of images at a time, and pairs are compared tile by tile, which bounds memory for
any number of images. Similarities are kept in one file: the same command compares only pairs that it lacks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from idmetric.data.embed import Look, UnreadableError, content_keys
from idmetric.data.manifest.table import Manifest
from idmetric.embed.keys import MASKED
from idmetric.embed.pipeline import Input, batches, threads
from idmetric.images.read import ImageReadError, read_image
from idmetric.io.output import replacing, writing
from idmetric.protocols.common.columns import Array, Ints

Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]
Features = tuple[Tensor, ...]  # each (B, ...)

MAX_PAIRS = 1_000_000  # of 1,413 images; about half an hour of SSIM on one core
_TILE_BYTES = 2**30  # of features in a tile, of which two are held
_AT_ONCE = 2**24  # bytes of features compared in one step: they fit a processor's cache
_FILE = "pairs.safetensors"


@dataclass(frozen=True)
class Prepared:
    """Images of rows, prepared for a metric.

    Attributes:
        pixels: (N, ...) of different images. keys: their contents, N hexadecimal digests. place: row -> its image.
    """

    pixels: Tensor
    keys: list[str]
    place: Mapping[int, int]


def prepare(
    manifest: Manifest,
    models: Mapping[str, Any],
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
    chosen = range(len(manifest)) if rows is None else sorted({int(row) for row in rows})
    with ThreadPoolExecutor(threads(workers)) as pool:
        keys = content_keys(manifest, chosen, look, pool)
    first: dict[str, int] = {}
    for row, key in keys.items():
        first.setdefault(key, row)

    def read(key: str) -> Input[str]:
        try:
            picture = read_image(manifest.source(first[key]) or b"")
            mask = look.mask_of(manifest, first[key])
            return Input(key, pixels={n: model.prepare(picture, mask, look.outside) for n, model in models.items()})
        except (ImageReadError, OSError) as error:
            return Input(key, problem=str(error))

    held: dict[str, list[Tensor]] = {name: [] for name in models}
    problems: dict[str, str] = {}
    done = 0
    with closing(batches(first, read, batch_size=32, workers=workers)) as ahead:
        for batch in ahead:
            for one in batch:
                for name, pixels in (one.pixels or {}).items():
                    held[name].append(pixels)
                if one.problem:
                    problems[one.item] = one.problem
            done += len(batch)
            if progress is not None:
                progress(done, len(first))

    if problems:
        raise UnreadableError(manifest, {row: problems[key] for row, key in keys.items() if key in problems})
    number = {key: k for k, key in enumerate(first)}
    place = {row: number[key] for row, key in keys.items()}
    digests = [key.removesuffix(MASKED) for key in first]  # the store's folder names the rules for masks
    return {name: Prepared(torch.stack(pixels), digests, place) for name, pixels in held.items()}


class PairScorer:
    """A metric of pairs bound to images.

    Args:
        max_pairs: how many pairs it may compare in all, without those in the store.
        store: folder of similarities. progress: called with (pairs compared, pairs to compare).
    """

    def __init__(
        self,
        model: Any,
        images: Prepared,
        *,
        batch_size: int = 32,
        max_pairs: int = MAX_PAIRS,
        store: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.images, self.batch_size = model, images, batch_size
        self.max_pairs, self.store, self.progress = max_pairs, store, progress
        self.compared = 0
        self._name = str(model.signature().get("model", "this metric"))
        self._cells, self._values = self._stored()  # of known pairs, in ascending order, and their similarities

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
        return np.array([self.images.place[int(row)] for row in rows], dtype=np.int64)

    def _similarities(self, a: Ints, b: Ints) -> Array:
        cells = np.minimum(a, b) * len(self.images.keys) + np.maximum(a, b)
        new = np.setdiff1d(cells, self._cells)
        if self.compared + len(new) > self.max_pairs:
            raise ValueError(
                f"{self._name} compares images pair by pair, and {len(new):,} pairs are more than --max-pairs "
                f"(max_pairs) allows, {self.max_pairs:,}: take fewer images, leave {self._name} out, or allow more"
            )
        if len(new):
            self._compare(new)
        found: Array = self._values[np.searchsorted(self._cells, cells)]
        return found

    def _compare(self, new: Ints) -> None:
        """Compare pairs tile by tile; an error or interrupt keeps the values so far."""
        found, done = np.full(len(new), np.nan), 0
        try:
            for at, values in self._tiled(*np.divmod(new, len(self.images.keys))):
                if not np.isfinite(values).all():
                    raise ValueError(f"{self._name} gave a similarity that is not finite")
                found[at] = values
                done += len(at)
                if self.progress is not None:
                    self.progress(done, len(new))
        finally:
            known = ~np.isnan(found)
            self.compared += done
            self._learn(new[known], found[known])

    def _tiled(self, low: Ints, high: Ints) -> Iterator[tuple[Ints, Array]]:
        """Places of pairs and their similarities, by column tile, row tile and row."""
        model, pixels = self.model, self.images.pixels
        features = getattr(model, "features", lambda images: (images,))
        between = getattr(model, "between", lambda a, b: model.compare(a[0].expand_as(b[0]), b[0]))

        def computed(images: Tensor) -> Features:
            parts = [features(images[k : k + self.batch_size]) for k in range(0, len(images), self.batch_size)]
            return tuple(torch.cat(column) for column in zip(*parts, strict=True))

        with torch.no_grad():
            each = sum(t.nbytes for t in computed(pixels[:1]))
            size, step = (max(1, most // max(1, each)) for most in (_TILE_BYTES, _AT_ONCE))
            tile = lru_cache(2)(lambda number: computed(pixels[number * size : (number + 1) * size]))
            order = np.lexsort((high, low, low // size, high // size))
            ends = np.flatnonzero(np.diff(low[order]) | np.diff(high[order] // size)) + 1
            for at in np.split(order, ends):  # pairs of one image with images of one tile
                row, columns = int(low[at[0]]), high[at]
                others = tile(int(columns[0]) // size)
                one = [t[row % size][None] for t in tile(row // size)]
                parts = [
                    between(one, [t[torch.from_numpy(columns[k : k + step] % size)] for t in others])
                    for k in range(0, len(columns), step)
                ]
                yield at, torch.cat(parts).double().cpu().numpy()

    # Similarities by the contents of both images

    def _learn(self, cells: Ints, values: Array) -> None:
        """Insert new pairs, in ascending order, among the known ones, and keep them."""
        at = np.searchsorted(self._cells, cells)
        self._cells, self._values = np.insert(self._cells, at, cells), np.insert(self._values, at, values)
        if self.store is None or not len(cells):
            return
        used, ends = np.unique(np.stack(np.divmod(cells, len(self.images.keys))), return_inverse=True)
        keys = np.frombuffer(bytes.fromhex("".join(self.images.keys[k] for k in used)), np.uint8)
        kept = {"keys": keys.reshape(len(used), -1), "ends": ends.reshape(2, -1), "values": values}
        older = self._file()
        if older:
            older["ends"] = older["ends"] + len(used)
            kept = {name: np.concatenate([kept[name], older[name]], int(name == "ends")) for name in kept}
        with writing(self.store):
            self.store.mkdir(parents=True, exist_ok=True)
        with replacing(self.store / _FILE) as temporary:
            save_file(kept, temporary)

    def _file(self) -> dict[str, NDArray[Any]]:
        """keys (K, bytes), ends (2, P) and values (P,) of the store; empty without, or if it is damaged."""
        path = None if self.store is None else self.store / _FILE
        if path is None or not path.exists():
            return {}
        try:
            found: dict[str, NDArray[Any]] = load_file(path)
            return found
        except (SafetensorError, OSError) as error:
            warnings.warn(f"{path} cannot be read and its pairs are compared again: {error}", stacklevel=2)
            return {}

    def _stored(self) -> tuple[Ints, Array]:
        found, count = self._file(), len(self.images.keys)
        if not found:
            return np.empty(0, np.int64), np.empty(0)
        number = {key: k for k, key in enumerate(self.images.keys)}
        here = np.array([number.get(key.tobytes().hex(), -1) for key in found["keys"]], np.int64)[found["ends"]]
        known = (here >= 0).all(0)
        cells, first = np.unique(here[:, known].min(0) * count + here[:, known].max(0), return_index=True)
        return cells, found["values"][known][first]
