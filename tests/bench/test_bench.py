"""benchmarks/bench.py: that it measures what it says, fairly, and what it must never change: the values."""

from __future__ import annotations

import json
from pathlib import Path

import bench
import numpy as np
import pytest
import torch
from bench import decoded, make_files
from timing import Clock

from idmetric import IDSim


@pytest.fixture(scope="module")
def files() -> tuple[bytes, ...]:
    return make_files(8, (40, 30))


# Timing


def test_functions_take_turns_after_warming_up() -> None:
    calls: list[str] = []
    clock = Clock(torch.device("cpu"), repeats=4, warmup=2)
    found = clock.alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, {"a": 5})
    assert "".join(calls) == "abab" + "abbaabba"
    assert [len(t.seconds) for t in found.values()] == [4, 4]
    assert (found["a"].items, found["b"].items) == (5, 1)


# Stages


def test_stages_time_decode_preprocess_model_and_the_whole(metric: IDSim, files: tuple[bytes, ...]) -> None:
    found = list(bench.stages(metric, files, 2, 0.01))
    assert [row["what"] for row in found] == ["decode", "preprocess", "model", "whole", "whole, 1 image"]
    for row, images in zip(found, (2, 2, 2, 2, 1), strict=True):
        assert row["images/s"] == pytest.approx(1000 * images / row["median ms"])


def test_what_the_stages_measure_is_what_embed_computes(metric: IDSim, files: tuple[bytes, ...]) -> None:
    photos = decoded(files, 2)
    x = bench.prepared(metric, photos)
    with torch.no_grad():
        features, patches, _ = metric.forward_features(x)
    expected = metric.embed(photos)
    torch.testing.assert_close(features, expected.cls, rtol=0, atol=1e-6)
    torch.testing.assert_close(patches, expected.patches, rtol=0, atol=1e-6)


# Quicker ways keep the values


@pytest.mark.parametrize("workers", [1, 3])
def test_reading_in_threads_gives_the_same_embeddings(metric: IDSim, files: tuple[bytes, ...], workers: int) -> None:
    files = list(files)
    mask = np.zeros((30, 40), np.uint8)
    mask[5:20, 5:30] = 255
    masks = [mask if k % 2 else None for k in range(len(files))]
    for options in ({}, {"masks": masks}):
        plain = metric.embed(files, batch_size=3, **options)  # type: ignore[arg-type]
        found = metric.embed(files, batch_size=3, workers=workers, **options)  # type: ignore[arg-type]
        assert found.cls.equal(plain.cls)
        assert plain.patches is not None
        assert found.patches is not None
        assert found.patches.equal(plain.patches)
        assert (found.weights is None) == (plain.weights is None)


# The command


def test_the_command_prints_tables_and_writes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.stages, "__defaults__", (0.01,))
    file = tmp_path / "bench.json"
    words = "--model tiny --device cpu --batch 2"
    bench.main([*words.split(), "--json", str(file)])
    out = capsys.readouterr().out
    assert "cores" in out.splitlines()[0]
    assert f"torch {torch.__version__.split('+')[0]}" in out.splitlines()[0]
    assert "\nIDSim:tiny" in out
    found = json.loads(file.read_text())
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["options"]["batch"] == 2
    assert [row["model"].partition("@")[0] for row in found["rows"]] == ["IDSim:tiny"] * 5


def test_random_weights_are_made_for_published_architectures_alone() -> None:
    with pytest.raises(ValueError, match="no random weights for 'visid_3b'"):
        bench.open_model("visid_3b", random_weights=True)
