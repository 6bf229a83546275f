"""Subjects of generated images, each compared in its region, see `idmetric.match`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.columns import Ints
from idmetric.evaluate.protocols.generator.images import Images, Sightings
from idmetric.matching import DetectedRegions, Region, Subject, match
from idmetric.matching.region_files import listed_regions, regions_for
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.images.read import read_image
from idmetric.stream.subjects import embed_subject

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.protocols.common.scorers import EvalSettings
    from idmetric.metric.models.embedder import Embedder

Roster = tuple[tuple[str, str], ...]  # name and class word of each subject
RegionsOf = Mapping[Any, Sequence[Region]]  # a file -> its regions


def read_regions(path: str, images: Images, data: Manifest) -> tuple[RegionsOf, tuple[str, ...]]:
    """The regions of all these images in one file, see `matching.region_files`, and the images it does not list.

    Raises:
        RequestError, ImageReadError: for a file, or an image's regions, that cannot be used.
    """
    sources, labels = _sources_and_labels(images, data)
    listed = listed_regions(path, sources, "list", labels)
    return {source: listed.find(number, None) for number, source in enumerate(sources)}, listed.unlisted


def detect_regions(detected: DetectedRegions, images: Images, data: Manifest, settings: EvalSettings) -> RegionsOf:
    """The regions of all these images that a detector finds.

    An image that cannot be read has none here; whoever embeds it reports it.
    """
    sources, labels = _sources_and_labels(images, data)
    regions_source = regions_for(detected, sources, "list", labels)
    regions: dict[Any, Sequence[Region]] = {}
    for number, source in enumerate(sources):
        try:
            regions[source] = regions_source.find(number, read_image(source))
        except ImageReadError:
            regions[source] = []
        if settings.progress is not None:
            settings.progress(number + 1, len(sources))
    return regions


def _sources_and_labels(images: Images, data: Manifest) -> tuple[list[Any], set[str]]:
    """The files of all images, each once, and the names and class words of their subjects."""
    labels = {*images.subject, *images.label} - {""}
    sources: dict[Any, None] = dict.fromkeys(data.source(row) for row in images.rows)
    return list(sources), labels


def sightings(
    images: Images,
    data: Manifest,
    metric: Embedder,
    regions: RegionsOf,
    settings: EvalSettings,
    threshold: float | None = None,
    calibration: Path | None = None,
) -> Sightings:
    """Match the subjects of each image to its regions; images of the same subjects are matched together.

    Args:
        threshold, calibration: as in `match`.
    """
    count = len(images.rows)
    identity = np.zeros(count)
    is_found = np.zeros(count, dtype=bool)
    state = np.full(count, "", dtype=object)
    thresholds = np.full(count, np.nan)
    threshold_sources = np.full(count, "", dtype=object)
    embedded: dict[str, Subject] = {}
    done = 0
    for roster, scenes in _rosters(images).items():
        for name, _ in roster:
            if name not in embedded:
                photos: Any = [data.source(row) for row in images.references[name]]
                embedded[name] = embed_subject(
                    metric, photos, name=name, distance=settings.distance, batch_size=settings.batch_size
                )
        labels = {"", *(text for names in roster for text in names)}
        sources: Any = [data.source(images.rows[members[0]]) for members in scenes]
        result = match(
            metric,
            [replace(embedded[name], word=word) for name, word in roster],
            sources,
            regions=[[region for region in regions[source] if region.label in labels] for source in sources],
            distance=settings.distance,
            aggregate="mean",
            threshold=threshold,
            calibration=calibration,
            batch_size=settings.batch_size,
            workers=settings.workers,
        )
        names = [name for name, _ in roster]
        for time, members in enumerate(scenes):
            numbers = [names.index(name) for name in images.subject[members]]
            similarity = 1 - result.nearest[time, numbers]
            states = result.assignments[time].states
            identity[members] = np.nan_to_num(similarity)
            is_found[members] = result.is_found[time, numbers]
            state[members] = [states[number] for number in numbers]
            thresholds[members] = [result.thresholds[number] for number in numbers]
            threshold_sources[members] = [result.threshold_sources[number] for number in numbers]
        done += len(scenes)
        if settings.progress is not None:
            settings.progress(done, len(images.scenes))
    return Sightings(identity, is_found, state, thresholds, threshold_sources)


def _rosters(images: Images) -> dict[Roster, list[Ints]]:
    """Subjects -> the images (numbers of their rows) that should show these."""
    rosters: dict[Roster, list[Ints]] = {}
    for members in images.scenes:
        roster = tuple(zip(images.subject[members], images.label[members], strict=True))
        rosters.setdefault(roster, []).append(members)
    return rosters
