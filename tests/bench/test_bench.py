"""`idmetric bench`: that it measures what it says, fairly, and what it must never change: the values."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from timing import Clock
from torch import Tensor

from idmetric import IDSim
from idmetric.cli import bench
from idmetric.cli.bench import decoded, describe, line, make_files, read_files
from idmetric.distance import annealing, plan
from idmetric.images.read import ImageReadError

CLOCK = Clock(torch.device("cpu"), repeats=3, warmup=1)


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


# Sections


def make_tokens(sets: int, tokens: int, channels: int) -> Tensor:
    """Unit vectors that change smoothly along each set, as patch tokens do."""
    coarse = torch.randn(sets, channels, tokens // 16, generator=torch.Generator().manual_seed(0))
    return F.normalize(F.interpolate(coarse, tokens, mode="linear", align_corners=True).mT, dim=-1)


def test_stages_time_decode_preprocess_backbone_heads_and_the_whole(metric: IDSim, files: tuple[bytes, ...]) -> None:
    found = list(bench.stages(metric, files, 2, 0.01))
    assert [row["what"] for row in found] == ["decode", "preprocess", "backbone", "heads", "whole", "whole, 1 image"]
    for row, images in zip(found, (2, 2, 2, 2, 2, 1), strict=True):
        assert row["images/s"] == pytest.approx(1000 * images / row["median ms"])


def test_what_the_stages_measure_is_what_embed_computes(metric: IDSim, files: tuple[bytes, ...]) -> None:
    photos = decoded(files, 2)
    x = bench.prepared(metric, photos)
    heads = bench.heads_of(metric, x)
    assert heads is not None
    with torch.no_grad():
        features, patches = heads()
    expected = metric.embed(photos)
    assert features.equal(expected.cls)
    assert patches.equal(expected.patches)


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


def test_an_unreadable_file_is_named_whoever_reads_it(metric: IDSim, files: tuple[bytes, ...]) -> None:
    given: list[Any] = [*files, "gone.png", *files]
    threads = threading.active_count()
    with pytest.raises(ImageReadError, match=r"gone\.png"):
        metric.embed(given, batch_size=2, workers=2)
    assert threading.active_count() == threads
    with pytest.raises(ValueError, match="workers must be at least 0"):
        metric.embed(given, workers=-1)


def test_compile_reaches_embed_and_a_copy_has_its_own_weights(files: tuple[bytes, ...]) -> None:
    import copy

    from tests.conftest import random_model

    model, photos = random_model("dinov3"), decoded(files, 2)
    plain = model.embed(photos).cls
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(inputs))
        return graph.forward

    model.compile(backend=backend)
    assert (model.embed(photos).cls - plain).abs().max() < 1e-6
    assert graphs
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.mlp_cls.fc2.weight.mul_(3)
    assert (other.embed(photos).cls - plain).abs().max() > 1e-3
    assert (model.embed(photos).cls - plain).abs().max() < 1e-6


def test_far_tokens_do_not_slow_the_sinkhorn_and_keep_its_values() -> None:
    """Where exp underflows: float32 with the clamp agrees with float64, whose range needs none."""
    tokens = make_tokens(2, 100, 8)
    spread = torch.cat([tokens[:, :50], -tokens[:, 50:]], 1)  # costs up to 2, 800 temperatures
    kernel = annealing._kernel(spread[:1], spread[1:]) / 0.0025
    assert (kernel - kernel.amax(2, keepdim=True)).min() < -104  # exp of it is 0 in float32
    h = torch.linspace(-3, 3, 100)[None]
    found = plan._softmin(kernel * 0.0025, h[:, None], 0.0025, 2, torch.empty_like(kernel))[:, :, 0]
    exact = -0.0025 * (h.double()[:, None] + kernel.double()).logsumexp(2)
    assert (found - exact).abs().max() < 1e-6


# The command


@pytest.mark.slow
def test_the_command_prints_tables_and_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    words = "--model tiny --device cpu --batch 2"
    assert bench.main([*words.split(), "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "cores" in out.splitlines()[0]
    assert f"torch {torch.__version__.split('+')[0]}" in out.splitlines()[0]
    for section, text in bench.SECTIONS.items():
        assert f"\n{section}: {text}" in out
    found = json.loads(file.read_text())
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["options"]["batch"] == 2
    assert [row["section"] for row in found["rows"]] == ["start"] * 3 + ["stages"] * 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], "--batch-size/--batch: '0' is not a whole number, at least 1"),
        (["--json", "nowhere/b.json"], "cannot write 'nowhere/b.json': its folder is not there"),
        (["--only", "all"], "invalid choice"),
    ],
)
def test_wrong_usage_is_explained(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_errors_name_the_model_or_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--images", str(tmp_path), "--only", "stages"]) == 1
    assert f"'{tmp_path}': the folder holds no images" in capsys.readouterr().err
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n")
    assert bench.main(["--images", str(tmp_path), "--only", "stages"]) == 1
    assert "torn.png" in capsys.readouterr().err
    (tmp_path / "torn.png").unlink()
    assert bench.main(["--model", "visid_3b", "--random-weights", "--only", "stages", "--device", "cpu"]) == 1
    assert "no random weights for 'visid_3b'" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert bench.main(["--device", "cuda"]) == 1
        assert "torch sees no such device" in capsys.readouterr().err


def test_photos_of_a_folder_are_used_again_when_they_are_few(tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        Image.new("RGB", (4, 4), "red" if name == "a.png" else "blue").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    files = read_files(tmp_path, 3)
    assert files == tuple((tmp_path / name).read_bytes() for name in ("a.png", "b.png", "a.png"))
    assert make_files(1) == make_files(1)


def test_a_machine_with_other_work_is_marked() -> None:
    found = describe(torch.device("cpu"))
    assert found["torch"].startswith(torch.__version__.split("+")[0])
    assert "trust ratios" in line({**found, "busy": 0.9})
    assert "trust ratios" not in line({**found, "busy": 0.0})
    assert json.loads(json.dumps(found)) == found
