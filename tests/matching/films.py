"""Clips with known answers: badges on a background that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
from PIL import Image

from idmetric.data.painter import Badge, Context, draw
from tests.matching.scenes import SIDE

LEFT = (30, 30, 30 + SIDE, 30 + SIDE)
RIGHT = (178, 30, 178 + SIDE, 30 + SIDE)
BOXES = [LEFT, RIGHT]
SIZE = (320, 176)


def background(seed: int = 0) -> Image.Image:
    """Smooth colors."""
    colors = np.random.default_rng(seed).integers(60, 200, (3, 5, 3)).astype(np.uint8)
    return Image.fromarray(colors).resize(SIZE, Image.Resampling.BICUBIC)


def frame(badges: Sequence[Badge | None], turn: float = 0.0, seed: int = 0) -> Image.Image:
    """A frame with a badge in the left and in the right box, turned by so many degrees; None leaves a box empty."""
    picture = background(seed)
    for badge, box in zip(badges, BOXES, strict=True):
        if badge is not None:
            painted, mask, _ = draw(badge, Context(0.5, 0.5, 0.4, turn, 0), SIDE)
            picture.paste(painted, box[:2], mask)
    return picture


def film(shown: Sequence[Sequence[Badge | None]], turns: Sequence[float] | None = None) -> list[Image.Image]:
    """A frame for each pair of badges; they turn by 3 degrees a frame."""
    angles = turns or [3.0 * number for number in range(len(shown))]
    return [frame(badges, turn) for badges, turn in zip(shown, angles, strict=True)]


def sound(path: Path) -> Path:
    """A file with sound alone."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 44100
        container.mux(stream.encode(silence))
        container.mux(stream.encode())
    return path
