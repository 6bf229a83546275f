"""Consistency without references: how alike the images of a set, or the frames of a clip, are to each other.

result = consistency(IDSim(), "clip.mp4")
result.to_pandas()
result.changes.to_records()  # when the clip changes its subject
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from idmetric.matching.clip_segments import (
    SUBJECT_CHANGE_COLUMNS,
    ClipSegments,
    ImageGroup,
    changing_intervals,
    clip_segments,
)
from idmetric.matching.clips import Clip, FrameInterval
from idmetric.matching.encoders import ModelEncoder
from idmetric.matching.matching import Plan, ReadOptions, measured
from idmetric.matching.orientation import Drawn
from idmetric.matching.output import Output, columns
from idmetric.matching.regions import Cut, Regions
from idmetric.matching.request import MatchRequest
from idmetric.matching.result import Match
from idmetric.matching.segments import OTHER_SUBJECT
from idmetric.matching.thresholds import calibrated_limit
from idmetric.matching.tracks import Motion, reduced, steps
from idmetric.metric.calibration.apply import Calibration
from idmetric.metric.errors import RequestError
from idmetric.metric.files.hints import need
from idmetric.metric.files.tables import four
from idmetric.metric.images.kinds import ImageLike
from idmetric.metric.images.masks import Images
from idmetric.metric.models.embedder import Embedder
from idmetric.scoring.limits import Limit
from idmetric.scoring.records import Record, Records
from idmetric.scoring.scores import PathLike, Progress


@dataclass(frozen=True, eq=False)
class Consistency(Output):
    """Images among each other, by 1 - cos of their global features.

    Attributes:
        images: the match of the images with no subjects; it has their names and features.
        timelines: what each clip shows over time.
        threshold: the largest distance of one subject. threshold_source: where it comes from.
        skipped, unlisted, signature: as in `Match`.
    """

    images: Match
    timelines: Mapping[str, ClipSegments]
    threshold: float
    threshold_source: str
    skipped: Mapping[str, str]
    unlisted: tuple[str, ...]
    signature: Mapping[str, str]

    @cached_property
    def rows(self) -> Records:
        """A row for each clip, and for all still images together.

        Columns: clip ("" for still images), frames, mean (of all pairs), worst and worst_pair (the pair that differs
        most), outlier and outlier_mean (the image with the largest mean distance to all others); of clips to_first and
        to_previous as in `Match.over_time`, first_to_last, stillness and flicker (see `Motion`), cuts with cut_seconds,
        changes (of the subject) with change_seconds, and verdict, the changes in words.
        """
        rows = [self._row(group) for group in self.groups]
        return Records(rows, tuple(rows[0]) if rows else ("clip", "frames"))

    @cached_property
    def groups(self) -> list[ImageGroup]:
        """The images that are compared with each other: the frames of each clip, and all still images."""
        times_of_groups = dict(self.images.times_of_clips)
        stills = [time for time, clip in enumerate(self.images.table.clips) if not clip]
        if stills:
            times_of_groups[""] = stills
        groups = []
        for clip, all_times in times_of_groups.items():
            times = [time for time in all_times if len(self.images.region_features(0, time))]
            features = [self.images.region_features(0, time)[0] for time in times]
            differences = np.array(self.images.frame_differences)[all_times]
            groups.append(ImageGroup(clip, times, features, Motion.by_differences(differences)))
        return groups

    def _row(self, group: ImageGroup) -> Record:
        names = [self.images.table.times[time] for time in group.times]
        row: Record = {"clip": group.clip, "frames": len(names)}
        row |= dict.fromkeys(("mean", "worst", "worst_pair", "outlier", "outlier_mean", "to_first", "to_previous"))
        if len(names) > 1:
            left, right = np.triu_indices(len(names), 1)
            of_pairs = group.distances[left, right]
            worst = int(of_pairs.argmax())
            row["mean"] = float(of_pairs.mean())
            row["worst"] = float(of_pairs[worst])
            row["worst_pair"] = [names[left[worst]], names[right[worst]]]
            row["outlier"] = names[int(group.mean_to_others.argmax())]
            row["outlier_mean"] = float(group.mean_to_others.max())
        if group.clip:
            to_first, to_previous = steps(group.features)
            row["to_first"], _, _ = reduced(to_first, names)
            row["to_previous"], _, _ = reduced(to_previous, names)
        return row | asdict(group.motion) | self._over_time(group.clip)

    def _over_time(self, clip: str) -> Record:
        """The columns of a clip's segments."""
        columns: Record = dict.fromkeys(("first_to_last", "cut_seconds", "changes", "change_seconds", "verdict"))
        if not clip:
            return columns
        timeline = self.timelines[clip]
        columns["first_to_last"] = timeline.first_to_last
        columns["cuts"] = len(timeline.cuts)
        columns["cut_seconds"] = [cut.after.seconds for cut in timeline.cuts]
        columns["changes"] = len(timeline.changes)
        columns["change_seconds"] = [change.border.after.seconds for change in timeline.changes]
        columns["verdict"] = timeline.verdict
        return columns

    @property
    def changes(self) -> Records:
        """A row for each change of the subject of a clip, in order of time.

        Columns: clip, from and to (letters of the segments: A is shown first; a segment that shows the same as an
        earlier one has its letter), distance (the mean of all pairs of frames of the two segments); last_image,
        last_frame and last_seconds, the last frame before the change; the same of first, the first frame after it;
        exact, whether no frame lies between the two.
        """
        rows = [change.record for timeline in self.timelines.values() for change in timeline.changes]
        return Records(rows, SUBJECT_CHANGE_COLUMNS)

    @property
    def cuts(self) -> Records:
        """A row for each cut: clip, and the frames before and after it as in `changes`."""
        rows = []
        for clip, timeline in self.timelines.items():
            rows += [{"clip": clip, **cut.where} for cut in timeline.cuts]
        return Records(rows, tuple(rows[0]) if rows else ("clip",))

    def contents(self) -> dict[str, Any]:
        """Changes of the subject, cuts, and the threshold that decides across cuts."""
        return {
            "changes": self.changes.to_records(),
            "cuts": self.cuts.to_records(),
            "threshold": self.threshold,
            "threshold_source": self.threshold_source,
        }

    def lines(self) -> list[str]:
        """Rows, what each clip shows over time, its cuts, and the worst pair of each row."""
        lines = columns(self.rows, ("frames", "mean", "worst", "stillness", "flicker", "cuts", "outlier", "clip"))
        for clip, timeline in self.timelines.items():
            lines.append(f"{clip}: {timeline.verdict}")
            lines += [f"{clip}: {note}" for note in timeline.notes_on_cuts]
        for row in self.rows:
            if row["worst_pair"]:
                lines.append(f"worst pair: {' and '.join(row['worst_pair'])}")
        if self.timelines:
            lines.append(f"threshold of one subject: {four(self.threshold)} ({self.threshold_source})")
        return lines


def consistency(
    metric: Embedder,
    images: Images | Clip | Sequence[Clip | ImageLike] | MatchRequest,
    *,
    regions: Regions = None,
    regions_of: Drawn | None = None,
    frames: int | str = 16,
    cut: Cut | None = None,
    threshold: float | Limit | None = None,
    calibration: PathLike | Calibration | None = None,
    refine: bool = True,
    on_error: Literal["fail", "skip"] = "fail",
    batch_size: int = 32,
    workers: int | None = None,
    cache: PathLike | None = None,
    progress: Progress | None = None,
) -> Consistency:
    """Compare images, or the frames of clips, with each other.

    Args:
        images, frames, cut, on_error, batch_size, workers, cache, progress: as in `idmetric.match`.
        regions: one of each image, where the subject is; default the whole image. An image without one is left out.
        regions_of: as in `idmetric.match`.
        threshold: the largest distance of one subject: what follows on a cut is another subject beyond it. Default:
            the calibration's, else 0.35.
        calibration: as in `idmetric.match`.
        refine: decode all frames between two frames in use where the subject changes, for the exact time.

    Raises:
        RequestError: for an image with several regions, or a threshold below 0; otherwise as `match`.
    """
    need("eval", "consistency", scipy="SciPy")
    request = images
    if isinstance(request, MatchRequest):
        request.refuse_others(frames, regions, regions_of)
    else:
        request = MatchRequest.of(images, frames=frames, regions=regions, regions_of=regions_of, on_error=on_error)
    limit = _limit(metric, threshold, calibration)
    encoder = ModelEncoder(metric, "cls")
    plan = Plan((), (encoder,), (), cut or Cut(), batch_size, on_error=on_error)

    def intervals_of(result: Match) -> list[FrameInterval]:
        _check_regions(result)
        return changing_intervals(result, limit.distance) if refine else []

    result, between = measured(plan, request, ReadOptions(cache, workers, progress), intervals_of)
    timelines = clip_segments(result, between, limit.distance)
    rules_of_subjects = ("aggregate", "missing")
    signature = {key: text for key, text in result.signature.items() if key not in rules_of_subjects}
    return Consistency(
        images=result,
        timelines=timelines,
        threshold=limit.distance,
        threshold_source=limit.source,
        skipped=result.skipped,
        unlisted=result.unlisted,
        signature=signature,
    )


def _limit(metric: Embedder, threshold: float | Limit | None, calibration: PathLike | Calibration | None) -> Limit:
    """The largest distance of one subject."""
    if threshold is not None:
        given_limit = Limit.of(threshold)
        if not 0 <= given_limit.distance < math.inf:
            raise RequestError(f"the threshold must be a distance of at least 0, got {given_limit.distance}")
        return given_limit
    limit = calibrated_limit(metric, "cls", calibration)
    if limit is None:
        return Limit(OTHER_SUBJECT, "default without a calibration")
    return limit


def _check_regions(result: Match) -> None:
    for name, image_regions in zip(result.table.times, result.table.regions, strict=True):
        if len(image_regions) > 1:
            raise RequestError(f"{name} has {len(image_regions)} regions: consistency compares one of each image")
