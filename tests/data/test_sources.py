"""Where importers find tables: files of folders and of the Hub, their splits, and paths that they may name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from idmetric.cli.data import main
from idmetric.data.importers.run import import_dataset
from idmetric.data.importers.source import Source, open_source
from idmetric.data.manifest import ManifestError
from tests.data.test_importers import nearid, write_table
from tests.hub_server import COMMIT, HubServer
from tests.import_parts import by_id, put, refuses


def test_splits_come_from_names_of_files(tmp_path: Path) -> None:
    names = {
        "data/train-00000-of-00002.parquet": "train", "data/train-00001-of-00002.parquet": "train",
        "data/test_dense-00000-of-00001-0a1b2c3d.parquet": "test_dense",
        "default/validation/0000.parquet": "validation",
        "sample/Cars196.parquet": None, "test.parquet": "test",
    }  # fmt: skip
    for name in names:
        write_table({"a": [1]}, tmp_path / name)
    assert {s.path.relative_to(tmp_path).as_posix(): s.split for s in open_source(tmp_path).shards} == names
    only = open_source(tmp_path, files="data/train-*")
    assert [shard.split for shard in only.shards] == ["train", "train"]
    with pytest.raises(ManifestError, match=r"'none\*'"):
        open_source(tmp_path, files="none*")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "t.csv", b"path,identity,path\na.png,x,b.png\n")
    refuses(r"t\.csv.*path", "table", tmp_path / "t.csv")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the dataset owner/set on a server that the Hub's client asks."""
    from huggingface_hub import constants

    served = tmp_path / "served"
    with HubServer({"owner/set": served}) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield served


def test_a_dataset_of_the_hub_is_downloaded_and_its_commit_recorded(hub: Path, tmp_path: Path) -> None:
    nearid().save_to_disk(hub / "train", num_shards=2)  # as NearID-PowerPaint is stored
    put(hub / "README.md", b"---\ndataset_info: broken: [\n---\n")
    source = open_source("owner/set")
    assert (source.revision, len(source)) == (COMMIT, 3)
    table = import_dataset("nearid", "owner/set", images=tmp_path / "images", revision="main")
    assert len(table) == 8
    assert by_id(table)["nearid/10/view1"].parameters["source"] == f"owner/set@{COMMIT}"
    assert not list((tmp_path / "cache").rglob("README.md"))


@pytest.mark.parametrize("kind", ["table", "pods", "mtg"])
def test_tables_of_the_hub_name_no_files_outside(hub: Path, kind: str) -> None:
    columns: dict[str, list[Any]] = {"image": ["../../secret.png"], "identity": ["a"], "label": ["a"]}
    for view in (1, 2):
        for part in ("original", "inpainted", "object_mask", "part_mask"):
            columns[f"image_{view}_{part}"] = ["../../secret.png"]
    write_table(columns, hub / "train.parquet")
    refuses(r"owner/set: '\.\./\.\./secret\.png' is outside", kind, "owner/set")


def test_paths_that_lead_out_of_a_dataset_are_refused(tmp_path: Path) -> None:
    online, local = Source("owner/set", tmp_path, (), COMMIT), Source("set", tmp_path, ())
    for path in ("/etc/hostname", "..", "a/../../b.png", "//server/share/a", "..\\a"):
        with pytest.raises(ManifestError, match="outside"):
            online.locate(path)
        assert local.locate(path) == tmp_path / path.replace("\\", "/")  # the user's own table
    for path in ("a.png", "./a.png", "a/../b.png", "a/b..png", "a\\b.png"):
        assert online.locate(path) == tmp_path / path.replace("\\", "/")
    with pytest.raises(ManifestError, match="URLs"):
        local.locate("https://example.org/a.png")


def test_a_dry_run_prints_what_it_would_download(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(hub / "data" / "train.parquet", bytes(3_000_000))
    put(hub / "data" / "test.parquet", bytes(20_000_000))
    put(hub / "video.mp4", b"x")
    arguments = ["import", "nearid", "owner/set", "-o", str(tmp_path / "m.csv"), "--dry-run"]
    assert main(arguments) == 0
    assert f"2 files of owner/set@{COMMIT}, 0.02 GB" in capsys.readouterr().out
    assert main([*arguments, "--files", "data/train*"]) == 0
    assert "1 files" in capsys.readouterr().out
    assert not list(tmp_path.glob("m*"))
    assert not list((tmp_path / "cache").rglob("*.parquet"))
