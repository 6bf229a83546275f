"""A gallery: embeddings of folders and manifests that are kept up to date, and searched."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.gallery.index import (
    IMAGES,
    LOCK,
    Item,
    file_of,
    files_of,
    locked_store,
    models_of,
    read_index,
    shown,
    write_index,
)
from idmetric.gallery.prune import Pruned, prune_shards, remove_store, size_of
from idmetric.gallery.search import Search, Table
from idmetric.gallery.sources import MANIFESTS, Entry, GalleryError, Source, StaleError, StaleWarning, entries
from idmetric.gallery.update import Update, current_items, difference, stamp_of
from idmetric.metric.files.hints import need
from idmetric.metric.files.output import replacing, writing
from idmetric.metric.files.tables import first_few
from idmetric.metric.images.masks import MaskId, check_masks
from idmetric.metric.images.read import Outside
from idmetric.metric.scoring.keys import content, content_key, folder_name, stores_in
from idmetric.metric.scoring.nearest import unit
from idmetric.metric.scoring.shards import DamagedShardError
from idmetric.metric.scoring.store import Store

if TYPE_CHECKING:
    from idmetric.metric.distance.embedding import Embedding
    from idmetric.metric.images.masks import Images, Masks
    from idmetric.metric.models.embedder import Embedder
    from idmetric.metric.scoring.records import Records


class Gallery:
    """Images of folders and manifests, embedded by one model and kept in a folder.

    Args:
        folder: holds the gallery; several models may share it. The first `update` creates it.
        metric: the model. Only embeddings of exactly its weights and settings are ever used.
        masked: embed only subjects, by masks. outside, mask_id: see `Embedder.embed`.
        patches: keep patch tokens too (megabytes per image), which `rerank` would otherwise embed again.
        opened: the name with which `idmetric.load` opens the model again. opened_revision: the commit, if one was asked
            for. The command line records both.

    Attributes:
        stale: `Item.where` -> fault of the images that the last answer left out, see `current`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        metric: Embedder,
        *,
        masked: bool = False,
        outside: Outside = "black",
        mask_id: MaskId | None = None,
        patches: bool = False,
        opened: str = "",
        opened_revision: str = "",
    ) -> None:
        self.folder, self.metric, self.masked, self.patches = Path(folder), metric, masked, patches
        self.outside: Outside = outside
        self.opened, self.opened_revision = opened or metric.name, opened_revision
        self.mask_id = mask_id if masked else None
        self.about = metric.about(outside if masked else None, self.mask_id)
        self.store = self.folder / folder_name(self.about)
        self.stale: dict[tuple[str, ...], str] = {}
        self._items: list[Item] | None
        self._damage: GalleryError | None
        self.reload()

    # Contents

    def reload(self) -> None:
        """Read the files again, which another process may have changed."""
        self._items, self._damage = None, None
        self.relative = False
        try:
            if (found := read_index(self.store)) is not None:
                self.relative, self._items = bool(found[0].get("relative")), found[1]
        except GalleryError as error:  # update() mends it
            self._damage = error
        self._shards = Store(self.store, self.patches)
        self._table: Table | None = None
        self._manifests: dict[tuple[object, ...], dict[tuple[str, ...], Entry]] = {}

    @property
    def items(self) -> list[Item]:
        """The usable images, in the order of their sources and names.

        Raises:
            GalleryError: if there is no gallery of this model here, or its list of images is damaged.
        """
        return [item for item in self._all() if not item.problem]

    @property
    def problems(self) -> dict[str, str]:
        """Place -> reason, for unusable images."""
        return {item.place: item.problem for item in self._all() if item.problem}

    def __len__(self) -> int:
        return len(self.items)

    def shown(self, item: Item) -> str:
        """An image's place in answers: relative to the current folder if the last update's sources were relative."""
        return shown(item, self.relative)

    def vectors(self) -> NDArray[np.float32]:
        """Unit global features (N, D) of `items`.

        Raises:
            GalleryError: as `query`.
        """
        return self.table().rows_of(item.key for item in self.items)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write image, name, identity, width, height, key and the unit vector of each image as a Parquet file.

        Raises:
            ImportError: without pyarrow. GalleryError: as `query`.
        """
        need("gallery", "a Parquet file", pyarrow="pyarrow")
        import pyarrow as pa
        import pyarrow.parquet as pq

        vectors, items = self.vectors(), self._usable()
        table = pa.table({
            "image": pa.array([i.place for i in items], pa.string()),
            "name": pa.array([i.name for i in items], pa.string()),
            "identity": pa.array([i.identity for i in items], pa.string()),
            "width": pa.array([i.width for i in items], pa.int32()),
            "height": pa.array([i.height for i in items], pa.int32()),
            "key": pa.array([i.key for i in items], pa.string()),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
        })  # fmt: skip
        with replacing(Path(path)) as temporary:
            table = table.replace_schema_metadata({"idmetric.gallery": json.dumps(self.about)})
            pq.write_table(table, temporary, write_page_checksum=True)

    def read(self, item: Item) -> tuple[bytes, bytes | None]:
        """Return the bytes of an image and of its mask, as they were embedded.

        Raises:
            StaleError: if they have changed or cannot be read.
        """
        try:
            entry = self._entry(item)
            if entry is None:
                raise StaleError(item.place, "missing")
            image, mask = entry.image(), entry.mask() if self.masked and entry.mask is not None else None
        except FileNotFoundError as error:
            raise StaleError(item.place, "missing") from error
        except OSError as error:
            raise StaleError(item.place, f"cannot be read: {error.strerror or error}") from error
        if content_key(image, mask) != item.key:
            raise StaleError(item.place, "changed")
        return image, mask

    def current(self) -> list[Item]:
        """Return the `items` that are as they were embedded; a StaleWarning lists others, which `stale` holds.

        Raises:
            GalleryError: if all images are missing, or as `items`.
        """
        items = self.items
        faults = {item.where: self._fault(item) for item in items}
        self._leave_out({where: fault for where, fault in faults.items() if fault})
        return [item for item in items if not faults[item.where]]

    def _fault(self, item: Item) -> str:
        """Return "missing", "changed" or why an image cannot be read; empty if it is as it was embedded.

        A file is read only if its size, times of change or inode are not those of the last update.
        """
        if item.stamp and stamp_of(files_of(item)) == item.stamp:
            return ""
        try:
            self.read(item)
        except StaleError as error:
            return error.fault
        return ""

    def _leave_out(self, faults: dict[tuple[str, ...], str]) -> None:
        """Note that an answer leaves out images with these faults, and warn."""
        self.stale = faults
        if not faults:
            return
        if len(faults) == len(self) and set(faults.values()) == {"missing"}:
            raise GalleryError(
                f"all {len(self)} images of the gallery are missing, such as {next(iter(faults))[0]!r}: if they were "
                f"moved, name their folder: idmetric gallery build FOLDER --gallery {self.folder} embeds none again"
            )
        names = ", ".join(first_few([f"{where[0]} ({fault})" for where, fault in faults.items()], shown=3))
        message = f"left out {len(faults)} of {len(self)} images: {names}; bring the gallery up to date"
        warnings.warn(message, StaleWarning, stacklevel=3)

    def _entry(self, item: Item) -> Entry | None:
        """Return the entry to read an image from; None if its manifest does not hold it any more."""
        if item.place in item.files:
            image, *mask = (partial(content, file) for file in item.files)
            return Entry(item.name, item.place, item.files, image, mask[0] if mask else None)
        manifest = file_of(item)
        if not (manifest.endswith(MANIFESTS) and os.path.isfile(manifest)):
            return None
        version = (manifest, stamp_of([manifest]))
        if version not in self._manifests:
            self._manifests[version] = {entry.where: entry for entry in entries([Source(manifest)], self.masked)}
        return self._manifests[version].get(item.where)

    def table(self) -> Table:
        """Return the vectors of all different images.

        Raises:
            GalleryError: if some are missing. DamagedShardError: naming a damaged file.
        """
        if self._table is None:
            try:
                self._table = self._loaded()
            except (GalleryError, DamagedShardError, FileNotFoundError):
                self.reload()  # another process may have pruned the gallery
                self._table = self._loaded()
        return self._table

    def _loaded(self) -> Table:
        keys = list(dict.fromkeys(item.key for item in self.items))
        if lost := [key for key in keys if key not in self._shards]:
            raise GalleryError(
                f"the embeddings of {len(lost)} of {len(keys)} images are missing or damaged in "
                f"{str(self.store)!r}: `idmetric gallery build` or update() makes them again"
            )
        return Table(keys, unit(self._shards.vectors(keys)))

    def _all(self) -> list[Item]:
        if self._damage is not None:
            raise self._damage
        if self._items is None:
            others = ", ".join(f"{m['about'].get('model')} at {m['about'].get('resolution')}, looking at "
                               f"{m['about'].get('outside')}" for m in models_of(self.folder))  # fmt: skip
            raise GalleryError(
                f"{str(self.folder)!r} is not a gallery of {self.metric.label} by exactly these weights and settings"
                f"{f' (it is one of {others})' if others else ''}: make one, `idmetric gallery build` or update()"
            )
        return self._items

    def _usable(self) -> list[Item]:
        """`items`, at least one."""
        if not len(self):
            raise GalleryError(f"the gallery {str(self.folder)!r} has no image that can be used")
        return self.items

    # Keeping it up to date

    def update(
        self,
        *sources: str | os.PathLike[str],
        mask_dir: str | os.PathLike[str] | None = None,
        quick: bool = False,
        batch_size: int = 32,
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
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

        Raises:
            GalleryError: if a source is missing. OutputError: if the gallery cannot be written. ValueError: if subjects
                are to be seen, and no image has a mask. Unusable images are reported in the result, and do not stop the
                update.
        """
        self._check_model()
        if not sources:
            raise GalleryError("name the gallery's sources: folders, images or manifests")
        if self.masked and mask_dir is None and not all(os.fspath(s).endswith(MANIFESTS) for s in sources):
            raise GalleryError("a gallery of masked subjects needs the masks of its folders: mask_dir=, --mask-dir")
        if mask_dir is not None and not (self.masked and os.path.isdir(mask_dir)):
            raise GalleryError(f"mask_dir={os.fspath(mask_dir)!r} must be a folder, and needs masked=True")
        masks = None if mask_dir is None else os.path.abspath(mask_dir)
        wanted = list(entries([Source(os.path.abspath(path), masks) for path in sources], self.masked))
        if self.masked:
            check_masks(sum(entry.mask is not None for entry in wanted), len(wanted))
        with writing(self.folder):
            self.store.mkdir(parents=True, exist_ok=True)
        with locked_store(self.store):
            self.reload()  # no items if the list is damaged: embeddings are found without it
            before = {item.where: item for item in self._items or []}
            if not quick:
                self._shards.check()
            damaged = self._shards.mend()
            try:
                after = current_items(
                    self.metric, self._shards, wanted, before, masked=self.masked, outside=self.outside,
                    mask_id=self.mask_id, quick=quick, batch_size=batch_size, workers=workers, progress=progress,
                )  # fmt: skip
            finally:  # also if the update is stopped
                self._shards.save()
            self.relative = not any(map(os.path.isabs, sources))
            head = {"about": self.about, "opened": self.opened, "opened_revision": self.opened_revision,
                    "relative": self.relative}  # fmt: skip
            write_index(self.store, head, after)
            self._items, self._table, self._damage = after, None, None
            return difference(before, after, self._shards.added, damaged)

    def prune(self, *, others: bool = False) -> Pruned:
        """Remove embeddings of images that the last update did not list; image files are never touched.

        Args:
            others: also remove the embeddings of all other models and weights in the folder.

        Raises:
            GalleryError, DamagedShardError: if this model has no gallery here, a damaged one, or if all its images
                are missing.
        """
        self._check_model()
        self.current()
        with locked_store(self.store):
            self.reload()
            before, removed = size_of(self.folder), []
            count = prune_shards(self.store, {item.key for item in self._all()})
            for store in stores_in(self.folder, IMAGES) if others else []:
                if store != self.store:
                    with locked_store(store):
                        remove_store(store)
                    with contextlib.suppress(OSError):  # it holds files of others
                        (store / LOCK).unlink()
                        store.rmdir()
                    removed.append(store.name)

            self.reload()
            return Pruned(count, before - size_of(self.folder), removed)

    # Searching

    def query(
        self,
        images: Images | Embedding,
        k: int = 10,
        *,
        masks: Masks = None,
        distance: str = "cls",
        rerank: int | None = None,
        exclude_same: bool = False,
        probability: bool = False,
        unknown_above: float | None = None,
        batch_size: int = 32,
    ) -> Records:
        """Find the k images nearest to each query, nearest first; equally near ones in the order of their names.

        Files that are missing or have changed since they were embedded are left out, with a `StaleWarning`. Only
        `update` finds new files, and changed ones that would be nearer now.

        Args:
            images: one or several, or their embedding (with patches for a rerank).
            k: images for each query; fewer if the gallery has fewer.
            masks: the queries' masks; pixels outside are replaced as in the gallery.
            distance: the distance to rank by. Any but "cls" needs `rerank`.
            rerank: length of the shortlist by `cls`, which is then ranked by `distance`.
            exclude_same: leave out images with the query's own bytes.
            probability: add the probability of the same identity, by the model's calibration.
            unknown_above: add `answer`: the hit's identity, or "unknown" if its distance is above this.
            batch_size: queries per pass.

        Returns:
            A row for each hit: query, rank, distance, image, name, identity, ..., and the settings behind the score.

        Raises:
            GalleryError: if this model has no gallery here, or the gallery is empty or damaged, or all its images are
                missing.
            ImageReadError: for a query that cannot be read. CalibrationError: for a probability without calibration.
            ValueError: for arguments that do not fit.
        """
        self._check_model()
        table = self.table()
        search = Search(
            self.metric, self.outside, self.mask_id, self.store, self._usable(), table, self.read, self._fault,
            self.shown, k, distance, rerank, exclude_same, self.about["outside"] if probability else None,
            unknown_above,
        )  # fmt: skip
        rows = search.run(images, masks, batch_size)
        self._leave_out({where: fault for where, fault in search.faults.items() if fault})
        return rows

    def _check_model(self) -> None:
        """Refuse a model with other weights or settings than when the gallery was opened."""
        if self.metric.about(self.outside if self.masked else None, self.mask_id) != self.about:
            raise GalleryError(f"{self.metric.label} has changed since the gallery was opened: open the gallery again")
