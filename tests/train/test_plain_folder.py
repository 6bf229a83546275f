"""A plain folder of photos, `photos/NAME/*.png`: how each recipe trains on it, as its page says."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idmetric.cli.main import main
from idmetric.cli.train import RECIPES
from idmetric.data.manifest.table import read
from idmetric.data.painter import Painter
from idmetric.train.processes import Processes

PAGES = Path(__file__).resolve().parents[2] / "docs" / "train"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 6 identities with 3 photos each, imported from a folder."""
    folder = tmp_path_factory.mktemp("plain")
    painted = Painter(size=64, views=3).paint(folder / "painted", 6)
    for number in range(len(painted)):
        photo = folder / "photos" / str(painted[number].identity).replace("/", "-") / f"{number}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        painted.image(number).save(photo)
    assert main(["data", "import", "folder", str(folder / "photos"), "-o", str(folder / "photos.parquet")]) == 0
    return folder / "photos.parquet"


def train(recipe: str, data: Path, out: Path, *options: str) -> int:
    """Train the small random model of --smoke on data."""
    quick = ["--smoke", "--cpu", "--workers", "0", "--quiet"]
    return main(["train", recipe, "--data", str(data), "--out", str(out), *quick, *options])


def test_ilgen_trains_on_a_plain_folder(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("ilgen", plain, tmp_path / "run", "--images", "3", "--classes", "400", "--epochs", "1") == 0
    assert "note: a batch has 6 classes, as the data do not fill one of 400" in capsys.readouterr().out


def test_idsim_names_the_command_that_mines_triplets_of_a_plain_folder(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("idsim", plain, tmp_path / "run") == 1
    assert "for a folder of photos alone `idmetric data mine negatives` does" in capsys.readouterr().err
    mined = tmp_path / "mined.parquet"
    mine = ["data", "mine", "negatives", str(plain), "--model", "tiny", "--device", "cpu", "--quiet", "-o", str(mined)]
    assert main(mine) == 0
    assert train("idsim", mined, tmp_path / "run", "--epochs", "1", "--validate-every", "0") == 0
    assert "idmetric data mine negatives photos.parquet" in (PAGES / "idsim.md").read_text(encoding="utf-8")


def test_nearid_names_the_options_that_need_no_distractors(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("nearid", plain, tmp_path / "run") == 1
    assert "a folder of photos alone trains by --objective info-nce --mask-prob 0" in capsys.readouterr().err
    options = ["--objective", "info-nce", "--mask-prob", "0"]
    assert train("nearid", plain, tmp_path / "run", *options, "--epochs", "1") == 0
    assert "note: a batch has 6 tuples, as the data do not fill one of 8" in capsys.readouterr().out
    assert " ".join(options) in (PAGES / "nearid.md").read_text(encoding="utf-8")


def test_visme_trains_on_a_plain_folder(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    options = ["--batch-size", "1024", "--samples", "64", "--steps", "1"]
    assert train("visme", plain, tmp_path / "run", *options) == 0
    assert "note: a batch has 1 blocks of 6 samples, as the data do not fill 16 of 64" in capsys.readouterr().out
    settings = json.loads((tmp_path / "run" / "recipe.json").read_text())["settings"]
    assert (settings["batch_size"], settings["samples"]) == (6, 6)


class FirstOfTwo(Processes):
    """The first of two processes, whose second one has the same share of the batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.count = 2

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor])

    def average_gradients(self, parameters: Any) -> None:
        pass

    def copy_from_main(self, tensors: Any) -> None:
        pass

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return flags


CLIPPED: dict[str, tuple[list[str], dict[str, int], dict[str, int]]] = {  # options; batch of two processes; as asked
    "ilgen": (
        ["--images", "3", "--classes", "400", "--epochs", "2"],
        {"classes": 4, "batch_size": 12},
        {"classes": 400, "batch_size": 1200},
    ),
    "nearid": (
        ["--objective", "info-nce", "--mask-prob", "0", "--batch-size", "128", "--epochs", "2"],
        {"batch_size": 4},
        {"batch_size": 128},
    ),
    "visme": (
        ["--batch-size", "1024", "--samples", "64", "--steps", "2"],
        {"batch_size": 4, "samples": 4},
        {"batch_size": 1024, "samples": 64},
    ),
    "idsim": (
        ["--batch-size", "80", "--accumulation", "4", "--epochs", "2"],
        {"batch_size": 7, "accumulation": 2},
        {"batch_size": 80, "accumulation": 4},
    ),
}


def ended_at_step_1(recipe: Any, step: int) -> float:
    if step == 1:
        raise KeyboardInterrupt
    return 1.0


@pytest.mark.parametrize("recipe", CLIPPED)
def test_a_batch_clipped_for_two_processes_stays_when_one_process_exports_or_resumes(
    recipe: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """5 identities: two processes share 4 (of 15 triplets, 2 micro-batches of 7), where one would take all."""
    if recipe == "visme":
        pytest.importorskip("transformers")
    options, batch, asked = CLIPPED[recipe]
    options = [*options, "--save-every", "1", "--validate-every", "0"]
    data = tmp_path / "five.parquet"
    whole = read(plain)
    names = sorted(set(whole.column("identity")))[:5]  # type: ignore[type-var]
    whole.take([row for row in range(len(whole)) if whole[row].identity in names]).write(data)
    if recipe == "idsim":
        mine = ["data", "mine", "negatives", str(data), "--model", "tiny", "--device", "cpu", "--quiet", "-o"]
        data = tmp_path / "mined.parquet"
        assert main([*mine, str(data)]) == 0
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("idmetric.train.processes.Processes", FirstOfTwo)
        patch.setattr(importlib.import_module(RECIPES[recipe][0]).build, "lr_factor", ended_at_step_1)
        assert train(recipe, data, out, *options) == 130
    started = json.loads((out / "recipe.json").read_text())
    assert {name: started["settings"][name] for name in batch} == batch
    assert (started["asked"], started["processes"]) == (asked, 2)

    assert train(recipe, data, out, *options, "--export", str(tmp_path / "model")) == 0
    assert "wrote the model of step 1 of" in capsys.readouterr().out
    assert train(recipe, data, out, *options) == 0
    ended = json.loads((out / "recipe.json").read_text())
    assert (ended["settings"], ended["asked"], ended["processes"]) == (started["settings"], asked, 1)
    assert train(recipe, data, out, *options) == 0
    assert "finished already" in capsys.readouterr().out
