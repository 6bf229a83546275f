"""What a gallery holds: only new content is embedded, and what is gone or damaged leaves."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from idmetric import IDSim
from idmetric.adapters import EmbedColumn
from idmetric.data.manifest import ManifestError
from idmetric.data.reading import read_data
from idmetric.gallery import Gallery, GalleryError, StaleWarning, models_of
from idmetric.gallery.sources import list_images
from idmetric.metric.masks import MaskWarning
from idmetric.store import Store, key_of
from tests.conftest import random_model
from tests.gallery.parts import files, flat, flip_a_byte, parts


def table_of(index: Path) -> pd.DataFrame:
    [path] = index.rglob("images.parquet")
    return pd.read_parquet(path)


# Keeping up


def test_only_new_content_is_embedded(
    metric: IDSim, photos: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[int] = []
    original = metric.embed_prepared

    def counted(batch: Any, *more: Any) -> Any:
        embedded.append(len(batch))
        return original(batch, *more)

    monkeypatch.setattr(metric, "embed_prepared", counted)
    first = Gallery(index, metric).build(photos)
    assert (first.images, first.embedded, len(first.new), sum(embedded)) == (9, 9, 9, 9)
    assert str(Gallery(index, metric).build(photos)) == "9 images, 0 embedded"

    (photos / "a" / "0.png").rename(photos / "b" / "moved.png")
    (photos / "a" / "1.png").unlink()
    flat(50).save(photos / "a" / "2.png")
    flat(51).save(photos / "new.png")
    (photos / "copy.png").write_bytes((photos / "a" / "3.png").read_bytes())
    before = parts(index)
    update = Gallery(index, metric).build(photos)
    assert set(update.deleted) == {str(photos / "a" / "0.png"), str(photos / "a" / "1.png")}
    assert update.changed == [str(photos / "a" / "2.png")]
    assert set(update.new) == {str(photos / name) for name in ("b/moved.png", "copy.png", "new.png")}
    assert (update.images, update.embedded, sum(embedded)) == (10, 2, 11)
    assert len(parts(index)) == len(before) + 1  # one part is written, and the table
    assert set(before) < set(parts(index))

    fresh = Gallery(index, metric)
    assert {Path(row["path"]).name for row in fresh.query(photos / "copy.png", k=2)} == {"3.png", "copy.png"}
    assert Path(fresh.query(flat(50), k=1)[0]["path"]).name == "2.png"
    assert len(fresh.query(flat(1), k=20)) == 10


def test_files_that_are_as_they_were_are_not_read(
    metric: IDSim, photos: Path, index: Path, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    from idmetric.gallery import build

    original = build.read_file
    monkeypatch.setattr(build, "read_file", lambda path: read.append(Path(path).name) or original(path))
    gallery.build(photos)
    assert read == []
    flat(70).save(photos / "a" / "4.png")
    gallery.build(photos)
    assert read == ["4.png"]


def test_a_file_changed_under_its_name_size_and_time_is_seen(metric: IDSim, photos: Path, index: Path) -> None:
    path = photos / "a" / "0.bmp"
    flat(60).save(path)
    gallery = Gallery(index, metric)
    gallery.build(photos)
    status = path.stat()
    flat(61).save(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)

    with pytest.warns(StaleWarning, match=r"0\.bmp \(changed\)"):
        hits = gallery.query(flat(60), k=10)
    assert len(hits) == 9
    assert str(path) not in {row["path"] for row in hits}
    assert hits.left_out == gallery.stale == {str(path): "changed"}
    assert gallery.build(photos).changed == [str(path)]
    assert gallery.query(flat(61), k=1)[0]["path"] == str(path)


@pytest.mark.parametrize("answer", ["query", "duplicates", "identities"])
def test_deleted_and_replaced_images_are_in_no_answer(photos: Path, gallery: Gallery, answer: str) -> None:
    ask = {
        "query": lambda: gallery.query(flat(40), k=20),
        "duplicates": lambda: gallery.duplicates(max_distance=2),
        "identities": lambda: gallery.identities(threshold=2),
    }[answer]
    assert {row["path"] for row in ask()} == set(map(str, files(photos)))
    gone, changed, touched, *_ = files(photos)
    gone.unlink()
    flat(80).save(changed)
    touched.touch()  # the same bytes
    with pytest.warns(StaleWarning):
        rows = ask()
    assert {row["path"] for row in rows} == set(map(str, files(photos))) - {str(changed)}
    assert gallery.stale == {str(gone): "missing", str(changed): "changed"}


def test_a_gallery_holds_the_images_of_its_last_sources(metric: IDSim, photos: Path, index: Path) -> None:
    gallery = Gallery(index, metric)
    gallery.build(photos / "a")
    assert gallery.build(photos / "a", photos / "b").images == 9
    update = gallery.build(photos / "b" / "7.png", photos / "b")  # each image once
    assert (update.images, update.embedded, len(update.deleted)) == (4, 0, 5)


def test_unreadable_images_are_listed_and_mended(metric: IDSim, photos: Path, index: Path) -> None:
    (photos / "empty.jpg").touch()
    os.mkfifo(photos / "pipe.jpg")
    (photos / "text.png").write_text("no image")
    (photos / "lost.png").symlink_to(photos / "nowhere.png")
    whole = (photos / "a" / "0.png").read_bytes()
    (photos / "a" / "0.png").write_bytes(whole[:200])
    gallery = Gallery(index, metric)
    update = gallery.build(photos)
    assert {Path(path).name for path in update.unreadable} == {"empty.jpg", "pipe.jpg", "text.png", "lost.png", "0.png"}
    assert all(update.unreadable.values())
    assert update.images == len(gallery.query(flat(1), k=20)) == 8
    (photos / "a" / "0.png").write_bytes(whole)
    assert gallery.build(photos).images == 9


def test_vectors_that_are_not_finite_are_a_problem(photos: Path, index: Path) -> None:
    broken = random_model("dinov3")
    with torch.no_grad():
        broken.mlp_cls.fc2.bias.fill_(float("nan"))
    gallery = Gallery(index, broken)
    update = gallery.build(photos)
    assert (update.images, len(update.unreadable)) == (0, 9)
    with pytest.raises(GalleryError):
        gallery.query(flat(1))


# Models


def test_another_model_never_finds_what_this_one_left(
    metric: IDSim, photos: Path, index: Path, gallery: Gallery
) -> None:
    other = random_model("dinov3")
    with torch.no_grad():  # two weights change places: their sum stays
        weight = other.mlp_cls.fc2.weight
        weight[0, :2] = weight[0, :2].flip(0)
    with pytest.raises(GalleryError, match=index.name):
        Gallery(index, other).query(flat(1))
    second = Gallery(index, other)
    assert second.build(photos).embedded == 9
    expected = torch.nn.functional.normalize(other.embed(files(photos)).cls, dim=-1).numpy()
    np.testing.assert_allclose(second.vectors(), expected, atol=1e-5)
    assert len(models_of(index)) == 2
    assert Gallery(index, metric).query(files(photos)[0], k=1)[0]["distance"] < 1e-6


def test_a_model_trained_meanwhile_is_refused(photos: Path, index: Path) -> None:
    model = random_model("dinov3")
    gallery = Gallery(index, model)
    gallery.build(photos)
    with torch.no_grad():
        model.mlp_cls.fc1.weight.mul_(1.01)
    for use in (lambda: gallery.query(flat(1)), lambda: gallery.build(photos)):
        with pytest.raises(GalleryError, match=model.label):
            use()
    with torch.no_grad():
        model.mlp_cls.fc1.weight.copy_(random_model("dinov3").mlp_cls.fc1.weight)
    assert len(gallery.query(flat(1))) == 9  # written to, but as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_vectors_of_every_precision_are_those_of_the_model(photos: Path, index: Path, dtype: torch.dtype) -> None:
    model = random_model("dinov3").to(dtype)
    gallery = Gallery(index, model)
    assert gallery.build(photos).images == 9
    expected = torch.nn.functional.normalize(model.embed(files(photos)).cls.float(), dim=-1)
    np.testing.assert_allclose(gallery.vectors(), expected.numpy(), atol=2e-3)


# Sources


def test_folders_are_identities_and_paths_stay_as_given(
    metric: IDSim, photos: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    flat(20).save("photos/lone.png")
    gallery = Gallery(index, metric)
    gallery.build("photos/")
    images = gallery.to_pandas()
    assert dict(zip(images["path"], images["identity"].fillna(""), strict=True)) == {
        **{f"photos/a/{number}.png": "a" for number in range(5)},
        **{f"photos/b/{number}.png": "b" for number in range(5, 9)},
        "photos/lone.png": "",
    }
    monkeypatch.chdir(photos)
    assert gallery.query(flat(3), k=1)[0]["path"] == "photos/a/3.png"  # also from elsewhere


def test_folders_are_read_as_in_an_evaluation(metric: IDSim, index: Path, tmp_path: Path) -> None:
    root = tmp_path / "sp"
    for number, name in enumerate(("train/rex/1.png", "test/rex/2.png", "train/rex/1_mask.png")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        flat(number).convert("1" if "mask" in name else "RGB").save(root / name)
    expected = read_data(root)
    gallery = Gallery(index, metric)
    gallery.build(root)
    images = gallery.to_pandas().sort_values("path")
    assert images["path"].tolist() == sorted(expected["path"])
    assert images["identity"].tolist() == expected["identity"].tolist() == ["rex", "rex"]

    flat(9).save(root / "lone.png")
    gallery.build(root)
    assert set(gallery.to_pandas()["identity"]) == {"rex", None}
    masked = list_images([root], masked=True, mask_dir=None).set_index("path")["_mask"]
    assert masked.dropna().to_dict() == {str(root / "train/rex/1.png"): str(root / "train/rex/1_mask.png")}


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "frame"])
def test_any_table_with_paths_is_a_source_and_its_columns_come_along(
    metric: IDSim, photos: Path, index: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    given = [path.relative_to(photos).as_posix() for path in files(photos)[:3]]
    given[0] = "./" + given[0]
    table = pd.DataFrame({"camera": ["x", "y", "z"], "path": given, "id": ["r1", "r2", "r3"]})
    table["category"] = "dog"
    source: Any = table
    if ending == "csv":
        table.to_csv("t.csv", index=False)
    elif ending == "parquet":
        table.to_parquet("t.parquet")
    elif ending == "jsonl":
        table.to_json("t.jsonl", orient="records", lines=True)
    if ending != "frame":
        source = Path(f"t.{ending}")
    gallery = Gallery(index, metric)
    assert gallery.build(source).images == 3
    hits = gallery.query(files(photos)[1], k=3).to_pandas()
    assert hits["camera"][0] == "y"
    assert set(hits["category"]) == {"dog"}
    joined = hits.merge(table[["path", "id"]], on="path")
    assert sorted(joined["id"]) == ["r1", "r2", "r3"]


def test_own_columns_stay_exact_and_are_of_one_type(metric: IDSim, photos: Path, index: Path, tmp_path: Path) -> None:
    first, second, third = map(str, files(photos)[:3])
    days = pd.to_datetime(["2020-01-02", None])
    exact = pd.DataFrame({"path": [first, second], "shot": [2**53 + 1, 5], "identity": ["a", None], "day": days})
    exact.to_parquet(tmp_path / "exact.parquet")
    gallery = Gallery(index, metric)
    gallery.build(tmp_path / "exact.parquet", pd.DataFrame({"path": [third]}))
    images = gallery.to_pandas()
    answer = gallery.query(first, k=3)
    hits = answer.to_pandas().sort_values("path", ignore_index=True)
    for table in (images, hits):
        assert table["shot"].tolist() == [2**53 + 1, 5, None]
        assert table["identity"].tolist() == ["a", None, None]
    assert hits["distance"].dtype == float

    assert json.loads(answer.to_json())[0]["day"].startswith("2020-01-02")
    EmbedColumn(metric, "path")(exact).to_parquet(tmp_path / "vectors.parquet")
    opened = Gallery(tmp_path / "vectors.parquet", metric).query(first, k=2)
    assert json.loads(opened.to_json())[0]["day"].startswith("2020-01-02")

    (tmp_path / "own.csv").write_text(f"path,shot\n{third},night\n")
    with pytest.raises(ManifestError, match="shot"):
        Gallery(tmp_path / "other", metric).build(tmp_path / "exact.parquet", tmp_path / "own.csv")
    assert not (tmp_path / "other").exists()


def test_sources_that_cannot_be_used_are_refused(metric: IDSim, photos: Path, index: Path, gallery: Gallery) -> None:
    (photos / "none").mkdir()
    os.mkfifo(photos.parent / "pipe")
    texts = photos.parent / "texts.jsonl"
    texts.write_text('{"text": "a dog", "group": "g", "slot": "query"}')
    table = pd.DataFrame({"path": list(map(str, files(photos)))})
    wrong: list[tuple[Any, str]] = [
        (texts, "texts"), (photos / "nowhere", "nowhere"), (photos / "none", "none"), (photos.parent / "pipe", "pipe"),
        (table.assign(rank=1), "rank"), (table.assign(_row=1), "_row"),
    ]  # fmt: skip
    for source, name in wrong:
        with pytest.raises((GalleryError, ManifestError), match=name):
            gallery.build(source)
    with pytest.raises(ValueError, match="x_1"):
        gallery.build(table.assign(x_1=1, y_1=1, x_2=2, y_2=2))
    with pytest.raises(ValueError, match="file"):
        gallery.build(pd.DataFrame({"file": ["a.png"]}))
    with pytest.raises(GalleryError, match="sources"):
        gallery.build()
    with pytest.raises(GalleryError, match="mask_dir"):
        gallery.build(photos, mask_dir=photos)
    with pytest.raises(ValueError, match="mask"):
        Gallery(index, metric, masked=True).build(photos)


def test_masks_count_in_the_key(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    mask = np.zeros((30, 40), np.uint8)
    mask[8:20, 10:30] = 255
    from PIL import Image

    (tmp_path / "masks").mkdir()
    for path in files(photos)[:-1]:
        Image.fromarray(mask).save(tmp_path / "masks" / path.name)
    gallery = Gallery(tmp_path / "index", metric, masked=True, outside="white")
    update = gallery.build(photos, mask_dir=tmp_path / "masks")
    assert (update.images, list(update.unreadable)) == (8, [str(files(photos)[-1])])
    with pytest.warns(MaskWarning, match="2 of 3") as warned:
        gallery.query([flat(30)] * 3, k=1, masks=[mask, None, None])
    assert len(warned) == 1
    hits = gallery.query(flat(30), k=8, masks=mask)
    distances = metric.pairwise(flat(30), files(photos)[:-1], masks_a=mask, masks_b=[mask] * 8, outside="white")[0]
    order = distances.argsort()
    assert [row["path"] for row in hits] == [str(files(photos)[row]) for row in order]
    np.testing.assert_allclose([row["distance"] for row in hits], distances[order], atol=1e-5)

    Image.fromarray(255 - mask).save(tmp_path / "masks" / "0.png")
    with pytest.warns(StaleWarning):
        assert len(gallery.query(flat(30), k=8, masks=mask)) == 7
    update = gallery.build(photos, mask_dir=tmp_path / "masks")
    assert (update.changed, update.embedded) == ([str(photos / "a" / "0.png")], 1)
    [key] = table_of(tmp_path / "index").loc[lambda table: table["path"] == str(photos / "a" / "0.png"), "_key"]
    assert key == key_of(photos / "a" / "0.png", tmp_path / "masks" / "0.png", str(gallery.look))


# Damage


@pytest.mark.parametrize("damage", [flip_a_byte, lambda path: path.write_bytes(path.read_bytes()[:-10])])
def test_a_damaged_part_is_named_and_embedded_again(metric: IDSim, photos: Path, index: Path, damage: Any) -> None:
    Gallery(index, metric).build(photos / "a")
    gallery = Gallery(index, metric)
    gallery.build(photos)
    before = gallery.query(files(photos), k=3).to_records()
    damaged = parts(index)[0]
    damage(damaged)
    with pytest.raises(GalleryError, match=damaged.name):
        Gallery(index, metric).query(files(photos), k=9)
    with pytest.raises(GalleryError, match=damaged.name):
        Gallery(index, metric).identities(threshold=1)
    with pytest.warns(UserWarning, match=damaged.name):
        assert 0 < Gallery(index, metric).build(photos).embedded < 9
    after = Gallery(index, metric).query(files(photos), k=3).to_records()
    assert [row["path"] for row in after] == [row["path"] for row in before]
    np.testing.assert_allclose([row["distance"] for row in after], [row["distance"] for row in before], atol=1e-6)


def test_a_damaged_table_is_refused_and_loses_no_vector(
    metric: IDSim, photos: Path, index: Path, gallery: Gallery
) -> None:
    [path] = index.rglob("images.parquet")
    whole = path.read_bytes()
    for data in (whole[:-40], b"", None):
        path.write_bytes(data or b"")
        if data is None:
            pd.DataFrame({"path": ["a.png"]}).to_parquet(path)
        with pytest.raises(GalleryError, match=r"images\.parquet"):
            Gallery(index, metric).query(flat(1))
    path.unlink()
    fresh = Gallery(index, metric)
    assert fresh.build(photos).embedded == 0
    assert len(fresh.query(flat(1), k=9)) == 9


def test_a_part_that_is_gone_is_named_and_its_images_are_embedded_again(
    metric: IDSim, photos: Path, index: Path, gallery: Gallery
) -> None:
    [part] = parts(index)
    part.unlink()
    with pytest.raises(GalleryError, match=part.name):
        Gallery(index, metric).query(flat(1))
    assert Gallery(index, metric).build(photos).embedded == 9
    for path in files(photos):
        Gallery(index, metric).build(path)
        flat(int(path.stem) + 30).save(path)
    Gallery(index, metric).build(photos)
    Store(gallery.store, metric.model_id)._join_parts()  # as any command that shares the folder may
    assert Gallery(index, metric).build(photos).embedded == 0
    assert len(Gallery(index, metric).query(flat(1))) == 9


# Processes


@pytest.fixture(scope="module")
def context() -> Any:
    """Starts processes, each from one that has loaded what they need."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["timm", __name__])
    return context


def build_in_process(index: Path, photos: Path, answer: Path) -> None:
    torch.set_num_threads(1)
    update = Gallery(index, random_model("dinov3")).build(photos, batch_size=2, workers=1)
    answer.write_text(json.dumps([update.embedded, update.images]))


def test_builds_of_one_gallery_take_turns(
    metric: IDSim, photos: Path, index: Path, tmp_path: Path, context: Any
) -> None:
    answers = [tmp_path / f"{number}.json" for number in range(2)]
    running = [context.Process(target=build_in_process, args=(index, photos, answer)) for answer in answers]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0]
    updates = [json.loads(answer.read_text()) for answer in answers]
    assert sorted(updates) == [[0, 9], [9, 9]]
    assert str(Gallery(index, metric).build(photos)) == "9 images, 0 embedded"


# Vectors in tables


def test_a_table_with_vectors_opens_as_a_gallery(metric: IDSim, photos: Path, gallery: Gallery, tmp_path: Path) -> None:
    table = gallery.to_pandas()
    table = EmbedColumn(metric, "path")(table)
    table.to_parquet(tmp_path / "vectors.parquet")
    opened = Gallery(tmp_path / "vectors.parquet", metric)
    columns = ["path", "identity", "distance"]
    expected = gallery.query(flat(20), k=4).to_pandas()[columns]
    pd.testing.assert_frame_equal(opened.query(flat(20), k=4).to_pandas()[columns], expected, atol=1e-6)
    assert opened.identities(threshold=0.1).notes == gallery.identities(threshold=0.1).notes
    for refused in (
        lambda: opened.build(photos), lambda: opened.query(flat(1), k=1, distance="joint", rerank=2),
        lambda: opened.query(flat(1), exclude_same=True), lambda: opened.duplicates(),
    ):  # fmt: skip
        with pytest.raises(GalleryError, match=r"vectors\.parquet"):
            refused()

    with pytest.raises(GalleryError, match="not by"):
        Gallery(tmp_path / "vectors.parquet", random_model("dinov2")).query(flat(1))
    table.assign(distance=0).to_parquet(tmp_path / "measured.parquet")
    with pytest.raises(GalleryError, match=r"measured\.parquet.*distance"):
        Gallery(tmp_path / "measured.parquet", metric).query(flat(1))
    table.drop(columns="embedding_model").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(GalleryError, match="embedding_model"):
        Gallery(tmp_path / "other.parquet", metric).query(flat(1))
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(table["embedding"].tolist()))
    written = pa.Table.from_pandas(table.drop(columns="embedding")).append_column("embedding", tensors)
    parquet.write_table(written, tmp_path / "tensors.parquet")  # as Ray Data writes it
    assert len(Gallery(tmp_path / "tensors.parquet", metric).query(flat(20), k=20)) == 9
    (tmp_path / "parts").mkdir()
    for number in range(3):  # as many machines write it
        table[3 * number : 3 * number + 3].to_parquet(tmp_path / "parts" / f"{number}.parquet")
    assert len(Gallery(tmp_path / "parts", metric).query(flat(20), k=20)) == 9
