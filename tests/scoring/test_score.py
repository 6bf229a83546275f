"""`idmetric.score` and `score_pairs` give Python what the command prints."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idmetric
from idmetric import IDSim, ImageReadError, score, score_pairs
from idmetric.cli.score import main
from idmetric.metric.errors import RequestError
from idmetric.scoring.calibration import Calibration, CalibrationError, Isotonic, calibration_of
from idmetric.scoring.copy_warnings import GrayWarning
from idmetric.scoring.limits import Limit
from idmetric.scoring.scores import Scores

Print = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    """A model, two references, three candidates, their masks, pairs, and a file that is not an image."""
    root = tmp_path_factory.mktemp("score")
    metric.save_pretrained(root / "model")
    rng = np.random.default_rng(7)
    (root / "gen").mkdir()
    (root / "masks").mkdir()
    for k, name in enumerate(("a", "b", "gen/c", "gen/d", "gen/e")):
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((50, 40)).save(root / f"{name}.png")
        mask = np.zeros((40, 50), np.uint8)
        mask[5 + k : 30, 10:40] = 255
        Image.fromarray(mask).save(root / "masks" / f"{Path(name).name}.png")
    (root / "pairs.csv").write_text(
        "ref,gen,mask_ref,mask_gen,prompt\na.png,gen/d.png,,,red\na.png,gen/c.png,masks/a.png,masks/c.png,blue\n"
    )
    (root / "bad.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def opened(folder: Path) -> Any:
    return idmetric.load(folder / "model", device="cpu")


@pytest.fixture
def model(folder: Path, opened: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)
    return opened


@pytest.fixture
def printed(model: Any, capsys: pytest.CaptureFixture[str]) -> Print:
    """The command's stdout, in the folder."""

    def call(*argv: str) -> str:
        capsys.readouterr()
        main(["--model", "model", "--device", "cpu", "--quiet", *argv])
        return capsys.readouterr().out

    return call


CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), {}),
    (("--distance", "joint", "--batch-size", "2"), {"distance": "joint", "batch_size": 2}),
    (("--aggregate", "mean"), {"aggregate": "mean"}),
    (("--mask-dir", "masks", "--outside", "crop"), {"mask_dir": "masks", "outside": "crop"}),
    (("--threshold", "0.1", "--no-copies"), {"threshold": 0.1, "copies": False}),
    (("bad.png", "--on-error", "skip"), {"images": ["gen", "a.png", "bad.png"], "on_error": "skip"}),
    (("--include-refs", "--workers", "1"), {"include_references": True, "workers": 1}),
]


@pytest.mark.parametrize(("options", "arguments"), CASES)
def test_scores_are_those_that_the_command_prints(
    model: Any, printed: Print, options: tuple[str, ...], arguments: dict[str, Any]
) -> None:
    words = ("--ref", "a.png", "--ref", "b.png", "gen", "a.png", *options)
    found = score(model, ["a.png", Path("b.png")], **{"images": ["gen", "a.png"], **arguments})
    if found.limit is not None:
        found = replace(found, limit=replace(found.limit, source="option --threshold"))  # in Python "given"
    assert found.to_dict() == json.loads(printed(*words, "--format", "json"))
    assert list(found) == found.to_dict()["rows"]
    for form, text in (("table", found.to_table()), ("csv", found.to_csv()), ("jsonl", found.to_jsonl())):
        assert text == printed(*words, "--format", form)


def test_pairs_are_those_that_the_command_prints(model: Any, printed: Print) -> None:
    found = score_pairs(model, "pairs.csv", distance="patch")
    assert found.to_dict() == json.loads(printed("--pairs", "pairs.csv", "--distance", "patch", "--format", "json"))
    assert [row["prompt"] for row in found] == ["red", "blue"]
    listed = score_pairs(
        model, [("a.png", "gen/d.png"), ("a.png", "gen/c.png", "masks/a.png", Path("masks/c.png"))], distance="patch"
    )
    assert [row["distance"] for row in listed] == [row["distance"] for row in found]
    expected = model("a.png", "gen/c.png", "patch", mask_a="masks/a.png", mask_b="masks/c.png")
    assert listed[1]["distance"] == pytest.approx(expected.item(), abs=1e-6)


def test_pairs_of_a_data_frame_dicts_and_arrays_are_those_of_the_file(model: Any) -> None:
    pandas = pytest.importorskip("pandas")
    expected = score_pairs(model, "pairs.csv").to_records()
    frame = pandas.read_csv("pairs.csv")  # NaN where a mask is missing
    assert score_pairs(model, frame).to_records() == expected
    assert score_pairs(model, frame.rename(columns={"ref": "image_a", "gen": "image_b"})[::-1]).to_records() != expected
    assert score_pairs(model, frame.to_dict("records")).to_records() == expected
    assert (
        score_pairs(model, frame.astype(object).where(frame.notna(), None).to_dict("records")).to_records() == expected
    )

    columns = ["ref", "gen", "mask_ref", "mask_gen"]
    alone = [{name: value for name, value in row.items() if name != "prompt"} for row in expected]
    for array in (frame[columns].to_numpy(), frame[columns].fillna("").to_numpy(dtype=str)):
        assert score_pairs(model, array).to_records() == alone


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("ref", "pair 1: text is no pair; a pair is .a, b. or .* with columns a and b, got 'ref'"),
        ((1, 2), r"got \(1, 2\)"),
        ((Image.new("L", (4, 4)), 3), "a pair is .* of images"),
        ({"x": "a.png", "y": "b.png"}, "'x', 'y' name neither two images nor the columns of both: call one column a, "),
        ({"a": "a.png", "b": None}, "pair 1: two images are needed"),
        ({"ref": "a.png"}, "pair 1: .* a pair is"),
        ({"a": "a.png", "ref": "a.png", "b": "b.png"}, "pair 1: the columns 'a' and 'ref' mean the same"),
    ],
)
def test_what_is_no_pair_says_what_to_pass_in_one_line(model: Any, pair: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        score_pairs(model, [pair])
    assert "\n" not in str(caught.value)


def test_data_frames_have_the_rows(model: Any) -> None:
    pandas = pytest.importorskip("pandas")
    found = score(model, "a.png", "gen")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.to_dict("records") == found.to_records() == list(found)
    assert frame["distance"].is_monotonic_increasing


def test_unreadable_images_fail_or_are_skipped(model: Any) -> None:
    with pytest.raises(ImageReadError, match=r"bad\.png"):
        score(model, "a.png", ["gen/c.png", "bad.png"])
    with pytest.raises(ImageReadError, match=r"absent\.png: the file does not exist"):  # found before any is read
        score(model, "a.png", ["gen/c.png", "bad.png", "absent.png"])
    found = score(model, "a.png", ["gen/c.png", "bad.png", "absent.png"], on_error="skip")
    assert [row["image"] for row in found] == ["gen/c.png"]
    assert [lost["image"] for lost in found.skipped] == ["absent.png", "bad.png"]
    nothing = score(model, "a.png", ["bad.png"], on_error="skip", threshold=1.0)
    assert (len(nothing), nothing.summary["n"], nothing.summary["mean"]) == (0, 0, None)
    assert nothing.to_csv().strip().startswith("rank,distance,image,reference")
    assert "summary: n 0" in nothing.to_table()


def test_a_cache_and_progress_change_no_score(model: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    plain = score(model, "a.png", "gen", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 1), (1, 3), (2, 3), (3, 3)]
    for _ in range(2):
        assert score(model, "a.png", "gen", cache=tmp_path / "kept") == plain


def test_a_calibration_adds_probabilities_and_leaves_the_model_alone(model: Any, tmp_path: Path) -> None:
    made = Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), model.calibration_id(), "cls", name="model")
    made.write(tmp_path / "c.json")
    for calibration in (made, tmp_path / "c.json"):
        found = score(model, "a.png", "gen", calibration=calibration)
        for row in found:
            assert row["probability"] == pytest.approx(made.probability(row["distance"]).item(), abs=1e-6)
    assert calibration_of(model) is None
    with pytest.raises(CalibrationError, match="has no calibration"):
        score(model, "a.png", "gen", calibration="stored")
    with pytest.raises(ValueError, match="'cls', not 'patch'"):
        score(model, "a.png", "gen", calibration=made, distance="patch")


def test_a_calibration_gives_the_threshold_at_5_percent(model: Any, tmp_path: Path) -> None:
    thresholds = tuple({"false_accept_rate": rate, "distance": 10 * rate} for rate in (0.2, 0.05, 0.01))
    made = Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), model.calibration_id(), "cls", name="model", thresholds=thresholds
    )
    made.write(tmp_path / "c.json")
    found = score(model, "a.png", "gen", calibration=tmp_path / "c.json")
    assert (found.threshold, found.threshold_source) == (0.5, "c.json, 5 % of pairs")
    found = score_pairs(model, [("a.png", "gen/c.png")], calibration=made)
    assert found.summary["threshold_source"] == "given calibration, 5 % of pairs"
    assert len(found.failing) == int(found.rows[0]["distance"] > 0.5)
    found = score(model, "a.png", "gen", calibration=made, threshold=0.3)
    assert (found.threshold, found.threshold_source) == (0.3, "given")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"references": "absent.png"}, "absent.png"),
        ({"images": []}, "at least one image"),
        ({"images": "a.png"}, "all candidates are references"),
        ({"mask_id": 3}, "needs masks"),
        ({"mask_dir": "nowhere"}, "no folder of masks 'nowhere'"),
        ({"aggregate": "median"}, "unknown aggregate 'median'"),
        ({"on_error": "stop"}, "unknown on_error 'stop'"),
        ({"threshold": float("nan")}, "threshold"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_requests_that_do_not_fit_are_refused(model: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(model, **{"references": "a.png", "images": "gen", **arguments})


@pytest.mark.parametrize("pairs", [[], [("a.png",)], [("a.png", None)]])
def test_pairs_need_two_images(model: Any, pairs: list[Any]) -> None:
    with pytest.raises(RequestError, match="pair"):
        score_pairs(model, pairs)
    with pytest.raises(TypeError, match="each pair has its own row"):
        score_pairs(model, [("a.png", "b.png")], aggregate="mean")


def test_missing_fields_are_empty_in_csv() -> None:
    found = Scores([{"distance": 0.1, "seed": 3}, {"distance": 0.2}], ("distance", "seed"))
    assert list(csv.reader(io.StringIO(found.to_csv()))) == [["distance", "seed"], ["0.1000", "3"], ["0.2000", ""]]


def test_the_summary_is_also_given_without_copies() -> None:
    given = ((0.0, True), (0.1, False), (0.3, False), (0.4, True))
    rows = [{"rank": 1, "distance": d, "image": "a", "reference": "b", "copy": copy} for d, copy in given]
    found = Scores(rows, ("distance",), limit=Limit(0.3))
    assert found.summary["passing"] == 3
    new = found.summary["without_copies"]
    assert (new["n"], new["mean"], new["passing"]) == (2, pytest.approx(0.2), 2)
    lines = found.to_table().splitlines()
    assert lines[-1] == (
        "without copies: n 2, mean 0.2000, std 0.1414, share passing 1.0000 (2 of 2), threshold 0.3 (given)"
    )
    assert "without_copies" not in Scores(rows[1:3], ("distance",)).summary


@pytest.mark.parametrize("cached", [False, True])
def test_gray_images_against_references_in_color_are_named_once(model: Any, tmp_path: Path, cached: bool) -> None:
    rng = np.random.default_rng(0)
    for name in ("ref", "colored", "gray0", "gray1"):
        picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((64, 64))
        (picture.convert("L") if "gray" in name else picture).save(tmp_path / f"{name}.png")
    ref, images = tmp_path / "ref.png", [tmp_path / f"{name}.png" for name in ("colored", "gray0", "gray1")]
    cache = tmp_path / "cache" if cached else None

    for _ in range(2):
        with pytest.warns(GrayWarning) as seen:
            score(model, ref, images, cache=cache)
        [said] = [str(one.message) for one in seen]
        assert said.startswith(f"gray, where the references are in color: {images[1]}, {images[2]}; their distances")
    with pytest.warns(GrayWarning, match=r"gray1\.png;"):
        score_pairs(model, [(ref, images[0]), (ref, images[2]), (images[1], images[2])])

    with warnings.catch_warnings():
        warnings.simplefilter("error", GrayWarning)
        score(model, ref, images[:1])
        score(model, [ref, images[1]], images[2:])
        score(model, images[1:2], images[2:])
