"""`idmetric confirm` against a local Hub, with tiny checkpoints in the releases' formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from idmetric import demo_images, load
from idmetric.cli.main import main
from idmetric.evaluate import confirm
from idmetric.evaluate.confirm import CHECKS, ConfirmRow, Observation, Setup, planned, report, run_checks
from idmetric.evaluate.protocols.common.result import Value
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
    with HubServer({}) as server:
        server.stands_in(monkeypatch, tmp_path)
        yield server


def add_nearid(hub: HubServer, tmp_path: Path) -> None:
    official(tmp_path / "nearid", SMALL)
    hub.repos[NEARID] = tmp_path / "nearid"
    hub.about[NEARID] = {"tags": ["license:cc-by-nc-4.0"], "gated": "auto"}


def add_idsim(hub: HubServer, tmp_path: Path, commit: str | None = IDSIM.revision) -> None:
    adapter, trunk, _ = publish(tmp_path, "dinov2_vitb14")
    backbone = tmp_path / "timm"
    backbone.mkdir()
    trunk.rename(backbone / "model.safetensors")
    hub.repos |= {IDSIM.repo: adapter, f"timm/{IDSIM.backbone}": backbone}
    hub.about[IDSIM.repo] = {"tags": ["license:mit"]}
    if commit is not None:
        hub.commits[IDSIM.repo] = commit


def small(name: str, **options: Any) -> Any:
    """`load` with the shape of the tiny backbone, which the release's own code takes from timm's name."""
    return load(name, backbone_args=VARIANTS[name], **options)


def rows_of(rows: list[ConfirmRow], check: str) -> dict[str, Observation]:
    return {row.observation.what: row.observation for row in rows if row.check == check}


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def test_nearid_from_the_command(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts of the Hub, settings, layers, distances, speed, memory and a table on a sample, in one Markdown table."""
    add_nearid(hub, tmp_path)
    for name, data in (("NearID", nearid()), ("NearID-Flux", distractors())):
        data.to_parquet(put(tmp_path / name / "data/train-00000-of-00001.parquet", b""))
        hub.repos[f"Aleksandar/{name}"] = tmp_path / name
    output = tmp_path / "confirm.md"
    status = main(["confirm", "--models", "nearid", "--device", "cpu", "--sample", "3", "--output", str(output),
                   "--checks", *(name for name in CHECKS if name not in ("generators", "by-hand"))])  # fmt: skip
    assert status == 1  # the license, the gate and the size differ
    text = output.read_text(encoding="utf-8")
    assert "idmetric 0." in text.splitlines()[0]
    assert "; device cpu (" in text.splitlines()[0]
    assert ", torch " in text.splitlines()[0]

    rows = {(row[1], row[2]): row for row in cells(text)}
    assert rows["repository", f"license of {NEARID}"][3:] == ["cc-by-nc-4.0", "apache-2.0", "differs"]
    assert rows["repository", f"gated: {NEARID}"][3:] == ["yes", "no", "differs"]
    assert rows["repository", f"commit of {NEARID}"][3:] == [COMMIT, "", "no reference yet"]
    assert rows["files", "preprocessor_config.json: resample (2 = bilinear)"][3:] == ["2", "2", "as expected"]
    assert rows["open", "parameters"][4:] == ["428,225,600", "differs"]
    assert rows["open", "revision"][3] == COMMIT

    metric, pictures = load("nearid", device="cpu"), demo_images()
    for picture in ("mug_elsewhere", "another_mug", "box"):
        [row] = [row for (check, what), row in rows.items() if f"{picture}.webp" in what]
        assert float(row[3]) == pytest.approx(metric(pictures["mug"], pictures[picture]).item(), abs=1e-6)
        assert row[5] == "no reference yet"
    assert float(rows["speed", "images/s, read and embedded, 8 in a pass"][3]) > 0
    assert rows["speed", "GB of weights and a pass of 8 (25 % allowed)"][4:] == ["2.02", "differs"]
    assert rows["table", "nearid: Flux SSR (n 3)"][4] == "0.994"
    assert not [row for row in rows.values() if row[5] == "failed"]
    assert "nearid: open the model" in capsys.readouterr().err


def test_idsim_and_visme_from_the_hub(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_idsim(hub, tmp_path)
    (tmp_path / "qwen").mkdir()
    make_qwen(tmp_path / "qwen")
    (tmp_path / "qwen/README.md").write_text("# VisME\nThe prompt is `<image> words`.\nPooling: mean | max\n")
    hub.repos[VISID] = tmp_path / "qwen"

    checks = ["repository", "files", "card", "open", "distances"]
    with monkeypatch.context() as patched:
        patched.setattr("idmetric.metric.models.load.load", small)
        rows = run_checks(planned(["dinov2_vitb14"], checks), Setup("cpu"))
    assert {row.observation.verdict for row in rows} == {"as expected", "no reference yet", "differs"}
    assert rows_of(rows, "repository")[f"commit of {IDSIM.repo}"].verdict == "as expected"
    assert rows_of(rows, "repository")[f"license of {IDSIM.repo}"].verdict == "as expected"
    assert rows_of(rows, "repository")[f"gated: timm/{IDSIM.backbone}"].measured == "no"
    assert rows_of(rows, "files")["adapter_config.json: r"].measured == "4"
    assert len(rows_of(rows, "distances")) == 9  # three pictures by three distances

    rows = run_checks(planned(["visid_3b"], checks), Setup("cpu"))
    assert rows_of(rows, "repository")["adapter_config.json in the files"].verdict == "as expected"
    assert rows_of(rows, "files")["preprocessor_config.json: min_pixels"].verdict == "as expected"
    card = rows_of(rows, "card")
    assert card["card, lines with 'prompt'"].measured == "The prompt is `<image> words`."
    assert "Pooling: mean \\| max" in report(rows, "cpu")
    assert len(rows_of(rows, "distances")) == 3


def test_wrong_and_gated_files_are_rows_and_the_others_run(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another revision, a truncated file and a gated repository each fail with their reason."""
    add_nearid(hub, tmp_path)
    add_idsim(hub, tmp_path, commit=None)  # the pinned commit is not there
    pairs = planned(["dinov2_vitb14", "nearid"], ["files", "open", "distances"])

    rows = run_checks(pairs, Setup("cpu"))
    by_model = {name: [row.observation for row in rows if row.model == name] for name in ("dinov2_vitb14", "nearid")}
    assert [finding.verdict for finding in by_model["dinov2_vitb14"]] == ["failed"] * 3
    assert all("it has no revision 'bcd3f388" in finding.measured for finding in by_model["dinov2_vitb14"])
    assert "failed" not in [finding.verdict for finding in by_model["nearid"]]

    file = tmp_path / "nearid/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    hub.commits[NEARID] = "f" * 40  # so that the cache does not answer
    rows = run_checks(planned(["nearid"], ["files", "open"]), Setup("cpu"))
    assert [row.observation.verdict for row in rows] == ["as expected", "failed"]
    assert "CheckpointError" in rows[1].observation.measured
    assert "incomplete metadata, file not fully covered" in rows[1].observation.measured

    hub.gated[NEARID] = "hf_secret"
    hub.stands_in(monkeypatch, tmp_path / "new")
    rows = run_checks(planned(["nearid"], ["repository", "open"]), Setup("cpu"))
    assert [row.observation.verdict for row in rows] == ["failed", "failed"]
    assert "accept its license" in rows[1].observation.measured
    assert report(rows, "cpu").endswith("2 failed\n")


def test_a_missing_package_is_a_row(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_nearid(hub, tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    [row] = run_checks([("nearid", "table")], Setup("cpu"))
    assert row.observation.verdict == "failed"
    assert "pyarrow" in row.observation.measured


@pytest.mark.parametrize("how", ["dry run", "offline", "unreachable"])
def test_without_a_network_the_plan_is_printed(
    how: str, hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    words = ["confirm", "--models", "nearid", "visid_3b"]
    if how == "dry run":
        words.append("--dry-run")
    elif how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert main(words) == 0
    shown = capsys.readouterr()
    assert ("the Hub does not answer" in shown.err) == (how != "dry run")
    rows = cells(shown.out)
    of_models = [name for name, check in CHECKS.items() if check.models != (confirm.ANY,)]
    assert [row[1] for row in rows if row[0] == "nearid"] == [name for name in of_models if name != "card"]
    assert [row[1] for row in rows if row[0] == "visid_3b"] == of_models
    assert [row[1] for row in rows if row[0] == "-"] == ["generators", "by-hand"]
    assert ["nearid", "open", "open the model, count its parameters", "0.9 GB"] in rows
    assert hub.requests == []


def test_engines_that_generate_data_are_asked_of_the_hub(hub: HubServer, tmp_path: Path) -> None:
    """A repository of several that exists is compared, whatever the others answer."""
    repo = tmp_path / "powerpaint"
    (repo / "unet").mkdir(parents=True)
    (repo / "unet/unet.safetensors").write_bytes(b"")
    hub.repos["JunhaoZhuang/PowerPaint-v1"] = repo
    hub.about["JunhaoZhuang/PowerPaint-v1"] = {"tags": ["license:mit"]}
    findings = {finding.what: finding for finding in CHECKS["generators"].run(confirm.ANY, Setup())}
    assert findings["powerpaint: unet/unet.safetensors in JunhaoZhuang/PowerPaint-v1"].verdict == "as expected"
    missing = findings["powerpaint: text_encoder/text_encoder.safetensors in JunhaoZhuang/PowerPaint-v1"]
    assert (missing.measured, missing.verdict) == ("no", "differs")
    assert findings["iclight: lllyasviel/ic-light"].verdict == "failed"


def test_pickled_parts_of_a_pipeline_are_named() -> None:
    files = ["model_index.json", "unet/a.bin", "unet/a.safetensors", "vae/a.bin", "safety_checker/a.bin", "x.ckpt"]
    assert confirm.parts_without_safetensors(files) == ["vae"]


def test_a_number_of_a_sample_is_as_expected_if_the_papers_lies_in_its_interval() -> None:
    finding = partial(confirm._of_interval, "SSR")
    assert finding(Value(0.98, 0.95, 1.0, 100, paper=0.994)).verdict == "as expected"
    assert finding(Value(0.90, 0.85, 0.95, 100, paper=0.994)).verdict == "differs"
    assert finding(Value(0.90, 0.85, 0.95, 100)).verdict == "no reference yet"
    assert finding(Value(0.90, None, None, 1, paper=0.994)).verdict == "no reference yet"


def test_a_reason_does_not_show_the_home_folder() -> None:
    """The table is pasted into an issue."""
    path = Path.home() / ".cache/hub/model.safetensors"
    assert confirm._text(OSError(f"cannot read {path}")) == "OSError: cannot read ~/.cache/hub/model.safetensors"


def test_cells_stay_in_their_table() -> None:
    text = report([ConfirmRow("nearid", "open", Observation("a|b\nc\x1b[2J", "x" * 400, "", "failed"))], "cpu")
    [row] = [line for line in text.splitlines() if line.startswith("| nearid")]
    assert "a\\|b c\\x1b[2J" in row
    assert "x" * 300 + " ..." in row


def test_each_open_point_names_a_check_or_is_listed_by_hand() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/reports/confirm.md").read_text(encoding="utf-8")
    points = {row[0]: row[2] for row in cells(page)}
    assert len(points) > 30
    for point, command in points.items():
        names = re.findall(r"--checks ([\w-]+)", command)
        assert names or point in confirm.BY_HAND, point
        assert set(names) <= set(CHECKS)
    assert set(confirm.BY_HAND) <= set(points)
    assert all(f"--checks {name}" in page for name in CHECKS)


def test_the_issue_form_takes_the_table() -> None:
    form = (Path(__file__).parents[2] / ".github/ISSUE_TEMPLATE/confirm.yml").read_text(encoding="utf-8")
    assert "idmetric confirm" in form
    assert "render" not in form  # which would show Markdown as text


def test_help_loads_no_torch() -> None:
    from tests.test_structure import HEAVY, loaded_after

    code = "from idmetric.cli.main import main\ntry: main(['confirm', '--help'])\nexcept SystemExit: pass"
    assert loaded_after(code).isdisjoint(HEAVY)


def test_settings_of_files_are_read_at_the_pinned_commit(hub: HubServer, tmp_path: Path) -> None:
    add_idsim(hub, tmp_path)
    run_checks(planned(["dinov2_vitb14"], ["files"]), Setup("cpu"))
    asked = [path for _, path, _ in hub.requests if "adapter_config.json" in path]
    assert asked
    assert all(f"/resolve/{IDSIM.revision}/" in path for path in asked)
    assert json.loads((tmp_path / "id-sim_dinov2_vitb14_cls_patch/adapter_config.json").read_text())["r"] == 4
