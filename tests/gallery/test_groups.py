"""Near-duplicates and identities: groups of a gallery's images."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics.pairwise import cosine_distances

from idmetric import IDSim
from idmetric.data.nearest import unit
from idmetric.gallery import Answer, Gallery
from idmetric.gallery.clusters import cluster
from idmetric.scoring.scores import Limit
from tests.gallery.parts import contents, detailed, names_of_groups
from tests.gallery.test_search import calibration_for


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures; of the first five copies, of the second one, and the third twice."""
    folder = tmp_path_factory.mktemp("copies")
    for number in range(4):
        detailed(number).save(folder / f"p{number}.png")
    first = detailed(0)
    first.save(folder / "p0_jpeg.jpg", quality=40)
    first.resize((100, 80)).save(folder / "p0_small.png")
    ImageOps.mirror(first).save(folder / "p0_mirrored.png")
    ImageEnhance.Brightness(first).enhance(1.15).save(folder / "p0_bright.png")
    detailed(0, (400, 320)).save(folder / "p0_large.png")
    detailed(1).crop((8, 6, 196, 154)).save(folder / "p1_crop.png")
    (folder / "p2 (1).png").write_bytes((folder / "p2.png").read_bytes())
    return folder


@pytest.fixture(scope="module")
def gallery(tiny: IDSim, copies: Path, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    gallery = Gallery(tmp_path_factory.mktemp("gallery"), tiny)
    gallery.build(copies)
    return gallery


@pytest.fixture(scope="module")
def duplicates(gallery: Gallery) -> Answer:
    return gallery.duplicates()


def built(tiny: IDSim, folder: Path, **pictures: Image.Image) -> Gallery:
    """The gallery of a folder, with the small pictures that are taken while it is built."""
    folder.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        picture.save(folder / f"{name}.png")
    gallery = Gallery(folder.parent / f"{folder.name}.index", tiny)
    gallery.build(folder, prints=True)
    return gallery


# Near-duplicates


def test_copies_are_found_however_they_were_made(duplicates: Answer) -> None:
    assert names_of_groups(duplicates) == [
        {"p0.png", "p0_jpeg.jpg", "p0_small.png", "p0_mirrored.png", "p0_bright.png", "p0_large.png"},
        {"p1.png", "p1_crop.png"}, {"p2.png", "p2 (1).png"},
    ]  # fmt: skip
    rows = {Path(row["path"]).name: row for row in duplicates}
    assert [name for name, row in rows.items() if row["keep"]] == ["p0_large.png", "p1.png", "p2.png"]
    assert rows["p2 (1).png"]["reason"] == "same bytes"
    assert rows["p1_crop.png"]["reason"] == "copy"
    assert rows["p0_large.png"]["reason"] == "kept"
    assert rows["p0_mirrored.png"]["mirrored"]
    assert not rows["p0_bright.png"]["mirrored"]
    assert all(row["copy_agreement"] >= 0.7 for row in duplicates)
    assert (rows["p0_small.png"]["width"], rows["p0_small.png"]["height"]) == (100, 80)
    assert [row["size"] for row in duplicates] == [6] * 6 + [2] * 4


def test_prints_are_taken_by_the_build_or_read_once(tiny: IDSim, gallery: Gallery, duplicates: Answer, copies: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    while_built = Gallery(tmp_path / "index", tiny)
    while_built.build(copies, prints=True)
    monkeypatch.setattr(IDSim, "read_image", None)  # nothing is decoded any more
    for again in (while_built, Gallery(gallery.folder, tiny)):
        assert again.duplicates().to_records() == duplicates.to_records()


@pytest.mark.parametrize(
    "name",
    ["a (2)", "a copy", "a - Copy", "a_copy 2", "Copy of a", "a copy (3)"],
    ids=lambda name: name.replace(" ", "."),
)
def test_of_the_same_bytes_the_file_whose_name_is_no_copys_is_kept(tiny: IDSim, tmp_path: Path, name: str) -> None:
    gallery = built(tiny, tmp_path / "p", **{name: detailed(3), "z copying": detailed(3)})
    assert [Path(row["path"]).stem for row in gallery.duplicates() if row["keep"]] == ["z copying"]


@pytest.mark.parametrize("ending", ["gif", "tiff"])
def test_files_of_several_frames_repeat_only_the_same_bytes(tiny: IDSim, tmp_path: Path, ending: str) -> None:
    (tmp_path / "p").mkdir()
    lossy: dict[str, Any] = {"gif": {"duration": 50}, "tiff": {"compression": "jpeg"}}[ending]
    for name, seeds in {"a": (0, 1), "b": (0, 2), "c": (0, 1, 2), "d": (0,)}.items():
        first, *others = (detailed(seed) for seed in seeds)
        first.save(tmp_path / "p" / f"{name}.{ending}", save_all=True, append_images=others, **lossy)
    shutil.copy(tmp_path / "p" / f"a.{ending}", tmp_path / "p" / f"again.{ending}")
    gallery = built(tiny, tmp_path / "p")
    for answer in (gallery.duplicates(), gallery.duplicates(max_distance=1.0)):
        rows = {Path(row["path"]).stem: row["reason"] for row in answer}
        assert rows == {"a": "kept", "again": "same bytes"}


def test_a_kept_file_never_goes_by_another_path_or_mask(tiny: IDSim, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    detailed(1).save(folder / "z.png")
    (folder / "a.png").symlink_to("z.png")
    rows = built(tiny, folder).duplicates()
    assert [(Path(row["path"]).name, row["reason"], row["keep"]) for row in rows] == [
        ("a.png", "kept", True), ("z.png", "same file", True),
    ]  # fmt: skip

    for name, box in (("left", (0, 0, 120, 160)), ("right", (80, 0, 200, 160))):
        mask = Image.new("L", (200, 160))
        mask.paste(255, box)
        mask.save(tmp_path / f"{name}.png")
    lines = [f"{name},p/z.png,{name}.png,{name}" for name in ("left", "right")]
    (tmp_path / "masked.csv").write_text("\n".join(["id,path,mask,identity", *lines]), encoding="utf-8")
    masked = Gallery(tmp_path / "masked", tiny, masked=True)
    masked.build(tmp_path / "masked.csv")
    assert [(row["reason"], row["keep"]) for row in masked.duplicates()] == [("kept", True), ("same file", True)]


def test_nearness_links_what_pixels_do_not(gallery: Gallery, duplicates: Answer) -> None:
    far = gallery.metric.pairwise([detailed(0), detailed(3)])[0, 1].item()
    assert not any("p3.png" in group for group in names_of_groups(duplicates))
    limit = Limit(far + 1e-4, "mine")
    answer = gallery.duplicates(max_distance=limit)
    assert any({"p0.png", "p3.png"} <= group for group in names_of_groups(answer))
    assert {row["reason"] for row in answer} <= {"kept", "same bytes", "copy", "near"}
    assert {(row["threshold"], row["threshold_source"]) for row in answer} == {(limit.distance, "mine")}


def test_every_file_that_could_go_repeats_the_one_that_is_kept(tiny: IDSim, tmp_path: Path) -> None:
    """Frames of a zoom hang together like a chain, whose ends do not repeat each other."""
    frames = {f"f{k}": detailed(40).crop((6 * k, 5 * k, 200 - 6 * k, 160 - 5 * k)) for k in range(9)}
    rows = built(tiny, tmp_path / "p", **frames).duplicates()
    wide, close = names_of_groups(rows)
    assert {"f0.png", "f1.png", "f2.png"} <= wide
    assert {"f7.png", "f8.png"} <= close
    assert sorted(wide | close) == [f"f{k}.png" for k in range(9)]
    assert all(row["copy_agreement"] >= 0.7 for row in rows)
    assert [row["keep"] for row in rows] == [number == 0 for group in (wide, close) for number in range(len(group))]


# Identities


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("threshold", [0.0, 0.12, 2.0])
def test_clusters_are_those_of_scikit_learn(linkage: Any, seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(8, 12))
    vectors = unit(centers[rng.integers(0, 8, 90)] + 0.5 * rng.normal(size=(90, 12)))
    labels = cluster(vectors, threshold, linkage)
    # scikit-learn joins below its threshold, not at it
    model = AgglomerativeClustering(None, metric="precomputed", linkage=linkage, distance_threshold=threshold + 1e-9)
    expected = model.fit_predict(cosine_distances(vectors.astype(float)))
    assert np.array_equal(labels[:, None] == labels, expected[:, None] == expected)
    first = [labels.tolist().index(label) for label in range(labels.max() + 1)]
    assert first == sorted(first)


def test_pairs_as_far_as_the_threshold_are_of_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    distance = 0.2 + np.array([-2e-6, -4e-7, 4e-7, 2e-6])  # rounded to six decimals: below, at, at, above
    angle = np.arccos(1 - distance)
    for number, (x, y) in enumerate(zip(np.cos(angle), np.sin(angle), strict=True)):
        vectors = np.array([[1, 0], [x, y]])
        assert cluster(vectors, 0.2, "single").tolist() == [0, int(number == 3)]
    vectors = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])  # no pair is near: no block joins any
    monkeypatch.setattr("idmetric.gallery.clusters._CELLS", 1)
    monkeypatch.setattr("idmetric.gallery.clusters._MEASURED", 1)
    assert cluster(vectors, 0.2).tolist() == [0, 1, 2]
    assert cluster(np.repeat(vectors, 3, 0), 0.0).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    monkeypatch.setattr("idmetric.gallery.clusters.LARGEST", 2)
    with pytest.raises(ValueError, match="single"):
        cluster(np.repeat(vectors, 3, 0), 0.0)


def test_identities_come_in_groups_around_a_center(gallery: Gallery) -> None:
    rows = gallery.identities(threshold=0.02)
    assert len(rows) == len(gallery)
    groups = names_of_groups(rows)
    assert any({"p2.png", "p2 (1).png"} <= group for group in groups)
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
    names = [Path(path).name for path in gallery.to_pandas()["path"]]
    vectors = dict(zip(names, gallery.vectors().astype(float), strict=True))
    for group in groups:
        [center] = {Path(row["path"]).name for row in rows if row["center"]} & group
        mean = {a: np.mean([1 - vectors[a] @ vectors[b] for b in group]) for a in group}
        assert mean[center] == pytest.approx(min(mean.values()), abs=1e-6)
        for row in rows:
            name = Path(row["path"]).name
            if name in group:
                assert row["distance"] == pytest.approx(1 - vectors[name] @ vectors[center], abs=1e-6)


def test_each_content_counts_once(tiny: IDSim, tmp_path: Path) -> None:
    """Average linkage of p, q and many copies of q depends on their number, unless each content counts once."""
    gallery = built(tiny, tmp_path / "p", **{str(number): detailed(number) for number in range(6)})
    threshold = 0.06
    before = names_of_groups(gallery.identities(threshold=threshold))
    for copy in range(5):
        shutil.copy(tmp_path / "p" / "1.png", tmp_path / "p" / f"1_{copy}.png")
    gallery.build(tmp_path / "p")
    after = names_of_groups(gallery.identities(threshold=threshold))
    copies = {f"1_{copy}.png" for copy in range(5)}
    assert sorted(map(sorted, before)) == sorted(sorted(group - copies) for group in after)
    assert 1 < len(after) < 6


def test_the_threshold_is_that_of_the_calibration_at_a_hundredth(gallery: Gallery, tiny: IDSim) -> None:
    calibration = calibration_for(tiny, (0.01, 0.017), (0.1, 0.2))
    judged = Gallery(gallery.folder, tiny, calibration=calibration)
    one_percent = Limit(0.017, "given calibration, 1 % of pairs")
    assert judged.identities().rows == gallery.identities(threshold=one_percent).rows
    assert "0.017 (given calibration, 1 % of pairs)" in judged.identities().notes[0]


# The answer


def test_an_answer_is_a_table_a_file_and_a_page(
    gallery: Gallery, duplicates: Answer, copies: Path, tmp_path: Path
) -> None:
    assert list(duplicates.to_pandas().columns) == list(duplicates.columns)
    for name in ("d.csv", "d.json", "d.jsonl", "d.html"):
        duplicates.write(tmp_path / name)
        assert "p1_crop.png" in (tmp_path / name).read_text()
    page = (tmp_path / "d.html").read_text()
    assert page.count("<img") == len(duplicates)
    titles = [page.index(title) for title in ("1: 6 images", "2: 2 images", "3: 2 images")]
    assert titles == sorted(titles)
    assert duplicates.notes[0] in page

    hits = gallery.query([copies / "p1.png", detailed(9)], k=3, threshold=0.05)
    hits.write(tmp_path / "h.html")
    page = (tmp_path / "h.html").read_text()
    assert page.count("<img") == 7  # with the query that is a file
    assert "unknown" in page
    with pytest.raises(ValueError, match=r"d\.txt"):
        duplicates.write(tmp_path / "d.txt")


def test_a_page_has_room_for_so_many_pictures(
    duplicates: Answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("idmetric.gallery.answer._MOST_PICTURES", 8)
    duplicates.write(tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text()
    assert page.count("<img") == 8
    assert "1 further groups" in page
    assert contents(tmp_path).keys() == {"d.html"}
