"""The settings of a run of scoring, and the interface of its watchers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from idmetric.scoring.records import Record
from idmetric.scoring.scores import File

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.calibration.apply import Calibration
    from idmetric.distance.embedding import Embedding
    from idmetric.images.masks import MaskId, MaskLike
    from idmetric.images.read import Outside

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int], object]  # called with (images or pairs done, images or pairs in all)


@dataclass(frozen=True)
class ScoreSettings:
    """The settings of `idmetric.score`, which explains them.

    Raises:
        ValueError: for a value out of range.
    """

    distance: str = "cls"
    aggregate: Literal["best", "mean"] = "best"
    mask_dir: PathLike | None = None
    mask_id: MaskId | None = None
    outside: Outside = "black"
    on_error: Literal["fail", "skip"] = "fail"
    cache: PathLike | None = None
    calibration: Calibration | None = None
    prior: float | None = None
    copies: bool = True
    threshold: float | None = None
    batch_size: int = 32
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("aggregate", ("best", "mean")),
            ("outside", ("black", "white", "crop", "keep")),
            ("on_error", ("fail", "skip")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose {', '.join(choices)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.prior is not None and (self.calibration is None or not 0 < self.prior < 1):
            raise ValueError("prior lies between 0 and 1, and needs a calibration")
        if self.threshold is not None and math.isnan(self.threshold):
            raise ValueError("threshold must be a number")


class Watcher(Protocol):
    """Sees images, embeddings and rows as they come; `idmetric.report.album.Album` makes a page of them.

    Attributes:
        details: number of images with patch tokens; 0 = none. references: in the order in which they were read.
    """

    details: int
    references: dict[File, None]

    def add_picture(self, file: File, picture: Image.Image, mask: MaskLike | None, outside: Outside) -> None:
        """Take an image and its mask; called from several threads."""

    def tokens(self, file: File, masked: bool, embedding: Embedding) -> Any:
        """Return data of an embedded image that `add` gets with its rows, or None."""

    def add(self, row: Record, image: File, reference: File, own: Any, other: Any) -> None:
        """Take a row, and the data of its image and its reference."""
