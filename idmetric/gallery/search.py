"""Search in a gallery: shortlist by global features, check that the files are unchanged, rank."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from idmetric.distance.finite import check_distances
from idmetric.distance.matrix import distance_matrix, needs_patches
from idmetric.embed.keys import key_of
from idmetric.embed.nearest import nearest
from idmetric.embed.store import Store
from idmetric.evaluate.arrays import comparable
from idmetric.gallery.errors import GalleryError, StaleWarning
from idmetric.gallery.index import Item, by_key
from idmetric.gallery.read import load_pixels
from idmetric.gallery.trust import UntrustedSourcesError
from idmetric.images.masks import Labelled, labelled, split_masks
from idmetric.images.read import describe, split_images
from idmetric.models.embedding import Embedding, concatenate, same_model
from idmetric.scoring.records import Record, Records

if TYPE_CHECKING:
    from idmetric.calibration.apply import Calibration
    from idmetric.gallery.gallery import Gallery
    from idmetric.images.masks import Images, Masks

COLUMNS = ("query", "rank", "distance", "image", "name", "identity", "width", "height", "model", "revision",
           "distance_name", "resolution", "dtype", "idmetric")  # fmt: skip


@dataclass
class Search:
    """One call of `Gallery.query`; arguments as there."""

    gallery: Gallery
    k: int
    distance: str = "cls"
    rerank: int | None = None
    exclude_same: bool = False
    probability: bool = False
    verify: bool = True
    current: dict[tuple[str, ...], bool] = field(default_factory=dict)  # item -> whether its files are unchanged
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
        if self.probability:
            self.calibration = self.gallery.metric.calibration
            if self.calibration is None:
                raise ValueError(f"{self.gallery.metric.label} has no calibration: give it one by calibrate_with(file)")
            self.calibration.check_distance(self.distance)
            self.calibration.check_outside(self.gallery.about["outside"])
        self.by_key = by_key(self.gallery.items)
        if not self.by_key:
            raise GalleryError(f"the gallery {str(self.gallery.folder)!r} has no image that can be used")
        self.table = self.gallery.table()
        self.stored = Store(self.gallery.store, True, self.gallery.metric.model_id) if self.patches else None

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
        metric, outside = self.gallery.metric, self.gallery.outside
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
        covers = split_masks(labelled(masks, self.gallery.mask_id), singles)
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
            if own and key == own:
                continue
            for item in self.by_key[key]:
                if len(hits) >= need:
                    return hits
                if not self.verify or self._is_current(item):
                    hits.append((item, distance))
        return hits

    def _is_current(self, item: Item) -> bool:
        if item.where not in self.current:
            try:
                self.gallery.read(item)
                self.current[item.where] = True
            except UntrustedSourcesError:
                raise
            except GalleryError as error:
                warnings.warn(f"left out: {error}", StaleWarning, stacklevel=2)
                self.current[item.where] = False
        return self.current[item.where]

    def _reranked(self, query: Embedding, found: list[tuple[Item, float]]) -> list[tuple[float, Item]]:
        """Sort hits by `distance`; equally far ones stay in order."""
        if not found:
            return []
        theirs = self._patches([item for item, _ in found])
        device = self.gallery.metric.device
        far = distance_matrix(query.to(device), theirs.to(device), self.distance)[0].double()
        check_distances(far, self.gallery.metric.dtype)
        hits = ((d, item) for d, (item, _) in zip(far.cpu().tolist(), found, strict=True))
        return sorted(hits, key=lambda hit: comparable(hit[0]))

    def _patches(self, items: list[Item]) -> Embedding:
        """Return embeddings with patches, from the store or computed now, a few at a time."""
        metric, parts = self.gallery.metric, []
        assert self.stored is not None
        for start in range(0, len(items), 16):
            some = items[start : start + 16]
            kept = [item for item in some if item.key in self.stored]
            known = {item.key: self.stored.embedding([item.key]) for item in kept}
            fresh = [self._load(item) for item in some if item.key not in known]
            if fresh:
                pixels, covers = zip(*fresh, strict=True)
                masks = None if all(c is None for c in covers) else list(covers)
                made = metric.embed(list(pixels), batch_size=16, masks=masks, outside="keep").cpu()
                known |= dict(zip([i.key for i in some if i.key not in known], made, strict=True))
            parts += [known[item.key] for item in some]
        return concatenate(parts)

    def _load(self, item: Item) -> tuple[Any, Any]:
        image, mask = self.gallery.read(item)
        return load_pixels(self.gallery.metric, item, image, mask, self.gallery.outside, self.gallery.mask_id)

    def _row(self, query: str, rank: int, distance: float, item: Item) -> Record:
        s = self.gallery.metric.signature(self.distance)
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
    cover = mask.source if isinstance(mask, Labelled) else mask
    files = isinstance(image, str | bytes | os.PathLike) and isinstance(cover, str | bytes | os.PathLike | None)
    return key_of(image, cover) if files else ""
