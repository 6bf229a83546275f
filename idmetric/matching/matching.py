"""Match subjects to the regions of images: one table of distances, and who is where.

found = match(metric, {"ann": ["ann_1.jpg", "ann_2.jpg"], "rex": "refs/rex/"}, "generated.png", regions="boxes.json")
found.states    # [["matched", "missing"]]
found.table     # a row for each subject and region
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from idmetric.matching.assignment import MARGIN, assigned
from idmetric.matching.casts import Cast, cast_of
from idmetric.matching.clips import Cutouts, Moment, is_clip, moments_of, names_of, sources_of
from idmetric.matching.frames import ClipError
from idmetric.matching.listed_paths import names_text
from idmetric.matching.region_files import FindRegions, region_finder
from idmetric.matching.regions import Detector, Regions, as_region, cut
from idmetric.matching.result import COLUMNS, Match, image_rows, over_references
from idmetric.matching.subjects import Subject, Subjects, check_subjects, embedded_subject
from idmetric.matching.thresholds import Thresholds, limits_of
from idmetric.metric.distance import needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, concatenate
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, need
from idmetric.metric.images import ImageReadError, Outside, Picture, check_paths, describe, image_of_pixels, is_tensor
from idmetric.scoring.references import Aggregate
from idmetric.store import Store, cache_folder
from idmetric.stream import Item, OnError, Part, embedded, open_store

Progress = Callable[[int, int | None], object]  # called with (images done, images in all, if that is known)
_AHEAD = 8  # images that are read before they are embedded


@dataclass(frozen=True)
class MatchRequest:
    """Images and clips that are not read yet, with regions and casts that fit them.

    Attributes:
        sources: images, and paths of clips. names: of each, the name of the image, or of all frames; none of a clip
            that cannot be used.
        find_regions: see `region_files`.
        cast: name of an image, a clip or a frame -> the subjects that should be in it.
        skipped: clip -> why it cannot be used.
    """

    sources: list[Any]
    names: list[list[str]]
    find_regions: FindRegions
    cast: dict[str, list[str]]
    skipped: dict[str, str]

    @classmethod
    def of(
        cls,
        images: Any,
        subjects: Sequence[str] = (),
        regions: Regions = None,
        cast: Cast | StrPath | None = None,
        on_error: OnError = "fail",
    ) -> MatchRequest:
        """List images and the frames of clips, and read the files of regions and casts.

        Args:
            subjects: their names. images, regions, cast, on_error: see `match`.

        Raises:
            RequestError, ImageReadError, ClipError: as `match`.
        """
        sources = sources_of(images)
        if on_error == "fail":
            check_paths(sources)
        names: list[list[str]] = []
        skipped = {}
        for number, source in enumerate(sources):
            try:
                names.append(names_of(source, number, len(sources) == 1))
            except ClipError as error:
                if on_error == "fail":
                    raise
                skipped[describe(source)] = str(error)
                names.append([])
        find_regions = region_finder(regions, names)
        clips = [describe(source) for source in sources if is_clip(source)]
        image_names = [name for names_of_source in names for name in names_of_source]
        twice = [name for name, count in Counter(image_names).items() if count > 1]
        if twice:
            raise RequestError(f"{twice[0]} is given twice: give each image once")
        return cls(sources, names, find_regions, cast_of(cast, [*clips, *image_names], subjects), skipped)


@dataclass(frozen=True)
class ReadOptions:
    """How the images of a request are read and embedded; see `match`.

    Attributes:
        patches: whether embeddings have patches.
    """

    outside: Outside = "keep"
    rate: float | None = None
    detector: Detector | None = None
    on_error: OnError = "fail"
    store: StrPath | None = None
    batch_size: int = 32
    patches: bool = False
    progress: Progress | None = None

    @property
    def signature(self) -> dict[str, str]:
        """The facts that distances depend on."""
        signature: dict[str, str] = {"outside": self.outside}
        if self.detector is not None:
            signature["detector"] = getattr(self.detector, "signature", repr(self.detector))
        if self.rate is not None:
            signature["rate"] = f"{self.rate:g}"
        return signature


def match(
    metric: Embedder,
    subjects: Subjects,
    images: Any,
    regions: Regions = None,
    *,
    cast: Cast | StrPath | None = None,
    threshold: Thresholds = None,
    margin: float = MARGIN,
    distance: str = "cls",
    aggregate: Aggregate = "best",
    outside: Outside = "keep",
    rate: float | None = None,
    detector: Detector | None = None,
    on_error: OnError = "fail",
    store: StrPath | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Match:
    """Compute the distance of every region to every reference of every subject, and assign regions to subjects.

    Args:
        subjects: the references of each subject by its name, in any form that `Embedder.embed` takes, or an `Embedding`
            of them, or the .idm file that it was saved to.
        images: one image or several, the paths of videos and GIFs, whose frames are images with times; or a
            `MatchRequest` of them, which has its own regions and cast.
        regions: where subjects may be, see `idmetric.matching.region_files`; default the whole image.
        cast: the subjects that should be in each image, see `matching.casts`; default all. A subject outside the cast
            is not missing.
        threshold: the largest distance that counts as a subject, of all or by name; a `Limit` names its source.
            Default: that of the subject's own photos or the calibration's, whichever is larger; 5 % of the pairs of two
            identities are within the calibration's. A `Calibration` takes the place of the model's stored one.
        margin: a region within the thresholds of several subjects counts as the nearest, and as those that are at most
            1 + margin times as far.
        distance: see `idmetric.metric.distance`. aggregate: over references: the nearest ("best"), or the mean.
        outside: what becomes of the pixels outside of a region's mask: "keep", "black" or "white".
        rate: frames per second of clips; default all frames.
        detector: a function that finds the regions of a picture, such as `WordDetector`; instead of `regions`.
        on_error: raise for an image, a clip or a region that cannot be used, or list its image in `Match.skipped`.
        store: a folder that keeps the embeddings of image files and their regions.
        batch_size: regions per pass. progress: see `Progress`.

    Returns:
        See `Match`. Its distances have gradients if images are tensors that require grad.

    Raises:
        RequestError: for subjects, regions or settings that do not fit.
        ImageReadError: with on_error="fail", for an image, a mask or a box that cannot be used.
        ClipError: with on_error="fail", for a clip that cannot be used.
        ImportError: without the packages of the extra `eval`.
    """
    need("eval", "match", scipy="SciPy")
    if aggregate not in get_args(Aggregate) or on_error not in get_args(OnError):
        raise RequestError(f"unknown aggregate {aggregate!r} or on_error {on_error!r}: choose best, mean; fail, skip")
    if outside not in ("keep", "black", "white"):
        raise RequestError(f"outside of a region's mask must be keep, black or white, got {outside!r}")
    if margin < 0 or (rate is not None and rate <= 0):
        raise RequestError(f"margin must be at least 0 and rate above 0, got {margin} and {rate}")
    check_subjects(subjects)
    request = images
    if regions is not None and (detector is not None or isinstance(request, MatchRequest)):
        raise RequestError("give regions alone, or a detector, or a request that has its own regions")
    if not isinstance(request, MatchRequest):
        request = MatchRequest.of(images, list(subjects), regions, cast, on_error)

    patches = needs_patches(distance)
    options = ReadOptions(outside, rate, detector, on_error, store, batch_size, patches, progress)
    embeddings = _store_of(metric, options)
    roster = []
    for name, source in subjects.items():
        roster.append(embedded_subject(name, source, metric, distance, batch_size=batch_size, store=embeddings))
    limits = limits_of(metric, roster, distance, aggregate, threshold)

    cutouts, distances = _measured(metric, roster, request, options, distance)

    # who is where
    thresholds = [np.nan if limit is None else limit.distance for limit in limits.values()]
    by_region = over_references(distances, aggregate).detach().cpu().double().numpy()
    rows = []
    assignments = []
    usable = [image for image in cutouts if not image.problem]
    for to_regions, image in zip(by_region, usable, strict=True):
        to_regions = to_regions[:, : len(image.regions)]
        members = _members(request, image.moment, limits)
        assignment = assigned(to_regions, thresholds, members, margin=margin)
        assignments.append(assignment)
        rows += image_rows(image, assignment, to_regions, limits, members)

    signature: dict[str, str] = {
        **metric.signature(distance),
        "aggregate": aggregate,
        "margin": f"{margin:g}",
        **options.signature,
    }
    in_rows = {"distance_name" if key == "distance" else key: text for key, text in signature.items()}
    return Match(
        [row | in_rows for row in rows],
        (*COLUMNS, *in_rows),
        distances=distances,
        images=tuple(usable),
        assignments=tuple(assignments),
        limits=limits,
        skipped=request.skipped | {image.moment.name: image.problem for image in cutouts if image.problem},
        unlisted=_unlisted(request, usable),
        signature=signature,
    )


def _measured(
    metric: Embedder, roster: Sequence[Subject], request: MatchRequest, options: ReadOptions, distance: str
) -> tuple[list[Cutouts], Tensor]:
    """All images of a request, and the distances (T, S, K, R) of those without a problem, NaN beyond their regions."""
    images: list[Cutouts] = []
    columns = []  # (S, K, n) of each batch of regions
    batch: list[Embedding] = []
    for image, embedding in embedded_regions(metric, request, options):
        if not images or images[-1] is not image:
            images.append(image)
        if embedding is not None:
            image.embedded += 1
            batch.append(embedding)
        if len(batch) == options.batch_size:
            columns.append(_distances(metric, roster, batch, distance))
            batch.clear()
    columns.append(_distances(metric, roster, batch, distance))

    regions = torch.cat(columns, 2).permute(2, 0, 1)
    counts = [image.embedded for image in images]
    parts = torch.split(regions, counts) if counts else ()
    used = [part for image, part in zip(images, parts, strict=True) if not image.problem]
    if not used:
        return images, regions.new_empty(0, *regions.shape[1:], 0)
    return images, pad_sequence(used, batch_first=True, padding_value=torch.nan).permute(0, 2, 3, 1)


# Reading


def embedded_regions(
    metric: Embedder, request: MatchRequest, options: ReadOptions
) -> Iterator[tuple[Cutouts, Embedding | None]]:
    """Yield each image with the embedding of each of its regions in turn, or with None if there is none."""
    results = embedded(
        _items(request, options),
        metric,
        store=_store_of(metric, options),
        patches=options.patches,
        batch_size=options.batch_size,
        ahead=_AHEAD,
        on_error=options.on_error,
        keeps_graph=True,
    )
    total = None if options.rate else sum(map(len, request.names))
    done = 0
    last: Cutouts | None = None
    for result in results:
        image: Cutouts = result.item.source
        if image is not last and options.progress is not None:
            done += 1
            options.progress(done, total)
        last = image
        error = result.problem
        if error is not None:
            is_own = error.source == image.moment.name
            image.problem = error.reason if is_own else f"{error.source}: {error.reason}"
        yield image, result.embedding


def _store_of(metric: Embedder, options: ReadOptions) -> Store | None:
    folder = cache_folder(options.store)
    return None if folder is None else open_store(folder, metric, patches=options.patches)


def _items(request: MatchRequest, options: ReadOptions) -> Iterator[Item]:
    """Yield the images and frames of a request, in order; a clip that is damaged ends with a problem."""
    for number, (source, names) in enumerate(zip(request.sources, request.names, strict=True)):
        if not names:
            continue
        try:
            for moment, image in moments_of(source, names, options.rate):
                cutouts = Cutouts(moment)
                parts = partial(_parts, request, options, number, cutouts)
                yield Item(moment.name, image, parts=parts, source=cutouts)
        except ClipError as error:
            if options.on_error == "fail":
                raise
            clip = describe(source)
            yield Item(clip, problem=ImageReadError(clip, str(error)), source=Cutouts(Moment(clip)))


def _parts(
    request: MatchRequest, options: ReadOptions, number: int, image: Cutouts, picture: Picture
) -> Iterator[Part]:
    """Yield an image's regions, cut out when they are asked for: all of thousands would fill the memory."""
    name = image.moment.name
    if options.detector is None:
        regions = request.find_regions(number, name)
        image.is_listed = regions is not None
    else:
        seen = image_of_pixels(picture.detach()) if is_tensor(picture) else picture
        try:
            regions = [as_region(region) for region in options.detector(seen)]
        except RequestError as error:  # of this image alone, such as an empty box
            raise ImageReadError(name, str(error)) from error
    for region in regions or ():
        piece = cut(picture, region, name, options.outside)
        image.regions.append(region)
        image.boxes.append(piece.box)
        yield Part(piece.pixels, piece.cover, "" if region.is_whole else piece.key(options.outside))


# Distances


def _distances(metric: Embedder, roster: Sequence[Subject], rows: Sequence[Embedding], distance: str) -> Tensor:
    """The distances (S, K, n) of all references to a batch of regions, NaN where a subject has fewer references."""
    device = metric.device
    counts = [len(subject.references) for subject in roster]
    shape = (len(roster), max(counts), len(rows))
    distances = torch.full(shape, torch.nan, device=device)
    if not rows:
        return distances
    regions = concatenate([row.to(device) for row in rows])  # with a graph, or from the store on the CPU
    for number, subject in enumerate(roster):
        references = subject.embedding.to(device)
        values = metric.pairwise(references, regions, distance)
        distances[number, : len(values)] = values.float()
    return distances


# What else a result says


def _members(request: MatchRequest, moment: Moment, subjects: Collection[str]) -> list[bool]:
    """Whether each subject should be in an image: by its own cast, else by that of its clip; all without one."""
    of_clip = request.cast.get(moment.clip, list(subjects))
    members = request.cast.get(moment.name, of_clip)
    return [subject in members for subject in subjects]


def _unlisted(request: MatchRequest, images: Sequence[Cutouts]) -> tuple[str, ...]:
    """The images without an entry in the file of regions, with a warning of them, and of those without a cast."""
    unlisted = []
    without_cast = []
    for image in images:
        moment = image.moment
        if not image.is_listed:
            unlisted.append(moment.name)
        if request.cast and not request.cast.keys() & {moment.name, moment.clip}:
            without_cast.append(moment.name)
    if unlisted:
        shown = names_text(unlisted)
        warnings.warn(f"{len(unlisted)} images are not listed with regions, and count as none: {shown}", stacklevel=3)
    if without_cast:
        shown = names_text(without_cast)
        warnings.warn(f"{len(without_cast)} images have no cast, and should show all subjects: {shown}", stacklevel=3)
    return tuple(unlisted)
