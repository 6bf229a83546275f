"""`idmetric embed` and `idmetric.gallery.scale.embed_dataset`: complete, resumable, in memory that does not grow."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import idmetric
from idmetric import IDSim
from idmetric.cli.main import main
from idmetric.gallery import parts, scale, worker
from idmetric.gallery.scale import ScaleError, embed_dataset, embed_on_ray
from idmetric.gallery.sources import GalleryError
from idmetric.metric.files.threads import in_order
from idmetric.metric.scoring.keys import content_key
from tests.conftest import random_model
from tests.embed_parts import Live, pictures, rows_of, same_rows
from tests.runner import Runner

pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow: pip install 'idmetric[data]'")
pq = pytest.importorskip("pyarrow.parquet")
fs = pytest.importorskip("pyarrow.fs")
SMALL_ROWS: dict[str, Any] = {"rows": 4, "batch_size": 3}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """23 pictures in two folders."""
    pictures(tmp_path / "photos" / "a", 12)
    pictures(tmp_path / "photos" / "b", 11, start=12)
    return tmp_path / "photos"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    folder = tmp_path_factory.mktemp("model")
    metric.save_pretrained(folder)
    return folder


def images(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def stamps(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}


# What is written


@pytest.mark.parametrize("stored", ["float32", "float16"])
def test_every_image_has_its_row(metric: IDSim, photos: Path, tmp_path: Path, stored: Any) -> None:
    done = embed_dataset(photos, tmp_path / "out", model=metric, patches=True, stored=stored, **SMALL_ROWS)
    found = rows_of(tmp_path / "out")
    assert sorted(found) == [str(path) for path in images(photos)]
    assert (done.images, done.embedded, done.unreadable) == (23, 23, {})
    assert done.parts == len(list((tmp_path / "out").glob("part_*.parquet"))) > 1
    expected = metric.embed(images(photos))
    atol = 1e-5 if stored == "float32" else 4e-3
    for k, path in enumerate(images(photos)):
        row = found[str(path)]
        assert row["name"] == path.relative_to(photos).as_posix()
        assert (row["width"], row["height"], row["error"]) == (40, 30, None)
        assert row["key"] == content_key(path.read_bytes())
        np.testing.assert_allclose(row["embedding"], expected.cls[k], atol=atol)
        assert expected.patches is not None
        np.testing.assert_allclose(row["patches"], expected.patches[k].flatten(), atol=atol)
    schema = pq.read_schema(next((tmp_path / "out").glob("*.parquet")))
    kind = schema.field("embedding").type
    assert (str(kind.value_type), kind.list_size) == ({"float32": "float", "float16": "halffloat"}[stored],
                                                      expected.cls.shape[1])  # fmt: skip
    facts = json.loads(schema.metadata[b"idmetric.embed"])
    assert facts["model"] == metric.label
    assert expected.patches is not None
    assert facts["patches"] == [4, 4, expected.patches.shape[2]]
    assert pq.read_table(tmp_path / "out").num_rows == 23  # other files of the folder are no part of the table


def test_unreadable_images_are_rows_with_their_reason(
    saved: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "a" / "0003.png").write_bytes(b"no image")
    (photos / "b" / "0014.png").write_bytes(b"")
    (photos / "b" / "gone.png").symlink_to("nowhere")
    words = ["embed", str(photos), "--out", str(tmp_path / "out"), "--model", str(saved), "--device", "cpu"]
    assert main(words) == 4
    told = capsys.readouterr().err
    found = rows_of(tmp_path / "out")
    assert len(found) == 24
    bad = {Path(image).name: row for image, row in found.items() if row["error"]}
    assert bad.keys() == {"0003.png", "0014.png", "gone.png"}
    for name, reason in (("0003", "not an image"), ("0014", "empty"), ("gone", "No such file")):
        assert reason in bad[f"{name}.png"]["error"]
        assert f"{name}.png: {bad[f'{name}.png']['error']}" in told
        assert bad[f"{name}.png"]["embedding"] is None
    assert all(row["embedding"] for row in found.values() if not row["error"])
    assert main([*words, "--on-error", "fail"]) == 1
    assert "0003.png: it is not an image" in capsys.readouterr().err
    (photos / "a" / "0003.png").write_bytes((photos / "a" / "0001.png").read_bytes())
    (photos / "b" / "0014.png").unlink()
    (photos / "b" / "gone.png").unlink()
    assert main(words) == 0
    assert len(rows_of(tmp_path / "out")) == 22


def test_what_is_of_no_use_is_an_error(
    metric: IDSim, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("dinov3")
    with torch.no_grad():
        next(p for p in model.mlp_cls.parameters()).fill_(float("nan"))
    done = embed_dataset(photos, tmp_path / "out", model=model)
    assert all("embedding in float32 is not finite" in reason for reason in done.unreadable.values())
    assert {row["embedding"] is None for row in rows_of(tmp_path / "out").values()} == {True}
    original = metric.embed
    monkeypatch.setattr(metric, "embed", lambda x, **o: replace(original(x, **o), cls=1e6 * original(x, **o).cls))
    done = embed_dataset(photos, tmp_path / "half", model=metric, stored="float16")
    assert set(done.unreadable.values()) == {"its embedding exceeds what float16 can hold"}


# Going on


def test_a_stopped_run_goes_on_to_the_same_rows(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    (photos / "a" / "0005.png").write_bytes(b"no image")
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_dataset(photos, out, model=metric, progress=stop, **SMALL_ROWS)
    kept = {name: stamp for name, stamp in stamps(out).items() if name.startswith("part")}
    before = rows_of(out)
    assert 0 < len(before) < 23
    done = embed_dataset(photos, out, model=metric, **SMALL_ROWS)
    assert done.embedded + sum(row["error"] is None for row in before.values()) == 22
    assert kept.items() <= stamps(out).items()  # what was finished is left alone
    assert [p.name for p in out.iterdir() if p.name.startswith(".")] == [".lock"]
    embed_dataset(photos, tmp_path / "whole", model=metric, **SMALL_ROWS)
    same_rows(rows_of(out), rows_of(tmp_path / "whole"), atol=1e-6)


def test_only_files_with_changes_are_made_again(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    work: dict[str, Any] = {"model": metric, "rows": 4, "batch_size": 4}
    embed_dataset(photos, out, **work)
    first = stamps(out)
    told: list[int] = []
    assert embed_dataset(photos, out, progress=lambda done, total: told.append(done), **work).embedded == 0
    assert told == [23]
    assert stamps(out) == first

    images(photos)[9].write_bytes(images(photos)[2].read_bytes() + b"\0")
    pictures(photos / "a", 1, start=100)  # between two others
    images(photos)[21].unlink()
    more = embed_dataset(photos, out, **work)
    assert (more.images, more.embedded, more.removed) == (23, 4 + 1 + 2, 2)
    assert len(first.items() & stamps(out).items()) == 6 - 2 + 1  # and the lock
    embed_dataset(photos, tmp_path / "anew", **work)
    found, anew = rows_of(out), rows_of(tmp_path / "anew")
    same_rows(found, anew, atol=1e-6)


def test_a_damaged_part_is_made_again(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed_dataset(photos, out, model=metric, **SMALL_ROWS)
    before = rows_of(out)
    part, other, *_ = sorted(out.glob("part_*"))
    part.write_bytes(part.read_bytes()[:-20])
    pq.write_table(pq.read_table(other).slice(1), other)  # rows are lacking
    assert embed_dataset(photos, out, model=metric, **SMALL_ROWS).embedded == 6 + 1
    same_rows(rows_of(out), before, atol=1e-6)


def test_a_byte_flipped_in_a_part_moves_no_distance(metric: IDSim, tmp_path: Path) -> None:
    """The page checksums that parts are written with cover all vectors; a run again embeds damaged parts again."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    pictures(photos, 3)
    embed_dataset(photos, out, model=metric)
    before = rows_of(out)
    [part] = out.glob("part_*")
    whole, table = part.read_bytes(), pq.read_table(part)
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # before the footer: its length, and a magic word
    caught = 0
    for position in range(4, pages, 3):
        part.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            read = pq.read_table(part, page_checksum_verification=True)
            assert read.equals(table)  # the byte was of the statistics in the head of a page
        except (OSError, pa.ArrowException):
            caught += 1
    assert caught > (pages - 4) / 3 / 2

    middle = whole.index(np.float32(before[str(photos / "0001.png")]["embedding"][0]).tobytes())
    part.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1 :])
    assert embed_dataset(photos, out, model=metric).embedded == 3
    same_rows(rows_of(out), before)


def test_a_part_that_cannot_be_read_now_is_no_damage(
    metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(tmp_path / "photos", 3)
    embed_dataset(tmp_path / "photos", tmp_path / "out", model=metric)
    before = stamps(tmp_path / "out")

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.parquet.ParquetFile", failing)
        with pytest.raises(OSError, match="Input/output error"):
            embed_dataset(tmp_path / "photos", tmp_path / "out", model=metric)
    assert stamps(tmp_path / "out") == before


def test_another_model_or_other_sources_are_refused(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed_dataset(photos, out, model=metric)
    kept = stamps(out)
    other = random_model("cnn")
    for options, says in (
        ({"model": other}, "is of other work"),
        ({"model": metric, "patches": True}, "is of other work"),
        ({"model": metric, "stored": "float16"}, "stored float32 instead of float16"),
    ):
        with pytest.raises(ScaleError, match=f"{says}.*name another folder"):
            embed_dataset(photos, out, **options)
    with pytest.raises(ScaleError, match="is of other work"):
        embed_dataset(photos / "a", out, model=metric)
    assert stamps(out) == kept


def test_another_run_is_kept_out_of_the_folder(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    out, tried = tmp_path / "out", []

    def meanwhile(done: int, total: int) -> None:
        for address in (out, f"file://{out}"):  # by whichever name
            with pytest.raises(ScaleError, match=r"another run is writing to .*wait for it"):
                embed_dataset(photos, address, model=metric, **SMALL_ROWS)
        tried.append(done)

    done = embed_dataset(photos, out, model=metric, progress=meanwhile, **SMALL_ROWS)
    assert (done.images, tried[-1], len(rows_of(out))) == (23, 23, 23)
    assert embed_dataset(photos, out, model=metric, **SMALL_ROWS).embedded == 0  # it has let go


def test_files_that_are_not_ours_are_never_removed(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    """Foreign Parquet files, of any name, stop the run; of a link, only the link is deleted."""
    out = tmp_path / "out"
    embed_dataset(photos, out, model=metric)
    [part] = out.glob("part_*")
    before = part.read_bytes()
    (out / ".part_notes").write_text("mine")
    for name in ("part-00000-of-00001.parquet", f"part_{32 * 'a'}_000000-0.parquet"):
        pq.write_table(pa.table({"x": [1]}), out / name)
        with pytest.raises(ScaleError, match=r"other.* Parquet file.*name a folder of its own"):
            embed_dataset(photos, out, model=metric)
        (out / name).unlink()

    precious = tmp_path / "precious.parquet"
    precious.write_bytes(b"no Parquet")
    (out / f"part_{32 * 'b'}_000000-0.parquet").symlink_to(precious)
    done = embed_dataset(photos, out, model=metric)
    assert (done.embedded, done.removed) == (0, 1)
    assert precious.read_bytes() == b"no Parquet"
    assert {p.name for p in out.iterdir()} == {".lock", ".part_notes", part.name}
    assert part.read_bytes() == before


# Where images come from


def test_files_and_folders_name_each_image_once(saved: Path, photos: Path, tmp_path: Path) -> None:
    paths = images(photos)
    words = ["embed", str(photos / "b"), str(paths[0]), str(paths[3]), str(paths[15]), "-o", str(tmp_path / "out")]
    assert main([*words, "--model", str(saved), "--device", "cpu"]) == 0
    assert rows_of(tmp_path / "out").keys() == {str(paths[0]), str(paths[3]), *map(str, images(photos / "b"))}


def test_a_manifest_holds_bytes_or_paths(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    paths = images(photos)[:6]
    table = {
        "id": [p.stem for p in paths], "image_bytes": [None, *(p.read_bytes() for p in paths[1:])],
        "path": [str(paths[0]), *5 * [None]], "identity": list("aabbcc"),
    }  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "m.parquet")
    done = embed_dataset(tmp_path / "m.parquet", tmp_path / "out", model=metric, rows=4, batch_size=2)
    assert (done.images, done.parts, done.unreadable) == (6, 2, {})
    found = rows_of(tmp_path / "out")
    assert set(found) == {str(paths[0]), *(f"{tmp_path}/m.parquet#{p.stem}" for p in paths[1:])}
    vectors = {row["name"]: row["embedding"] for row in found.values()}
    expected = metric.embed(paths, patches=False).cls
    np.testing.assert_allclose([vectors[p.stem] for p in paths], expected, atol=1e-5)
    assert embed_dataset(tmp_path / "m.parquet", tmp_path / "out", model=metric).embedded == 0
    os.utime(tmp_path / "m.parquet", (1, 1))  # may hold other images now
    assert (
        embed_dataset(tmp_path / "m.parquet", tmp_path / "out", model=metric).embedded == 6
    )  # with what is in their files


def test_addresses_are_read_and_written(
    metric: IDSim, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed_dataset(photos, tmp_path / "local", model=metric, **SMALL_ROWS)
    local = rows_of(tmp_path / "local")
    done = embed_dataset(f"file://{photos}", f"file://{tmp_path}/local", model=metric, **SMALL_ROWS)
    assert (done.images, done.embedded) == (23, 0)  # by whichever name

    # a store without links, locks and local paths
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    original = parts.locate

    def locate_in_store(address: Any) -> tuple[Any, str, str]:
        path = str(address).removeprefix("s3://")
        return (store, path, "s3://") if path != str(address) else original(address)

    for module in (scale, worker):
        monkeypatch.setattr(module, "locate", locate_in_store)
    (photos / ".hidden.png").write_bytes(images(photos)[0].read_bytes())
    done = embed_dataset("s3://photos", "s3://out", model=metric, **SMALL_ROWS)
    assert (done.images, done.embedded) == (23, 23)
    found = rows_of(tmp_path / "out")
    for row in local.values():
        remote = found[f"s3://photos/{row['name']}"]
        assert (remote["name"], remote["key"]) == (row["name"], row["key"])
        np.testing.assert_allclose(remote["embedding"], row["embedding"], atol=1e-5)
    assert embed_dataset("s3://photos", "s3://out", model=metric, **SMALL_ROWS).embedded == 0
    (tmp_path / "photos" / "more.png").write_bytes(images(photos)[0].read_bytes())
    assert embed_dataset("s3://photos", "s3://out", model=metric, **SMALL_ROWS).embedded == 1


@pytest.mark.parametrize(
    "address",
    [
        "https://example.com/a.png",
        "HTTP://127.0.0.1:9/a.png",
        "simplecache::http://127.0.0.1:9/a.png",
        "zip://*::http://127.0.0.1:9/a.zip",
        "fsspec+http://127.0.0.1:9/a.png",
        "hf://datasets/a",
        "nowhere://bucket/photos",
    ],
)
def test_addresses_of_web_servers_and_inside_addresses_are_not_opened(address: str, tmp_path: Path) -> None:
    for work in (
        lambda: parts.locate(address),
        lambda: embed_dataset(address, tmp_path),
        lambda: embed_on_ray(".", address),
    ):
        with pytest.raises(ScaleError, match="is not an address of file, s3, gs"):
            work()


def test_paths_and_addresses_in_tables_of_images_are_never_opened(photos: Path) -> None:
    image = images(photos)[0]
    for value in (str(image), f"file://{image}", "http://h/d.png", {"bytes": None, "path": str(image)}, None):
        entry = worker.table_entry("", "image", "id", {"id": 1, "path": "t.parquet", "image": value})
        with pytest.raises(OSError, match="paths and addresses in tables are not opened"):
            entry.image()
    data = image.read_bytes()
    assert worker._cell(data) == worker._cell({"bytes": data, "path": "a.png"}) == data


def test_no_other_module_opens_addresses() -> None:
    package = Path(idmetric.__file__).parent
    names = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"import fsspec|fsspec\.|from pyarrow import fs|from_uri|url_to_fs", path.read_text())
    }
    assert names == {"gallery/parts.py"}


def test_sources_that_cannot_be_used_say_so(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for source, says in (
        ("absent", "there is no folder"), ("empty", "holds no images"), ("bad.parquet", "bad.parquet"),
    ):  # fmt: skip
        with pytest.raises(GalleryError, match=says):
            embed_dataset(tmp_path / source, tmp_path / "out", model=metric)
    with pytest.raises(ScaleError, match="lies in the source"):
        embed_dataset(photos, photos / "out", model=metric)
    assert not (tmp_path / "out").exists()


def test_what_may_have_no_end_is_not_waited_for(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    os.mkfifo(photos / "a" / "pipe.png")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / f"part_{32 * 'a'}_000000-0.parquet")
    done = embed_dataset(photos, tmp_path / "out", model=metric)
    assert list(done.unreadable.values()) == ["it is a pipe or a device: give a file"]


def test_names_that_are_no_utf8_are_kept(metric: IDSim, tmp_path: Path) -> None:
    [path] = pictures(tmp_path / "photos", 1)
    try:
        os.rename(path, os.fsencode(path.parent) + b"/caf\xe9.png")
    except OSError:
        pytest.skip("this file system has no such names")
    embed_dataset(tmp_path / "photos", tmp_path / "out", model=metric)
    assert list(rows_of(tmp_path / "out")) == [f"{tmp_path}/photos/caf\\udce9.png"]
    assert embed_dataset(tmp_path / "photos", tmp_path / "out", model=metric).embedded == 0


# Memory


def test_at_most_three_batches_are_decoded_at_once(
    metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(tmp_path / "photos", 60)
    live = Live(metric, monkeypatch)
    embed_dataset(tmp_path / "photos", tmp_path / "out", model=metric, batch_size=4, rows=16, workers=3)
    assert live.made == 60
    assert 4 < live.most <= 3 * 4 + 2  # and the one that begins the next batch, and one that waits for room


def test_work_ahead_is_bounded_in_order_and_stops() -> None:
    begun: list[int] = []

    def work(k: int) -> int:
        begun.append(k)
        if k == 20:
            raise ValueError("twenty")
        time.sleep(0.002 * (k % 3))
        return k * k

    found = []
    stream = in_order(work, range(1000), threads=3, waiting=5)
    for _ in range(20):
        found.append(next(stream))
        assert max(begun) <= len(found) + 5
    with pytest.raises(ValueError, match="twenty"):
        next(stream)
    assert found == [k * k for k in range(20)]
    assert max(begun) <= 25


# The command


def test_the_command_says_what_is_wrong(
    saved: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Runner(main, capsys, "embed")
    for words, says in (
        (["absent"], "there is no 'absent'"), ([photos, "--gpus", "1"], "add --ray"),
        ([photos, "--column", "image"], "add --ray"), ([photos, "--workers", "0"], "argument --workers"),
    ):  # fmt: skip
        run.fails(says, *words, "--out", tmp_path / "out", status=2)
    (tmp_path / "file").write_text("")
    words = [photos, "--out", tmp_path / "file" / "out", "--model", saved, "--device", "cpu", "--quiet"]
    run.fails("what should be its folder is a file", *words)


def test_without_pyarrow_or_ray_it_says_how_to_get_them(
    metric: IDSim, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'idmetric\[data\]'"):
        importlib.reload(parts)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'idmetric\[scale\]'"):
        embed_on_ray(photos, tmp_path / "out", model=lambda: metric)
