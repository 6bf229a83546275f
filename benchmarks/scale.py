"""Images per second and memory of galleries and scores of thousands of generated images (benchmarks/reports/scale.md).

    python benchmarks/scale.py [--images 1000 5000] [--model tiny]

Each command runs in its own process; memory is the largest resident set of that process, in megabytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

CHILD = """
import resource, sys, time
from idmetric.cli.main import main
start = time.perf_counter()
status = main(sys.argv[1:])
print("MEASURED", status, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def make(folder: Path, count: int, size: tuple[int, int] = (320, 240)) -> None:
    """Write this many different JPEG files."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size).save(folder / f"{number:06}.jpg", quality=90)


def measure(*words: str) -> tuple[float, float]:
    """Run a command; returns its seconds and megabytes."""
    done = subprocess.run([sys.executable, "-c", CHILD, *words], capture_output=True, text=True)
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("MEASURED")]
    if not found or found[0][1] != "0":
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    return float(found[0][2]), float(found[0][3])


def main() -> None:
    """Make the images, run the commands, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}, {args.model}")
    print("| command | images or pairs | seconds | a second | MB |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="idmetric-") as name:
        root = Path(name)
        for count in args.images:
            photos = root / f"photos{count}"
            make(photos, count)
            lines = [f"{photos.name}/{a:06}.jpg,{photos.name}/{(a * 7 + 1) % count:06}.jpg" for a in range(count)]
            (root / f"{count}.csv").write_text("\n".join(lines) + "\n")
            shared = ["--model", args.model, "--device", args.device, "--quiet"]
            build = ["gallery", "build", str(photos), "--gallery"]
            runs = {
                "build": [*build, str(root / f"out{count}"), *shared],
                "build, again": [*build, str(root / f"out{count}"), *shared],
                "build --patches": [*build, str(root / f"patches{count}"), "--patches", *shared],
                "--pairs": ["score", "--pairs", str(root / f"{count}.csv"), "--format", "csv", "--output",
                            str(root / "scores"),
                            "--cache", str(root / f"kept{count}"), *shared],
                "--pairs, again": ["score", "--pairs", str(root / f"{count}.csv"), "--format", "csv", "--output",
                                   str(root / "scores"), "--cache", str(root / f"kept{count}"),
                                   *shared],
                "--pairs --distance patch": ["score", "--pairs", str(root / f"{count}.csv"), "--format", "csv",
                                             "--output", str(root / "scores"), "--distance", "patch",
                                             *shared],
            }  # fmt: skip
            for title, words in runs.items():
                seconds, megabytes = measure(*words)
                print(f"| {title} | {count} | {seconds:.1f} | {count / seconds:.0f} | {megabytes:.0f} |", flush=True)


if __name__ == "__main__":
    main()
