"""Search in a gallery: shortlist by global features, check that the files are unchanged, rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from idmetric.data.nearest import Double, Ints, Single, nearest
from idmetric.gallery.contents import Contents
from idmetric.gallery.index import GalleryItem, Where, by_key, row_of
from idmetric.gallery.read import mask_name
from idmetric.gallery.sources import GalleryError
from idmetric.gallery.table import VectorTable
from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedding import Embedding, check_distances, concatenate
from idmetric.metric.images import Named, describe, split_images
from idmetric.metric.masks import Labeled, labeled, split_masks
from idmetric.metric.ties import comparable
from idmetric.scoring.calibration import SEARCH_RATE, STORED, Calibration, calibration_of
from idmetric.scoring.scores import Limit, Record, Records
from idmetric.store import Store, key_of
from idmetric.stream import Item, Look, embedded, embedding_of, items_of_images, problem_of

if TYPE_CHECKING:
    from idmetric.metric.masks import Images, Masks

COLUMNS = (
    "query", "rank", "distance", "image", "name", "identity", "width", "height",
    "model", "revision", "distance_name", "resolution", "dtype", "idmetric",
)  # fmt: skip
UNKNOWN = "unknown"
_RERANKED = 16  # images without stored patches that are embedded at once

Hits = list[tuple[GalleryItem, float]]


class Searchable(Contents):
    """A gallery that is searched; `Gallery` describes the arguments."""

    def query(
        self,
        images: Images,
        k: int = 10,
        *,
        masks: Masks = None,
        distance: str = "cls",
        rerank: int | None = None,
        exclude_same: bool = False,
        probability: bool = False,
        unknown_above: float | Limit | Literal["calibrated"] | None = None,
        batch_size: int = 32,
    ) -> Records:
        """Find the k images nearest to each query, nearest first; equally near ones in the order of their names.

        Files that are missing or have changed since they were embedded are left out, with a `StaleWarning`. Only
        `update` finds new files, and changed ones that would be nearer now.

        Args:
            images: one or several.
            k: images for each query; fewer if the gallery has fewer.
            masks: the queries' masks; pixels outside are replaced as in the gallery.
            distance: the distance to rank by. Any but "cls" needs `rerank`.
            rerank: length of the shortlist by `cls`, which is then ranked by `distance`.
            exclude_same: leave out images with the query's own bytes.
            probability: add the probability of the same identity, by the model's calibration.
            unknown_above: add `answer`: the hit's identity, or "unknown" if its distance is above this, and `threshold`
                and `threshold_source`, this distance and where it comes from. "calibrated": that of the model's
                calibration, see `calibrated_limit`.
            batch_size: queries per pass.

        Returns:
            A row for each hit: query, rank, distance, image, name, identity, ..., and the settings behind the score.

        Raises:
            GalleryError: if this model has no gallery here, or the gallery is empty or damaged, or all its images are
                missing.
            ImageReadError: for a query that cannot be read. CalibrationError: for a calibration of another distance or
                way of masking, or without a threshold.
            ValueError: for arguments that do not fit, and for a probability or threshold without a calibration.
        """
        self._check_model()
        self._usable()
        _check_rerank(k, distance, rerank)
        calibration = self.calibration_for(distance) if probability else None
        limit = None
        if unknown_above == "calibrated":
            limit = self.calibrated_limit(distance)
        elif unknown_above is not None:
            limit = Limit.of(unknown_above)
        table = self.table()
        masks = labeled(masks, self.masking.mask_id)
        singles = split_images(images)
        covers = split_masks(masks, singles)
        queries = embedding_of(
            items_of_images(singles, covers),
            self.metric,
            Look(True, self.masking.outside),
            patches=needs_patches(distance),
            batch_size=batch_size,
            workers=0,
        )
        own_keys = [""] * len(queries)
        if exclude_same:
            own_keys = [_key(*pair, str(self.masking.look)) for pair in zip(singles, covers, strict=True)]

        faults: dict[Where, str] = {}

        def is_current(item: GalleryItem) -> bool:
            if item.where not in faults:
                faults[item.where] = self._fault(item)
            return not faults[item.where]

        vectors = queries.cls.float().numpy()
        shortlists = _shortlists(table, by_key(self.items), is_current, vectors, own_keys, rerank or k)

        columns = list(COLUMNS)
        if limit is not None:
            columns[3:3] = ["answer", "threshold", "threshold_source"]
        if calibration is not None:
            columns.insert(3, "probability")
            columns.append("probability_basis")
        signature = self.metric.signature(distance)
        signature["distance_name"] = signature.pop("distance")

        rows: list[Record] = []
        for image, query, hits in zip(singles, queries, shortlists, strict=True):
            if rerank is not None:
                hits = _reranked(self, query, hits, distance)
            for rank, (item, value) in enumerate(hits[:k], 1):
                row: Record = {"query": describe(image), "rank": rank, "distance": value, **signature}
                row |= row_of(item, self.relative)
                if limit is not None:
                    is_unknown = comparable(value) > comparable(limit.distance)
                    row["answer"] = UNKNOWN if is_unknown else item.identity
                    row["threshold"] = limit.distance
                    row["threshold_source"] = limit.source
                if calibration is not None:
                    row["probability"] = float(calibration.probability(value))
                    row["probability_basis"] = calibration.basis
                rows.append({column: row[column] for column in columns})
        self._leave_out(faults)
        return Records(rows, tuple(columns))

    def calibrated_limit(self, distance: str = "cls") -> Limit:
        """The threshold of a distance at 1 % of pairs of two identities, by the calibration of the gallery's model.

        A search compares with many images, so that it is lower than for one pair, see `SEARCH_RATE`.

        Raises:
            CalibrationError: without a calibration, or for one of another distance or way of masking, or without a
                threshold at 1 % or less.
        """
        return self.calibration_for(distance).threshold_at(SEARCH_RATE)

    def calibration_for(self, distance: str = "cls") -> Calibration:
        """The calibration of the gallery, else that of its model, which must be for this distance and way of masking.

        Raises:
            CalibrationError: if there is none.
        """
        calibration = calibration_of(self.metric, self.calibration or STORED, distance, self.about["outside"])
        assert calibration is not None  # of one that was asked for
        return calibration


def _check_rerank(k: int, distance: str, rerank: int | None) -> None:
    """Raise ValueError for a shortlist that does not fit the distance."""
    if needs_patches(distance) and rerank is None:
        raise ValueError(f"distance {distance!r} ranks a shortlist: say how long, rerank=50 or more")
    if rerank is not None and not needs_patches(distance):
        raise ValueError("rerank needs the distance to rank by: distance='joint' or 'patch'")
    if rerank is not None and rerank < k:
        raise ValueError(f"rerank={rerank} is a shortlist of fewer than the k={k} images asked for")


def _key(image: Any, mask: Any, look: str) -> str:
    """Return the key of a query given by its file or bytes, else ""."""
    if isinstance(mask, Labeled):
        mask = mask.source
    files = (str, bytes, os.PathLike)
    if isinstance(image, files) and (mask is None or isinstance(mask, files)):
        return key_of(image, mask, look)
    return ""


def _shortlists(
    table: VectorTable,
    items: dict[str, list[GalleryItem]],
    is_current: Callable[[GalleryItem], bool],
    queries: Single,
    own_keys: list[str],
    length: int,
) -> Iterator[Hits]:
    """Yield the nearest current images of each query, nearest first, without its own."""

    def current(rows: Ints, distances: Double, own_key: str) -> Hits:
        hits: Hits = []
        for row, distance in zip(rows.tolist(), distances.tolist(), strict=True):
            key = table.keys[row]
            if key == own_key or len(hits) >= length:
                continue
            hits += [(item, distance) for item in items[key] if is_current(item)]
        return hits[:length]

    nearest_rows, nearest_distances = nearest(queries, table.vectors, length + 1)
    for number, own_key in enumerate(own_keys):
        hits = current(nearest_rows[number], nearest_distances[number], own_key)
        searched = length + 1
        while len(hits) < length and searched < len(table.keys):  # files have changed
            searched *= 2
            (rows,), (distances,) = nearest(queries[[number]], table.vectors, searched)
            hits = current(rows, distances, own_key)
        yield hits


def _reranked(
    contents: Contents,
    query: Embedding,
    hits: Hits,
    distance: str,
) -> Hits:
    """Sort hits by a distance of patches; equally near ones stay in order."""
    if not hits:
        return []
    metric = contents.metric
    items = [item for item, _ in hits]
    candidates = _with_patches(contents, items).to(metric.device)
    matrix = distance_matrix(query.to(metric.device), candidates, distance)
    distances = matrix[0].double()
    check_distances(distances, metric.dtype)
    reranked = zip(items, distances.cpu().tolist(), strict=True)
    return sorted(reranked, key=lambda hit: comparable(hit[1]))


def _with_patches(contents: Contents, items: list[GalleryItem]) -> Embedding:
    """Return embeddings with patches, from the store or computed now."""
    metric, masking = contents.metric, contents.masking
    store = Store(contents.store, metric.model_id, patches=True)
    embeddings = store.readable([item.key for item in items])

    missing = {item.key: item for item in items if item.key not in embeddings}

    def to_read() -> Iterator[Item]:
        for key, item in missing.items():
            image, mask = contents.read(item)
            named_mask = None if mask is None else Named(mask, mask_name(item))
            yield Item(item.place, Named(image, item.place), named_mask, source=key)

    for result in embedded(to_read(), metric, masking.look, patches=True, batch_size=_RERANKED, on_error="skip"):
        if result.problem is not None:
            raise GalleryError(f"{result.item.name}: {problem_of(result.problem, result.item.name)}")
        embeddings[result.item.source] = result.row
    return concatenate([embeddings[item.key] for item in items])
