"""What a curator waits for: seconds of building a gallery, of finding duplicates, and of doing so again.

    python benchmarks/curation.py PHOTOS OUT --count 5000

OUT/photos receives COUNT photos, and then 50 more: four of five are files below PHOTOS, every fifth is an edit of the
one before it, named NUMBER-EDIT after it. Each line is one command, in a process of its own; "share" is its time in
relation to the first build, which embeds all photos. On a machine that others use too, compare CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from idmetric.metric.paths import is_image, walk

MORE = 50
EDITS = ("copy", "jpeg", "half", "crop")


def add(files: Sequence[Path], folder: Path, start: int, count: int) -> None:
    """Add photos to a folder, numbered from `start`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        file = files[number - number // 5]
        if number % 5 < 4:
            shutil.copyfile(file, folder / f"{number:06}{file.suffix}")
        else:
            edited(files[number - number // 5 - 1], folder, number)


def edited(file: Path, folder: Path, number: int) -> None:
    """Write an edit of a photo: the same bytes, compressed, half its size, or without a twentieth of each side."""
    edit = EDITS[number // 5 % len(EDITS)]
    name = f"{number - 1:06}-{edit}"
    if edit == "copy":
        shutil.copyfile(file, folder / f"{name}{file.suffix}")
        return
    photo = Image.open(file).convert("RGB")
    width, height = photo.size
    if edit == "half":
        photo = photo.resize((max(1, width // 2), max(1, height // 2)))
    if edit == "crop":
        photo = photo.crop((width // 20, height // 20, width - width // 20, height - height // 20))
    photo.save(folder / f"{name}.jpg", quality=50 if edit == "jpeg" else 90)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=5000)
    args = parser.parse_args()

    files = [file for file in walk(args.photos) if is_image(file) and "mask" not in str(file)]
    args.count = min(args.count, len(files) * 5 // 4 - MORE)
    photos, gallery = args.out / "photos", ["--gallery", str(args.out / "gallery"), "--quiet"]
    add(files, photos, 0, args.count)
    build = ["build", str(photos), *gallery, "--model", "tiny", "--device", "cpu"]
    dedupe = ["dedupe", *gallery, "--device", "cpu", "--output", str(args.out / "duplicates.csv")]
    page = [*dedupe, "--html", str(args.out / "duplicates.html")]

    steps = [
        ("build", build),
        ("dedupe", dedupe),
        ("build again", build),
        ("dedupe again", dedupe),
        ("with a page", page),
    ]
    whole = 0.0
    print(f"| {args.count} photos | seconds | share | CPU seconds | load |\n|---|---|---|---|---|")
    for name, words in [*steps, ("", []), (f"build with {MORE} more", build), ("dedupe", dedupe)]:
        if not words:
            add(files, photos, args.count, MORE)
            continue
        begin, used = time.perf_counter(), sum(os.times()[2:4])
        subprocess.run([sys.executable, "-m", "idmetric.cli.main", "gallery", *words], check=True)
        taken, used = time.perf_counter() - begin, sum(os.times()[2:4]) - used
        whole = whole or taken
        print(f"| {name} | {taken:.1f} | {taken / whole:.2f} | {used:.1f} | {os.getloadavg()[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
