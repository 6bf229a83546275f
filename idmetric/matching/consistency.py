"""Consistency without references: how alike the images of a set, or the frames of a clip, are to each other.

result = consistency(IDSim(), "clip.mp4")
result.to_pandas()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from idmetric.matching.clips import Clip
from idmetric.matching.encoders import ModelEncoder
from idmetric.matching.matching import Plan, ReadOptions, measured
from idmetric.matching.output import Output, columns
from idmetric.matching.regions import Cut, Regions
from idmetric.matching.request import MatchRequest
from idmetric.matching.result import Array, Match
from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, need
from idmetric.metric.images import ImageLike
from idmetric.metric.masks import Images
from idmetric.scoring.score import Progress
from idmetric.scoring.scores import Record, Records

COLUMNS = ("clip", "frames", "mean", "first", "previous")
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Consistency(Output):
    """Images among each other, by 1 - cos of their global features.

    Attributes:
        images: the match of the images with no subjects; it has their names and features.
        skipped, unlisted, signature: as in `Match`.
    """

    images: Match
    skipped: Mapping[str, str]
    unlisted: tuple[str, ...]
    signature: Mapping[str, str]

    @cached_property
    def rows(self) -> Records:
        """A row for each clip, and for all still images together.

        Columns: clip ("" for still images), frames (those with a region), and mean distances 1 - cos: mean (of all
        pairs), first (of each frame of a clip to its first one) and previous (to the one before). None where there
        are fewer than two frames; first and previous also of still images.
        """
        times_of_groups = dict(self.images.times_of_clips)
        stills = [time for time, clip in enumerate(self.images.table.clips) if not clip]
        if stills:
            times_of_groups[""] = stills
        rows = []
        for clip, times in times_of_groups.items():
            features = []
            for time in times:
                features += list(self.images.region_features(0, time))
            rows.append(_row(clip, np.array(features)))
        return Records(rows, COLUMNS)

    def lines(self) -> list[str]:
        """The rows."""
        return columns(self.rows, ("frames", "mean", "first", "previous", "clip"))


def _row(clip: str, features: Array) -> Record:
    """The means of a group, by the features (N, D) of its images, of unit length."""
    row: Record = dict.fromkeys(COLUMNS)
    row["clip"] = clip
    row["frames"] = len(features)
    if len(features) > 1:
        distances = 1 - features @ features.T
        distances[distances < _ROUNDING] = 0  # what rounding leaves of equal features
        of_pairs = distances[np.triu_indices(len(features), 1)]
        row["mean"] = float(of_pairs.mean())
        if clip:
            row["first"] = float(distances[0, 1:].mean())
            row["previous"] = float(np.diag(distances, 1).mean())
    return row


def consistency(
    metric: Embedder,
    images: Images | Clip | Sequence[Clip | ImageLike] | MatchRequest,
    *,
    regions: Regions = None,
    frames: int | str = 16,
    cut: Cut | None = None,
    on_error: Literal["fail", "skip"] = "fail",
    batch_size: int = 32,
    workers: int | None = None,
    cache: StrPath | None = None,
    progress: Progress | None = None,
) -> Consistency:
    """Compare images, or the frames of clips, with each other.

    Args:
        images, frames, cut, on_error, batch_size, workers, cache, progress: as in `idmetric.match`.
        regions: one of each image, where the subject is; default the whole image. An image without one is left out.

    Raises:
        RequestError: for an image with several regions; otherwise as `match`.
    """
    need("eval", "consistency", scipy="SciPy")
    request = images
    if isinstance(request, MatchRequest):
        request.refuse_others(frames, regions)
    else:
        request = MatchRequest.of(images, frames=frames, regions=regions, on_error=on_error)
    encoder = ModelEncoder(metric, "cls")
    plan = Plan((), (encoder,), (), cut or Cut(), batch_size, on_error=on_error)
    result = measured(plan, request, ReadOptions(cache, workers, progress))
    for name, image_regions in zip(result.table.times, result.table.regions, strict=True):
        if len(image_regions) > 1:
            raise RequestError(f"{name} has {len(image_regions)} regions: consistency compares one of each image")

    rules_of_subjects = ("aggregate", "missing")
    signature = {key: text for key, text in result.signature.items() if key not in rules_of_subjects}
    return Consistency(result, result.skipped, result.unlisted, signature)
