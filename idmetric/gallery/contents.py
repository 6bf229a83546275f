"""The images and vectors of a gallery, and whether its files are as they were embedded."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.data.nearest import unit
from idmetric.gallery.index import (
    GalleryItem,
    Where,
    by_key,
    file_of,
    files_of,
    models_of,
    read_index,
    shown,
    stamp_of,
)
from idmetric.gallery.read import Masking
from idmetric.gallery.sources import MANIFESTS, Entry, GalleryError, GallerySource, StaleWarning, entries
from idmetric.gallery.table import VectorTable
from idmetric.metric.files import StrPath
from idmetric.metric.images import Outside
from idmetric.metric.masks import MaskId
from idmetric.store import Store, content, content_key, folder_name
from idmetric.tables import first_few

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder
    from idmetric.scoring.calibration import Calibration


class Contents:
    """What reads a gallery; `Gallery`, which describes the arguments, also updates and searches it."""

    def __init__(
        self,
        folder: StrPath,
        metric: Embedder,
        *,
        masked: bool = False,
        outside: Outside = "black",
        mask_id: MaskId | None = None,
        patches: bool = False,
        opened: str = "",
        opened_revision: str = "",
        calibration: StrPath | Calibration | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.metric = metric
        self.masking = Masking(masked, outside, mask_id if masked else None)
        self.patches = patches
        self.opened = opened or metric.name
        self.opened_revision = opened_revision
        self.calibration = calibration
        self.about = self.masking.about(metric)
        self.store = self.folder / folder_name(self.about)
        self.stale: dict[Where, str] = {}
        self.reload()

    def reload(self) -> None:
        """Read the files again, which another process may have changed."""
        self.relative = False
        self._items: list[GalleryItem] | None = None
        index = read_index(self.store)
        if index is not None:
            head, self._items = index
            self.relative = bool(head.get("relative"))
        self._shards = Store(self.store, self.metric.model_id, patches=self.patches, is_needed=True)
        self._table: VectorTable | None = None
        self._manifests: dict[object, dict[Where, Entry]] = {}

    # Images

    @property
    def items(self) -> list[GalleryItem]:
        """The usable images, in the order of their sources and names.

        Raises:
            GalleryError: if there is no gallery of this model here.
        """
        return [item for item in self._all() if not item.problem]

    @property
    def problems(self) -> dict[str, str]:
        """Place -> reason, for unusable images."""
        return {item.place: item.problem for item in self._all() if item.problem}

    def __len__(self) -> int:
        return len(self.items)

    def shown(self, item: GalleryItem) -> str:
        """An image's place in answers: relative to the current folder if the last update's sources were relative."""
        return shown(item, self.relative)

    def _check_model(self) -> None:
        """Refuse a model with other weights or settings than when the gallery was opened."""
        if self.masking.about(self.metric) != self.about:
            raise GalleryError(f"{self.metric.label} has changed since the gallery was opened: open the gallery again")

    def _all(self) -> list[GalleryItem]:
        if self._items is not None:
            return self._items
        models = []
        for head in models_of(self.folder):
            about = head["about"]
            models.append(f"{about.get('model')} at {about.get('resolution')}, looking at {about.get('outside')}")
        others = f" (it is one of {', '.join(models)})" if models else ""
        raise GalleryError(
            f"{str(self.folder)!r} is not a gallery of {self.metric.label} by exactly these weights and settings"
            f"{others}: make one, `idmetric gallery build` or update()"
        )

    def _usable(self) -> list[GalleryItem]:
        """`items`, at least one."""
        if not len(self):
            raise GalleryError(f"the gallery {str(self.folder)!r} has no image that can be used")
        return self.items

    # Vectors

    def vectors(self) -> NDArray[np.float32]:
        """Unit global features (N, D) of `items`.

        Raises:
            GalleryError: as `query`.
        """
        return self.table().rows_of(item.key for item in self.items)

    def table(self) -> VectorTable:
        """Return the vectors of all different images.

        Raises:
            GalleryError: if some are missing, or damaged.
        """
        if self._table is None:
            keys = list(by_key(self.items))
            try:
                self._table = VectorTable(keys, unit(self._shards.vectors(keys)))
            except KeyError:
                missing = [key for key in keys if key not in self._shards]
                raise GalleryError(
                    f"the embeddings of {len(missing)} of {len(keys)} images are missing in {str(self.store)!r}: "
                    "`idmetric gallery build` or update() makes them again"
                ) from None
        return self._table

    # Files

    def read(self, item: GalleryItem) -> tuple[bytes, bytes | None]:
        """Return the bytes of an image and of its mask, as they were embedded.

        Raises:
            GalleryError: if they have changed or cannot be read.
        """
        files = self._read_files(item)
        if isinstance(files, str):
            raise GalleryError(f"{item.place}: {files}; bring the gallery up to date")
        return files

    def _read_files(self, item: GalleryItem) -> tuple[bytes, bytes | None] | str:
        """What `read` returns; "missing", "changed" or why it cannot be read if the image is not as it was embedded."""
        try:
            entry = self._entry(item)
            if entry is None:
                return "missing"
            image = entry.image()
            mask = entry.mask() if self.masking.masked and entry.mask is not None else None
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        if content_key(image, mask, str(self.masking.look)) != item.key:
            return "changed"
        return image, mask

    def _fault(self, item: GalleryItem) -> str:
        """Return "missing", "changed" or why an image cannot be read; empty if it is as it was embedded.

        A file is read only if its size, times of change or inode are not those of the last update.
        """
        if item.stamp and stamp_of(files_of(item)) == item.stamp:
            return ""
        files = self._read_files(item)
        return files if isinstance(files, str) else ""

    def current(self) -> list[GalleryItem]:
        """Return the `items` that are as they were embedded; a StaleWarning lists others, which `stale` holds.

        Raises:
            GalleryError: if all images are missing, or as `items`.
        """
        items = self.items
        faults = {item.where: self._fault(item) for item in items}
        self._leave_out(faults)
        return [item for item in items if not faults[item.where]]

    def _leave_out(self, faults: dict[Where, str]) -> None:
        """Note that an answer leaves out the images with a fault, and warn."""
        self.stale = {where: fault for where, fault in faults.items() if fault}
        if not self.stale:
            return
        count = len(self)
        if len(self.stale) == count and set(self.stale.values()) == {"missing"}:
            (first, *_), *_ = self.stale
            raise GalleryError(
                f"all {count} images of the gallery are missing, such as {first!r}: if they were "
                f"moved, name their folder: idmetric gallery build FOLDER --gallery {self.folder} embeds none again"
            )
        images = [f"{where[0]} ({fault})" for where, fault in self.stale.items()]
        names = ", ".join(first_few(images, shown=3))
        message = f"left out {len(images)} of {count} images: {names}; bring the gallery up to date"
        warnings.warn(message, StaleWarning, stacklevel=3)

    def _entry(self, item: GalleryItem) -> Entry | None:
        """Return the entry to read an image from; None if its manifest does not hold it any more."""
        if item.place in item.files:
            image, *masks = [partial(content, file) for file in item.files]
            mask = masks[0] if masks else None
            return Entry(item.name, item.place, item.files, image, mask)
        manifest = file_of(item)
        if not (manifest.lower().endswith(MANIFESTS) and os.path.isfile(manifest)):
            return None
        version = (manifest, stamp_of([manifest]))
        if version not in self._manifests:
            listed = entries([GallerySource(manifest)], self.masking.masked)
            self._manifests[version] = {entry.where: entry for entry in listed}
        return self._manifests[version].get(item.where)
