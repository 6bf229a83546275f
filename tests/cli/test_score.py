from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim, load
from idmetric.cli.score import build_parser, main
from idmetric.metric.distance import DISTANCES
from idmetric.scoring.calibration import Calibration, Isotonic
from tests.runner import Runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    """A model, a reference, four candidates, masks."""
    root = tmp_path_factory.mktemp("score")
    metric.save_pretrained(root / "model")
    rng = np.random.default_rng(0)
    (root / "gen" / "deep").mkdir(parents=True)
    (root / "masks").mkdir()
    for name in ("ref", "ref2", "gen/a", "gen/b", "gen/c", "gen/deep/d"):
        picture = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((50, 40))
        picture.save(root / f"{name}.png")
        mask = np.zeros((40, 50), np.uint8)
        mask[10:30, 10:40] = 255
        Image.fromarray(mask).save(root / "masks" / f"{Path(name).name}.png")
    return root


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.chdir(folder)
    return Runner(main, capsys, "--model", "model", "--device", "cpu")


def rows(text: str) -> dict[str, float]:
    return {Path(row["image"]).name: row["distance"] for row in json.loads(text)["rows"]}


@pytest.mark.parametrize("name", DISTANCES)
def test_scores_are_those_of_the_metric_and_sorted(run: Runner, folder: Path, name: str) -> None:
    status, out, err = run.all("ref.png gen --distance", name, "--format", "json", "--batch-size", "2")
    assert (status, err) == (0, "")
    found = json.loads(out)
    model = load(folder / "model", device="cpu")
    values = [row["distance"] for row in found["rows"]]
    assert values == sorted(values)
    assert [row["rank"] for row in found["rows"]] == [1, 2, 3, 4]
    for row in found["rows"]:
        assert row["distance"] == pytest.approx(model(folder / "ref.png", folder / row["image"], name).item(), abs=1e-6)
        assert row["revision"] == model.revision
        assert row["distance_name"] == name
        assert row["resolution"] == "64x64"
        assert row["model"] == "IDSim:model"
    assert found["signature"]["distance"] == name


def test_the_table_has_one_answer_for_each_image_and_its_basis_once(run: Runner, folder: Path) -> None:
    far, near = (1 - min_or_max(rows(run.all("ref.png gen --format json")[1]).values()) for min_or_max in (max, min))
    model = load(folder / "model", device="cpu")
    made = Calibration(Isotonic((far, near), (0.05, 0.95)), model.calibration_id(), "cls", data={"origin": "rendered"})
    made.write(folder / "c.json")

    out = run.all("ref.png gen --calibration c.json")[1]
    assert [line.split()[2] for line in out.splitlines()[1:5]][::3] == ["same", "different"]
    assert out.count(made.basis) == 1
    assert run.all("ref.png gen --calibration c.json --format csv")[2].count(made.basis) == 1  # no place in the file
    assert run.all("ref.png gen")[1].count("idmetric eval calibrate") == 1

    status, out, _ = run.all("ref.png gen --calibration c.json --threshold -1")
    assert status == 0
    assert [line.split()[2] for line in out.splitlines()[1:5]] == ["fail"] * 4
    assert out.count("-1 (option --threshold)") == 1
    assert run("ref.png gen/a.png --calibration c.json --mask-dir masks") == 1
    assert "absent.json" in run.all("ref.png gen/a.png --calibration absent.json")[2]
    assert run("ref.png gen --threshold nan") == 2


def test_the_exit_status_speaks_of_errors_unless_a_distance_is_to_fail(run: Runner) -> None:
    status, out, err = run.all("ref.png gen --fail-over 0 --format json")
    farthest = max(json.loads(out)["rows"], key=lambda row: row["distance"])
    assert status == 3
    assert err.endswith(f"{farthest['image']} at {farthest['distance']:.4f}\n")
    assert run.all("ref.png gen --fail-over 2")[::2] == (0, "")
    assert run.all("ref.png gen --fail-over nan")[0] == 2


def test_copies_are_warned_of(run: Runner, folder: Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((100, 80), Image.Resampling.BICUBIC)
    picture.save(folder / "shop.png")
    picture.resize((95, 76)).save(folder / "back.jpg", quality=90)
    options = ("shop.png", "gen/a.png", "back.jpg")
    status, out, err = run.all(*options)
    assert (status, len(err.splitlines())) == (0, 1)
    assert "back.jpg repeats the pixels of shop.png" in err
    assert out.splitlines()[0].split()[-1] == "copy"
    assert run.all(*options, "--quiet")[2] == ""
    assert "are one picture" in run.all("--ref shop.png --ref back.jpg gen")[2]


def test_the_help_has_twenty_options_at_most() -> None:
    actions = [action for action in build_parser()._actions if action.option_strings and action.dest != "help"]
    assert len(actions) <= 20


def test_pairs_are_relative_to_their_file(run: Runner, folder: Path, tmp_path: Path) -> None:
    (folder / "pairs.csv").write_text(
        f"ref,gen\nref.png,gen/a.png\nref2.png,gen/a.png\n{folder / 'ref.png'},gen/b.png\n"
    )
    os.chdir(tmp_path)
    status = main(["--model", str(folder / "model"), "--device", "cpu", "--pairs", str(folder / "pairs.csv"),
                   "--batch-size", "2", "--format", "json", "--output", str(tmp_path / "out.json")])  # fmt: skip
    assert status == 0
    found = {(Path(r["reference"]).name, Path(r["image"]).name): r["distance"]
             for r in json.loads((tmp_path / "out.json").read_text())["rows"]}  # fmt: skip
    model = load(folder / "model", device="cpu")
    assert found.keys() == {("ref.png", "a.png"), ("ref2.png", "a.png"), ("ref.png", "b.png")}
    for (a, b), value in found.items():
        assert value == pytest.approx(model(folder / a, folder / "gen" / b).item(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "start"), [("r.CSV", "rank,distance,image"), ("r.json", "{"), ("r.txt", "rank  dist")]
)
def test_the_output_is_written_by_its_ending(run: Runner, folder: Path, tmp_path: Path, name: str, start: str) -> None:
    images = [folder / "ref.png", folder / "gen" / "a.png"]
    assert run(*images, "--output", tmp_path / name, "--quiet") == 0
    assert (tmp_path / name).read_text().lstrip().startswith(start)
    assert run(*images, "--output", tmp_path / name, "--format", "jsonl", "--quiet") == 0
    assert json.loads((tmp_path / name).read_text())["rank"] == 1


def test_unreadable_images(run: Runner, folder: Path) -> None:
    for name in ("bad.png", "worse.png"):
        (folder / name).write_bytes((folder / "ref.png").read_bytes()[:60])
    status, out, err = run.all("ref.png bad.png missing.png gone.png")  # before any image is read
    assert (status, out) == (1, "")
    assert "missing.png: the file does not exist" in err
    assert "gone.png: the file does not exist" in err
    assert "2 images: " in err
    assert "bad.png" not in err
    status, out, err = run.all("ref.png gen/a.png bad.png worse.png")
    assert (status, out) == (1, "")
    assert "bad.png: " in err
    assert "--on-error skip scores the others" in err
    assert len(err.splitlines()) == 1
    status, out, err = run.all("ref.png gen/a.png bad.png missing.png --on-error skip --format json")
    assert status == 4
    assert rows(out).keys() == {"a.png"}
    assert json.loads(out)["skipped"].keys() == {"bad.png", "missing.png"}
    assert "skipped bad.png" in err
    assert "the file does not exist" in err
    assert run("ref.png bad.png gen/a.png --on-error skip --fail-over -1") == 3
    assert run.all("ref.png bad.png --on-error skip")[:2] == (1, "")


def test_unreadable_masks(run: Runner, folder: Path) -> None:
    (folder / "poor").mkdir()
    (folder / "poor/ref.png").write_bytes((folder / "masks/ref.png").read_bytes())
    (folder / "poor/a.png").write_bytes(b"junk")
    Image.new("L", (50, 40)).save(folder / "poor/b.png")  # selects nothing
    run.says("ref.png", "ref.png gen/a.png --mask-dir gen")
    options = ("ref.png", "gen/a.png", "gen/b.png", "gen/c.png", "--mask-dir", "poor")
    run.says("poor/a.png", *options)
    status, out, err = run.all(*options, "--on-error", "skip", "--format", "json")
    assert (status, out) == (1, "")
    for text in (
        "poor/a.png: it is not an image",
        "poor/b.png: it is empty",
        "poor/c.png: the mask of gen/c.png does not exist",
    ):
        assert text in err
    # the same image with a good mask is scored all the same
    (folder / "pairs.csv").write_text("a,b,mask_b\nref.png,gen/a.png,poor/a.png\nref.png,gen/a.png,masks/ref.png\n")
    status, out, _ = run.all("--pairs pairs.csv --on-error skip --format json --distance patch")
    assert status == 4
    model = load(folder / "model", device="cpu")
    expected = model(folder / "ref.png", folder / "gen/a.png", "patch", mask_b=folder / "masks/ref.png")
    assert [row["distance"] for row in json.loads(out)["rows"]] == pytest.approx([expected.item()], abs=1e-6)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "reference"),
        (["ref.png"], "candidate"),
        (["ref.png", "gen", "--distance", "lpips"], "invalid choice"),
        (["ref.png", "gen", "--batch-size", "0"], "batch-size"),
        (["absent.png", "gen"], "absent.png"),
        (["--pairs", "x.csv", "ref.png"], "--pairs"),
        (["--pairs", "absent.csv"], "absent.csv"),
        (["ref.png", "masks/../model"], "holds no images"),
    ],
)
def test_wrong_usage(run: Runner, argv: list[str], message: str) -> None:
    run.says(message, *argv, status=2)


def test_the_default_model_is_never_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("name resolution failed")

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("another model was read")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr("idmetric.metric.checkpoints.format.read", forbidden)
    assert main([str(folder / "ref.png"), str(folder / "gen")]) == 1
    done = capsys.readouterr()
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    for part in ("id-sim_dinov3_vitl16", "name resolution failed", "local folder", "--model tiny"):
        assert part in done.err
