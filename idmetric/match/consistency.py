"""Consistency without references: how alike the images of a set, or the frames of a clip, are to each other.

result = consistency(IDSim(), "clip.mp4")
result.to_pandas()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from idmetric.match.clips import Clip
from idmetric.match.encoders import ModelEncoder
from idmetric.match.matching import Plan, measured
from idmetric.match.named import PublishedValue
from idmetric.match.output import Output, columns
from idmetric.match.regions import Cut, Regions
from idmetric.match.result import Array, Match
from idmetric.match.tracks import Motion, reduced, steps
from idmetric.metric.files.hints import need
from idmetric.metric.images.kinds import ImageLike
from idmetric.metric.images.masks import Images
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.scoring.records import Record, Records
from idmetric.metric.scoring.scores import Progress, RequestError


@dataclass(frozen=True, eq=False)
class Consistency(Output):
    """Images among each other, by 1 - cos of their global features.

    Attributes:
        images: the match of the images with no subjects; it has their names and features.
        skipped, signature: as in `Match`.
    """

    images: Match
    skipped: Mapping[str, str]
    signature: Mapping[str, str]

    @cached_property
    def rows(self) -> Records:
        """A row for each clip, and for all still images together.

        Columns: clip ("" for still images), frames, mean (of all pairs), worst and worst_pair (the pair that differs
        most), outlier and outlier_mean (the image with the largest mean distance to all others); of clips to_first and
        to_previous as in `Match.over_time`, and stillness, flicker and cuts, see `Motion`.
        """
        groups = dict(self.images.times_of_clips)
        stills = [time for time, clip in enumerate(self.images.table.clips) if not clip]
        if stills:
            groups[""] = stills
        rows = [self._row(clip, times) for clip, times in groups.items()]
        return Records(rows, tuple(rows[0]) if rows else ("clip", "frames"))

    def _row(self, clip: str, times: Sequence[int]) -> Record:
        names: list[str] = []
        features: list[Array | None] = []
        for time in times:
            for feature in self.images.region_features(0, time):  # one, or none in an image without a region
                names.append(self.images.table.times[time])
                features.append(feature)
        row: Record = {"clip": clip, "frames": len(names)}
        row |= dict.fromkeys(("mean", "worst", "worst_pair", "outlier", "outlier_mean", "to_first", "to_previous"))
        if len(names) > 1:
            vectors = np.array(features)
            distances = 1 - vectors @ vectors.T
            left, right = np.triu_indices(len(names), 1)
            of_pairs = distances[left, right]
            worst = int(of_pairs.argmax())
            row["mean"] = float(of_pairs.mean())
            row["worst"] = float(of_pairs[worst])
            row["worst_pair"] = [names[left[worst]], names[right[worst]]]

            sums = distances.sum(1) - distances.diagonal()
            mean_to_others = sums / (len(names) - 1)
            row["outlier"] = names[int(mean_to_others.argmax())]
            row["outlier_mean"] = float(mean_to_others.max())
        if clip:
            to_first, to_previous = steps(features)
            row["to_first"], _, _ = reduced(to_first, names)
            row["to_previous"], _, _ = reduced(to_previous, names)
        differences = np.array(self.images.frame_differences)[times]
        return row | asdict(Motion.by_differences(differences))

    def published(self, name: str, form: str = "released") -> PublishedValue:
        """A published number that takes no references, such as "vbench-subject"; see `Match.published`."""
        return self.images.published(name, form)

    def contents(self) -> dict[str, Any]:
        """Nothing further."""
        return {}

    def lines(self) -> list[str]:
        """Rows, and the worst pair of each."""
        lines = columns(self.rows, ("frames", "mean", "worst", "stillness", "flicker", "cuts", "outlier", "clip"))
        for row in self.rows:
            if row["worst_pair"]:
                lines.append(f"worst pair: {' and '.join(row['worst_pair'])}")
        return lines


def consistency(
    metric: Embedder,
    images: Images | Clip | Sequence[Clip | ImageLike],
    *,
    regions: Regions = None,
    frames: int | str = 16,
    cut: Cut | None = None,
    on_error: Literal["fail", "skip"] = "fail",
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Consistency:
    """Compare images, or the frames of clips, with each other.

    Args:
        images, frames, cut, on_error, batch_size, workers, progress: as in `idmetric.match.match`.
        regions: one of each image, where the subject is; default the whole image. An image without one is left out.

    Raises:
        RequestError: for an image with several regions; otherwise as `match`.
    """
    need("match", "consistency", scipy="SciPy")
    encoder = ModelEncoder(metric, "cls", batch_size)
    plan = Plan((), (encoder,), (), cut or Cut(), batch_size, on_error=on_error)
    result, _ = measured(metric, plan, images, frames, regions, workers, progress)
    for name, image_regions in zip(result.table.times, result.table.regions, strict=True):
        if len(image_regions) > 1:
            raise RequestError(f"{name} has {len(image_regions)} regions: consistency compares one of each image")
    rules_of_subjects = ("aggregate", "missing")
    signature = {key: text for key, text in result.signature.items() if key not in rules_of_subjects}
    return Consistency(result, result.skipped, signature)
