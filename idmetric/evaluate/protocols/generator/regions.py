"""Subjects of generated images, each compared in its region, see `idmetric.match`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from idmetric.evaluate.protocols.common.columns import Ints
from idmetric.evaluate.protocols.generator.images import Images, Sightings
from idmetric.evaluate.protocols.generator.layouts import Layout
from idmetric.match import Cut, DetectedRegions, Match, Region, Subject, match
from idmetric.match.named import PUBLISHED, Similarities
from idmetric.match.region_files import regions_for
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.images.read import read_image

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.protocols.common.scorers import EvalSettings
    from idmetric.metric.models.embedder import Embedder

RegionsOf = Mapping[Any, Sequence[Region]]  # a file -> its regions


def read_regions(path: str, groups: Sequence[Images], data: Manifest) -> RegionsOf:
    """The regions of all these images in one file, see `idmetric.match.region_files`."""
    sources, labels = _sources_and_labels(groups, data)
    regions_of = regions_for(path, sources, "list", labels)
    nothing = Image.new("RGB", (1, 1))  # the regions of files do not depend on pixels
    return {source: regions_of(number, nothing) for number, source in enumerate(sources)}


def detect_regions(
    detected: DetectedRegions, groups: Sequence[Images], data: Manifest, settings: EvalSettings
) -> RegionsOf:
    """The regions of all these images that a detector finds.

    An image that cannot be read has none here; whoever embeds it reports it.
    """
    sources, labels = _sources_and_labels(groups, data)
    regions_of = regions_for(detected, sources, "list", labels)
    regions: dict[Any, Sequence[Region]] = {}
    for number, source in enumerate(sources):
        try:
            regions[source] = regions_of(number, read_image(source))
        except ImageReadError:
            regions[source] = []
        if settings.progress is not None:
            settings.progress(number + 1, len(sources))
    return regions


def _sources_and_labels(groups: Sequence[Images], data: Manifest) -> tuple[list[Any], set[str]]:
    """The files of all images, each once, and the names and class words of their subjects."""
    labels: set[str] = set()
    sources: dict[Any, None] = {}
    for images in groups:
        labels.update(images.subject, images.label)
        sources |= dict.fromkeys(data.source(row) for row in images.rows)
    return list(sources), labels - {""}


def sightings(
    images: Images,
    data: Manifest,
    metric: Embedder,
    regions: RegionsOf,
    layout: Layout,
    settings: EvalSettings,
    threshold: float | None = None,
    calibration: Path | None = None,
    rate: float | None = None,
) -> Sightings:
    """Match the subjects of each image to its regions; images of the same subjects are matched together.

    Args:
        threshold, calibration, rate: as in `match`.
    """
    rosters: dict[tuple[tuple[str, str], ...], list[Ints]] = {}
    for members in images.scenes:
        roster = tuple(zip(images.subject[members], images.label[members], strict=True))
        rosters.setdefault(roster, []).append(members)

    count = len(images.rows)
    identity = np.zeros(count)
    is_found = np.zeros(count, dtype=bool)
    state = np.full(count, "", dtype=object)
    thresholds = np.full(count, np.nan)
    threshold_sources = np.full(count, "", dtype=object)
    similarities: dict[str, Similarities] = {}
    embedded: dict[str, Subject] = {}
    done = 0
    for roster, scenes in rosters.items():
        for name, _ in roster:
            if name not in embedded:
                photos: Any = [data.source(row) for row in images.references[name]]
                embedded[name] = Subject.of(
                    metric, photos, name=name, distance=settings.distance, batch_size=settings.batch_size
                )
        labels = {"", *(text for names in roster for text in names)}
        sources: Any = [data.source(images.rows[members[0]]) for members in scenes]
        result = match(
            metric,
            [replace(embedded[name], word=word) for name, word in roster],
            sources,
            regions=[[region for region in regions[source] if region.label in labels] for source in sources],
            missing="whole" if any(PUBLISHED[name].needs_whole for name in layout.numbers) else "missing",
            distance=settings.distance,
            aggregate="mean",
            cut=Cut(margin=layout.margin, square=layout.square, outside="white" if layout.square else "keep"),
            threshold=threshold,
            calibration=calibration,
            rate=rate,
            batch_size=settings.batch_size,
            workers=settings.workers,
        )
        for time, members in enumerate(scenes):
            identity[members] = np.nan_to_num(1 - result.nearest[time])
            is_found[members] = result.is_found[time]
            state[members] = result.states[time]
            thresholds[members] = result.thresholds
            threshold_sources[members] = result.threshold_sources
            method = images.method[members[0]]
            _add(similarities.setdefault(method, Similarities(whole=[])), result, time)
        done += len(scenes)
        if settings.progress is not None:
            settings.progress(done, len(images.scenes))
    return Sightings(identity, is_found, state, thresholds, threshold_sources, similarities)


def _add(similarities: Similarities, result: Match, time: int) -> None:
    """Add the table of one image to the input of published numbers."""
    regions = result.table.regions[time]
    similarities.names.append(result.table.subjects)
    similarities.words.append(result.words)
    similarities.to_references.append(1 - result.table.at(time))
    similarities.aggregated.append(1 - result.by_region[time, :, : len(regions)])
    similarities.scores.append(np.array([region.score for region in regions]))
    if similarities.whole is not None and result.whole is not None:
        similarities.whole.append(1 - result.whole[time].double().cpu().numpy())
