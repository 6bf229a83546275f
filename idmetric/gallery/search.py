"""Search in a gallery: shortlist by global features, check that the files are unchanged, rank."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.distance.embedding import Embedding, concatenate, same_model
from idmetric.distance.finite import check_distances
from idmetric.distance.matrix import distance_matrix, needs_patches
from idmetric.embed.keys import key_of
from idmetric.embed.nearest import Single, nearest
from idmetric.embed.pipeline import Input, batches, embed
from idmetric.embed.store import Store
from idmetric.evaluate.arrays import comparable
from idmetric.gallery.errors import GalleryError, StaleWarning
from idmetric.gallery.index import Item, by_key
from idmetric.gallery.read import load_pixels
from idmetric.images.masks import Labeled, labeled, split_masks
from idmetric.images.read import describe, split_images
from idmetric.scoring.records import Record, Records

if TYPE_CHECKING:
    from idmetric.calibration.apply import Calibration
    from idmetric.images.masks import Images, MaskId, Masks
    from idmetric.images.read import Outside
    from idmetric.models.embedder import Embedder

COLUMNS = ("query", "rank", "distance", "image", "name", "identity", "width", "height", "model", "revision",
           "distance_name", "resolution", "dtype", "idmetric")  # fmt: skip
_RERANKED = 16  # images without stored patches that are embedded at once


@dataclass(frozen=True)
class Table:
    """Unit vectors (N, D) of different images, and their keys."""

    keys: list[str]
    vectors: Single

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each key's row."""
        return {key: k for k, key in enumerate(self.keys)}

    def rows_of(self, keys: Iterable[str]) -> Single:
        """The vectors of keys, in their order."""
        return self.vectors[[self.number[key] for key in keys]]


@dataclass
class Search:
    """One call of `Gallery.query`; further arguments as there.

    Attributes:
        store: folder of the gallery's embeddings. items, table: its usable images, and their vectors.
        read: returns the bytes of an image and its mask, or raises GalleryError if they have changed.
        probability_of: what the gallery's model sees of an image, for probabilities; None: there are none.
    """

    metric: Embedder
    outside: Outside
    mask_id: MaskId | None
    store: Path
    items: Sequence[Item]
    table: Table
    read: Callable[[Item], tuple[bytes, bytes | None]]
    k: int
    distance: str
    rerank: int | None
    exclude_same: bool
    probability_of: str | None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        self.patches = needs_patches(self.distance)
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
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
        self.current: dict[tuple[str, ...], bool] = {}  # item -> whether its files are unchanged

    def run(self, images: Images | Embedding, masks: Masks, batch_size: int) -> Records:
        """Return all hits of all queries."""
        rows: list[Record] = []
        for names, keys, embedding in self._queries(images, masks, batch_size):
            for name, one, found in zip(names, embedding, self._shortlists(keys, embedding), strict=True):
                ranked = [(far, item) for item, far in found] if self.rerank is None else self._reranked(one, found)
                rows += [self._row(name, rank, *hit) for rank, hit in enumerate(ranked[: self.k], 1)]
        columns = (*COLUMNS[:3], "probability", *COLUMNS[3:], "probability_basis") if self.calibration else COLUMNS
        return Records([{name: row[name] for name in columns} for row in rows], columns)

    def _queries(
        self, images: Images | Embedding, masks: Masks, batch_size: int
    ) -> Iterator[tuple[list[str], list[str], Embedding]]:
        """Yield names, keys of content ("" = unknown) and embeddings, a batch at a time."""
        metric, outside = self.metric, self.outside
        if isinstance(images, Embedding):
            if masks is not None:
                raise ValueError("masks were given with an Embedding: give them to embed instead")
            if not same_model(images.model, metric.model_id):
                raise ValueError(f"the embedding was made by {images.model}, this gallery's model is {metric.model_id}")
            for start in range(0, len(images), batch_size):
                part = images[start : start + batch_size]
                names = [f"query {start + n}" for n in range(1, len(part) + 1)]
                part.check_finite(names, part.cls.dtype)
                yield names, [""] * len(part), part.cpu()
            return
        singles = split_images(images)
        covers = split_masks(labeled(masks, self.mask_id), singles)
        for start in range(0, len(singles), batch_size):
            part_of, cover = singles[start : start + batch_size], covers[start : start + batch_size]
            embedding = metric.embed(
                part_of, batch_size=batch_size, masks=None if all(c is None for c in cover) else cover,
                outside=outside, patches=self.patches,
            )  # fmt: skip
            keys = [_key(image, mask) if self.exclude_same else "" for image, mask in zip(part_of, cover, strict=True)]
            yield [describe(image) for image in part_of], keys, embedding.cpu()

    def _shortlists(self, keys: list[str], queries: Embedding) -> list[list[tuple[Item, float]]]:
        """Return the nearest current items of each query, nearest first: `rerank` or k of them."""
        need, total = self.rerank or self.k, len(self.table.keys)
        found: dict[int, list[tuple[Item, float]]] = {}
        open_, length = list(range(len(keys))), min(need + 1, total)
        while open_:
            rows, far = nearest(queries.cls[open_].float().numpy(), self.table.vectors, length)
            left = []
            for at, query in enumerate(open_):
                hits = self._current(keys[query], rows[at].tolist(), far[at].tolist(), need)
                if len(hits) >= need or length == total:
                    found[query] = hits
                else:
                    left.append(query)
            open_, length = left, min(2 * length, total)
        return [found[query] for query in range(len(keys))]

    def _current(self, own: str, rows: list[int], far: list[float], need: int) -> list[tuple[Item, float]]:
        hits: list[tuple[Item, float]] = []
        for row, distance in zip(rows, far, strict=True):
            key = self.table.keys[row]
            same = self.by_key[key] if not own or key != own else []
            hits += [(item, distance) for item in same if len(hits) < need and self._is_current(item)]
        return hits[:need]

    def _is_current(self, item: Item) -> bool:
        if item.where not in self.current:
            try:
                self.read(item)
                self.current[item.where] = True
            except GalleryError as error:
                warnings.warn(f"left out: {error}", StaleWarning, stacklevel=2)
                self.current[item.where] = False
        return self.current[item.where]

    def _reranked(self, query: Embedding, found: list[tuple[Item, float]]) -> list[tuple[float, Item]]:
        """Sort hits by `distance`; equally far ones stay in order."""
        if not found:
            return []
        theirs = self._patches([item for item, _ in found])
        device = self.metric.device
        far = distance_matrix(query.to(device), theirs.to(device), self.distance)[0].double()
        check_distances(far, self.metric.dtype)
        hits = ((d, item) for d, (item, _) in zip(far.cpu().tolist(), found, strict=True))
        return sorted(hits, key=lambda hit: comparable(hit[0]))

    def _patches(self, items: list[Item]) -> Embedding:
        """Return embeddings with patches, from the store or computed now."""
        store = Store(self.store, True, self.metric.model_id)
        found = store.readable([item.key for item in items])

        def read(item: Item) -> Input[Item]:
            image, mask = self.read(item)
            pixels = load_pixels(self.metric, item, image, mask, self.outside, self.mask_id)
            return Input(item, item.key, *pixels)

        lacking = {item.key: item for item in items if item.key not in found}
        for batch in batches(lacking.values(), read, batch_size=_RERANKED):
            made, bad = embed(self.metric, batch, patches=True)
            if bad:
                raise GalleryError(f"{batch[min(bad)].item.place}: {bad[min(bad)]}")
            found |= dict(zip([one.key for one in batch], made.cpu(), strict=True))
        return concatenate([found[item.key] for item in items])

    def _row(self, query: str, rank: int, distance: float, item: Item) -> Record:
        s = self.metric.signature(self.distance)
        row = {"query": query, "rank": rank, "distance": distance, "image": item.place, "name": item.name,
               "identity": item.identity, "width": item.width, "height": item.height, "model": s["model"],
               "revision": s["revision"], "distance_name": s["distance"], "resolution": s["resolution"],
               "dtype": s["dtype"], "idmetric": s["idmetric"]}  # fmt: skip
        if self.calibration is not None:
            row["probability"] = float(self.calibration.probability(distance))
            row["probability_basis"] = self.calibration.basis
        return row


def _key(image: Any, mask: Any) -> str:
    """Return the key of a query given by its file or bytes, else ""."""
    cover = mask.source if isinstance(mask, Labeled) else mask
    files = isinstance(image, str | bytes | os.PathLike) and isinstance(cover, str | bytes | os.PathLike | None)
    return key_of(image, cover) if files else ""
