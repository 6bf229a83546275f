"""Train a model of the kind of IDSim("tiny"), from rendering on, with one command that resumes where it stopped.

    PYTHONPATH=benchmarks python benchmarks/tiny/train.py DATA OUT

DATA holds train/ with the photos and meshes of reports/tiny.md; OUT gets the rendered world, the runs and, in
OUT/tiny, the model: run 3 and the run of EfficientNet-Lite2, mixed with their start and side by side as in the package.
Version 0.1's weights, a teacher of runs 2 and 3, come from this repository's history. Needs
the extra `train`, and VTK.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from config import Config
from pair import write_pair
from recipe import Tiny, keep_memory
from start import mixed

from idmetric.data.manifest.table import Manifest, read
from idmetric.metric.files.output import replacing
from idmetric.metric.models.idsim import IDSim
from idmetric.train.loader import seed_all
from idmetric.train.loop import TrainError, TrainSettings, fit
from idmetric.train.processes import Processes

ROOT = Path(__file__).parents[2]
WEIGHTS = "idmetric/models/weights/tiny"  # where these commits have them
RECORD = Path(__file__).parent / "record"  # settings and logs of the runs that made the weights of the package
FORMER = "47196fa"  # the commit with version 0.1's weights, which teach runs 2 and 3

WORLD = "--size 160 --quality 100 --strengths 0.3 0.5 0.75 1 --mixed --workers 0"
TEACHER_SIZES = (224, 112)  # for the run before, and for version 0.1
RUNS: tuple[dict[str, Any], ...] = (
    {"steps": 300, "warmup": 20, "blend": 0.75},
    {"steps": 900, "warmup": 40, "seed": 1, "blend": 0.7, "patch_blend": 0.0},
    {"steps": 1200, "warmup": 40, "seed": 2, "blend": 0.85, "patch_blend": 0.3, "labeled_share": 0.25,
     "small_size": 112, "large_size": 144, "small_part": 0.6, "frozen_stages": 2},
)  # fmt: skip
# EfficientNet-Lite2, which needs no teacher
SECOND: dict[str, Any] = {
    "backbone": "efficientnet-lite2", "steps": 400, "warmup": 30, "seed": 1, "labeled_share": 0.25, "small_size": 112,
    "small_part": 0.6, "frozen_stages": 2, "early_rate": 0.5, "ema": 0.98,
}  # fmt: skip
IDENTITIES = 7000
SMOKE_IDENTITIES, SMOKE_STEPS = 16, 1  # a step shows 14 identities at most


def earlier(commit: str, place: str, folder: Path) -> Path:
    """The weights that a commit had at a place, in a folder."""
    if not (folder / "model.safetensors").is_file():
        packed = subprocess.run(["git", "-C", ROOT, "archive", commit, place], check=False, capture_output=True)
        if packed.returncode:
            sys.exit(f"commit {commit} is not in this copy of the repository: clone it with its history")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
            for name in ("config.json", "model.safetensors"):  # the weights last
                member = tar.extractfile(f"{place}/{name}")
                assert member is not None
                data = member.read()
                if name == "config.json":
                    data = data.replace(b'"centre"', b'"center"')  # the setting's name today
                    if "mirror_sizes" in (settings := json.loads(data)):  # teachers see no mirrored images
                        del settings["mirror_sizes"]
                        data = json.dumps(settings, indent=2).encode()
                with replacing(folder / name) as temporary:
                    temporary.write_bytes(data)
    return folder


def train(config: Config, data: Manifest, out: Path) -> None:
    """Train one model; a run that was stopped resumes, and a finished one ends at once."""
    settings = TrainSettings(
        seed=config.seed,
        precision="no",  # CPUs take up to 50 times as long for gradients of depthwise convolutions in bfloat16
        max_grad_norm=1.0,
        save_every=100,
        validate_every=0,
        log_every=50,
    )
    processes = Processes(settings.precision)
    seed_all(settings.seed)
    stopped = fit(Tiny(config, data, processes), out, settings, processes)
    if stopped is not None:
        sys.exit(str(stopped))


def main(argv: Sequence[str] | None = None) -> None:
    """Render, train four times, and join the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--smoke", action="store_true", help="a few identities and steps, to try the command")
    args = parser.parse_args(argv)
    photos, out = args.data / "train", args.out
    identities = str(SMOKE_IDENTITIES if args.smoke else IDENTITIES)

    former, world = earlier(FORMER, WEIGHTS, out / "former"), out / "world"
    render = ["--out", world.absolute(), "--assets", photos.absolute(), "--identities", identities, *WORLD.split()]
    subprocess.run([sys.executable, "-m", "world", *render], check=True, cwd=ROOT / "benchmarks")

    keep_memory()
    data = read(world / "manifest.parquet")
    shared = {
        "photos": tuple(str(photos / name) for name in ("produce", "backgrounds", "textures")),
        "labeled": tuple(str(photos / name) for name in ("cats", "fruit", "figures", "statues")),
        "cache": str(out / "groups.npy"),
    }
    before: Path | None = None
    for name, run in {"run-1": RUNS[0], "run-2": RUNS[1], "run-3": RUNS[2], "lite2": SECOND}.items():
        settings = {**shared, **run, **({"steps": SMOKE_STEPS} if args.smoke else {})}
        if before and run is not SECOND:
            taught = (str(before), str(former))
            settings |= {"init": str(before), "teachers": taught, "teacher_sizes": TEACHER_SIZES}
        try:
            train(Config(**settings), data, out / name)
        except TrainError as error:
            sys.exit(str(error))
        before = out / name

    mix = json.loads((RECORD / "recipe.json").read_text(encoding="utf-8"))["mix"]
    options: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
    first = mixed(IDSim(out / "run-3", **options), mix["shares"])
    second = mixed(IDSim(out / "lite2", **options), mix["second"]["shares"])
    write_pair(first, second, mix["second"]["size"], mix["second"]["share"], out / "tiny")


if __name__ == "__main__":
    main()
