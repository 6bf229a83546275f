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

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.matrix import needs_patches
from idmetric.metric.images.read import ImageReadError
from idmetric.metric.models.embedder import Embedder

OnError = Literal["raise", "none"]


class _Columns:
    """Base of both: reads columns of images, and puts None where a cell has none."""

    def __init__(self, metric: Embedder, columns: Sequence[str], output: str, on_error: OnError) -> None:
        if on_error not in ("raise", "none"):
            raise ValueError(f"on_error must be raise or none, got {on_error!r}")
        self.metric, self.columns, self.output, self.on_error = metric, columns, output, on_error
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
            cells = self._named_cells(batch)
        else:
            cells = [batch, *more][: len(self.columns)]
        is_row = any(isinstance(cell, str | bytes | os.PathLike | Image.Image | Mapping) for cell in cells)
        if is_row:
            cells = [[cell] for cell in cells]

        lost: dict[int, str] = {}
        pixels = [[self._read(cell, row, lost) for row, cell in enumerate(column)] for column in cells]
        good = [row for row in range(len(cells[0])) if row not in lost]
        values: list[Any] = [None] * len(cells[0])
        if good:
            found = [self.metric.embed([column[row] for row in good], patches=self.patches) for column in pixels]
            for row, value in zip(good, self._values(*found), strict=True):
                values[row] = value
        new = {self.output: values}
        if self.on_error == "none":
            new[f"{self.output}_error"] = [lost.get(row) for row in range(len(values))]
        return {name: column[0] for name, column in new.items()} if is_row else new

    def _named_cells(self, batch: Mapping[str, Any]) -> list[Any]:
        for name in self.columns:
            if name not in batch:
                raise KeyError(f"there is no column {name!r}; there are {', '.join(batch)}")
        return [batch[name] for name in self.columns]

    def _read(self, cell: Any, row: int, lost: dict[int, str]) -> Any:
        """The pixels of a cell; without them, the reason is added to `lost`."""
        if isinstance(cell, Mapping):  # an undecoded image
            cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
        if cell is None:
            lost.setdefault(row, "there is no image")
            return None
        try:
            return self.metric.load_image(cell, None, "keep")[0]
        except ImageReadError as error:
            if self.on_error == "raise":
                raise
            lost.setdefault(row, str(error))
            return None

    def _values(self, *found: Embedding) -> Sequence[Any]:
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

    def _values(self, *found: Embedding) -> Sequence[Any]:
        return list(found[0].cls.float().cpu().numpy())


class ScoreColumns(_Columns):
    """Adds the distance between the images of two columns; lower = more surely the same identity.

    Args:
        metric: the model. a, b: the columns compared. distance: see `idmetric.metric.distance.matrix`.
        output: the new column. on_error: as for `EmbedColumn`.
    """

    def __init__(
        self, metric: Embedder, a: str, b: str, distance: str = "cls", output: str = "distance", *,
        on_error: OnError = "raise",
    ) -> None:  # fmt: skip
        super().__init__(metric, [a, b], output, on_error)
        self.distance, self.patches = distance, needs_patches(distance)

    def _values(self, *found: Embedding) -> Sequence[Any]:
        values: list[float] = self.metric(found[0], found[1], self.distance).tolist()
        return values
