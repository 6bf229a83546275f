from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim, load
from idmetric.cli.score import main
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


def test_several_references(run: Runner, folder: Path) -> None:
    one, two = (rows(run.all(r, "gen", "--format", "json")[1]) for r in ("ref.png", "ref2.png"))
    both = ("--ref", "ref.png", "--ref", "ref2.png", "gen", "--format", "json")
    best, mean = rows(run.all(*both)[1]), rows(run.all(*both, "--aggregate", "mean")[1])
    for name in one:
        assert best[name] == pytest.approx(min(one[name], two[name]), abs=1e-6)
        assert mean[name] == pytest.approx((one[name] + two[name]) / 2, abs=1e-6)
    nearest = {Path(r["image"]).name: r["reference"] for r in json.loads(run.all(*both)[1])["rows"]}
    assert all(nearest[n] == ("ref.png" if one[n] < two[n] else "ref2.png") for n in one)


def test_pairs_are_relative_to_their_file(run: Runner, folder: Path, tmp_path: Path) -> None:
    (folder / "pairs.csv").write_text(f"ref.png,gen/a.png\nref2.png,gen/a.png\n{folder / 'ref.png'},gen/b.png\n")
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


def test_masks_select_the_subject(run: Runner, folder: Path) -> None:
    plain = rows(run.all("ref.png gen/a.png --format json")[1])
    masked = rows(run.all("ref.png gen/a.png --mask-dir masks --format json --distance patch")[1])
    m = {"mask_a": folder / "masks/ref.png", "mask_b": folder / "masks/a.png"}
    model = load(folder / "model", device="cpu")
    expected = model(folder / "ref.png", folder / "gen/a.png", "patch", **m).item()
    assert masked["a.png"] == pytest.approx(expected, abs=1e-6)
    assert masked != plain
    run.says("ref.png", "ref.png gen/a.png --mask-dir gen")


def test_several_references_show_how_far_real_photos_are(run: Runner, folder: Path) -> None:
    refs = ("--ref", "ref.png", "--ref", "ref2.png", "--ref", "gen/c.png")
    model = load(folder / "model", device="cpu")
    names = ["ref.png", "ref2.png", "gen/c.png"]
    apart = model.pairwise([folder / n for n in names])
    for aggregate, take in (("best", min), ("mean", lambda x: sum(x) / len(x))):
        options = (*refs, "gen/a.png", "gen/b.png", "--aggregate", aggregate)
        found = json.loads(run.all(*options, "--format", "json")[1])
        expected = [take([apart[i, j].item() for j in range(3) if j != i]) for i in range(3)]
        assert list(found["baseline"]["distances"]) == names
        assert list(found["baseline"]["distances"].values()) == pytest.approx(expected, abs=1e-6)
        assert found["baseline"]["mean"] == pytest.approx(np.mean(expected), abs=1e-6)
        assert found["baseline"]["max"] == pytest.approx(max(expected), abs=1e-6)
        text = run.all(*options)[1]
        assert f"mean {found['baseline']['mean']:.4f}, max {found['baseline']['max']:.4f}" in text


def test_copies_of_a_reference_are_warned_of(run: Runner, folder: Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((100, 80), Image.Resampling.BICUBIC)
    picture.save(folder / "shop.png")
    back = picture.crop((0, 0, 95, 76)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    back.save(folder / "handed_back.jpg", quality=90)
    options = ("shop.png", "gen/a.png", "handed_back.jpg", "shop.png", "--format", "json", "--include-refs")
    status, out, err = run.all(*options)
    assert status == 0
    assert "handed_back.jpg repeats the pixels of shop.png, mirrored" in err
    assert len(err.splitlines()) == 1  # not of the reference itself, nor of another picture
    found = {row["image"]: row for row in json.loads(out)["rows"]}
    assert {name: row["copy"] for name, row in found.items()} == {
        "gen/a.png": False, "handed_back.jpg": True, "shop.png": True,
    }  # fmt: skip
    assert found["shop.png"]["copy_agreement"] == pytest.approx(1)
    assert run.all(*options, "--quiet")[2] == ""
    status, out, err = run.all(*options, "--no-copies")
    assert err == ""
    assert "copy" not in json.loads(out)["rows"][0]
    assert run.all("shop.png gen/a.png handed_back.jpg")[1].splitlines()[0].split()[-1] == "copy"
    (folder / "pairs.csv").write_text("shop.png,gen/a.png\nshop.png,handed_back.jpg\n")
    assert "handed_back.jpg repeats" in run.all("--pairs pairs.csv")[2]
    assert "are one picture" in run.all("--ref shop.png --ref handed_back.jpg gen")[2]
    (folder / "handed_back.jpg").unlink()


def test_a_calibration_adds_probabilities(run: Runner, folder: Path) -> None:
    model = load(folder / "model", device="cpu")
    made = Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), model.calibration_id(), "cls", name="model")
    made.write(folder / "c.json")
    found = json.loads(run.all("ref.png gen --calibration c.json --format json")[1])
    for row in found["rows"]:
        assert row["probability"] == pytest.approx(made.probability(row["distance"]).item())
    run.prints("P(same)", "ref.png gen --calibration c.json")
    assert {row["probability_basis"] for row in found["rows"]} == {made.basis}
    several = ("--ref", "ref.png", "--ref", "ref2.png", "gen/a.png", "--calibration", "c.json", "--format", "json")
    values = [made.probability(model(folder / r, folder / "gen/a.png").item()) for r in ("ref.png", "ref2.png")]
    assert json.loads(run.all(*several, "--aggregate", "mean")[1])["rows"][0]["probability"] == pytest.approx(
        np.mean(values), abs=1e-5
    )
    assert json.loads(run.all(*several)[1])["rows"][0]["probability"] == pytest.approx(max(values), abs=1e-5)
    made.write(folder / "model" / "calibration.json")
    try:
        stored = json.loads(run.all("ref.png gen --calibration stored --format json")[1])
        assert [r["probability"] for r in stored["rows"]] == [r["probability"] for r in found["rows"]]
    finally:
        (folder / "model" / "calibration.json").unlink()


def listed_calibration(model: IDSim, near: float, far: float) -> Calibration:
    thresholds = [{"false_accept_rate": rate, "distance": distance} for rate, distance in ((0.01, near), (0.1, far))]
    return Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), model.calibration_id(), "cls", name="model", thresholds=tuple(thresholds)
    )


def test_a_calibration_fails_images_beyond_its_threshold_and_the_source_is_said(run: Runner, folder: Path) -> None:
    distances = sorted(rows(run.all("ref.png gen --format json")[1]).values())
    near = (distances[0] + distances[1]) / 2
    listed_calibration(load(folder / "model", device="cpu"), near, 2.0).write(folder / "c.json")
    asked = "ref.png gen --calibration c.json"

    # 5 % by default, of which the file lists 1 % as the nearest below
    status, out, err = run.all(f"{asked} --format json")
    summary = json.loads(out)["summary"]
    source = "c.json, 1 % of pairs"
    assert status == 3
    assert (summary["threshold"], summary["threshold_source"]) == (pytest.approx(near), source)
    assert (summary["passing"], summary["share_passing"]) == (1, 0.25)
    assert f"3 of 4 exceed the threshold {near:.6g} ({source})" in err
    assert f"share passing 0.2500 (1 of 4), threshold {near:.6g} ({source})" in run.all(asked)[1]

    given = json.loads(run.all(f"{asked} --threshold 2 --format json")[1])["summary"]
    assert (given["threshold"], given["threshold_source"]) == (2, "option --threshold")
    assert "threshold" not in json.loads(run.all("ref.png gen --format json")[1])["summary"]


def test_a_calibration_of_higher_rates_alone_adds_probabilities_and_fails_nothing(run: Runner, folder: Path) -> None:
    made = listed_calibration(load(folder / "model", device="cpu"), 0.0, 0.0)
    replace(made, thresholds=made.thresholds[1:]).write(folder / "c.json")
    status, out, _ = run.all("ref.png gen --calibration c.json --format json")
    assert status == 0
    assert "threshold" not in json.loads(out)["summary"]
    assert "probability" in json.loads(out)["rows"][0]


def test_where_probability_and_real_photos_disagree_one_sentence_says_which_to_believe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = Runner(main, capsys, "--model", "tiny", "--device", "cpu")
    photos = [word for name in ("a", "b", "c") for word in ("--ref", f"examples/images/mug_{name}.png")]
    asked = (*photos, "examples/images/mug_other.png", "examples/images/box_a.png", "--calibration")

    # P(same) .92 at .2784, beyond the farthest real photo at .2153
    printed = json.loads(run.all(*asked, "stored", "--format", "json")[1])
    assert printed["baseline"]["max"] == pytest.approx(0.2153, abs=5e-5)
    assert printed["rows"][0]["distance"] == pytest.approx(0.2784, abs=5e-5)
    assert printed["rows"][0]["probability"] == pytest.approx(0.92, abs=5e-3)
    farther = "1 image is farther than every real photo although P(same) is above 0.5: believe the real photos"
    assert printed["probability_note"].startswith(farther)
    assert printed["probability_note"].endswith("1 in 4 new photos of the subject would be farther, too")
    assert run.all(*asked, "stored")[1].count(farther) == 1

    # of one photo nothing real is known, and without probabilities there is nothing to believe
    alone = (*photos[:2], "examples/images/mug_other.png", "--calibration", "stored", "--format", "json")
    assert "probability_note" not in json.loads(run.all(*alone)[1])
    assert "probability_note" not in json.loads(run.all(*asked[:-1], "--format", "json")[1])

    # the reverse: by this calibration no pair is the same
    Calibration(Isotonic((-3.0, 1.0), (0.01, 0.02)), load("tiny").calibration_id(), "cls").write(tmp_path / "c.json")
    never = (*asked, str(tmp_path / "c.json"))
    assert "probability_note" not in json.loads(run.all(*never, "--format", "json")[1])
    nearer = "1 image is as near as real photos although P(same) is below 0.5"
    assert nearer in run.all(*never, photos[1], "--include-refs")[1]


def test_a_calibration_for_something_else_is_refused(run: Runner, folder: Path) -> None:
    model = load(folder / "model", device="cpu")
    Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), model.calibration_id(), "cls", name="model").write(
        folder / "c.json"
    )
    run.says("'all', not 'black'", "ref.png gen/a.png --calibration c.json --mask-dir masks")
    assert run("ref.png gen/a.png --calibration stored") == 1
    assert "absent.json" in run.all("ref.png gen/a.png --calibration absent.json")[2]


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
    assert {x["image"] for x in json.loads(out)["skipped"]} == {"bad.png", "missing.png"}
    assert "skipped bad.png" in err
    assert "the file does not exist" in err
    assert run("ref.png bad.png gen/a.png --on-error skip --threshold -1") == 3
    assert run.all("ref.png bad.png --on-error skip")[:2] == (1, "")


def test_a_threshold_that_is_exceeded_says_by_which_images(run: Runner) -> None:
    status, out, err = run.all("ref.png gen --threshold -1 --format json")
    scored = json.loads(out)["rows"]
    assert status == 3
    farthest = max(scored, key=lambda row: row["distance"])
    assert "exit status 3" in err
    assert "threshold -1 (option --threshold)" in err
    assert err.endswith(f"{farthest['image']} at {farthest['distance']:.4f}\n")
    assert run.all("ref.png gen --threshold 2")[::2] == (0, "")
    assert run("ref.png gen --threshold nan") == 2


def test_unreadable_masks(run: Runner, folder: Path) -> None:
    (folder / "poor").mkdir()
    (folder / "poor/ref.png").write_bytes((folder / "masks/ref.png").read_bytes())
    (folder / "poor/a.png").write_bytes(b"junk")
    Image.new("L", (50, 40)).save(folder / "poor/b.png")  # selects nothing
    options = ("ref.png", "gen/a.png", "gen/b.png", "gen/c.png", "--mask-dir", "poor")
    run.says("poor/a.png", *options)
    status, out, err = run.all(*options, "ref.png", "--include-refs", "--on-error", "skip", "--format", "json")
    assert status == 4
    assert rows(out).keys() == {"ref.png"}
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


def test_models_are_listed_with_license_size_and_cache_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    from idmetric.metric.checkpoints import released

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def state_of() -> dict[str, str]:
        assert main(["--list-models"]) == 0
        models, scores, frozen, _, machine = capsys.readouterr().out.split("\n\n")
        assert machine.startswith("this machine: ")
        assert "dreambench_plus/metrics/dino_score.py" in scores
        assert "frozen:dinov3-l16" in frozen
        lines = models.splitlines()
        assert lines[0].split()[:3] == ["model", "download", "parameters"]
        return {line.split()[0]: line for line in lines[1:]}

    lines = state_of()
    assert list(lines) == ["tiny", "efficientnet-lite0", *released.MODELS]
    assert "dinov3-license" in lines["dinov3_vitl16"]
    assert "448x448" in lines["dinov3_vitl16"]
    assert "0.9 GB" in lines["nearid"]
    assert all(lines[name].endswith("not fetched") for name in released.MODELS)

    release = released.IDSIM["dinov2_vitb14"]
    assert release.revision is not None
    wanted = {"Aleksandar/nearid-siglip2": ("main", "config.json", "preprocessor_config.json", "model.safetensors"),
              release.repo: (release.revision, "adapter_config.json", "adapter_model.safetensors", "mlp_cls.pth",
                             "mlp_patch.pth"),
              "timm/vit_base_patch14_dinov2.lvd142m": ("main", "model.safetensors")}  # fmt: skip
    for repo, (revision, *files) in wanted.items():
        root, commit = tmp_path / f"models--{repo.replace('/', '--')}", "1" * 40 if revision == "main" else revision
        (root / "snapshots" / commit).mkdir(parents=True)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(commit)
        for file in files:
            (root / "snapshots" / commit / file).write_text("{}")
    lines = state_of()
    assert " cached" in lines["nearid"]
    assert " cached" in lines["dinov2_vitb14"]
    assert "not fetched" in lines["visid_3b"]
