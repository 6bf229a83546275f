"""Metrics of pairs (SSIM, LPIPS) over the images of a manifest: every two images are compared once.

Every image is decoded once and held at the metric's size. The part of a metric that concerns one image alone
(`features`) is computed for a tile of images at a time, and pairs are compared tile by tile, which bounds memory for
any number of images. Values are stored during the run: a stopped run resumes with the remaining pairs.
"""

from __future__ import annotations

import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from idmetric.data.embed import Look, UnreadableError, content_keys
from idmetric.data.manifest.table import Manifest
from idmetric.embed.keys import MASKED
from idmetric.images.read import ImageReadError, Outside, read_image
from idmetric.io.output import replacing, writing
from idmetric.protocols.common.columns import Array, Ints


def cell_of(low: Ints, high: Ints) -> Ints:
    """The number of each unordered pair of images, in the order (0, 0), (0, 1), (1, 1), (0, 2), ..."""
    return high * (high + 1) // 2 + low


def ends_of(cells: Ints) -> tuple[Ints, Ints]:
    """The images low <= high of each cell."""
    high = ((np.sqrt(8.0 * cells + 1) - 1) / 2).astype(np.int64)
    high += (high + 1) * (high + 2) // 2 <= cells  # the root is rounded
    high -= high * (high + 1) // 2 > cells
    return cells - high * (high + 1) // 2, high


class PairStore:
    """Similarities of pairs by the contents of both images; each write makes a new file.

    Args:
        folder: of one metric and one treatment of masks; created with the first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, keys: Sequence[str]) -> tuple[Ints, Array]:
        """Cells of known pairs of these images, ascending, and their similarities; warns of damaged files."""
        number = {key: k for k, key in enumerate(keys)}
        cells, values = [np.empty(0, np.int64)], [np.empty(0)]
        for path in sorted(self.folder.glob("pairs-*.safetensors")) if self.folder.is_dir() else []:
            try:
                names, ends, found = _read(path)
            except (SafetensorError, ValueError, KeyError, OSError) as error:
                warnings.warn(f"{path} cannot be read and its pairs are compared again: {error}", stacklevel=2)
                continue
            here = np.array([number.get(name, -1) for name in names], dtype=np.int64)[ends]
            known = (here >= 0).all(0)
            cells.append(cell_of(here[:, known].min(0), here[:, known].max(0)))
            values.append(found[known])

        ordered, first = np.unique(np.concatenate(cells), return_index=True)
        return ordered, np.concatenate(values)[first]

    def add(self, keys: Sequence[str], cells: Ints, values: Array) -> None:
        """Write similarities of pairs of these images to a new file."""
        used, ends = np.unique(np.stack(ends_of(cells)), return_inverse=True)
        names = np.frombuffer(bytes.fromhex("".join(keys[k] for k in used)), np.uint8).reshape(len(used), -1)
        tensors: dict[str, NDArray[Any]] = {
            "keys": names,
            "ends": ends.reshape(2, -1).astype(np.int32),
            "values": values.astype(np.float64),
        }
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder / f"pairs-{uuid.uuid4().hex}.safetensors") as temporary:
            save_file(tensors, temporary)


def _read(path: Path) -> tuple[list[str], Ints, Array]:
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in ("keys", "ends", "values")}
    return [row.tobytes().hex() for row in tensors["keys"]], tensors["ends"], tensors["values"]


# Features in tiles


Features = tuple[Tensor, ...]  # each (B, ...)

_TILE, _TILE_BYTES = 64, 2**27  # images, and bytes of their features, in a tile
_TILES_BYTES = 2**29  # of features in memory, though never less than two tiles
_AT_ONCE = 2**24  # bytes of features compared in one step: they fit a processor's cache


class Tiles:
    """Features of images by tiles of `size` images; the ones used last stay in memory."""

    def __init__(self, model: Any, pixels: Tensor, batch_size: int) -> None:
        self.model, self.pixels, self.batch_size = model, pixels, batch_size
        self._whole = not hasattr(model, "features")
        self.size = 0

    def fit(self) -> None:
        """Choose the size of tiles before the first comparison."""
        if not self.size:
            each = sum(t.numel() * t.element_size() for t in self._features(self.pixels[:1]))
            self.size = max(1, min(_TILE, _TILE_BYTES // max(1, each)))
            most = max(2, _TILES_BYTES // max(1, each * self.size))
            self._tile = lru_cache(most)(
                lambda tile: self._features(self.pixels[tile * self.size : (tile + 1) * self.size])
            )

    def __getitem__(self, tile: int) -> Features:
        return self._tile(tile)

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
        parts = [self.between(one, [t[_index(at[k : k + step])] for t in tile]) for k in range(0, len(at), step)]
        found: Array = torch.cat(parts).double().cpu().numpy()
        return found

    def runs(self, low: Ints, high: Ints) -> Iterator[slice]:
        """Slices of consecutive pairs of one image with images of one tile."""
        if len(low):
            ends = np.flatnonzero((np.diff(low) != 0) | (np.diff(high // self.size) != 0)) + 1
            for start, stop in zip([0, *ends.tolist()], [*ends.tolist(), len(low)], strict=True):
                yield slice(start, stop)


def _index(at: Ints) -> slice | Tensor:
    """Places as an index; a slice, which copies nothing, if they are consecutive."""
    first, last = int(at[0]), int(at[-1])
    return slice(first, last + 1) if last - first + 1 == len(at) else torch.from_numpy(at)


# Pairs of a manifest


Rows = Sequence[int] | NDArray[np.integer]
Progress = Callable[[int, int], None]

MAX_PAIRS = 1_000_000  # of 1,413 images; about half an hour of SSIM on one core
_WHOLE = Look()
_HELD = 2**29  # bytes of prepared images in memory; more lie in a temporary file
_SAVE_SECONDS, _SAVE_PAIRS = 20.0, 2**18  # a killed run loses no more than this


class PairModel(Protocol):
    """A symmetric metric of two images, such as `baselines.Ssim`.

    If much of the work concerns one image alone, a metric also has `features(images)`, a tuple of tensors (B, ...) of
    prepared images, and `between(a, b) -> Tensor` (B,) of features; the batch of `a` may be 1.
    """

    def signature(self) -> dict[str, str]:
        """Everything that its similarities depend on."""

    def prepare(self, image: Image.Image, mask: Any, outside: Outside) -> Tensor:
        """The image at the size of the metric, called in threads; may raise ImageReadError."""

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Similarities (B,) of prepared images (B, ...), one by one."""


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
    models: Mapping[str, PairModel],
    rows: Rows | None = None,
    *,
    look: Look = _WHOLE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Prepared]:
    """Read rows (default all) for each metric, equal images once.

    Args:
        progress: called with (images read, images to read).

    Raises:
        UnreadableError: naming all images that cannot be used.
    """
    chosen = range(len(manifest)) if rows is None else sorted({int(row) for row in rows})
    with ThreadPoolExecutor(workers or 8) as pool:
        keys = content_keys(manifest, chosen, look, pool)
        first: dict[str, int] = {}
        for row, key in keys.items():
            first.setdefault(key, row)

        def read(row: int) -> dict[str, Tensor] | str:
            try:
                picture = read_image(manifest.source(row) or b"")
                mask = look.mask_of(manifest, row)
                return {name: model.prepare(picture, mask, look.outside) for name, model in models.items()}
            except (ImageReadError, OSError) as error:
                return str(error)

        held: dict[str, Tensor] = {}
        problems: dict[str, str] = {}
        for k, (key, found) in enumerate(zip(first, pool.map(read, first.values()), strict=True)):
            if isinstance(found, str):
                problems[key] = found
                continue
            for name, pixels in found.items():
                if name not in held:
                    held[name] = _room(len(first), pixels)
                held[name][k] = pixels
            if progress is not None:
                progress(k + 1, len(first))

    if problems:
        raise UnreadableError(manifest, {row: problems[key] for row, key in keys.items() if key in problems})
    number = {key: k for k, key in enumerate(first)}
    place = {row: number[key] for row, key in keys.items()}
    digests = [key.removesuffix(MASKED) for key in first]  # the store's folder names the rules for masks
    return {name: Prepared(pixels, digests, place) for name, pixels in held.items()}


def _room(count: int, like: Tensor) -> Tensor:
    """An uninitialized tensor (count, ...), in a temporary file if it is large."""
    size = count * like.numel() * like.element_size()
    if size <= _HELD:
        return like.new_empty((count, *like.shape))
    with tempfile.TemporaryFile(prefix="idmetric-") as file:  # the mapping keeps the file
        mapped = np.memmap(file, np.uint8, "w+", shape=(size,))
    return torch.from_numpy(mapped).view(like.dtype).view(count, *like.shape)


class PairScorer:
    """A metric of pairs bound to images.

    Args:
        max_pairs: how many pairs it may compare in all, without those in the store.
        store: folder of values. progress: called with (pairs compared, pairs to compare).
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
        self.max_pairs, self.progress = max_pairs, progress
        self.compared = 0
        self.folder: Any = None
        self._name = str(model.signature().get("model", "this metric"))
        self._tiles = Tiles(model, images.pixels, batch_size)
        self._store = None if store is None else PairStore(store)
        # known pairs: their cells in ascending order, and their similarities
        self._cells, self._values = np.empty(0, np.int64), np.empty(0)
        if self._store is not None:
            self._learn(*self._store.read(images.keys))

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
        cells = cell_of(np.minimum(a, b), np.maximum(a, b))
        wanted = np.unique(cells)
        new = np.setdiff1d(wanted, self._cells, assume_unique=True)
        if len(new):
            self._tiles.fit()
            self._check(new)
            self._compare(new)
        found: Array = self._values[np.searchsorted(self._cells, cells)]
        return found

    def _check(self, new: Ints) -> None:
        """Refuse more than `max_pairs`, with an estimate of the time."""
        if self.compared + len(new) <= self.max_pairs:
            return
        low, high = ends_of(new[:1])
        a, b = (self._tiles.image(int(k)) for k in (low[0], high[0]))
        start = time.perf_counter()
        for _ in range(3):
            self._tiles.between(a, b).cpu()
        hours = (time.perf_counter() - start) / 3 * len(new) / 3600
        raise ValueError(
            f"{self._name} compares images pair by pair: {len(new):,} pairs would take about "
            f"{f'{hours:.1f} hours' if hours >= 1 else f'{max(1, round(60 * hours))} minutes'} here, and --max-pairs "
            f"(max_pairs) allows {self.max_pairs:,}: take fewer images, leave {self._name} out, or allow more"
        )

    def _compare(self, new: Ints) -> None:
        """Compare pairs by column tile, row tile, row and column; an error or interrupt keeps the values so far."""
        found, done, kept = np.full(len(new), np.nan), 0, 0
        low, high = ends_of(new)
        order = np.lexsort((high, low, low // self._tiles.size, high // self._tiles.size))
        low, high = low[order], high[order]
        saved = time.monotonic()

        try:
            for part in self._tiles.runs(low, high):
                found[order[part]] = self._tiles.row(int(low[part.start]), high[part])
                done = part.stop
                if not np.isfinite(found[order[part]]).all():
                    done = part.start
                    raise ValueError(f"{self._name} gave a similarity that is not finite")
                if self.progress is not None:
                    self.progress(done, len(new))
                if time.monotonic() - saved > _SAVE_SECONDS or done - kept > _SAVE_PAIRS:
                    self._save(new[order[kept:done]], found[order[kept:done]])
                    kept, saved = done, time.monotonic()
        finally:
            self._save(new[order[kept:done]], found[order[kept:done]])
            finished = np.sort(order[:done])
            self._learn(new[finished], found[finished])
            self.compared += done

    def _save(self, cells: Ints, values: Array) -> None:
        if self._store is not None and len(cells):
            self._store.add(self.images.keys, cells, values)

    def _learn(self, cells: Ints, values: Array) -> None:
        """Insert new pairs, in ascending order, among the known ones."""
        at = np.searchsorted(self._cells, cells)
        self._cells, self._values = np.insert(self._cells, at, cells), np.insert(self._values, at, values)
