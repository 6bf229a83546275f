"""Functions for `datasets.Dataset.map`, with batched=True or without: columns in, new columns out.

    ds = ds.map(EmbedColumn(IDSim(), "image"), batched=True, batch_size=64)
    ds = ds.map(ScoreColumns(IDSim(), "generated", "reference"), batched=True, batch_size=64)

`datasets` finds by a hash of their settings and weights whether it has done the work before. Images are PIL images (the
column's own), dicts with bytes or a path (`cast_column(..., Image(decode=False))`), paths or bytes. Nothing here needs
`datasets` itself: any dict of lists will do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from PIL import Image

from idmetric.metric.distance import needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, saved_embedding
from idmetric.metric.images import ImageReadError

OnError = Literal["raise", "none"]
_CELLS = (str, bytes, os.PathLike, Image.Image, Mapping)  # types of a single image


class _Columns:
    """Base of both: reads columns of images, and puts None where a cell has none."""

    def __init__(
        self,
        metric: Embedder,
        columns: Sequence[str],
        output: str,
        on_error: OnError,
    ) -> None:
        if on_error not in ("raise", "none"):
            raise ValueError(f"on_error must be raise or none, got {on_error!r}")
        self.metric = metric
        self.columns = columns
        self.output = output
        self.on_error = on_error
        self.patches = False

    def __getstate__(self) -> dict[str, Any]:
        self.metric.model_id  # noqa: B018  # names new weights now, as the hash of this state is the key of map's cache
        return vars(self)

    def __call__(self, batch: Any, *more: Any) -> dict[str, Any]:
        """A batch of columns, or one row, to the new columns.

        Args:
            batch: the columns by name; with `map(input_columns=...)` the first column alone.
            more: the other columns of `input_columns`; indices and ranks (`with_indices`, `with_rank`) are not used.
        """
        if isinstance(batch, Mapping) and not _is_undecoded(batch):
            missing = [name for name in self.columns if name not in batch]
            if missing:
                raise KeyError(f"there is no column {missing[0]!r}; there are {', '.join(batch)}")
            cells = [batch[name] for name in self.columns]
        else:
            cells = [batch, *more][: len(self.columns)]
        is_row = any(isinstance(cell, _CELLS) for cell in cells)
        if is_row:
            cells = [[cell] for cell in cells]

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

        new = {self.output: values}
        if self.on_error == "none":
            new[f"{self.output}_error"] = list(map(errors.get, range(count)))
        if is_row:
            return {name: column[0] for name, column in new.items()}
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


def _is_undecoded(batch: Mapping[str, Any]) -> bool:
    """Whether this is an image as `datasets` stores it, and not a table's columns."""
    return set(batch) == {"bytes", "path"} and isinstance(batch["bytes"], bytes | None)


class EmbedColumn(_Columns):
    """Adds the global feature of each image, a list of D floats.

    Args:
        metric: the model. column: of images. output: the new column.
        on_error: "none" gives None for images that cannot be read, and says why in `{output}_error`. Rows without an
            image always give None.
    """

    def __init__(
        self, metric: Embedder, column: str = "image", output: str = "embedding", *, on_error: OnError = "raise"
    ) -> None:
        super().__init__(metric, [column], output, on_error)

    def _values(self, *embeddings: Embedding) -> Sequence[Any]:
        return list(embeddings[0].cls.float().cpu().numpy())


class ScoreColumns(_Columns):
    """Adds the distance between the images of two columns; lower = more surely the same identity.

    Args:
        metric: the model. a: a column. b: the column to compare with, or an `Embedding` or its .idm file, of which the
            nearest image counts. distance: see `idmetric.metric.distance`.
        output: the new column. on_error: as for `EmbedColumn`.
    """

    def __init__(
        self,
        metric: Embedder,
        a: str,
        b: str | os.PathLike[str] | Embedding,
        distance: str = "cls",
        output: str = "distance",
        *,
        on_error: OnError = "raise",
    ) -> None:
        self.references = saved_embedding(b)
        if self.references is not None:
            self.references.check_maker(metric.model_id, needs_patches(distance))
        super().__init__(metric, [a, str(b)] if self.references is None else [a], output, on_error)
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
