"""What the pixels of an image show, and the files of a gallery that keep it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save

from idmetric.data.sharpness import blur_score
from idmetric.metric.images import small_picture
from idmetric.page import jpeg_of, reduced
from idmetric.store import write_shard

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
