"""Generated images of several subjects in the protocol `generator`: regions, states, copies."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim
from idmetric.cli import eval as cli
from idmetric.data.manifest.errors import ManifestError
from idmetric.data.manifest.table import Manifest
from idmetric.data.painter import Badge
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.generator.outputs import read
from idmetric.evaluate.protocols.generator_methods import GeneratorOptions, run
from idmetric.matching import match
from idmetric.matching.detect_models import Owlv2
from idmetric.metric.errors import RequestError
from idmetric.stream.item import Look
from tests.evaluate.protocols.parts import PLAIN, values
from tests.matching.detector_parts import owlv2
from tests.matching.scenes import ANN, REX, SIDE, STRANGER, panel, references, scene
from tests.runner import Runner

pytestmark = pytest.mark.filterwarnings("ignore:.* images are not listed with regions")

BADGES = {"ann": ANN, "rex": REX}
SHOWN: dict[str, Sequence[Sequence[Badge | None]]] = {
    "good": [(ANN, REX), (REX, ANN)],
    "lost": [(ANN, None), (None, None)],
    "twice": [(ANN, ANN), (STRANGER, REX)],
}


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


def write_regions(path: Path, boxes: dict[str, Sequence[tuple[int, ...]]], label: str = "") -> str:
    lines = ["path,x,y,w,h,label"]
    for name, image_boxes in boxes.items():
        for left, top, right, bottom in image_boxes:
            lines.append(f"{name},{left},{top},{right - left},{bottom - top},{label}")
    path.write_text("\n".join(lines))
    return str(path)


def write_scenes(root: Path, names: Sequence[str]) -> dict[str, Sequence[tuple[int, ...]]]:
    """Two images of each method below a folder, and the boxes of their badges."""
    boxes: dict[str, Sequence[tuple[int, ...]]] = {}
    for method, shown in SHOWN.items():
        for number, (name, badges) in enumerate(zip(names, shown, strict=True)):
            picture, boxes_of_image = scene(badges, seed=10 + number)
            (root / method / name).parent.mkdir(parents=True, exist_ok=True)
            picture.save(root / method / name)
            boxes[f"{method}/{name}"] = boxes_of_image
    return boxes


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """A table of two prompts with both subjects by three methods, six photos of each subject, and boxes."""
    for name, badge in BADGES.items():
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number, photo in enumerate(references(badge)):
            photo.save(folder / f"{number:02}.png")
    boxes = write_scenes(tmp_path / "out", ("0_0.png", "1_0.png"))
    lines = ["path,method,subject,prompt"]
    for name in boxes:
        method, file = name.split("/")
        lines += [f"out/{name},{method},{subject},{file[0]}" for subject in BADGES]
    (tmp_path / "outputs.csv").write_text("\n".join(lines))
    write_regions(tmp_path / "boxes.csv", {f"out/{name}": image_boxes for name, image_boxes in boxes.items()})
    return tmp_path


def open_scenes(folder: Path) -> Manifest:
    return read(folder / "outputs.csv", references=str(folder / "photos"))


def run_scenes(folder: Path, metric: IDSim, **options: object) -> Result:
    chosen = {"regions": str(folder / "boxes.csv"), "copies": False, **options}
    [result] = run(open_scenes(folder), {"m": metric}, PLAIN, GeneratorOptions(**chosen))  # type: ignore[arg-type]
    return result


# Slow computations


def vector(metric: IDSim, picture: Image.Image) -> np.ndarray:
    features = metric.embed(picture.convert("RGB")).cls[0].double().numpy()
    return features / np.linalg.norm(features)


def table_of(metric: IDSim, photos: np.ndarray, pictures: Sequence[Image.Image]) -> np.ndarray:
    """Cosines (S, K, R) of photos (S, K, D)."""
    cosines = np.zeros((*photos.shape[:2], len(pictures)))
    for region, picture in enumerate(pictures):
        crop = vector(metric, picture)
        for subject, number in itertools.product(*map(range, photos.shape[:2])):
            cosines[subject, number, region] = photos[subject, number] @ crop
    return cosines


def assigned(similarity: np.ndarray, limits: Sequence[float]) -> list[int | None]:
    """The region of each of two subjects: of all assignments, most within limits, then the highest sum."""
    regions = [*range(similarity.shape[1]), None]
    best, best_key = [None, None], (-1, -1, -np.inf)
    for choice in itertools.product(regions, repeat=2):
        used = [region for region in choice if region is not None]
        if len(used) != len(set(used)):
            continue
        pairs = [(subject, region) for subject, region in enumerate(choice) if region is not None]
        within = sum(similarity[pair] >= limits[pair[0]] for pair in pairs)
        key = (within, len(pairs), sum(similarity[pair] for pair in pairs))
        if key > best_key:
            best, best_key = list(choice), key
    return best


@pytest.fixture(scope="module")
def photos(tiny: IDSim) -> np.ndarray:
    """Vectors (S, K, D) of the subjects' photos."""
    return np.array([[vector(tiny, photo) for photo in references(badge)] for badge in BADGES.values()])


def test_each_subject_is_scored_in_its_region(scenes: Path, tiny: IDSim, photos: np.ndarray) -> None:
    """Identity, coverage and the weakest of each method, against loops over crops."""
    result = run_scenes(scenes, tiny, threshold=0.2)
    limits = [0.8, 0.8]
    for method, shown in SHOWN.items():
        identities, is_found, lowest = [], [], []
        for number, badges in enumerate(shown):
            picture, boxes = scene(badges, seed=10 + number)
            mean = table_of(tiny, photos, [picture.crop(box) for box in boxes]).mean(1)
            image_identities = []
            for subject, region in enumerate(assigned(mean, limits)):
                similarity = 0.0
                if region is not None:
                    similarity = mean[subject, region]
                elif boxes:
                    similarity = mean[subject].max()
                image_identities.append(similarity)
                is_found.append(bool((mean[subject] >= limits[subject]).any()))
            identities += image_identities
            lowest.append(min(image_identities))
        row = values(result, method=method, group="all")
        assert row["identity"].value == pytest.approx(np.mean(identities), abs=1e-5)
        assert row["identity"].count == 4
        assert row["weakest"].value == pytest.approx(np.mean(lowest), abs=1e-5)
        assert row["coverage"].value == pytest.approx(np.mean(is_found))


def test_states_are_shares_of_subjects(scenes: Path, tiny: IDSim) -> None:
    """At similarities of .7, where painted badges of one identity have .78 or more, and of two .63 or less."""
    result = run_scenes(scenes, tiny, threshold=0.3)
    states = {}
    for method in SHOWN:
        row = values(result, method=method, group="all")
        states[method] = [row[state].value for state in ("matched", "missing", "doubled")]
    assert states == {"good": [1, 0, 0], "lost": [0.25, 0.75, 0], "twice": [0.25, 0.5, 0.25]}
    items = result.items["images"]
    of_images = list(zip(items["image"], items["subject"], items["state"], items["found"], strict=True))
    assert [line[1:] for line in of_images if line[0].startswith("twice/0_0")] == [
        ("ann", "doubled", True),
        ("rex", "missing", False),
    ]


def test_the_source_of_the_states_threshold_is_said(scenes: Path, tiny: IDSim, tmp_path: Path) -> None:
    """One photo of each subject takes the threshold of the calibration; --threshold takes its place."""
    assert tiny.calibration is not None
    distances = {t["false_accept_rate"]: t["distance"] for t in tiny.calibration.thresholds}
    assert "thresholds of the states: 0.3000 (given)" in run_scenes(scenes, tiny, threshold=0.3).notes
    for photo in (scenes / "photos").glob("*/0[1-9].png"):
        photo.unlink()
    plain = run_scenes(scenes, tiny)
    assert not any("same" in row for row in plain.rows)
    assert f"thresholds of the states: {distances[0.05]:.4f} (stored calibration, 5 % of pairs)" in plain.notes
    items = plain.items["images"]
    for identity, state in zip(items["identity"], items["state"], strict=True):
        assert (state == "missing") == (1 - identity > distances[0.05])

    tiny.calibration.write(tmp_path / "own.json")
    by_file = run_scenes(scenes, tiny, calibration=tmp_path / "own.json")
    assert set(by_file.items["images"]["threshold_source"]) == {"own.json, 5 % of pairs"}
    strict = values(run_scenes(scenes, tiny, threshold=0.0), method="good", group="all")
    assert (strict["coverage"].value, strict["missing"].value) == (0, 1)
    assert strict["identity"] == values(plain, method="good", group="all")["identity"]  # whatever the threshold


def test_whole_images_are_those_of_match_without_regions(scenes: Path, tiny: IDSim) -> None:
    [result] = run(open_scenes(scenes), {"m": tiny}, PLAIN, GeneratorOptions())
    subjects = {name: str(scenes / "photos" / name) for name in BADGES}
    paths = sorted((scenes / "out").glob("*/*.png"))
    expected = match(tiny, subjects, paths, aggregate="mean")
    items = result.items["images"]
    scores = {(name, subject): score for name, subject, score in zip(items["image"], items["subject"],
                                                                     items["identity"], strict=True)}  # fmt: skip
    for time, path in enumerate(paths):
        for number, subject in enumerate(BADGES):
            name = f"{path.parent.name}/{path.name}"
            identity = scores.get((name, subject), scores.get((f"{name} (2)", subject)))
            assert identity == pytest.approx(1 - expected.nearest[time, number], abs=1e-5)
    assert "coverage" not in values(result, method="good", group="all")


def test_a_reference_pasted_into_a_region_is_a_copy(scenes: Path, tiny: IDSim) -> None:
    """In the whole picture it is not found; in its region it is, of the subject that it shows alone."""
    picture = Image.open(scenes / "out" / "good" / "0_0.png")
    photo = Image.open(scenes / "photos" / "rex" / "03.png")
    picture.paste(photo.resize((SIDE, SIDE)), (SIDE, 0))
    picture.save(scenes / "out" / "good" / "0_0.png")
    result = run_scenes(scenes, tiny, copies=True)
    items = result.items["images"]
    copied = [line for line in zip(items["image"], items["subject"], items["copied"], strict=True) if line[2]]
    assert [(name.split()[0], subject, original.rpartition("/")[2]) for name, subject, original in copied] == [
        ("good/0_0.png", "rex", "03.png")
    ]
    assert values(result, method="good", group="all")["copies"].value == 0.25
    assert any("more than 10 % of the images are copies" in note and "good" in note for note in result.notes)

    boxes = scenes / "boxes.csv"
    rows = boxes.read_text().splitlines()
    boxes.write_text("\n".join(line for line in rows if not line.startswith(f"out/good/0_0.png,{SIDE}")))
    without_its_region = run_scenes(scenes, tiny, copies=True)
    assert values(without_its_region, method="good", group="all")["copies"].value == 0
    [whole] = run(open_scenes(scenes), {"m": tiny}, PLAIN, GeneratorOptions())
    assert {row["copies"] for row in whole.rows if row["group"] == "all"} == {"not checked"}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_detected_regions_score_as_the_same_boxes_in_a_file(scenes: Path, tiny: IDSim, tmp_path: Path) -> None:
    owlv2(tmp_path / "owlv2")
    detector = Owlv2(source=str(tmp_path / "owlv2"), device="cpu")
    lines = ["path,x,y,w,h"]
    for path in sorted((scenes / "out").glob("*/*.png")):
        for left, top, right, bottom in detector.detect(path, ["badge"]).boxes.double().tolist():
            lines.append(f"out/{path.parent.name}/{path.name},{left},{top},{right - left},{bottom - top}")
    assert len(lines) > 6
    (tmp_path / "found.csv").write_text("\n".join(lines))

    options = {"detector": f"owlv2={tmp_path / 'owlv2'}", "keep_regions": tmp_path / "kept"}
    result = run_scenes(scenes, tiny, regions=None, detect="badge", **options)
    by_file = run_scenes(scenes, tiny, regions=str(tmp_path / "found.csv"))
    for method in SHOWN:
        row, expected = (values(one, method=method, group="all") for one in (result, by_file))
        for column in ("identity", "coverage"):
            assert row[column].value == pytest.approx(expected[column].value, abs=1e-5)
    assert result.settings["detector"].startswith("owlv2 owlv2@")
    assert len(list((tmp_path / "kept").glob("*.json"))) == len(list((scenes / "out").glob("*/*.png")))
    with pytest.raises(ValueError, match="--regions and --detect both say where subjects are"):
        run_scenes(scenes, tiny, detect="badge")
    with pytest.raises(RequestError, match="unknown detector 'yolo'"):
        run_scenes(scenes, tiny, regions=None, detect="badge", detector="yolo")


def test_17_images_that_are_not_listed_are_in_the_notes(scenes: Path, tiny: IDSim) -> None:
    lines = (scenes / "boxes.csv").read_text().splitlines()
    (scenes / "some.csv").write_text("\n".join(line for line in lines if "good/0_0.png" not in line))
    with pytest.warns(UserWarning, match="images are not listed with regions"):
        result = run_scenes(scenes, tiny, regions=str(scenes / "some.csv"))
    (note,) = [note for note in result.notes if "not listed" in note]
    assert note.startswith("WARNING: 2 images are not listed in ")  # in lost/1_0.png nothing is drawn
    assert "out/good/0_0.png" in note


def test_regions_that_fit_no_image_are_named(scenes: Path, tiny: IDSim) -> None:
    data = open_scenes(scenes)

    def fails(error: type[Exception], message: str, **options: object) -> None:
        chosen = {"regions": str(scenes / "boxes.csv"), **options}
        with pytest.raises(error, match=message):
            run(data, {"m": tiny}, PLAIN, GeneratorOptions(**chosen))  # type: ignore[arg-type]

    fails(RequestError, r"cannot read regions .*absent\.csv", regions=str(scenes / "absent.csv"))
    fails(RequestError, "none of the images", regions=write_regions(scenes / "r.csv", {"other.png": [(0, 0, 9, 9)]}))
    names = {f"out/{method}/{number}_0.png": [(0, 0, 9, 9)] for method in SHOWN for number in range(2)}
    path = Path(write_regions(scenes / "r.csv", names, "cat"))
    path.write_text(path.read_text().replace("cat", "horse", 1))
    fails(RequestError, r"no region's label \(cat, horse\)", regions=str(path))
    outside = {**names, "out/good/0_0.png": [(500, 0, 600, 9)]}
    fails(ManifestError, r"good/0_0\.png.* lies outside", regions=write_regions(scenes / "r.csv", outside))
    with pytest.raises(ValueError, match="hsv: regions are compared by models"):
        run(data, {"hsv": open_model("hsv")}, PLAIN, GeneratorOptions(regions=str(scenes / "boxes.csv")))
    settings = EvalSettings(look=Look(masked=True))
    with pytest.raises(ValueError, match="regions and --subject"):
        run(data, {"m": tiny}, settings, GeneratorOptions(regions=str(scenes / "boxes.csv")))


def test_a_region_of_another_class_is_not_compared(tmp_path: Path, tiny: IDSim) -> None:
    """Labels are class words: with the words exchanged, each subject is compared with the other's region."""
    boxes = write_scenes(tmp_path / "out", ("0.png", "1.png"))
    lines = ["path,method,subject,label,prompt,role"]
    for name in boxes:
        method, file = name.split("/")
        lines += [f"out/{name},{method},ann,person,{file},", f"out/{name},{method},rex,dog,{file},"]
    for name, badge in BADGES.items():
        references(badge)[0].save(tmp_path / f"{name}.png")
        lines.append(f"{name}.png,,{name},,,reference")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    identity = {}
    for left, right in (("person", "dog"), ("dog", "person")):
        rows = ["path,x,y,w,h,label"]
        for name in boxes:
            rows += [f"{name},0,0,{SIDE},{SIDE},{left}", f"{name},{SIDE},0,{SIDE},{SIDE},{right}"]
        (tmp_path / "r.csv").write_text("\n".join(rows))
        options = GeneratorOptions(regions=str(tmp_path / "r.csv"), copies=False, by=("prompt",))
        [result] = run(read(tmp_path / "t.csv"), {"m": tiny}, PLAIN, options)
        identity[left] = values(result, method="good", group="prompt: 0.png")["identity"].value
    assert identity["person"] > identity["dog"] + 0.2


def test_a_region_of_a_subject_of_other_images_shows_nobody_here(tmp_path: Path, tiny: IDSim) -> None:
    """An image of ann in which the detector found rex alone has no region of ann, and is no error."""
    lines = ["path,method,subject,prompt,role"]
    for name, badge in BADGES.items():
        references(badge)[0].save(tmp_path / f"{name}-photo.png")
        panel(REX, 7).save(tmp_path / f"{name}.png")
        lines += [f"{name}.png,m,{name},{name},", f"{name}-photo.png,,{name},,reference"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    boxes = {name: [(0, 0, SIDE, SIDE)] for name in ("ann.png", "rex.png")}
    options = GeneratorOptions(regions=write_regions(tmp_path / "r.csv", boxes, "rex"), copies=False)
    [result] = run(read(tmp_path / "t.csv"), {"m": tiny}, PLAIN, options)
    items = result.items["images"]
    assert dict(zip(items["image"], items["found"], strict=True)) == {"ann.png": False, "rex.png": True}
    assert items["identity"][0] == 0
    assert items["identity"][1] > 0.7


def test_the_command_prints_coverage_and_size(scenes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generator", "--data", scenes / "outputs.csv", "--references", scenes / "photos"]
    words += ["--regions", scenes / "boxes.csv", "--model", "tiny", "--bootstrap", "0", "--held-out", "--device", "cpu"]
    words += ["--format", "csv", "--out", scenes / "r", "--html", scenes / "page.html"]
    run_ = Runner(cli.main, capsys)
    assert run_(*words) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    metrics = {row["metric"] for row in rows if row["method"] == "good"}
    assert {"identity", "weakest", "coverage", "matched", "copies"} <= metrics
    assert {row["image size"] for row in rows if row["method"] == "good"} == {f"{2 * SIDE}x{SIDE}"}
    settings = json.loads((scenes / "r" / "generator.json").read_text())["results"][0]["settings"]
    assert settings["regions"] == str(scenes / "boxes.csv")
    run_.says("cannot read regions", *words, "--regions", scenes / "absent.json")
