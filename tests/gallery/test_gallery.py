from __future__ import annotations

import json
import multiprocessing as mp
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import IDSim, ImageReadError
from idmetric.data.nearest import nearest, unit
from idmetric.data.old_manifest.table import Manifest, Row
from idmetric.gallery import (
    Gallery,
    GalleryError,
    StaleWarning,
    models_of,
)
from idmetric.gallery.clusters import identities, near_duplicates
from idmetric.scoring.calibration import Calibration, Isotonic
from idmetric.store import Store, content
from tests.conftest import random_model


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Nine pictures in two folders."""
    for number in range(9):
        path = tmp_path / "photos" / ("a" if number < 5 else "b") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return tmp_path / "photos"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def build(index: Path, metric: IDSim, photos: Path, **options: Any) -> Gallery:
    gallery = Gallery(index, metric, **options)
    gallery.update(photos)
    return gallery


@pytest.fixture
def gallery(index: Path, metric: IDSim, photos: Path) -> Gallery:
    """The gallery of all nine."""
    return build(index, metric, photos)


def files(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.png"))


class Counted:
    """Counts the images that a metric embeds."""

    def __init__(self, metric: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images = 0
        original = metric.embed_prepared

        def embed_prepared(batch: Any, *options: Any) -> Any:
            found = original(batch, *options)
            self.images += len(found)
            return found

        monkeypatch.setattr(metric, "embed_prepared", embed_prepared)


# Searching


def test_the_answer_is_that_of_measuring_all_distances(metric: IDSim, photos: Path, gallery: Gallery) -> None:
    queries = [picture(20), picture(21), photos / "a" / "3.png"]
    hits = gallery.query(queries, k=4).to_records()
    far = metric.pairwise(queries, files(photos)).double()
    for number in range(3):
        order = far[number].argsort()[:4]
        own = hits[4 * number : 4 * number + 4]
        assert [h["image"] for h in own] == [str(files(photos)[k]) for k in order]
        assert [h["rank"] for h in own] == [1, 2, 3, 4]
        np.testing.assert_allclose([h["distance"] for h in own], far[number][order], atol=1e-6)
    assert hits[8]["image"] == hits[8]["query"]
    assert hits[8]["distance"] < 1e-6


@pytest.mark.parametrize("distance", ["patch", "joint"])
@pytest.mark.parametrize("kept", [False, True], ids=["embedded again", "kept"])
def test_a_rerank_sorts_the_shortlist_by_the_patch_distance(
    metric: IDSim, photos: Path, index: Path, distance: str, kept: bool
) -> None:
    gallery = build(index, metric, photos, patches=kept)
    hits = gallery.query(picture(20), k=3, distance=distance, rerank=5).to_records()
    shortlist = metric.pairwise(picture(20), files(photos))[0].argsort()[:5]
    far = metric.pairwise(picture(20), [files(photos)[k] for k in shortlist], distance)[0]
    order = far.argsort()[:3]
    assert [h["image"] for h in hits] == [str(files(photos)[shortlist[k]]) for k in order]
    np.testing.assert_allclose([h["distance"] for h in hits], far[order], atol=1e-5)
    assert hits[0]["distance_name"] == distance


@pytest.mark.parametrize("rows", [1, 7, 500])
def test_nearest_rows_are_those_of_a_sort_of_all_cosines(rows: int) -> None:
    rng = np.random.default_rng(rows)
    table = unit(np.repeat(rng.normal(1, 1, size=(rows // 5 + 1, 16)), 5, 0)[:rows])  # with ties
    queries = np.concatenate([rng.normal(size=(20, 16)), table[:3], -table[:3]])
    found, far = nearest(queries, table, 6)
    wide = unit(queries).astype(float) @ table.astype(float).T
    slow = np.lexsort((np.broadcast_to(np.arange(rows), wide.shape), -wide.round(9)))[:, :6]
    assert np.array_equal(found, slow)
    np.testing.assert_allclose(far, 1 - np.take_along_axis(wide, slow, 1), atol=1e-7)


def test_a_subject_is_looked_at_through_its_mask(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    mask = np.zeros((30, 40), np.uint8)
    mask[8:20, 10:30] = 255
    (tmp_path / "masks").mkdir()
    for path in files(photos)[:-1]:
        Image.fromarray(mask).save(tmp_path / "masks" / path.name)
    gallery = Gallery(tmp_path / "index", metric, masked=True, outside="white")
    done = gallery.update(photos, mask_dir=tmp_path / "masks")
    assert done.images == 8
    assert "8.png: No such file" in done.unreadable[str(files(photos)[-1])]
    (tmp_path / "masks" / "8.png").touch()
    done = gallery.update(photos, mask_dir=tmp_path / "masks")
    assert "8.png: it is empty" in done.unreadable[str(files(photos)[-1])]
    hits = gallery.query(picture(30), k=8, masks=mask).to_records()
    far = metric.pairwise(picture(30), files(photos)[:-1], masks_a=mask, masks_b=[mask] * 8, outside="white")[0]
    order = far.argsort()
    assert [h["image"] for h in hits] == [str(files(photos)[k]) for k in order]
    np.testing.assert_allclose([h["distance"] for h in hits], far[order], atol=1e-5)
    Image.fromarray(255 - mask).save(tmp_path / "masks" / "0.png")
    assert gallery.update(photos, mask_dir=tmp_path / "masks").changed == [str(photos / "a" / "0.png")]


def test_a_manifest_with_files_bytes_and_identities(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    rows = [Row(f"id{k % 2}", str(path), id=f"row{k}") for k, path in enumerate(files(photos)[:3])]
    rows.append(Row(None, image_bytes=files(photos)[4].read_bytes(), id="inside"))
    Manifest.from_rows(rows, tmp_path).write(tmp_path / "set.parquet")
    gallery = Gallery(tmp_path / "index", metric)
    assert gallery.update(tmp_path / "set.parquet").images == 4
    hits = gallery.query(files(photos)[4], k=4).to_records()
    assert hits[0]["name"] == "inside"
    assert {h["name"]: h["identity"] for h in hits} == {"row0": "id0", "row1": "id1", "row2": "id0", "inside": None}
    near = gallery.query(files(photos)[4], k=4, distance="joint", rerank=4)
    assert near[0]["name"] == "inside"


def test_arguments_that_do_not_fit_say_so(metric: IDSim, photos: Path, index: Path, gallery: Gallery) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"distance": "joint"}, "rerank=50"),
        ({"distance": "joint", "rerank": 3}, "fewer than the k=10"),
        ({"rerank": 30}, "needs the distance"),
        ({"probability": True}, "has no calibration"),
    ]
    for options, says in wrong:
        with pytest.raises(ValueError, match=says):
            gallery.query(picture(1), **options)
    with pytest.raises(ImageReadError, match="nowhere"):
        gallery.query("nowhere.png")
    with pytest.raises(GalleryError, match="no folder, image or manifest"):
        gallery.update(photos / "none")
    with pytest.raises(GalleryError, match="mask_dir"):
        Gallery(index, metric, masked=True).update(photos)
    with pytest.raises(GalleryError, match="name the gallery's sources"):
        gallery.update()


def test_a_query_can_leave_itself_out_and_tell_a_probability(
    metric: IDSim, photos: Path, monkeypatch: pytest.MonkeyPatch, gallery: Gallery
) -> None:
    own = files(photos)[2]
    assert str(own) not in [h["image"] for h in gallery.query(own, k=9, exclude_same=True)]
    found = Calibration(Isotonic((-3.0, 1.0), (0.01, 0.99)), metric.calibration_id(), "cls")
    gallery.calibration = found
    hits = gallery.query(own, k=3, probability=True)
    expected = found.probability([h["distance"] for h in hits])
    assert [h["probability"] for h in hits] == pytest.approx(expected.tolist())
    assert {h["probability_basis"] for h in hits} == {found.basis}


# Tables


def test_parquet_holds_every_image_and_vector(metric: IDSim, photos: Path, index: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    gallery = build(index, metric, photos)
    gallery.to_parquet(tmp_path / "g.parquet")
    table = parquet.read_table(tmp_path / "g.parquet")
    assert table["image"].to_pylist() == [str(p) for p in files(photos)]
    np.testing.assert_array_equal(np.stack(table["embedding"].to_pylist()).astype(np.float32), gallery.vectors())
    assert json.loads(table.schema.metadata[b"idmetric.gallery"])["model"] == metric.label


# Keeping up


def test_only_what_is_new_is_embedded(
    metric: IDSim, photos: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(metric, monkeypatch)
    gallery = Gallery(index, metric)
    done = gallery.update(photos)
    assert (done.images, done.embedded, len(done.new), counted.images) == (9, 9, 9, 9)
    assert str(gallery.update(photos)) == "9 images, 0 embedded"

    (photos / "a" / "0.png").rename(photos / "b" / "moved.png")
    (photos / "a" / "1.png").unlink()
    picture(50).save(photos / "a" / "2.png")
    picture(51).save(photos / "new.png")
    (photos / "copy.png").write_bytes((photos / "a" / "3.png").read_bytes())
    done = Gallery(index, metric).update(photos)
    assert done.moved == [(str(photos / "a" / "0.png"), str(photos / "b" / "moved.png"))]
    assert done.deleted == [str(photos / "a" / "1.png")]
    assert done.changed == [str(photos / "a" / "2.png")]
    assert done.new == [str(photos / "copy.png"), str(photos / "new.png")]
    assert (done.images, done.embedded, counted.images) == (10, 2, 11)

    fresh = Gallery(index, metric)
    both = fresh.query(photos / "copy.png", k=2).to_records()
    assert [h["name"] for h in both] == ["a/3.png", "copy.png"]
    assert [h["name"] for h in fresh.query(picture(50), k=1)] == ["a/2.png"]
    assert "a/1.png" not in [h["name"] for h in fresh.query(picture(1), k=10)]


def test_a_gallery_holds_the_images_of_its_last_sources(metric: IDSim, photos: Path, index: Path) -> None:
    gallery = Gallery(index, metric)
    gallery.update(photos / "a")
    assert gallery.update(photos / "a", photos / "b").images == 9
    done = gallery.update(photos / "b" / "7.png", photos / "b")
    assert (done.images, done.embedded) == (4, 0)
    assert len(done.deleted) == 5


@pytest.mark.parametrize("quick", [False, True])
def test_a_file_changed_under_its_name_size_and_time_is_seen(
    metric: IDSim, photos: Path, index: Path, quick: bool
) -> None:
    first, second = photos / "a" / "0.bmp", photos / "a" / "1.bmp"
    picture(60).save(first)
    gallery = build(index, metric, photos)
    stat = first.stat()
    picture(61).save(first)
    os.utime(first, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = first.stat()
    assert (after.st_size, after.st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert not second.exists()

    with pytest.warns(StaleWarning, match=r"left out 1 of 10 images: .*0\.bmp \(changed\)"):
        hits = gallery.query(picture(60), k=10).to_records()
    assert "a/0.bmp" not in [h["name"] for h in hits]
    assert len(hits) == 9
    assert gallery.update(photos, quick=quick).changed == [str(first)]
    assert gallery.query(picture(61), k=1)[0]["name"] == "a/0.bmp"


def test_a_quick_update_reads_only_what_may_have_changed(
    metric: IDSim, photos: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return content(path)

    gallery = build(index, metric, photos)
    monkeypatch.setattr("idmetric.gallery.sources.content", counted)
    gallery.update(photos, quick=True)
    assert not read
    picture(70).save(photos / "a" / "4.png")
    gallery.update(photos, quick=True)
    assert read == ["4.png"]
    gallery.update(photos)
    assert len(read) == 10


@pytest.mark.parametrize("source", ["files", "bytes in a manifest"])
@pytest.mark.parametrize("answer", ["query", "near_duplicates", "identities"])
def test_deleted_and_replaced_images_are_in_no_answer(
    metric: IDSim, photos: Path, tmp_path: Path, source: str, answer: str
) -> None:
    shown, sources = [str(path) for path in files(photos)], photos
    manifest = tmp_path / "manifest.parquet"
    if source != "files":
        sources = manifest
        Manifest.from_rows([Row("a", image_bytes=path.read_bytes(), id=path.name) for path in files(photos)]).write(
            manifest
        )
        shown = [f"{manifest}#{path.name}" for path in files(photos)]
    gallery = build(tmp_path / "index", metric, sources)
    asked = {
        "query": lambda: gallery.query(picture(40), k=20),
        "near_duplicates": lambda: near_duplicates(gallery, max_distance=2),
        "identities": lambda: identities(gallery, threshold=2),
    }[answer]
    assert {row["image"] for row in asked()} == set(shown)

    files(photos)[0].unlink()
    picture(80).save(photos / "a" / "1.png")
    (photos / "a" / "2.png").touch()  # the same bytes
    if source != "files":
        Manifest.from_rows([Row("a", image_bytes=path.read_bytes(), id=path.name) for path in files(photos)]).write(
            manifest
        )
    with pytest.warns(StaleWarning, match="left out 2 of 9 images: ") as warned:
        found = asked()
    assert "0.png (missing)" in str(warned[0].message)
    assert "1.png (changed)" in str(warned[0].message)
    assert {row["image"] for row in found} == set(shown[2:])
    assert sorted(gallery.stale.values()) == ["changed", "missing"]


def test_unreadable_images_are_listed_and_mended(metric: IDSim, photos: Path, index: Path) -> None:
    (photos / "empty.jpg").touch()
    os.mkfifo(photos / "pipe.jpg")
    (photos / "text.png").write_text("no image")
    (photos / "lost.png").symlink_to(photos / "nowhere.png")
    whole = (photos / "a" / "0.png").read_bytes()
    (photos / "a" / "0.png").write_bytes(whole[:200])
    gallery = Gallery(index, metric)
    done = gallery.update(photos)
    reasons = {Path(place).name: reason for place, reason in done.unreadable.items()}
    assert set(reasons) == {"empty.jpg", "pipe.jpg", "text.png", "lost.png", "0.png"}
    assert "is a pipe or a device" in reasons["pipe.jpg"]
    assert reasons["empty.jpg"].startswith("it is empty: fetch or write it again")
    assert "not an image of a known format" in reasons["text.png"]
    assert "No such file" in reasons["lost.png"]
    assert done.images == 8
    assert len(gallery.query(picture(1), k=20)) == 8
    assert Gallery(index, metric).problems == done.unreadable
    (photos / "a" / "0.png").write_bytes(whole)
    assert gallery.update(photos, quick=True).images == 9


def test_an_embedding_that_is_not_finite_is_a_problem(photos: Path, index: Path) -> None:
    broken = random_model("dinov3")
    with torch.no_grad():
        broken.mlp_cls.fc2.bias.fill_(float("nan"))
    done = Gallery(index, broken).update(photos)
    assert done.images == 0
    assert all("embedding in float32 is not finite" in reason for reason in done.unreadable.values())
    with pytest.raises(GalleryError, match="no image that can be used"):
        Gallery(index, broken).query(picture(1))


# What is gone

# Another model


def nudged(metric: IDSim) -> IDSim:
    """The same but for two weights that changed places."""
    other = random_model("dinov3")
    with torch.no_grad():
        weight = other.mlp_cls.fc2.weight
        weight[0, :2] = weight[0, :2].flip(0)
    assert metric.mlp_cls.fc2.weight.sum() == other.mlp_cls.fc2.weight.sum()
    return other


def test_another_model_never_finds_what_this_one_left(metric: IDSim, photos: Path, index: Path) -> None:
    build(index, metric, photos)
    other = nudged(metric)
    with pytest.raises(GalleryError, match="by exactly these weights"):
        Gallery(index, other).query(picture(1))
    gallery = Gallery(index, other)
    assert gallery.update(photos).embedded == 9
    expected = torch.nn.functional.normalize(other.embed(files(photos)).cls, dim=-1).numpy()
    np.testing.assert_allclose(gallery.vectors(), expected, atol=1e-5)
    assert len(models_of(index)) == 2
    assert Gallery(index, metric).query(files(photos)[0], k=1)[0]["distance"] < 1e-6


def test_a_model_trained_meanwhile_is_refused(photos: Path, index: Path) -> None:
    model = random_model("dinov3")
    gallery = build(index, model, photos)
    with torch.no_grad():
        model.mlp_cls.fc1.weight.mul_(1.01)
    for use in (lambda: gallery.query(picture(1)), lambda: gallery.update(photos)):
        with pytest.raises(GalleryError, match="has changed since the gallery was opened"):
            use()
    with torch.no_grad():
        model.mlp_cls.fc1.weight.copy_(random_model("dinov3").mlp_cls.fc1.weight)
    assert len(gallery.query(picture(1))) == 9  # written to, but as it was


# Damage


def shards(index: Path) -> list[Path]:
    return sorted(index.rglob("*.safetensors"))


def test_what_a_damaged_part_held_is_embedded_again(metric: IDSim, photos: Path, index: Path) -> None:
    build(index, metric, photos / "a")
    gallery = build(index, metric, photos)
    before = gallery.query(files(photos), k=3).to_records()
    shard = shards(index)[0]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=f"{shard.name}' is left out"):
        fresh = Gallery(index, metric)
    with pytest.raises(GalleryError, match=r"embeddings of \d of 9 images are missing"):
        fresh.query(picture(1))
    with pytest.warns(UserWarning, match=f"{shard.name}' is left out"):
        assert 0 < fresh.update(photos).embedded < 9
    assert fresh.query(files(photos), k=3).to_records() == before


@pytest.mark.parametrize("change", [lambda text: text[:-40], lambda text: text.replace('"format": 1', '"format": 99')])
def test_a_damaged_list_of_images_is_refused_and_loses_no_embedding(
    metric: IDSim, photos: Path, index: Path, change: Callable[[str], str]
) -> None:
    build(index, metric, photos)
    [path] = index.rglob("images.jsonl")
    path.write_text(change(path.read_text()))
    with pytest.raises(GalleryError, match=r"images\.jsonl.* is damaged.*delete it"):
        Gallery(index, metric)
    path.unlink()
    gallery = Gallery(index, metric)
    assert gallery.update(photos).embedded == 0
    assert len(gallery.query(picture(1), k=9)) == 9


# Processes


@pytest.fixture(scope="module")
def context() -> Any:
    """Starts processes, each from one that has loaded what they need."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    found = mp.get_context("forkserver")
    found.set_forkserver_preload(["timm", __name__])
    return found


def one_process(index: Path, photos: Path, answer: Path) -> None:
    torch.set_num_threads(1)
    gallery = Gallery(index, random_model("dinov3"))
    embedded = gallery.update(photos, batch_size=2, workers=1).embedded
    answer.write_text(json.dumps([embedded, sorted(item.name for item in gallery.items)]))


def test_processes_that_build_one_gallery_share_the_work(
    metric: IDSim, photos: Path, index: Path, tmp_path: Path, context: Any
) -> None:
    places = [tmp_path / f"{k}.json" for k in range(2)]
    running = [context.Process(target=one_process, args=(index, photos, place)) for place in places]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0]
    answers = [json.loads(place.read_text()) for place in places]
    assert sorted(embedded for embedded, _ in answers) == [0, 9]
    assert answers[0][1] == answers[1][1] == sorted(path.relative_to(photos).as_posix() for path in files(photos))
    gallery = Gallery(index, metric)
    assert (len(gallery), str(gallery.update(photos))) == (9, "9 images, 0 embedded")
    assert sum(len(Store(index)._places) for index in {path.parent for path in shards(index)}) == 9
