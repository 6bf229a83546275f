"""Distances of images to the references of one subject, and of pairs; lower = more surely the same identity.

scores = idmetric.score(metric, ["mug_a.jpg", "mug_b.jpg"], "generated/", distance="joint")
scores.rows[0]["distance"], scores.rows[0].get("answer"), scores.summary["mean"], scores.real
scores.to_pandas()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from PIL import Image

from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedding import Embedding, check_distances, concatenate
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath
from idmetric.metric.images import ImageReadError, Outside, check_paths, small_picture
from idmetric.metric.masks import MaskId, labeled
from idmetric.metric.paths import absent_mask, mask_of
from idmetric.metric.ties import comparable
from idmetric.scoring.calibration import Calibration, calibration_of, judged
from idmetric.scoring.copies import Print, take_print
from idmetric.scoring.pairs import (
    COLUMNS,
    RequestImage,
    ScoreRequest,
    absent_files,
    check_masks,
    pairs_of,
    request_of,
)
from idmetric.scoring.references import (
    Aggregate,
    closest,
    is_gray,
    mark_copy,
    real_distances,
    warn_of_gray,
    warn_of_no_pictures,
)
from idmetric.scoring.scores import NO_CALIBRATION, Record, Scores, named_score
from idmetric.store import cache_folder
from idmetric.stream import Item, Look, OnError, Seen, embedded, open_store, problem_of

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder
    from idmetric.metric.images import ImageLike
    from idmetric.scoring.sheet import Album

Progress = Callable[[int, int], object]  # called with (images or pairs done, images or pairs in all)


@dataclass(frozen=True)
class ScoreSettings:
    """The settings of `score`, which explains them."""

    distance: str = "cls"
    aggregate: Aggregate = "best"
    mask_dir: StrPath | None = None
    mask_id: MaskId | None = None
    outside: Outside = "black"
    on_error: OnError = "fail"
    cache: StrPath | None = None
    calibration: StrPath | Calibration | None = None
    copies: bool = True
    threshold: float | None = None
    batch_size: int = 32
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("aggregate", Aggregate), ("outside", Outside), ("on_error", OnError)):
            value, choices = getattr(self, name), get_args(kind)
            if value not in choices:
                raise RequestError(f"unknown {name} {value!r}: choose {', '.join(choices)}")
        if self.threshold is not None and math.isnan(self.threshold):
            raise RequestError("threshold must be a number")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


def score(
    metric: Embedder,
    references: ImageLike | Iterable[ImageLike] | Embedding,
    images: ImageLike | Iterable[ImageLike],
    *,
    distance: str = "cls",
    aggregate: Aggregate = "best",
    include_references: bool = False,
    mask_dir: StrPath | None = None,
    mask_id: MaskId | None = None,
    outside: Outside = "black",
    on_error: OnError = "fail",
    cache: StrPath | None = None,
    calibration: StrPath | Calibration | None = None,
    copies: bool = True,
    threshold: float | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Compute distances of images to the references of one subject, sorted; lower = more surely the same identity.

    Args:
        references: images of the subject: a path, a folder, a pattern, an image in memory (see `ImageLike`), or a list
            of them. In rows, images in memory are named by their place: reference[3] is the fourth. Or an `Embedding`,
            or the .idm file that it was saved to: these hold no pictures, so copies cannot be found.
        images: the images to score, given in the same way; in rows image[3] is the fourth.
        aggregate: with several references, the distance to the nearest ("best") or the mean distance.
        include_references: also score references that are among the images.
        mask_dir: a folder with the subject mask of each image, see `idmetric.metric.paths.mask_of`.
        mask_id, outside: as in `Embedder.embed`.
        on_error: raise for unreadable images ("fail"), or list them in `Scores.skipped` ("skip").
        cache: a folder that keeps embeddings by the content of image files; a stopped run resumes from it.
        calibration: adds `probability`, and the `answer` same, unsure or different: a file, or a `Calibration`;
            default: the one in the folder of the model's weights, if it holds for this distance and these masks.
        copies: look for images that repeat a reference's pixels, mark them, and give a `CopyWarning`; also give one for
            references that repeat each other, which count once among the real photos, and a `GrayWarning` for gray
            images against references in color.
        threshold: the largest distance that passes; the `answer` is then pass or fail.
        batch_size: images per pass. workers: threads that read images; default: one for each core, at most 8.
        progress: called with (images done, images in all).

    Raises:
        RequestError: if references, images, masks or settings do not fit.
        ImageReadError: with on_error="fail", naming the first unreadable image.
        CalibrationError: for a calibration of another model, distance or way of masking.
    """
    settings = ScoreSettings(
        distance=distance,
        aggregate=aggregate,
        mask_dir=mask_dir,
        mask_id=mask_id,
        outside=outside,
        on_error=on_error,
        cache=cache,
        calibration=calibration,
        copies=copies,
        threshold=threshold,
        batch_size=batch_size,
        workers=workers,
    )
    request = request_of(references, images, include_references)
    return scores_of(metric, request, settings, progress=progress)


def score_pairs(
    metric: Embedder,
    pairs: StrPath | Iterable[Mapping[Any, Any] | Sequence[ImageLike | None]],
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> Scores:
    """Compute distances of pairs, in order: rows with a pair's first image as `reference`, the second as `image`.

    Args:
        pairs: a CSV file, a pandas DataFrame or a list of dicts with columns a,b[,mask_a,mask_b], and others that are
            carried through; or a list of tuples (a, b) or (a, b, mask_a, mask_b). All but CSV files may hold images
            in memory; in rows, those of the fourth pair are reference[3] and image[3].
        progress: as in `score`. settings: other options of `score`; without `aggregate`.

    Raises:
        RequestError: for a file of pairs that cannot be read; otherwise as `score`.
    """
    if "aggregate" in settings:
        raise TypeError("score_pairs takes no aggregate: each pair has its own row")
    options = ScoreSettings(**settings)
    return scores_of(metric, pairs_of(pairs, options.on_error), options, progress=progress)


def scores_of(
    metric: Embedder,
    request: ScoreRequest,
    settings: ScoreSettings,
    *,
    progress: Progress | None = None,
    album: Album | None = None,
) -> Scores:
    """Score what is listed, see `score`; `album` keeps pictures and rows for a page."""
    if isinstance(metric, str):
        raise RequestError(f"an opened metric is needed, not its name: idmetric.load({metric!r})")
    absent = absent_files(request) if settings.on_error == "fail" else []
    if absent:
        check_paths(absent[0])
    has_masks = check_masks(request, settings.mask_dir, settings.mask_id)
    if has_masks and metric.preprocessing == "release":
        raise RequestError("the releases take no masks: leave out the masks, or preprocessing release")
    calibration = _calibration(metric, request, settings)

    skipped = dict(request.skipped)
    with closing(_read(metric, request, settings, album)) as images:
        compared, real = _compared(metric, request, settings, images, skipped, progress)

    # ranks; rows of pairs keep their order
    signature = metric.signature(settings.distance)
    for result in compared:
        row = judged(result.row, signature, calibration, settings.threshold)
        if calibration is not None and settings.aggregate == "mean":
            row["probability"] = float(calibration.probability(result.distances).mean())
        result.row = row
    rows = [result.row for result in compared]
    columns = dict.fromkeys(name for row in rows for name in row)
    ranked = sorted(rows, key=lambda row: comparable(row["distance"]))
    for rank, row in enumerate(ranked, 1):
        row["rank"] = rank
    if album is not None:
        album.references = request.references
        album.entries = [(result.row, result.image, result.reference) for result in compared]

    is_published = settings.distance == "cls" and not has_masks
    return Scores(
        ranked if request.references else rows,
        tuple(columns) or COLUMNS[:5],
        signature,
        dict(sorted(skipped.items())),
        real,
        threshold=settings.threshold,
        threshold_source="given" if settings.threshold is not None else "",
        basis=NO_CALIBRATION if calibration is None else calibration.basis,
        left_out=request.left_out,
        named=named_score(metric, [result.distances for result in compared], of_whole_images=is_published),
    )


def _calibration(metric: Embedder, request: ScoreRequest, settings: ScoreSettings) -> Calibration | None:
    """The calibration that holds for all images of a request, with and without masks."""
    has_folder = settings.mask_dir is not None
    masked = {has_folder or image.mask is not None for image in request.read}
    source = settings.calibration
    calibration = None
    for is_masked in masked:
        outside = settings.outside if is_masked else "all"
        calibration = calibration_of(metric, source, settings.distance, outside)
        if calibration is None:
            return None
    return calibration


# Images


def _read(
    metric: Embedder, request: ScoreRequest, settings: ScoreSettings, album: Album | None
) -> Generator[Seen, None, None]:
    """The images of a request in their order, embedded; what copies and a page need is taken of each picture."""
    patches = needs_patches(settings.distance)
    folder = cache_folder(settings.cache)
    store = None
    if folder is not None:
        store = open_store(folder, metric, patches=patches)
    also = None
    if settings.copies or album is not None:
        also = partial(_taken, settings, album)
    return embedded(
        (_item(image, settings.mask_dir) for image in request.read),
        metric,
        Look(True, settings.outside, settings.mask_id),
        store=store,
        also=also,
        patches=patches,
        batch_size=settings.batch_size,
        workers=settings.workers,
        on_error=settings.on_error,
    )


def _item(image: RequestImage, mask_dir: StrPath | None) -> Item:
    name, mask, problem = image.name, image.mask, None
    if mask is None and mask_dir is not None:
        mask = mask_of(mask_dir, name)
        if mask is None:
            problem = ImageReadError(*absent_mask(mask_dir, name))
    return Item(name, image.image, mask, problem=problem, source=image)


def _taken(settings: ScoreSettings, album: Album | None, item: Item, picture: Image.Image) -> dict[str, Print]:
    if album is not None:
        image, mask = item.source, labeled(item.mask, settings.mask_id)
        album.add_picture(image, picture, mask, settings.outside)
    if not settings.copies:
        return {}
    return {"print": take_print(small_picture(picture))}


# Comparing


@dataclass(frozen=True)
class ReferenceSet:
    """The references that can be used, embedded; without `prints`, copies are not looked for."""

    images: list[RequestImage]
    embedding: Embedding
    prints: list[Print]
    are_in_color: bool

    @property
    def names(self) -> list[str]:
        """The names of the images."""
        return [image.name for image in self.images]


@dataclass
class Compared:
    """The row of an image, its distance to each reference, and the nearest reference."""

    row: Record
    distances: list[float]
    image: RequestImage
    reference: RequestImage


def _compared(
    metric: Embedder,
    request: ScoreRequest,
    settings: ScoreSettings,
    images: Iterator[Seen],
    skipped: dict[str, str],
    progress: Progress | None,
) -> tuple[list[Compared], dict[str, float]]:
    """Compare each readable image with its references; also `Scores.real`.

    An image is embedded once, and kept until the last batch that needs it.
    """
    batches = request.batches(settings.batch_size)
    total = sum(len(batch.images) for batch in batches)
    last_batch: dict[RequestImage, int] = {}
    for number, batch in enumerate(batches):
        last_batch |= dict.fromkeys(batch.read, number)

    references = None
    compared: list[Compared] = []
    real: dict[str, float] = {}
    gray: dict[str, None] = {}
    results: dict[RequestImage, Seen] = {}  # of images that are still needed
    done = 0
    for number, batch in enumerate(batches):
        usable = _usable(batch.references, results, images, skipped)
        if number == 0 or not request.references:  # those of a subject are the same in all batches
            references, real = _reference_set(metric, request, settings, usable)
        if references is None and request.references:
            break
        candidates = _usable(batch.images, results, images, skipped)
        if references is not None and candidates:
            for result in _results(metric, settings, references, candidates):
                result.row |= batch.extra
                compared.append(result)
            if references.are_in_color:
                gray |= {image.item.name: None for image in candidates if is_gray(image.also["print"].pixels)}
        for image in batch.read:
            if last_batch[image] == number:
                results.pop(image, None)
        done += len(batch.images)
        if progress is not None:
            progress(done, total)
    warn_of_gray(list(gray))
    return compared, real


def _usable(
    wanted: Iterable[RequestImage],
    results: dict[RequestImage, Seen],
    images: Iterator[Seen],
    skipped: dict[str, str],
) -> list[Seen]:
    """Those of the wanted images that can be used; `skipped` gets the others, with their reasons.

    Images that are not in `results` are the next of `images`, which come in the order of `ScoreRequest.read`.
    """
    usable = []
    for image in wanted:
        if image not in results:
            results[image] = next(images)
        result = results[image]
        if result.problem is None:
            usable.append(result)
        else:
            skipped[image.name] = problem_of(result.problem, image.name)
    return usable


def _reference_set(
    metric: Embedder, request: ScoreRequest, settings: ScoreSettings, usable: Sequence[Seen]
) -> tuple[ReferenceSet | None, dict[str, float]]:
    """The references, embedded now or before, and `Scores.real`; None if none can be used."""
    prints: list[Print] = []
    if request.embedding is not None:
        request.embedding.check_maker(metric.model_id, needs_patches(settings.distance))
        if settings.copies:
            warn_of_no_pictures()
        sources = request.references
        embedding = request.embedding.to(metric.device)
    elif usable:
        sources = [result.item.source for result in usable]
        embedding = _together(usable, metric)
        if settings.copies:
            prints = [result.also["print"] for result in usable]
    else:
        return None, {}

    has_gray = any(is_gray(reference.pixels) for reference in prints)
    references = ReferenceSet(sources, embedding, prints, bool(prints) and not has_gray)
    if len(sources) < 2:
        return references, {}
    between = metric.pairwise(embedding, None, settings.distance).double().cpu().numpy()
    return references, real_distances(between, references.names, prints, settings.aggregate)


def _results(
    metric: Embedder, settings: ScoreSettings, references: ReferenceSet, images: Sequence[Seen]
) -> list[Compared]:
    """Compare images with references, not by the metric, which would check each time that it has not changed."""
    names = references.names
    matrix = distance_matrix(references.embedding, _together(images, metric), settings.distance).mT
    check_distances(matrix, metric.dtype, [image.item.name for image in images])
    compared = []
    for image, distances in zip(images, matrix.double().tolist(), strict=True):
        nearest = int(comparable(distances).argmin())
        name = image.item.name
        row: Record = {"distance": distances[nearest], "image": name, "reference": names[nearest]}
        if settings.aggregate == "mean":
            row["distance"] = sum(distances) / len(distances)
            row["reference"] = ";".join(names)
        if references.prints:
            number, copy = closest(references.prints, image.also["print"])
            mark_copy(row, name, names[number], copy)
        compared.append(Compared(row, distances, image.item.source, references.images[nearest]))
    return compared


def _together(images: Sequence[Seen], metric: Embedder) -> Embedding:
    """The embeddings of images, on the model's device."""
    rows = [image.row for image in images]
    return concatenate(rows).to(metric.device)
