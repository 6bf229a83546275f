"""Match subjects to the regions of images: one table of distances, and who is where.

found = match(metric, {"ann": ["ann_1.jpg", "ann_2.jpg"], "rex": "refs/rex/"}, "generated.png", regions="boxes.json")
found.states    # [["matched", "missing"]]
found.summary
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from idmetric.match.assignment import assigned
from idmetric.match.casts import Cast
from idmetric.match.clips import Clip, Interval, Load, Moment, Timeline
from idmetric.match.detected import DetectedRegions
from idmetric.match.encoders import Encoder, VectorFunction, encoder_of
from idmetric.match.orientation import Drawn
from idmetric.match.page.pictures import Thumbnail, thumbnail_of
from idmetric.match.regions import Box, Cut, Picture, Piece, Region, Regions, size_of
from idmetric.match.request import MatchRequest
from idmetric.match.result import ALL, Match, Missing, differing, with_changes
from idmetric.match.table import WHOLE, Table
from idmetric.match.thresholds import Thresholds, limits_of
from idmetric.match.tracks import frame_difference
from idmetric.metric.calibration.apply import Calibration
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import NonFiniteError, shown
from idmetric.metric.errors import RequestError
from idmetric.metric.files.hints import need
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.arrays import float_pixels, is_float
from idmetric.metric.images.kinds import ImageLike, ImageReadError, describe, is_array, naming
from idmetric.metric.images.masks import Images
from idmetric.metric.images.paths import is_subject_file
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.subject import Subject
from idmetric.scoring.limits import Limit
from idmetric.scoring.references import Aggregate
from idmetric.scoring.scores import PathLike, Progress
from idmetric.stream.pipeline import threads

Subjects = Mapping[str, Any] | Sequence[Any]  # name -> references or Subject; or Subjects and .subject files
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
        time, number = region_id
        if number == WHOLE:
            return True
        region = images[time].regions[number]
        return not region.label or self.expected(region) is not None or self.subjects[subject].word == region.label


@dataclass(frozen=True)
class Distances:
    """Distances (K, n) of a subject's references to n regions."""

    subject: int
    region_ids: list[RegionId]
    values: Tensor


@dataclass
class Cutouts:
    """The regions of an image, ready for the encoders.

    Attributes:
        moment: the image's name, and its clip. cast: (S,), whether each subject should be in it.
        regions: what it was cut into.
        loaded: by encoder, the inputs of the first regions, a batch at most, and last the whole image's if wanted.
        source: the picture that further regions are cut out of when their batch comes; None without any.
        boxes: of the regions, in pixels. picture: of a frame, until the next one was compared with it.
        difference: from the frame before, see `Match.frame_differences`.
        problem: why the image cannot be used.
        thumbnail: a small picture for pages.
    """

    moment: Moment
    cast: NDArray[np.bool_]
    regions: list[Region] = field(default_factory=list)
    loaded: dict[Encoder, list[Any]] = field(default_factory=dict)
    source: Picture | None = None
    boxes: list[Box] = field(default_factory=list)
    picture: Picture | None = None
    difference: float = math.nan
    problem: str = ""
    thumbnail: Thumbnail | None = None


def match(
    metric: Embedder,
    subjects: Subjects,
    images: Images | Clip | Sequence[Clip | ImageLike] | MatchRequest,
    *,
    regions: Regions = None,
    regions_of: Drawn | None = None,
    frames: int | str = 16,
    missing: Missing = "missing",
    distance: str = "cls",
    aggregate: Aggregate = "best",
    cut: Cut | None = None,
    encoders: Encoders | None = None,
    threshold: Thresholds = None,
    calibration: PathLike | Calibration | None = None,
    rate: float | None = None,
    cast: Cast | PathLike | None = None,
    refine: bool = True,
    on_error: Literal["fail", "skip"] = "fail",
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Match:
    """Compute the distance of every region to every reference of every subject, and assign regions to subjects.

    Args:
        subjects: the references of each subject by its name, in any form that `Embedder.embed` takes, or `Subject`s and
            files of them.
        images: one image or several, videos and other clips, see `idmetric.match.clips`; or a `MatchRequest` of them,
            which has its own frames, regions and cast.
        frames: of each clip: so many at equal distances from the first to the last; a rate such as "2fps"; "all"; or
            "shots", one from the middle of every shot.
        regions: where subjects may be, see `idmetric.match.region_files`; default the whole image. A region with a
            subject's name as label is expected to show it (see `Match.swapped`); one with a class word as label is
            compared with the subjects of that word alone.
        regions_of: whether listed regions are of the "upright" photo, as annotation tools show it, or of its "stored"
            pixels, before EXIF turns them; default: upright, with a warning where nothing shows which.
        missing: the value of a subject that is not found: "missing" (none, and it lowers the coverage), "zero" (a
            similarity of 0), "whole" (the distance of the whole image), or "skip" (the image is left out for all).
        distance, on_error, batch_size, workers, progress: as in `idmetric.score`.
        aggregate: over a subject's references: the nearest ("best"), or the mean.
        cut: how regions are cut out; default: exactly.
        encoders: other encoders for some subjects, by name or class word: models of this package, or functions from a
            list of RGB images to vectors (N, D).
        threshold: the largest distance that counts as a subject, of all or by name; a `Limit` names its source.
            Default: the subject's own or the calibration's, see `limit_of_subject`.
        calibration: as in `idmetric.score`; default the model's stored one, if it is of this distance.
        rate: the share of pairs of two identities that are within its threshold; default `PAIR_RATE`, 5 %. If the
            calibration does not list it, the nearest lower one is taken.
        cast: the subjects that should be in each image, see `idmetric.match.casts`; default all, or the `subjects` in
            the file of regions. A subject outside the cast is not missing.
        refine: decode all frames between two frames in use that differ in states, for the exact times of
            `Match.changes`. Where regions or casts are listed frame by frame, these times stay intervals.

    Returns:
        See `Match`. Its table has gradients if images are tensors that require grad.

    Raises:
        RequestError: for subjects, regions or settings that do not fit.
        ImageReadError: with on_error="fail", for an image, a frame, a mask or a box that cannot be used.
        ClipError: with on_error="fail", for a clip that cannot be used.
        ImportError: without the packages of the extra `match`.
    """
    need("match", "match", scipy="SciPy")
    for name, value, choices in (
        ("missing", missing, get_args(Missing)),
        ("aggregate", aggregate, get_args(Aggregate)),
        ("on_error", on_error, ("fail", "skip")),
    ):
        if value not in choices:
            raise RequestError(f"unknown {name} {value!r}: choose {', '.join(choices)}")
    if batch_size < 1:
        raise RequestError(f"batch_size must be at least 1, got {batch_size}")
    named_subjects = _named(subjects)
    request = images
    if isinstance(request, MatchRequest):
        request.refuse_others(frames, regions, regions_of, cast)
    else:
        names = [name for name, _ in named_subjects]
        words = [source.word for _, source in named_subjects if isinstance(source, Subject)]
        request = MatchRequest.of(
            images, names, words, frames=frames, regions=regions, regions_of=regions_of, cast=cast, on_error=on_error
        )
    roster, subject_encoders = _roster(metric, named_subjects, distance, encoders or {}, batch_size)
    limits = limits_of(
        metric,
        roster,
        subject_encoders,
        distance,
        aggregate,
        threshold=threshold,
        calibration=calibration,
        rate=rate,
    )
    plan = Plan(roster, subject_encoders, tuple(limits), cut or Cut(), batch_size, aggregate, missing, on_error)
    intervals_of = differing if refine else None
    samples, between = measured(metric, plan, request, workers, progress, intervals_of)
    return with_changes(samples, between)


def measured(
    metric: Embedder,
    plan: Plan,
    request: MatchRequest,
    workers: int | None,
    progress: Progress | None,
    intervals_of: Callable[[Match], list[Interval]] | None = None,
) -> tuple[Match, Match | None]:
    """Read images and clips in threads, cut them into regions, and compare these with the subjects of a plan.

    Args:
        intervals_of: from the result, the parts of clips in which all frames are compared as well.

    Returns:
        The result, and that of the further frames: None without any, and where their regions or their cast are unknown.
        Frames that cannot be read are left out of the latter.
    """
    samples = _matched(metric, plan, request, workers, progress)
    signature = dict(samples.signature)
    if isinstance(request.regions, DetectedRegions):
        signature["detector"] = request.regions.signature
    if request.frames:
        signature["frames"] = request.frames
    samples = replace(samples, signature=signature, unlisted=request.region_source.unlisted)

    further_frames = request.between(intervals_of(samples)) if intervals_of is not None else None
    if further_frames is None:
        return samples, None
    lenient_plan = replace(plan, on_error="skip")
    with torch.no_grad():
        between = _matched(metric, lenient_plan, further_frames, workers, progress)
    return samples, between


def _matched(
    metric: Embedder, plan: Plan, request: MatchRequest, workers: int | None, progress: Progress | None
) -> Match:
    """The match of the images and frames of a request."""
    line = request.line

    def read(item: tuple[int, Load]) -> Cutouts:
        number, load = item
        moment = line.moments[number]
        image: Any = None
        try:
            image = load()
            picture = _picture(metric, image)
            regions = request.region_source.find(number, picture)
            return _cutouts(plan, moment, picture, regions, request.casts[number])
        except ImageReadError as error:
            if plan.on_error == "fail":
                raise
            is_own = error.source in (describe(image), moment.name)
            problem = error.reason if is_own else f"{error.source}: {error.reason}"
            return Cutouts(moment, request.casts[number], problem=problem)

    with closing(in_order(read, enumerate(line.loads()), threads=threads(workers), waiting=_AHEAD)) as stream:
        return _compared(plan, stream, line, progress)


# Subjects


def _roster(
    metric: Embedder,
    named_subjects: Sequence[tuple[str, Any]],
    distance: str,
    encoders: Encoders,
    batch_size: int,
) -> tuple[tuple[Subject, ...], tuple[Encoder, ...]]:
    """The subjects, embedded, and the encoder of each."""
    own_encoder = encoder_of(metric, distance, batch_size)
    other_encoders = {name: encoder_of(encoder, distance, batch_size) for name, encoder in encoders.items()}
    unused = set(encoders)
    roster: list[Subject] = []
    roster_encoders: list[Encoder] = []
    for name, source in named_subjects:
        encoder = own_encoder
        for key in (source.word if isinstance(source, Subject) else "", name):
            encoder = other_encoders.get(key, encoder)
            unused.discard(key)
        subject = source if isinstance(source, Subject) else encoder.subject(name, source)
        encoder.check(subject)
        roster.append(subject)
        roster_encoders.append(encoder)

    if unused:
        raise RequestError(f"encoders for {', '.join(sorted(unused))}: no subject has this name or class word")
    return tuple(roster), tuple(roster_encoders)


def _named(subjects: Subjects) -> list[tuple[str, Any]]:
    """Name and source of each subject; a `Subject`, also one in a file, keeps its own name."""
    named = []
    pairs = subjects.items() if isinstance(subjects, Mapping) else [("", source) for source in subjects]
    for name, source in pairs:
        subject = Subject.load(source) if is_subject_file(source) else source
        if isinstance(subject, Subject):
            subject = replace(subject, name=name or subject.name)
            named.append((subject.name, subject))
        elif name:
            named.append((name, subject))
        else:
            raise RequestError("subjects without names: give a dict, {'rex': 'refs/rex/'}, or Subject objects")

    if not named:
        raise RequestError("no subjects: give at least one")
    names = [name for name, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"two subjects are called {name!r}: rename one of them")
        if name == ALL:
            raise RequestError(f"a subject cannot be called {ALL!r}, as the summary's last row is: rename it")
    return named


# Images


def _picture(metric: Embedder, image: Any) -> Picture:
    """An upright RGB image; floats stay pixels, with their graph."""
    if is_array(image) and is_float(image):
        with naming(image):
            return float_pixels(image, metric.background)
    return metric.read_image(image)


def _cutouts(
    plan: Plan, moment: Moment, picture: Picture, regions: Sequence[Region], cast: NDArray[np.bool_]
) -> Cutouts:
    """Cut an image into its regions, and prepare the first ones for each encoder."""
    pieces: list[Piece] = []
    boxes: list[Box] = []
    for region in regions:
        piece = plan.cut.cut(picture, region, moment.name)  # of all, so that errors come before anything is embedded
        boxes.append(piece.box)
        if len(pieces) < plan.batch_size:
            pieces.append(piece)
    source = picture if len(regions) > len(pieces) else None
    thumbnail = thumbnail_of(picture)
    if plan.with_whole:
        height, width = size_of(picture)
        pieces.append(Piece(picture, None, (0, 0, width, height)))
    loaded = {}
    for encoder in plan.distinct_encoders:
        loaded[encoder] = [encoder.load(piece.pixels, piece.cover) for piece in pieces]
    frame = picture if moment.clip else None
    return Cutouts(moment, cast, list(regions), loaded, source, boxes, frame, thumbnail=thumbnail)


def _compared(plan: Plan, stream: Iterable[Cutouts], line: Timeline, progress: Progress | None) -> Match:
    """Embed regions in batches across images, compare them with the subjects, and assign them."""
    images: list[Cutouts] = []
    skipped = dict(line.problems)
    distances: list[Distances] = []
    vectors: dict[Encoder, defaultdict[int, list[Any]]] = {
        encoder: defaultdict(list) for encoder in plan.distinct_encoders
    }
    usable = _usable(stream, images, skipped, len(line.moments), progress)
    for encoder, region_ids, embedding in _embedded(plan, images, usable):
        unit = F.normalize(embedding.cls.detach().float(), dim=1).cpu().double().numpy()
        for (time, _), vector in zip(region_ids, unit, strict=True):
            vectors[encoder][time].append(vector)
        for number, subject in enumerate(plan.subjects):
            if plan.encoders[number] is not encoder:
                continue
            rows = [row for row, region_id in enumerate(region_ids) if plan.is_compared(number, images, region_id)]
            if rows:
                compared = [region_ids[row] for row in rows]
                distances.append(Distances(number, compared, encoder.distances(subject, embedding[rows])))
    features = {}
    for encoder, by_time in vectors.items():
        features[encoder] = tuple(np.array(by_time[time], dtype=float) for time in range(len(images)))

    values = _table_values(plan, images, distances)
    table = Table(
        values=values[..., :-1],
        times=tuple(cutouts.moment.name for cutouts in images),
        subjects=tuple(subject.name for subject in plan.subjects),
        references=tuple(subject.references for subject in plan.subjects),
        regions=tuple(tuple(cutouts.regions) for cutouts in images),
        clips=tuple(cutouts.moment.clip for cutouts in images),
        seconds=tuple(cutouts.moment.seconds for cutouts in images),
        frames=tuple(cutouts.moment.frame for cutouts in images),
    )
    by_region = table.over_references(plan.aggregate).detach().cpu().double().numpy()
    thresholds = [math.nan if limit is None else limit.distance for limit in plan.limits]
    assignments = []
    for time, cutouts in enumerate(images):
        expected = [plan.expected(region) for region in cutouts.regions]
        distances_of_image = by_region[time, :, : len(cutouts.regions)]
        assignments.append(assigned(distances_of_image, thresholds, expected, cutouts.cast))
    return Match(
        table=table,
        assignments=tuple(assignments),
        thresholds=tuple(thresholds),
        threshold_sources=tuple("" if limit is None else limit.source for limit in plan.limits),
        cast=np.array([cutouts.cast for cutouts in images], dtype=bool).reshape(len(images), len(plan.subjects)),
        aggregate=plan.aggregate,
        missing=plan.missing,
        words=tuple(subject.word for subject in plan.subjects),
        whole=values[..., WHOLE] if plan.with_whole else None,
        features=tuple(features[encoder] for encoder in plan.encoders),
        boxes=tuple(np.array(cutouts.boxes).reshape(-1, 4) for cutouts in images),
        frame_differences=tuple(cutouts.difference for cutouts in images),
        thumbnails=tuple(cutouts.thumbnail for cutouts in images if cutouts.thumbnail is not None),
        clip_lengths={clip: len(opened.times) for clip, opened in line.clips.items()},
        skipped=skipped,
        signature=_signature(plan),
    )


def _usable(
    stream: Iterable[Cutouts],
    images: list[Cutouts],
    skipped: dict[str, str],
    count: int,
    progress: Progress | None,
) -> Iterator[Cutouts]:
    """Yield the images that can be used, and add each to `images` or to `skipped`.

    A frame is compared with the one before.
    """
    for done, cutouts in enumerate(stream, 1):
        if cutouts.problem:
            skipped[cutouts.moment.name] = cutouts.problem
        else:
            if images and cutouts.moment.clip and images[-1].moment.clip == cutouts.moment.clip:
                cutouts.difference = frame_difference(images[-1].picture, cutouts.picture)
            if images:
                images[-1].picture = None
            images.append(cutouts)
            yield cutouts
        if progress is not None:
            progress(done, count)


def _embedded(
    plan: Plan, images: Sequence[Cutouts], usable: Iterable[Cutouts]
) -> Iterator[tuple[Encoder, list[RegionId], Embedding]]:
    """Yield full batches of regions across images, and at the end the rest: encoder, ids of its regions, embedding.

    Args:
        images: the ones that `usable` has yielded, for messages.
    """
    waiting: dict[Encoder, list[tuple[RegionId, Any]]] = {encoder: [] for encoder in plan.distinct_encoders}
    for time, cutouts in enumerate(usable):
        for encoder, pieces in waiting.items():
            for number, piece in _inputs(plan, cutouts, encoder):
                pieces.append(((time, number), piece))
                if len(pieces) == plan.batch_size:
                    yield _embed(encoder, images, pieces)
                    pieces.clear()
        cutouts.source = None
    for encoder, pieces in waiting.items():
        if pieces:
            yield _embed(encoder, images, pieces)


def _inputs(plan: Plan, cutouts: Cutouts, encoder: Encoder) -> Iterator[tuple[int, Any]]:
    """Number and input of each region of an image, and of the whole image last if it is wanted.

    The regions after the first batch are cut out one by one: all of thousands would fill the memory.
    """
    loaded = cutouts.loaded.pop(encoder)
    whole = loaded.pop() if plan.with_whole else None
    yield from enumerate(loaded)
    for number in range(len(loaded), len(cutouts.regions)):
        assert cutouts.source is not None
        piece = plan.cut.cut(cutouts.source, cutouts.regions[number], cutouts.moment.name)
        yield number, encoder.load(piece.pixels, piece.cover)
    if plan.with_whole:
        yield WHOLE, whole


def _embed(
    encoder: Encoder, images: Sequence[Cutouts], pieces: Sequence[tuple[RegionId, Any]]
) -> tuple[Encoder, list[RegionId], Embedding]:
    region_ids = [region_id for region_id, _ in pieces]
    try:
        return encoder, region_ids, encoder.embed([piece for _, piece in pieces])
    except NonFiniteError as error:  # it knows the cuts alone
        names = []
        for row in error.rows:
            time, number = region_ids[row]
            names.append(f"region {number} of {images[time].moment.name}")
        raise NonFiniteError(f"{shown(names)}: {error}", error.rows) from error


def _table_values(plan: Plan, images: Sequence[Cutouts], distances: Sequence[Distances]) -> Tensor:
    """Distances (T, S, K, R + 1), NaN where nothing was compared; the last region is the whole image."""
    most_references = max([len(subject) for subject in plan.subjects], default=1)
    most_regions = max([len(cutouts.regions) for cutouts in images], default=0)
    device = torch.device("cpu")
    if distances:
        device = distances[0].values.device
    shape = (len(images), len(plan.subjects), most_references, most_regions + 1)
    table = torch.full(shape, torch.nan, device=device)
    for part in distances:
        times, numbers = zip(*part.region_ids, strict=True)
        values = part.values.to(device).float()
        table[times, part.subject, : len(values), numbers] = values.T
    return table


def _signature(plan: Plan) -> dict[str, str]:
    """Everything that a distance depends on; subjects with another encoder than the first are named."""
    signature = dict(plan.encoders[0].signature)
    for subject, encoder in zip(plan.subjects, plan.encoders, strict=False):  # no subjects have an encoder, too
        if encoder is not plan.encoders[0]:
            model = subject.embedding.model or encoder.signature["model"]
            signature[f"encoder of {subject.name}"] = model
    signature["aggregate"] = plan.aggregate
    signature["cut"] = str(plan.cut)
    signature["missing"] = plan.missing
    return signature
