"""The settings of a run of scoring, and the interface of its watchers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from idmetric.scoring.files import PathLike
from idmetric.scoring.records import Record
from idmetric.scoring.scores import File

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.calibration.apply import Calibration
    from idmetric.distance.embedding import Embedding
    from idmetric.images.masks import MaskId, MaskLike
    from idmetric.images.read import Outside

Progress = Callable[[int, int], object]  # called with (images or pairs done, images or pairs in all)


@dataclass(frozen=True)
class Settings:
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
    memory: float = 1.0

    def __post_init__(self) -> None:
        if self.aggregate not in ("best", "mean"):
            raise ValueError(f"unknown aggregate {self.aggregate!r}: choose best or mean")
        if self.outside not in ("black", "white", "crop", "keep"):
            raise ValueError(f"unknown outside {self.outside!r}: choose black, white, crop or keep")
        if self.on_error not in ("fail", "skip"):
            raise ValueError(f"unknown on_error {self.on_error!r}: choose fail or skip")
        if self.batch_size < 1 or (self.workers is not None and self.workers < 1) or not self.memory >= 0:
            raise ValueError("batch_size and workers must be at least 1, memory at least 0")
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
