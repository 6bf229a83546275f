"""Distances of images to references, and of pairs, with everything that is needed to read them.

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
from pathlib import Path
from typing import Any, Literal

from idmetric.calibration.apply import Calibration
from idmetric.calibration.apply import read as read_calibration
from idmetric.distance.finite import NonFiniteError, check_distances
from idmetric.distance.matrix import distance as distance_of
from idmetric.evaluate.copies import Print
from idmetric.evaluate.references import leave_one_out, percentile
from idmetric.images.masks import MaskId
from idmetric.images.read import ImageReadError, Outside
from idmetric.io.decimals import rounded
from idmetric.models.embedder import Embedder
from idmetric.models.embedding import Embedding, concatenate
from idmetric.scoring.copies import Prints, mark_copy, warn_of_repeated_references
from idmetric.scoring.encoder import Encoder
from idmetric.scoring.files import Cross, PathLike, check_masks, cross
from idmetric.scoring.memory import Seen
from idmetric.scoring.pairs import Pair, Pairs, PairsFile
from idmetric.scoring.reader import Reader
from idmetric.scoring.records import Record
from idmetric.scoring.scores import COLUMNS, Baseline, RequestError, Scores, columns_of
from idmetric.scoring.settings import Progress, Settings, Watcher

STORED = "stored"  # as a calibration: the file beside the model's weights


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
    """Distances of images to the references of one subject, sorted: lower = more surely the same identity.

    Args:
        references: image files of the subject: a path, a folder, a pattern, or a list of them.
        images: the files to score, given in the same way.
        aggregate: with several references, the distance to the nearest ("best") or the mean distance.
        include_references: also score references that are among the images.
        mask_dir: a folder with the subject mask of each image, see `idmetric.images.paths.mask_of`.
        mask_id, outside: as in `Embedder.embed`.
        on_error: raise for unreadable images ("fail"), or list them in `Scores.skipped` ("skip").
        cache: a folder that keeps embeddings by the content of the images; a stopped run resumes from it.
        calibration: adds `probability` to the rows; a file, a `Calibration`, or "stored" for the one that the model
            brings. prior: the share of images with the same identity, in (0, 1); default: that of the calibration.
        copies: look for images that repeat a reference's pixels, mark them, and give a `CopyWarning`.
        threshold: the largest distance that passes, for `Scores.summary` and `Scores.failing`.
        batch_size: images per pass. workers: threads that read images; default: one for each core, at most 8.
        progress: called with the number of images that are done, and of all.

    Raises:
        RequestError: if references, images, masks or the calibration do not fit.
        ImageReadError: with on_error="fail", naming all unreadable images.
        CalibrationError: for a calibration of another model, distance or way of masking.
        ValueError: for a setting out of range.
    """
    settings = Settings(
        distance, aggregate, mask_dir, mask_id, outside, on_error, cache,
        calibration_of(metric, calibration, distance), prior, copies, threshold, batch_size, workers,
    )  # fmt: skip
    work = cross(references, images, include_references)
    check_masks(work, mask_dir, mask_id is not None, metric.preprocessing)
    return compare(metric, work, settings, progress=progress)


def score_pairs(
    metric: Embedder,
    pairs: PathLike | Iterable[Pair | Sequence[PathLike | None]],
    *,
    calibration: PathLike | Calibration | None = None,
    memory: float = 1.0,
    progress: Progress | None = None,
    **settings: Any,
) -> Scores:
    """Distances of pairs of images, in their order.

    Args:
        pairs: a CSV file with columns a,b[,mask_a,mask_b], whose other columns are carried through, or a list of
            tuples (a, b) or (a, b, mask_a, mask_b).
        memory: GiB for embeddings of images that may come again.
        calibration, progress: as in `score`. settings: other options of `score`; without `aggregate`.

    Returns:
        Rows with the first image of a pair as `reference`, the second as `image`.

    Raises:
        RequestError: for a file of pairs that cannot be read; otherwise as `score`.
    """
    if "aggregate" in settings:
        raise TypeError("score_pairs takes no aggregate: every pair is a row of its own")
    chosen = calibration_of(metric, calibration, settings.get("distance", "cls"))
    options = Settings(calibration=chosen, memory=memory, **settings)
    work = PairsFile(Path(pairs)) if isinstance(pairs, str | os.PathLike) else Pairs(pairs)
    check_masks(work, options.mask_dir, options.mask_id is not None, metric.preprocessing)
    return compare(metric, work, options, progress=progress)


def calibration_of(metric: Embedder, calibration: PathLike | Calibration | None, distance: str) -> Calibration | None:
    """The calibration that a file or "stored" names, after a check that it fits the model and the distance.

    Raises:
        RequestError: if the model brings none. CalibrationError: if it was made for another model or distance.
    """
    if calibration is None:
        return None
    if calibration == STORED:
        found = metric.calibration
    else:
        found = calibration if isinstance(calibration, Calibration) else read_calibration(calibration)
        if not found.model.is_same(metric.calibrated_model(files=False)):  # mostly the revision suffices
            found.check_model(metric.calibrated_model())
    if found is None:
        raise RequestError(
            f"{metric.short_name} has no calibration beside its weights: make one, `idmetric eval calibrate`"
        )
    found.check_distance(distance)
    return found


def compare(
    metric: Embedder,
    work: Cross | Pairs,
    settings: Settings,
    *,
    progress: Progress | None = None,
    watcher: Watcher | None = None,
) -> Scores:
    """Scores of files that are listed and checked; see `score`.

    Args:
        watcher: sees images and rows as they come.

    Raises:
        ImageReadError: with on_error="fail", naming all unreadable images.
        CalibrationError: for a calibration of another way of masking.
    """
    if settings.calibration is not None:
        for masked in {settings.mask_dir is not None or mask for mask in work.masked}:
            settings.calibration.check_outside(settings.outside if masked else "all")

    run = _Run(metric, settings, watcher, progress or (lambda done, total: None), isinstance(work, Pairs))
    try:
        rows = run.pairs(work) if isinstance(work, Pairs) else run.cross(work)
    except ImageReadError as error:
        raise run.reader.unreadable(work.files) or error from error
    finally:
        if run.reader.cache is not None:  # also where the run is stopped
            run.reader.cache.save()
    return _scores(rows, work, run, metric.signature(settings.distance), settings)


def _scores(
    rows: list[Record], work: Cross | Pairs, run: _Run, signature: dict[str, str], settings: Settings
) -> Scores:
    """The rows ranked and in order: by distance, pairs as they are given."""
    for row in rows:
        row.update(rounded(row))
    ranked = sorted(rows, key=lambda row: row["distance"])
    for rank, row in enumerate(ranked, 1):
        row["rank"] = rank

    lost = sorted(run.reader.skipped.items(), key=lambda one: (one[0][0], one[0][1] or ""))
    skipped = [{"image": path, "reason": reason} for (path, _), reason in lost]
    scores = Scores(
        rows, columns_of(rows) or COLUMNS[:10], signature, skipped, run.baseline,
        threshold=settings.threshold, calibration=settings.calibration,
    )  # fmt: skip
    if isinstance(work, Pairs):
        return replace(scores, other=work.other)
    return replace(scores, rows=ranked, references=len(work.references), left_out=work.left_out)


class _Run:
    """Makes the rows of one request.

    Attributes:
        baseline: with several references, set by `cross`.
    """

    def __init__(
        self, metric: Embedder, settings: Settings, watcher: Watcher | None, progress: Progress, on_cpu: bool
    ) -> None:
        self._metric, self._settings, self._watcher, self._progress = metric, settings, watcher, progress
        self.reader = Reader(metric, settings, watcher)
        self._encoder = Encoder(metric, settings, self.reader, watcher, on_cpu)
        self._prints = Prints()
        self._signature = metric.signature(settings.distance)
        self.baseline: Baseline | None = None

    def cross(self, work: Cross) -> list[Record]:
        """A row for each candidate that could be read."""
        found = dict(self._encoder.images([(p, None) for p in work.references], self._progress))
        if not found:
            return []
        names = [path for path, _ in found]
        references = concatenate([seen.embedding for seen in found.values()])
        prints = {path: self._prints.of(path, seen.small) for (path, _), seen in found.items()}
        self.baseline = self._baseline_of(names, references, prints)
        if self._watcher is not None:
            self._watcher.references |= dict.fromkeys(found)

        rows = []
        for file, seen in self._encoder.images([(p, None) for p in work.candidates], self._progress):
            with _naming(file[0]):
                far = self._metric.pairwise(references, seen.embedding, self._settings.distance)[:, 0].double()
            best = int(far.argmin())
            row = self._against(names, best, far.tolist(), file[0])
            mark_copy(row, file[0], self._prints.of(file[0], seen.small), prints)
            rows.append(row)
            if self._watcher is not None:
                nearest = (names[best], None)
                self._watcher.add(row, file, nearest, seen.extra, found[nearest].extra)
        return rows

    def _against(self, names: list[str], best: int, distances: list[float], image: str) -> Record:
        """The row of an image, from its distances to all references."""
        if self._settings.aggregate == "mean":
            row = self._row(";".join(names), image, distances)
        else:
            row = self._row(names[best], image, [distances[best]])
        if self.baseline is not None:
            row["real_percentile"] = percentile(row["distance"], list(self.baseline.distances.values()))
        return row

    def _baseline_of(
        self, names: list[str], references: Embedding, prints: Mapping[str, Print | None]
    ) -> Baseline | None:
        """How far apart the references are, if there are several."""
        if len(names) < 2:
            return None
        warn_of_repeated_references(prints)
        apart = self._metric.pairwise(references, None, self._settings.distance).double().cpu().numpy()
        values = leave_one_out(apart, self._settings.aggregate)
        return Baseline(dict(zip(names, rounded(values.tolist()), strict=True)), self._settings.aggregate)

    def pairs(self, pairs: Pairs) -> list[Record]:
        """A row for each pair that could be read."""
        rows: list[Record] = []
        done = 0
        for part, found in self._encoder.windows(pairs):
            for pair in part:
                a, b = (found.get(file) for file in pair.files)
                if a is not None and b is not None:
                    rows.append(self._pair(pair, a, b))
            done += len(part)
            self._progress(done, len(pairs))
        return rows

    def _pair(self, pair: Pair, a: Seen, b: Seen) -> Record:
        device = self._metric.device
        # not by the metric itself, which would check for each pair that its weights are still those of the embeddings
        found = distance_of(a.embedding.to(device), b.embedding.to(device), self._settings.distance)
        with _naming(pair.b):
            check_distances(found, self._metric.dtype)
        row = self._row(pair.a, pair.b, [float(found[0])])
        own, other = (self._prints.of(name, seen.small) for name, seen in ((pair.b, b), (pair.a, a)))
        mark_copy(row, pair.b, own, {pair.a: other})
        row |= dict(pair.other)
        if self._watcher is not None:
            reference, image = pair.files
            self._watcher.add(row, image, reference, b.extra, a.extra)
        return row

    def _row(self, reference: str, image: str, distances: list[float]) -> Record:
        s = self._signature
        row = {"rank": 0, "distance": rounded(sum(distances) / len(distances)), "image": image, "reference": reference,
               "model": s["model"], "revision": s["revision"], "distance_name": s["distance"],
               "resolution": s["resolution"], "dtype": s["dtype"], "idmetric": s["idmetric"]}  # fmt: skip
        if (calibration := self._settings.calibration) is not None:
            row["probability"] = float(calibration.probability(distances, self._settings.prior).mean())
            row["probability_basis"] = calibration.basis
        return row


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Let errors about distances that are not finite name the image."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"{path}: {error}", error.rows) from error
