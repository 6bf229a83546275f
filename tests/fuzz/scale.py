"""What `idmetric embed` reads: its own folder, lists of paths, and tables of images."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from idmetric.io import json_file
from idmetric.scale import chunks, parts
from idmetric.scale import folder as work_folder
from idmetric.scale.places import place
from tests.fuzz import tables, texts
from tests.fuzz.damage import WORDS, damage

LAYOUT = parts.Layout({"model": "m", "weights": "0" * 32}, 4, None, 0, "float32")
WORK: dict[str, Any] = {"sources": ["/photos"], "lists": [], "column": None, "column_id": None, "rows": 256}


def part(rng: Random, folder: Path) -> Path:
    """A file of embeddings: damaged, or with columns of other types."""
    name = parts.part_name("x")
    data = tables.parquet_file(rng) if rng.random() < 0.2 else damage(_part(), rng)
    (folder / name).write_bytes(data)
    return folder / name


@cache
def _part() -> bytes:
    values = {"image": ["/a", "/b"], "name": ["a", "b"], "key": ["0" * 32, None], "width": [1, None],
              "height": [1, None], "embedding": [[0.5] * 4, None], "error": [None, "it is empty"]}  # fmt: skip
    data = io.BytesIO()
    pq.write_table(pa.table(values, schema=LAYOUT.schema()), data, use_dictionary=False, write_page_checksum=True)
    return data.getvalue()


def read_part(path: Path) -> None:
    """As a run that goes on: what a part says is what was written, or it does not count."""
    found = parts.held(place(path.parent), path.name, LAYOUT)
    if found is not None:
        assert (found.images, found.names, found.errors) == (["/a", "/b"], ["a", "b"], {"/b": "it is empty"})
        assert found.keys == ["0" * 32, None]


def head(rng: Random, folder: Path) -> Path:
    """What a folder of embeddings says of itself."""
    (folder / work_folder.HEAD).write_bytes(texts.one({"made_by": LAYOUT.facts, **WORK}, rng))
    return folder


def open_folder(folder: Path) -> None:
    """Begin a run in it."""
    before = (folder / work_folder.HEAD).read_bytes()
    with work_folder.own_folder(place(folder), LAYOUT, WORK):
        assert (folder / work_folder.HEAD).read_bytes() == before
        assert json_file.parse(before)["rows"] == WORK["rows"]


def listing(rng: Random, folder: Path) -> Path:
    """A list of paths."""
    lines = [
        "a.png",
        "./b.png",
        "/c.png",
        "file:///d.png",
        rng.choice(WORDS),
        rng.choice(("x://", "s3://", "://", "a//")),
    ]
    rng.shuffle(lines)
    data = rng.choice(("\n", "\r\n", "\r")).join(lines).encode("utf-8", "surrogatepass")
    (folder / "list.txt").write_bytes(damage(data, rng) if rng.random() < 0.5 else data)
    return folder / "list.txt"


def read_list(path: Path) -> None:
    """All images of a list are tried."""
    _try(chunks.chunks([], lists=[path]))


def read_table(path: Path) -> None:
    """All images of a table are tried."""
    _try(chunks.chunks([path], rows=4))


def _try(todo: list[chunks.Chunk]) -> None:
    tried = 0
    for chunk, entry in chunks.entries(todo):
        assert chunk in todo
        tried += 1
        with suppress(OSError):  # a row with an error
            entry.image()
    assert tried == sum(chunk.count for chunk in todo)
