"""Subject files of others: damaged and hostile ones are refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from idmetric import IDSim
from idmetric.metric.images import read
from idmetric.metric.scoring.scores import RequestError
from idmetric.metric.scoring.subject import Subject

HEADER = {
    "format": "idmetric-subject/1",
    "model": "m",
    "grid": "",
    "name": "ann",
    "word": "",
    "threshold": "null",
    "references": '["a", "b"]',
    "signature": "{}",
}
TENSORS = {"cls": torch.ones(2, 4), "thumbnails": torch.zeros(2, 96, 96, 3, dtype=torch.uint8)}


def test_a_file_of_these_parts_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "ann.subject", HEADER)
    subject = Subject.load(tmp_path / "ann.subject")
    assert (subject.name, len(subject), subject.references) == ("ann", 2, ("a", "b"))


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        ({"cls": torch.ones(4)}, {}),
        ({"cls": torch.ones(2, 4).long()}, {}),
        ({"cls": torch.full((2, 4), torch.nan)}, {}),
        ({"cls": torch.ones(0, 4), "thumbnails": TENSORS["thumbnails"][:0]}, {"references": "[]"}),
        ({"patches": torch.ones(2, 3, 4), "weights": torch.ones(2, 9)}, {}),
        ({"patches": torch.ones(2, 4, 4)}, {"grid": "3x"}),
        ({"thumbnails": torch.zeros(2, 5, dtype=torch.uint8)}, {}),
        ({"thumbnails": torch.zeros(2, 96, 96, 3, dtype=torch.bfloat16)}, {}),
        ({}, {"references": "5"}),
        ({}, {"references": "[" * 100_000}),
        ({}, {"references": '["a"]'}),
        ({}, {"threshold": '"low"'}),
        ({}, {"threshold": "NaN"}),
        ({}, {"signature": "[1]"}),
        ({}, {"name": ""}),
    ],
    ids=lambda value: json.dumps(value, default=lambda tensor: list(tensor.shape))[:40],
)
def test_hostile_files_are_refused_by_name(tmp_path, tensors, header):
    save_file(TENSORS | tensors, tmp_path / "ann.subject", HEADER | header)
    with pytest.raises(RequestError, match=r"ann\.subject is a damaged subject"):
        Subject.load(tmp_path / "ann.subject")


def test_each_reference_is_decoded_once(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = []
    for number in range(3):
        photos.append(tmp_path / f"{number}.png")
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(photos[-1])
    opened: list[object] = []
    original = read.open_image

    def open_image(source: Any, **options: Any) -> Any:
        if isinstance(source, str | os.PathLike):
            opened.append(source)
        return original(source, **options)

    monkeypatch.setattr(read, "open_image", open_image)
    subject = Subject.of(metric, photos, name="rex")
    assert len(opened) == 3
    assert torch.equal(subject.embedding.cls, metric.embed(photos, patches=False).cls)
