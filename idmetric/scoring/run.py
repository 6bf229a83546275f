"""The rows of one request: every candidate against the references, or pair by pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.distance.embedding import Embedding, concatenate
from idmetric.distance.finite import NonFiniteError, check_distances
from idmetric.distance.matrix import distance as distance_of
from idmetric.distance.matrix import distance_matrix
from idmetric.evaluate.arrays import comparable
from idmetric.evaluate.copies import SIZE, Print, take_print
from idmetric.evaluate.references import leave_one_out, percentile
from idmetric.io.tables import rounded
from idmetric.scoring.copies import is_gray, mark_copy, warn_of_gray, warn_of_repeated_references
from idmetric.scoring.encoder import Encoder, Seen
from idmetric.scoring.files import Cross
from idmetric.scoring.pairs import Pair, Pairs
from idmetric.scoring.records import Record
from idmetric.scoring.scores import Baseline, File
from idmetric.scoring.settings import Progress, ScoreSettings, Watcher

_PRINTS = 256  # most prints in memory, of 0.8 MB

if TYPE_CHECKING:
    from torch import Tensor

    from idmetric.models.embedder import Embedder


class Run:
    """Makes the rows of one request.

    Attributes:
        metric: the model.
        baseline: with several references, set by `cross`.
        distances: of each image in turn to every reference, or of each pair, for published scores.
        consecutive: for scores of videos, distance of each image to the one before, or to the first reference.
    """

    def __init__(
        self, metric: Embedder, settings: ScoreSettings, watcher: Watcher | None, progress: Progress, on_cpu: bool
    ) -> None:
        self.metric, self._settings, self._watcher, self._progress = metric, settings, watcher, progress
        self.encoder = Encoder(metric, settings, watcher, on_cpu)
        self._print_of = lru_cache(_PRINTS)(_print_of)
        self._signature = metric.signature(settings.distance)
        self.baseline: Baseline | None = None
        self.distances: list[list[float]] = []
        self.consecutive: list[float] = []

    def cross(self, work: Cross) -> list[Record]:
        """Make a row for each readable candidate."""
        found = dict(self._images(work.references))
        if not found:
            return []
        names = [path for path, _ in found]
        references = concatenate([seen.embedding for seen in found.values()])
        prints = {path: self._print(seen) for (path, _), seen in found.items()}
        self.baseline = self._baseline_of(names, references, prints)
        if self._watcher is not None:
            self._watcher.references |= dict.fromkeys(found)

        # refuses, before any work, a distance that this model cannot compute
        self.metric.pairwise(references[[0]], None, self._settings.distance)

        rows, gray = [], []
        in_color = all(is_gray(seen.small) is False for seen in found.values())
        before = references[[0]]
        candidates = self._images(work.candidates)
        while part := list(islice(candidates, self._settings.batch_size)):
            together = concatenate([seen.embedding for _, seen in part])
            matrix = distance_matrix(references, together, self._settings.distance)
            for k, (file, seen) in enumerate(part):
                with _naming(file[0]):
                    check_distances(matrix[:, k : k + 1], self.metric.dtype)
                far = _numbers(matrix[:, k])
                best = int(comparable(far).argmin())
                row = self._against(names, best, far.tolist(), file[0])
                if self.metric.named is not None:
                    self.distances.append(far.tolist())
                    if self.metric.named.references == "frames":
                        self.consecutive.append(float(self.metric.pairwise(before, seen.embedding)))
                        before = seen.embedding
                mark_copy(row, file[0], self._print(seen), prints)
                if in_color and is_gray(seen.small):
                    gray.append(file[0])
                rows.append(row)
                if self._watcher is not None:
                    nearest = (names[best], None)
                    self._watcher.add(row, file, nearest, seen.extra, found[nearest].extra)
        warn_of_gray(gray)
        return rows

    def _images(self, files: Sequence[str]) -> Iterator[tuple[File, Seen]]:
        """Yield the images that can be used, in order."""
        for done, (file, seen) in enumerate(self.encoder.images((path, None) for path in files), 1):
            if seen is not None:
                yield file, seen
            self._progress(done, len(files))

    def _against(self, names: list[str], best: int, distances: list[float], image: str) -> Record:
        """Make the row of an image from its distances to all references."""
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
        """Measure the distances between the references; None for a single one."""
        if len(names) < 2:
            return None
        warn_of_repeated_references(prints)
        apart = _numbers(self.metric.pairwise(references, None, self._settings.distance))
        values = leave_one_out(apart, self._settings.aggregate)
        return Baseline(dict(zip(names, rounded(values.tolist()), strict=True)), self._settings.aggregate)

    def pairs(self, pairs: Pairs) -> list[Record]:
        """Make a row for each readable pair."""
        rows: list[Record] = []
        gray: dict[str, None] = {}
        for done, (pair, a, b) in enumerate(self.encoder.pairs(pairs), 1):
            if a is not None and b is not None:
                rows.append(self._pair(pair, a, b))
                if is_gray(b.small) and is_gray(a.small) is False:
                    gray[pair.b] = None
            self._progress(done, len(pairs))
        warn_of_gray(list(gray))
        return rows

    def _pair(self, pair: Pair, a: Seen, b: Seen) -> Record:
        device = self.metric.device
        # not by the metric, which would check for each pair that its weights have not changed since the embedding
        found = distance_of(a.embedding.to(device), b.embedding.to(device), self._settings.distance)
        with _naming(pair.b):
            check_distances(found, self.metric.dtype)
        row = self._row(pair.a, pair.b, [float(found[0])])
        if self.metric.named is not None:
            self.distances.append([float(found[0])])
        mark_copy(row, pair.b, self._print(b), {pair.a: self._print(a)})
        row |= dict(pair.other)
        if self._watcher is not None:
            reference, image = pair.files
            self._watcher.add(row, image, reference, b.extra, a.extra)
        return row

    def _print(self, seen: Seen) -> Print | None:
        return None if seen.small is None else self._print_of(seen.small.tobytes())

    def _row(self, reference: str, image: str, distances: list[float]) -> Record:
        s = self._signature
        row = {"rank": 0, "distance": rounded(sum(distances) / len(distances)), "image": image, "reference": reference,
               "model": s["model"], "revision": s["revision"], "distance_name": s["distance"],
               "resolution": s["resolution"], "dtype": s["dtype"], "idmetric": s["idmetric"]}  # fmt: skip
        if (calibration := self._settings.calibration) is not None:
            row["probability"] = float(calibration.probability(distances, self._settings.prior).mean())
            row["probability_basis"] = calibration.basis
        return row


def _print_of(small: bytes) -> Print:
    return take_print(np.frombuffer(small, np.uint8).reshape(SIZE, SIZE, 3))


def _numbers(distances: Tensor | NDArray[np.float32]) -> NDArray[np.float64]:
    if isinstance(distances, np.ndarray):
        return distances.astype(np.float64)
    found: NDArray[np.float64] = distances.cpu().double().numpy()
    return found


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the image in errors about distances that are not finite."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"{path}: {error}", error.rows) from error
