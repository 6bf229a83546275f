"""Search in a gallery: shortlist by global features, check that the files are unchanged, rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.gallery.index import Item, by_key
from idmetric.gallery.read import source_of
from idmetric.gallery.sources import GalleryError
from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.distance.finite import check_distances
from idmetric.metric.distance.matrix import distance_matrix, needs_patches
from idmetric.metric.distance.ties import comparable
from idmetric.metric.images.masks import Labeled, labeled, split_masks
from idmetric.metric.images.read import describe, split_images
from idmetric.metric.scoring.keys import key_of
from idmetric.metric.scoring.nearest import Double, Ints, Single, nearest
from idmetric.metric.scoring.pipeline import Input, batches, embed
from idmetric.metric.scoring.records import Record, Records
from idmetric.metric.scoring.store import Store

if TYPE_CHECKING:
    from idmetric.metric.calibration.apply import Calibration
    from idmetric.metric.images.masks import Images, MaskId, Masks
    from idmetric.metric.images.read import Outside
    from idmetric.metric.models.embedder import Embedder

COLUMNS = ("query", "rank", "distance", "image", "name", "identity", "width", "height", "model", "revision",
           "distance_name", "resolution", "dtype", "idmetric")  # fmt: skip
UNKNOWN = "unknown"
NEIGHBORS = 12  # nearest images that pages show
_RERANKED = 16  # images without stored patches that are embedded at once


@dataclass
class Table:
    """Unit vectors (N, D) of different images, and their keys."""

    keys: list[str]
    vectors: Single
    _near: tuple[Ints, Double] | None = None

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each key's row."""
        return {key: k for k, key in enumerate(self.keys)}

    def near(self, k: int) -> tuple[Ints, Double]:
        """Rows of the k nearest vectors of each, itself among them, and their distances; found once."""
        if self._near is None or self._near[0].shape[1] < min(k, len(self.keys)):
            self._near = nearest(self.vectors, self.vectors, max(k, NEIGHBORS + 1))
        return self._near[0][:, :k], self._near[1][:, :k]

    def rows_of(self, keys: Iterable[str]) -> Single:
        """The vectors of keys, in their order."""
        return self.vectors[[self.number[key] for key in keys]]


@dataclass
class Search:
    """One call of `Gallery.query`; further arguments as there.

    Attributes:
        store: folder of the gallery's embeddings. items, table: its usable images, and their vectors.
        read: returns the bytes of an image and its mask, or raises GalleryError if they have changed.
        fault: why an image is not as it was embedded, or "".
        shown: an image's place in answers.
        probability_of: what the gallery's model sees of an image, for probabilities; None: there are none.
    """

    metric: Embedder
    outside: Outside
    mask_id: MaskId | None
    store: Path
    items: Sequence[Item]
    table: Table
    read: Callable[[Item], tuple[bytes, bytes | None]]
    fault: Callable[[Item], str]
    shown: Callable[[Item], str]
    k: int
    distance: str
    rerank: int | None
    exclude_same: bool
    probability_of: str | None
    unknown_above: float | None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        self.patches = needs_patches(self.distance)
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
        if self.unknown_above is not None and not 0 <= self.unknown_above < float("inf"):
            raise ValueError(f"unknown_above must be a distance, at least 0 and finite, got {self.unknown_above}")
        if self.patches != (self.rerank is not None):
            raise ValueError(
                f"distance {self.distance!r} ranks a shortlist: say how long, rerank=50 or more" if self.patches
                else "rerank needs the distance to rank by: distance='joint' or 'patch'"
            )  # fmt: skip
        if self.rerank is not None and self.rerank < self.k:
            raise ValueError(f"rerank={self.rerank} is a shortlist of fewer than the k={self.k} images asked for")
        if self.probability_of is not None:
            self.calibration = self.metric.calibration
            if self.calibration is None:
                raise ValueError(f"{self.metric.label} has no calibration: give it one by calibrate_with(file)")
            self.calibration.check_distance(self.distance)
            self.calibration.check_outside(self.probability_of)
        self.by_key = by_key(self.items)
        self.faults: dict[tuple[str, ...], str] = {}  # of the images that were looked at; "" for most

    def run(self, images: Images | Embedding, masks: Masks, batch_size: int) -> Records:
        """Return all hits of all queries."""
        masks, own = labeled(masks, self.mask_id), [""]
        if isinstance(images, Embedding):
            queries = self.metric.as_embedding(images, masks, self.outside, self.patches, batch_size).cpu()
            names = [f"query {number}" for number in range(1, len(queries) + 1)]
            queries.check_finite(names, queries.cls.dtype)
        else:
            singles = split_images(images)
            covers = split_masks(masks, singles)
            queries = self.metric.embed(
                singles, batch_size=batch_size, outside=self.outside, patches=self.patches,
                masks=None if all(cover is None for cover in covers) else covers,
            ).cpu()  # fmt: skip
            names = [describe(image) for image in singles]
            if self.exclude_same:
                own = [_key(image, mask) for image, mask in zip(singles, covers, strict=True)]

        rows: list[Record] = []
        hits = self._hits(queries.cls.float().numpy(), own * (len(queries) // len(own)))
        for name, query, found in zip(names, queries, hits, strict=True):
            ranked = found if self.rerank is None else self._reranked(query, found)
            rows += [self._row(name, rank, *hit) for rank, hit in enumerate(ranked[: self.k], 1)]
        answer = () if self.unknown_above is None else ("answer",)
        columns = (*COLUMNS[:3], *answer, *COLUMNS[3:])
        if self.calibration:
            columns = (*columns[:3], "probability", *columns[3:], "probability_basis")
        return Records([{name: row[name] for name in columns} for row in rows], columns)

    def _hits(self, queries: Single, own: list[str]) -> Iterator[list[tuple[Item, float]]]:
        """Yield the nearest unchanged images of each query, nearest first: `rerank` or k of them, without its own."""
        need, total = self.rerank or self.k, len(self.table.keys)
        for query, key, rows, far in zip(queries, own, *nearest(queries, self.table.vectors, need + 1), strict=True):
            found = self._unchanged(rows, far, key, need)
            length = need + 1
            while len(found) < need and length < total:  # files have changed
                length *= 2
                (rows,), (far,) = nearest(query[None], self.table.vectors, length)
                found = self._unchanged(rows, far, key, need)
            yield found

    def _unchanged(self, rows: Ints, far: Double, own: str, need: int) -> list[tuple[Item, float]]:
        found: list[tuple[Item, float]] = []
        for row, distance in zip(rows.tolist(), far.tolist(), strict=True):
            key = self.table.keys[row]
            if len(found) < need and not (own and key == own):
                found += [(item, distance) for item in self.by_key[key] if self._is_current(item)]
        return found[:need]

    def _is_current(self, item: Item) -> bool:
        if item.where not in self.faults:
            self.faults[item.where] = self.fault(item)
        return not self.faults[item.where]

    def _reranked(self, query: Embedding, found: list[tuple[Item, float]]) -> list[tuple[Item, float]]:
        """Sort hits by `distance`; equally far ones stay in order."""
        if not found:
            return []
        items, device = [item for item, _ in found], self.metric.device
        far = distance_matrix(query.to(device), self._patches(items).to(device), self.distance)[0].double()
        check_distances(far, self.metric.dtype)
        return sorted(zip(items, far.cpu().tolist(), strict=True), key=lambda hit: comparable(hit[1]))

    def _patches(self, items: list[Item]) -> Embedding:
        """Return embeddings with patches, from the store or computed now."""
        store = Store(self.store, True, self.metric.model_id)
        found = store.readable([item.key for item in items])

        def read(item: Item) -> Input[Item]:
            image, mask = self.read(item)
            source = source_of(item, image, mask)
            pixels, cover = self.metric.load_image(source.image, source.mask, self.outside, mask_id=self.mask_id)
            return Input(item, item.key, pixels, cover)

        lacking = {item.key: item for item in items if item.key not in found}
        for batch in batches(lacking.values(), read, batch_size=_RERANKED):
            made, bad = embed(self.metric, batch, patches=True)
            if bad:
                raise GalleryError(f"{batch[min(bad)].item.place}: {bad[min(bad)]}")
            found |= dict(zip([one.key for one in batch], made.cpu(), strict=True))
        return concatenate([found[item.key] for item in items])

    def _row(self, query: str, rank: int, item: Item, distance: float) -> Record:
        signature = self.metric.signature(self.distance)
        row = {"query": query, "rank": rank, "distance": distance, "image": self.shown(item), "name": item.name,
               "identity": item.identity, "width": item.width, "height": item.height,
               "distance_name": signature.pop("distance"), **signature}  # fmt: skip
        if self.unknown_above is not None:
            far = comparable(distance) > comparable(self.unknown_above)
            row["answer"] = UNKNOWN if far else item.identity
        if self.calibration is not None:
            row["probability"] = float(self.calibration.probability(distance))
            row["probability_basis"] = self.calibration.basis
        return row


def _key(image: Any, mask: Any) -> str:
    """Return the key of a query given by its file or bytes, else ""."""
    cover = mask.source if isinstance(mask, Labeled) else mask
    files = isinstance(image, str | bytes | os.PathLike) and isinstance(cover, str | bytes | os.PathLike | None)
    return key_of(image, cover) if files else ""
