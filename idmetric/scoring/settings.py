"""The settings of a run of scoring."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from idmetric.calibration.apply import Calibration
    from idmetric.images.masks import MaskId
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
