from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics.pairwise import cosine_distances

from idmetric import IDSim, load
from idmetric.cli import gallery as command
from idmetric.data.nearest import unit
from idmetric.gallery import Gallery
from idmetric.gallery.clusters import identities, near_duplicates
from idmetric.gallery.linkage import cluster
from idmetric.gallery.look_files import sharpness
from idmetric.scoring.calibration import Calibration, Isotonic, calibration_of
from idmetric.scoring.scores import Limit, Records
from tests.runner import Runner


def picture(seed: int, size: tuple[int, int] = (200, 160)) -> Image.Image:
    """Shapes of many sizes, so that there is detail everywhere."""
    rng = np.random.default_rng(seed)
    found = np.zeros((160, 200, 3))
    for side in (4, 10, 24, 80):
        grid = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        found += np.asarray(grid.resize((200, 160)), float) / 4
    return Image.fromarray(found.astype(np.uint8)).resize(size)


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures; of the first five copies, of the second one, and the third twice."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(4):
        picture(number).save(folder / f"p{number}.png")
    first = picture(0)
    first.save(folder / "p0_jpeg.jpg", quality=40)
    first.resize((100, 80)).save(folder / "p0_small.png")
    ImageOps.mirror(first).save(folder / "p0_mirrored.png")
    ImageEnhance.Brightness(first).enhance(1.15).save(folder / "p0_bright.png")
    picture(0, (400, 320)).save(folder / "p0_large.png")
    picture(1).crop((8, 6, 196, 154)).save(folder / "p1_crop.png")
    (folder / "p2_again.png").write_bytes((folder / "p2.png").read_bytes())
    return folder


@pytest.fixture(scope="module")
def gallery(tiny: IDSim, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    found = Gallery(tmp_path_factory.mktemp("gallery"), tiny)
    found.update(photos)
    return found


@pytest.fixture(scope="module")
def duplicates(gallery: Gallery) -> Records:
    return near_duplicates(gallery)


def animated(path: Path, *seeds: int, **options: Any) -> None:
    first, *others = (picture(seed) for seed in seeds)
    first.save(path, save_all=True, append_images=others, **options)


@pytest.mark.parametrize("ending", ["gif", "tiff"])
def test_files_of_several_frames_repeat_only_the_same_bytes(tiny: IDSim, tmp_path: Path, ending: str) -> None:
    (tmp_path / "p").mkdir()
    lossy = {"gif": {"duration": 50}, "tiff": {"compression": "jpeg"}}[ending]
    for name, seeds in {"a": (0, 1), "b": (0, 2), "c": (0, 1, 2), "d": (0,)}.items():
        animated(tmp_path / "p" / f"{name}.{ending}", *seeds, **lossy)
    whole = tmp_path / "p" / f"whole.{ending}"
    animated(whole, 0, 1)
    whole.write_bytes(whole.read_bytes() + bytes(10**6))  # the largest file is kept
    (tmp_path / "p" / f"whole_again.{ending}").write_bytes(whole.read_bytes())
    moving = Gallery(tmp_path / "g", tiny)
    moving.update(tmp_path / "p")
    rows = {row["name"].split(".")[0].removeprefix("whole_"): row for row in near_duplicates(moving)}
    assert {name: row["reason"] for name, row in rows.items()} == {
        "whole": "kept", "again": "same bytes", **dict.fromkeys("abcd", "first frame only")
    }  # fmt: skip
    assert [name for name, row in rows.items() if not row["keep"]] == ["again"]
    near = near_duplicates(moving, max_distance=1.0)
    assert [row["name"] for row in near if not row["keep"]] == [f"whole_again.{ending}"]


def groups(rows: Any) -> list[set[str]]:
    found: dict[int, set[str]] = {}
    for row in rows:
        found.setdefault(row["group"], set()).add(row["name"])
    return list(found.values())


def test_copies_are_found_however_they_were_made(duplicates: Records) -> None:
    found = duplicates
    assert groups(found) == [
        {"p0.png", "p0_jpeg.jpg", "p0_small.png", "p0_mirrored.png", "p0_bright.png", "p0_large.png"},
        {"p1.png", "p1_crop.png"}, {"p2.png", "p2_again.png"},
    ]  # fmt: skip
    rows = {row["name"]: row for row in found}
    assert [name for name, row in rows.items() if row["keep"]] == ["p0_large.png", "p1.png", "p2.png"]
    assert rows["p2_again.png"]["reason"] == "same bytes"
    assert rows["p1_crop.png"]["reason"] == "copy"
    assert rows["p0_large.png"]["reason"] == "kept"
    assert rows["p0_mirrored.png"]["mirrored"]
    assert not rows["p0_bright.png"]["mirrored"]
    assert all(row["copy_agreement"] >= 0.7 for row in found)
    assert rows["p0_small.png"]["width"] == 100
    assert [row["size"] for row in found] == [6] * 6 + [2] * 4
    assert all(Path(row["image"]).is_file() for row in found)


def test_a_kept_file_never_goes_by_another_path_or_mask(tiny: IDSim, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    picture(1).save(folder / "z.png")
    (folder / "a.png").symlink_to("z.png")
    linked = Gallery(tmp_path / "linked", tiny)
    linked.update(folder)
    rows = near_duplicates(linked)
    assert [(row["name"], row["reason"], row["keep"]) for row in rows] == [
        ("a.png", "kept", True), ("z.png", "same file", True),
    ]  # fmt: skip

    for name, box in (("left", (0, 0, 120, 160)), ("right", (80, 0, 200, 160))):
        mask = Image.new("L", (200, 160))
        mask.paste(255, box)
        mask.save(tmp_path / f"{name}.png")
    lines = [f"{name},p/z.png,{name}.png,{name}" for name in ("left", "right")]
    (tmp_path / "masked.csv").write_text("\n".join(["id,path,mask,identity", *lines]), encoding="utf-8")
    masked = Gallery(tmp_path / "masked", tiny, masked=True)
    masked.update(tmp_path / "masked.csv")
    assert [(row["reason"], row["keep"]) for row in near_duplicates(masked)] == [("kept", True), ("same file", True)]


def test_the_sharpest_can_be_kept_instead(tiny: IDSim, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    sharp = picture(5)
    sharp.save(tmp_path / "p" / "sharp.png")
    sharp.resize((400, 320)).filter(ImageFilter.GaussianBlur(2)).save(tmp_path / "p" / "blurred_but_large.png")
    gallery = Gallery(tmp_path / "g", tiny)
    gallery.update(tmp_path / "p")
    for keep, name in (("largest", "blurred_but_large.png"), ("sharpest", "sharp.png")):
        found = near_duplicates(gallery, keep=keep)  # type: ignore[arg-type]
        assert [row["name"] for row in found if row["keep"]] == [name]
    rows = {row["name"]: row["sharpness"] for row in found}
    assert rows["sharp.png"] > rows["blurred_but_large.png"]


def test_sharpness_is_the_variance_of_the_laplacian_over_that_of_the_grays() -> None:
    image = picture(1, (256, 200)).convert("L")
    x = np.pad(np.asarray(image, float), 1, mode="reflect")
    slow = [
        x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1] - 4 * x[i, j]
        for i in range(1, 201) for j in range(1, 257)
    ]  # fmt: skip
    assert sharpness(image) == pytest.approx(np.var(slow) / np.var(np.asarray(image, float)))
    assert sharpness(Image.new("RGB", (50, 40))) == 0
    lit = ImageEnhance.Brightness(image).enhance(0.8)
    assert np.asarray(lit).var() < 0.7 * np.asarray(image).var()
    assert sharpness(lit) == pytest.approx(sharpness(image), rel=0.2)  # eight bits round


def test_nearness_links_what_pixels_do_not(gallery: Gallery, duplicates: Records) -> None:
    far = gallery.metric.pairwise([picture(0), picture(3)])[0, 1].item()
    assert not any("p3.png" in group for group in groups(duplicates))
    found = near_duplicates(gallery, max_distance=far + 1e-4)
    assert any({"p0.png", "p3.png"} <= group for group in groups(found))
    assert {row["reason"] for row in found} <= {"kept", "same bytes", "copy", "near"}


def test_every_file_that_could_go_repeats_the_one_that_is_kept(tiny: IDSim, tmp_path: Path) -> None:
    """Frames of a zoom hang together like a chain, whose ends do not repeat each other."""
    (tmp_path / "p").mkdir()
    for k in range(9):
        picture(40).crop((6 * k, 5 * k, 200 - 6 * k, 160 - 5 * k)).save(tmp_path / "p" / f"{k}.png")
    gallery = Gallery(tmp_path / "g", tiny)
    gallery.update(tmp_path / "p")

    rows = near_duplicates(gallery).rows
    wide, close = groups(rows)
    assert {"0.png", "1.png", "2.png"} <= wide
    assert {"7.png", "8.png"} <= close
    assert sorted(wide | close) == [f"{k}.png" for k in range(9)]
    assert [row["size"] for row in rows] == [len(wide)] * len(wide) + [len(close)] * len(close)
    assert next(row["name"] for row in rows if row["keep"]) == "0.png"
    assert all(row["copy_agreement"] >= 0.7 for row in rows)

    limit = max(row["distance"] for row in rows)
    burst = near_duplicates(gallery, max_distance=limit).rows
    assert all(row["reason"] == "copy" or row["distance"] <= limit for row in burst if not row["keep"])


# Identities


def clumps(seed: int, spread: float) -> Any:
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(8, 12))
    return unit(centers[rng.integers(0, 8, 90)] + spread * rng.normal(size=(90, 12)))


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("threshold", [0.0, 0.12, 2.0])
def test_clusters_are_those_of_scikit_learn(linkage: Any, seed: int, threshold: float) -> None:
    vectors = clumps(seed, 0.5)
    own = cluster(vectors, threshold, linkage)
    # scikit-learn joins below its threshold, not at it
    theirs = AgglomerativeClustering(
        None, metric="precomputed", linkage=linkage, distance_threshold=threshold + 1e-9
    ).fit_predict(cosine_distances(vectors.astype(float)))
    assert np.array_equal(own[:, None] == own, theirs[:, None] == theirs)
    first = [own.tolist().index(label) for label in range(own.max() + 1)]
    assert first == sorted(first)


def test_pairs_as_far_as_the_threshold_are_of_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    distance = 0.2 + np.array([-2e-6, -4e-7, 4e-7, 2e-6])  # rounded to six decimals: below, at, at, above
    angle = np.arccos(1 - distance)
    for number, (x, y) in enumerate(zip(np.cos(angle), np.sin(angle), strict=True)):
        vectors = np.array([[1, 0], [x, y]])
        assert cluster(vectors, 0.2, "single").tolist() == [0, int(number == 3)]
    vectors = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])  # no pair is near: no block joins any
    monkeypatch.setattr("idmetric.gallery.linkage._CELLS", 1)
    assert cluster(vectors, 0.2).tolist() == [0, 1, 2]


def test_identities_come_in_groups_around_a_center(gallery: Gallery) -> None:
    rows = identities(gallery, threshold=0.02)
    assert len(rows) == len(gallery)
    by_group = groups(rows)
    assert any({"p2.png", "p2_again.png"} <= group for group in by_group)
    assert [len(group) for group in by_group] == sorted(map(len, by_group), reverse=True)
    vectors = {item.name: v for item, v in zip(gallery.items, gallery.vectors().astype(float), strict=True)}
    for group in by_group:
        [center] = [row["name"] for row in rows if row["center"] and row["name"] in group]
        mean = {a: np.mean([1 - vectors[a] @ vectors[b] for b in group]) for a in group}
        assert mean[center] == pytest.approx(min(mean.values()), abs=1e-6)
        for row in rows:
            if row["name"] in group:
                assert row["distance"] == pytest.approx(1 - vectors[row["name"]] @ vectors[center], abs=1e-6)


def test_the_threshold_is_that_of_the_calibration(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), gallery.metric.calibration_id(), "cls",
        thresholds=({"false_accept_rate": 0.01, "distance": 0.017}, {"false_accept_rate": 0.1, "distance": 0.2}),
    )  # fmt: skip
    monkeypatch.setattr(gallery, "calibration", found)
    one_percent = Limit(0.017, "given calibration, 1 % of pairs")
    assert identities(gallery).rows == identities(gallery, threshold=one_percent).rows
    assert {row["threshold_source"] for row in identities(gallery, threshold=0.017)} == {"given"}
    monkeypatch.setattr(gallery, "calibration", replace(found, thresholds=found.thresholds[1:]))
    with pytest.raises(ValueError, match=r"--rates 0\.01"):
        identities(gallery)
    monkeypatch.setattr(gallery, "calibration", None)
    monkeypatch.setattr(gallery.metric, "folder", None)
    with pytest.raises(ValueError, match="has no calibration"):
        identities(gallery)


# The command


@pytest.fixture
def run(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.chdir(tmp_path)
    return Runner(command.main, capsys)


def test_the_command_builds_and_answers(run: Runner, photos: Path) -> None:
    built = "11 images, 10 embedded, 11 new in g by IDSim:tiny"
    run.says(built, "build -g g --model tiny --device cpu", photos, status=0)
    query = ("query -g g -k 3 --device cpu", photos / "p1.png")
    status, out, _ = run.all(*query, "--format", "json")
    assert status == 0
    hits = json.loads(out)
    assert [Path(h["image"]).name for h in hits][:2] == ["p1.png", "p1_crop.png"]
    _, out, _ = run.all(*query, "--rerank", 5, "--distance", "joint", "--calibration", "stored")
    assert out == ""  # the calibration is for cls
    _, out, _ = run.all(*query, "--rerank", 5, "--distance", "joint")
    assert "distance=joint" in out
    assert out.splitlines()[1].split()[1:3] == ["1", "0.0000"]


def test_wrong_usage_says_what_is_right(run: Runner, photos: Path) -> None:
    for argv, words in (
        (("query", photos / "p0.png"), "--gallery"),
        (("build", "nowhere", "-g", "g"), "there is no 'nowhere'"),
        (("cluster",), "give a folder, or --gallery"),
        (("build", photos, "-g", "g", "--batch-size", "0"), "at least 1"),
    ):
        run.fails(words, *argv, status=2)
    run.fails("'none' is not a gallery: make one with", "query", photos / "p0.png", "-g", "none", "--model", "tiny")
    assert not Path("none").exists()
    assert run("--help") == 0


def test_a_gallery_of_two_models_asks_which(run: Runner, photos: Path, tiny: IDSim) -> None:
    tiny.save_pretrained("copy")
    run("build", photos / "p0.png", "-g", "g", "--model", "tiny", "--device", "cpu")
    run("build", photos / "p0.png", "-g", "g", "--model", "copy", "--device", "cpu")
    run.fails("say which, by --model", "query", photos / "p0.png", "-g", "g", "--device", "cpu", status=2)


def test_groups_are_printed_with_their_threshold_and_its_source(run: Runner, photos: Path) -> None:
    run("build -g g --model tiny --device cpu", photos)
    distances = {t["false_accept_rate"]: t["distance"] for t in calibration_of(load("tiny")).thresholds}  # type: ignore[union-attr]
    asked = "cluster -g g --device cpu"
    run.prints(f"threshold {distances[0.01]:.4f} (stored calibration, 1 % of pairs)", asked)
    run.prints("threshold 0.0200 (option --threshold)", f"{asked} --threshold .02")
    rows = json.loads(run.all(f"{asked} --format json")[1])
    assert {round(row["threshold"], 6) for row in rows} == {round(distances[0.01], 6)}
    assert {row["threshold_source"] for row in rows} == {"stored calibration, 1 % of pairs"}
    run.prints("; near: within 0.02 (option --max-distance)", "dedupe -g g --device cpu --max-distance .02")
    assert "near" not in run.all("dedupe -g g --device cpu")[1].splitlines()[-1].replace("near-duplicates", "")
    rows = json.loads(run.all("dedupe -g g --device cpu --max-distance .02 --format json")[1])
    assert {(row["threshold"], row["threshold_source"]) for row in rows} == {(0.02, "option --max-distance")}


def test_a_table_that_is_no_manifest_leads_to_its_importer(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "photos.csv").write_text("file,name\na.png,a\n")
    run.says("idmetric data import table makes a manifest", "build photos.csv -g g --model tiny --device cpu")
    for text, fault in (("name,photo\na,a.png\n", "no column 'identity'"),
                        ('identity,path,bbox\na,a.png,"[0, 0, 9, 9]"\n', "unknown column 'bbox'")):  # fmt: skip
        (tmp_path / "metadata.csv").write_text(text)
        said = run.says("idmetric data import wildlife makes a manifest", "build metadata.csv -g g --model tiny")
        assert fault in said


def test_metadata_of_wildlife_names_animals_and_far_ones_are_unknown(
    run: Runner, photos: Path, tmp_path: Path, tiny: IDSim
) -> None:
    (tmp_path / "metadata.csv").write_text(
        "image_id,identity,path,date,orientation,species,split,dataset\n"
        f"1,ATRW_7,{photos / 'p0.png'},2020-01-02,left,tiger,train,ATRW\n"
        f"2,unknown,{photos / 'p3.png'},2020-01-03,right,tiger,test,ATRW\n"
    )
    run.says("2 images, 2 embedded", "build metadata.csv -g g --model tiny --device cpu", status=0)
    Path("new").mkdir()
    shutil.copyfile(photos / "p0.png", "new/same.png")
    picture(1).save("new/other.png")
    query = "query new/same.png new/other.png -g g -k 1 --device cpu --format json"

    def answers(words: str) -> list[str]:
        return [row["answer"] for row in json.loads(run.all(f"{query} {words}")[1])]

    same, other = json.loads(run.all(query)[1])
    assert (same["distance"], same["identity"]) == (0, "ATRW_7")
    far = other["distance"]
    assert answers("--unknown-above 0") == ["ATRW_7", "unknown"]  # one at the threshold is known
    assert answers(f"--unknown-above {far / 2}") == ["ATRW_7", "unknown"]
    assert answers(f"--unknown-above {2 * far}") == ["ATRW_7", other["identity"]]
    calibration = Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), tiny.calibration_id(), "cls",
        thresholds=({"false_accept_rate": 0.01, "distance": far / 2}, {"false_accept_rate": 0.1, "distance": 2 * far}),
    )  # fmt: skip
    calibration.write(tmp_path / "own.json")
    assert answers("--unknown-above calibrated --calibration own.json") == ["ATRW_7", "unknown"]
    run.prints(
        "unknown above 0.5000 (option --unknown-above)", "query new/other.png -g g --device cpu --unknown-above .5"
    )

    # the rate is 1 %, and the source of the threshold stands in table, JSON and Python
    asked = "--unknown-above calibrated --calibration own.json"
    source = "own.json, 1 % of pairs"
    run.prints(f"unknown above {far / 2:.4f} ({source})", f"query new/other.png -g g --device cpu {asked}")
    [first, _] = json.loads(run.all(f"{query} {asked}")[1])
    assert (first["threshold"], first["threshold_source"]) == (pytest.approx(far / 2), source)
    metric = load("tiny", device="cpu")
    (hit,) = Gallery("g", metric, calibration=tmp_path / "own.json").query(
        "new/other.png", 1, unknown_above="calibrated"
    )
    assert hit["threshold_source"] == source
    (hit,) = Gallery("g", tiny).query("new/other.png", 1, unknown_above=0.5)
    assert (hit["threshold"], hit["threshold_source"]) == (0.5, "given")

    for limit in ("far", "nan", "inf", "-1"):  # NaN and infinity would name every image
        text = f"{limit!r} is neither a distance, such as 0.3, nor 'calibrated'"
        run.fails(text, f"query new/other.png -g g --unknown-above={limit}", status=2)
