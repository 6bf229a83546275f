"""benchmarks/confirm.py against a local Hub, with tiny checkpoints in the releases' formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import confirm
from idmetric import demo_images, load
from idmetric.metric.checkpoints import released
from tests.data.test_importers import distractors, nearid
from tests.hub_server import COMMIT, HubServer
from tests.import_parts import put
from tests.metric.checkpoints.test_released import VARIANTS, publish
from tests.metric.models.test_nearid import SMALL, official
from tests.metric.models.test_visid import make_qwen

NEARID = released.NEARID["nearid"].repo
IDSIM = released.IDSIM["dinov2_vitb14"]
VISID = released.VISID["visid_3b"].repo


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub without repositories, and an empty cache."""
    confirm.opened.cache_clear()
    with HubServer({}) as server:
        server.stands_in(monkeypatch, tmp_path)
        yield server


def add_nearid(hub: HubServer, tmp_path: Path) -> None:
    official(tmp_path / "nearid", SMALL)
    hub.repos[NEARID] = tmp_path / "nearid"
    hub.about[NEARID] = {"tags": ["license:cc-by-nc-4.0"], "gated": "auto"}


def rows_of(text: str) -> dict[tuple[str, str], list[str]]:
    """(check, what) -> measured, expected, verdict."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {(row[1], row[2]): row[3:] for row in lines[2:]}


def test_nearid(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts of the Hub, settings, layers, distances and a table on a sample, in one Markdown table."""
    add_nearid(hub, tmp_path)
    for name, data in (("NearID", nearid()), ("NearID-Flux", distractors())):
        data.to_parquet(put(tmp_path / name / "data/train-00000-of-00001.parquet", b""))
        hub.repos[f"Aleksandar/{name}"] = tmp_path / name
    checks = [name for name in confirm.CHECKS if name != "generators"]
    status = confirm.main(["--models", "nearid", "--device", "cpu", "--sample", "3", "--checks", *checks])
    assert status == 1  # the license, the gate and the size differ
    text = capsys.readouterr().out
    assert re.match("idmetric 0.*, torch ", text)

    rows = rows_of(text)
    assert rows["repository", f"license of {NEARID}"] == ["cc-by-nc-4.0", "apache-2.0", "differs"]
    assert rows["repository", f"gated: {NEARID}"] == ["yes", "no", "differs"]
    assert rows["repository", f"commit of {NEARID}"][0] == COMMIT
    assert rows["files", "preprocessor_config.json: resample (2 = bilinear)"] == ["2", "2", "as expected"]
    assert rows["open", "parameters"][1:] == ["428,225,600", "differs"]
    metric, pictures = load("nearid", device="cpu"), demo_images()
    for picture in ("mug_elsewhere", "another_mug", "box"):
        [row] = [row for (_, what), row in rows.items() if f"{picture}.webp" in what]
        assert float(row[0]) == pytest.approx(metric(pictures["mug"], pictures[picture]).item(), abs=1e-6)
    assert any("nearid: Flux SSR" in what and "holds the paper's 0.994" in what for _, what in rows)
    assert not [row for row in rows.values() if row[2] == "failed"]


def test_idsim_and_visme(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, trunk, _ = publish(tmp_path, "dinov2_vitb14")
    backbone = tmp_path / "timm"
    backbone.mkdir()
    trunk.rename(backbone / "model.safetensors")
    hub.repos |= {IDSIM.repo: adapter, f"timm/{IDSIM.backbone}": backbone}
    hub.about[IDSIM.repo] = {"tags": ["license:mit"]}
    assert IDSIM.revision is not None
    hub.commits[IDSIM.repo] = IDSIM.revision
    (tmp_path / "qwen").mkdir()
    make_qwen(tmp_path / "qwen")
    (tmp_path / "qwen/README.md").write_text("# VisME\nThe prompt is `<image> words`.\nPooling: mean | max\n")
    hub.repos[VISID] = tmp_path / "qwen"

    def small(name: str, **options: Any) -> Any:
        """`load` with the shape of the tiny backbone, which the release's own code takes from timm's name."""
        return load(name, **options, **({"backbone_args": VARIANTS[name]} if name in VARIANTS else {}))

    monkeypatch.setattr(confirm, "load", small)
    checks = ["repository", "files", "card", "open", "distances"]
    confirm.main(["--models", "dinov2_vitb14", "visid_3b", "--device", "cpu", "--checks", *checks])
    rows = rows_of(capsys.readouterr().out)
    assert rows["repository", f"commit of {IDSIM.repo}"][2] == "as expected"
    assert rows["repository", f"gated: timm/{IDSIM.backbone}"][0] == "no"
    assert rows["files", "adapter_config.json: r"][0] == "4"
    asked = [path for _, path, _ in hub.requests if "adapter_config.json" in path]
    assert asked
    assert all(f"/resolve/{IDSIM.revision}/" in path for path in asked)
    assert rows["files", "preprocessor_config.json: min_pixels"][2] == "as expected"
    assert rows["card", "card, lines with 'prompt'"][0] == "The prompt is `<image> words`."
    assert len([what for check, what in rows if check == "distances"]) == 9  # three pictures by three distances


def test_what_fails_is_a_row_and_the_others_run(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_nearid(hub, tmp_path)
    file = tmp_path / "nearid/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert confirm.main(["--models", "nearid", "--device", "cpu", "--checks", "files", "open", "generators"]) == 1
    [files, opened, generators] = rows_of(capsys.readouterr().out).values()
    assert files[2] == "as expected"
    assert opened[0].startswith("CheckpointError")
    assert (opened[2], generators[2]) == ("failed", "failed")


def test_pickled_parts_of_a_pipeline_are_named() -> None:
    files = ["model_index.json", "unet/a.bin", "unet/a.safetensors", "vae/a.bin", "safety_checker/a.bin", "x.ckpt"]
    assert confirm.parts_without_safetensors(files) == ["vae"]


def test_the_page_of_open_points_names_checks_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs/reports/releases.md").read_text(encoding="utf-8")
    named = set(re.findall(r"--checks ([\w-]+)", page))
    assert confirm.CHECKS.keys() - {"table"} <= named <= confirm.CHECKS.keys()
