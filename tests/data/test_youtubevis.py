"""Masks of YouTube-VIS, and frames that are chosen with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from idmetric.cli.data import main
from idmetric.data.frames.annotations import with_codes
from idmetric.data.frames.clips import find_clips
from idmetric.data.frames.footage import open_clip
from idmetric.data.old_manifest.table import read
from idmetric.matching.codes import decode
from idmetric.matching.frames import ClipError


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ({"size": [2, 3]}, "size and counts"),
        ({"size": [2, 3], "counts": [1, 3]}, "not a run-length code"),
        ({"size": [2, 3], "counts": "1 "}, "not a run-length code"),
    ],
)
def test_damaged_codes_are_refused(code: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(code)
    bits = decode({"size": [2, 3], "counts": [1, 3, 2]})  # down the columns, zeros first
    assert bits.tolist() == [[False, True, False], [True, True, False]]


def annotated(root: Path, frames: int = 40) -> Path:
    """A video with two objects; the second, smaller one overlaps the first and is gone in the second half."""
    rng = np.random.default_rng(0)
    names = [f"clip/{k:05}.jpg" for k in range(frames)]
    (root / "JPEGImages" / "clip").mkdir(parents=True)
    codes: list[list[Any]] = [[], []]
    for k, name in enumerate(names):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(root / "JPEGImages" / name)
        first, second = np.zeros((20, 30), dtype=bool), np.zeros((20, 30), dtype=bool)
        first[2:18, 2:22], second[5:15, 15:28] = True, True
        one, two = (coco.encode(np.asfortranarray(bits)) for bits in (first, second))
        codes[0].append({**one, "counts": one["counts"].decode()})
        codes[1].append({**two, "counts": two["counts"].decode()} if k < frames // 2 else None)
    content = {
        "videos": [{"id": 3, "file_names": names}],
        "categories": [{"id": 5, "name": "horse"}, {"id": 6, "name": "person"}],
        "annotations": [
            {"id": 9 - k, "video_id": 3, "category_id": 5 + k, "segmentations": own} for k, own in enumerate(codes)
        ],
    }
    path = root / "instances.json"
    path.write_text(json.dumps(content))
    return path


def test_annotations_become_masks(tmp_path: Path) -> None:
    path = annotated(tmp_path)
    [clip], categories = with_codes(find_clips(tmp_path / "JPEGImages"), path)
    assert categories == {("clip", 1): "person", ("clip", 2): "horse"}  # id 8 comes before id 9
    first, last = (frame.objects() for frame in open_clip(clip, 6).read([0, 39]))
    assert [(shown.number, shown.coverage) for shown in first] == [(1, 10 * 13 / 600), (2, 16 * 20 / 600)]
    assert first[0].mask[5:15, 15:28].all()  # where they overlap, both have the pixels
    assert first[1].mask[2:18, 2:22].all()
    assert [shown.number for shown in last] == [2]


def test_frames_are_chosen_with_annotations(tmp_path: Path) -> None:
    path, out = annotated(tmp_path), tmp_path / "out.parquet"
    words = ["frames", str(tmp_path / "JPEGImages"), "--masks", str(path), "--sampling", "youtubevis", "--quiet"]
    assert main([*words, "-o", str(out)]) == 0
    made = read(out)
    assert set(made.column("identity")) == {"youtubevis/clip/1", "youtubevis/clip/2"}
    for k, row in enumerate(made):
        mask = made.mask(k)
        assert mask is not None
        assert 0.1 <= mask.numpy().mean() <= 0.9
        number = (row.parameters or {})["object"]
        assert row.category == {1: "person", 2: "horse"}[number]  # id 8 is the second annotation


def test_damaged_annotations_are_named(tmp_path: Path) -> None:
    path = annotated(tmp_path, 4)
    content = json.loads(path.read_text())
    content["videos"][0]["file_names"].pop()  # fewer files than codes
    nameless = {name: value for name, value in json.loads(path.read_text()).items() if name != "categories"}
    for bad in ({}, content, nameless):
        path.write_text(json.dumps(bad))
        with pytest.raises(ClipError, match="not an annotation of YouTube-VIS with categories"):
            with_codes([], path)
