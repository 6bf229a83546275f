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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
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
from idmetric.scoring.calibration import Calibration, calibration_of
from idmetric.scoring.copies import Print, take_print
from idmetric.scoring.copies import compare as copy_of
from idmetric.scoring.copy_warnings import (
    closest,
    is_gray,
    mark_copy,
    warn_of_gray,
    warn_of_no_pictures,
    warn_of_repeated_references,
)
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
from idmetric.scoring.references import Aggregate, leave_one_out, originals
from idmetric.scoring.scores import NO_CALIBRATION, Record, Scores
from idmetric.store import cache_folder
from idmetric.stream import Item, Look, Seen, embedded, open_store, problem_of
from idmetric.tables import rounded

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
        references: images of the subject: a path, a folder, a pattern, an image in memory (see `ImageLike`; rows call
            the fourth of a list reference[3]), or a list of them; or an `Embedding`, or the .idm file that it was saved
            to, which hold no pictures in which copies could be found.
        images: the images to score, given in the same way; rows call the fourth of a list image[3].
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
    return scores_of(metric, request_of(references, images, include_references), settings, progress=progress)


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
            carried through; or a list of tuples (a, b) or (a, b, mask_a, mask_b). All but files may hold images in
            memory, which rows of the fourth pair call reference[3] and image[3].
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
    with closing(_read(metric, request, settings, album)) as images:
        make = _pair_rows if request.pairs else _image_rows
        found, distances, real = make(metric, request, settings, images, skipped, progress or (lambda *_: None))

    # ranks; rows of pairs keep their order
    signature = metric.signature(settings.distance)
    rows = [_judged(row, signature, calibration, settings.threshold) for row, _, _ in found]
    ranked = sorted(rows, key=lambda row: comparable(row["distance"]))
    for rank, row in enumerate(ranked, 1):
        row["rank"] = rank
    if album is not None:
        album.references = request.references
        album.entries = [(row, image, reference) for row, (_, image, reference) in zip(rows, found, strict=True)]

    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    return Scores(
        rows if request.pairs else ranked,
        columns or COLUMNS[:5],
        signature,
        dict(sorted(skipped.items())),
        real,
        threshold=settings.threshold,
        threshold_source="given" if settings.threshold is not None else "",
        basis=NO_CALIBRATION if calibration is None else calibration.basis,
        left_out=request.left_out,
        named=_named(metric, distances, of_whole_images=settings.distance == "cls" and not has_masks),
    )


def _calibration(metric: Embedder, request: ScoreRequest, settings: ScoreSettings) -> Calibration | None:
    """The calibration that holds for all images of a request, with and without masks."""
    masked = {settings.mask_dir is not None or image.mask is not None for image in request.read}
    found = []
    for is_masked in masked:
        outside = settings.outside if is_masked else "all"
        found.append(calibration_of(metric, settings.calibration, settings.distance, outside))
    return found[0] if found and None not in found else None


def _judged(
    row: Record, signature: Mapping[str, str], calibration: Calibration | None, threshold: float | None
) -> Record:
    """A row with the one answer, the probability behind it, and the signature, in the order of the columns."""
    row = rounded(row)
    distance = row["distance"]
    judged: Record = {"rank": 0, "distance": distance}
    if threshold is not None:
        judged["answer"] = "pass" if comparable(distance) <= comparable(threshold) else "fail"
    elif calibration is not None:
        judged["answer"] = calibration.answer(distance)
    judged |= {"image": row["image"], "reference": row["reference"]}
    if calibration is not None:
        judged["probability"] = float(calibration.probability(distance))
    for name, value in signature.items():
        judged["distance_name" if name == "distance" else name] = value
    return judged | row


# Images


def _read(
    metric: Embedder, request: ScoreRequest, settings: ScoreSettings, album: Album | None
) -> Generator[Seen, None, None]:
    """The images of a request in their order, embedded; what copies and a page need is taken of each picture."""
    folder = cache_folder(settings.cache)
    patches = needs_patches(settings.distance)
    return embedded(
        (_item(image, settings.mask_dir) for image in request.read),
        metric,
        Look(True, settings.outside, settings.mask_id),
        store=None if folder is None else open_store(folder, metric, patches=patches),
        also=partial(_taken, settings, album) if settings.copies or album is not None else None,
        patches=patches,
        batch_size=settings.batch_size,
        workers=settings.workers,
        on_error=settings.on_error,
    )


def _item(image: RequestImage, mask_dir: StrPath | None) -> Item:
    mask = image.mask
    if mask is None and mask_dir is not None:
        mask = mask_of(mask_dir, image.name)
        if mask is None:
            problem = ImageReadError(*absent_mask(mask_dir, image.name))
            return Item(image.name, image.image, problem=problem, source=image)
    return Item(image.name, image.image, mask, source=image)


def _taken(settings: ScoreSettings, album: Album | None, item: Item, picture: Image.Image) -> dict[str, Print]:
    if album is not None:
        album.add_picture(item.source, picture, labeled(item.mask, settings.mask_id), settings.outside)
    return {"print": take_print(small_picture(picture))} if settings.copies else {}


def _usable(images: Iterable[Seen], skipped: dict[str, str]) -> list[Seen]:
    """The images that can be used; `skipped` gets the others, with their reasons."""
    usable = []
    for seen in images:
        if seen.problem is None:
            usable.append(seen)
        else:
            skipped[seen.item.name] = problem_of(seen.problem, seen.item.name)
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
    real = _real(metric, references, settings)

    entries: list[Entry] = []
    all_distances: list[list[float]] = []
    gray: list[str] = []
    done = 0
    while batch := list(islice(images, settings.batch_size)):
        usable = _usable(batch, skipped)
        if usable:
            matrix = distance_matrix(references.embedding, _together(usable, metric), settings.distance)
            check_distances(matrix.mT, metric.dtype, [seen.item.name for seen in usable])
            distances = matrix.mT.double().tolist()
            entries += map(partial(_image_entry, references, settings.aggregate), usable, distances)
            all_distances += distances
            gray += _gray_images(references, usable)
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
        return ReferenceSet(request.references, request.embedding.to(metric.device), [])
    usable = _usable(islice(images, len(request.references)), skipped)
    if not usable:
        return None
    prints = [seen.also["print"] for seen in usable if settings.copies]
    return ReferenceSet([seen.item.source for seen in usable], _together(usable, metric), prints)


def _image_entry(references: ReferenceSet, aggregate: Aggregate, seen: Seen, distances: list[float]) -> Entry:
    """The row of an image with these distances to each reference."""
    nearest = int(comparable(distances).argmin())
    row: Record = {"distance": distances[nearest], "image": seen.item.name, "reference": references.names[nearest]}
    if aggregate == "mean":
        row["distance"] = sum(distances) / len(distances)
        row["reference"] = ";".join(references.names)
    if references.prints:
        number, copy = closest(references.prints, seen.also["print"])
        mark_copy(row, seen.item.name, references.names[number], copy)
    return row, seen.item.source, references.images[nearest]


def _gray_images(references: ReferenceSet, images: Sequence[Seen]) -> list[str]:
    """The images without color, if all references are in color."""
    if not references.prints or any(is_gray(reference.pixels) for reference in references.prints):
        return []
    return [seen.item.name for seen in images if is_gray(seen.also["print"].pixels)]


def _real(metric: Embedder, references: ReferenceSet, settings: ScoreSettings) -> dict[str, float]:
    """The distance of each reference to the others; of references with one picture the first counts."""
    between = metric.pairwise(references.embedding, None, settings.distance).double().cpu().numpy()
    names = references.names
    photos = list(range(len(names)))
    if references.prints:
        original = originals(reference.pixels for reference in references.prints).tolist()
        photos = [row for row, first in enumerate(original) if row == first]
        warn_of_repeated_references({names[row]: names[first] for row, first in enumerate(original) if row != first})
    if len(photos) < 2:
        return {}
    distances = leave_one_out(between[np.ix_(photos, photos)], settings.aggregate)
    return {names[row]: value for row, value in zip(photos, rounded(distances.tolist()), strict=True)}


def _pair_rows(
    metric: Embedder,
    request: ScoreRequest,
    settings: ScoreSettings,
    images: Iterator[Seen],
    skipped: dict[str, str],
    progress: Progress,
) -> Rows:
    """A row for each readable pair; an image is embedded once, and held until its last pair."""
    last_pair = {}
    for number, pair in enumerate(request.pairs):
        last_pair[pair.a] = last_pair[pair.b] = number

    entries: list[Entry] = []
    gray: dict[str, None] = {}
    held: dict[RequestImage, Seen] = {}
    for number, pair in enumerate(request.pairs):
        while pair.a not in held or pair.b not in held:
            seen = next(images)
            held[seen.item.source] = seen
        both = _usable([held[pair.a], held[pair.b]], skipped)
        for image in {pair.a, pair.b}:
            if last_pair[image] == number:
                del held[image]
        if len(both) == 2:
            row = _pair_row(metric, settings, *both)
            if settings.copies and is_gray(both[1].also["print"].pixels) and not is_gray(both[0].also["print"].pixels):
                gray[pair.b.name] = None
            entries.append((row | pair.other, pair.b, pair.a))
        progress(number + 1, len(request.pairs))
    warn_of_gray(list(gray))
    return entries, [[row["distance"]] for row, _, _ in entries], {}


def _pair_row(metric: Embedder, settings: ScoreSettings, a: Seen, b: Seen) -> Record:
    """The row of two images, not by the metric, which would check each time that its weights have not changed."""
    distances = distance_of(_together([a], metric), _together([b], metric), settings.distance)
    check_distances(distances, metric.dtype, [b.item.name])
    row: Record = {"distance": float(distances[0]), "image": b.item.name, "reference": a.item.name}
    if settings.copies:
        mark_copy(row, b.item.name, a.item.name, copy_of(a.also["print"], b.also["print"]))
    return row


def _together(images: Sequence[Seen], metric: Embedder) -> Embedding:
    """The embeddings of images, on the model's device."""
    return concatenate([seen.row for seen in images]).to(metric.device)


def _named(metric: Embedder, distances: Sequence[Sequence[float]], of_whole_images: bool) -> dict[str, Any] | None:
    """The number of the published score that the model was opened by (`metric.named`); None for other models."""
    published = metric.named
    if published is None or not distances:
        return None
    if not of_whole_images:
        return {"name": metric.name, "value": None, "note": f"{published.source}: of whole images, by --distance cls"}
    try:
        value = published.value((1 - np.array(distances)).tolist())
    except ValueError as error:
        return {"name": metric.name, "value": None, "note": f"{published.source}: {error}"}
    shape = f"{len(distances)} x {len(distances[0])}"
    return {
        "name": metric.name,
        "value": value,
        "note": f"from {shape} cosines; {published.source}",
    }
