"""What the pixels of an image show, and the files of a gallery that keep it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save

from idmetric.data.sharpness import blur_score
from idmetric.metric.files import refuse_irregular, replacing, writing
from idmetric.metric.images import small_picture
from idmetric.page import jpeg_of, reduced

# Files of pictures, called shards: named by a digest of their bytes, which is checked before use.
#
#     path = write_shard(folder, "pairs", data)  # folder/pairs-<digest>.safetensors
#     check_shard(path)                        # ShardError if a byte has changed
#
# Files with other names in the folder are not read.

_DAMAGED = "is damaged: its bytes do not match the digest in its name; delete it, and its images are read again"
_NAME = re.compile(r"([a-z]+)-([0-9a-f]{32})\.safetensors")


class ShardError(ValueError):
    """A shard that cannot be used.

    Attributes:
        path: its file. reason: why it cannot be used, and what to do.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # the arguments, by which an exception is copied
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{os.fspath(self.path)!r} {self.reason}"


def write_shard(folder: Path, kind: str, data: bytes) -> Path:
    """Write a shard atomically and return its path; OutputError if that fails."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{_digest_of(data)}.safetensors"
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return path


def shards_in(folder: Path, *kinds: str) -> list[Path]:
    """Return the shards of some kinds in a folder, sorted by name; none if there is no folder.

    Raises:
        OSError: for a folder that cannot be listed.
    """
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [_NAME.fullmatch(name) for name in names]
    return [folder / match[0] for match in matches if match and match[1] in kinds]


def check_shard(path: Path) -> None:
    """Compare a shard's bytes with the digest in its name; an unchanged file is read once per process.

    Raises:
        ShardError: if they differ. OSError: if it cannot be read, or is a pipe or a device.
    """
    refuse_irregular(path)
    status = os.stat(path)
    _check(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(2**16)
def _check(path: Path, *stamp: int) -> None:
    match = _NAME.fullmatch(path.name)
    if match is None or match[2] != _digest_of(path.read_bytes()):
        raise ShardError(path, _DAMAGED)


def _digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# What an image shows

PICTURES = ("pictures", "pairs")  # kinds of files
IMAGES_IN_FILE = 1024  # a killed run loses about so many
_SHARPNESS_SIDE = 256  # longer side at which sharpness is measured, for any size of image
_THUMB_SIDE = 192  # about the longer side of a thumbnail


@dataclass(frozen=True)
class ImageLook:
    """What the pixels of an image show: a small picture, its sharpness, and a thumbnail as JPEG."""

    picture: NDArray[np.uint8]
    sharpness: float
    thumb: bytes


def look_of(picture: Image.Image) -> ImageLook:
    """See what an image shows."""
    # averages of blocks serve all that is smaller
    smaller = picture.reduce(max(1, max(picture.size) // (2 * _SHARPNESS_SIDE)))
    thumb = jpeg_of(reduced(smaller, _THUMB_SIDE))
    return ImageLook(small_picture(picture), sharpness(smaller), thumb)


class LooksWriter:
    """Collects looks, and writes files of them.

    Args:
        write: called with the kind of a file, the keys of its images, and its tensors.
    """

    def __init__(self, write: Callable[[str, Sequence[str], dict[str, NDArray[np.generic]]], object]) -> None:
        self._write = write
        self._looks: dict[str, tuple[ImageLook, bool]] = {}

    def add(self, key: str, look: ImageLook, is_animation: bool) -> None:
        """Add the look of an image."""
        self._looks[key] = look, is_animation
        if len(self._looks) == IMAGES_IN_FILE:
            self.save()

    def save(self) -> None:
        """Write the looks that are in no file yet."""
        if not self._looks:
            return
        looks = [look for look, _ in self._looks.values()]
        thumbs = [np.frombuffer(look.thumb, np.uint8) for look in looks]
        tensors: dict[str, NDArray[np.generic]] = {
            "pictures": np.stack([look.picture for look in looks]),
            "sharpness": np.array([look.sharpness for look in looks]),
            "animated": np.array([is_animation for _, is_animation in self._looks.values()]),
            "thumbs": np.concatenate(thumbs),
            "ends": np.cumsum(list(map(len, thumbs))),
        }
        self._write("pictures", list(self._looks), tensors)
        self._looks.clear()


def looks_folder(store: Path) -> Path:
    """The folder of looks in that of a gallery's model."""
    return store / "looks"


def write_looks(folder: Path, kind: str, keys: Sequence[str], tensors: dict[str, NDArray[np.generic]]) -> Path:
    """Write a file of looks; OutputError if that fails."""
    return write_shard(folder, kind, save(tensors, {"keys": " ".join(keys)}))


def sharpness(image: Image.Image) -> float:
    """`blur_score` over the variance of the grays, at 256 pixels; 0 for an image of a single gray.

    The division is ours: without it, a brighter copy would count as sharper.
    """
    scale = _SHARPNESS_SIDE / max(image.size)
    width, height = (max(3, round(side * scale)) for side in image.size)
    gray = image.convert("L").resize((width, height), Image.Resampling.LANCZOS)
    variance = float(np.asarray(gray).var(dtype=np.float64))
    return blur_score(gray) / variance if variance else 0.0
