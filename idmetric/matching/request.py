"""What `match` is asked to compare: images and clips with their regions and casts, checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.matching.casts import Cast, cast_of, read_cast
from idmetric.matching.clips import Clip, Timeline, sources_of, timeline
from idmetric.matching.region_files import RegionSource, regions_for
from idmetric.matching.regions import Regions
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath
from idmetric.metric.images import ImageReadError, check_paths, is_single


@dataclass(frozen=True)
class MatchRequest:
    """Images and clips that are opened but not read, with regions and casts that fit them.

    Attributes:
        line: the images, and the frames in use of clips.
        frames: how these were chosen, as `match` calls it; "" without clips.
        kind: one image, one clip, or a list of both.
        regions: as given to `match`. labels: names and class words of the subjects.
        region_source: the same for each image.
        casts: (T, S), whether each subject should be in each image.
    """

    line: Timeline
    frames: str
    kind: Literal["image", "clip", "list"]
    regions: Regions
    labels: frozenset[str]
    region_source: RegionSource
    casts: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        images: Any,
        names: Sequence[str] = (),
        words: Sequence[str] = (),
        *,
        frames: int | str = 16,
        regions: Regions = None,
        cast: Cast | StrPath | None = None,
        on_error: Literal["fail", "skip"] = "fail",
    ) -> MatchRequest:
        """Open images and clips, and read the files of regions and casts.

        Args:
            names, words: of the subjects, which regions may be labeled with.
            images, frames, regions, cast, on_error: see `match`.

        Raises:
            RequestError, ImageReadError, ClipError: as `match`.
        """
        sources = sources_of(images)
        if on_error == "fail":
            check_paths(sources)
        line = timeline(sources, frames, on_error)
        kind: Literal["image", "clip", "list"] = "image" if is_single(images) else "list"
        if len(sources) == 1 and isinstance(sources[0], Clip):
            kind = "clip"
        choice = ""
        if line.clips:
            choice = str(frames)
            clips = [source for source in sources if isinstance(source, Clip)]
            if all(clip.grid is not None for clip in clips):
                choice = "all"  # of grids, all panels are in use
        labels = frozenset({*names, *words} - {""})
        source = regions_for(regions, line.names, kind, labels)
        if on_error == "fail" and source.problems:
            number, reason = next(iter(source.problems.items()))
            raise ImageReadError(line.names[number], reason)
        listed_cast = read_cast(cast) if isinstance(cast, str | os.PathLike) else cast
        casts = cast_of(listed_cast, line.moments, names)
        return cls(line, choice, kind, regions, labels, source, casts)

    def refuse_others(self, frames: int | str, regions: Regions, cast: Cast | StrPath | None = None) -> None:
        """RequestError for settings next to a request, which has its own; `frames` is 16 unless it was given."""
        has_others = any(setting is not None for setting in (regions, cast))
        if has_others or str(frames) not in ("16", self.frames):
            raise RequestError("a MatchRequest has its own frames, regions and cast: give them to MatchRequest.of")

    def with_regions(self, regions: Regions) -> MatchRequest:
        """The same with other regions."""
        source = regions_for(regions, self.line.names, self.kind, self.labels)
        return replace(self, regions=regions, region_source=source)
