"""The images and vectors of an opened gallery, and whether its files are as they were embedded."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.nearest import Ints, Single
from idmetric.gallery.answer import Answer
from idmetric.gallery.approximate import Candidates, open_index
from idmetric.gallery.files import (
    FACTS,
    IMAGES,
    GalleryError,
    StaleWarning,
    Vectors,
    frame_of,
    holds_vectors,
    map_vectors,
    read_images,
    read_vectors,
    stamp_of,
)
from idmetric.metric.files import StrPath
from idmetric.metric.images import Outside
from idmetric.metric.masks import MaskId
from idmetric.scoring.calibration import Calibration
from idmetric.scoring.scores import Record
from idmetric.store import folder_name, key_of
from idmetric.stream import Look
from idmetric.tables import first_few

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from idmetric.metric.embedder import Embedder


class Contents:
    """What an opened gallery holds; `Gallery`, which describes the arguments, also builds and searches it."""

    def __init__(
        self,
        folder: StrPath,
        metric: Embedder,
        *,
        masked: bool = False,
        outside: Outside = "black",
        mask_id: MaskId | None = None,
        patches: bool = False,
        calibration: StrPath | Calibration | None = None,
        index: str | None = None,
        opened: str = "",
        opened_revision: str = "",
    ) -> None:
        if index not in (None, "faiss"):
            raise ValueError(f"index must be None or 'faiss', got {index!r}")
        self.folder = Path(folder)
        self.metric = metric
        self.look = Look(masked, outside, mask_id if masked else None)
        self.patches = patches
        self.calibration = calibration
        self.index = index
        self.opened = opened or metric.name
        self.opened_revision = opened_revision
        self.about = self._about()
        self.store = self.folder / folder_name(self.about)
        self.is_table = holds_vectors(self.folder)
        self.stale: dict[str, str] = {}

    def reload(self) -> None:
        """Read the files again with the next answer."""
        for name in ("_contents", "candidates"):
            self.__dict__.pop(name, None)

    def _about(self) -> dict[str, str]:
        """Everything that embeddings depend on: the model, its weights as they are now, and these settings."""
        outside = self.look.outside if self.look.masked else None
        return self.metric.about(outside, self.look.mask_id)

    # Contents

    @cached_property
    def _contents(self) -> tuple[pa.Table, Vectors]:
        if self.is_table:
            return read_vectors(self.folder, self.metric.model_id)
        path = self.store / IMAGES
        if not path.is_file():
            raise GalleryError(
                f"{str(self.folder)!r} is not a gallery of {self.metric.label} by exactly these weights and settings: "
                "make one, `idmetric gallery build` or build()"
            )
        _, images = read_images(path)
        return images, map_vectors(self.store, images)

    @property
    def images(self) -> pa.Table:
        """The rows of images.parquet; GalleryError without a gallery of this model."""
        return self._contents[0]

    @property
    def features(self) -> Vectors:
        """The memory-mapped vectors of the images."""
        return self._contents[1]

    @cached_property
    def candidates(self) -> Candidates | None:
        """The index of an approximate search; None for an exact one."""
        if self.index is None:
            return None
        path = None
        if not self.is_table:
            changed_at = (self.store / IMAGES).stat().st_mtime_ns
            path = self.store / f"{changed_at}.faiss"
        return open_index(self.features, path)

    def __len__(self) -> int:
        return len(self.images)

    def to_pandas(self) -> pd.DataFrame:
        """The images: `path` as given, `identity`, and the columns of their table."""
        names = [name for name in self.images.column_names if name not in FACTS]
        return frame_of({name: self.images[name].to_pylist() for name in names}, "the gallery")

    def vectors(self) -> Single:
        """Unit global features (N, D) of all images, in memory."""
        return self.features.unit(np.arange(len(self)))

    def check(self, is_searched: bool = True) -> None:
        """Raise GalleryError for a model that has changed; to be searched, also without an image of this model."""
        if self._about() != self.about:
            raise GalleryError(f"{self.metric.label} has changed since the gallery was opened: open the gallery again")
        if is_searched and not len(self):
            raise GalleryError(f"the gallery {str(self.folder)!r} has no image that can be used")

    # Answers

    def current(self) -> tuple[Ints, list[Record]]:
        """The rows of the images that are as they were embedded, and their columns; see `stale`.

        Raises:
            GalleryError: if all images are missing, or a vector is damaged.
        """
        records = self.images.to_pylist()
        faults = [self.fault(record) for record in records]
        self.leave_out(dict(zip([record["path"] for record in records], faults, strict=True)))
        rows = np.array([row for row, fault in enumerate(faults) if not fault], np.int64)
        records = [records[row] for row in rows]
        self.features.check(rows, [record["_key"] for record in records])
        return rows, records

    def fault(self, record: Record) -> str:
        """Return "missing", "changed" or why an image cannot be read; "" if it is as it was embedded, or in a table.

        A file is read only if its size or times are not those of the last build.
        """
        file, mask = record["_file"], record["_mask"]
        try:
            if record["_time"] is None or stamp_of(file, mask) == (record["_size"], record["_time"]):
                return ""
            is_same = key_of(file, mask, str(self.look)) == record["_key"]
            return "" if is_same else "changed"
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"

    def leave_out(self, faults: dict[str, str]) -> None:
        """Note that an answer leaves out images with a fault, by path, and warn; GalleryError if all are missing."""
        self.stale = {path: fault for path, fault in faults.items() if fault}
        if not self.stale:
            return
        count = len(self)
        names = ", ".join(first_few([f"{path} ({fault})" for path, fault in self.stale.items()], shown=3))
        if list(self.stale.values()) == ["missing"] * count:
            raise GalleryError(
                f"all {count} images of the gallery are missing, such as {names}: if they were moved, name their "
                f"folder: idmetric gallery build FOLDER --gallery {self.folder} embeds none again"
            )
        message = f"left out {len(self.stale)} of {count} images: {names}; bring the gallery up to date"
        warnings.warn(message, StaleWarning, stacklevel=4)

    def answer(
        self,
        title: str,
        columns: tuple[str, ...],
        rows: Sequence[Record],
        more_columns: tuple[str, ...],
        records: Sequence[Record],
        notes: Sequence[str],
        distance: str = "cls",
    ) -> Answer:
        """A table of these columns, with those of the images and the signature.

        Args:
            records: of the images, with their files.
        """
        signature = self.metric.signature(distance)
        own = [name for name in self.images.column_names if name not in FACTS]
        facts = {"distance_name" if name == "distance" else name: value for name, value in signature.items()}
        names = (*columns, *own, *more_columns, *facts)
        table = []
        for row in rows:
            row = row | facts
            table.append({name: row.get(name) for name in names})
        files = {record["path"]: record["_file"] for record in records}
        return Answer(table, names, title, columns[0], notes, signature, files, self.stale)
