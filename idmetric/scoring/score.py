"""Distances of images to references, and of pairs, with the facts needed to interpret them.

scores = idmetric.score(metric, ["mug_a.jpg", "mug_b.jpg"], "generated/", distance="joint")
scores.rows[0]["distance"], scores.summary["mean"], scores.baseline.max
scores.to_pandas()
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from idmetric.metric.errors import RequestError
from idmetric.metric.images import Outside
from idmetric.metric.ties import comparable
from idmetric.scoring.calibration import Calibration, CalibrationError, calibration_of
from idmetric.scoring.files import Cross, check_files, check_masks, cross
from idmetric.scoring.limits import Limit
from idmetric.scoring.pairs import Pair, Pairs, pairs_of, read_pairs
from idmetric.scoring.rows import RowMaker
from idmetric.scoring.scores import COLUMNS, PathLike, Progress, Scores, ScoreSettings, columns_of
from idmetric.tables import rounded

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder
    from idmetric.metric.embedding import Embedding
    from idmetric.metric.images import ImageLike
    from idmetric.metric.masks import MaskId
    from idmetric.scoring.sheet import Album


def score(
    metric: Embedder,
    references: ImageLike | Iterable[ImageLike] | Embedding,
    images: ImageLike | Iterable[ImageLike],
    *,
    distance: str = "cls",
    aggregate: Literal["best", "mean"] = "best",
    include_references: bool = False,
    mask_dir: PathLike | None = None,
    mask_id: MaskId | None = None,
    outside: Outside = "black",
    on_error: Literal["fail", "skip"] = "fail",
    cache: PathLike | None = None,
    calibration: PathLike | Calibration | None = None,
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
        cache: a folder that keeps embeddings by the content of image files; a stopped run resumes from it. Images in
            memory are not kept there.
        calibration: adds `probability` to the rows, and a threshold; a file, a `Calibration`, or "stored" for the one
            saved with the model. The threshold is that at 5 % of its pairs of two identities; if the calibration does
            not list it, the nearest lower one.
        copies: look for images that repeat a reference's pixels, mark them, and give a `CopyWarning`; also give one for
            references that repeat each other, which count once among the real photos, and a `GrayWarning` for gray
            images against references in color.
        threshold: the largest distance that passes, for `Scores.summary` and `Scores.failing`; default: that of the
            calibration, else none.
        batch_size: images per pass. workers: threads that read images; default: one for each core, at most 8.
        progress: called with (images done, images in all).

    Raises:
        RequestError: if references, images, masks or the calibration do not fit.
        ImageReadError: with on_error="fail", naming the first unreadable image.
        CalibrationError: for a calibration of another model, distance or way of masking.
    """
    _check_opened(metric)
    chosen = _chosen(metric, calibration, distance)
    settings = ScoreSettings(
        distance=distance,
        aggregate=aggregate,
        mask_dir=mask_dir,
        mask_id=mask_id,
        outside=outside,
        on_error=on_error,
        cache=cache,
        calibration=chosen,
        calibrated=limit_of(chosen),
        copies=copies,
        threshold=threshold,
        batch_size=batch_size,
        workers=workers,
    )
    work = cross(references, images, include_references)
    check_files(work, on_error)
    check_masks(work, mask_dir, mask_id is not None, metric.preprocessing)
    return compare(metric, work, settings, progress=progress)


def _chosen(metric: Embedder, calibration: PathLike | Calibration | None, distance: str) -> Calibration | None:
    return None if calibration is None else calibration_of(metric, calibration, distance, outside=None)


def limit_of(calibration: Calibration | None) -> Limit | None:
    """The threshold of a calibration at 5 % of pairs; None without one."""
    try:
        return None if calibration is None else calibration.threshold_at()
    except CalibrationError:
        return None


def _check_opened(metric: Any) -> None:
    if isinstance(metric, str):
        raise RequestError(f"an opened metric is needed, not its name: idmetric.load({metric!r})")


def score_pairs(
    metric: Embedder,
    pairs: PathLike | Iterable[Pair | Mapping[Any, Any] | Sequence[ImageLike | None]],
    *,
    calibration: PathLike | Calibration | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Scores:
    """Compute distances of pairs, in order: rows with a pair's first image as `reference`, the second as `image`.

    Args:
        pairs: a CSV file, a pandas DataFrame or a list of dicts with columns a,b[,mask_a,mask_b], and others that are
            carried through; or a list of tuples (a, b) or (a, b, mask_a, mask_b). All but files may hold images in
            memory, which rows of the fourth pair call reference[3] and image[3].
        calibration, progress: as in `score`. settings: other options of `score`; without `aggregate`.

    Raises:
        RequestError: for a file of pairs that cannot be read; otherwise as `score`.
    """
    if "aggregate" in settings:
        raise TypeError("score_pairs takes no aggregate: each pair has its own row")
    _check_opened(metric)
    chosen = _chosen(metric, calibration, settings.get("distance", "cls"))
    options = ScoreSettings(calibration=chosen, calibrated=limit_of(chosen), **settings)
    work = read_pairs(Path(pairs), options.on_error) if isinstance(pairs, str | os.PathLike) else pairs_of(pairs)
    check_files(work, options.on_error)
    check_masks(work, options.mask_dir, options.mask_id is not None, metric.preprocessing)
    return compare(metric, work, options, progress=progress)


def compare(
    metric: Embedder,
    work: Cross | Pairs,
    settings: ScoreSettings,
    *,
    progress: Progress | None = None,
    album: Album | None = None,
) -> Scores:
    """Score files that are listed and checked, see `score`; `album` keeps pictures and rows for a page."""
    has_masks = {settings.mask_dir is not None or mask is not None for _, mask in work.files}
    if settings.calibration is not None:
        for has_mask in has_masks:
            outside = settings.outside if has_mask else "all"
            calibration_of(metric, settings.calibration, settings.distance, outside)

    maker = RowMaker(metric, settings, album, progress or (lambda done, total: None))
    rows = maker.pairs(work) if isinstance(work, Pairs) else maker.cross(work)

    # ranks by distance; rows of pairs keep their order
    for row in rows:
        row.update(rounded(row))
        row["image"] = str(row["image"])  # without the image, if it is one in memory
        row["reference"] = str(row["reference"])
    ranked = sorted(rows, key=lambda row: comparable(row["distance"]))
    for rank, row in enumerate(ranked, 1):
        row["rank"] = rank

    # what has no row
    skipped_files = sorted(maker.images.skipped.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    skipped = [{"image": str(path), "reason": reason} for (path, _), reason in skipped_files]
    if isinstance(work, Pairs):
        skipped += [{"image": pair, "reason": reason} for pair, reason in work.skipped.items()]

    baseline = maker.baseline
    if baseline is not None:
        distances = {str(name): value for name, value in baseline.distances.items()}
        repeated = {str(name): str(original) for name, original in baseline.repeated.items()}
        baseline = replace(baseline, distances=distances, repeated=repeated)
    scores = Scores(
        rows,
        columns_of(rows) or COLUMNS[:10],
        metric.signature(settings.distance),
        skipped,
        baseline,
        limit=maker.limit,
        calibration=settings.calibration,
        named=maker.named(of_whole_images=settings.distance == "cls" and True not in has_masks),
    )
    if isinstance(work, Pairs):
        return replace(scores, other=work.other)
    return replace(scores, rows=ranked, references=len(work.references), left_out=[str(path) for path in work.left_out])
