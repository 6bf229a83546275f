"""`idmetric score --pairs` with many pairs: streamed, bounded, resumed from `--cache`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idmetric import Embedding, IDSim, load
from idmetric.cli.score import main
from idmetric.metric import embedder
from idmetric.scoring.pairs import read_pairs
from tests.conftest import random_model
from tests.embed_parts import Live, pictures
from tests.runner import Runner


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    folder = tmp_path_factory.mktemp("model")
    metric.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 pairs of 20 pictures, in no order."""
    paths = pictures(tmp_path, 20)
    rng = np.random.default_rng(3)
    lines = [f"{paths[a].name},{paths[b].name}" for a, b in rng.integers(0, 20, (40, 2))]
    (tmp_path / "pairs.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    return tmp_path


def distances(out: str) -> dict[tuple[str, str], float]:
    return {(row["reference"], row["image"]): row["distance"] for row in json.loads(out)["rows"]}


class Counted:
    """Counts the images that any model embeds, and keeps the sizes of the batches."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.images, self.batches = 0, list[int]()
        original = embedder.Embedder.embed_prepared

        def embed_prepared(metric: Any, batch: Any, *options: Any) -> Embedding:
            found = original(metric, batch, *options)
            self.images += len(found)
            self.batches.append(len(found))
            return found

        patch.setattr(embedder.Embedder, "embed_prepared", embed_prepared)


@pytest.fixture
def run(folder: Path, saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.chdir(folder)
    words = ["--device", "cpu", "--batch-size", "4", "--format", "json", "--pairs", "pairs.csv"]
    return Runner(main, capsys, "--model", saved, *words)


@pytest.mark.parametrize("distance", ["cls", "joint"])
def test_each_file_is_decoded_and_embedded_once(
    run: Runner, folder: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, distance: str
) -> None:
    counted = Counted(monkeypatch)
    live = Live(embedder.Embedder, monkeypatch)
    status, out, _ = run.all("--distance", distance)
    assert status == 0
    assert counted.images == live.made == len(read_pairs(folder / "pairs.csv").read) == 20
    monkeypatch.undo()
    model = load(saved, device="cpu")
    for (a, b), found in distances(out).items():
        assert found == pytest.approx(model(folder / a, folder / b, distance).item(), abs=1e-5)


def test_the_cache_never_gives_what_is_no_longer_so(
    run: Runner, folder: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--cache kept")
    path = folder / "0004.png"
    stat = path.stat()
    path.write_bytes((folder / "0011.png").read_bytes().ljust(stat.st_size, b"\0"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    kept, fresh = distances(run.all("--cache kept")[1]), distances(run.all()[1])
    assert kept.keys() == fresh.keys()
    assert kept == pytest.approx(fresh, abs=1e-5)
    other = random_model("dinov3")
    with torch.no_grad():
        next(other.mlp_cls.parameters()).mul_(1.5)
    other.save_pretrained(folder / "other")
    assert run.all("--cache kept --model other")[1] == run.all("--model other")[1]
    counted = Counted(monkeypatch)
    run("--cache kept --distance patch")  # what was kept has no patches
    assert counted.images == 20


def plain_of(result: tuple[int, str, str]) -> tuple[int, str, str]:
    """A result without the line that counts embeddings."""
    status, out, err = result
    lines = err.splitlines(keepends=True)
    return status, out, "".join(line for line in lines if ": embedded " not in line)


def test_masks_are_part_of_what_is_kept(run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    for name, box in (("m1.png", (5, 5, 20, 20)), ("m2.png", (15, 10, 40, 30))):
        mask = Image.new("L", (40, 30))
        mask.paste(255, box)
        mask.save(folder / name)
    (folder / "pairs.csv").write_text(
        "a,b,mask_a,mask_b\n0000.png,0001.png,m1.png,m2.png\n0000.png,0001.png,m2.png,\n0000.png,0001.png,,\n"
    )
    whole = run.all("--distance joint")
    assert len({row["distance"] for row in json.loads(whole[1])["rows"]}) == 3
    assert plain_of(run.all("--distance joint --cache kept")) == whole
    counted = Counted(monkeypatch)
    assert plain_of(run.all("--distance joint --cache kept")) == whole
    assert counted.images == 0


def test_unreadable_files_are_skipped_with_a_cache_as_without(run: Runner, folder: Path) -> None:
    (folder / "0003.png").write_bytes(b"no image")
    (folder / "0007.png").unlink()
    plain = run.all("--on-error skip")
    assert plain[0] == 4
    for _ in range(2):
        assert plain_of(run.all("--on-error skip --cache kept")) == plain
    failed = run.all("--cache kept")
    assert failed == run.all()
    assert (failed[0], failed[1]) == (1, "")
