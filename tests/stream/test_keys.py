"""Stored embeddings are identified by the content of images and by the weights in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from idmetric import IDSim, load
from idmetric.data.embed import embed_rows
from idmetric.data.manifest import checked
from idmetric.gallery import Gallery, GalleryError
from idmetric.metric.fingerprint import weights_digest
from idmetric.metric.images import Named, read_file
from idmetric.store import content_key, folder_name
from tests.conftest import random_model
from tests.embed_parts import pictures
from tests.metric.checkpoints.test_fingerprint import step


@pytest.fixture
def model() -> IDSim:
    """One that may be changed."""
    return random_model("dinov3")


def swap_rows(model: IDSim) -> None:
    with torch.no_grad():
        model.mlp_cls.fc2.weight[[3, 4]] = model.mlp_cls.fc2.weight[[4, 3]]


CHANGES = [swap_rows, step]


# Models


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_weights_in_memory_changes_model_id_and_all_keys(
    model: IDSim, tmp_path: Path, change: Callable[[IDSim], None]
) -> None:
    model.save_pretrained(tmp_path / "run")
    metric = load(tmp_path / "run", device="cpu")
    assert isinstance(metric, IDSim)
    keys: list[Callable[[], Any]] = [
        lambda: metric.model_id, lambda: weights_digest(metric), lambda: folder_name(metric.about()),
        lambda: metric.embed(torch.zeros(3, 64, 64)).model,
    ]  # fmt: skip
    before = [key() for key in keys]
    assert before == [key() for key in keys]
    change(metric)
    for old, key in zip(before, keys, strict=True):
        assert key() != old


def test_a_gallery_refuses_weights_that_changed_after_it_was_opened(model: IDSim, tmp_path: Path) -> None:
    """Through `.data` and NumPy, of one value."""
    [path] = pictures(tmp_path / "photos", 1)
    gallery, weight = Gallery(tmp_path / "gallery", model), model.mlp_cls.fc2.weight
    gallery.build(path)
    old = folder_name(model.about())
    value = weight.data.view(-1)[700].item()
    for write in (weight.data.view(-1).__setitem__, weight.numpy().reshape(-1).__setitem__):
        write(700, value + 1)
        assert folder_name(model.about()) != old
        with pytest.raises(GalleryError, match="has changed since the gallery was opened"):
            gallery.query(path)
        write(700, value)
        gallery.query(path)


def test_the_spelling_of_a_path_changes_neither_model_id_nor_keys(
    model: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save_pretrained(tmp_path / "runs" / "cats")
    (tmp_path / "latest").symlink_to("runs/cats")
    monkeypatch.chdir(tmp_path / "runs")
    names = [
        "cats",
        "./cats",
        "cats/",
        "../runs/cats",
        str(tmp_path / "runs" / "cats"),
        "../latest",
        tmp_path / "latest",
    ]
    opened = [load(name, device="cpu") if os.sep in str(name) else IDSim(name, device="cpu") for name in names]
    monkeypatch.chdir(tmp_path / "runs" / "cats")
    opened.append(load("./", device="cpu"))
    assert {m.model_id for m in opened} == {opened[0].model_id}
    assert opened[0].model_id.startswith("IDSim:cats@")
    assert {folder_name(m.about()) for m in opened} == {folder_name(opened[0].about())}


# Images


def test_the_key_of_an_image_depends_on_its_mask() -> None:
    keys = {content_key(b"image"), content_key(b"image", b"mask"), content_key(b"image", b"another mask")}
    assert len(keys) == 3


def test_a_vector_is_of_the_bytes_that_its_key_was_made_of(
    metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pictures(tmp_path / "photos", 2)
    expected = metric.embed([first]).cls

    def changed_after_reading(path: str) -> Named:
        data = read_file(path)
        Path(path).write_bytes(second.read_bytes())  # the image changes while it is read
        return data

    monkeypatch.setattr("idmetric.stream.read_file", changed_after_reading)
    found, _ = embed_rows(checked(pd.DataFrame({"path": [first]})), metric, store=tmp_path / "kept")
    np.testing.assert_allclose(found, expected, atol=1e-6)
