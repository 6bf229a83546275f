from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics.pairwise import cosine_distances

from idmetric import IDSim, load
from idmetric.cli import gallery as command
from idmetric.data.manifest.table import Manifest, Row
from idmetric.data.nearest import unit
from idmetric.gallery import Gallery, looks
from idmetric.gallery.clusters import identities, near_duplicates
from idmetric.gallery.linkage import cluster
from idmetric.gallery.look_files import sharpness
from idmetric.gallery.prune import LOOKS
from idmetric.metric.calibration.apply import Calibration
from idmetric.metric.calibration.curves import Isotonic
from idmetric.scoring.limits import Limit
from idmetric.scoring.records import Records
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


def test_of_images_as_large_and_as_sharp_the_least_compressed_is_kept(tiny: IDSim, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    for quality in (30, 95, 60):
        with Image.open(Path(__file__).parents[2] / "examples" / "images" / "box_a.png") as box:
            box.convert("RGB").save(tmp_path / "p" / f"{quality}.jpg", quality=quality)
    gallery = Gallery(tmp_path / "g", tiny)
    gallery.update(tmp_path / "p")
    assert [row["name"] for row in near_duplicates(gallery) if row["keep"]] == ["95.jpg"]


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
    for k in range(7):
        picture(40).crop((6 * k, 5 * k, 200 - 6 * k, 160 - 5 * k)).save(tmp_path / "p" / f"{k}.png")
    gallery = Gallery(tmp_path / "g", tiny)
    gallery.update(tmp_path / "p")

    rows = near_duplicates(gallery).rows
    assert groups(rows) == [{"0.png", "1.png", "2.png", "3.png", "4.png"}, {"5.png", "6.png"}]
    assert [row["name"] for row in rows if row["keep"]] == ["0.png", "5.png"]
    assert [row["size"] for row in rows] == [5] * 5 + [2] * 2
    assert all(row["copy_agreement"] >= 0.7 for row in rows)

    limit = max(row["distance"] for row in rows)
    burst = near_duplicates(gallery, max_distance=limit).rows
    assert all(row["reason"] == "copy" or row["distance"] <= limit for row in burst if not row["keep"])


def test_where_no_image_can_be_used_there_are_no_groups(tiny: IDSim, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.png").write_text("no image")
    gallery = Gallery(tmp_path / "g", tiny)
    assert gallery.update(tmp_path / "p").images == 0
    for found in (near_duplicates(gallery), identities(gallery, threshold=0.1)):
        assert len(found) == 0
        assert found.to_csv().startswith("group,size,")
    picture(0, (60, 50)).save(tmp_path / "p" / "b.png")
    gallery.update(tmp_path / "p")
    assert len(near_duplicates(gallery)) == 0
    assert [row["name"] for row in identities(gallery, threshold=0.1)] == ["b.png"]


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


def test_many_blocks_give_the_same_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clumps(1, 0.5)
    expected = cluster(vectors, 0.1)
    monkeypatch.setattr("idmetric.gallery.linkage._CELLS", 200)
    assert np.array_equal(cluster(vectors, 0.1), expected)
    monkeypatch.setattr("idmetric.gallery.linkage.LARGEST", 10)
    with pytest.raises(ValueError, match="lower the threshold, or linkage='single'"):
        cluster(vectors, 1.5)
    assert cluster(vectors, 1.5, "single").max() == 0


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
        Isotonic((-3.0, 1.0), (0.01, 0.99)), gallery.metric.calibrated_model(files=False), "cls",
        thresholds=({"false_accept_rate": 0.01, "distance": 0.017}, {"false_accept_rate": 0.1, "distance": 0.2}),
    )  # fmt: skip
    monkeypatch.setattr(gallery.metric, "_calibration", found)
    one_percent = Limit(0.017, "stored calibration, 1 % of pairs")
    assert identities(gallery).rows == identities(gallery, threshold=one_percent).rows
    assert {row["threshold_source"] for row in identities(gallery, threshold=0.017)} == {"given"}
    monkeypatch.setattr(gallery.metric, "_calibration", replace(found, thresholds=found.thresholds[1:]))
    with pytest.raises(ValueError, match=r"0\.01 or less, only at 0\.1"):
        identities(gallery)
    monkeypatch.setattr(gallery.metric, "_calibration", None)
    monkeypatch.setattr(gallery.metric.weights, "files", None)
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


def test_the_command_sees_what_changed_and_lists_what_it_cannot_read(run: Runner, photos: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for number in range(3):
        picture(number, (60, 50)).save(own / f"{number}.png")
    common = ("-g", "g", "--device", "cpu")
    assert run("build", own, "--model", "tiny", "--parquet", "g.parquet", *common) == 0
    assert (tmp_path / "g.parquet").is_file()
    picture(7, (60, 50)).save(own / "new.png")
    (own / "bad.png").write_text("no image")
    assert "left out" in run.says("bad.png", "build --quick", own, *common, status=4)
    out = run.all("query", own / "new.png", "--format", "csv", *common)[1]
    assert Path(next(csv.DictReader(out.splitlines()))["image"]).name == "new.png"
    picture(8, (60, 50)).save(own / "1.png")
    run.fails("1.png (changed)", "query", own / "1.png", *common, status=4)
    assert run("build --quiet", own, *common) == 4
    assert run.all("query", own / "1.png", "-k", 1, *common)[1].splitlines()[1].endswith("1.png")


def test_the_command_writes_groups(run: Runner, photos: Path, tmp_path: Path) -> None:
    status, out, _ = run.all("dedupe", photos, "--model", "tiny", "--device", "cpu", "-o", "groups.csv")
    assert (status, out) == (0, "")
    with (tmp_path / "groups.csv").open(newline="") as file:
        assert sum(row["keep"] == "True" for row in csv.DictReader(file)) == 3
    assert len(list(photos.iterdir())) == 11
    status, out, _ = run.all("cluster", photos, "--model", "tiny", "--device", "cpu", "--threshold", "0.02")
    assert status == 0
    assert "11 images" in out.splitlines()[-1]
    assert os.listdir(tmp_path) == ["groups.csv"]  # a gallery without a name is not kept


def test_the_command_removes_what_is_gone(run: Runner, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for number in range(3):
        picture(number, (60, 50)).save(tmp_path / "own" / f"{number}.png")
    common = ("-g", "g", "--device", "cpu")
    assert run("build own --model tiny", *common) == 0
    (tmp_path / "own" / "1.png").unlink()
    assert run("build own", *common) == 0
    err = run.says("removed 1 embeddings", "prune", *common, status=0)
    assert "2 images in g" in err
    assert run("prune") == 2


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


def test_written_files_are_named_with_what_is_in_them(run: Runner, photos: Path) -> None:
    run("build -g g --model tiny --device cpu", photos)
    for words, counts in (("dedupe", " of near-duplicates, "), ("cluster --threshold 0.3", "groups, ")):
        said = run.says("idmetric gallery: wrote out.csv: 11 images, ", f"{words} -g g --output out.csv", status=0)
        assert counts in said
        assert run.says("", f"{words} -g g --output out.csv --quiet", status=0) == ""


def test_groups_are_printed_with_their_threshold_and_its_source(run: Runner, photos: Path) -> None:
    run("build -g g --model tiny --device cpu", photos)
    distances = {t["false_accept_rate"]: t["distance"] for t in load("tiny").calibration.thresholds}  # type: ignore[union-attr]
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


def test_a_query_prints_the_identities_of_a_manifest(run: Runner, photos: Path, tmp_path: Path) -> None:
    rows = [Row("box", str(photos / "p0.png")), Row(None, str(photos / "p1.png"))]
    Manifest.from_rows(rows, tmp_path).write(tmp_path / "set.csv")
    run("build set.csv -g g --model tiny --device cpu")
    out = run.prints("identity", "query -g g --device cpu", photos / "p0.png")
    assert out.splitlines()[1].split()[-1] == "box"
    assert out.splitlines()[2].split()[-1].endswith("p1.png")  # of unknown identity
    run("build -g plain --model tiny --device cpu", photos)
    assert "identity" not in run.prints("distance", "query -g plain --device cpu", photos / "p0.png")


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
        Isotonic((-3.0, 1.0), (0.01, 0.99)), tiny.calibrated_model(files=False), "cls",
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
    metric = load("tiny", device="cpu").calibrate_with(tmp_path / "own.json")
    (hit,) = Gallery("g", metric).query("new/other.png", 1, unknown_above="calibrated")
    assert hit["threshold_source"] == source
    (hit,) = Gallery("g", tiny).query("new/other.png", 1, unknown_above=0.5)
    assert (hit["threshold"], hit["threshold_source"]) == (0.5, "given")

    for limit in ("far", "nan", "inf", "-1"):  # NaN and infinity would name every image
        text = f"{limit!r} is neither a distance, such as 0.3, nor 'calibrated'"
        run.fails(text, f"query new/other.png -g g --unknown-above={limit}", status=2)


def test_images_of_relative_sources_are_named_from_here(
    run: Runner, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set" / "deep").mkdir(parents=True)
    for name in ("a.png", "deep/b.png"):
        shutil.copyfile(photos / "p0.png", tmp_path / "set" / name)
    Manifest.from_rows([Row(None, image_bytes=(photos / "p1.png").read_bytes(), id="x/../y")]).write("in.parquet")

    def named(*words: Any) -> list[str]:
        return sorted(row["image"] for row in json.loads(run.all(*words)[1]))

    run("build set in.parquet -g g --model tiny --device cpu")
    query = ("-g", tmp_path / "g", "--device", "cpu", "--format", "json")
    assert named("query", photos / "p0.png", *query) == ["in.parquet#x/../y", "set/a.png", "set/deep/b.png"]
    assert named("dedupe", *query) == ["set/a.png", "set/deep/b.png"]
    monkeypatch.chdir(tmp_path / "set")
    assert named("dedupe", *query) == ["a.png", "deep/b.png"]
    run("build", tmp_path / "set", *query[:4])
    assert named("dedupe", *query) == [str(tmp_path / "set" / name) for name in ("a.png", "deep/b.png")]


def test_known_identities_stay_beside_what_is_found(tiny: IDSim, photos: Path, tmp_path: Path) -> None:
    rows = [Row("box", str(photos / "p0.png")), Row("cup", str(photos / "p0_jpeg.jpg"))]
    Manifest.from_rows(rows, tmp_path).write(tmp_path / "set.csv")
    gallery = Gallery(tmp_path / "g", tiny)
    gallery.update(tmp_path / "set.csv")
    assert {row["identity"] for row in near_duplicates(gallery)} == {"box", "cup"}  # one picture, two names


def test_pictures_and_pairs_are_looked_at_once(
    tiny: IDSim, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(photos, tmp_path / "p")
    gallery = Gallery(tmp_path / "g", tiny)
    gallery.update(tmp_path / "p")
    pairs: list[int] = []
    real = looks.compare_pairs

    def counted(pictures: NDArray[np.uint8], a: NDArray[np.int64], *rest: Any, **options: Any) -> Any:
        pairs.append(len(a))
        return real(pictures, a, *rest, **options)

    monkeypatch.setattr(looks, "compare_pairs", counted)
    read: list[str] = []
    real_read = Gallery.read
    monkeypatch.setattr(Gallery, "read", lambda self, item: (read.append(item.name), real_read(self, item))[1])
    first = near_duplicates(gallery).rows
    assert sum(pairs) == 10 * 9 / 2  # of ten different images
    once = len(read)

    assert near_duplicates(gallery).rows == first
    assert (sum(pairs), len(read)) == (45, once)
    picture(9).save(tmp_path / "p" / "new.png")
    gallery.update(tmp_path / "p")
    assert near_duplicates(gallery).rows == first
    assert read[once:] == ["new.png"] * 2
    assert sum(pairs) == 45 + 10
    (tmp_path / "p" / "new.png").unlink()
    gallery.update(tmp_path / "p")
    gallery.prune()
    assert not (gallery.store / LOOKS).exists()
    assert near_duplicates(gallery).rows == first


def test_a_folder_that_cannot_be_written_and_damaged_looks_cost_no_answer(
    tiny: IDSim, photos: Path, tmp_path: Path, duplicates: Records
) -> None:
    gallery = Gallery(tmp_path / "g", tiny)
    gallery.update(photos)
    (gallery.store / LOOKS).write_text("in the way")
    with pytest.warns(UserWarning, match="pictures are kept for this run alone"):
        found = near_duplicates(gallery)
    assert [row["name"] for row in found] == [row["name"] for row in duplicates]
    (gallery.store / LOOKS).unlink()
    near_duplicates(gallery)
    files = sorted((gallery.store / LOOKS).iterdir())
    files[0].write_bytes(files[0].read_bytes()[:-9])
    files[-1].write_bytes(b"")
    assert [row["name"] for row in near_duplicates(gallery)] == [row["name"] for row in duplicates]
