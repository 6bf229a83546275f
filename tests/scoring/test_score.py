"""`idmetric.score` and `score_pairs`: the metric's own distances, one answer on each row, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import idmetric
from idmetric import IDSim, ImageReadError, score, score_pairs
from idmetric.metric.errors import RequestError
from idmetric.scoring.calibration import Calibration, CalibrationError, Isotonic
from idmetric.scoring.references import CopyWarning, GrayWarning, leave_one_out
from idmetric.scoring.scores import Scores


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


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)
    return idmetric.load("model", device="cpu")


def calibration_for(model: IDSim, **facts: Any) -> Calibration:
    """One by which the farthest of the images is different, and the nearest the same."""
    distances = [row["distance"] for row in score(model, "a.png", "gen")]
    far, near = 1 - max(distances), 1 - min(distances)
    return Calibration(Isotonic((far, near), (0.05, 0.95)), model.calibration_id(), "cls", **facts)


# Distances


@pytest.mark.parametrize("aggregate", ["best", "mean"])
@pytest.mark.parametrize("distance", ["cls", "joint"])
def test_distances_are_those_of_the_metric_sorted_with_the_range_of_real_photos(
    model: Any, aggregate: Any, distance: str
) -> None:
    references, images = ["a.png", "b.png", "gen/e.png"], ["gen/c.png", "gen/d.png"]
    found = score(model, references, ["gen", "a.png"], distance=distance, aggregate=aggregate, batch_size=2)
    matrix = model.pairwise(references, images, distance).double().numpy()
    expected = matrix.min(0) if aggregate == "best" else matrix.mean(0)
    assert {row["image"]: row["distance"] for row in found} == pytest.approx(dict(zip(images, expected, strict=True)))
    assert [row["rank"] for row in found] == [1, 2]
    assert found[0]["distance"] <= found[1]["distance"]
    assert sorted(found.left_out) == ["a.png", "gen/e.png"]

    between = leave_one_out(model.pairwise(references, None, distance).double().numpy(), aggregate)
    assert list(found.real) == references
    assert list(found.real.values()) == pytest.approx(between, abs=1e-6)
    assert found.summary["real_max"] == pytest.approx(between.max(), abs=1e-6)
    included = score(model, references, ["gen", "a.png"], distance=distance, include_references=True, copies=False)
    assert len(included) == 4
    assert included[0]["distance"] == pytest.approx(0, abs=1e-5)


def test_every_row_has_the_signature(model: Any) -> None:
    for row in score(model, "a.png", "gen", distance="patch"):
        assert (row["model"], row["revision"]) == ("IDSim:model", model.revision)
        assert (row["distance_name"], row["resolution"], row["dtype"]) == ("patch", "64x64", "float32")


def test_masks_select_the_subject(model: Any) -> None:
    [row] = score(model, "a.png", "gen/c.png", mask_dir="masks", distance="patch", outside="crop")
    masks = {"mask_a": "masks/a.png", "mask_b": "masks/c.png"}
    assert row["distance"] == pytest.approx(model("a.png", "gen/c.png", "patch", **masks, outside="crop").item())
    with pytest.raises(ImageReadError, match=r"mask of a\.png"):
        score(model, "a.png", "gen/c.png", mask_dir="gen")


def test_pairs_of_files_tuples_dicts_arrays_and_data_frames_are_the_same(model: Any) -> None:
    pandas = pytest.importorskip("pandas")
    expected = score_pairs(model, "pairs.csv").to_records()
    assert [row["prompt"] for row in expected] == ["red", "blue"]
    whole = model("a.png", "gen/d.png").item()
    masked = model("a.png", "gen/c.png", mask_a="masks/a.png", mask_b="masks/c.png").item()
    assert [row["distance"] for row in expected] == pytest.approx([whole, masked], abs=1e-6)
    frame = pandas.read_csv("pairs.csv")  # NaN where a mask is missing
    assert score_pairs(model, frame).to_records() == expected
    assert score_pairs(model, frame.to_dict("records")).to_records() == expected
    columns = ["ref", "gen", "mask_ref", "mask_gen"]
    alone = [{name: value for name, value in row.items() if name != "prompt"} for row in expected]
    for listed in (frame[columns].to_numpy(), [tuple(row) for row in frame[columns].fillna("").to_numpy(dtype=str)]):
        assert score_pairs(model, listed).to_records() == alone


def test_a_cache_and_progress_change_no_score(model: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    plain = score(model, "a.png", "gen", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)
    for _ in range(2):
        assert score(model, "a.png", "gen", cache=tmp_path / "kept") == plain


def test_leave_one_out_is_each_photo_against_the_others() -> None:
    d = np.random.default_rng(0).random((4, 4))
    for aggregate, take in (("best", min), ("mean", np.mean)):
        expected = [take([d[i, j] for j in range(4) if j != i]) for i in range(4)]
        assert leave_one_out(d, aggregate) == pytest.approx(expected)  # type: ignore[arg-type]
    for wrong in (np.zeros((1, 1)), np.zeros((2, 3))):
        with pytest.raises(ValueError, match="at least two photos"):
            leave_one_out(wrong)


# Answers


def test_each_row_has_one_answer_by_the_calibration_and_its_basis_stands_once(model: Any, tmp_path: Path) -> None:
    made = calibration_for(model, data={"origin": "photos", "about": "my own"})
    made.write(tmp_path / "c.json")
    for calibration in (made, tmp_path / "c.json"):
        found = score(model, "a.png", "gen", calibration=calibration)
        assert [row["answer"] for row in found] == [made.answer(row["distance"]) for row in found]
        assert (found[0]["answer"], found[2]["answer"]) == ("same", "different")
        expected = made.probability([row["distance"] for row in found])
        assert [row["probability"] for row in found] == pytest.approx(expected)
        for text in (found.to_table(), found.to_json()):
            assert text.count("my own") == 1
        assert found.to_csv().splitlines()[0].startswith("rank,distance,answer,image,reference,probability")

    with pytest.raises(CalibrationError, match="'cls', not 'patch'"):
        score(model, "a.png", "gen", calibration=made, distance="patch")
    with pytest.raises(CalibrationError, match="'all', not 'black'"):
        score(model, "a.png", "gen", calibration=made, mask_dir="masks")


def test_the_calibration_of_the_model_answers_unless_it_does_not_hold(model: Any) -> None:
    beside = Path("model/calibration.json")
    calibration_for(model).write(beside)
    try:
        assert [row["answer"] for row in score(model, "a.png", "gen")][::2] == ["same", "different"]
        for options in ({"distance": "patch"}, {"mask_dir": "masks"}):
            found = score(model, "a.png", "gen", **options)
            assert "answer" not in found[0]
            assert found.to_table().count("idmetric eval calibrate") == 1
        assert "answer" not in score_pairs(model, "pairs.csv")[0]  # some of its pairs are masked
        assert "answer" in score_pairs(model, [("a.png", "gen/c.png")])[0]
    finally:
        beside.unlink()


def test_a_threshold_replaces_the_answer_by_pass_or_fail(model: Any) -> None:
    near = score(model, "a.png", "gen")[1]["distance"]
    found = score(model, "a.png", "gen", threshold=near, calibration=calibration_for(model))
    assert [row["answer"] for row in found] == ["pass", "pass", "fail"]
    assert (found.threshold, found.threshold_source) == (near, "given")
    assert (found.summary["passing"], found.summary["share_passing"]) == (2, pytest.approx(2 / 3))
    assert found.beyond(near) == found.rows[2:]
    assert f"at most {near:.6g} (given)" in found.to_table()


# Copies and gray images


def test_copies_are_marked_and_the_summary_is_also_given_without_them(model: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((100, 80), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "shop.png")
    picture.crop((0, 0, 95, 76)).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "back.jpg", quality=90)
    images = [str(tmp_path / "back.jpg"), "gen/c.png"]
    with pytest.warns(CopyWarning, match=r"back\.jpg repeats the pixels of .*shop\.png, mirrored") as seen:
        found = score(model, tmp_path / "shop.png", images)
    assert len(seen) == 1
    assert {row["image"]: row["copy"] for row in found} == dict(zip(images, (True, False), strict=True))
    other = next(row for row in found if not row["copy"])
    assert found.summary["without_copies"]["mean"] == other["distance"]
    assert "without copies: n 1" in found.to_table()
    with pytest.warns(CopyWarning, match="repeats"):
        assert score_pairs(model, [(tmp_path / "shop.png", images[0])])[0]["copy"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", CopyWarning)
        assert "copy" not in score(model, tmp_path / "shop.png", images, copies=False)[0]


@pytest.mark.parametrize("cached", [False, True])
def test_gray_images_against_references_in_color_are_named_once(model: Any, tmp_path: Path, cached: bool) -> None:
    rng = np.random.default_rng(0)
    for name in ("ref", "colored", "gray0", "gray1"):
        picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((64, 64))
        (picture.convert("L") if "gray" in name else picture).save(tmp_path / f"{name}.png")
    ref, images = tmp_path / "ref.png", [tmp_path / f"{name}.png" for name in ("colored", "gray0", "gray1")]
    for _ in range(2):
        with pytest.warns(GrayWarning) as seen:
            score(model, ref, images, cache=tmp_path / "cache" if cached else None)
        [said] = [str(one.message) for one in seen]
        assert said.startswith(f"gray, where the references are in color: {images[1]}, {images[2]};")
    with pytest.warns(GrayWarning, match=r"gray1\.png;"):
        score_pairs(model, [(ref, images[0]), (ref, images[2]), (images[1], images[2])])
    with warnings.catch_warnings():
        warnings.simplefilter("error", GrayWarning)
        score(model, [ref, images[1]], images[2:])
        score(model, images[1:2], images[2:])


# Images in memory


def forms(path: str) -> list[Any]:
    """One picture in each form that the metric takes."""
    picture = Image.open(path)
    picture.load()
    array = np.asarray(picture)
    data = Path(path).read_bytes()
    pixels = torch.from_numpy(array.copy()).permute(2, 0, 1)
    return [picture, array, pixels, data, io.BytesIO(data), Path(path)]


def test_images_in_memory_are_scored_and_called_by_their_place(model: Any) -> None:
    expected = score(model, "a.png", "gen/c.png")[0]["distance"]
    found = score(model, forms("a.png")[0], forms("gen/c.png"), copies=False)
    assert [row["distance"] for row in found] == pytest.approx([expected] * 6, rel=1e-5)
    assert sorted(row["image"] for row in found) == ["gen/c.png", *(f"image[{index}]" for index in range(5))]
    assert {row["reference"] for row in found} == {"reference[0]"}
    assert json.loads(found.to_json())["rows"] == found.to_dict()["rows"]

    pictures = [Image.open(path) for path in ("a.png", "b.png", "gen/c.png")]
    among = score(model, pictures[:2], pictures)
    assert ([row["image"] for row in among], list(among.left_out)) == (["image[2]"], ["image[0]", "image[1]"])
    assert list(among.real) == ["reference[0]", "reference[1]"]
    batch = np.stack([np.asarray(picture) for picture in pictures])
    assert len(score(model, "gen/d.png", batch)) == len(score(model, "gen/d.png", list(batch))) == 3


def test_pairs_in_memory_are_those_of_files(model: Any) -> None:
    reference, mask = Image.open("a.png"), Image.open("masks/c.png")
    expected = score_pairs(model, [("a.png", "gen/c.png", None, "masks/c.png"), ("a.png", "gen/d.png")])
    pairs = [(reference, Image.open("gen/c.png"), None, mask), {"ref": reference, "gen": Image.open("gen/d.png")}]
    found = score_pairs(model, pairs)
    assert [row["distance"] for row in found] == [row["distance"] for row in expected]
    assert [(row["reference"], row["image"]) for row in found] == [
        ("reference[0]", "image[0]"),
        ("reference[0]", "image[1]"),
    ]


# Refusals


def test_unreadable_images_fail_or_are_skipped(model: Any) -> None:
    with pytest.raises(ImageReadError, match=r"bad\.png"):
        score(model, "a.png", ["gen/c.png", "bad.png"])
    with pytest.raises(ImageReadError, match=r"absent\.png"):  # found before any is read
        score(model, "a.png", ["gen/c.png", "bad.png", "absent.png"])
    with pytest.raises(ImageReadError, match=r"image\[1\]"):
        score(model, "a.png", [Image.open("b.png"), np.full((8, 8, 3), 7.0)])
    found = score(model, "a.png", ["gen/c.png", "bad.png", "absent.png"], on_error="skip")
    assert [row["image"] for row in found] == ["gen/c.png"]
    assert list(found.skipped) == ["absent.png", "bad.png"]
    nothing = score(model, "a.png", ["bad.png"], on_error="skip", threshold=1.0)
    assert (len(nothing), nothing.summary["n"], nothing.summary["mean"]) == (0, 0, None)
    assert nothing.to_csv().strip().startswith("rank,distance,answer,image,reference")
    assert "summary: n 0" in nothing.to_table()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"references": "absent.png"}, "absent.png"),
        ({"images": []}, "at least one image"),
        ({"images": "a.png"}, "references"),
        ({"images": [["gen/c.png"]]}, r"image\[0\] is a list"),
        ({"mask_id": 3}, "masks"),
        ({"mask_dir": "nowhere"}, "'nowhere'"),
        ({"aggregate": "median"}, "'median'"),
        ({"on_error": "stop"}, "'stop'"),
        ({"threshold": float("nan")}, "threshold"),
        ({"batch_size": 0}, "batch_size"),
        ({"calibration": "stored"}, "eval calibrate"),
    ],
)
def test_requests_that_do_not_fit_are_refused(model: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(model, **{"references": "a.png", "images": "gen", **arguments})


@pytest.mark.parametrize(
    ("pair", "named"),
    [
        ("ref", "'ref'"),
        ((1, 2), r"\(1, 2\)"),
        ({"x": "a.png", "y": "b.png"}, "'x', 'y'"),
        ({"a": "a.png", "b": None}, "pair 1: two images"),
        ({"a": "a.png", "ref": "a.png", "b": "b.png"}, "'a' and 'ref'"),
        (("a.png", "b.png", "", "", "c.png"), "5 cells"),
    ],
)
def test_what_is_no_pair_is_named(model: Any, pair: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        score_pairs(model, [pair])
    with pytest.raises(RequestError, match="pairs"):
        score_pairs(model, [])
    with pytest.raises(TypeError, match="aggregate"):
        score_pairs(model, [("a.png", "b.png")], aggregate="mean")


def test_a_name_in_place_of_a_metric_is_refused() -> None:
    with pytest.raises(RequestError, match="tiny"):
        score("tiny", Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8)))  # type: ignore[arg-type]


# Results


def test_rows_are_written_as_tables_and_data_frames(model: Any, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    found = score(model, "a.png", "gen")
    assert found.to_pandas().to_dict("records") == found.to_records() == list(found)
    found.write(tmp_path / "r.csv")
    assert pandas.read_csv(tmp_path / "r.csv")["image"].tolist() == [row["image"] for row in found]
    found.write(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == found.to_dict()
    with pytest.raises(ValueError, match=r"r\.xml"):
        found.write(tmp_path / "r.xml")
    assert "0." in found._repr_html_()


def test_missing_fields_are_empty_in_csv() -> None:
    found = Scores([{"distance": 0.1, "seed": 3}, {"distance": 0.2}], ("distance", "seed"))
    assert list(csv.reader(io.StringIO(found.to_csv()))) == [["distance", "seed"], ["0.1000", "3"], ["0.2000", ""]]


def test_a_notebook_shows_pictures_and_a_plot_has_each_distance(metric: IDSim, folder: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    scores = score(metric, str(folder / "a.png"), str(folder / "gen"), threshold=0.5)
    assert scores._repr_html_().count("<img") == 2 * len(scores.rows)
    ax = scores.plot()
    assert ax.get_lines()[0].get_xdata() == pytest.approx([row["distance"] for row in scores.rows])
    assert any(line.get_xdata()[0] == 0.5 for line in ax.get_lines())
