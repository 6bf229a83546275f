"""Search: the nearest images of a query by global features, ranked again by patches if asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.data.nearest import Ints, Single, distances, unit
from idmetric.gallery.approximate import Candidates
from idmetric.gallery.files import GalleryError, Vectors
from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedding import Embedding, check_distances, concatenate
from idmetric.metric.masks import MaskWarning
from idmetric.metric.ties import comparable
from idmetric.store import Store, key_of
from idmetric.stream import Item, embedded, problem_of

if TYPE_CHECKING:
    from idmetric.gallery.contents import Contents
    from idmetric.scoring.calibration import Calibration
    from idmetric.scoring.scores import Limit, Record

Hits = list[tuple[int, float]]  # rows of images, and their distances, nearest first
UNKNOWN = "unknown"
_CELLS = 2**23  # similarities held at once (32 MB)
_NOISE = 1e-5  # of a similarity in float32, at most
_RERANKED = 16  # images without stored patches that are embedded at once


def check_rerank(k: int, distance: str, rerank: int | None) -> None:
    """Raise ValueError for numbers below 1, and for a shortlist that does not fit the distance."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if needs_patches(distance) != (rerank is not None):
        raise ValueError(
            f"a distance of patches ranks a shortlist, rerank=50 or more; cls none, got {distance!r}, {rerank}"
        )
    if rerank is not None and rerank < k:
        raise ValueError(f"rerank={rerank} is a shortlist of fewer than the k={k} images asked for")


def warn_of_unmasked(masks: Sequence[Any]) -> None:
    """Warn of queries without a mask, which are compared with subjects alone."""
    unmasked = sum(mask is None for mask in masks)
    if unmasked:
        message = f"{unmasked} of {len(masks)} queries have no mask, but the gallery holds subjects alone: give masks"
        warnings.warn(message, MaskWarning, stacklevel=3)


def key_of_query(image: Any, mask: Any, look: str) -> str:
    """The key of a query given by files or bytes; "" for others."""
    try:
        return key_of(image, getattr(mask, "source", mask), look)
    except TypeError:  # arrays and PIL images
        return ""


def nearest_images(
    gallery: Contents, queries: Embedding, own_keys: Sequence[str] | None, length: int
) -> tuple[list[Hits], dict[int, Record]]:
    """The nearest images of each query that are as they were embedded, without those of its own content.

    Args:
        own_keys: of the queries' contents. length: of each list.

    Returns:
        The lists, and the columns of the images in them by row.
    """
    records: dict[int, Record] = {}
    faults: dict[int, str] = {}

    def is_wanted(number: int, row: int) -> bool:
        if row not in records:
            (records[row],) = gallery.images.slice(row, 1).to_pylist()
            faults[row] = gallery.fault(records[row])
        is_own = own_keys is not None and records[row]["_key"] == own_keys[number]
        return not is_own and not faults[row]

    units = unit(queries.cls.float().numpy())
    lists = shortlists(gallery.features, units, length, is_wanted, gallery.candidates)
    rows = sorted({row for hits in lists for row, _ in hits})
    gallery.features.check(np.array(rows, np.int64), [records[row]["_key"] for row in rows])
    gallery.leave_out({records[row]["path"]: fault for row, fault in faults.items()})
    return lists, records


def judgment(row: Record, limit: Limit | None, calibration: Calibration | None) -> Record:
    """The columns that say whether a hit is recognized, and how sure that is."""
    columns: Record = {}
    if limit is not None:
        is_unknown = comparable(row["distance"]) > comparable(limit.distance)
        columns["answer"] = UNKNOWN if is_unknown else row.get("identity") or "same"
        columns |= {"threshold": limit.distance, "threshold_source": limit.source}
    if calibration is not None:
        columns["probability"] = float(calibration.probability(row["distance"]))
    return columns


def shortlists(
    vectors: Vectors,
    queries: Single,
    length: int,
    is_wanted: Callable[[int, int], bool],
    candidates: Candidates | None,
) -> list[Hits]:
    """The nearest wanted images of each query; of equally near ones the first row first.

    Args:
        queries: unit vectors (Q, D). length: of each list; shorter if fewer images are wanted.
        is_wanted: called with the numbers of a query and of a row.
        candidates: of an index; None: all rows are compared.
    """
    lists = []
    step = max(1, _CELLS // len(vectors))
    for start in range(0, len(queries), step):
        block = queries[start : start + step]
        similarities: Any = [None] * len(block)
        if candidates is None:
            similarities = vectors.similarity(block)
        for number, (query, similarity) in enumerate(zip(block, similarities, strict=True), start):
            count = min(length, len(vectors))
            while True:
                rows = _nearest_rows(similarity, count) if candidates is None else candidates(query, count)
                measured = _measured(vectors, query, rows, count)
                hits = [hit for hit in measured if is_wanted(number, hit[0])]
                if len(hits) >= length or count == len(vectors):
                    break
                count = min(2 * count, len(vectors))  # some are not wanted
            lists.append(hits[:length])
    return lists


def _nearest_rows(similarity: Single, count: int) -> Ints:
    """The rows that may be among the nearest, whatever float32 has lost."""
    least = np.partition(similarity, -count)[-count] - _NOISE
    return np.flatnonzero(similarity >= least)


def _measured(vectors: Vectors, query: Single, rows: Ints, count: int) -> Hits:
    """The nearest of some rows, by distances in float64."""
    exact = distances(query, vectors.unit(rows))
    order = np.lexsort((rows, comparable(exact)))
    nearest = order[:count]
    return list(zip(rows[nearest].tolist(), exact[nearest].tolist(), strict=True))


def reranked(gallery: Contents, query: Embedding, hits: Hits, distance: str) -> Hits:
    """Sort hits by a distance of patches; equally near ones stay in order."""
    if not hits:
        return []
    metric = gallery.metric
    candidates = _with_patches(gallery, [row for row, _ in hits]).to(metric.device)
    matrix = distance_matrix(query.to(metric.device), candidates, distance)
    exact = matrix[0].double()
    check_distances(exact, metric.dtype)
    rows = [row for row, _ in hits]
    return sorted(zip(rows, exact.cpu().tolist(), strict=True), key=lambda hit: comparable(hit[1]))


def _with_patches(gallery: Contents, rows: Sequence[int]) -> Embedding:
    """Embeddings of images with patches, from the store or computed now."""
    images = gallery.images.take(list(rows)).to_pylist()
    store = Store(gallery.store, gallery.metric.model_id, patches=True)
    embeddings = store.readable([image["_key"] for image in images])
    items = []
    for image in images:
        if image["_key"] not in embeddings:
            items.append(Item(image["path"], image["_file"], image["_mask"], source=image["_key"]))
    results = embedded(items, gallery.metric, gallery.look, patches=True, batch_size=_RERANKED, on_error="skip")
    for result in results:
        if result.problem is not None:
            raise GalleryError(f"{result.item.name}: {problem_of(result.problem, result.item.name)}")
        embeddings[result.item.source] = result.row
    return concatenate([embeddings[image["_key"]] for image in images])
