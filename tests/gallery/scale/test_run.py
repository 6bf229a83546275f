"""`idmetric embed` and `idmetric.gallery.scale.embed_dataset`: complete, resumable, in memory that does not grow."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

import idmetric
from idmetric import IDSim
from idmetric.cli import embed as command
from idmetric.cli.main import main
from idmetric.gallery.scale import ScaleError, embed_dataset, embed_on_ray
from idmetric.gallery.scale.chunks import ROWS, chunks, entries
from idmetric.gallery.scale.places import place
from idmetric.metric.files.threads import in_order
from idmetric.metric.scoring.keys import content_key
from tests.conftest import random_model
from tests.embed_parts import Live, pictures, rows_of, same_rows
from tests.runner import Runner

pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow: pip install 'idmetric[data]'")
pq = pytest.importorskip("pyarrow.parquet")
SMALL_ROWS: dict[str, Any] = {"rows": 4, "batch_size": 3}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """23 pictures in two folders."""
    pictures(tmp_path / "photos" / "a", 12)
    pictures(tmp_path / "photos" / "b", 11, start=12)
    return tmp_path / "photos"


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
    assert done.parts == len(list((tmp_path / "out").glob("part-*.parquet"))) > 1
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
    assert facts["patches"] == [4, 4, expected.patches.shape[2]]
    assert pq.read_table(tmp_path / "out").num_rows == 23  # other files of the folder are no part of the table


def test_unreadable_images_are_rows_with_their_reason(
    saved: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "a" / "0003.png").write_bytes(b"no image")
    (photos / "b" / "0014.png").write_bytes(b"")
    (photos / "b" / "gone.png").symlink_to("nowhere")
    words = ["embed", str(photos), "--out", str(tmp_path / "out"), "--model", str(saved), "--device", "cpu"]
    assert main([*words, "--rows", "4"]) == 4
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
    assert main([*words, "--rows", "4", "--on-error", "fail"]) == 1  # told again, not tried again
    assert "0003.png: it is not an image" in capsys.readouterr().err
    (photos / "a" / "0003.png").write_bytes((photos / "a" / "0001.png").read_bytes())
    (photos / "b" / "0014.png").unlink()
    (photos / "b" / "gone.png").unlink()
    assert main([*words, "--rows", "4"]) == 0
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


def test_only_chunks_with_changes_are_embedded_again(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    work: dict[str, Any] = {"model": metric, **SMALL_ROWS}
    embed_dataset(photos, out, **work)
    first = stamps(out)
    told: list[int] = []
    assert embed_dataset(photos, out, progress=lambda done, total: told.append(done), **work).embedded == 0
    assert told == sorted(set(told))
    assert told[-1] == 23
    assert stamps(out) == first

    known = chunks([photos], rows=work["rows"])
    images(photos)[9].write_bytes(images(photos)[2].read_bytes() + b"\0")
    pictures(photos / "a", 1, start=100)  # between two others
    images(photos)[20].unlink()
    # where chunks end goes by the names of files, so by the folder's too: in some folders all of so few are others now
    other = [chunk for chunk in chunks([photos], rows=work["rows"]) if chunk not in known]
    more = embed_dataset(photos, out, **work)
    assert (more.images, more.embedded) == (23, sum(chunk.count for chunk in other))
    assert more.embedded > 0
    embed_dataset(photos, tmp_path / "anew", **work)
    same_rows(rows_of(out), rows_of(tmp_path / "anew"), atol=1e-6)


def test_a_damaged_part_is_made_again(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed_dataset(photos, out, model=metric, **SMALL_ROWS)
    before = rows_of(out)
    part, other, *_ = sorted(out.glob("part-*"))
    part.write_bytes(part.read_bytes()[:-20])
    pq.write_table(pq.read_table(other).slice(1), other)  # rows are lacking
    assert embed_dataset(photos, out, model=metric, **SMALL_ROWS).embedded > 0
    same_rows(rows_of(out), before)


def test_a_byte_flipped_in_a_part_moves_no_distance(metric: IDSim, tmp_path: Path) -> None:
    """The page checksums that parts are written with cover all vectors; a run again embeds damaged parts again."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    pictures(photos, 3)
    embed_dataset(photos, out, model=metric)
    before = rows_of(out)
    [part] = out.glob("part-*")
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
        ({"model": metric, "rows": 7}, "rows 256 instead of 7"),
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
    out, new = tmp_path / "out", tmp_path / "new"
    out.mkdir()
    (out / "part-00000-of-00001.parquet").write_bytes(b"somebody's")  # as Spark calls them
    with pytest.raises(ScaleError, match=r"other Parquet files \(part-00000.*name a folder of its own"):
        embed_dataset(photos, out, model=metric)
    embed_dataset(photos, new, model=metric)
    (out / "part-00000-of-00001.parquet").rename(new / "part-00000.parquet")
    for name in (".part-notes", ".part-1.parquet.bak"):
        (new / name).write_text("mine")
    embed_dataset(photos, new, model=metric)
    assert {"part-00000.parquet", ".part-notes", ".part-1.parquet.bak"} <= {p.name for p in new.iterdir()}
    (new / "_embed.json").write_text("[1]")
    with pytest.raises(ScaleError, match=r"is damaged .*name another one"):
        embed_dataset(photos, new, model=metric)


# Where images come from


def test_files_and_folders_name_each_image_once(saved: Path, photos: Path, tmp_path: Path) -> None:
    paths = images(photos)
    words = ["embed", str(photos / "b"), str(paths[0]), str(paths[3]), str(paths[15]), "-o", str(tmp_path / "out")]
    assert main([*words, "--model", str(saved), "--device", "cpu"]) == 0
    assert rows_of(tmp_path / "out").keys() == {str(paths[0]), str(paths[3]), *map(str, images(photos / "b"))}


def test_tables_hold_bytes_datasets_images_or_paths(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    paths = images(photos)[:6]
    expected = metric.embed(paths, patches=False).cls
    columns = {
        "bytes": {"image_bytes": [p.read_bytes() for p in paths], "id": [p.stem for p in paths]},
        "struct": {"image": [{"bytes": p.read_bytes(), "path": None} for p in paths]},
        "paths": {"path": [f"photos/a/{p.name}" for p in paths], "label": list(range(6))},
        "mixed": {"image_bytes": [None, *(p.read_bytes() for p in paths[1:])], "path": [str(paths[0])] + 5 * [None]},
        "named": {"photo": [p.read_bytes() for p in paths], "code": list("abcdef")},
    }
    for name, values in columns.items():
        pq.write_table(pa.table(values), tmp_path / f"{name}.parquet", row_group_size=3)
        options = {"column": "photo", "column_id": "code"} if name == "named" else {}
        done = embed_dataset(tmp_path / f"{name}.parquet", tmp_path / name, model=metric, rows=4, **options)
        assert (done.images, done.parts, done.unreadable) == (6, 2, {}), name
        found = rows_of(tmp_path / name)
        assert set(found) == {f"{tmp_path / name}.parquet#{k}" for k in range(6)}
        for k in range(6):
            row = found[f"{tmp_path / name}.parquet#{k}"]
            np.testing.assert_allclose(row["embedding"], expected[k], atol=1e-5)
        called = [found[f"{tmp_path / name}.parquet#{k}"]["name"] for k in range(6)]
        assert called == {
            "bytes": [p.stem for p in paths], "named": list("abcdef"), "struct": list("012345"),
            "paths": columns["paths"]["path"], "mixed": [str(paths[0]), *5 * ["None"]],
        }[name]  # fmt: skip


@pytest.mark.parametrize("group", [1, 3, 25])
def test_tables_are_cut_into_parts_whatever_their_row_groups(
    metric: IDSim, photos: Path, tmp_path: Path, group: int
) -> None:
    paths, out = images(photos), tmp_path / "out"
    values: dict[str, Any] = {"id": [p.stem for p in paths], "image": [p.read_bytes() for p in paths]}
    pq.write_table(pa.table(values), tmp_path / "t.parquet", row_group_size=group)
    work: dict[str, Any] = {"model": metric, "rows": 4, "batch_size": 3}
    done = embed_dataset(tmp_path / "t.parquet", out, **work)
    assert (done.images, done.parts) == (23, 6)
    assert sorted(row["name"] for row in rows_of(out).values()) == values["id"]
    expected = metric.embed(paths, patches=False).cls
    for k in range(23):
        np.testing.assert_allclose(rows_of(out)[f"{tmp_path}/t.parquet#{k}"]["embedding"], expected[k], atol=1e-5)
    # parts that are gone are made anew: the table is read across the gaps
    for chunk in (chunks([tmp_path / "t.parquet"], rows=4)[k] for k in (1, 2, 5)):
        (out / chunk.part).unlink()
    before = rows_of(out)
    assert embed_dataset(tmp_path / "t.parquet", out, **work).embedded == 4 + 4 + 3
    assert rows_of(out).items() >= before.items()
    values["image"][15], values["id"][18] = values["image"][2], "renamed"
    pq.write_table(pa.table(values), tmp_path / "t.parquet", row_group_size=group)
    embed_dataset(tmp_path / "t.parquet", out, **work)
    found = rows_of(out)
    assert found[f"{tmp_path}/t.parquet#18"]["name"] == "renamed"
    np.testing.assert_allclose(found[f"{tmp_path}/t.parquet#15"]["embedding"], expected[2], atol=1e-5)


def test_a_table_that_is_damaged_inside_is_named(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    table = pa.table({"image": [p.read_bytes() for p in images(photos)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=8, use_dictionary=False)
    start = pq.read_metadata(tmp_path / "t.parquet").row_group(1).column(0).data_page_offset
    data = bytearray((tmp_path / "t.parquet").read_bytes())
    data[start : start + 8] = b"\xff" * 8  # the head of a page
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(ScaleError, match=r"t\.parquet' cannot be read as Parquet"):
        embed_dataset(tmp_path / "t.parquet", tmp_path / "out", model=metric, rows=4)


def test_addresses_are_read_and_written(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    (photos / "a b%20#?.png").write_bytes(images(photos)[0].read_bytes())  # no name is taken for an address
    embed_dataset(photos, tmp_path / "local", model=metric, **SMALL_ROWS)
    local = rows_of(tmp_path / "local")
    done = embed_dataset(f"file://{photos}", f"file://{tmp_path}/local", model=metric, **SMALL_ROWS)
    assert (done.images, done.embedded) == (24, 0)  # by whichever name

    memory = fsspec.filesystem("memory")
    for path in images(photos):
        memory.pipe(f"/bucket/photos/{path.relative_to(photos)}", path.read_bytes())
    try:
        work: dict[str, Any] = {"model": metric, "workers": 1, **SMALL_ROWS}  # its files are not for two threads
        done = embed_dataset("memory://bucket/photos", "memory://bucket/out", **work)
        assert (done.images, done.embedded) == (24, 24)
        memory.pipe("/bucket/photos/more.png", images(photos)[0].read_bytes())
        done = embed_dataset("memory://bucket/photos", "memory://bucket/out", **work)
        assert 0 < done.embedded < done.images == 25
        found = {}
        for name in memory.find("/bucket/out"):
            if name.endswith(".parquet"):
                with memory.open(name) as file:
                    found |= {row["name"]: row for row in pq.read_table(file).to_pylist()}
        assert found.keys() == {"more.png", *(row["name"] for row in local.values())}
        for row in local.values():
            assert found[row["name"]]["image"] == f"memory:///bucket/photos/{row['name']}"
            np.testing.assert_allclose(found[row["name"]]["embedding"], row["embedding"], atol=1e-5)
        with memory.open("/bucket/t.parquet", "wb") as file:  # relative to the table
            pq.write_table(pa.table({"path": ["photos/more.png", str(images(photos)[0])]}), file)
        done = embed_dataset("memory://bucket/t.parquet", tmp_path / "inside", model=metric)
        assert list(done.unreadable) == ["memory:///bucket/t.parquet#1"]  # in the store, not on this machine
    finally:
        memory.rm("/bucket", recursive=True)
    with pytest.raises(ScaleError, match="fsspec does not open it"):
        place("nowhere://bucket/photos")
    with pytest.raises(ScaleError, match="web servers are not fetched"):
        place("https://example.com/a.png")


@pytest.mark.parametrize(
    "address",
    [
        "simplecache::http://127.0.0.1:9/a.png",
        "filecache::HTTPS://127.0.0.1:9/a.png",
        "zip://*::http://127.0.0.1:9/a.zip",
        "generic://http://127.0.0.1:9/a.png",
    ],
)
def test_an_address_inside_an_address_does_not_reach_a_web_server(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", None)
    with pytest.raises(ScaleError, match="an address inside an address is not opened"):
        place(address)


def test_addresses_in_tables_are_never_opened(
    metric: IDSim, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [f"file://{images(photos)[1]}", "webhdfs://h/d.png", "HTTP://h/d.png", "simplecache::ftp://h/d.png",
           "zip://*::http://h/a.zip", "file ://d.png", "://h/d.png", "memory://a.png"]  # fmt: skip
    monkeypatch.setattr("fsspec.core.url_to_fs", None)
    pq.write_table(pa.table({"path": [str(images(photos)[0]), *bad, "photos", "", None]}), tmp_path / "t.parquet")
    done = embed_dataset(tmp_path / "t.parquet", tmp_path / "out", model=metric)
    reasons = list(done.unreadable.values())
    assert done.embedded == 1
    assert all("is an address in a table, which is not opened" in reason for reason in reasons[: len(bad)])
    ends = ["Is a directory", "Is a directory", "the row holds no image, but None"]
    assert all(reason.endswith(end) for reason, end in zip(reasons[len(bad) :], ends, strict=True))


def test_no_other_module_opens_addresses() -> None:
    package = Path(idmetric.__file__).parent
    names = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"import fsspec|fsspec\.|from pyarrow import fs|from_uri|url_to_fs", path.read_text())
    }
    assert names == {"gallery/scale/places.py"}


def test_sources_that_cannot_be_used_say_so(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    (tmp_path / "m.csv").write_text("id,path\n")
    pictures(tmp_path / "mixed", 1)
    pq.write_table(pa.table({"path": ["0000.png"]}), tmp_path / "mixed" / "t.parquet")
    for source, says in (
        ("absent", "there is no folder"), ("empty", "holds no images"), ("bad.parquet", "cannot be read as Parquet"),
        ("x.parquet", "has no column any of image_bytes, image, bytes, path, but x"),
        ("m.csv", "Parquet files are read"), ("mixed", "are embedded apart"),
    ):  # fmt: skip
        with pytest.raises(ScaleError, match=says):
            embed_dataset(tmp_path / source, tmp_path / "out", model=metric)
    with pytest.raises(ScaleError, match="lies in the source"):
        embed_dataset(photos, photos / "out", model=metric)
    assert not (tmp_path / "out").exists()


def test_what_may_have_no_end_is_not_waited_for(metric: IDSim, photos: Path, tmp_path: Path) -> None:
    os.mkfifo(photos / "a" / "pipe.png")
    done = embed_dataset(photos, tmp_path / "out", model=metric)
    assert list(done.unreadable.values()) == ["it is a pipe or a device: give a file"]
    [part] = (tmp_path / "out").glob("part-*")
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(ScaleError, match=f"{part.name}' is a pipe"):
        embed_dataset(photos, tmp_path / "out", model=metric)
    os.mkfifo(tmp_path / "table.parquet")
    with pytest.raises(ScaleError, match=r"table\.parquet' is a pipe"):
        embed_dataset(tmp_path / "table.parquet", tmp_path / "other", model=metric)


def test_names_that_are_no_utf8_are_kept(metric: IDSim, tmp_path: Path) -> None:
    [path] = pictures(tmp_path / "photos", 1)
    try:
        os.rename(path, os.fsencode(path.parent) + b"/caf\xe9.png")
    except OSError:
        pytest.skip("this file system has no such names")
    embed_dataset(tmp_path / "photos", tmp_path / "out", model=metric)
    assert list(rows_of(tmp_path / "out")) == [f"{tmp_path}/photos/caf\\udce9.png"]
    assert embed_dataset(tmp_path / "photos", tmp_path / "out", model=metric).embedded == 0


def test_a_file_more_changes_one_chunk(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 1)
    for k in range(1, 400):
        os.link(tmp_path / "photos" / "0000.png", tmp_path / "photos" / f"{k:04}.png")
    before = chunks([tmp_path / "photos"], rows=10)
    assert sum(c.count for c in before) == 400
    assert max(c.count for c in before) <= 40
    assert len({c.part for c in before}) == len(before) >= 10
    os.link(tmp_path / "photos" / "0000.png", tmp_path / "photos" / "0100x.png")
    after = chunks([tmp_path / "photos"], rows=10)
    assert sum(a not in before for a in after) <= 2
    assert [e.name for _, e in entries(after, 32)] == sorted(p.name for p in (tmp_path / "photos").iterdir())


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
        (["absent"], "there is no 'absent'"), ([photos, "--rows", "0"], "argument --rows"),
        ([photos, "--gpus", "1"], "add --ray"), ([photos, "--workers", "0"], "argument --workers"),
    ):  # fmt: skip
        run.fails(says, *words, "--out", tmp_path / "out", status=2)
    (tmp_path / "file").write_text("")
    words = [photos, "--out", tmp_path / "file" / "out", "--model", saved, "--device", "cpu", "--quiet"]
    run.fails("what should be its folder is a file", *words)
    assert command.ROWS == ROWS


def test_without_pyarrow_or_ray_it_says_how_to_get_them(
    metric: IDSim, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet")
    with pytest.raises(ImportError, match=r"pip install 'idmetric\[data\]'"):
        embed_dataset(photos, tmp_path / "out", model=metric)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'idmetric\[scale\]'"):
        embed_on_ray(photos, tmp_path / "out", model=lambda: metric)
