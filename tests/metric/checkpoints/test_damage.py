"""Full disks, damaged files and other processes cost no scores: what is lost is made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from idmetric import IDSim, load
from idmetric.cli import score
from idmetric.gallery import Gallery
from idmetric.metric.distance.embedding import Embedding
from idmetric.stream.cache import Cache
from idmetric.stream.store import Store
from tests.embed_parts import pictures, stored

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow: pip install 'idmetric[eval]'")


def test_a_prune_while_images_are_scored_costs_no_score(
    metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metric.save_pretrained(tmp_path / "run")
    paths = pictures(tmp_path / "photos", 4)
    words = [str(paths[0]), str(tmp_path / "photos"), "--model", str(tmp_path / "run"), "--device", "cpu",
             "--cache", str(tmp_path / "cache"), "--format", "json"]  # fmt: skip
    assert score.main(words) == 0
    expected = json.loads(capsys.readouterr().out)["rows"]
    metric = load(tmp_path / "run", device="cpu")
    gallery = Gallery(tmp_path / "cache", metric)  # the cache is a gallery, of one of the images
    gallery.update(tmp_path / "photos" / "0002.png")
    original, pruned = Cache.readable, []

    def readable(self: Cache, *args: Any) -> dict[str, Embedding]:
        if not pruned:  # they are known to be in the cache, and gone when they are wanted
            pruned.append(gallery.prune())
        return original(self, *args)

    monkeypatch.setattr(Cache, "readable", readable)
    assert score.main(words) == 0
    out, err = capsys.readouterr()
    assert pruned[0].embeddings == 3
    assert [row["image"] for row in json.loads(out)["rows"]] == [row["image"] for row in expected]
    assert [row["distance"] for row in json.loads(out)["rows"]] == pytest.approx(
        [r["distance"] for r in expected], abs=1e-6
    )
    assert "damaged" not in err


def test_readable_looks_for_images_of_a_removed_shard_in_others(tmp_path: Path) -> None:
    found = Embedding(torch.rand(3, 4))
    stored(tmp_path, ["a", "b", "c"], found)
    opened = Store(tmp_path)
    [old] = tmp_path.glob("*.safetensors")
    stored(tmp_path, ["b"], found[1])
    old.unlink()
    kept = opened.readable(["a", "b", "c"])
    assert list(kept) == ["b"]
    torch.testing.assert_close(kept["b"].cls, found[1].cls)
    assert "a" not in opened
