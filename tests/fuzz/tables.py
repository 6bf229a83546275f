"""Manifests in the three formats, and lists of pairs: odd values, columns, encodings, damaged files."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.damage import NUMBERS, WORDS, damage, json_bytes, odd, spoil

ROWS: list[dict[str, Any]] = [
    {"identity": f"dog-{k // 2}", "path": f"images/{k}.png", "dataset": "d", "split": "train", "category": "dog",
     "mask": f"masks/{k}.png", "role": "real", "oracle": 0.5, "label": 1.0, "seed": k, "group": f"g{k // 2}",
     "slot": ("anchor", "positive")[k % 2], "parameters": {"x_view": k, "pose": [0, 1.5]}, "x_free": k}
    for k in range(6)
]  # fmt: skip
_HEADERS = ("identity", "path", "id", "role", "seed", "label", "parameters", "x_a", "unknown", "", "x_", "\0")


def csv_file(rng: Random) -> bytes:
    """A manifest as CSV with odd cells, rows of other lengths, other headers, or other bytes."""
    names = list(ROWS[0])
    lines = [[json.dumps(cell) if isinstance(cell, dict) else str(cell) for cell in row.values()] for row in ROWS]
    for _ in range(rng.randint(1, 3)):
        kind, line = rng.randrange(4), rng.choice(lines)
        if kind == 0 and line:
            line[rng.randrange(len(line))] = str(rng.choice((*NUMBERS, *WORDS, "x" * 200_000)))
        elif kind == 1:
            line.extend(["more"] * rng.choice((1, 1000)))
        elif kind == 2:
            del line[rng.randrange(len(line) + 1) :]
        else:
            names[rng.randrange(len(names))] = rng.choice(_HEADERS)
    text = io.StringIO()
    csv.writer(text, lineterminator=rng.choice(("\n", "\r\n", "\r"))).writerows([names, *lines])
    return _encoded(text.getvalue(), rng)


def lines_file(rng: Random) -> bytes:
    """A manifest as JSON lines with odd values, or lines that are none."""
    rows = [spoil(row, rng) if rng.random() < 0.4 else row for row in ROWS]
    if rng.random() < 0.2:
        rows[rng.randrange(len(rows))] = odd(rng)
    parts = [json_bytes(row, rng) if rng.random() < 0.15 else json.dumps(row).encode() for row in rows]
    return b"\n".join(parts) if rng.random() < 0.8 else damage(b"\n".join(parts), rng)


def parquet_file(rng: Random) -> bytes:
    """A manifest as Parquet that is damaged, or with columns of odd types."""
    if rng.random() < 0.5:
        return damage(_parquet(), rng)
    table = pq.read_table(io.BytesIO(_parquet()))
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*table.column_names, "x_more", "image_bytes", "mask_bytes", "unknown"])
        at, column = table.schema.get_field_index(name), _column(rng)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    data = io.BytesIO()
    pq.write_table(table, data)
    return data.getvalue()


@cache
def _parquet() -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{**row, "parameters": json.dumps(row["parameters"])} for row in ROWS]), data)
    return data.getvalue()


def _column(rng: Random) -> pa.Array:
    not_utf8 = pa.array([b"\xff", b"\xc3", b"a", b"b", b"c", b"d"])
    kinds = (
        pa.array([2**63 - 1, -1, 0, None, 1, 2], pa.int64()),
        pa.array([2**64 - 1] * 6, pa.uint64()),
        pa.array(["a" * 100_000, "", None, "\0", "{", "../x"]),
        pa.array([[1, 2], [], None, [None], [3], [4]]),
        pa.array([{"a": 1}, None, {"a": None}, {"a": 2}, {"a": 3}, {"a": 4}]),
        pa.array(["a", "b", None, "a", "b", "a"]).dictionary_encode(),
        not_utf8,
        pa.Array.from_buffers(pa.string(), 6, not_utf8.buffers()),
        pa.array([0, 1, 2**40, None, 4, 5], pa.timestamp("ns")),
        pa.array([None] * 6),
        pa.array([True, False, None, True, False, True]),
        pa.array([0.5, float("nan"), float("inf"), None, -1.0, 1e300], pa.float64()),
        pa.array([1, 2, 3, 4, 5, 6], pa.decimal128(38, 10)),
    )
    return rng.choice(kinds)


def pairs_file(rng: Random) -> bytes:
    """A list of pairs for `idmetric score --pairs`."""
    text = "a,b,mask_a,mask_b\n" + "".join(f"{k}.png,{k + 1}.png,,m{k}.png\n" for k in range(5))
    kind = rng.randrange(5)
    if kind == 0:
        text = text.replace("1.png", rng.choice(WORDS), 1)
    elif kind == 1:
        text = text.replace("a,b,mask_a,mask_b", rng.choice(("a", "b,a", "a,a", "", "gen,ref", ",,,", "x" * 200_000)))
    elif kind == 2:
        text += '"' + "never closed\n" * rng.choice((1, 20_000))
    elif kind == 3:
        text += "," * rng.choice((1, 10_000)) + "\n"
    return _encoded(text, rng)


def _encoded(text: str, rng: Random) -> bytes:
    if rng.random() < 0.1:
        return text.encode(rng.choice(("utf-16", "utf-32", "latin-1")), "replace")
    data = rng.choice((b"", b"", b"\xef\xbb\xbf" * 2)) + text.encode("utf-8", "surrogatepass")
    return damage(data, rng) if rng.random() < 0.4 else data
