"""`idmetric bench`: that it measures what it says, fairly, and what it must never change: the values."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from idmetric import Backbone, IDSim
from idmetric.cli import bench
from idmetric.cli.bench import files, machine, pairs, stages
from idmetric.cli.bench.rows import Row, over, table
from idmetric.cli.bench.setting import Setting, make_files, open_model, read_files
from idmetric.cli.bench.timing import Clock, Timing, cpu_ratio, quiet, ratio
from idmetric.distance import annealing, plan, sinkhorn
from idmetric.images.read import ImageReadError
from idmetric.models.embedding import Embedding

CLOCK = Clock(torch.device("cpu"), repeats=3, warmup=1)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(
        make_files(8, (40, 30)), batch=2, clock=CLOCK, sets=3, tokens=30, channels=16, references=2, candidates=3,
        sample=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def resnet() -> Backbone:
    args = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}
    return Backbone("resnet18", pretrained=False, image_size=32, backbone_args=args, device="cpu")


# Timing


def test_functions_take_turns_after_warming_up() -> None:
    calls: list[str] = []
    clock = Clock(torch.device("cpu"), repeats=4, warmup=2)
    found = clock.alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, {"a": 5})
    assert "".join(calls) == "abab" + "abbaabba"
    assert [len(t.seconds) for t in found.values()] == [4, 4]
    assert (found["a"].items, found["b"].items) == (5, 1)


def test_processor_time_is_of_all_threads_and_children_and_not_of_waiting() -> None:
    burn = "sum(range(3_000_000))"
    found = CLOCK.alternate({
        "sleep": lambda: time.sleep(0.05), "burn": lambda: sum(range(3_000_000)),
        "child": lambda: subprocess.run([sys.executable, "-c", burn], check=True),
    })  # fmt: skip
    assert max(found["sleep"].cpu) < 0.02 < min(found["burn"].cpu)
    assert min(found["child"].cpu) > 0.02
    compared = cpu_ratio(found["burn"], found["sleep"])
    assert compared is not None
    assert compared.median > 1
    assert cpu_ratio(Timing((1.0,)), Timing((1.0,))) is None


def test_the_budget_ends_a_measurement_after_three_rounds() -> None:
    calls: list[int] = []
    Clock(torch.device("cpu"), repeats=50, warmup=0, budget=1e-9).alternate({"a": lambda: calls.append(0)})
    assert len(calls) == 3


def test_nothing_is_collected_and_no_graph_is_built_while_timing() -> None:
    seen: list[tuple[bool, bool]] = []
    CLOCK.time(lambda: seen.append((gc.isenabled(), torch.is_grad_enabled())), memory=False)
    assert set(seen) == {(False, False)}
    assert gc.isenabled()
    assert torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), quiet():
        _ = 1 / 0
    assert gc.isenabled()


def test_numbers_of_a_timing_are_those_of_numpy() -> None:
    seconds = tuple(np.random.default_rng(0).random(20).tolist())
    timing = Timing(seconds, items=8)
    assert timing.median == pytest.approx(np.median(seconds))
    assert timing.p90 == pytest.approx(np.quantile(seconds, 0.9, method="inverted_cdf"))
    assert timing.rate == pytest.approx(8 / np.median(seconds))


def test_ratios_are_per_item_and_round_by_round() -> None:
    a, b = Timing((2.0, 8.0, 3.0), items=2), Timing((1.0, 2.0, 3.0), items=4)
    found = ratio(a, b)
    assert (found.median, found.low, found.high, found.rounds) == (4.0, 2.0, 8.0, 3)
    with pytest.raises(ValueError, match="zip"):
        ratio(a, Timing((1.0,)))
    by_processor = cpu_ratio(Timing((1.0,), 2, cpu=(6.0,)), Timing((1.0,), 1, cpu=(2.0,)))
    assert by_processor is not None
    assert by_processor.median == 1.5


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_what_a_run_takes() -> None:
    peak = CLOCK.peak(lambda: torch.ones(40_000_000).sum())  # 160 MB, gone again at the end
    assert peak is not None
    assert 150e6 < peak < 200e6


# Sections


def by_name(rows: Iterator[Row]) -> dict[str, Row]:
    return {row.what: row for row in rows}


@pytest.mark.slow
def test_stages_time_decode_preprocess_backbone_heads_and_the_whole(metric: IDSim, setting: Setting) -> None:
    found = by_name(stages.stages(metric, setting))
    names = [what.split(",")[0] for what in found]
    assert names == ["decode", "preprocess", "backbone", "heads", "whole", "whole"]
    assert all(row.timing is not None and len(row.timing.seconds) == 3 for row in found.values())
    assert [row.timing.items for row in found.values() if row.timing] == [2, 2, 2, 2, 2, 1]


def test_what_the_stages_measure_is_what_embed_computes(metric: IDSim, setting: Setting) -> None:
    photos = setting.photos(2)
    x = stages.prepared(metric, photos)
    heads = stages.heads_of(metric, x)
    assert heads is not None
    with torch.no_grad():
        features, patches = heads()
    expected = metric.embed(photos)
    assert features.equal(expected.cls)
    assert patches.equal(expected.patches)


def test_overhead_is_over_the_bare_forward_of_timm(resnet: Backbone, setting: Setting) -> None:
    seen: list[str] = []
    trunk = resnet.backbone.forward
    resnet.backbone.forward = lambda x: seen.append("bare") or trunk(x)  # type: ignore[assignment]
    try:
        found = by_name(stages.overhead(resnet, setting))
    finally:
        del resnet.backbone.forward
    assert seen == ["bare"] * 4  # one to warm up, three rounds: the pipeline calls forward_features
    assert found[stages.BARE].ratio is None
    row = found["embed decoded images"]
    assert row.against == stages.BARE
    assert row.ratio is not None
    assert row.ratio.low <= row.ratio.median <= row.ratio.high


def test_files_are_scored_exactly_and_fast(metric: IDSim, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGE", (480, 400))
    rows = list(files.files(metric, setting))
    compared = [(row.what, row.against) for row in rows if row.against]
    assert ("scores, fast", files.BARE) in compared
    assert ("scores, exact", files.READING) in compared
    assert {row.timing.items for row in rows if row.timing is not None} == {10}
    assert rows[-1].numbers is not None
    assert 0 < rows[-1].numbers["largest change of a distance"] < 0.05
    assert metric.decode == "exact"


def test_variants_say_what_they_gain_and_what_they_change(metric: IDSim, setting: Setting) -> None:
    change = stages._CHANGES.pop("compiled")  # a minute of compiling
    try:
        found = by_name(stages.variants(metric, setting))
    finally:
        stages._CHANGES["compiled"] = change
    for what in ("bfloat16", "channels-last"):
        row = found[what]
        assert row.ratio is not None
        assert row.numbers is not None
        assert row.numbers["largest change of a cls distance"] < (0.05 if what == "bfloat16" else 1e-5)
    assert found["files, read by threads"].against == "files, one after another"
    assert metric.dtype == torch.float32


def test_a_variant_that_fails_is_left_out_with_the_reason(
    metric: IDSim, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(metric: Any, photos: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(stages, "_CHANGES", {"compiled": broken})
    row = by_name(stages.variants(metric, setting))["compiled"]
    assert row.timing is None
    assert row.note == "RuntimeError: no C++ compiler"


def test_the_sinkhorn_matrix_has_the_values_of_geomloss(setting: Setting) -> None:
    pytest.importorskip("geomloss")
    found = by_name(pairs.sinkhorn(setting))
    matrix = found.pop("sinkhorn_matrix, 3 x 3")
    assert matrix.timing is not None
    assert matrix.timing.items == 9
    assert set(found) == {"sinkhorn_distance, pair by pair", "geomloss, pair by pair"}
    for row in found.values():
        assert row.timing is not None
        assert row.timing.items == 4
        assert row.numbers is not None
        assert row.numbers["largest difference from the matrix"] < 1e-6
    assert torch.is_grad_enabled()


def test_made_tokens_differ_as_patches_do() -> None:
    tokens = pairs.make_tokens(2, 784, 64, torch.device("cpu"))
    assert tokens.norm(dim=-1).allclose(torch.ones(2, 784))
    cos = tokens[0] @ tokens[0].T
    near, far = cos.diagonal(1).mean(), cos.mean()
    assert near > far + 0.2  # neighbours are alike
    assert 0 < far < 0.9


def test_packages_that_are_missing_are_left_out_with_the_reason(
    metric: IDSim, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lpips", "geomloss"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(pairs, "ENCODERS", {})
    found = by_name(pairs.metrics(metric, setting))
    assert found["this metric"].timing is not None
    for name in pairs.LPIPS:
        assert found[name].timing is None
        assert "pip install lpips" in found[name].note
    assert "pip install geomloss" in by_name(pairs.sinkhorn(setting))["geomloss, pair by pair"].note


# Each image is embedded once


class Counting(nn.Module):
    """A timm model that counts the images it sees."""

    num_prefix_tokens = 0

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.patch_embed, self.seen = model, model.patch_embed, 0

    def forward_features(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        features: Tensor = self.model.forward_features(x)
        return features

    def forward_head(self, x: Tensor, **options: Any) -> Tensor:
        features: Tensor = self.model.forward_head(x, **options)
        return features


def test_pairwise_of_200_references_and_2000_images_embeds_2200_times() -> None:
    torch.manual_seed(0)
    args = {"embed_dim": 16, "depth": 1, "num_heads": 1, "patch_size": 4, "global_pool": "avg", "class_token": False}
    metric = Backbone("vit_tiny_patch16_224", pretrained=False, image_size=8, backbone_args=args, device="cpu")
    counting = Counting(metric.backbone)
    metric.backbone = counting
    references, images = torch.rand(200, 3, 8, 8), torch.rand(2000, 3, 8, 8)
    found = metric.pairwise(references, images, batch_size=500)
    assert found.shape == (200, 2000)
    assert counting.seen == 2200
    assert float(found[7, 11]) == pytest.approx(float(metric(references[7], images[11])), abs=1e-5)


def test_the_pairwise_section_counts_what_is_embedded(metric: IDSim, setting: Setting) -> None:
    found = by_name(pairs.pairwise(metric, setting))
    assert found["pairwise, 2 x 3"].note == "5 embedded for all pairs"
    assert found["pair by pair"].note == "12 embedded for all pairs"
    assert "embed_pixels" not in vars(metric)  # the counter is gone


# Quicker ways keep the values


@pytest.mark.parametrize("workers", [1, 3])
def test_reading_in_threads_gives_the_same_embeddings(metric: IDSim, setting: Setting, workers: int) -> None:
    files = list(setting.files)
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


def test_no_more_batches_are_held_than_there_are_workers(metric: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    held, most, lock = 0, 0, threading.Lock()
    load, run = metric._load_batch, metric._embed_batch

    def loading(*args: Any, **options: Any) -> Any:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return load(*args, **options)

    def running(loaded: Any) -> Embedding:
        nonlocal held
        found = run(loaded)
        with lock:
            held -= 1
        return found

    monkeypatch.setattr(metric, "_load_batch", loading)
    monkeypatch.setattr(metric, "_embed_batch", running)
    metric.embed(list(torch.rand(12, 3, 16, 16)), batch_size=1, workers=2)
    assert 1 <= most <= 3  # two ahead of the one in use


def test_an_unreadable_file_is_named_whoever_reads_it(metric: IDSim, setting: Setting) -> None:
    files: list[Any] = [*setting.files, "gone.png", *setting.files]
    threads = threading.active_count()
    with pytest.raises(ImageReadError, match=r"gone\.png"):
        metric.embed(files, batch_size=2, workers=2)
    assert threading.active_count() == threads
    with pytest.raises(ValueError, match="workers must be at least 0"):
        metric.embed(files, workers=-1)


def test_gradients_flow_through_batches_that_threads_load(metric: IDSim) -> None:
    pixels = torch.rand(2, 3, 20, 20, requires_grad=True)
    metric._embed(pixels, 1, None, "black", False, None, 2).cls[:, 0].sum().backward()  # all of them sum to 0
    assert pixels.grad is not None
    assert (pixels.grad.abs().sum((1, 2, 3)) > 0).all()


def test_compile_reaches_embed_and_a_copy_has_its_own_weights(setting: Setting) -> None:
    import copy

    from tests.conftest import random_model

    model, photos = random_model("dinov3"), setting.photos(2)
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
    tokens = pairs.make_tokens(2, 100, 8, torch.device("cpu"))
    spread = torch.cat([tokens[:, :50], -tokens[:, 50:]], 1)  # costs up to 2, 800 temperatures
    kernel = annealing._kernel(spread[:1], spread[1:]) / 0.0025
    assert (kernel - kernel.amax(2, keepdim=True)).min() < -104  # exp of it is 0 in float32
    h = torch.linspace(-3, 3, 100)[None]
    found = plan._softmin(kernel * 0.0025, h[:, None], 0.0025, 2, torch.empty_like(kernel))[:, :, 0]
    exact = -0.0025 * (h.double()[:, None] + kernel.double()).logsumexp(2)
    assert (found - exact).abs().max() < 1e-6


def test_large_sets_are_solved_in_chunks_that_fit_a_cache() -> None:
    tokens = pairs.make_tokens(4, 300, 8, torch.device("cpu")).double()
    options = sinkhorn._options(0.05, 0.5, 2.0, True, sinkhorn.MAX_ELEMENTS)
    cloud = sinkhorn._cloud(tokens, tokens, None, None, options)
    rows, cols = torch.arange(4).repeat_interleave(4), torch.arange(4).repeat(4)
    chunks = sinkhorn._chunks(cloud, cloud, rows, cols, options)
    assert [len(chunk.rows) for chunk in chunks] == [11, 5]  # 11 * 300 * 300 <= 2^20
    assert sinkhorn.sinkhorn_matrix(tokens, tokens.clone()).diagonal().abs().max() < 1e-12


# The command


@pytest.mark.slow
def test_the_command_prints_tables_and_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    words = "--model tiny --device cpu --batch 2 --repeats 3 --sets 2 --tokens 16 --channels 8 --references 1"
    sections = ["--only", "stages", "--only", "sinkhorn", "--only", "pairwise"]
    assert bench.main([*words.split(), "--candidates", "2", *sections, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "cores" in out.splitlines()[0]
    assert f"torch {torch.__version__.split('+')[0]}" in out.splitlines()[0]
    for section in ("stages", "sinkhorn", "pairwise"):
        assert f"\n{section}: {bench.SECTIONS[section][2]}" in out
    found = json.loads(file.read_text())
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["options"]["batch"] == 2
    for row in found["rows"]:
        assert len(row["timing"]["seconds"]) == 3
        assert row["timing"]["median"] == pytest.approx(np.median(row["timing"]["seconds"]))


def test_what_was_measured_is_written_when_the_command_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(setting: Setting) -> Iterator[Row]:
        yield Row("sinkhorn", "", "a", Timing((1.0, 1.0, 1.0)))

    def stopped(setting: Setting) -> Iterator[Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_function", lambda name: measured if name == "sinkhorn" else stopped)
    file = tmp_path / "bench.json"
    words = ["--only", "sinkhorn", "--only", "start", "--device", "cpu", "--candidates", "2"]
    assert bench.main([*words, "--json", str(file)]) == 130
    assert [row["what"] for row in json.loads(file.read_text())["rows"]] == ["a"]
    assert "sinkhorn" in capsys.readouterr().out


def test_what_was_measured_is_written_when_a_later_model_cannot_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    words = "--device cpu --repeats 3 --sets 2 --tokens 16 --channels 8 --candidates 2 --only sinkhorn --only stages"
    assert bench.main([*words.split(), "--model", str(tmp_path), "--json", str(file)]) == 1
    assert "is not a model folder" in capsys.readouterr().err
    assert {row["section"] for row in json.loads(file.read_text())["rows"]} == {"sinkhorn"}


def test_sections_exist_and_the_command_names_them() -> None:
    parser = bench.build_parser()
    for name, (_, _, text) in bench.SECTIONS.items():
        assert callable(bench._function(name))
        assert f"{name} {text}" in " ".join(parser.format_help().split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], "--batch-size/--batch: '0' is not a whole number, at least 1"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--json", "nowhere/b.json"], "--json: cannot write 'nowhere/b.json': its folder is not there"),
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


def test_random_weights_are_said_in_the_table(setting: Setting) -> None:
    model = open_model("timm:test_vit", random_weights=True, device="cpu")
    assert "random weights" in model.label
    rows = list(stages.overhead(model, setting))
    assert "random weights" in table(rows)


def test_photos_of_a_folder_are_used_again_when_they_are_few(tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        Image.new("RGB", (4, 4), "red" if name == "a.png" else "blue").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    files = read_files(tmp_path, 3)
    assert files == tuple((tmp_path / name).read_bytes() for name in ("a.png", "b.png", "a.png"))
    assert make_files(1) == make_files(1)


def test_tables_line_up_and_tell_what_was_left_out() -> None:
    timings = {"a": Timing((0.5, 0.5, 0.5), 2, 3_000_000), "b": Timing((1.0, 1.0, 2.0), 2)}
    rows = [Row("s", "m", what, timing, *over(timings, what, "a")) for what, timing in timings.items()]
    lines = table([*rows, Row("s", "m", "c", note="not installed")]).splitlines()
    assert (
        " ".join(lines[0].split()) == "model what items/s median ms p90 ms peak MB time over ratio (lowest to highest)"
    )
    assert lines[1].split() == ["m", "a", "4", "500", "500", "3"]
    assert lines[2].split() == ["m", "b", "2", "1000", "2000", "a", "2.000", "(2.000", "to", "4.000)"]
    assert lines[3].split() == ["m", "c", "left", "out"]
    assert lines[4] == "  c: not installed"


def test_a_machine_with_other_work_is_marked() -> None:
    found = machine.describe(torch.device("cpu"))
    assert found["torch"].startswith(torch.__version__.split("+")[0])
    assert "trust ratios" in machine.line({**found, "busy": 0.9})
    assert "trust ratios" not in machine.line({**found, "busy": 0.0})
    assert json.loads(json.dumps(found)) == found


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom idmetric.cli.bench import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'timm', 'numpy', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "idmetric.cli.bench", "--version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("idmetric ")
