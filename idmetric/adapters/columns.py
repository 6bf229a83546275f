"""Functions of the batches of a table, as `datasets`, Ray Data and Spark call them on many processes and machines.

    ds = ds.map(EmbedColumn("tiny", "image"), batched=True, batch_size=64)
    ds = ds.map(ScoreColumns(IDSim(), "generated", "reference"), batched=True, batch_size=64)
    ray_ds.map_batches(EmbedColumn, fn_constructor_args=["tiny", "image"], batch_size=64, concurrency=2)

A batch of lists (`datasets`, with batched=True) or one row gives the new columns. A batch of arrays (Ray Data) or a
pandas DataFrame comes back with them, and a pandas Series (Spark's `pandas_udf`) gives the first of them. `datasets`
finds by a hash of settings and weights whether it has done the work before. Images are PIL images, arrays, dicts with
bytes or a path (`cast_column(..., Image(decode=False))`), paths or bytes. Nothing here needs these packages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.distance import needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, saved_embedding
from idmetric.metric.images import ImageReadError
from idmetric.metric.load import load

OnError = Literal["raise", "none"]
_CELLS = (str, bytes, os.PathLike, Image.Image, Mapping)  # types of a single image


class _Columns:
    """Base of both: reads columns of images, and puts None where a cell has none."""

    def __init__(
        self,
        metric: Embedder | str,
        columns: Sequence[str],
        output: str,
        on_error: OnError,
    ) -> None:
        if on_error not in ("raise", "none"):
            raise ValueError(f"on_error must be raise or none, got {on_error!r}")
        self.metric = load(metric) if isinstance(metric, str) else metric
        self.columns = columns
        self.output = output
        self.on_error = on_error
        self.patches = False

    def __getstate__(self) -> dict[str, Any]:
        self.metric.model_id  # noqa: B018  # names new weights now, as the hash of this state is the key of map's cache
        return vars(self)

    def __call__(self, batch: Any, *more: Any) -> Any:
        """A batch of columns, or one row, to the new columns; what comes back is said at the top of the module.

        Args:
            batch: the columns by name; with `map(input_columns=...)` the first column alone.
            more: the other columns of `input_columns`; indices and ranks (`with_indices`, `with_rank`) are not used.
        """
        if hasattr(batch, "to_frame"):  # a pandas Series
            series = type(batch)
            values = self._new_columns([batch.tolist()])[self.output]
            return series(values, index=batch.index)
        if (isinstance(batch, Mapping) and not _is_undecoded(batch)) or hasattr(batch, "assign"):
            missing = [name for name in self.columns if name not in batch]
            if missing:
                raise KeyError(f"there is no column {missing[0]!r}; there are {', '.join(batch)}")
            cells = [batch[name] for name in self.columns]
        else:
            cells = [batch, *more][: len(self.columns)]

        if hasattr(batch, "assign"):  # a pandas DataFrame
            return batch.assign(**self._new_columns([column.tolist() for column in cells]))
        if _is_of_arrays(batch):
            new = self._new_columns([list(column) for column in cells])
            return {**batch, **{name: _as_array(values) for name, values in new.items()}}
        if any(isinstance(cell, _CELLS) for cell in cells):  # one row
            new = self._new_columns([[cell] for cell in cells])
            return {name: values[0] for name, values in new.items()}
        return self._new_columns(cells)

    def _new_columns(self, cells: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
        """The new columns, from those of images.

        Not by `__call__`, which Ray runs in one thread: a call in a call would wait for itself.
        """
        count = len(cells[0])
        errors: dict[int, str] = {}
        columns = []
        for column in cells:
            columns.append([self._read(cell, row, errors) for row, cell in enumerate(column)])
        readable = [row for row in range(count) if row not in errors]
        values: list[Any] = [None] * count
        if readable:
            embeddings = []
            for pixels in columns:
                images = [pixels[row] for row in readable]
                embeddings.append(self.metric.embed(images, patches=self.patches))
            for row, value in zip(readable, self._values(*embeddings), strict=True):
                values[row] = value

        new = {self.output: values, **self._constants(count)}
        if self.on_error == "none":
            new[f"{self.output}_error"] = list(map(errors.get, range(count)))
        return new

    def _read(
        self,
        cell: Any,
        row: int,
        errors: dict[int, str],
    ) -> Any:
        """The pixels of a cell; without them, the reason is added to `errors`."""
        if isinstance(cell, Mapping):  # an undecoded image
            cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
        if cell is None:
            errors.setdefault(row, "there is no image")
            return None
        try:
            pixels, _ = self.metric.load(cell, None, "keep")
        except ImageReadError as error:
            if self.on_error == "raise":
                raise
            errors.setdefault(row, str(error))
            return None
        return pixels

    def _values(self, *embeddings: Embedding) -> Sequence[Any]:
        """The new values, from the embeddings of each column."""
        raise NotImplementedError

    def _constants(self, count: int) -> dict[str, list[Any]]:
        """Further new columns that are the same in all rows."""
        return {}


def _is_of_arrays(batch: Any) -> bool:
    """Whether these are a table's columns as arrays, as Ray Data has them."""
    if not isinstance(batch, dict) or not batch:
        return False
    return all(isinstance(values, np.ndarray) and values.ndim for values in batch.values())


def _as_array(values: list[Any]) -> NDArray[Any]:
    """A column as Ray Data takes it; of objects if some are None."""
    if any(value is None for value in values):
        column = np.empty(len(values), object)
        column[:] = values
        return column
    return np.array(values)


def _is_undecoded(batch: Mapping[str, Any]) -> bool:
    """Whether this is an image as `datasets` stores it, and not a table's columns."""
    return set(batch) == {"bytes", "path"} and isinstance(batch["bytes"], bytes | None)


class EmbedColumn(_Columns):
    """Adds the global feature of each image, a list of D floats, and `embedding_model`, by which a gallery knows them.

    A table with a column `path`, written as Parquet, opens as a gallery: `Gallery("vectors.parquet", metric)`.

    Args:
        metric: the model, or the name by which each process loads it. column: of images. output: the new column.
        on_error: "none" gives None for images that cannot be read, and says why in `{output}_error`. Rows without an
            image always give None.
    """

    def __init__(
        self, metric: Embedder | str, column: str = "image", output: str = "embedding", *, on_error: OnError = "raise"
    ) -> None:
        super().__init__(metric, [column], output, on_error)

    def _values(self, *embeddings: Embedding) -> Sequence[Any]:
        return list(embeddings[0].cls.float().cpu().numpy())

    def _constants(self, count: int) -> dict[str, list[Any]]:
        return {f"{self.output}_model": [self.metric.model_id] * count}


class ScoreColumns(_Columns):
    """Adds the distance between the images of two columns; lower = more surely the same identity.

    Args:
        metric: the model. a: a column. b: the column to compare with, or an `Embedding` or its .idm file, of which the
            nearest image counts. distance: see `idmetric.metric.distance`.
        output: the new column. on_error: as for `EmbedColumn`.
    """

    def __init__(
        self,
        metric: Embedder | str,
        a: str,
        b: str | os.PathLike[str] | Embedding,
        distance: str = "cls",
        output: str = "distance",
        *,
        on_error: OnError = "raise",
    ) -> None:
        self.references = saved_embedding(b)
        columns = [a] if self.references is not None else [a, str(b)]
        super().__init__(metric, columns, output, on_error)
        if self.references is not None:
            self.references.check_maker(self.metric.model_id, needs_patches(distance))
        self.distance, self.patches = distance, needs_patches(distance)

    def _values(self, *embeddings: Embedding) -> Sequence[Any]:
        if self.references is None:
            a, b = embeddings
            values: list[float] = self.metric(a, b, self.distance).tolist()
            return values
        (a,) = embeddings
        to_references = self.metric.pairwise(a, self.references.to(self.metric.device), self.distance)
        nearest: list[float] = to_references.amin(1).tolist()
        return nearest
