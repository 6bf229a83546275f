"""A folder of embeddings: a Parquet file, called a part, for each chunk of images, written atomically.

Columns: `image` (path or address, `table#row` for rows of a table), `name` (below its source; a table's id), `key`
(hash of its bytes), `width`, `height` (pixels, as stored), `embedding` (list of D floats, as the model gives it, not
brought to unit length), with patches `patches` (list of P * D' floats, row-major), and `error`: why there is no
embedding, else null. The metadata of each part, and `_embed.json`, hold the model and its settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from idmetric.gallery.scale.places import Place, ScaleError
from idmetric.metric.files import json_file, output
from idmetric.metric.files.lock import locked
from idmetric.metric.scoring.pipeline import Input, embed

if TYPE_CHECKING:
    from idmetric.gallery.index import Item
    from idmetric.metric.models.embedder import Embedder

Stored = Literal["float32", "float16"]
FORMAT = 1
META = b"idmetric.embed"
HEAD = "_embed.json"  # readers of Parquet folders skip names with an underscore
_PART = re.compile(r"part-[0-9a-f]{20}\.parquet")
_HALF_WRITTEN = re.compile(r"\.part-[0-9a-f]{20}\.parquet\.[0-9a-f]{12}")  # as `replacing` calls it


# Rows


def schema_of(metric: Embedder, patches: bool, stored: Stored) -> Any:
    """Find the Parquet schema of a model's parts by embedding one image; its metadata names model and settings."""
    import pyarrow as pa
    import torch

    found, _ = embed(metric, [Input(None, pixels=torch.zeros(3, *metric.image_size))], patches)
    number = {"float32": pa.float32(), "float16": pa.float16()}[stored]
    columns = [("image", pa.string()), ("name", pa.string()), ("key", pa.string()), ("width", pa.int32()),
               ("height", pa.int32()), ("embedding", pa.list_(number, found.cls.shape[1]))]  # fmt: skip
    grid = None
    if patches:
        if found.patches is None or found.grid is None:
            raise ScaleError(f"{metric.label} has no patches: leave them out")
        grid = [*found.grid, found.patches.shape[2]]
        columns.append(("patches", pa.list_(number, int(np.prod(grid)))))
    facts = {"format": FORMAT, **metric.about(), "size": found.cls.shape[1], "patches": grid, "stored": stored}
    return pa.schema([*columns, ("error", pa.string())], {META: json.dumps(facts)})


def rows_of(metric: Embedder, batch: Sequence[tuple[Item, Input[Any]]], schema: Any) -> Any:
    """Embed the images with pixels in one batch, and return a table with a row for each image."""
    import pyarrow as pa

    items = [item for item, _ in batch]
    errors: list[str | None] = [one.problem or None for _, one in batch]
    vectors: dict[str, list[Any]] = {"embedding": [None] * len(batch), "patches": [None] * len(batch)}
    if at := [k for k, (_, one) in enumerate(batch) if one.pixels is not None]:
        found, bad = embed(metric, [batch[k][1] for k in at], "patches" in schema.names)
        for row, reason in bad.items():
            errors[at[row]] = reason
        for name, tensor in (("embedding", found.cls), ("patches", found.patches)):
            if name in schema.names and tensor is not None:
                with np.errstate(over="ignore"):
                    numbers = tensor.cpu().float().flatten(1).numpy().astype(
                        schema.field(name).type.value_type.to_pandas_dtype()
                    )  # fmt: skip
                for k, row in zip(at, numbers, strict=True):
                    vectors[name][k] = row
                    if errors[k] is None and not np.isfinite(row).all():
                        errors[k] = "its embedding exceeds what float16 can hold"
    columns: dict[str, list[Any]] = {
        "image": [as_text(item.place) for item in items], "name": [as_text(item.name) for item in items],
        "key": [item.key or None for item in items], "width": [item.width or None for item in items],
        "height": [item.height or None for item in items],
        "error": [None if error is None else as_text(error) for error in errors],
        **{name: [row if errors[k] is None else None for k, row in enumerate(of)] for name, of in vectors.items()},
    }  # fmt: skip
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def as_text(name: str) -> str:
    """Escape a name that may not be UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


# Files


def errors_in(part: Place, count: int) -> dict[str, str] | None:
    """Return image -> error of a finished part, of which all columns but the patches are compared with their checksums.

    None if there is no such part, it is damaged or has another number of rows, or some of its images could not be read,
    as when a disk or a network was away.

    Raises:
        ScaleError: for a pipe or a device. OSError: if the part cannot be read now.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = part.opened()
    except FileNotFoundError:
        return None
    try:
        with opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
            columns = [name for name in file.schema_arrow.names if name != "patches"]
            table = file.read(columns=columns)
        images, keys, errors = (table[name].to_pylist() for name in ("image", "key", "error"))
    except (pa.ArrowException, KeyError):
        return None
    except OSError as error:
        if error.errno is not None:  # the system's; pyarrow reports wrong checksums as OSErrors without a number
            raise
        return None

    if len(images) != count or None in keys:
        return None
    return {image: error for image, error in zip(images, errors, strict=True) if error}


@contextmanager
def own_folder(folder: Place, work: Mapping[str, Any]) -> Iterator[None]:
    """Make the folder, lock it until the block ends, and check that it holds the same work, or none.

    Object stores have no locks. Two runs of the same work then write the same parts, each atomically.

    Args:
        work: `made_by`, the model and its settings, and the sources and how they are cut.
    """
    folder.make()
    with ExitStack() as stack:
        if folder.is_local:
            busy = ScaleError(f"another run is writing to {folder.name!r}: wait for it, or name another folder")
            with output.writing(folder.name):
                stack.enter_context(locked(Path(folder.path) / ".lock", busy))
        head = folder.child(HEAD)
        if head.kind() == "file":
            _check_same(head, work)
        elif others := [name for name in folder.files() if name.endswith(".parquet")]:
            raise ScaleError(f"{folder.name!r} holds other Parquet files ({others[0]}, ...): name a folder of its own")
        else:
            with head.replacing() as path:
                path.write_text(json.dumps(work, indent=2))
        yield


def _check_same(head: Place, work: Mapping[str, Any]) -> None:
    def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
        """Everything but the version of this package, which may change."""
        return {k: v for k, v in {**facts["made_by"], **facts}.items() if k not in ("made_by", "idmetric")}

    wanted = flat(work)
    try:
        made = flat(json_file.parse(head.read()))
    except (ValueError, TypeError, KeyError) as error:
        raise ScaleError(f"{head.name!r} is damaged ({error}): delete its folder, or name another one") from error
    if different := [f"{key} {made.get(key)} instead of {v}" for key, v in wanted.items() if made.get(key) != v]:
        raise ScaleError(f"{head.name!r} is of other work ({'; '.join(different)}): name another folder")


def parts_in(folder: Place) -> set[str]:
    """Return the names of the parts in a folder."""
    return {name for name in folder.files() if _PART.fullmatch(name)}


def clean(folder: Place, wanted: set[str]) -> int:
    """Delete parts that are not wanted, and half-written ones of killed runs; return the number of the former."""
    old = parts_in(folder) - wanted
    for name in old:
        folder.child(name).delete()
    if folder.is_local:  # this run holds the lock
        for path in Path(folder.path).iterdir():
            if _HALF_WRITTEN.fullmatch(path.name):
                path.unlink()
    return len(old)
