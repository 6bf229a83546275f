"""What a curator waits for: seconds of building a gallery, of finding duplicates, and of doing so again.

    python benchmarks/curation.py PHOTOS OUT --count 5000

Of the photos below a folder, the first COUNT and then 50 more are copied to OUT/photos. Each line is one command, in a
process of its own; "share" is its time in relation to the first build, which embeds all photos.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from idmetric.images.paths import is_image, walk

MORE = 50


def add(files: Sequence[Path], folder: Path, start: int) -> None:
    """Copy photos to a folder, numbered from `start`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files, start):
        shutil.copyfile(file, folder / f"{number:06}{file.suffix}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=5000)
    args = parser.parse_args()

    files = [file for file in walk(args.photos) if is_image(file)]
    first, more = files[: args.count], files[args.count : args.count + MORE]
    photos, gallery = args.out / "photos", ["--gallery", str(args.out / "gallery"), "--quiet"]
    add(first, photos, 0)
    build = ["build", str(photos), *gallery, "--model", "tiny", "--device", "cpu"]
    dedupe = ["dedupe", *gallery, "--device", "cpu", "--output", str(args.out / "duplicates.csv")]
    report = ["report", *gallery, "--device", "cpu", "--output", str(args.out / "report.html")]

    steps = [("build", build), ("dedupe", dedupe), ("build again", build), ("dedupe again", dedupe), ("report", report)]
    whole = 0.0
    print(f"| {len(first)} photos | seconds | share |\n|---|---|---|")
    for name, words in [*steps, ("", []), (f"build with {len(more)} more", build), ("dedupe", dedupe)]:
        if not words:
            add(more, photos, len(first))
            continue
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "idmetric.cli.main", "gallery", *words], check=True)
        taken = time.perf_counter() - begin
        whole = whole or taken
        print(f"| {name} | {taken:.1f} | {taken / whole:.2f} |", flush=True)


if __name__ == "__main__":
    main()
