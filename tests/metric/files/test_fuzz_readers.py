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
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from av import codecs_available
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from idmetric.data.manifest.table import ManifestError, read
from idmetric.matching.clips import Clip, timeline
from idmetric.matching.region_files import regions_for
from idmetric.matching.regions import Cut
from idmetric.matching.video import ClipError
from idmetric.metric.errors import RequestError
from idmetric.metric.files.digest import BLANK, seal
from idmetric.metric.images.coverage import read_mask
from idmetric.metric.images.read import ImageReadError, read_image, to_pixels
from idmetric.metric.images.regions import cut_out
from idmetric.metric.subject import Subject
from idmetric.scoring.pairs import read_pairs
from tests.clip_files import picture as number_picture
from tests.clip_files import write_video
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
    found = read(path)
    repr(found)
    rows = list(found)
    found.sources()
    found.write(path.with_name("again.parquet"))
    assert len(read(path.with_name("again.parquet"))) == len(rows)


def pairs(rng: Random, folder: Path) -> Path:
    text = "a,b,mask_a,mask_b\n" + "".join(f"{k}.png,{k + 1}.png,,m{k}.png\n" for k in range(5))
    text = text.replace(rng.choice(("1.png", "a,b,mask_a", ",", "\n")), str(rng.choice(ODD)), 1)
    data = text.encode("utf-8", "surrogatepass")
    (folder / "p.csv").write_bytes(damage(data, rng) if rng.random() < 0.5 else data)
    return folder / "p.csv"


def subject(rng: Random, folder: Path) -> Path:
    """A subject's file, damaged, or with odd values under a digest that is right."""
    path = folder / "a.subject"
    header = {"format": "idmetric-subject/1", "model": "m", "grid": "", "name": "a", "word": "", "threshold": "null",
              "references": '["a", "b"]', "signature": "{}"}  # fmt: skip
    tensors = {"cls": torch.ones(2, 4), "thumbnails": torch.zeros(2, 96, 96, 3, dtype=torch.uint8)}
    is_odd = rng.random() < 0.5
    if is_odd:
        odd = json.dumps(rng.choice(ODD))
        header[rng.choice(list(header)[1:])] = rng.choice((odd, odd.strip('"')))
        name = rng.choice(list(tensors))
        tensors[name] = rng.choice((tensors[name][:1], tensors[name].flatten(), tensors[name].bool(), tensors[name]))
    save_file(tensors, path, {**BLANK, **header})
    seal(path)
    if not is_odd:
        path.write_bytes(damage(path.read_bytes(), rng))
    return path


COCO: dict[str, list[dict[str, Any]]] = {
    "images": [{"id": k, "file_name": f"{k}.png", "width": 64, "height": 48} for k in range(4)],
    "categories": [{"id": 0, "name": "dog"}, {"id": 1, "name": "cat"}],
    "annotations": [
        {"id": k, "image_id": k % 4, "category_id": k % 2, "bbox": [4, 4, 20, 20], "iscrowd": k % 2, "score": 0.5,
         "attributes": {"rotation": 10.0 * (k % 3)}, "segmentation": part}
        for k, part in enumerate([
            [], [[4, 4, 24, 4, 24, 24]], {"size": [48, 64], "counts": [196, 20, 2856]}, [4, 4, 24, 4, 24, 24],
            {"size": [48, 64], "counts": "T6d0ni0"}, None,
        ])
    ],
}  # fmt: skip
VOC = (
    "<annotation><size><width>64</width><height>48</height></size><object><name>dog</name><bndbox><xmin>4</xmin>"
    "<ymin>4</ymin><xmax>24</xmax><ymax>24</ymax></bndbox></object></annotation>"
)
LABELME = {
    "imageWidth": 64, "imageHeight": 48,
    "shapes": [
        {"label": "dog", "shape_type": kind, "points": points, "group_id": None}
        for kind, points in (
            ("rectangle", [[4, 4], [24, 24]]), ("polygon", [[4, 4], [24, 4], [9, 9]]), ("point", [[1, 1]])
        )
    ],
}  # fmt: skip


def spoil(value: Any, rng: Random) -> None:
    """Put odd values somewhere into a JSON value, or repeat and remove parts of it."""
    for _ in range(rng.randint(1, 3)):
        part = value
        while True:
            key = rng.choice(list(part) if isinstance(part, dict) else range(len(part)))
            if isinstance(part[key], dict | list) and part[key] and rng.random() < 0.8:
                part = part[key]
                continue
            if isinstance(part, list) and rng.random() < 0.3:
                part.append(part[key])
            else:
                part[key] = deepcopy(rng.choice(ODD))
            break


def regions(rng: Random, folder: Path) -> Path:
    """A file or folder of regions of one of the formats, damaged in its values or its bytes."""
    kind = rng.choice(("coco.json", "r.csv", "0.txt", "0.xml", "0.json"))
    if kind.endswith(".json"):
        content = json.loads(json.dumps(COCO if kind == "coco.json" else LABELME))
        spoil(content, rng)
        text = json.dumps(content)
    else:
        text = {
            "r.csv": "path,x,y,w,h,label,score\n" + "".join(f"{k}.png,4,4,20,20,dog,0.5\n" for k in range(4)),
            "0.txt": "0 0.3 0.3 0.2 0.2\n1 0.1 0.1 0.4 0.1 0.4 0.4\n",
            "0.xml": VOC,
        }[kind]
        text = text.replace(rng.choice(("4", "0", "dog", "<", " ", ",", "\n")), str(rng.choice(ODD)), 1)
    data = text.encode("utf-8", "surrogatepass")
    (folder / kind).write_bytes(damage(data, rng) if rng.random() < 0.4 else data)
    return folder if kind.startswith("0") else folder / kind


def use_regions(path: Path) -> None:
    """Cut every region of the images that the file lists, and skip images with regions that cannot be used."""
    picture = Image.new("RGB", (64, 48))
    source = regions_for(path, [f"{number}.png" for number in range(4)], "list", ("dog", "cat"))
    for number in range(4):
        try:
            for region in source.find(number, picture):
                Cut().cut(picture, region, f"{number}.png")
        except ImageReadError as error:
            assert f"{number}.png" in str(error)  # noqa: PT017


@cache
def films() -> dict[str, bytes]:
    """Small videos and animations: name -> content."""
    content = {}
    pictures = [number_picture(number, size=(48, 32)) for number in range(10)]
    codecs = {
        "a.mp4": "libx264",
        "a.mkv": "libx264",
        "a.ts": "mpeg2video",
        "a.avi": "mpeg4",
        "a.webm": "libvpx-vp9",
        "a.mov": "qtrle",
        "a.mpg": "mpeg1video",
    }
    with TemporaryDirectory() as folder:
        for name, codec in codecs.items():
            if codec in codecs_available:
                path = Path(folder, name)
                pixels = "rgb24" if codec == "qtrle" else "yuv420p"
                write_video(path, pictures, 25, codec=codec, pixels=pixels, keyframes=5)
                content[name] = path.read_bytes()
        for ending in ("gif", "png", "webp"):
            path = Path(folder, f"a.{ending}")
            pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=40)
            content[path.name] = path.read_bytes()
    return content


def film(rng: Random, folder: Path) -> Path:
    name = rng.choice(sorted(films()))
    path = folder / name
    path.write_bytes(damage(films()[name], rng))
    return path


def use_film(path: Path) -> None:
    """Open a clip in the ways of choosing frames, and decode those that can be."""
    for frames in ("10fps", "all"):
        for load in timeline([Clip(path)], frames, "fail").loads():
            with suppress(ImageReadError):
                read_image(load())


# name -> what makes an input, what reads it, the error that it may raise, inputs
READERS: dict[str, tuple[Callable[[Random, Path], Any], Callable[[Any], object], type[Exception], int]] = {
    "image": (picture, read_image, ImageReadError, 30),
    "pixels": (picture, lambda data: to_pixels(data, (16, 16)), ImageReadError, 12),
    "mask": (picture, lambda data: read_mask(data, (16, 16)), ImageReadError, 15),
    "masked image": (picture, lambda data: cut_out(data, data, "crop"), ImageReadError, 8),
    "manifest CSV": (manifest("csv"), use_manifest, ManifestError, 16),
    "manifest JSON lines": (manifest("jsonl"), use_manifest, ManifestError, 16),
    "manifest Parquet": (manifest("parquet"), use_manifest, ManifestError, 16),
    "subject": (subject, Subject.load, RequestError, 30),
    "pairs CSV": (pairs, lambda path: read_pairs(path).rows, RequestError, 12),
    "regions": (regions, use_regions, RequestError, 40),
    "film": (film, use_film, ClipError, 60),
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
