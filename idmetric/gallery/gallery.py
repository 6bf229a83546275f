"""A gallery: images of folders and tables, embedded once, and searched often."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from idmetric.gallery import search
from idmetric.gallery.answer import Answer
from idmetric.gallery.build import Progress, Update, before_build, embed_images, prints_of, update_of
from idmetric.gallery.contents import Contents
from idmetric.gallery.files import IMAGES, GalleryError, write_images
from idmetric.gallery.sources import GallerySource, list_images
from idmetric.metric.distance import needs_patches
from idmetric.metric.files import StrPath, locked, writing
from idmetric.metric.images import describe, split_images
from idmetric.metric.masks import labeled, split_masks
from idmetric.scoring.calibration import SEARCH_RATE, calibration_of
from idmetric.scoring.scores import NO_CALIBRATION, Limit, Record
from idmetric.store import Store, counts
from idmetric.stream import Look, embedding_of, items_of_images

if TYPE_CHECKING:
    from idmetric.gallery.clusters import Linkage
    from idmetric.metric.masks import Images, Masks

_LOCK = ".lock"


class Gallery(Contents):
    """Images of folders and tables, embedded by one model and kept in a folder.

    Args:
        folder: holds the gallery; several models may share it. The first `build` creates it. Or a Parquet file, or a
            folder of them, that `adapters.EmbedColumn` has filled.
        metric: the model. Only embeddings of exactly its weights and settings are ever used.
        masked: embed only subjects, by masks. outside, mask_id: see `Embedder.embed`.
        patches: keep patch tokens too (megabytes per image), which a query with `rerank` would otherwise embed again.
        calibration: for answers and thresholds, a file or one in memory; default: the one in the folder of the model's
            weights, if it holds for these masks.
        index: "faiss" searches approximately, for galleries beyond the memory; None: exactly.
        opened, opened_revision: by which the command line opens the model again; default: the model's name.

    Attributes:
        stale: path -> fault, of the images that the last answer left out.
    """

    # Building

    def build(
        self,
        *sources: GallerySource,
        mask_dir: StrPath | None = None,
        batch_size: int = 32,
        workers: int | None = None,
        progress: Progress | None = None,
        prints: bool = False,
    ) -> Update:
        """Make this the gallery of the images in the sources; only new content is embedded.

        Files of which size and times are as before are not read again. A killed build loses half a minute of work;
        processes that share the gallery take turns. Damaged vectors are made again.

        Args:
            sources: folders, image files, and tables with a column `path`: .parquet, .csv, .jsonl or DataFrames.
            mask_dir: with `masked`, the folder of masks for folders and files, see `paths.mask_of`.
            batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
            progress: called with (images done, images in all).
            prints: also keep the small pictures in which `duplicates` finds copies; without, it reads the images again.

        Raises:
            GalleryError: if a source cannot be used. ManifestError: for a table that cannot. OutputError: if the
                gallery cannot be written. ValueError: if subjects are to be seen, and no image has a mask. Images that
                cannot be used are reported in the result.
        """

        if self.is_table:
            raise GalleryError(f"{str(self.folder)!r} is a table with vectors: name a folder for the gallery")
        from idmetric.data.look import check_share  # pandas: not for a query

        self.check(is_searched=False)
        if not sources:
            raise GalleryError("name the gallery's sources: folders, images or tables")
        if mask_dir is not None and not (self.look.masked and os.path.isdir(mask_dir)):
            raise GalleryError(f"mask_dir={os.fspath(mask_dir)!r} must be a folder, and needs masked=True")
        wanted = list_images(sources, self.look.masked, mask_dir)
        if self.look.masked:
            check_share(int(wanted["_mask"].notna().sum()), len(wanted))

        with writing(self.folder):
            self.store.mkdir(parents=True, exist_ok=True)
        with locked(self.store / _LOCK, RuntimeError(), wait=True):
            before = before_build(self.store / IMAGES)
            made_before = counts["made"]
            store = Store(self.store, self.metric.model_id, patches=self.patches, is_needed=True)
            store.drop_damaged("cls")
            images, problems = embed_images(
                wanted,
                before,
                self.metric,
                store,
                self.look,
                prints=prints_of(self.store) if prints else None,
                progress=progress,
                batch_size=batch_size,
                workers=workers,
            )
            head = {"about": self.about, "opened": self.opened, "opened_revision": self.opened_revision}
            write_images(self.store / IMAGES, head, images)
        self.reload()
        return update_of(before, images, counts["made"] - made_before, problems)

    def query(
        self,
        images: Images,
        k: int = 10,
        *,
        masks: Masks = None,
        distance: str = "cls",
        rerank: int | None = None,
        exclude_same: bool = False,
        threshold: float | Limit | None = None,
        batch_size: int = 32,
    ) -> Answer:
        """Find the k images nearest to each query, nearest first; equally near ones in the order of the gallery.

        Files that are missing or have changed since they were embedded are left out, with a `StaleWarning`. Only
        `build` finds new files, and changed ones that would be nearer now.

        Args:
            images: one or several.
            k: images for each query; fewer if the gallery has fewer.
            masks: the queries' masks; pixels outside are replaced as in the gallery. A `MaskWarning` counts those
                without one in a masked gallery.
            distance: the distance to rank by. Any but "cls" needs `rerank`.
            rerank: length of the shortlist by `cls`, which is then ranked by `distance`.
            exclude_same: leave out images with the query's own bytes.
            threshold: the largest distance at which a hit is recognized; default: by the model's calibration at 1 % of
                pairs of two identities, see `limit`.
            batch_size: queries per pass.

        Returns:
            A row for each hit: query, rank, distance, path, identity, own columns, and the settings behind it. With a
            threshold or a calibration, `answer` is the hit's identity ("same" without one), or "unknown" beyond the
            threshold, and `probability` that of the same identity by the calibration.

        Raises:
            GalleryError: if this model has no gallery here, or the gallery is empty or damaged, or all its images are
                missing.
            ImageReadError: for a query that cannot be read. CalibrationError: for a given one that does not hold.
            ValueError: for arguments that do not fit.
        """
        search.check_rerank(k, distance, rerank)
        self.check()
        if self.is_table and (rerank or exclude_same or self.look.masked):
            raise GalleryError(
                f"{str(self.folder)!r} has vectors alone, neither patches, contents nor masks: build a gallery of the "
                "images for rerank, exclude_same and masks"
            )
        calibration = calibration_of(self.metric, self.calibration, distance, self.about["outside"])
        limit = None if threshold is None else Limit.of(threshold)
        if limit is None and calibration is not None:
            limit = calibration.threshold_at(SEARCH_RATE)

        singles = split_images(images)
        covers = split_masks(labeled(masks, self.look.mask_id), singles)
        if self.look.masked:
            search.warn_of_unmasked(covers)
        queries = embedding_of(
            items_of_images(singles, covers),
            self.metric,
            Look(True, self.look.outside),
            patches=needs_patches(distance),
            batch_size=batch_size,
            workers=0,
        )
        own_keys = None
        if exclude_same:
            pairs = zip(singles, covers, strict=True)
            own_keys = [search.key_of_query(image, mask, str(self.look)) for image, mask in pairs]
        lists, records = search.nearest_images(self, queries, own_keys, rerank or k)

        rows: list[Record] = []
        for image, query, hits in zip(singles, queries, lists, strict=True):
            if rerank is not None:
                hits = search.reranked(self, query, hits, distance)
            for rank, (number, value) in enumerate(hits[:k], 1):
                row = records[number] | {"query": describe(image), "rank": rank, "distance": value}
                rows.append(row | search.judgment(row, limit, calibration))

        columns: tuple[str, ...] = ("query", "rank", "distance")
        columns += ("answer",) if limit else ()
        columns += ("probability",) if calibration else ()
        more_columns = ("threshold", "threshold_source") if limit else ()
        notes = [f"unknown above {limit}"] if limit else []
        notes.append(calibration.basis if calibration else NO_CALIBRATION)
        return self.answer("Nearest images", columns, rows, more_columns, list(records.values()), notes, distance)

    def duplicates(
        self, *, neighbors: int = 10, max_distance: float | Limit | None = None, progress: Progress | None = None
    ) -> Answer:
        """Find groups of images that repeat each other's pixels; see `copies.duplicates`."""
        from idmetric.gallery import copies

        return copies.duplicates(self, neighbors=neighbors, max_distance=max_distance, progress=progress)

    def identities(self, *, threshold: float | Limit | None = None, linkage: Linkage = "average") -> Answer:
        """Group images that show the same identity; see `clusters.identities`."""
        from idmetric.gallery import clusters

        return clusters.identities(self, threshold=threshold, linkage=linkage)
