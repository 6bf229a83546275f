"""Match subjects to the regions of images: one table of distances, and who is where.

found = match(metric, {"ann": ["ann_1.jpg", "ann_2.jpg"], "rex": "refs/rex/"}, "generated.png", regions="boxes.json")
found.states    # [["matched", "missing"]]
found.summary
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from idmetric.matching.assignment import assigned
from idmetric.matching.casts import Cast
from idmetric.matching.clips import Clip, Moment
from idmetric.matching.detected import DetectedRegions
from idmetric.matching.encoders import Encoder, VectorFunction, encoder_of
from idmetric.matching.regions import Box, Cut, Piece, Region, Regions
from idmetric.matching.request import MatchRequest
from idmetric.matching.result import Match, Missing
from idmetric.matching.subjects import Subject, Subjects, check_names, embedded_subject
from idmetric.matching.table import WHOLE, Table
from idmetric.matching.thresholds import Thresholds, limits_of
from idmetric.metric.distance import needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, concatenate
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, need
from idmetric.metric.images import ImageLike, ImageReadError, Picture, check_paths
from idmetric.metric.masks import Images
from idmetric.scoring.calibration import Calibration
from idmetric.scoring.references import Aggregate
from idmetric.scoring.score import Progress
from idmetric.scoring.scores import Limit
from idmetric.store import Store, cache_folder
from idmetric.stream import ImageModel, Item, Part, embedded, open_store

RegionId = tuple[int, int]  # number of an image, and of a region in it
_AHEAD = 8  # images that are read before they are embedded
Encoders = Mapping[str, "Embedder | VectorFunction"]  # a subject's name or class word -> its encoder


@dataclass(frozen=True)
class Plan:
    """A request, checked.

    Attributes:
        encoders: of each subject; several subjects may share one.
        limits: of each subject, None without one.
        aggregate, missing, on_error: see `match`.
    """

    subjects: tuple[Subject, ...]
    encoders: tuple[Encoder, ...]
    limits: tuple[Limit | None, ...]
    cut: Cut
    batch_size: int
    aggregate: Aggregate = "best"
    missing: Missing = "missing"
    on_error: Literal["fail", "skip"] = "fail"

    @property
    def with_whole(self) -> bool:
        """Whether whole images are embedded as well."""
        return self.missing == "whole"

    @property
    def needs_patches(self) -> bool:
        """Whether any distance compares patches."""
        return any(needs_patches(encoder.distance) for encoder in self.encoders)

    @property
    def distinct_encoders(self) -> list[Encoder]:
        """Each encoder once, in order of the subjects."""
        return list(dict.fromkeys(self.encoders))

    def expected(self, region: Region) -> int | None:
        """The subject that is named by a region's label."""
        for number, subject in enumerate(self.subjects):
            if subject.name == region.label:
                return number
        return None

    def is_compared(self, subject: int, images: Sequence[Cutouts], region_id: RegionId) -> bool:
        """Whether a subject is compared with a region; a region with a class word is for the subjects of that word."""
        image, number = region_id
        if number == WHOLE:
            return True
        region = images[image].regions[number]
        return not region.label or self.expected(region) is not None or self.subjects[subject].word == region.label


@dataclass(frozen=True)
class Distances:
    """Distances (K, n) of a subject's references to n regions."""

    subject: int
    region_ids: list[RegionId]
    values: Tensor


@dataclass
class Cutouts:
    """An image and the regions that it was cut into.

    Attributes:
        moment: the image's name, and its clip. cast: (S,), whether each subject should be in it.
        boxes: of the regions, in pixels.
        problem: why the image cannot be used.
        vectors: by encoder, of unit length; of each region, and last of the whole image if it is wanted.
    """

    moment: Moment
    cast: NDArray[np.bool_]
    regions: Sequence[Region] = ()
    boxes: list[Box] = field(default_factory=list)
    problem: str = ""
    vectors: defaultdict[Encoder, list[NDArray[np.float64]]] = field(default_factory=lambda: defaultdict(list))


@dataclass
class ReadOptions:
    """How images are read.

    Attributes:
        cache: a folder of embeddings, of still images alone; None: that of the environment.
        workers, progress: see `match`; progress counts the images for each encoder.
    """

    cache: StrPath | None = None
    workers: int | None = None
    progress: Progress | None = None

    def store_of(self, model: ImageModel, patches: bool) -> Store | None:
        """The store of a model; None without a folder, and for a function, whose weights nobody knows."""
        folder = cache_folder(self.cache)
        if folder is None or not isinstance(model, Embedder):
            return None
        return open_store(folder, model, patches=patches)


def match(
    metric: Embedder,
    subjects: Subjects,
    images: Images | Clip | Sequence[Clip | ImageLike] | MatchRequest,
    *,
    regions: Regions = None,
    frames: int | str = 16,
    missing: Missing = "missing",
    distance: str = "cls",
    aggregate: Aggregate = "best",
    cut: Cut | None = None,
    words: Mapping[str, str] | None = None,
    encoders: Encoders | None = None,
    threshold: Thresholds = None,
    calibration: StrPath | Calibration | None = None,
    cast: Cast | StrPath | None = None,
    on_error: Literal["fail", "skip"] = "fail",
    batch_size: int = 32,
    workers: int | None = None,
    cache: StrPath | None = None,
    progress: Progress | None = None,
) -> Match:
    """Compute the distance of every region to every reference of every subject, and assign regions to subjects.

    Args:
        subjects: the references of each subject by its name, in any form that `Embedder.embed` takes, or an `Embedding`
            of them, or the .idm file that it was saved to.
        images: one image or several, videos and other clips, see `matching.clips`; or a `MatchRequest` of them, which
            has its own frames, regions and cast.
        frames: of each clip: so many at equal distances from the first to the last; a rate such as "2fps"; or "all".
        regions: where subjects may be, see `idmetric.matching.region_files`; default the whole image. A region with a
            subject's name as label is expected to show it (see `Match.swapped`); one with a class word as label is
            compared with the subjects of that word alone.
        missing: the value of a subject that is not found: "missing" (none, and it lowers the coverage), "zero" (a
            similarity of 0), "whole" (the distance of the whole image), or "skip" (the image is left out for all).
        distance, on_error, batch_size, workers, cache, progress: as in `idmetric.score`. Regions of still images are
            kept as well, frames of videos and images in memory are not.
        aggregate: over a subject's references: the nearest ("best"), or the mean.
        cut: how regions are cut out; default: exactly.
        words: what subjects are, such as "dog", by their names; see `regions`.
        encoders: other encoders for some subjects, by name or class word: models of this package, or functions from a
            list of RGB images to vectors (N, D).
        threshold: the largest distance that counts as a subject, of all or by name; a `Limit` names its source.
            Default: that of the subject's own photos or the calibration's, whichever is larger.
        calibration: as in `idmetric.score`; default the model's stored one, if it is of this distance. 5 % of its
            pairs of two identities are within its threshold; if it does not list that one, the nearest lower one is
            taken.
        cast: the subjects that should be in each image, see `matching.casts`; default all. A subject outside the cast
            is not missing.

    Returns:
        See `Match`. Its table has gradients if images are tensors that require grad.

    Raises:
        RequestError: for subjects, regions or settings that do not fit.
        ImageReadError: with on_error="fail", for an image, a frame, a mask or a box that cannot be used.
        ClipError: with on_error="fail", for a clip that cannot be used.
        ImportError: without the packages of the extra `eval`.
    """
    need("eval", "match", scipy="SciPy")
    for name, value, choices in (
        ("missing", missing, get_args(Missing)),
        ("aggregate", aggregate, get_args(Aggregate)),
        ("on_error", on_error, ("fail", "skip")),
    ):
        if value not in choices:
            raise RequestError(f"unknown {name} {value!r}: choose {', '.join(choices)}")
    if batch_size < 1:
        raise RequestError(f"batch_size must be at least 1, got {batch_size}")
    words = words or {}
    check_names(subjects, words)
    check_paths(*subjects.values())
    request = images
    if isinstance(request, MatchRequest):
        request.refuse_others(frames, regions, cast)
    else:
        request = MatchRequest.of(
            images, list(subjects), list(words.values()), frames=frames, regions=regions, cast=cast, on_error=on_error
        )
    reading = ReadOptions(cache, workers, progress)
    roster, subject_encoders = _roster(metric, subjects, words, distance, encoders or {}, batch_size, reading)
    limits = limits_of(
        metric,
        roster,
        subject_encoders,
        distance,
        aggregate,
        threshold=threshold,
        calibration=calibration,
    )
    plan = Plan(roster, subject_encoders, tuple(limits), cut or Cut(), batch_size, aggregate, missing, on_error)
    return measured(plan, request, reading)


def measured(plan: Plan, request: MatchRequest, reading: ReadOptions) -> Match:
    """Read images and clips in threads, cut them into regions, and compare these with the subjects of a plan."""
    line = request.line
    images = [Cutouts(moment, cast) for moment, cast in zip(line.moments, request.casts, strict=True)]
    distances: list[Distances] = []
    for encoder in plan.distinct_encoders:
        rows: list[tuple[RegionId, Embedding]] = []
        for region_and_embedding in _embedded(plan, request, reading, images, encoder):
            rows.append(region_and_embedding)
            if len(rows) == plan.batch_size:
                distances += _distances(plan, images, encoder, rows)
                rows.clear()
        if rows:
            distances += _distances(plan, images, encoder, rows)
    return _assigned(plan, request, images, distances)


# Subjects


def _roster(
    metric: Embedder,
    subjects: Subjects,
    words: Mapping[str, str],
    distance: str,
    encoders: Encoders,
    batch_size: int,
    reading: ReadOptions,
) -> tuple[tuple[Subject, ...], tuple[Encoder, ...]]:
    """The subjects, embedded, and the encoder of each."""
    own_encoder = encoder_of(metric, distance)
    other_encoders = {name: encoder_of(encoder, distance) for name, encoder in encoders.items()}
    unused = set(encoders)
    roster: list[Subject] = []
    roster_encoders: list[Encoder] = []
    for name, source in subjects.items():
        word = words.get(name, "")
        encoder = own_encoder
        for key in (word, name):
            encoder = other_encoders.get(key, encoder)
            unused.discard(key)
        subject = embedded_subject(
            name,
            word,
            source,
            encoder.model,
            encoder.distance,
            batch_size=batch_size,
            workers=reading.workers,
            store=reading.store_of(encoder.model, needs_patches(encoder.distance)),
        )
        encoder.check(subject)
        roster.append(subject)
        roster_encoders.append(encoder)

    if unused:
        raise RequestError(f"encoders for {', '.join(sorted(unused))}: no subject has this name or class word")
    return tuple(roster), tuple(roster_encoders)


# Images


def _embedded(
    plan: Plan, request: MatchRequest, reading: ReadOptions, images: Sequence[Cutouts], encoder: Encoder
) -> Iterator[tuple[RegionId, Embedding]]:
    """Yield each region with its embedding by an encoder; the first encoder finds the regions of the images."""
    store = reading.store_of(encoder.model, plan.needs_patches)
    pass_number = plan.distinct_encoders.index(encoder)
    passes = len(plan.distinct_encoders)

    def parts(number: int, picture: Picture) -> Iterator[Part]:
        regions = images[number].regions if pass_number else request.region_source.find(number, picture)
        return _parts(plan, images[number], picture, regions)

    items = (
        Item(images[number].moment.name, load, parts=partial(parts, number), source=number)
        for number, load in enumerate(request.line.loads())
        if not images[number].problem
    )
    stream = embedded(
        items,
        encoder.model,
        store=store,
        patches=plan.needs_patches,
        batch_size=plan.batch_size,
        workers=reading.workers,
        ahead=_AHEAD,
        on_error=plan.on_error,
        keeps_graph=True,
    )
    number = -1
    with closing(stream):
        for result in stream:
            if result.item.source != number:
                number = result.item.source
                if reading.progress is not None:
                    reading.progress(pass_number * len(images) + number + 1, passes * len(images))
            image = images[number]
            if result.problem is not None:
                image.problem = _problem(result.problem, image.moment.name)
            elif result.part is not None:
                region = WHOLE if result.part == len(image.regions) else result.part
                yield (number, region), result.row


def _problem(error: ImageReadError, image: str) -> str:
    """Why an image cannot be used; what else the error is about is named."""
    if error.source == image:
        return error.reason
    return f"{error.source}: {error.reason}"


def _parts(plan: Plan, image: Cutouts, picture: Picture, regions: Sequence[Region]) -> Iterator[Part]:
    """Yield an image's regions, cut out, and the whole image last if it is wanted.

    Regions after the first batch are cut a second time when they are asked for: all of thousands would fill the memory.
    """
    name = image.moment.name
    pieces: list[Piece] = []
    boxes: list[Box] = []
    for region in regions:
        piece = plan.cut.cut(picture, region, name)  # of all, so that errors come before anything is embedded
        boxes.append(piece.box)
        if len(pieces) < plan.batch_size:
            pieces.append(piece)
    image.regions = list(regions)
    image.boxes = boxes

    for number, region in enumerate(regions):
        piece = pieces[number] if number < len(pieces) else plan.cut.cut(picture, region, name)
        is_as_it_is = region.is_whole and not plan.cut.square
        yield Part(piece.pixels, piece.cover, "" if is_as_it_is else piece.key(plan.cut))
    if plan.with_whole:
        yield Part(picture)


def _distances(
    plan: Plan, images: Sequence[Cutouts], encoder: Encoder, rows: Sequence[tuple[RegionId, Embedding]]
) -> Iterator[Distances]:
    """Yield the distances of a batch of regions to the subjects of an encoder, and keep the vectors of the regions."""
    region_ids = [region_id for region_id, _ in rows]
    devices = {row.cls.device for _, row in rows}
    if len(devices) > 1:  # with a graph on the model's device, from the cache on the CPU
        [device] = devices - {torch.device("cpu")}
        rows = [(region_id, row.to(device)) for region_id, row in rows]
    embedding = concatenate([row for _, row in rows])
    unit = F.normalize(embedding.cls.detach().float(), dim=1).cpu().double().numpy()
    for (number, _), vector in zip(region_ids, unit, strict=True):
        images[number].vectors[encoder].append(vector)
    for number, subject in enumerate(plan.subjects):
        if plan.encoders[number] is not encoder:
            continue
        compared = [row for row, region_id in enumerate(region_ids) if plan.is_compared(number, images, region_id)]
        if compared:
            compared_ids = [region_ids[row] for row in compared]
            yield Distances(number, compared_ids, encoder.distances(subject, embedding[compared]))


def _assigned(
    plan: Plan, request: MatchRequest, all_images: Sequence[Cutouts], distances: Sequence[Distances]
) -> Match:
    """Assign the regions of the images that can be used to the subjects."""
    line = request.line
    skipped = dict(line.problems)
    images: list[Cutouts] = []
    times: dict[int, int] = {}  # by the number among all images
    for number, image in enumerate(all_images):
        if image.problem:
            skipped[image.moment.name] = image.problem
        else:
            times[number] = len(images)
            images.append(image)

    values = _table_values(plan, images, times, distances)
    table = Table(
        values=values[..., :-1],
        times=tuple(image.moment.name for image in images),
        subjects=tuple(subject.name for subject in plan.subjects),
        references=tuple(subject.references for subject in plan.subjects),
        regions=tuple(tuple(image.regions) for image in images),
        clips=tuple(image.moment.clip for image in images),
        seconds=tuple(image.moment.seconds for image in images),
        frames=tuple(image.moment.frame for image in images),
    )
    by_region = table.over_references(plan.aggregate).detach().cpu().double().numpy()
    thresholds = [math.nan if limit is None else limit.distance for limit in plan.limits]
    assignments = []
    for time, image in enumerate(images):
        expected = [plan.expected(region) for region in image.regions]
        distances_of_image = by_region[time, :, : len(image.regions)]
        assignments.append(assigned(distances_of_image, thresholds, expected, image.cast))
    features = {}
    for encoder in plan.distinct_encoders:
        features[encoder] = tuple(np.array(image.vectors[encoder], dtype=float) for image in images)
    return Match(
        table=table,
        assignments=tuple(assignments),
        thresholds=tuple(thresholds),
        threshold_sources=tuple("" if limit is None else limit.source for limit in plan.limits),
        cast=np.array([image.cast for image in images], dtype=bool).reshape(len(images), len(plan.subjects)),
        aggregate=plan.aggregate,
        missing=plan.missing,
        whole=values[..., WHOLE] if plan.with_whole else None,
        features=tuple(features[encoder] for encoder in plan.encoders),
        boxes=tuple(np.array(image.boxes).reshape(-1, 4) for image in images),
        skipped=skipped,
        unlisted=request.region_source.unlisted,
        signature=_signature(plan, request),
    )


def _table_values(
    plan: Plan, images: Sequence[Cutouts], time_of_number: Mapping[int, int], distances: Sequence[Distances]
) -> Tensor:
    """Distances (T, S, K, R + 1), NaN where nothing was compared; the last region is the whole image.

    Args:
        time_of_number: the times of images by their numbers in `Distances`; others are left out.
    """
    most_references = max([len(subject) for subject in plan.subjects], default=1)
    most_regions = max([len(cutouts.regions) for cutouts in images], default=0)
    device = torch.device("cpu")
    if distances:
        device = distances[0].values.device
    shape = (len(images), len(plan.subjects), most_references, most_regions + 1)
    table = torch.full(shape, torch.nan, device=device)
    for part in distances:
        columns = [column for column, (number, _) in enumerate(part.region_ids) if number in time_of_number]
        times = [time_of_number[part.region_ids[column][0]] for column in columns]
        regions = [part.region_ids[column][1] for column in columns]
        values = part.values[:, columns].to(device).float()
        table[times, part.subject, : len(values), regions] = values.T
    return table


def _signature(plan: Plan, request: MatchRequest) -> dict[str, str]:
    """Everything that a distance depends on; subjects with another encoder than the first are named."""
    signature = dict(plan.encoders[0].signature)
    for subject, encoder in zip(plan.subjects, plan.encoders, strict=False):  # no subjects have an encoder, too
        if encoder is not plan.encoders[0]:
            model = subject.embedding.model or encoder.signature["model"]
            signature[f"encoder of {subject.name}"] = model
    signature["aggregate"] = plan.aggregate
    signature["cut"] = str(plan.cut)
    signature["missing"] = plan.missing
    if isinstance(request.regions, DetectedRegions):
        signature["detector"] = request.regions.signature
    if request.frames:
        signature["frames"] = request.frames
    return signature
