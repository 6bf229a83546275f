"""What lies in a gallery's folder: the table of its images, and their memory-mapped vectors.

    index/
      IDSim-tiny.1f3a.../         one for each model and way of looking, as in any folder of embeddings (`store`)
        part-*.safetensors        vectors, appended
        prints/part-*.safetensors small pictures in which copies are found
        images.parquet            a row for each image, rewritten by each build

A table by `adapters.EmbedColumn` opens as a gallery, too: it has the vectors in a column.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.nearest import Single, unit
from idmetric.metric.files import StrPath, need, refuse_irregular, replacing
from idmetric.store import PartFile

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

IMAGES = "images.parquet"
EMBEDDING, MODEL = "embedding", "embedding_model"  # columns of `adapters.EmbedColumn`
# columns of images.parquet in addition to `path`, `identity` and those of the sources' tables
FACTS = (
    "_file",  # absolute path
    "_mask",  # absolute path of its mask
    "_key",  # hash of the content of image and mask, under which the store has the vector
    "_size",  # of image and mask together, in bytes
    "_time",  # of the last change, in nanoseconds
    "_width",
    "_height",
    "_animated",  # whether the file has several frames or pages
    "_part",  # file of the vector
    "_row",  # of the vector in that file
    "_norm",  # length of the vector
)
# columns of manifests that do not come along: they say how rows belong together, or are replaced by the gallery's own
LEFT_OUT = ("id", "path", "mask", "part_mask", "role", "group", "slot", "parent", "seed", "parameters")
# columns of answers, which columns of tables may not be called
_ANSWERS = (
    "query", "rank", "distance", "answer", "probability", "group", "size", "center", "keep", "reason", "width",
    "height", "bytes", "copy_agreement", "mirrored", "threshold", "threshold_source", "model", "revision",
    "distance_name", "resolution", "dtype", "idmetric",
)  # fmt: skip
_HEAD = b"idmetric.gallery"


class GalleryError(RuntimeError):
    """A gallery cannot do what was asked; the message says why and how to fix it."""


class StaleWarning(UserWarning):
    """Images were left out of an answer because their files are missing, or have changed since they were embedded."""


# The table


def refuse_names(own_columns: Iterable[str], name: str) -> None:
    """Raise GalleryError, naming the table, for a column of its own that answers have as well."""
    for column in own_columns:
        if column in _ANSWERS or column in FACTS:
            raise GalleryError(f"{name}: column {column!r} has the name of a column of answers: rename it")


def arrow() -> Any:
    """pyarrow, with its submodule `parquet`; MissingExtraError without it."""
    need("eval", "a gallery", pyarrow="pyarrow")
    import pyarrow.parquet

    return pyarrow


def stamp_of(file: str, mask: str | None) -> tuple[int, int]:
    """Size in bytes and time of the last change, in nanoseconds, of a file and its mask; OSError if one is absent."""
    size = time = 0
    for path in filter(None, (file, mask)):
        status = os.stat(path)
        size += status.st_size
        time = max(time, status.st_mtime_ns, status.st_ctime_ns)
    return size, time


def models_of(folder: StrPath) -> list[dict[str, Any]]:
    """The models of a gallery: `about`, the settings of each, and by which name and revision it was opened.

    Raises:
        GalleryError: for a damaged table. PermissionError: for a folder that is closed to the user.
    """
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    heads = []
    for name in names:
        path = Path(folder, name, IMAGES)
        if path.is_file():
            heads.append(_head(path, arrow().parquet.read_schema(path)))
    return heads


def read_images(path: Path) -> tuple[dict[str, Any], pa.Table]:
    """The head and the rows of images.parquet.

    Raises:
        GalleryError: naming a damaged file.
    """
    refuse_irregular(path)
    try:
        with arrow().parquet.ParquetFile(path) as file:
            table = file.read()
        arrow().default_memory_pool().release_unused()
    except (arrow().ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    if not {"path", *FACTS} <= set(table.column_names):
        raise _damaged(path, "columns are missing")
    return _head(path, table.schema), table


def _head(path: Path, schema: pa.Schema) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads(schema.metadata[_HEAD])
        return head
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(path, "its model is not recorded") from error


def _damaged(path: Path, why: object) -> GalleryError:
    return GalleryError(
        f"{str(path)!r} is damaged ({why}): delete it, and the next build writes it again and embeds nothing again"
    )


def write_images(path: Path, head: dict[str, Any], images: pd.DataFrame) -> None:
    """Write images.parquet atomically."""
    table = arrow().Table.from_pandas(images, preserve_index=False)
    table = table.replace_schema_metadata({_HEAD: json.dumps(head)})
    with replacing(path) as temporary:
        arrow().parquet.write_table(table, temporary)


def dates_as_text(values: Iterable[Any]) -> list[Any]:
    """Values with dates, times and decimals as text, as in all formats of answers."""
    from idmetric.data.manifest import WRITTEN_AS_TEXT

    texts = []
    for value in values:
        is_date = isinstance(value, WRITTEN_AS_TEXT) and value == value  # NaT is missing
        texts.append(str(value) if is_date else value)
    return texts


def frame_of(columns: Mapping[str, Sequence[Any]], name: str) -> pd.DataFrame:
    """A DataFrame in which text is `str` or None, and whole numbers are exact beside missing values.

    Raises:
        ManifestError: naming the table and the column, for values of several types.
    """
    need("eval", "a table", pandas="pandas")
    import pandas as pd

    from idmetric.data.manifest import own_column

    checked = {}
    for column, values in columns.items():
        checked[column] = own_column(pd.Series(values, dtype=object, name=column), name)
    return pd.DataFrame(checked, columns=list(columns))


# Vectors


@dataclass(frozen=True)
class Vectors:
    """The global features of images, which need no room in memory.

    Attributes:
        arrays: the vectors (n, D) of each part. parts: their files; none for vectors in a table.
        part (N,): the number of each image's part. row (N,): of its vector there. norm (N,): the vector's length.
    """

    arrays: list[NDArray[Any]]
    parts: list[PartFile]
    part: NDArray[np.integer]
    row: NDArray[np.integer]
    norm: Single

    def __len__(self) -> int:
        return len(self.part)

    @cached_property
    def _of_part(self) -> list[NDArray[np.int64]]:
        """The images of each part."""
        return [np.flatnonzero(self.part == number) for number in range(len(self.arrays))]

    def similarity(self, queries: Single) -> Single:
        """Cosines (Q, N) of unit vectors (Q, D), up to rounding in float32."""
        similarity = np.empty((len(queries), len(self)), np.float32)
        for array, images in zip(self.arrays, self._of_part, strict=True):
            product = queries @ array.T
            similarity[:, images] = product[:, self.row[images]]
        similarity /= self.norm
        return similarity

    def unit(self, images: NDArray[np.integer]) -> Single:
        """Unit vectors (n, D) of some images."""
        vectors = np.empty((len(images), self.arrays[0].shape[1]), self.arrays[0].dtype)
        part, row = self.part[images], self.row[images]
        for number in np.unique(part):
            is_here = part == number
            vectors[is_here] = self.arrays[number][row[is_here]]
        return unit(vectors)

    def check(self, images: NDArray[np.integer], keys: Sequence[str]) -> None:
        """Raise GalleryError, naming the part, if a byte of these images' vectors has changed."""
        for image, key in zip(images, keys, strict=True):
            part = self.parts[self.part[image]] if self.parts else None
            if part is not None and part.is_damaged("cls", int(self.row[image]), key):
                raise GalleryError(f"{str(part.path)!r} is damaged: the next build embeds what it held again")


def map_vectors(folder: Path, images: pa.Table) -> Vectors:
    """Map the vectors of a gallery's images.

    Raises:
        GalleryError: for a part that is missing or damaged.
    """
    names = images["_part"].combine_chunks().dictionary_encode()
    parts = []
    for name in names.dictionary.to_pylist():
        path = folder / name
        try:
            parts.append(PartFile(path))
        except (OSError, ValueError, KeyError) as error:
            raise GalleryError(
                f"{str(path)!r} is damaged ({error}): the next build embeds what it held again"
            ) from error
    row = _numbers(images["_row"].combine_chunks())
    norm = _numbers(images["_norm"].combine_chunks())
    return Vectors([_floats(part) for part in parts], parts, _numbers(names.indices), row, norm)


def _numbers(column: pa.Array) -> NDArray[Any]:
    """A column without missing values; its own `to_numpy` would import pandas."""
    return np.from_dlpack(column)


def _floats(part: PartFile) -> NDArray[Any]:
    """The vectors of a part: mapped, or in memory if they are of half precision."""
    vectors = part.mapped("cls")
    if vectors.dtype == np.uint16:  # bfloat16: the upper half of a float32
        return (vectors.astype(np.uint32) << 16).view(np.float32)
    return vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors


def norms_of(folder: Path, locations: Sequence[tuple[str, int]]) -> Single:
    """The lengths of vectors in parts of a folder."""
    norms = {}
    for name in {name for name, _ in locations}:
        vectors = _floats(PartFile(folder / name))
        norms[name] = _lengths(vectors)
    return np.array([norms[name][row] for name, row in locations], np.float32)


def _lengths(vectors: NDArray[Any]) -> Single:
    squares = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    lengths: Single = np.sqrt(squares).astype(np.float32)
    return lengths


# Tables with vectors


def holds_vectors(path: Path) -> bool:
    """Whether this is a Parquet file, or a folder of such files, rather than a gallery's folder."""
    return path.suffix.lower() == ".parquet" or any(path.glob("*.parquet"))


def read_vectors(path: Path, model_id: str) -> tuple[pa.Table, Vectors]:
    """The rows and vectors of a table by `adapters.EmbedColumn`; rows without a vector are left out.

    Raises:
        GalleryError: for a table without its columns, or by another model, or with a column that answers have.
    """
    try:
        table = arrow().parquet.read_table(path)
    except (arrow().ArrowException, OSError) as error:
        raise GalleryError(f"{str(path)!r} cannot be read: {error}") from error
    absent = {"path", EMBEDDING, MODEL} - set(table.column_names)
    if absent:
        raise GalleryError(f"{str(path)!r} has no column {min(absent)!r}: make it by adapters.EmbedColumn")
    table = table.filter(table[EMBEDDING].is_valid())
    models = table[MODEL].unique().to_pylist()
    if models != [model_id]:
        raise GalleryError(f"{str(path)!r} was embedded by {', '.join(map(str, models)) or 'none'}, not by {model_id}")

    count = len(table)
    embeddings = table[EMBEDDING].combine_chunks()
    lists = getattr(embeddings, "storage", embeddings)  # Ray Data writes tensors
    numbers = _numbers(lists.flatten())
    vectors = numbers.astype(np.float32, copy=False).reshape(count, -1)
    table = _paths_and_own(table, str(path))
    # facts about files that the table does not have
    keys = arrow().array([str(row) for row in range(count)])
    facts = dict.fromkeys(FACTS, arrow().nulls(count)) | {"_file": table["path"], "_key": keys}
    for name, column in facts.items():
        table = table.append_column(name, column)
    return table, Vectors([vectors], [], np.zeros(count, np.int64), np.arange(count), _lengths(vectors))


def _paths_and_own(table: pa.Table, name: str) -> pa.Table:
    """The column of paths and the table's own, checked, with dates as text."""
    own_columns = [column for column in table.column_names if column not in (EMBEDDING, MODEL, *LEFT_OUT)]
    refuse_names(own_columns, name)
    types = arrow().types
    columns = {"path": table["path"]}
    for column in own_columns:
        values = table[column]
        if types.is_temporal(values.type) or types.is_decimal(values.type):
            values = arrow().array(dates_as_text(values.to_pylist()), "string")
        columns[column] = values
    return arrow().table(columns)
