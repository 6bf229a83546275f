"""Names that come from inputs stay in their folder, links are not followed, and processes share what is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from idmetric import IDSim
from idmetric.data.curate.filters import read_rules
from idmetric.data.frames.extract import folder_name as clip_folder
from idmetric.evaluate.protocols.common.result import slug
from idmetric.evaluate.settings import from_file
from idmetric.metric.checkpoints.format import read_json
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import OutputError, read_json_file, replacing, writing
from idmetric.scoring.calibration import Calibration
from idmetric.store import folder_name as gallery_folder
from idmetric.train.loop import TrainSettings
from tests.hub_server import COMMIT, HubServer

EVIL = (
    "../../x",
    "/etc/x",
    "..",
    ".",
    "a/../../x",
    "\0",
    "a\\..\\x",
    "C:\\x",
    "",
    "~",
    "-rf",
    "con",
    "a" * 5000,
    "\u2025/x",
)


def inside(name: str) -> bool:
    """Whether a name, put after a folder, is something in it."""
    path = os.path.normpath(os.path.join("/base/folder", name))
    return path.startswith("/base/folder/") and "\0" not in name and all(len(p.encode()) < 256 for p in name.split("/"))


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(st.one_of(st.sampled_from(EVIL), st.text(max_size=300)))
@example("../../x")
def test_names_made_from_inputs_stay_in_their_folder(name: str) -> None:
    for part in (clip_folder(name), gallery_folder({"model": name}), f"p.{slug(name)}.items.parquet"):
        assert inside(part), (name, part)
    assert "/" not in clip_folder(name) + gallery_folder({"model": name}) + slug(name)


def test_an_output_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out").symlink_to(tmp_path / "precious")
    with replacing(tmp_path / "out") as path:
        path.write_text("new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "out").read_text() == "new"
    assert not (tmp_path / "out").is_symlink()


def test_what_fails_half_way_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")

    def fail(error: type[BaseException]) -> None:
        with replacing(tmp_path / "out") as path:
            path.write_text("half")
            raise error

    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            fail(error)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "old"


def test_errors_about_other_files_keep_their_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "out"):
        (tmp_path / "input").read_text()
    assert not isinstance(caught.value, OutputError)
    with pytest.raises(OutputError, match="its folder is not there"), replacing(tmp_path / "no" / "out"):
        pass
    with pytest.raises(OutputError, match="disk is full"), replacing(Path("/dev/full")) as path:
        path.write_text("x")
    (tmp_path / "f").write_text("")
    with pytest.raises(OutputError, match="is a file"), writing(tmp_path / "f" / "g"):
        (tmp_path / "f" / "g").mkdir(parents=True)


def test_text_from_pipes_devices_and_giants_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # opening it would wait for a writer
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    with (tmp_path / "giant.json").open("wb") as file:
        file.truncate(2**24 + 1)  # of zeros that take no room
    for read in (read_json_file, read_json, Calibration.read, read_rules, lambda path: from_file(path, TrainSettings)):
        for name in ("pipe.json", "zero.json"):
            with pytest.raises((OSError, ValueError, CheckpointError), match="a pipe or a device"):
                read(tmp_path / name)
        with pytest.raises((OSError, ValueError, CheckpointError), match=r"folder\.json"):
            read(tmp_path / "folder.json")
    for read in (read_json, Calibration.read):
        with pytest.raises((OSError, ValueError, CheckpointError), match=r"giant\.json.* more than 16777216 bytes"):
            read(tmp_path / "giant.json")


_SHARING = """
import json, os, sys
os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
import torch; torch.set_num_threads(1)
from idmetric import load
from idmetric.gallery import Gallery
from idmetric.cli.eval import main
children = []
for k in range(3):
    if (pid := os.fork()) == 0:
        os.dup2(os.open(f"said{k}", os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(1, 2)
        code = 1
        try:
            metric = load("owner/model", device="cpu")
            Gallery("gallery", metric).build("images")
            code = main(["folder", "--data", "images", "--model", "m=owner/model", "--out", "out", "--bootstrap",
            "0", "--device", "cpu"])
        finally:
            sys.stdout.flush()
            os._exit(code)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
metric = load("owner/model", device="cpu")
gallery = Gallery("gallery", metric)
again = gallery.build("images")
print(json.dumps({"codes": codes, "images": len(gallery), "embedded": again.embedded}))
"""


@pytest.mark.slow
def test_processes_share_the_hub_cache_the_gallery_and_the_embeddings(metric: IDSim, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path / "repo")
    for k in range(8):
        path = tmp_path / "images" / str(k // 2) / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((64, 64), 20 + 10 * k).convert("RGB").save(path)
    with HubServer({"owner/model": tmp_path / "repo"}) as server:
        environment = {**os.environ, "HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
                       "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", _SHARING], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
    said = "\n".join(p.read_text() for p in sorted(tmp_path.glob("said*")))
    assert done.returncode == 0, done.stderr + said
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found == {"codes": [0, 0, 0], "images": 8, "embedded": 0}, said
    assert len(list((tmp_path / "hf").rglob(f"snapshots/{COMMIT}/model.safetensors"))) == 1
    stray = [p.name for p in (tmp_path / "out").rglob(".*") if p.name != ".lock"]
    assert not stray
    assert json.loads((tmp_path / "out" / "folder.json").read_text())
