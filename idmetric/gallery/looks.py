"""What the pixels of a gallery's images show, kept in its folder by content: small pictures, sharpness, copies.

Files are written atomically, named by a digest of their bytes (`look_files`), and never changed.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from idmetric.gallery.look_files import (
    IMAGES_IN_FILE,
    PICTURES,
    ImageLook,
    LooksWriter,
    check_shard,
    look_of,
    looks_folder,
    shards_in,
    write_looks,
)
from idmetric.metric.files import OutputError, in_order
from idmetric.metric.images import SIZE, Named, is_animated, open_file
from idmetric.scoring.copies import compare, take_print
from idmetric.stream import threads

if TYPE_CHECKING:
    from idmetric.gallery import Gallery, GalleryItem

_PAIRS = 2**15  # in a file; a killed run loses about so many

Progress = Callable[[int, int], None]
Agreement = tuple[float, bool]  # and whether the mirrored image fits best
Pair = tuple[str, str]  # keys of two images


class Looks:
    """Small pictures and sharpness of images, which have several frames, and how far pairs of them are copies.

    Args:
        gallery: up to date. items: the images that may be asked for.
        progress: called with (done, all), of images that are read and pairs that are compared.

    Raises:
        GalleryError: for an image that has changed since the gallery was brought up to date, or cannot be read.
        ShardError: naming a damaged file.
    """

    def __init__(
        self,
        gallery: Gallery,
        items: Sequence[GalleryItem],
        progress: Progress | None = None,
    ) -> None:
        self.gallery, self.folder = gallery, looks_folder(gallery.store)
        self.progress = progress or (lambda done, count: None)
        self.sharpness: dict[str, float] = {}
        self.animated: dict[str, bool] = {}
        self._where: dict[str, tuple[Path, int]] = {}  # file and row of each picture
        self._agreements: dict[Pair, Agreement] = {}
        self._unsaved: list[Pair] = []
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        for path in shards_in(self.folder, *PICTURES):
            self._load(path)

        by_key = {item.key: item for item in items}
        missing = [item for key, item in by_key.items() if key not in self._where]
        for begin in range(0, len(missing), IMAGES_IN_FILE):
            self._read(missing[begin : begin + IMAGES_IN_FILE], begin, len(missing))

    # Files

    def _load(self, path: Path) -> None:
        """Note what a file holds."""
        check_shard(path)
        with safe_open(path, "np") as file:
            keys = file.metadata()["keys"].split()
            if path.name.startswith("pictures"):
                self.sharpness |= zip(keys, file.get_tensor("sharpness").tolist(), strict=True)
                self.animated |= zip(keys, file.get_tensor("animated").tolist(), strict=True)
                self._where |= {key: (path, row) for row, key in enumerate(keys)}
                return
            columns = [file.get_tensor(name).tolist() for name in ("a", "b", "agreement", "mirrored")]
        for a, b, agreement, mirrored in zip(*columns, strict=True):
            self._agreements[keys[a], keys[b]] = (agreement, bool(mirrored))

    def _write(
        self,
        kind: str,
        keys: Sequence[str],
        tensors: dict[str, NDArray[np.generic]],
    ) -> None:
        """Write a file, for this run alone if the gallery cannot be written."""
        try:
            path = write_looks(self.folder, kind, keys, tensors)
        except OutputError as error:
            if self._temporary is not None:
                raise
            warnings.warn(f"{error}: pictures are kept for this run alone", stacklevel=2)
            self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            self.folder = Path(self._temporary.name)
            path = write_looks(self.folder, kind, keys, tensors)
        self._load(path)

    def _by_file(self, keys: Sequence[str]) -> Iterator[tuple[Any, list[tuple[int, int]]]]:
        """Yield each open file of pictures with pairs of a position in `keys` and its row in the file."""
        rows_by_file: dict[Path, list[tuple[int, int]]] = {}
        for position, key in enumerate(keys):
            path, row = self._where[key]
            rows_by_file.setdefault(path, []).append((position, row))
        for path, rows in rows_by_file.items():
            with safe_open(path, "np") as file:
                yield file, rows

    # Images

    def _read(
        self,
        items: Sequence[GalleryItem],
        begin: int,
        count: int,
    ) -> None:
        """Read images, and write what they show."""
        self.gallery.read(items[0])  # here, not in each thread, manifests are read
        writer = LooksWriter(self._write)
        looks = in_order(self._look, items, threads=threads(None), waiting=64)
        for done, (item, (look, is_animation)) in enumerate(zip(items, looks, strict=True), begin + 1):
            writer.add(item.key, look, is_animation)
            self.progress(done, count)
        writer.save()

    def _look(self, item: GalleryItem) -> tuple[ImageLook, bool]:
        """What an image shows, and whether it has several frames."""
        data, _ = self.gallery.read(item)
        image = self.gallery.metric.read_image(Named(data, item.place))
        with open_file(io.BytesIO(data)) as file:
            is_animation = is_animated(file)
        return look_of(image), is_animation

    def _pictures(self, keys: Sequence[str]) -> NDArray[np.uint8]:
        pictures = np.empty((len(keys), SIZE, SIZE, 3), np.uint8)
        for file, rows in self._by_file(keys):
            stored = file.get_slice("pictures")
            for position, row in rows:
                pictures[position] = stored[row : row + 1][0]
        return pictures

    def thumbs(self, keys: Sequence[str]) -> list[bytes]:
        """Pictures of about 192 pixels a side, as JPEG."""
        thumbs = [b""] * len(keys)
        for file, rows in self._by_file(keys):
            stored = np.split(file.get_tensor("thumbs"), file.get_tensor("ends"))
            for position, row in rows:
                thumbs[position] = stored[row].tobytes()
        return thumbs

    # Pairs

    def agreements(self, pairs: Sequence[Pair]) -> list[Agreement]:
        """How far images are copies of each other, by `scoring.copies`; pairs are keys of images, in either order."""
        wanted = [(min(pair), max(pair)) for pair in pairs]
        missing = sorted(set(wanted) - self._agreements.keys())
        for begin in range(0, len(missing), _PAIRS):
            part = missing[begin : begin + _PAIRS]
            keys = list(dict.fromkeys(chain.from_iterable(part)))
            prints = dict(zip(keys, map(take_print, self._pictures(keys)), strict=True))
            for count, (a, b) in enumerate(part, 1):
                copy = compare(prints[a], prints[b])
                self._agreements[a, b] = (copy.agreement, copy.mirrored)
                self.progress(begin + count, len(missing))
            self._unsaved += part
            if len(self._unsaved) >= _PAIRS:
                self.save()
        return [self._agreements[pair] for pair in wanted]

    def save(self) -> None:
        """Write the pairs that are in no file yet."""
        if not self._unsaved:
            return
        pairs, self._unsaved = self._unsaved, []
        keys, a, b = _numbered(pairs)
        agreement, mirrored = np.array([self._agreements[pair] for pair in pairs]).T
        tensors = {"a": a, "b": b, "agreement": agreement.copy(), "mirrored": mirrored.astype(np.uint8)}
        self._write("pairs", keys, tensors)


def _numbered(pairs: Sequence[Pair]) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """The keys of pairs, each once, and both sides of the pairs as positions among them."""
    keys = list(dict.fromkeys(chain.from_iterable(pairs)))
    number = {key: position for position, key in enumerate(keys)}
    rows = np.array([(number[a], number[b]) for a, b in pairs])
    return keys, rows[:, 0].copy(), rows[:, 1].copy()
