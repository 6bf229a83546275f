"""Subjects of generated images, each compared in its region, see `idmetric.match`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.columns import Ints
from idmetric.evaluate.protocols.generator.images import Images, Sightings
from idmetric.evaluate.protocols.generator.layouts import ProjectLayout
from idmetric.matching import Cut, DetectedRegions, Region, Subject, match
from idmetric.matching.casts import Cast
from idmetric.matching.named import PUBLISHED
from idmetric.matching.orientation import Drawn
from idmetric.matching.region_files import listed_regions, regions_for
from idmetric.matching.similarities import Similarities
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.images.read import read_image
from idmetric.stream.subjects import embed_subject

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.protocols.common.scorers import EvalSettings
    from idmetric.metric.models.embedder import Embedder

Roster = tuple[tuple[str, str], ...]  # name and class word of each subject
RegionsOf = Mapping[Any, Sequence[Region]]  # a file -> its regions


def read_regions(
    path: str, groups: Sequence[Images], data: Manifest, drawn_on: Drawn | None
) -> tuple[RegionsOf, tuple[str, ...]]:
    """The regions of all these images in one file, see `matching.region_files`, and the images it does not list.

    Raises:
        RequestError, ImageReadError: for a file, or an image's regions, that cannot be used.
    """
    sources, labels = _sources_and_labels(groups, data)
    listed = listed_regions(path, sources, "list", labels, drawn_on)
    return {source: listed.of(number) for number, source in enumerate(sources)}, listed.unlisted


def detect_regions(
    detected: DetectedRegions, groups: Sequence[Images], data: Manifest, settings: EvalSettings
) -> RegionsOf:
    """The regions of all these images that a detector finds.

    An image that cannot be read has none here; whoever embeds it reports it.
    """
    sources, labels = _sources_and_labels(groups, data)
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
    layout: ProjectLayout,
    settings: EvalSettings,
    threshold: float | None = None,
    calibration: Path | None = None,
) -> Sightings:
    """Match the subjects of each image to its regions.

    Images of the same subjects are matched together, and so are the shots of a story, each with its own cast.

    Args:
        threshold, calibration: as in `match`.
    """
    count = len(images.rows)
    identity = np.zeros(count)
    is_found = np.zeros(count, dtype=bool)
    state = np.full(count, "", dtype=object)
    thresholds = np.full(count, np.nan)
    threshold_sources = np.full(count, "", dtype=object)
    similarities: dict[str, dict[str, Similarities]] = {}
    embedded: dict[str, Subject] = {}
    done = 0
    for (story, roster), scenes in _rosters(images, layout).items():
        for name, _ in roster:
            if name not in embedded:
                photos: Any = [data.source(row) for row in images.references[name]]
                embedded[name] = embed_subject(
                    metric, photos, name=name, distance=settings.distance, batch_size=settings.batch_size
                )
        labels = {"", *(text for names in roster for text in names)}
        sources: Any = [data.source(images.rows[members[0]]) for members in scenes]
        cast: Cast | None = None
        if story:
            casts = [list(images.subject[members]) for members in scenes]
            cast = dict(zip(sources, casts, strict=True))
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
            cast=cast,
            batch_size=settings.batch_size,
            workers=settings.workers,
        )
        names = [name for name, _ in roster]
        times_of_methods: dict[str, list[int]] = {}
        for time, members in enumerate(scenes):
            numbers = [names.index(name) for name in images.subject[members]]
            similarity = 1 - result.nearest[time, numbers]
            states = result.assignments[time].states
            identity[members] = np.nan_to_num(similarity)
            is_found[members] = result.is_found[time, numbers]
            state[members] = [states[number] for number in numbers]
            thresholds[members] = [result.thresholds[number] for number in numbers]
            threshold_sources[members] = [result.threshold_sources[number] for number in numbers]
            times_of_methods.setdefault(images.method[members[0]], []).append(time)
        for method, times in times_of_methods.items():
            of_stories = similarities.setdefault(method, {})
            of_images = result.similarities.of_images(times)
            if story in of_stories:
                of_images = of_stories[story].joined(of_images)
            of_stories[story] = of_images
        done += len(scenes)
        if settings.progress is not None:
            settings.progress(done, len(images.scenes))
    return Sightings(identity, is_found, state, thresholds, threshold_sources, similarities)


def _rosters(images: Images, layout: ProjectLayout) -> dict[tuple[str, Roster], list[Ints]]:
    """Story, or "", and subjects -> the images (numbers of their rows) that are matched with these subjects.

    The subjects of a story are the ones of all of its shots.
    """
    rosters: dict[tuple[str, Roster], list[Ints]] = {}
    subjects_of_stories: dict[str, dict[tuple[str, str], None]] = {}
    shots_of_stories: dict[str, list[Ints]] = {}
    for members in images.scenes:
        roster = tuple(zip(images.subject[members], images.label[members], strict=True))
        if layout.stories:
            story = images.story[members[0]]
            subjects_of_stories.setdefault(story, {}).update(dict.fromkeys(roster))
            shots_of_stories.setdefault(story, []).append(members)
        else:
            rosters.setdefault(("", roster), []).append(members)
    for story, shots in shots_of_stories.items():
        rosters[story, tuple(subjects_of_stories[story])] = shots
    return rosters
