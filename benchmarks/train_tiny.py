"""Train a model of the kind of IDSim("tiny"), from rendering on, with one command that resumes where it stopped.

    python benchmarks/train_tiny.py DATA OUT

DATA holds train/ with the photos and meshes of docs/reports/tiny.md; OUT gets the rendered world, the runs and, in
OUT/tiny, the model. Version 0.1's weights, a teacher of runs 2 and 3, come from this repository's history. Needs the
extras `train`, `world` and `tiny`.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from idmetric.io.output import replacing

ROOT = Path(__file__).parents[1]
WEIGHTS = "idmetric/models/weights/tiny"
FORMER = "47196fa"  # the commit with version 0.1's weights, which teach runs 2 and 3

WORLD = "--size 160 --quality 100 --strengths 0.3 0.5 0.75 1 --mixed --workers 0"
ALL = "--stored-size 160 --batch-size 24 --photo-share 0.17"
TEACHERS = "--teacher-sizes 224 112"  # for the run before, and for version 0.1
RUNS = (
    "--labelled-share 0.33 --warmup 20 --blend 0.75",
    "--labelled-share 0.33 --warmup 40 --seed 1 --blend 0.7 --patch-blend 0",
    "--labelled-share 0.25 --warmup 40 --seed 2 --small-size 112 --large-size 144 --small-part 0.6 --frozen-stages 2 "
    "--blend 0.85 --patch-blend 0.3",
)
IDENTITIES, STEPS = 7000, (300, 900, 1200)
SMOKE_IDENTITIES, SMOKE_STEPS = 40, (2, 2, 2)


def earlier(commit: str, folder: Path) -> Path:
    """The weights at a commit, in a folder."""
    if not (folder / "model.safetensors").is_file():
        packed = subprocess.run(["git", "-C", ROOT, "archive", commit, WEIGHTS], check=False, capture_output=True)
        if packed.returncode:
            sys.exit(f"commit {commit} is not in this copy of the repository: clone it with its history")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
            for name in ("config.json", "model.safetensors"):  # the weights last
                member = tar.extractfile(f"{WEIGHTS}/{name}")
                assert member is not None
                with replacing(folder / name) as temporary:
                    temporary.write_bytes(member.read())
    return folder


def idmetric(*arguments: str | Path) -> None:
    """Run a command. One that was stopped before resumes; a finished one ends at once."""
    print("idmetric", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "idmetric.cli.main", *arguments], check=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Render, then train three times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--smoke", action="store_true", help="a few identities and steps, to try the commands")
    args = parser.parse_args(argv)
    photos, out = args.data / "train", args.out
    identities, steps = (SMOKE_IDENTITIES, SMOKE_STEPS) if args.smoke else (IDENTITIES, STEPS)

    former, world = earlier(FORMER, out / "former"), out / "world"
    idmetric("data", "world", "--out", world, "--assets", photos, "--identities", str(identities), *WORLD.split())

    plain = [photos / name for name in ("produce", "backgrounds", "textures")]
    labelled = [photos / name for name in ("cats", "fruit", "figures", "statues")]
    groups = ["--data", world / "manifest.parquet", "--cache", out / "groups.npy"]
    train = ["train", "tiny", *groups, "--photos", *plain, "--labelled", *labelled, *ALL.split()]
    before: Path | None = None
    for number, (run, count) in enumerate(zip(RUNS, steps, strict=True), 1):
        folder = out / (f"run-{number}" if number < len(RUNS) else "tiny")
        taught = ["--init", before, "--teachers", before, former, *TEACHERS.split()] if before else []
        idmetric(*train, *run.split(), "--steps", str(count), *taught, "--out", folder)
        before = folder


if __name__ == "__main__":
    main()
