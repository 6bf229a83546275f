"""Damaged inputs are refused by typed errors or accepted, in bounded memory.

FUZZ=100 python -m pytest tests/metric/files/test_fuzz_readers.py      a hundred times as many, of other seeds
"""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from idmetric import CheckpointError, load
from idmetric.data.manifest import FORMATS, ManifestError, read, write
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError, read_image, to_pixels
from idmetric.metric.masks import cut_out, read_mask
from idmetric.scoring.pairs import read_pairs
from tests.conftest import random_model
from tests.fuzz import damage, forget_peak, repaired, status

TIMES = int(os.environ.get("FUZZ", "1"))
MEMORY = 3 * 2**30  # bytes that one input may add
ODD: tuple[Any, ...] = (
    "", "\0", "..", "/etc/passwd", "NaN", "\ud800", "a" * 5000, "\r\n", '"', "http://127.0.0.1:1/x", None, True, [], {},
    [[[]]], {"a": {}}, 0, -1, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"),
)  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"identity": f"dog-{k // 2}", "path": f"images/{k}.png", "split": "train", "mask": f"masks/{k}.png", "role": "real",
     "oracle": 0.5, "seed": k, "parameters": {"x_view": k, "pose": [0, 1.5]}, "x_free": k}
    for k in range(6)
]  # fmt: skip


@cache
def pictures() -> tuple[bytes, ...]:
    """Small files of the usual formats and modes, with EXIF, and animations."""
    gray = Image.fromarray((np.add.outer(np.arange(24), np.arange(24)) * 5).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = []
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "MPO", "JPEG2000", "TGA", "ICO"):
        for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK"):
            for options in ({}, {"exif": exif}, {"save_all": True, "append_images": [gray.rotate(90).convert("RGB")]}):
                data = io.BytesIO()
                try:
                    gray.convert("RGB").convert(mode).save(data, kind, **options)
                except (KeyError, OSError, ValueError):  # what the format does not have
                    continue
                found.append(data.getvalue())
    return tuple(found)


def picture(rng: Random, _: Path) -> bytes:
    data = damage(rng.choice(pictures()), rng)
    return repaired(data) if data.startswith(b"\x89PNG") and rng.random() < 0.6 else data


def spoiled(rng: Random) -> list[dict[str, Any]]:
    """The manifest's rows with odd values, and columns too few or too many."""
    rows = [dict(row) for row in ROWS]
    for _ in range(rng.randint(1, 3)):
        row = rng.choice(rows)
        row[rng.choice([*row, "x_more", "unknown", ""])] = rng.choice(ODD)
        if rng.random() < 0.2:
            row.pop(rng.choice(list(row)))
    return rows


def manifest(kind: str) -> Callable[[Random, Path], Path]:
    def write(rng: Random, folder: Path) -> Path:
        rows, path = spoiled(rng), folder / f"m.{kind}"
        if kind == "csv":
            text = io.StringIO()
            csv.writer(text).writerows([list(rows[0]), *([str(value) for value in row.values()] for row in rows)])
            data = text.getvalue().encode("utf-8", "surrogatepass")
        elif kind == "jsonl":
            data = "\n".join(map(json.dumps, rows)).encode()
        else:
            table = pa.Table.from_pylist([{**row, "parameters": json.dumps(row["parameters"])} for row in ROWS])
            odd = ([2**63 - 1, -1, 0, None, 1, 2], [[1], [], None, [None], [3], [4]], [{"a": 1}] * 6, [b"\xff"] * 6,
                   [None] * 6, [True] * 6, [float("nan")] * 6)  # fmt: skip
            at = rng.randrange(table.num_columns)
            pq.write_table(table.set_column(at, table.column_names[at], pa.array(rng.choice(odd))), path)
            data = path.read_bytes()
        path.write_bytes(damage(data, rng) if rng.random() < 0.5 else data)
        return path

    return write


def use_manifest(path: Path) -> None:
    """Read, and do all that a manifest promises; what it accepts it can also write and read again."""
    table = read(path)
    for ending in FORMATS:
        again = path.with_name(f"again{ending}")
        write(table, again)
        assert read(again)["id"].tolist() == table["id"].tolist()


def pairs(rng: Random, folder: Path) -> Path:
    text = "a,b,mask_a,mask_b\n" + "".join(f"{k}.png,{k + 1}.png,,m{k}.png\n" for k in range(5))
    text = text.replace(rng.choice(("1.png", "a,b,mask_a", ",", "\n")), str(rng.choice(ODD)), 1)
    data = text.encode("utf-8", "surrogatepass")
    (folder / "p.csv").write_bytes(damage(data, rng) if rng.random() < 0.5 else data)
    return folder / "p.csv"


@cache
def model() -> dict[str, bytes]:
    """The files of a small model."""
    with TemporaryDirectory() as folder:
        random_model("dinov3").save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def weights(rng: Random, folder: Path) -> Path:
    for name, data in model().items():
        is_damaged = name.endswith(".safetensors") or rng.random() < 0.3
        (folder / name).write_bytes(damage(data, rng) if is_damaged else data)
    return folder


# name -> what makes an input, what reads it, the error that it may raise, inputs
READERS: dict[str, tuple[Callable[[Random, Path], Any], Callable[[Any], object], type[Exception], int]] = {
    "image": (picture, read_image, ImageReadError, 30),
    "pixels": (picture, lambda data: to_pixels(data, (16, 16)), ImageReadError, 12),
    "mask": (picture, lambda data: read_mask(data, (16, 16)), ImageReadError, 15),
    "masked image": (picture, lambda data: cut_out(data, data, "crop"), ImageReadError, 8),
    "manifest CSV": (manifest("csv"), use_manifest, ManifestError, 16),
    "manifest JSON lines": (manifest("jsonl"), use_manifest, ManifestError, 16),
    "manifest Parquet": (manifest("parquet"), use_manifest, ManifestError, 16),
    "weights": (weights, lambda path: load(path, device="cpu"), CheckpointError, 20),
    "pairs CSV": (pairs, lambda path: read_pairs(path).comparisons, RequestError, 12),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_input_is_refused_by_a_typed_error_or_accepted(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make, use, typed, count = READERS[name]

    @settings(
        derandomize=TIMES == 1, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False,
        max_examples=TIMES * count,
    )  # fmt: skip
    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        before, target = forget_peak(), make(Random(seed), tmp_path_factory.mktemp("input"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(target)
        except typed as error:
            assert str(error).strip()  # noqa: PT017 (no error is right too)
        assert status("VmHWM") - before < MEMORY

    check()
