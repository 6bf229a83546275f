"""The pictures that `IdentityLoss.log_images` logs: images of a batch next to their nearest references."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.images.arrays import image_of_pixels
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.images.read import read_image, split_images
from idmetric.metric.subject import subject_among

_SIDE = 256  # of each of the two pictures
_LINE = 16  # pixels of the line of text below them


class LoggedPair(NamedTuple):
    """An image and its nearest reference, side by side over the loss, as one picture.

    Attributes:
        row: the number of the image in the batch.
    """

    picture: Image.Image
    loss: float
    row: int


def reference_pictures(references: Any, count: int) -> list[Image.Image | None]:
    """A picture of each reference; None where there is none, as of an embedding."""
    if isinstance(references, Embedding):
        return [None] * count
    subject = subject_among(references)
    if subject is not None:
        return [Image.fromarray(thumbnail) for thumbnail in subject.thumbnails]
    pictures: list[Image.Image | None] = []
    for image in split_images(references):
        picture = None
        with suppress(ImageReadError):  # a file that is gone by now
            picture = read_image(image)
        pictures.append(picture)
    return pictures


def logged(
    writer: Any,
    pixels: Tensor,
    losses: Sequence[float],
    nearest: Sequence[int],
    references: Sequence[Image.Image | None],
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
        picture = _side_by_side(image, references[nearest[row]], f"{losses[row]:.4f}")
        pairs.append(LoggedPair(picture, losses[row], row))
    if writer is not None:
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
    """Give pairs to a writer by the interface that it has."""
    if hasattr(writer, "trackers"):  # an Accelerator
        for tracker in writer.trackers:
            _log(tracker, pairs, step, name)
    elif hasattr(writer, "add_images"):  # TensorBoard's
        pictures = np.stack([np.asarray(pair.picture) for pair in pairs])
        writer.add_images(name, pictures, step, dataformats="NHWC")
    elif hasattr(writer, "writer"):  # accelerate's tracker of TensorBoard
        _log(writer.writer, pairs, step, name)
    elif hasattr(writer, "log_images"):  # another of its trackers
        writer.log_images({name: [pair.picture for pair in pairs]}, step=step)
    elif hasattr(writer, "log") and "wandb" in sys.modules:
        wandb = sys.modules["wandb"]
        pictures_of_run = [wandb.Image(pair.picture, caption=f"distance {pair.loss:.4f}") for pair in pairs]
        writer.log({name: pictures_of_run}, step=step)
    elif callable(writer):
        writer(pairs, step)
    else:
        raise TypeError(
            f"cannot log images to {type(writer).__name__}: give a SummaryWriter, a run of wandb, an Accelerator, or a "
            "function of (pairs, step)"
        )
