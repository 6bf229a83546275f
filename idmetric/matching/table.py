"""The table of distances that everything else here is a reduction of: distance[time, subject, reference, region]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idmetric.matching.clips import Moment
from idmetric.matching.regions import Region
from idmetric.scoring.references import Aggregate

AXES = ("time", "subject", "reference", "region")
WHOLE = -1  # number of the region that is the whole image


@dataclass(frozen=True, eq=False)
class Table:
    """Distances of every region to every reference of every subject; lower = more surely the same identity.

    Attributes:
        values: (T, S, K, R), NaN where nothing was compared: subjects have different numbers of references, and images
            of regions. With gradients if the pixels had them.
        times: a name for each image or frame. subjects: their names. references: of each subject, names.
        regions: of each time.
        clips: the clip that each time belongs to; "" for a still image.
        seconds: of each frame since its clip's first; NaN for a still image.
        frames: of each frame its number in its clip, from 0; -1 for a still image.
    """

    values: Tensor
    times: tuple[str, ...]
    subjects: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    regions: tuple[tuple[Region, ...], ...]
    clips: tuple[str, ...]
    seconds: tuple[float, ...]
    frames: tuple[int, ...]

    axes = AXES

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.values.detach().cpu().numpy(), dtype=dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the four axes."""
        return tuple(self.values.shape)

    def over_references(self, aggregate: Aggregate = "best") -> Tensor:
        """Distances (T, S, R): to the nearest reference of a subject, or the mean over its references.

        NaN where nothing was compared.
        """
        if aggregate == "mean":
            return self.values.nanmean(2)
        is_compared = ~self.values.isnan()
        candidates = torch.where(is_compared, self.values, torch.inf)
        nearest = candidates.amin(2)
        return torch.where(is_compared.any(2), nearest, torch.nan)

    @property
    def moments(self) -> list[Moment]:
        """Name, clip, seconds and frame of each time."""
        return [Moment(*moment) for moment in zip(self.times, self.clips, self.seconds, self.frames, strict=True)]

    def at(self, time: int) -> NDArray[np.float64]:
        """The distances (S, K, R) of one image, without the columns of regions that it does not have."""
        values = self.values[time, :, :, : len(self.regions[time])]
        return values.detach().cpu().double().numpy()
