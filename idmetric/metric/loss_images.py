"""The pictures that `IdentityLoss.log_images` logs: images of a batch next to their nearest references."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from idmetric.metric.images.arrays import image_of_pixels
from idmetric.metric.images.kinds import is_tensor
from idmetric.metric.images.read import to_image

_SIDE = 256  # of each of the two pictures
_LINE = 16  # pixels of the line of text below them
_ONE_AT_A_TIME = ("aim", "clearml")  # accelerate's trackers that take no list of images

Thumbnail = NDArray[np.uint8]


class LoggedPair(NamedTuple):
    """An image and its nearest reference, side by side over the loss, as one picture.

    Attributes:
        row: the number of the image in the batch.
    """

    picture: Image.Image
    loss: float
    row: int


def thumbnail_of(picture: Any) -> Thumbnail:
    """A small copy of a decoded picture (H, W, 3), or of float pixels, at most 256 pixels a side."""
    if is_tensor(picture) and picture.ndim > 1:  # every k-th pixel: cheap, and still twice the thumbnail's side
        step = max(1, max(picture.shape[-2:]) // (2 * _SIDE))
        picture = picture[..., ::step, ::step]
    return np.array(to_image(picture, _thumbnail_size))


def _thumbnail_size(height: int, width: int) -> tuple[int, int]:
    """The size of an image in the square of a picture, never larger than the image."""
    scale = min(1, _SIDE / max(height, width))
    return max(1, round(scale * height)), max(1, round(scale * width))


def logged(
    writer: Any,
    pixels: Tensor,
    losses: Sequence[float],
    nearest: Sequence[int],
    references: Sequence[Thumbnail | None],
    step: int,
    count: int,
    name: str,
) -> list[LoggedPair]:
    """Make the pairs of the images with the largest losses, and log them; see `IdentityLoss.log_images`.

    Args:
        pixels: (B, 3, H, W) in [0, 1]. losses, nearest: of each image; nearest is the number of its reference.
    """
    order = np.argsort(-np.array(losses), kind="stable").tolist()
    pairs = []
    for row in order[:count]:
        image = image_of_pixels(pixels[row].float())
        thumbnail = references[nearest[row]]
        reference = None if thumbnail is None else Image.fromarray(thumbnail)
        picture = _side_by_side(image, reference, f"{losses[row]:.4f}")
        pairs.append(LoggedPair(picture, losses[row], row))
    if writer is not None and pairs:
        _log(writer, pairs, step, name)
    return pairs


def _side_by_side(image: Image.Image, reference: Image.Image | None, text: str) -> Image.Image:
    """Two pictures on squares, and a line of text below."""
    canvas = Image.new("RGB", (2 * _SIDE, _SIDE + _LINE), "white")
    for column, picture in enumerate((image, reference)):
        if picture is None:
            continue
        scale = _SIDE / max(picture.size)
        size = max(1, round(scale * picture.width)), max(1, round(scale * picture.height))
        left = column * _SIDE + (_SIDE - size[0]) // 2
        canvas.paste(picture.resize(size), (left, (_SIDE - size[1]) // 2))
    ImageDraw.Draw(canvas).text((4, _SIDE + 2), f"distance {text}; right: nearest reference", fill="black")
    return canvas


def _log(writer: Any, pairs: Sequence[LoggedPair], step: int, name: str) -> None:
    """Give pairs to a writer, or to those trackers of an Accelerator that take images.

    Raises:
        TypeError: for a writer of an unknown kind.
    """
    if not hasattr(writer, "trackers"):
        if not _written(writer, pairs, step, name):
            raise TypeError(
                f"cannot log images to {type(writer).__name__}: give a SummaryWriter, a run of wandb, an Accelerator, "
                "or a function of (pairs, step)"
            )
        return
    skipped = [type(tracker).__name__ for tracker in writer.trackers if not _written(tracker, pairs, step, name)]
    if skipped:
        warnings.warn(
            f"these trackers take no images and are skipped: {', '.join(skipped)}; log_images(None, ...) returns the "
            "pictures for them",
            stacklevel=4,
        )


def _written(writer: Any, pairs: Sequence[LoggedPair], step: int, name: str) -> bool:
    """Give pairs to a writer by the interface that it has; False if it takes no images."""
    board: Any = writer if hasattr(writer, "add_images") else getattr(writer, "writer", None)  # of accelerate's tracker
    if hasattr(board, "add_images"):  # TensorBoard's
        pictures = np.stack([np.asarray(pair.picture) for pair in pairs])
        board.add_images(name, pictures, step, dataformats="NHWC")
    elif hasattr(writer, "log_images") and getattr(writer, "name", "") in _ONE_AT_A_TIME:
        for number, pair in enumerate(pairs):
            writer.log_images({f"{name}/{number}": pair.picture}, step=step)
    elif hasattr(writer, "log_images"):  # another of accelerate's trackers
        writer.log_images({name: [pair.picture for pair in pairs]}, step=step)
    elif _is_of_wandb(writer):
        wandb = sys.modules["wandb"]
        pictures_of_run = [wandb.Image(pair.picture, caption=f"distance {pair.loss:.4f}") for pair in pairs]
        writer.log({name: pictures_of_run}, step=step)
    elif callable(writer):
        writer(pairs, step)
    else:
        return False
    return True


def _is_of_wandb(writer: Any) -> bool:
    """Whether this is a run of Weights & Biases, or its module."""
    if "wandb" not in sys.modules or not hasattr(writer, "log"):
        return False
    return writer is sys.modules["wandb"] or type(writer).__module__.split(".")[0] == "wandb"
