"""Functions for `datasets.Dataset.map`, with batched=True or without: columns in, new columns out.

    ds = ds.map(EmbedColumn(IDSim(), "image"), batched=True, batch_size=64)
    ds = ds.map(ScoreColumns(IDSim(), "generated", "reference"), batched=True, batch_size=64)

`datasets` finds by their content, weights included, whether it has done the work before. Images are PIL images (the
column's own), dicts with bytes or a path (`cast_column(..., Image(decode=False))`), paths or bytes. Nothing here needs
`datasets` itself: any dict of lists will do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.distance.embedding import Embedding
from idmetric.distance.matrix import needs_patches
from idmetric.images.masks import MaskId
from idmetric.images.read import ImageLike, ImageReadError, Outside
from idmetric.models.embedder import Embedder

OnError = Literal["raise", "none"]


class _Columns:
    """Base of both: reads columns, and puts None where a cell is empty."""

    def __init__(
        self, metric: Embedder, read: Sequence[str | None], outside: Outside, mask_id: MaskId | None, batch_size: int,
        on_error: OnError,
    ) -> None:  # fmt: skip
        if on_error not in ("raise", "none"):
            raise ValueError(f"on_error must be raise or none, got {on_error!r}")
        self.metric, self.batch_size, self.on_error = metric, batch_size, on_error
        self.read = [name for name in read if name is not None]  # columns
        self.outside: Outside = outside
        self.mask_id = mask_id

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A batch of columns, or one row, to the new columns."""
        if not _is_row(batch, self.read):
            return self._added(batch)
        found = self._added({name: [batch[name]] for name in self.read if name in batch})
        return {name: values[0] for name, values in found.items()}

    def _added(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        raise NotImplementedError

    def _embed(
        self, batch: Mapping[str, Sequence[Any]], column: str, mask_column: str | None, patches: bool
    ) -> tuple[list[int], Embedding | None, dict[int, str]]:
        """Rows with an embedding, the embeddings, and why others have none."""
        for name in (column, *([mask_column] if mask_column else [])):
            if name not in batch:
                raise KeyError(f"there is no column {name!r}; there are {', '.join(batch)}")
        rows, pixels, covers, lost = [], [], [], {}
        for row, cell in enumerate(batch[column]):
            image = as_image(cell)
            if image is None:
                lost[row] = "there is no image"
                continue
            mask = as_image(batch[mask_column][row]) if mask_column else None
            try:
                seen, cover = self.metric.load_image(image, mask, self.outside, mask_id=self.mask_id)
            except ImageReadError as error:
                if self.on_error == "raise":
                    raise
                lost[row] = str(error)
                continue
            rows.append(row)
            pixels.append(seen)
            covers.append(cover)
        if not rows:
            return rows, None, lost
        masks: Any = None if all(c is None for c in covers) else covers
        found = self.metric.embed(pixels, batch_size=self.batch_size, masks=masks, outside="keep", patches=patches)
        return rows, found.cpu(), lost


class EmbedColumn(_Columns):
    """Adds the global feature of each image, a list of D floats.

    Args:
        metric: the model. column: of images. output: the new column.
        mask_column: of subject masks. outside, mask_id: see `Embedder.embed`.
        batch_size: images per pass; `map` decides how many come at once.
        normalize: scale to unit length.
        on_error: "none" gives None for images that cannot be read, and says why in `{output}_error`. Rows without an
            image always give None.
    """

    def __init__(
        self,
        metric: Embedder,
        column: str = "image",
        output: str = "embedding",
        *,
        mask_column: str | None = None,
        outside: Outside = "black",
        mask_id: MaskId | None = None,
        batch_size: int = 32,
        normalize: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__(metric, (column, mask_column), outside, mask_id, batch_size, on_error)
        self.column, self.output, self.mask_column, self.normalize = column, output, mask_column, normalize

    def _added(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        rows, found, lost = self._embed(batch, self.column, self.mask_column, patches=False)
        values: list[NDArray[np.float32] | None] = [None] * len(batch[self.column])
        if found is not None:
            vectors = found.cls.float().numpy()
            if self.normalize:
                vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            for row, vector in zip(rows, vectors, strict=True):
                values[row] = vector
        return {self.output: values, **self._errors(lost, len(values))}

    def _errors(self, lost: Mapping[int, str], count: int) -> dict[str, list[Any]]:
        if self.on_error == "raise":
            return {}
        return {f"{self.output}_error": [lost.get(row) for row in range(count)]}


class ScoreColumns(_Columns):
    """Adds the distance between the images of two columns; lower = more surely the same identity.

    Args:
        metric: the model. a, b: the columns compared. distance: see `idmetric.distance`.
        output: the new column. mask_a, mask_b: columns of subject masks.
        outside, mask_id, batch_size, on_error: as for `EmbedColumn`.
    """

    def __init__(
        self,
        metric: Embedder,
        a: str,
        b: str,
        distance: str = "cls",
        output: str = "distance",
        *,
        mask_a: str | None = None,
        mask_b: str | None = None,
        outside: Outside = "black",
        mask_id: MaskId | None = None,
        batch_size: int = 32,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__(metric, (a, b, mask_a, mask_b), outside, mask_id, batch_size, on_error)
        self.columns, self.masks = (a, b), (mask_a, mask_b)
        self.distance, self.patches, self.output = distance, needs_patches(distance), output

    def _added(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        (rows_a, x, lost_a), (rows_b, y, lost_b) = (
            self._embed(batch, column, mask, self.patches)
            for column, mask in zip(self.columns, self.masks, strict=True)
        )
        count = len(batch[self.columns[0]])
        values: list[float | None] = [None] * count
        both = sorted(set(rows_a) & set(rows_b))
        if both and x is not None and y is not None:
            device = self.metric.device
            left, right = x[[rows_a.index(r) for r in both]], y[[rows_b.index(r) for r in both]]
            far = self.metric(left.to(device), right.to(device), self.distance)
            for row, value in zip(both, far.tolist(), strict=True):
                values[row] = value
        found: dict[str, list[Any]] = {self.output: values}
        if self.on_error == "none":
            found[f"{self.output}_error"] = [lost_a.get(row) or lost_b.get(row) for row in range(count)]
        return found


def _is_row(batch: Mapping[str, Any], columns: Sequence[str]) -> bool:
    """Whether these are the cells of one row, as `map` without batched=True gives them."""
    cells = [batch[name] for name in columns if name in batch]
    return any(isinstance(cell, str | bytes | os.PathLike | Image.Image | Mapping) for cell in cells)


def as_image(cell: Any) -> ImageLike | None:
    """The content of a cell: a PIL image, bytes, a path, an array, or the dict of an undecoded image."""
    if not isinstance(cell, Mapping):
        image: ImageLike | None = cell
        return image
    data, path = cell.get("bytes"), cell.get("path")
    if data is not None:
        return bytes(data)
    return None if path is None else os.fspath(path)
