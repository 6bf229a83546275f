"""A folder of embeddings: a Parquet file, called a part, for each chunk of images, written atomically.

Columns: `image` (path or address, `table#row` for rows of a table), `name` (below its source; a table's id), `key`
(hash of its bytes), `width`, `height` (pixels, as stored), `embedding` (list of D floats, as the model gives it, not
brought to unit length), with patches `patches` (list of P * D' floats, row-major), and `error`: why there is no
embedding, else null. The metadata of each part, and `_embed.json`, hold the model and its settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from idmetric.io import json_file
from idmetric.scale.places import Place, ScaleError

if TYPE_CHECKING:
    from idmetric.embed.pipeline import Input
    from idmetric.gallery.index import Item
    from idmetric.models.embedder import Embedder

Stored = Literal["float32", "float16"]
FORMAT = 1
_META = b"idmetric.embed"
_TEXT = ["image", "name", "key", "error"]
_FLUSH = 2**24  # bytes of rows that wait to be written; pyarrow takes several times as much while it writes them


@dataclass(frozen=True)
class Layout:
    """The columns of a model's rows, and everything that their values depend on.

    Attributes:
        about: see `Embedder.about`. size: D. grid: rows and columns of patches; None: patches are left out.
        width: D' of a patch. stored: type of the numbers.
    """

    about: Mapping[str, str]
    size: int
    grid: tuple[int, int] | None
    width: int
    stored: Stored

    @classmethod
    def of(cls, metric: Embedder, patches: bool, stored: Stored) -> Layout:
        """Find the layout of a model by embedding one image.

        Raises:
            ScaleError: for patches of a model without patches.
        """
        import torch

        from idmetric.embed.pipeline import Input, embed

        found, _ = embed(metric, [Input(None, pixels=torch.zeros(3, *metric.image_size))], patches)
        if not patches:
            return cls(metric.about(), found.cls.shape[1], None, 0, stored)
        if found.patches is None or found.grid is None:
            raise ScaleError(f"{metric.label} has no patches: leave them out")
        return cls(metric.about(), found.cls.shape[1], found.grid, found.patches.shape[2], stored)

    @property
    def facts(self) -> dict[str, Any]:
        """The layout as a JSON object."""
        grid = None if self.grid is None else [*self.grid, self.width]
        return {"format": FORMAT, **self.about, "size": self.size, "patches": grid, "stored": self.stored}

    def schema(self) -> Any:
        """Return the Parquet schema of the parts."""
        import pyarrow as pa

        number = pa.float32() if self.stored == "float32" else pa.float16()
        columns = [("image", pa.string()), ("name", pa.string()), ("key", pa.string()), ("width", pa.int32()),
                   ("height", pa.int32()), ("embedding", pa.list_(number, self.size))]  # fmt: skip
        if self.grid is not None:
            columns.append(("patches", pa.list_(number, self.grid[0] * self.grid[1] * self.width)))
        return pa.schema([*columns, ("error", pa.string())], {_META: json.dumps(self.facts)})


class Part:
    """A part while it is written."""

    def __init__(self, writer: Any, layout: Layout) -> None:
        self._writer, self._layout, self._schema = writer, layout, layout.schema()
        self._waiting: list[Any] = []
        self.rows, self.errors = 0, dict[str, str]()

    def add(self, metric: Embedder, batch: Sequence[Input[Item]]) -> None:
        """Embed the images with pixels in one batch, and add rows for all."""
        import numpy as np
        import pyarrow as pa

        from idmetric.embed.pipeline import embed

        items = [one.item for one in batch]
        bad = {k: one.problem for k, one in enumerate(batch) if one.problem}
        at = [k for k, one in enumerate(batch) if one.pixels is not None]
        numbers: dict[str, Any] = {}
        if at:
            found, useless = embed(metric, [batch[k] for k in at], self._layout.grid is not None)
            bad |= {at[k]: reason for k, reason in useless.items()}
            numbers["embedding"] = self._rows(found.cls, at, len(items), bad)
            if self._layout.grid is not None:
                numbers["patches"] = self._rows(found.patches, at, len(items), bad)

        columns: dict[str, Any] = {
            "image": [as_text(item.place) for item in items], "name": [as_text(item.name) for item in items],
            "key": [item.key or None for item in items], "width": [item.width or None for item in items],
            "height": [item.height or None for item in items],
            "error": [as_text(bad[k]) if k in bad else None for k in range(len(items))],
        }  # fmt: skip
        none = pa.array(np.array([k in bad for k in range(len(items))]))
        for field in self._schema:
            if field.name in numbers:
                values = pa.array(numbers[field.name].ravel())
                columns[field.name] = pa.FixedSizeListArray.from_arrays(values, type=field.type, mask=none)
            elif field.name not in columns:
                columns[field.name] = pa.nulls(len(items), field.type)
        self._waiting.append(pa.table(columns, schema=self._schema))
        self.rows += len(items)
        self.errors |= {as_text(items[k].place): as_text(reason) for k, reason in bad.items()}
        if sum(table.nbytes for table in self._waiting) >= _FLUSH:
            self.flush()

    def _rows(self, tensor: Any, at: Sequence[int], count: int, bad: dict[int, str]) -> Any:
        """Return each image's numbers (count, N), zero without pixels; rows that exceed the type are added to `bad`."""
        import numpy as np

        rows = np.zeros((count, tensor[0].numel()), np.float32)
        rows[at] = tensor.cpu().float().flatten(1).numpy()
        if self._layout.stored == "float32":
            return rows
        with np.errstate(over="ignore"):
            half = rows.astype(np.float16)
        for k in np.flatnonzero(~np.isfinite(half).all(1)).tolist():
            bad.setdefault(k, "its embedding exceeds what float16 can hold")
        return half

    def flush(self) -> None:
        """Write the rows that wait."""
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []


@contextmanager
def writing(folder: Place, name: str, layout: Layout) -> Iterator[Part]:
    """Write a part, which appears in the folder if the block succeeds.

    Raises:
        OutputError, OSError: if it cannot be written.
    """
    import pyarrow.parquet as pq

    with (
        folder.child(name).replacing() as path,
        # no dictionaries, as hardly any value repeats
        pq.ParquetWriter(path, layout.schema(), write_page_checksum=True, use_dictionary=False) as writer,
    ):
        part = Part(writer, layout)
        yield part
        part.flush()


@dataclass(frozen=True)
class Held:
    """The images of a part without their vectors: columns `image`, `name`, `key` and `error`."""

    images: list[str]
    names: list[str]
    keys: list[str | None]
    errors: dict[str, str]


def held(folder: Place, name: str, layout: Layout) -> Held | None:
    """Read the images of a part; None if it is missing or damaged.

    Raises:
        ScaleError: if another model made it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    at = folder.child(name)
    if at.kind() != "file":
        return None
    try:
        with at.opened() as opened, pq.ParquetFile(opened) as file:
            schema, columns = file.schema_arrow, file.read(columns=_TEXT).to_pydict()
        facts = json_file.parse(schema.metadata[_META])
        same = is_same(facts, layout.facts)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError):  # damage leads to any of these
        return None
    if not same:
        raise ScaleError(f"{at.name!r} was not made by {layout.about['model']} as it is now: name another folder")
    if not schema.equals(layout.schema()):
        return None
    images, names, keys, errors = (columns[k] for k in _TEXT)
    return Held(images, names, keys, {image: error for image, error in zip(images, errors, strict=True) if error})


def is_same(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two layouts agree, whichever versions of this package made them."""
    return {**made, "idmetric": ""} == {**wanted, "idmetric": ""}


def part_name(images: str) -> str:
    """Return the name of a part by the name of its images."""
    return f"part-{hashlib.blake2b(images.encode('utf-8', 'surrogateescape'), digest_size=10).hexdigest()}.parquet"


def as_text(name: str) -> str:
    """Escape a name that may not be UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()
