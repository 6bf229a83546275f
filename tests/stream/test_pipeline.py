"""What the stream reads, takes of pictures and yields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import IDSim, ImageReadError, stream
from idmetric.metric.images import Named
from idmetric.stream import Item, Look, Part, embedded, open_store
from tests.embed_parts import pictures


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return list(map(str, pictures(tmp_path / "photos", 5)))


def size_of(item: Item, picture: Image.Image) -> dict[str, Any]:
    return {"size": picture.size}


@pytest.mark.parametrize("workers", [0, 3])
def test_each_file_is_read_once_also_where_its_picture_is_wanted_and_its_embedding_known(
    metric: IDSim, paths: list[str], tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_file = stream.read_file

    def counted(path: str) -> Named:
        read.append(path)
        return read_file(path)

    monkeypatch.setattr(stream, "read_file", counted)
    items = [Item(path, path) for path in paths]
    for _ in range(2):
        store = open_store(tmp_path / "kept", metric)
        read.clear()
        results = list(embedded(items, metric, store=store, also=size_of, workers=workers))
        assert sorted(read) == paths
        assert [seen.also["size"] for seen in results] == [(40, 30)] * 5
        assert all(seen.key in store and seen.embedding is not None for seen in results)


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_unreadable_item_is_a_result_with_its_reason_or_stops_the_run(
    metric: IDSim, paths: list[str], tmp_path: Path, is_kept: bool
) -> None:
    Path(paths[2]).write_bytes(b"no image")
    items = [Item(path, path) for path in paths]
    store = open_store(tmp_path / "kept", metric) if is_kept else None
    results = list(embedded(items, metric, store=store, on_error="skip", batch_size=2))
    assert [seen.problem is None for seen in results] == [True, True, False, True, True]
    assert results[2].problem is not None
    assert results[2].problem.source == paths[2]
    with pytest.raises(ImageReadError, match=r"0002\.png"):
        list(embedded(items, metric, store=store))


def test_parts_of_one_picture_are_embedded_and_kept_apart(metric: IDSim, paths: list[str], tmp_path: Path) -> None:
    decoded: list[Image.Image] = []

    def halves(picture: Any) -> list[Part]:
        decoded.append(picture)
        return [
            Part(picture.crop((0, 0, 20, 30)), key="left"),
            Part(picture),
            Part(picture.crop((20, 0, 40, 30)), key="right"),
        ]

    store = open_store(tmp_path / "kept", metric)
    item = Item(paths[0], paths[0], parts=halves)
    for _ in range(2):
        results = list(embedded([item, Item("none", paths[1], parts=lambda _: [])], metric, store=store, batch_size=1))
        assert [(seen.part, seen.embedding is None) for seen in results] == [
            (0, False),
            (1, False),
            (2, False),
            (None, True),
        ]
        expected = metric.embed([decoded[0].crop((0, 0, 20, 30)), paths[0], decoded[0].crop((20, 0, 40, 30))]).cls
        torch.testing.assert_close(torch.cat([seen.row.cls for seen in results[:3]]), expected, atol=1e-6, rtol=0)
        assert len({seen.key for seen in results[:3]}) == 3
    [whole] = embedded([Item(paths[0], paths[0])], metric, store=store)
    assert whole.key == results[1].key


def test_a_mask_and_what_is_outside_of_it_change_the_key(metric: IDSim, paths: list[str], tmp_path: Path) -> None:
    mask = tmp_path / "mask.png"
    Image.fromarray(np.eye(30, 40, dtype=np.uint8) * 255).save(mask)
    store = open_store(tmp_path / "kept", metric)
    keys = set()
    for look in (Look(), Look(outside="white"), Look(mask_id=255)):
        [seen] = embedded([Item(paths[0], paths[0], str(mask))], metric, look, store=store)
        keys.add(seen.key)
    [whole] = embedded([Item(paths[0], paths[0])], metric, Look(outside="white"), store=store)
    assert len({*keys, whole.key}) == 4
    assert whole.key == next(embedded([Item(paths[0], paths[0])], metric, store=store)).key


def test_gradients_reach_pixels_only_where_a_graph_is_asked_for(metric: IDSim) -> None:
    pixels = torch.rand(3, 32, 32, requires_grad=True)
    [plain] = embedded([Item("a", pixels)], metric)
    assert not plain.row.cls.requires_grad
    [seen] = embedded([Item("a", pixels)], metric, keeps_graph=True)
    seen.row.cls.sum().backward()
    assert pixels.grad is not None
