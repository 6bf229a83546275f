"""What the pixels of a gallery's images show, kept in its folder by content: small pictures, sharpness, copies.

Files are written atomically, named by a digest of their bytes (`embed.shards`), and never changed; `Gallery.prune`
deletes them, and they are made again.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from idmetric.gallery.prune import LOOKS, PICTURES
from idmetric.metric.files.output import OutputError
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.opening import Named, is_animated, open_file
from idmetric.metric.scoring.copies import SIZE, THRESHOLD, compare_pairs
from idmetric.metric.scoring.copy_warnings import small_picture
from idmetric.metric.scoring.pipeline import threads
from idmetric.metric.scoring.shards import DamagedShardError, ShardError, check, remove, shards_in, write

if TYPE_CHECKING:
    from idmetric.gallery import Gallery, Item

_SHARPNESS_SIDE = 256  # longer side at which sharpness is measured, for any size of image
_ABOUT = ("sharpness", "animated")  # of each picture
_THUMB_SIDE = 192
_IMAGES, _PAIRS = 1024, 2**15  # in a file; a killed run loses about so many

Progress = Callable[[int, int], None]
Agreement = tuple[float, bool]  # and whether the mirrored image fits best


class Looks:
    """Small pictures and sharpness of images, which have several frames, and how far pairs of them are copies.

    Args:
        gallery: up to date. items: the images that may be asked for.
        progress: called with (done, all), of images that are read and pairs that are compared.

    Raises:
        GalleryError: for an image that has changed since the gallery was brought up to date, or cannot be read.
    """

    def __init__(self, gallery: Gallery, items: Sequence[Item], progress: Progress | None = None) -> None:
        self.gallery, self.folder = gallery, gallery.store / LOOKS
        self.progress = progress or (lambda done, count: None)
        self.sharpness: dict[str, float] = {}
        self.animated: dict[str, bool] = {}
        self._where: dict[str, tuple[Path, int]] = {}
        self._agreements: dict[tuple[str, str], Agreement] = {}
        self._unsaved: list[tuple[str, str]] = []
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        for path in shards_in(self.folder, *PICTURES):
            try:
                self._take(path)
            except DamagedShardError:  # made again
                with contextlib.suppress(OutputError):
                    remove(path, root=gallery.folder)
            except FileNotFoundError:  # another process has just removed it
                continue

        missing = list({item.key: item for item in items if item.key not in self._where}.values())
        for begin in range(0, len(missing), _IMAGES):
            self._read(missing[begin : begin + _IMAGES], begin, len(missing))

    def _take(self, path: Path) -> None:
        check(path)
        try:
            self._take_unchanged(path)
        except (SafetensorError, ValueError, TypeError, LookupError) as error:
            raise ShardError(path, f"does not hold pictures of a gallery ({error}): remove it") from error

    def _take_unchanged(self, path: Path) -> None:
        with safe_open(path, "np") as file:
            keys = file.metadata()["keys"].split()
            if path.name.startswith("pictures"):
                sharp, animated = (dict(zip(keys, file.get_tensor(name).tolist(), strict=True)) for name in _ABOUT)
                self.sharpness |= sharp
                self.animated |= animated
                self._where |= {key: (path, k) for k, key in enumerate(keys)}
                return
            a, b, agreement, mirrored = (file.get_tensor(n).tolist() for n in ("a", "b", "agreement", "mirrored"))
        for i, j, value, turned in zip(a, b, agreement, mirrored, strict=True):
            self._agreements[keys[i], keys[j]] = (value, bool(turned))

    def _write(self, kind: str, keys: Sequence[str], tensors: dict[str, NDArray[np.generic]]) -> None:
        try:
            path = write(self.folder, kind, save(tensors, {"keys": " ".join(keys)}))
        except OutputError as error:
            if self._temporary is not None:
                raise
            warnings.warn(f"{error}: pictures are kept for this run alone", stacklevel=2)
            self._temporary = tempfile.TemporaryDirectory()
            self.folder = Path(self._temporary.name)
            self._write(kind, keys, tensors)
            return
        self._take(path)

    # Images

    def _read(self, items: Sequence[Item], begin: int, count: int) -> None:
        pictures = np.empty((len(items), SIZE, SIZE, 3), np.uint8)
        about, thumbs = [], []
        self.gallery.read(items[0])  # here, not in each thread, manifests are read
        look = in_order(self._look, items, threads=threads(None), waiting=64)
        for k, (pictures[k], *some, thumb) in enumerate(look):
            about.append(some)
            thumbs.append(np.frombuffer(thumb, np.uint8))
            self.progress(begin + k + 1, count)
        sharp, animated = (np.array(values) for values in zip(*about, strict=True))
        tensors = {"pictures": pictures, "sharpness": sharp, "animated": animated, "thumbs": np.concatenate(thumbs),
                   "ends": np.cumsum([len(thumb) for thumb in thumbs])}  # fmt: skip
        self._write("pictures", [item.key for item in items], tensors)

    def _look(self, item: Item) -> tuple[NDArray[np.uint8], float, bool, bytes]:
        data = self.gallery.read(item)[0]
        image = self.gallery.metric.read_image(Named(data, item.place))
        with open_file(io.BytesIO(data)) as file:
            about = small_picture(image), sharpness(image), is_animated(file)
        image.thumbnail((_THUMB_SIDE, _THUMB_SIDE))
        thumb = io.BytesIO()
        image.save(thumb, "webp", quality=70, method=1)
        return *about, thumb.getvalue()

    def _rows(self, keys: Sequence[str]) -> Iterator[tuple[Any, list[tuple[int, int]]]]:
        """Yield each open file with the places of its keys: in `keys`, and in the file."""
        by_file: dict[Path, list[tuple[int, int]]] = {}
        for at, key in enumerate(keys):
            path, row = self._where[key]
            by_file.setdefault(path, []).append((at, row))
        for path, places in by_file.items():
            with safe_open(path, "np") as file:
                yield file, places

    def _pictures(self, keys: Sequence[str]) -> NDArray[np.uint8]:
        found = np.empty((len(keys), SIZE, SIZE, 3), np.uint8)
        for file, places in self._rows(keys):
            pictures = file.get_slice("pictures")
            for at, row in places:
                found[at] = pictures[row : row + 1][0]
        return found

    def thumbs(self, keys: Sequence[str]) -> list[bytes]:
        """Pictures of at most 192 pixels a side, as WebP."""
        found = [b""] * len(keys)
        for file, places in self._rows(keys):
            ends, thumbs = file.get_tensor("ends").tolist(), file.get_tensor("thumbs")
            for at, row in places:
                found[at] = thumbs[ends[row - 1] if row else 0 : ends[row]].tobytes()
        return found

    # Pairs

    def agreements(self, pairs: Sequence[tuple[str, str]], copies_only: bool = True) -> list[Agreement]:
        """How far images are copies of each other; see `evaluate.copies.compare_pairs`.

        Args:
            pairs: keys of two images, in either order. copies_only: agreements of other pairs may be 0.
        """
        wanted = [(min(pair), max(pair)) for pair in pairs]
        known = {
            pair: found
            for pair in wanted
            if (found := self._agreements.get(pair)) is not None and (copies_only or found[0] >= THRESHOLD)
        }
        missing = sorted(pair for pair in dict.fromkeys(wanted) if pair not in known)  # those of one image together
        for begin in range(0, len(missing), _PAIRS):
            some = missing[begin : begin + _PAIRS]
            keys, a, b = _numbered(some)

            def done(part: int, _: int, begin: int = begin) -> None:
                self.progress(begin + part, len(missing))

            agreement, mirrored = compare_pairs(self._pictures(keys), a, b, copies_only=copies_only, done=done)
            known |= dict(zip(some, zip(agreement.tolist(), mirrored.tolist(), strict=True), strict=True))
            if copies_only:
                self._agreements |= {pair: known[pair] for pair in some}
                self._unsaved += some
                if len(self._unsaved) >= _PAIRS:
                    self.save()
        return [known[pair] for pair in wanted]

    def save(self) -> None:
        """Write the pairs that are in no file yet."""
        if not self._unsaved:
            return
        some, self._unsaved = self._unsaved, []
        keys, a, b = _numbered(some)
        found = [self._agreements[pair] for pair in some]
        tensors = {"a": a, "b": b, "agreement": np.array([value for value, _ in found]),
                   "mirrored": np.array([turned for _, turned in found], np.uint8)}  # fmt: skip
        self._write("pairs", keys, tensors)


def _numbered(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """The keys of pairs, each once, and both sides of the pairs as places among them."""
    keys = list(dict.fromkeys(key for pair in pairs for key in pair))
    number = {key: k for k, key in enumerate(keys)}
    return keys, np.array([number[a] for a, _ in pairs]), np.array([number[b] for _, b in pairs])


def sharpness(image: Image.Image) -> float:
    """Variance of the Laplacian (Pech-Pacheco et al., ICPR 2000) over the variance of the grays, at 256 pixels.

    The division is ours: without it, a brighter copy would count as sharper. 0 for an image of a single gray.
    """
    scale = _SHARPNESS_SIDE / max(image.size)
    width, height = (max(3, round(side * scale)) for side in image.size)
    x = np.asarray(image.convert("L").resize((width, height), Image.Resampling.LANCZOS), np.float64) / 255
    inner = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]
    return float(inner.var() / x.var()) if x.std() > 1e-6 else 0.0
