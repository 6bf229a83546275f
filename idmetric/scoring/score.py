"""Distances of images to the references of one subject, and of pairs; lower = more surely the same identity.

scores = idmetric.score(metric, ["mug_a.jpg", "mug_b.jpg"], "generated/", distance="joint")
scores.rows[0]["distance"], scores.rows[0].get("answer"), scores.summary["mean"], scores.real
scores.to_pandas()
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

from PIL import Image

from idmetric.metric.distance import distance as distance_of
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
from idmetric.scoring.copies import compare as copy_of
from idmetric.scoring.copy_warnings import closest, is_gray, mark_copy, warn_of_gray, warn_of_no_pictures
from idmetric.scoring.pairs import (
    COLUMNS,
    RequestImage,
    ScoreRequest,
    absent_files,
    check_masks,
    pairs_of,
    read_pairs,
    request_of,
)
from idmetric.scoring.references import Aggregate, real_distances
from idmetric.scoring.scores import NO_CALIBRATION, Record, Scores, named_score
from idmetric.store import cache_folder
from idmetric.stream import Item, Look, Seen, embedded, open_store, problem_of

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
    on_error: Literal["fail", "skip"] = "fail"
    cache: StrPath | None = None
    calibration: StrPath | Calibration | None = None
    copies: bool = True
    threshold: float | None = None
    batch_size: int = 32
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.aggregate not in ("best", "mean"):
            raise RequestError(f"unknown aggregate {self.aggregate!r}: choose best, mean")
        if self.outside not in get_args(Outside):
            raise RequestError(f"unknown outside {self.outside!r}: choose {', '.join(get_args(Outside))}")
        if self.on_error not in ("fail", "skip"):
            raise RequestError(f"unknown on_error {self.on_error!r}: choose fail, skip")
        if self.threshold is not None and math.isnan(self.threshold):
            raise RequestError("threshold must be a number")


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
    on_error: Literal["fail", "skip"] = "fail",
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
    if isinstance(pairs, str | os.PathLike):
        request = read_pairs(pairs, options.on_error)
    else:
        request = ScoreRequest(pairs=pairs_of(pairs))
    return scores_of(metric, request, options, progress=progress)


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
    report = progress or (lambda *_: None)
    rows_of = _pair_rows if request.pairs else _image_rows
    with closing(_read(metric, request, settings, album)) as images:
        entries, distances, real = rows_of(metric, request, settings, images, skipped, report)

    # ranks; rows of pairs keep their order
    signature = metric.signature(settings.distance)
    rows = []
    columns: dict[str, None] = {}
    for (entry, image, reference), of_references in zip(entries, distances, strict=True):
        row = judged(entry, signature, calibration, settings.threshold)
        if calibration is not None and settings.aggregate == "mean" and not request.pairs:
            row["probability"] = float(calibration.probability(of_references).mean())
        rows.append(row)
        columns |= dict.fromkeys(row)
        if album is not None:
            album.entries.append((row, image, reference))
    if album is not None:
        album.references = request.references
    ranked = sorted(rows, key=lambda row: comparable(row["distance"]))
    for rank, row in enumerate(ranked, 1):
        row["rank"] = rank

    is_published = settings.distance == "cls" and not has_masks
    return Scores(
        rows if request.pairs else ranked,
        tuple(columns) or COLUMNS[:5],
        signature,
        dict(sorted(skipped.items())),
        real,
        threshold=settings.threshold,
        threshold_source="given" if settings.threshold is not None else "",
        basis=NO_CALIBRATION if calibration is None else calibration.basis,
        left_out=request.left_out,
        named=named_score(metric, distances, of_whole_images=is_published),
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


def _usable(images: Iterable[Seen], skipped: dict[str, str]) -> list[Seen]:
    """The images that can be used; `skipped` gets the others, with their reasons."""
    usable = []
    for result in images:
        name = result.item.name
        if result.problem is None:
            usable.append(result)
        else:
            skipped[name] = problem_of(result.problem, name)
    return usable


# Rows

Entry = tuple[Record, RequestImage, RequestImage]  # a row, its image, and the nearest reference
Rows = tuple[list[Entry], list[list[float]], dict[str, float]]  # the distances behind each row, and `Scores.real`


@dataclass(frozen=True)
class ReferenceSet:
    """The references that can be used, embedded; without `prints`, copies are not looked for."""

    images: list[RequestImage]
    embedding: Embedding
    prints: list[Print]

    @property
    def names(self) -> list[str]:
        """The names of the images."""
        return [image.name for image in self.images]


def _image_rows(
    metric: Embedder,
    request: ScoreRequest,
    settings: ScoreSettings,
    images: Iterator[Seen],
    skipped: dict[str, str],
    progress: Progress,
) -> Rows:
    """A row for each readable image against all references."""
    references = _references(metric, request, settings, images, skipped)
    if references is None:
        return [], [], {}
    matrix = metric.pairwise(references.embedding, None, settings.distance)
    between, prints = matrix.double().cpu().numpy(), references.prints
    real = real_distances(between, references.names, prints, settings.aggregate)
    has_gray = any(is_gray(reference.pixels) for reference in prints)
    in_color = bool(prints) and not has_gray

    entries: list[Entry] = []
    all_distances: list[list[float]] = []
    gray: list[str] = []
    done = 0
    while batch := list(islice(images, settings.batch_size)):
        usable = _usable(batch, skipped)
        if usable:
            embedding = _together(usable, metric)
            matrix = distance_matrix(references.embedding, embedding, settings.distance).mT
            names = [result.item.name for result in usable]
            check_distances(matrix, metric.dtype, names)
            rows = matrix.double().tolist()
            for result, distances in zip(usable, rows, strict=True):
                entry = _image_entry(references, settings.aggregate, result, distances)
                entries.append(entry)
                all_distances.append(distances)
                if in_color and is_gray(result.also["print"].pixels):
                    gray.append(result.item.name)
        done += len(batch)
        progress(done, len(request.images))
    warn_of_gray(gray)
    return entries, all_distances, real


def _references(
    metric: Embedder, request: ScoreRequest, settings: ScoreSettings, images: Iterator[Seen], skipped: dict[str, str]
) -> ReferenceSet | None:
    """The references, embedded now or before; None if none can be used."""
    if request.embedding is not None:
        request.embedding.check_maker(metric.model_id, needs_patches(settings.distance))
        if settings.copies:
            warn_of_no_pictures()
        embedding = request.embedding.to(metric.device)
        return ReferenceSet(request.references, embedding, [])
    usable = _usable(islice(images, len(request.references)), skipped)
    if not usable:
        return None
    sources = [result.item.source for result in usable]
    prints = [result.also["print"] for result in usable if settings.copies]
    return ReferenceSet(sources, _together(usable, metric), prints)


def _image_entry(references: ReferenceSet, aggregate: Aggregate, image: Seen, distances: list[float]) -> Entry:
    """The row of an image with these distances to each reference."""
    nearest = int(comparable(distances).argmin())
    name, names = image.item.name, references.names
    row: Record = {"distance": distances[nearest], "image": name, "reference": names[nearest]}
    if aggregate == "mean":
        row["distance"] = sum(distances) / len(distances)
        row["reference"] = ";".join(names)
    if references.prints:
        number, copy = closest(references.prints, image.also["print"])
        mark_copy(row, name, names[number], copy)
    return row, image.item.source, references.images[nearest]


def _pair_rows(
    metric: Embedder,
    request: ScoreRequest,
    settings: ScoreSettings,
    images: Iterator[Seen],
    skipped: dict[str, str],
    progress: Progress,
) -> Rows:
    """A row for each readable pair; an image is embedded once, and kept until its last pair."""
    last_pair = {}
    for number, pair in enumerate(request.pairs):
        last_pair[pair.a] = last_pair[pair.b] = number

    entries: list[Entry] = []
    gray: dict[str, None] = {}
    results: dict[RequestImage, Seen] = {}  # of images that are still needed
    for number, pair in enumerate(request.pairs):
        while pair.a not in results or pair.b not in results:
            result = next(images)
            results[result.item.source] = result
        usable = _usable([results[pair.a], results[pair.b]], skipped)
        for image in {pair.a, pair.b}:
            if last_pair[image] == number:
                del results[image]
        if len(usable) == 2:
            row = _pair_row(metric, settings, *usable)
            if settings.copies:
                reference, candidate = (result.also["print"] for result in usable)
                if is_gray(candidate.pixels) and not is_gray(reference.pixels):
                    gray[pair.b.name] = None
            row |= pair.extra
            entries.append((row, pair.b, pair.a))
        progress(number + 1, len(request.pairs))
    warn_of_gray(list(gray))
    distances = [[row["distance"]] for row, _, _ in entries]
    return entries, distances, {}


def _pair_row(metric: Embedder, settings: ScoreSettings, a: Seen, b: Seen) -> Record:
    """The row of two images, not by the metric, which would check each time that its weights have not changed."""
    name, reference = b.item.name, a.item.name
    embedding_a = _together([a], metric)
    embedding_b = _together([b], metric)
    distances = distance_of(embedding_a, embedding_b, settings.distance)
    check_distances(distances, metric.dtype, [name])
    row: Record = {"distance": float(distances[0]), "image": name, "reference": reference}
    if settings.copies:
        copy = copy_of(a.also["print"], b.also["print"])
        mark_copy(row, name, reference, copy)
    return row


def _together(images: Sequence[Seen], metric: Embedder) -> Embedding:
    """The embeddings of images, on the model's device."""
    rows = [image.row for image in images]
    return concatenate(rows).to(metric.device)
