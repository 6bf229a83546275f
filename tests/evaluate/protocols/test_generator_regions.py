"""Generated images of several subjects in the protocol `generator`: regions, states, copies, published numbers."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
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
def uno(tmp_path: Path) -> Path:
    """UNO's files: two entries of both subjects, six photos of each, and three methods."""
    for name, badge in BADGES.items():
        folder = tmp_path / "datasets" / "dataset" / name
        folder.mkdir(parents=True)
        for number, photo in enumerate(references(badge)):
            photo.save(folder / f"{number:02}.png")
    images = ["dataset/ann/00.png", "dataset/rex/00.png"]
    entries = [{"prompt": prompt, "image_paths": images} for prompt in ("in a park", "at home")]
    (tmp_path / "datasets" / "multi.json").write_text(json.dumps(entries))
    boxes = write_scenes(tmp_path / "out", ("0_0.png", "1_0.png"))
    write_regions(tmp_path / "boxes.csv", {f"out/{name}": image_boxes for name, image_boxes in boxes.items()})
    return tmp_path


def open_uno(folder: Path, **more: Path) -> Manifest:
    return read(
        folder / "out",
        layout="uno",
        benchmark=folder / "datasets" / "multi.json",
        references=str(folder / "datasets" / "dataset"),
        in_regions=True,
        **more,  # type: ignore[arg-type]
    )


def run_uno(folder: Path, metric: IDSim, **options: object) -> Result:
    chosen = {"layout": "uno", "regions": str(folder / "boxes.csv"), "copies": False, **options}
    [result] = run(open_uno(folder), {"m": metric}, PLAIN, GeneratorOptions(**chosen))  # type: ignore[arg-type]
    return result


# Slow computations


def vector(metric: IDSim, picture: Image.Image) -> np.ndarray:
    features = metric.embed(picture.convert("RGB")).cls[0].double().numpy()
    return features / np.linalg.norm(features)


def cuts(picture: Image.Image, boxes: Sequence[tuple[int, ...]], margin: float) -> list[Image.Image]:
    pictures = []
    for left, top, right, bottom in boxes:
        across, along = margin * (right - left), margin * (bottom - top)
        box = (round(left - across), round(top - along), round(right + across), round(bottom + along))
        x0, y0, x1, y1 = max(box[0], 0), max(box[1], 0), min(box[2], picture.width), min(box[3], picture.height)
        pictures.append(picture.crop((x0, y0, x1, y1)))
    return pictures


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


def own_limit(vectors: np.ndarray) -> float:
    """The lowest mean similarity of a photo to the others."""
    means = []
    for index, left in enumerate(vectors):
        means.append(np.mean([left @ right for number, right in enumerate(vectors) if number != index]))
    return float(min(means))


@pytest.fixture(scope="module")
def photos(tiny: IDSim) -> np.ndarray:
    """Vectors (S, K, D) of the subjects' photos."""
    return np.array([[vector(tiny, photo) for photo in references(badge)] for badge in BADGES.values()])


@pytest.fixture
def near(tiny: IDSim, tmp_path: Path) -> Path:
    """A calibration of the rate of .1 % alone."""
    assert tiny.calibration is not None
    lowest = tuple(entry for entry in tiny.calibration.thresholds if entry["false_accept_rate"] == 0.001)
    replace(tiny.calibration, thresholds=lowest).write(tmp_path / "near.json")
    return tmp_path / "near.json"


def test_each_subject_is_scored_in_its_region(uno: Path, tiny: IDSim, photos: np.ndarray, near: Path) -> None:
    """Identity, coverage, the weakest and UNO's number of each method, against loops over crops."""
    result = run_uno(uno, tiny, calibration=near)  # whose threshold is smaller than the subjects' own
    limits = [own_limit(vectors) for vectors in photos]
    for method, shown in SHOWN.items():
        identities, is_found, lowest, distill = [], [], [], []
        for number, badges in enumerate(shown):
            picture, boxes = scene(badges, seed=10 + number)
            cosines = table_of(tiny, photos, cuts(picture, boxes, margin=0.12))
            mean = cosines.mean(1)
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
            distill.append(min(cosines[subject].max() if boxes else 0.0 for subject in range(2)))
        row = values(result, method=method, group="all")
        assert row["identity"].value == pytest.approx(np.mean(identities), abs=1e-5)
        assert row["identity"].count == 4
        assert row["weakest"].value == pytest.approx(np.mean(lowest), abs=1e-5)
        assert row["coverage"].value == pytest.approx(np.mean(is_found))
        assert row["uno-distill"].value == pytest.approx(np.mean(distill), abs=1e-5)
        assert row["uno-distill"].count == 2


def test_states_are_shares_of_subjects(uno: Path, tiny: IDSim) -> None:
    """At similarities of .7, where painted badges of one identity have .78 or more, and of two .63 or less."""
    result = run_uno(uno, tiny, threshold=0.3)
    states = {}
    for method in SHOWN:
        row = values(result, method=method, group="all")
        states[method] = [row[state].value for state in ("matched", "missing", "doubled", "blended")]
    assert states == {"good": [1, 0, 0, 0], "lost": [0.25, 0.75, 0, 0], "twice": [0.25, 0.5, 0.25, 0]}
    items = result.items["images"]
    of_images = list(zip(items["image"], items["subject"], items["state"], items["found"], strict=True))
    assert [line[1:] for line in of_images if line[0].startswith("twice/0_0")] == [
        ("ann", "doubled", True),
        ("rex", "missing", False),
    ]


def test_the_source_of_the_states_threshold_is_said(uno: Path, tiny: IDSim, photos: np.ndarray, near: Path) -> None:
    assert set(run_uno(uno, tiny).items["images"]["threshold_source"]) == {"stored calibration, 5 % of pairs"}
    own = run_uno(uno, tiny, calibration=near)
    items = own.items["images"]
    assert set(items["threshold_source"]) == {"own photos"}
    limits = dict(zip(BADGES, [1 - own_limit(vectors) for vectors in photos], strict=True))
    assert items["threshold"] == pytest.approx([limits[subject] for subject in items["subject"]], abs=1e-6)
    listing = ", ".join(f"{subject} {limit:.4f}" for subject, limit in limits.items())
    assert f"thresholds of the states: {listing} (own photos)" in own.notes
    assert "thresholds of the states: 0.3000 (given)" in run_uno(uno, tiny, threshold=0.3).notes


def test_one_photo_of_each_subject_takes_the_threshold_of_the_calibration(
    uno: Path, tiny: IDSim, tmp_path: Path
) -> None:
    """No SCR by the calibration, which is of images of one subject; states by it at 5 %."""
    assert tiny.calibration is not None
    distances = {t["false_accept_rate"]: t["distance"] for t in tiny.calibration.thresholds}
    for photo in (uno / "datasets" / "dataset").glob("*/0[1-9].png"):
        photo.unlink()
    plain = run_uno(uno, tiny)
    assert not any("SCR" in row for row in plain.rows)
    assert any(note.startswith("SCR by a calibration needs images of one subject") for note in plain.notes)
    assert f"thresholds of the states: {distances[0.05]:.4f} (stored calibration, 5 % of pairs)" in plain.notes
    items = plain.items["images"]
    for identity, state in zip(items["identity"], items["state"], strict=True):
        assert (state == "missing") == (1 - identity > distances[0.05])

    tiny.calibration.write(tmp_path / "own.json")
    by_file = run_uno(uno, tiny, calibration=tmp_path / "own.json")
    assert set(by_file.items["images"]["threshold_source"]) == {"own.json, 5 % of pairs"}
    strict = values(run_uno(uno, tiny, threshold=0.0), method="good", group="all")
    assert (strict["coverage"].value, strict["missing"].value) == (0, 1)
    assert strict["identity"] == values(plain, method="good", group="all")["identity"]  # whatever the threshold


def test_whole_images_are_those_of_match_without_regions(uno: Path, tiny: IDSim) -> None:
    [result] = run(open_uno(uno), {"m": tiny}, PLAIN, GeneratorOptions(layout="uno"))
    subjects = {name: str(uno / "datasets" / "dataset" / name) for name in BADGES}
    paths = sorted((uno / "out").glob("*/*.png"))
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


def test_a_reference_pasted_into_a_region_is_a_copy(uno: Path, tiny: IDSim) -> None:
    """In the whole picture it is not found; in its region it is, of the subject that it shows alone."""
    picture = Image.open(uno / "out" / "good" / "0_0.png")
    photo = Image.open(uno / "datasets" / "dataset" / "rex" / "03.png")
    picture.paste(photo.resize((SIDE, SIDE)), (SIDE, 0))
    picture.save(uno / "out" / "good" / "0_0.png")
    result = run_uno(uno, tiny, copies=True)
    items = result.items["images"]
    copied = [line for line in zip(items["image"], items["subject"], items["copied"], strict=True) if line[2]]
    assert [(name.split()[0], subject, original.rpartition("/")[2]) for name, subject, original in copied] == [
        ("good/0_0.png", "rex", "03.png")
    ]
    assert values(result, method="good", group="all")["copies"].value == 0.25
    assert any("more than 10 % of the images are copies" in note and "good" in note for note in result.notes)

    boxes = uno / "boxes.csv"
    rows = boxes.read_text().splitlines()
    boxes.write_text("\n".join(line for line in rows if not line.startswith(f"out/good/0_0.png,{SIDE}")))
    without_its_region = run_uno(uno, tiny, copies=True)
    assert values(without_its_region, method="good", group="all")["copies"].value == 0
    [whole] = run(open_uno(uno), {"m": tiny}, PLAIN, GeneratorOptions(layout="uno"))
    assert {row["copies"] for row in whole.rows if row["group"] == "all"} == {"not checked"}


def test_the_floor_is_scored_in_regions_too(uno: Path, tiny: IDSim) -> None:
    boxes = write_scenes(uno / "floor", ("0_0.png", "1_0.png"))
    lines = [f"floor/{name},{box[0]},0,{SIDE},{SIDE}," for name, image_boxes in boxes.items() for box in image_boxes]
    with (uno / "boxes.csv").open("a") as file:
        file.write("\n" + "\n".join(lines))
    options = GeneratorOptions(layout="uno", regions=str(uno / "boxes.csv"), copies=False, by=("subject",))
    [result] = run(open_uno(uno, floor=uno / "floor" / "twice"), {"m": tiny}, PLAIN, options)
    identity = values(result, method="twice", group="all")["identity"].value
    for method in SHOWN:
        row = values(result, method=method, group="all")
        assert row["floor"].value == pytest.approx(identity)
        expected = (row["identity"].value - identity) / (row["real"].value - identity)
        assert row["above floor"].value == pytest.approx(expected, abs=1e-6)
    assert values(result, method="good", group="all")["above floor"].value > 0.8


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_detected_regions_score_as_the_same_boxes_in_a_file(uno: Path, tiny: IDSim, tmp_path: Path) -> None:
    owlv2(tmp_path / "owlv2")
    detector = Owlv2(source=str(tmp_path / "owlv2"), device="cpu")
    lines = ["path,x,y,w,h"]
    for path in sorted((uno / "out").glob("*/*.png")):
        for left, top, right, bottom in detector.detect(path, ["badge"]).boxes.double().tolist():
            lines.append(f"out/{path.parent.name}/{path.name},{left},{top},{right - left},{bottom - top}")
    assert len(lines) > 6
    (tmp_path / "found.csv").write_text("\n".join(lines))

    options = {"detector": f"owlv2={tmp_path / 'owlv2'}", "keep_regions": tmp_path / "kept"}
    result = run_uno(uno, tiny, regions=None, detect="badge", **options)
    by_file = run_uno(uno, tiny, regions=str(tmp_path / "found.csv"))
    for method in SHOWN:
        row, expected = (values(one, method=method, group="all") for one in (result, by_file))
        for column in ("identity", "coverage", "uno-distill"):
            assert row[column].value == pytest.approx(expected[column].value, abs=1e-5)
    assert result.settings["detector"].startswith("owlv2 owlv2@")
    assert len(list((tmp_path / "kept").glob("*.json"))) == len(list((uno / "out").glob("*/*.png")))
    with pytest.raises(ValueError, match="--regions and --detect both say where subjects are"):
        run_uno(uno, tiny, detect="badge")
    with pytest.raises(RequestError, match="unknown detector 'yolo'"):
        run_uno(uno, tiny, regions=None, detect="badge", detector="yolo")


def test_17_images_that_are_not_listed_are_in_the_notes(uno: Path, tiny: IDSim) -> None:
    lines = (uno / "boxes.csv").read_text().splitlines()
    (uno / "some.csv").write_text("\n".join(line for line in lines if "good/0_0.png" not in line))
    with pytest.warns(UserWarning, match="images are not listed with regions"):
        result = run_uno(uno, tiny, regions=str(uno / "some.csv"))
    (note,) = [note for note in result.notes if "not listed" in note]
    assert note.startswith("WARNING: 2 images are not listed in ")  # in lost/1_0.png nothing is drawn
    assert "out/good/0_0.png" in note
    with pytest.raises(ValueError, match="--regions-of says how the regions of --regions were drawn"):
        GeneratorOptions(regions_of="stored")


def test_regions_that_fit_no_image_are_named(uno: Path, tiny: IDSim) -> None:
    data = open_uno(uno)

    def fails(error: type[Exception], message: str, **options: object) -> None:
        chosen = {"layout": "uno", "regions": str(uno / "boxes.csv"), **options}
        with pytest.raises(error, match=message):
            run(data, {"m": tiny}, PLAIN, GeneratorOptions(**chosen))  # type: ignore[arg-type]

    fails(RequestError, r"cannot read regions .*absent\.csv", regions=str(uno / "absent.csv"))
    fails(RequestError, "none of the images", regions=write_regions(uno / "r.csv", {"other.png": [(0, 0, 9, 9)]}))
    names = {f"out/{method}/{number}_0.png": [(0, 0, 9, 9)] for method in SHOWN for number in range(2)}
    path = Path(write_regions(uno / "r.csv", names, "cat"))
    path.write_text(path.read_text().replace("cat", "horse", 1))
    fails(RequestError, r"no region's label \(cat, horse\)", regions=str(path))
    outside = {**names, "out/good/0_0.png": [(500, 0, 600, 9)]}
    fails(ManifestError, r"good/0_0\.png.* lies outside", regions=write_regions(uno / "r.csv", outside))
    with pytest.raises(ValueError, match="hsv: regions are compared by models"):
        run(data, {"hsv": open_model("hsv")}, PLAIN, GeneratorOptions(regions=str(uno / "boxes.csv")))
    settings = EvalSettings(look=Look(masked=True))
    with pytest.raises(ValueError, match="regions and --subject"):
        run(data, {"m": tiny}, settings, GeneratorOptions(regions=str(uno / "boxes.csv")))


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


# Other layouts


def test_psr_takes_the_first_region_or_the_whole_image(tmp_path: Path, tiny: IDSim) -> None:
    benchmark = tmp_path / "PSRBench"
    (benchmark / "subjects").mkdir(parents=True)
    for name, badge in BADGES.items():
        references(badge)[0].save(benchmark / "subjects" / f"{name}.png")
    item = {"input_path": ["subjects/ann.png", "subjects/rex.png"], "category1": "ann", "category2": "rex"}
    items = [{**item, "instruction": text} for text in ("in a park", "at home")]
    (benchmark / "Action.json").write_text(json.dumps(items))
    boxes = write_scenes(tmp_path / "out", ("Action/0.png", "Action/1.png"))
    regions = write_regions(tmp_path / "boxes.csv", boxes)
    data = read(tmp_path / "out", layout="psrbench", benchmark=benchmark, in_regions=True)
    [result] = run(data, {"m": tiny}, PLAIN, GeneratorOptions(layout="psrbench", regions=regions, copies=False))
    for method in SHOWN:
        scores = []
        for number, badges in enumerate(SHOWN[method]):
            picture, image_boxes = scene(badges, seed=10 + number)
            cut = picture
            if image_boxes:
                cut = picture.crop(image_boxes[0])
            scores += [vector(tiny, references(badge)[0]) @ vector(tiny, cut) for badge in BADGES.values()]
        assert values(result, method=method, group="all")["psr"].value == pytest.approx(np.mean(scores), abs=1e-5)


def test_multiid_leaves_images_with_too_few_regions_out(tmp_path: Path, tiny: IDSim) -> None:
    boxes = write_scenes(tmp_path, ("01/output_0.jpg", "02/output_0.jpg"))
    photos = [references(badge)[0] for badge in BADGES.values()]
    for method, sample in itertools.product(SHOWN, ("01", "02")):
        for number, photo in enumerate(photos, 1):
            photo.save(tmp_path / method / sample / f"ref_{number}.jpg")
    regions = write_regions(tmp_path / "boxes.csv", boxes)
    data = read(tmp_path, layout="multiid-bench", in_regions=True)
    options = GeneratorOptions(layout="multiid-bench", regions=regions, copies=False)
    [result] = run(data, {"m": tiny}, PLAIN, options)
    assert values(result, method="good", group="all")["identity"].count == 4
    for method in SHOWN:
        means = []
        for sample in ("01", "02"):
            folder = tmp_path / method / sample
            picture = Image.open(folder / "output_0.jpg")
            people = [vector(tiny, Image.open(folder / f"ref_{number}.jpg")) for number in (1, 2)]
            crops = [vector(tiny, picture.crop(box)) for box in boxes[f"{method}/{sample}/output_0.jpg"]]
            if len(crops) == 1:  # of a method that loses a subject: the nearer one is matched
                means.append(max(people[0] @ crops[0], people[1] @ crops[0]))
            elif crops:
                straight = (people[0] @ crops[0] + people[1] @ crops[1]) / 2
                crossed = (people[0] @ crops[1] + people[1] @ crops[0]) / 2
                means.append(max(straight, crossed))
        assert values(result, method=method, group="all")["multiid"].value == pytest.approx(np.mean(means), abs=1e-5)


def test_xverse_pads_regions_to_white_squares(tmp_path: Path, tiny: IDSim) -> None:
    """Four seeds in a grid; boxes are of the cells in --out, and a subject without a region counts 0.

    The man counts in the ID similarity, the dog in the IP similarity.
    """
    images = {"ann": "human/ann.png", "rex": "animal/rex.png"}
    for name, path in images.items():
        (tmp_path / path).parent.mkdir()
        references(BADGES[name])[0].save(tmp_path / path)
    modulation = {
        "src_inputs": [{"image_path": path} for path in images.values()],
        "use_words": [[0, "man", "man"], [1, "dog", "dog"]],
    }
    (tmp_path / "multi.json").write_text(json.dumps([{"index": 0, "prompt": "x", "modulation": [modulation]}]))
    cells = [scene(badges, seed=seed)[0] for seed, badges in enumerate([(ANN, REX)] * 3 + [(REX, STRANGER)])]
    grid = Image.new("RGB", (4 * SIDE, 2 * SIDE))
    for number, cell in enumerate(cells):
        grid.paste(cell, (number % 2 * 2 * SIDE, number // 2 * SIDE))
    (tmp_path / "out" / "m").mkdir(parents=True)
    grid.save(tmp_path / "out" / "m" / "0_x.png")
    boxes = {f"m/0_x_{seed}.png": [(0, 0, SIDE, SIDE // 2), (SIDE, 0, 2 * SIDE, SIDE)] for seed in range(3)}
    regions = write_regions(tmp_path / "boxes.csv", boxes)
    data = read(tmp_path / "out", layout="xversebench", benchmark=tmp_path / "multi.json", cells=tmp_path / "cells",
                in_regions=True)  # fmt: skip
    options = GeneratorOptions(layout="xversebench", regions=regions, copies=False)
    with pytest.warns(UserWarning, match=r"1 of 4 images are not listed with regions.*0_x_3\.png"):
        [result] = run(data, {"m": tiny}, PLAIN, options)

    best: dict[str, list[float]] = {"ann": [], "rex": []}
    for cell in cells[:3]:
        squared = Image.new("RGB", (SIDE, SIDE), "white")
        squared.paste(cell.crop((0, 0, SIDE, SIDE // 2)), (0, SIDE // 4))
        crops = [vector(tiny, squared), vector(tiny, cell.crop((SIDE, 0, 2 * SIDE, SIDE)))]
        for name, badge in BADGES.items():
            photo = vector(tiny, references(badge)[0])
            best[name].append(max(photo @ crop for crop in crops))
    row = values(result, method="m", group="all")
    assert row["xverse-ip"].value == pytest.approx(100 * np.mean([*best["rex"], 0]), abs=1e-3)
    assert row["xverse-id"].value == pytest.approx(100 * np.mean([*best["ann"], 0]), abs=1e-3)
    assert row["xverse-ip"].count == 4


def test_the_command_prints_coverage_floor_and_size(uno: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("0_0.png", "1_0.png"):
        (uno / "floor").mkdir(exist_ok=True)
        panel(STRANGER, 5, side=2 * SIDE).save(uno / "floor" / name)
    with (uno / "boxes.csv").open("a") as file:
        file.write(f"\nfloor/0_0.png,0,0,{SIDE},{SIDE},\nfloor/1_0.png,0,0,{SIDE},{SIDE},")
    words = ["generator", "--data", uno / "out", "--layout", "uno", "--benchmark", uno / "datasets" / "multi.json"]
    words += ["--references", uno / "datasets" / "dataset", "--regions", uno / "boxes.csv", "--floor", uno / "floor"]
    words += ["--model", "tiny", "--bootstrap", "0", "--held-out", "--device", "cpu", "--format", "csv"]
    words += ["--out", uno / "r", "--html", uno / "page.html"]
    run_ = Runner(cli.main, capsys)
    assert run_(*words) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    metrics = {row["metric"] for row in rows if row["method"] == "good"}
    assert {"identity", "coverage", "matched", "floor", "above floor", "copies", "uno-distill", "worst"} <= metrics
    assert {row["image size"] for row in rows if row["method"] == "good"} == {f"{2 * SIDE}x{SIDE}"}
    settings = json.loads((uno / "r" / "generator.json").read_text())["results"][0]["settings"]
    assert (settings["regions"], settings["margin"]) == (str(uno / "boxes.csv"), 0.12)
    run_.says("cannot read regions", *words, "--regions", uno / "absent.json")
    run_.says("absent: no file or folder has this name", *words, "--floor", uno / "absent")
