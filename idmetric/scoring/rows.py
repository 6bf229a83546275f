"""The rows of a request: each image against all references, or the two images of each pair."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.metric.distance import distance as distance_of
from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedding import Embedding, check_distances, concatenate
from idmetric.metric.ties import comparable
from idmetric.scoring.copies import Copy, compare, take_print
from idmetric.scoring.copy_warnings import (
    closest,
    is_gray,
    mark_copy,
    warn_of_gray,
    warn_of_no_pictures,
    warn_of_repeated_references,
)
from idmetric.scoring.encoder import Pictured, RequestImages
from idmetric.scoring.files import Cross
from idmetric.scoring.limits import Limit
from idmetric.scoring.pairs import Pair, Pairs
from idmetric.scoring.records import Record
from idmetric.scoring.references import leave_one_out, originals
from idmetric.scoring.scores import Baseline, File, NamedValue, Progress, ScoreSettings
from idmetric.tables import rounded

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder
    from idmetric.scoring.sheet import Album

Images = Generator[tuple[File, Pictured | None], None, None]


class RowMaker:
    """Embeds the images of one request and makes its rows.

    Args:
        metric: the model.
        settings: of the request.
        album: keeps pictures and rows for a page, or None.
        progress: called with (images or pairs done, in all).

    Attributes:
        images: reads and embeds the files.
        baseline: with several references, set by `cross`.
        limit: the largest distance that passes: the given one, else the calibration's.
        distances: of each image in turn to every reference, or of each pair, for published scores.
    """

    def __init__(self, metric: Embedder, settings: ScoreSettings, album: Album | None, progress: Progress) -> None:
        self.metric = metric
        self.settings = settings
        self.album = album
        self.progress = progress
        self.images = RequestImages(metric, settings, album)
        self.baseline: Baseline | None = None
        self.limit: Limit | None = settings.calibrated
        if settings.threshold is not None:
            self.limit = Limit.of(settings.threshold)
        self.distances: list[list[float]] = []

        signature = metric.signature(settings.distance)
        self._signature = {"distance_name" if key == "distance" else key: value for key, value in signature.items()}

    def cross(self, work: Cross) -> list[Record]:
        """Make a row for each readable candidate; the first batch holds references and candidates."""
        with closing(self.images.images(work.files, prints=True)) as images:
            return self._cross(work, images)

    def _cross(self, work: Cross, images: Images) -> list[Record]:
        reference_images = self._references(work, images)
        if not reference_images:
            return []
        names = [path for path, _ in reference_images]
        references = self._together(reference_images.values())
        prints = [image.print for image in reference_images.values() if image.print is not None]
        self._compare_references(references, names, [image.small for image in reference_images.values()])
        if self.album is not None:
            self.album.references |= dict.fromkeys(reference_images)

        rows: list[Record] = []
        gray: list[str] = []
        references_in_color = all(is_gray(image.small) is False for image in reference_images.values())
        candidates = self._usable(images, len(work.candidates))
        while batch := list(islice(candidates, self.settings.batch_size)):
            embeddings = self._together([image for _, image in batch])
            matrix = distance_matrix(references, embeddings, self.settings.distance)
            paths = [path for (path, _), _ in batch]
            check_distances(matrix.mT, self.metric.dtype, paths)
            for column, (file, image) in enumerate(batch):
                path = file[0]
                distances = matrix[:, column].double().tolist()
                nearest = int(comparable(distances).argmin())

                row = self._cross_row(path, distances, names, nearest)
                if prints and image.print is not None:
                    reference, copy = closest(prints, image.print)
                    mark_copy(row, path, names[reference], copy)
                rows.append(row)
                if references_in_color and is_gray(image.small):
                    gray.append(path)

                if self.metric.named is not None:
                    self.distances.append(distances)
                if self.album is not None:
                    self.album.entries.append((row, file, (names[nearest], None)))
        warn_of_gray(gray)
        return rows

    def _references(self, work: Cross, images: Images) -> dict[File, Pictured]:
        """The references, embedded now or before; of the latter there are no pictures in which copies are found."""
        if work.embedding is None:
            return dict(self._usable(images, len(work.references)))
        work.embedding.check_maker(self.metric.model_id, needs_patches(self.settings.distance))
        if self.settings.copies:
            warn_of_no_pictures()
        return self.images.of_embedding(work.references, work.embedding)

    def _together(self, images: Iterable[Pictured]) -> Embedding:
        """Return the embeddings of images, on the model's device."""
        return concatenate([image.embedding for image in images]).to(self.metric.device)

    def _compare_references(
        self, references: Embedding, names: list[str], thumbnails: list[NDArray[np.uint8] | None]
    ) -> None:
        """Set the baseline, in which references with one picture count once, and warn of these."""
        # also refuses, before any work, a distance that this model cannot compute
        matrix = self.metric.pairwise(references, None, self.settings.distance)
        original = np.arange(len(names))
        small_pictures = [thumbnail for thumbnail in thumbnails if thumbnail is not None]  # none with copies=False
        if len(small_pictures) == len(names):
            original = originals(np.stack(small_pictures))
        repeated = {name: names[row] for name, row in zip(names, original, strict=True) if name != names[row]}
        warn_of_repeated_references(repeated)

        photos = np.flatnonzero(original == np.arange(len(names)))
        if len(photos) > 1:
            between = matrix.cpu().double().numpy()[np.ix_(photos, photos)]
            distances = rounded(leave_one_out(between, self.settings.aggregate).tolist())
            distance_of_photo = dict(zip([names[row] for row in photos], distances, strict=True))
            self.baseline = Baseline(distance_of_photo, self.settings.aggregate, repeated)

    def _cross_row(self, path: str, distances: list[float], references: list[str], nearest: int) -> Record:
        if self.settings.aggregate == "best":
            return self._row(references[nearest], path, [distances[nearest]])
        return self._row(";".join(references), path, distances)

    def _usable(self, images: Images, count: int) -> Iterator[tuple[File, Pictured]]:
        """Yield the images that can be used among the next ones."""
        for done, (file, image) in enumerate(islice(images, count), 1):
            if image is not None:
                yield file, image
            self.progress(done, count)

    def pairs(self, pairs: Pairs) -> list[Record]:
        """Make a row for each readable pair."""
        rows: list[Record] = []
        gray: dict[str, None] = {}
        done = 0
        pictured_pairs = self.images.pairs(pairs)
        while batch := list(islice(pictured_pairs, self.settings.batch_size)):
            usable = [(pair, a, b) for pair, a, b in batch if a is not None and b is not None]
            for pair, a, b in usable:
                copy = None
                if a.small is not None and b.small is not None:
                    copy = compare(take_print(a.small), take_print(b.small))
                rows.append(self._pair(pair, a, b, copy))
                is_reference_in_color = is_gray(a.small) is False
                if is_gray(b.small) and is_reference_in_color:
                    gray[pair.b] = None
            for _ in batch:
                done += 1
                self.progress(done, len(pairs))
        warn_of_gray(list(gray))
        return rows

    def _pair(self, pair: Pair, a: Pictured, b: Pictured, copy: Copy | None) -> Record:
        # not by the metric, which would check for each pair that its weights have not changed since the embedding
        reference = self._together([a])
        image = self._together([b])
        distances = distance_of(reference, image, self.settings.distance)
        check_distances(distances, self.metric.dtype, [pair.b])
        distance = float(distances[0])

        row = self._row(pair.a, pair.b, [distance])
        if self.metric.named is not None:
            self.distances.append([distance])
        if copy is not None:
            mark_copy(row, pair.b, pair.a, copy)
        row |= dict(pair.other)
        if self.album is not None:
            reference_file, file = pair.files
            self.album.entries.append((row, file, reference_file))
        return row

    def _row(self, reference: str, image: str, distances: list[float]) -> Record:
        mean = rounded(sum(distances) / len(distances))
        row = {"rank": 0, "distance": mean, "image": image, "reference": reference, **self._signature}
        calibration = self.settings.calibration
        if calibration is not None:
            row["probability"] = float(calibration.probability(distances).mean())
            row["probability_basis"] = calibration.basis
        return row

    def named(self, of_whole_images: bool) -> NamedValue | None:
        """Compute the number of the published score that the model was opened by; None for other models."""
        score = self.metric.named
        name = self.metric.name
        if score is None or not self.distances:
            return None
        if not of_whole_images:
            return NamedValue(name, None, f"{score.source}: of whole images, by --distance cls")

        similarities: list[list[float]] = (1 - np.array(self.distances)).tolist()
        try:
            value = score.value(similarities)
        except ValueError as error:
            return NamedValue(name, None, f"{score.source}: {error}")

        count = len(similarities)
        return NamedValue(name, value, f"from {count} x {len(similarities[0])} cosines; {score.source}")
