"""Search in a gallery: shortlist by global features, check that the files are unchanged, rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from idmetric.data.nearest import Double, Ints, Single, nearest
from idmetric.gallery.contents import Contents
from idmetric.gallery.index import Item, Where, by_key, row_of
from idmetric.gallery.read import source_of
from idmetric.gallery.sources import GalleryError
from idmetric.gallery.table import Table
from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.distance.finite import check_distances
from idmetric.metric.distance.matrix import distance_matrix, needs_patches
from idmetric.metric.distance.ties import comparable
from idmetric.metric.images.masks import Labeled, labeled, split_masks
from idmetric.metric.images.read import describe, split_images
from idmetric.metric.scoring.keys import key_of
from idmetric.metric.scoring.pipeline import Input, batches, embed
from idmetric.metric.scoring.records import Record, Records
from idmetric.metric.scoring.store import Store

if TYPE_CHECKING:
    from idmetric.metric.images.masks import Images, Masks

COLUMNS = (
    "query", "rank", "distance", "image", "name", "identity", "width", "height",
    "model", "revision", "distance_name", "resolution", "dtype", "idmetric",
)  # fmt: skip
UNKNOWN = "unknown"
_RERANKED = 16  # images without stored patches that are embedded at once

Hits = list[tuple[Item, float]]
Faults = dict[Where, str]  # `Item.where` -> why the image is not as it was embedded, or ""


def search(
    contents: Contents,
    fault_of: Callable[[Item], str],
    images: Images | Embedding,
    masks: Masks,
    *,
    k: int,
    distance: str,
    rerank: int | None,
    exclude_same: bool,
    probability: bool,
    unknown_above: float | None,
    batch_size: int,
) -> tuple[Records, Faults]:
    """Return the hits of all queries (`Gallery.query`), and the faults of the images that were looked at.

    Args:
        fault_of: returns why an image is not as it was embedded, or "".
    """
    _check_options(k, distance, rerank, unknown_above)
    metric, calibration = contents.metric, None
    if probability:
        calibration = metric.calibration
        if calibration is None:
            raise ValueError(f"{metric.label} has no calibration: give it one by calibrate_with(file)")
        calibration.check_distance(distance)
        calibration.check_outside(contents.about["outside"])

    table = contents.table()
    masks = labeled(masks, contents.masking.mask_id)
    names, queries = _embedded(contents, images, masks, needs_patches(distance), batch_size)
    own_keys = [""] * len(queries)
    if exclude_same and not isinstance(images, Embedding):
        singles = split_images(images)
        own_keys = list(map(_key, singles, split_masks(masks, singles)))
    faults: Faults = {}
    vectors = queries.cls.float().numpy()

    def is_current(item: Item) -> bool:
        if item.where not in faults:
            faults[item.where] = fault_of(item)
        return not faults[item.where]

    shortlists = _shortlists(table, by_key(contents.items), is_current, vectors, own_keys, rerank or k)

    columns = list(COLUMNS)
    if unknown_above is not None:
        columns.insert(3, "answer")
    if calibration is not None:
        columns.insert(3, "probability")
        columns.append("probability_basis")
    signature = metric.signature(distance)
    signature["distance_name"] = signature.pop("distance")

    rows: list[Record] = []
    for name, query, hits in zip(names, queries, shortlists, strict=True):
        if rerank is not None:
            hits = _reranked(contents, query, hits, distance)
        for rank, (item, value) in enumerate(hits[:k], 1):
            row: Record = {"query": name, "rank": rank, "distance": value, **signature}
            row |= row_of(item, contents.relative)
            if unknown_above is not None:
                is_unknown = comparable(value) > comparable(unknown_above)
                row["answer"] = UNKNOWN if is_unknown else item.identity
            if calibration is not None:
                row["probability"] = float(calibration.probability(value))
                row["probability_basis"] = calibration.basis
            rows.append({column: row[column] for column in columns})
    return Records(rows, tuple(columns)), faults


def _check_options(
    k: int,
    distance: str,
    rerank: int | None,
    unknown_above: float | None,
) -> None:
    """Raise ValueError for options that do not fit."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if unknown_above is not None and not 0 <= unknown_above < float("inf"):
        raise ValueError(f"unknown_above must be a distance, at least 0 and finite, got {unknown_above}")
    if needs_patches(distance) and rerank is None:
        raise ValueError(f"distance {distance!r} ranks a shortlist: say how long, rerank=50 or more")
    if rerank is not None and not needs_patches(distance):
        raise ValueError("rerank needs the distance to rank by: distance='joint' or 'patch'")
    if rerank is not None and rerank < k:
        raise ValueError(f"rerank={rerank} is a shortlist of fewer than the k={k} images asked for")


def _embedded(
    contents: Contents, images: Images | Embedding, masks: Masks, patches: bool, batch_size: int
) -> tuple[list[str], Embedding]:
    """Return names and embeddings of the queries."""
    metric, outside = contents.metric, contents.masking.outside
    if isinstance(images, Embedding):
        queries = metric.as_embedding(images, masks, outside, patches, batch_size).cpu()
        names = [f"query {number}" for number in range(1, len(queries) + 1)]
        queries.check_finite(names, queries.cls.dtype)
        return names, queries

    singles = split_images(images)
    covers = split_masks(masks, singles)
    queries = metric.embed(
        singles,
        masks=covers if any(cover is not None for cover in covers) else None,
        outside=outside,
        patches=patches,
        batch_size=batch_size,
    )
    return [describe(image) for image in singles], queries.cpu()


def _key(image: Any, mask: Any) -> str:
    """Return the key of a query given by its file or bytes, else ""."""
    if isinstance(mask, Labeled):
        mask = mask.source
    files = (str, bytes, os.PathLike)
    if isinstance(image, files) and (mask is None or isinstance(mask, files)):
        return key_of(image, mask)
    return ""


def _shortlists(
    table: Table,
    items: dict[str, list[Item]],
    is_current: Callable[[Item], bool],
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


def _with_patches(contents: Contents, items: list[Item]) -> Embedding:
    """Return embeddings with patches, from the store or computed now."""
    metric, masking = contents.metric, contents.masking
    store = Store(contents.store, True, metric.model_id)
    embeddings = store.readable([item.key for item in items])

    def read(item: Item) -> Input[Item]:
        image, mask = contents.read(item)
        source = source_of(item, image, mask)
        pixels, cover = metric.load_image(source.image, source.mask, masking.outside, mask_id=masking.mask_id)
        return Input(item, item.key, pixels, cover)

    missing = {item.key: item for item in items if item.key not in embeddings}
    for batch in batches(missing.values(), read, batch_size=_RERANKED):
        embedded, problems = embed(metric, batch, patches=True)
        for row, problem in problems.items():
            raise GalleryError(f"{batch[row].item.place}: {problem}")
        keys = [image.key for image in batch]
        embeddings |= zip(keys, embedded.cpu(), strict=True)
    return concatenate([embeddings[item.key] for item in items])
