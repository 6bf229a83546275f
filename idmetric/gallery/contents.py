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
    EMBEDDING,
    FACTS,
    IMAGES,
    MODEL,
    GalleryError,
    StaleWarning,
    Vectors,
    arrow,
    holds_vectors,
    map_vectors,
    models_of,
    read_images,
    read_vectors,
    stamp_of,
)
from idmetric.metric.files import StrPath, replacing
from idmetric.metric.images import Outside
from idmetric.metric.masks import MaskId
from idmetric.scoring.calibration import SEARCH_RATE, STORED, Calibration, calibration_of
from idmetric.scoring.scores import Limit, Record
from idmetric.store import folder_name, key_of
from idmetric.stream import Look
from idmetric.tables import first_few

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from idmetric.metric.embedder import Embedder

# of images in a table with vectors, of which the files are not known
_NO_FACTS = {"_mask": None, "_size": 0, "_width": 0, "_height": 0, "_animated": False}


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
        self.stale: dict[str, str] = {}

    def reload(self) -> None:
        """Read the files again with the next answer."""
        for name in ("_contents", "candidates"):
            self.__dict__.pop(name, None)

    def _about(self) -> dict[str, str]:
        """Everything that embeddings depend on: the model, its weights as they are now, and these settings."""
        return self.metric.about(self.look.outside if self.look.masked else None, self.look.mask_id)

    # Contents

    @property
    def is_table(self) -> bool:
        """Whether this is a Parquet file with vectors, which knows neither masks nor patches nor changes."""
        return holds_vectors(self.folder)

    @cached_property
    def _contents(self) -> tuple[pa.Table, Vectors]:
        if self.is_table:
            return read_vectors(self.folder, self.metric.model_id)
        path = self.store / IMAGES
        if not path.is_file():
            raise GalleryError(self._no_gallery())
        _, images = read_images(path)
        return images, map_vectors(self.store, images)

    def _no_gallery(self) -> str:
        models = []
        for head in models_of(self.folder):
            about = head["about"]
            models.append(f"{about.get('model')} at {about.get('resolution')}, looking at {about.get('outside')}")
        others = f" (it is one of {', '.join(models)})" if models else ""
        return (
            f"{str(self.folder)!r} is not a gallery of {self.metric.label} by exactly these weights and settings"
            f"{others}: make one, `idmetric gallery build` or build()"
        )

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
        table: pd.DataFrame = self.images.select(names).to_pandas()
        return table

    def vectors(self) -> Single:
        """Unit global features (N, D) of all images, in memory."""
        return self.features.unit(np.arange(len(self)))

    def to_parquet(self, path: StrPath) -> None:
        """Write the images with their unit vectors as a Parquet file, which opens as a gallery as well."""
        pa = arrow()
        vectors = self.vectors()
        names = [name for name in self.images.column_names if name not in FACTS]
        numbers = pa.array(vectors.ravel())
        table = self.images.select(names)
        table = table.append_column(EMBEDDING, pa.FixedSizeListArray.from_arrays(numbers, vectors.shape[1]))
        table = table.append_column(MODEL, pa.array([self.metric.model_id] * len(table)))
        with replacing(Path(path)) as temporary:
            pa.parquet.write_table(table.replace_schema_metadata(), temporary, write_page_checksum=True)

    def check_model(self) -> None:
        """Refuse a model with other weights or settings than when the gallery was opened."""
        if self._about() != self.about:
            raise GalleryError(f"{self.metric.label} has changed since the gallery was opened: open the gallery again")

    def check_usable(self) -> None:
        """Raise GalleryError for a model that has changed, and for a gallery that is empty or of another model."""
        self.check_model()
        if not len(self):
            raise GalleryError(f"the gallery {str(self.folder)!r} has no image that can be used")

    # Answers

    def current(self) -> tuple[Ints, list[Record]]:
        """The rows of the images that are as they were embedded, and their columns; see `stale`.

        Raises:
            GalleryError: if all images are missing, or a vector is damaged.
        """
        records = self.images.to_pylist()
        numbers = np.arange(len(records))
        if self.is_table:
            for row, record in enumerate(records):
                record |= {**_NO_FACTS, "_file": record["path"], "_key": str(row)}
            return numbers, records

        faults = [self.fault(record) for record in records]
        pairs = zip(records, faults, strict=True)
        self.leave_out({record["path"]: fault for record, fault in pairs if fault})
        numbers = np.array([row for row, fault in enumerate(faults) if not fault], np.int64)
        records = [records[row] for row in numbers]
        self.check_vectors(numbers, records)
        return numbers, records

    def fault(self, record: Record) -> str:
        """Return "missing", "changed" or why an image cannot be read; "" if it is as it was embedded.

        A file is read only if its size or times are not those of the last build.
        """
        if self.is_table:
            return ""
        file, mask = record["_file"], record["_mask"]
        try:
            if stamp_of(file, mask) == (record["_size"], record["_time"]):
                return ""
            is_same = key_of(file, mask, str(self.look)) == record["_key"]
            return "" if is_same else "changed"
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"

    def leave_out(self, faults: dict[str, str]) -> None:
        """Note that an answer leaves out images with a fault, and warn; GalleryError if all are missing."""
        self.stale = faults
        if not faults:
            return
        count = len(self)
        if len(faults) == count and set(faults.values()) == {"missing"}:
            raise GalleryError(
                f"all {count} images of the gallery are missing, such as {next(iter(faults))!r}: if they were moved, "
                f"name their folder: idmetric gallery build FOLDER --gallery {self.folder} embeds none again"
            )
        names = ", ".join(first_few([f"{path} ({fault})" for path, fault in faults.items()], shown=3))
        message = f"left out {len(faults)} of {count} images: {names}; bring the gallery up to date"
        warnings.warn(message, StaleWarning, stacklevel=4)

    def check_vectors(self, rows: Ints, records: Sequence[Record]) -> None:
        """Raise GalleryError, naming the part, if a byte of these images' vectors has changed."""
        part = "" if self.is_table else self.features.damaged(rows, [record["_key"] for record in records])
        if part:
            raise GalleryError(f"{str(self.store / part)!r} is damaged: the next build embeds what it held again")

    def limit(self, distance: str = "cls") -> Limit:
        """The threshold of a distance at 1 % of pairs of two identities, by the calibration.

        A search compares with many images, so that it is lower than for one pair, see `SEARCH_RATE`.

        Raises:
            CalibrationError: without a calibration, or for one of another distance or way of masking, or without a
                threshold at 1 % or less.
        """
        outside = self.about["outside"]
        calibration = calibration_of(self.metric, self.calibration or STORED, distance, outside)
        assert calibration is not None  # of one that was asked for
        return calibration.threshold_at(SEARCH_RATE)

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
        files: dict[str, str] = {}
        for record in records:
            files[str(record["path"])] = str(record.get("_file", record["path"]))
        return Answer(table, names, title, columns[0], notes, signature, files, self.stale)
