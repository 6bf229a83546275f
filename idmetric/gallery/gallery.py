"""A gallery: embeddings of folders and manifests that are kept up to date, and searched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from idmetric.data.look import check_share
from idmetric.gallery.index import LOCK, write_index
from idmetric.gallery.look_files import LooksWriter, looks_folder, write_looks
from idmetric.gallery.search import Searchable
from idmetric.gallery.sources import MANIFESTS, GalleryError, GallerySource, entries
from idmetric.gallery.update import Update, current_items, difference
from idmetric.metric.files import StrPath, locked, need, replacing, writing
from idmetric.store import counts


class Gallery(Searchable):
    """Images of folders and manifests, embedded by one model and kept in a folder.

    Args:
        folder: holds the gallery; several models may share it. The first `update` creates it.
        metric: the model. Only embeddings of exactly its weights and settings are ever used.
        masked: embed only subjects, by masks. outside, mask_id: see `Embedder.embed`.
        patches: keep patch tokens too (megabytes per image), which `rerank` would otherwise embed again.
        opened: the name with which `idmetric.load` opens the model again. opened_revision: the commit, if one was asked
            for. The command line records both.
        calibration: for probabilities and thresholds, a file or one in memory; default the one in the folder of the
            model's weights.

    Attributes:
        stale: `Item.where` -> fault of the images that the last answer left out, see `current`.
    """

    def update(
        self,
        *sources: StrPath,
        mask_dir: StrPath | None = None,
        quick: bool = False,
        batch_size: int = 32,
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        looks: bool = False,
    ) -> Update:
        """Make this the gallery of the images in the sources; only images with new content are embedded.

        A killed update loses half a minute of work; processes that share the gallery take turns.

        Args:
            sources: folders, image files or manifests (.parquet, .csv, .jsonl).
            mask_dir: with `masked`, the folder of masks for folders and files, see `paths.mask_of`.
            quick: trust files with the size, times of change and inode of the previous update; otherwise all files are
                read. A file system that does not keep times of change reliably needs the slow way.
            batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
            progress: called with (images done, images in all).
            looks: also keep what `near_duplicates` needs of the images that are read; without, it reads them again.

        Raises:
            GalleryError: if a source is missing. OutputError: if the gallery cannot be written. ValueError: if subjects
                are to be seen, and no image has a mask. Unusable images are reported in the result.
        """
        self._check_model()
        if not sources:
            raise GalleryError("name the gallery's sources: folders, images or manifests")
        paths = [os.path.abspath(source) for source in sources]
        if self.masking.masked and mask_dir is None and not all(path.lower().endswith(MANIFESTS) for path in paths):
            raise GalleryError("a gallery of masked subjects needs the masks of its folders: mask_dir=, --mask-dir")
        if mask_dir is not None and not (self.masking.masked and os.path.isdir(mask_dir)):
            raise GalleryError(f"mask_dir={os.fspath(mask_dir)!r} must be a folder, and needs masked=True")
        masks = None if mask_dir is None else os.path.abspath(mask_dir)
        wanted = list(entries([GallerySource(path, masks) for path in paths], self.masking.masked))
        if self.masking.masked:
            masked = [entry for entry in wanted if entry.mask is not None]
            check_share(len(masked), len(wanted))

        with writing(self.folder):
            self.store.mkdir(parents=True, exist_ok=True)
        with locked(self.store / LOCK, RuntimeError(), wait=True):
            self.reload()
            before = {item.where: item for item in self._items or []}
            made_before = counts["made"]
            try:
                writer = LooksWriter(partial(write_looks, looks_folder(self.store))) if looks else None
                after = current_items(
                    self.metric,
                    self._shards,
                    wanted,
                    {} if not quick else before,
                    self.masking,
                    patches=self.patches,
                    batch_size=batch_size,
                    workers=workers,
                    progress=progress,
                    looks=writer,
                )
                if writer is not None:
                    writer.save()
            finally:  # also if the update is stopped
                self._shards.save()

            head = {
                "about": self.about,
                "opened": self.opened,
                "opened_revision": self.opened_revision,
                "relative": not any(map(os.path.isabs, sources)),
            }
            write_index(self.store, head, after)
            changes = difference(before, after, counts["made"] - made_before)
            self.reload()
            return changes

    def to_parquet(self, path: StrPath) -> None:
        """Write image, name, identity, width, height, key and the unit vector of each image as a Parquet file.

        Raises:
            ImportError: without pyarrow. GalleryError: as `query`.
        """
        need("eval", "a Parquet file", pyarrow="pyarrow")
        import pyarrow as pa
        import pyarrow.parquet as pq

        vectors, items = self.vectors(), self._usable()
        columns = {"image": [item.place for item in items]}
        for name in ("name", "identity", "width", "height", "key"):
            columns[name] = [getattr(item, name) for item in items]
        types = dict.fromkeys(columns, pa.string())
        types["width"] = types["height"] = pa.int32()
        schema = pa.schema(types, {"idmetric.gallery": json.dumps(self.about)})
        numbers = pa.array(vectors.ravel())
        embeddings = pa.FixedSizeListArray.from_arrays(numbers, vectors.shape[1])
        table = pa.table(columns, schema=schema).append_column("embedding", embeddings)
        with replacing(Path(path)) as temporary:
            pq.write_table(table, temporary, write_page_checksum=True)
