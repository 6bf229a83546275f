"""Distances of images to references, and of pairs, with the facts needed to interpret them.

    scores = idmetric.score(metric, ["mug_a.jpg", "mug_b.jpg"], "generated/", distance="joint")
    scores.rows[0]["distance"], scores.summary["mean"], scores.baseline.max
    scores.to_pandas()

`idmetric score` prints the same scores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.distance.embedding import concatenate
from idmetric.metric.distance.finite import NonFiniteError, check_distances
from idmetric.metric.distance.matrix import distance as distance_of
from idmetric.metric.distance.matrix import distance_matrix
from idmetric.metric.distance.ties import comparable
from idmetric.metric.files.tables import rounded
from idmetric.metric.images.read import Outside
from idmetric.metric.scoring.copies import SIZE, Print, take_print
from idmetric.metric.scoring.copy_warnings import is_gray, mark_copy, warn_of_gray, warn_of_repeated_references
from idmetric.metric.scoring.encoder import Encoder, Seen
from idmetric.metric.scoring.files import Cross, check_masks, cross
from idmetric.metric.scoring.pairs import Pair, Pairs, pairs_of, read_pairs
from idmetric.metric.scoring.records import Record
from idmetric.metric.scoring.references import FEWEST, leave_one_out, percentile
from idmetric.metric.scoring.scores import (
    COLUMNS,
    Baseline,
    File,
    NamedValue,
    PathLike,
    Progress,
    RequestError,
    Scores,
    ScoreSettings,
    columns_of,
)

if TYPE_CHECKING:
    from idmetric.metric.calibration.apply import Calibration
    from idmetric.metric.images.masks import MaskId
    from idmetric.metric.models.embedder import Embedder

_PRINTS = 256  # most prints in memory, of 0.8 MB
STORED = "stored"  # names the calibration that is saved with the model's weights


def score(
    metric: Embedder,
    references: PathLike | Iterable[PathLike],
    images: PathLike | Iterable[PathLike],
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
    prior: float | None = None,
    copies: bool = True,
    threshold: float | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Compute distances of images to the references of one subject, sorted; lower = more surely the same identity.

    Args:
        references: image files of the subject: a path, a folder, a pattern, or a list of them.
        images: the files to score, given in the same way.
        aggregate: with several references, the distance to the nearest ("best") or the mean distance.
        include_references: also score references that are among the images.
        mask_dir: a folder with the subject mask of each image, see `idmetric.metric.images.paths.mask_of`.
        mask_id, outside: as in `Embedder.embed`.
        on_error: raise for unreadable images ("fail"), or list them in `Scores.skipped` ("skip").
        cache: a folder that keeps embeddings by the content of the images; a stopped run resumes from it.
        calibration: adds `probability` to the rows; a file, a `Calibration`, or "stored" for the one saved
            with the model. prior: the share of images with the same identity, in (0, 1); default: of the calibration.
        copies: look for images that repeat a reference's pixels, mark them, and give a `CopyWarning`; also give a
            `GrayWarning` for gray images against references in color.
        threshold: the largest distance that passes, for `Scores.summary` and `Scores.failing`.
        batch_size: images per pass. workers: threads that read images; default: one for each core, at most 8.
        progress: called with (images done, images in all).

    Raises:
        RequestError, InputError: if references, images, masks or the calibration do not fit.
        ImageReadError: with on_error="fail", naming the first unreadable image.
        CalibrationError: for a calibration of another model, distance or way of masking.
        ValueError: for a setting out of range.
    """
    settings = ScoreSettings(
        distance, aggregate, mask_dir, mask_id, outside, on_error, cache,
        calibration_of(metric, calibration, distance), prior, copies, threshold, batch_size, workers,
    )  # fmt: skip
    work = cross(references, images, include_references)
    check_masks(work, mask_dir, mask_id is not None, metric.preprocessing)
    return compare(metric, work, settings, progress=progress)


def score_pairs(
    metric: Embedder,
    pairs: PathLike | Iterable[Pair | Mapping[Any, Any] | Sequence[PathLike | None]],
    *,
    calibration: PathLike | Calibration | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Scores:
    """Compute distances of pairs of images, in their order.

    Args:
        pairs: a CSV file, a pandas DataFrame or a list of dicts with columns a,b[,mask_a,mask_b], and others that are
            carried through; or a list of tuples (a, b) or (a, b, mask_a, mask_b).
        calibration, progress: as in `score`. settings: other options of `score`; without `aggregate`.

    Returns:
        Rows with the first image of a pair as `reference`, the second as `image`.

    Raises:
        RequestError: for a file of pairs that cannot be read; otherwise as `score`.
    """
    if "aggregate" in settings:
        raise TypeError("score_pairs takes no aggregate: each pair has its own row")
    chosen = calibration_of(metric, calibration, settings.get("distance", "cls"))
    options = ScoreSettings(calibration=chosen, **settings)
    work = read_pairs(Path(pairs), options.on_error) if isinstance(pairs, str | os.PathLike) else pairs_of(pairs)
    check_masks(work, options.mask_dir, options.mask_id is not None, metric.preprocessing)
    return compare(metric, work, options, progress=progress)


def calibration_of(metric: Embedder, calibration: PathLike | Calibration | None, distance: str) -> Calibration | None:
    """Read the calibration that a file or "stored" names, and check that it fits the model and the distance."""
    if calibration is None:
        return None
    from idmetric.metric.calibration import apply as calibrations

    if calibration == STORED:
        found = metric.calibration
    else:
        found = calibration if isinstance(calibration, calibrations.Calibration) else calibrations.read(calibration)
        if not found.model.is_same(metric.calibrated_model(files=False)):  # the revision usually suffices
            found.check_model(metric.calibrated_model())
    if found is None:
        raise RequestError(
            f"{metric.short_name} has no calibration next to its weights: make one, `idmetric eval calibrate`"
        )
    found.check_distance(distance)
    return found


def compare(
    metric: Embedder,
    work: Cross | Pairs,
    settings: ScoreSettings,
    *,
    progress: Progress | None = None,
    watcher: Any = None,
) -> Scores:
    """Score files that are listed and checked; see `score`.

    Args:
        watcher: sees images and rows as they come: `idmetric.evaluate.report.album.Album`, which makes a page of them.
    """
    masked = {settings.mask_dir is not None or mask is not None for _, mask in work.files}
    if settings.calibration is not None:
        for has_mask in masked:
            settings.calibration.check_outside(settings.outside if has_mask else "all")

    run = _Run(metric, settings, watcher, progress or (lambda done, total: None))
    try:
        rows = run.pairs(work) if isinstance(work, Pairs) else run.cross(work)
    finally:
        run.encoder.save()  # also if the run is stopped

    for row in rows:
        row.update(rounded(row))
    ranked = sorted(rows, key=lambda row: comparable(row["distance"]))
    for rank, row in enumerate(ranked, 1):
        row["rank"] = rank
    lost = sorted(run.encoder.skipped.items(), key=lambda one: (one[0][0], one[0][1] or ""))
    skipped = [{"image": path, "reason": reason} for (path, _), reason in lost]
    if isinstance(work, Pairs):
        skipped += [{"image": pair, "reason": reason} for pair, reason in work.skipped.items()]
    scores = Scores(
        rows, columns_of(rows) or COLUMNS[:10], metric.signature(settings.distance), skipped, run.baseline,
        threshold=settings.threshold, calibration=settings.calibration,
        named=run.named(work, settings.distance == "cls" and True not in masked),
    )  # fmt: skip
    if isinstance(work, Pairs):
        return replace(scores, other=work.other)
    return replace(scores, rows=ranked, references=len(work.references), left_out=work.left_out)


class _Run:
    """Makes the rows of one request.

    Attributes:
        baseline: with several references, set by `cross`.
        distances: of each image in turn to every reference, or of each pair, for published scores.
        consecutive: for scores of videos, distance of each image to the one before, or to the first reference.
    """

    def __init__(self, metric: Embedder, settings: ScoreSettings, watcher: Any, progress: Progress) -> None:
        self.metric, self.settings, self.watcher, self.progress = metric, settings, watcher, progress
        self.encoder = Encoder(metric, settings, watcher)
        self.baseline: Baseline | None = None
        self.distances: list[list[float]] = []
        self.consecutive: list[float] = []
        self._print_of = lru_cache(_PRINTS)(_print_of)
        signature = metric.signature(settings.distance)
        self._signature = {"distance_name" if key == "distance" else key: value for key, value in signature.items()}

    def cross(self, work: Cross) -> list[Record]:
        """Make a row for each readable candidate."""
        found = dict(self._images(work.references))
        if not found:
            return []
        distance, aggregate = self.settings.distance, self.settings.aggregate
        names = [path for path, _ in found]
        device = self.metric.device
        references = concatenate([seen.embedding for seen in found.values()]).to(device)
        prints = {path: self._print(seen) for (path, _), seen in found.items()}
        # refuses, before any work, a distance that this model cannot compute
        apart = _numbers(self.metric.pairwise(references, None, distance))
        if len(names) > 1:
            warn_of_repeated_references(prints)
            values = rounded(leave_one_out(apart, aggregate).tolist())
            self.baseline = Baseline(dict(zip(names, values, strict=True)), aggregate)
        if self.watcher is not None:
            self.watcher.references |= dict.fromkeys(found)

        rows, gray = [], []
        in_color = all(is_gray(seen.small) is False for seen in found.values())
        before = references[[0]]
        candidates = self._images(work.candidates)
        while part := list(islice(candidates, self.settings.batch_size)):
            together = concatenate([seen.embedding for _, seen in part]).to(device)
            matrix = distance_matrix(references, together, distance)
            for k, (file, seen) in enumerate(part):
                with _naming(file[0]):
                    check_distances(matrix[:, k : k + 1], self.metric.dtype)
                far = _numbers(matrix[:, k]).tolist()
                best = int(comparable(far).argmin())
                is_best = aggregate == "best"
                row = self._row(names[best] if is_best else ";".join(names), file[0], [far[best]] if is_best else far)
                if self.baseline is not None and len(names) >= FEWEST:
                    row["real_percentile"] = percentile(row["distance"], list(self.baseline.distances.values()))
                mark_copy(row, file[0], self._print(seen), prints)
                if in_color and is_gray(seen.small):
                    gray.append(file[0])
                rows.append(row)
                if self.metric.named is not None:
                    self.distances.append(far)
                    if self.metric.named.references == "frames":
                        self.consecutive.append(float(self.metric.pairwise(before, together[[k]])))
                        before = together[[k]]
                if self.watcher is not None:
                    nearest = (names[best], None)
                    self.watcher.add(row, file, nearest, seen.extra, found[nearest].extra)
        warn_of_gray(gray)
        return rows

    def _images(self, files: Sequence[str]) -> Iterator[tuple[File, Seen]]:
        """Yield the images that can be used, in order."""
        for done, (file, seen) in enumerate(self.encoder.images((path, None) for path in files), 1):
            if seen is not None:
                yield file, seen
            self.progress(done, len(files))

    def pairs(self, pairs: Pairs) -> list[Record]:
        """Make a row for each readable pair."""
        rows: list[Record] = []
        gray: dict[str, None] = {}
        for done, (pair, a, b) in enumerate(self.encoder.pairs(pairs), 1):
            if a is not None and b is not None:
                rows.append(self._pair(pair, a, b))
                if is_gray(b.small) and is_gray(a.small) is False:
                    gray[pair.b] = None
            self.progress(done, len(pairs))
        warn_of_gray(list(gray))
        return rows

    def _pair(self, pair: Pair, a: Seen, b: Seen) -> Record:
        device = self.metric.device
        # not by the metric, which would check for each pair that its weights have not changed since the embedding
        found = distance_of(a.embedding.to(device), b.embedding.to(device), self.settings.distance)
        with _naming(pair.b):
            check_distances(found, self.metric.dtype)
        row = self._row(pair.a, pair.b, [float(found[0])])
        if self.metric.named is not None:
            self.distances.append([float(found[0])])
        mark_copy(row, pair.b, self._print(b), {pair.a: self._print(a)})
        row |= dict(pair.other)
        if self.watcher is not None:
            reference, image = pair.files
            self.watcher.add(row, image, reference, b.extra, a.extra)
        return row

    def _row(self, reference: str, image: str, distances: list[float]) -> Record:
        mean = rounded(sum(distances) / len(distances))
        row = {"rank": 0, "distance": mean, "image": image, "reference": reference, **self._signature}
        if (calibration := self.settings.calibration) is not None:
            row["probability"] = float(calibration.probability(distances, self.settings.prior).mean())
            row["probability_basis"] = calibration.basis
        return row

    def _print(self, seen: Seen) -> Print | None:
        return None if seen.small is None else self._print_of(seen.small.tobytes())

    def named(self, work: Cross | Pairs, of_whole_images: bool) -> NamedValue | None:
        """Compute the number of the published score that the model was opened by; None for other models."""
        score, name = self.metric.named, self.metric.name
        if score is None or not self.distances:
            return None
        if not of_whole_images:
            return NamedValue(name, None, f"{score.source}: of whole images, by --distance cls")
        similar = [[1 - far for far in row] for row in self.distances]
        try:
            value = score.value(similar, [1 - far for far in self.consecutive])
        except ValueError as error:
            return NamedValue(name, None, f"{score.source}: {error}")
        if score.references == "frames":
            return NamedValue(name, value, f"of {len(similar) + 1} frames in the order given; {score.source}")
        times = "" if score.scale == 1 else f"{score.scale:g} x "
        of = f"images x {len(similar[0])} references" if isinstance(work, Cross) else "pairs"
        clamp = ", at least 0" if score.clamp else ""
        return NamedValue(name, value, f"{times}mean cosine of {len(similar)} {of}{clamp}; {score.source}")


def _print_of(small: bytes) -> Print:
    return take_print(np.frombuffer(small, np.uint8).reshape(SIZE, SIZE, 3))


def _numbers(distances: Any) -> NDArray[np.float64]:
    if not isinstance(distances, np.ndarray):
        distances = distances.cpu().double().numpy()
    found: NDArray[np.float64] = distances.astype(np.float64)
    return found


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the image in errors about distances that are not finite."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"{path}: {error}", error.rows) from error
