"""How far is a photo from its own gray version? The distances in docs/limits.md.

    python benchmarks/gray.py DATA/dev/subjects [--model tiny]

The folder has a folder of photos for each subject. Each number is a mean over all photos.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from idmetric import load
from idmetric.metric.paths import is_image, listed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--distance", default="cls")
    args = parser.parse_args()

    model = load(args.model, device="cpu")
    paths = [Path(path) for path in listed(args.photos) if is_image(path)]
    subject = np.array([path.parent.name for path in paths])
    color = model.embed(paths)
    gray = model.embed([Image.open(path).convert("L").convert("RGB") for path in paths])

    same = subject[:, None] == subject
    another = same & ~np.eye(len(paths), dtype=bool)
    print(f"{len(paths)} photos of {len(set(subject))} subjects, {args.model}, {args.distance}\n")
    print("| | its own gray version | another photo of the subject | another subject |\n|---|---|---|---|")
    for title, a, b in (("in color", color, color), ("gray against color", gray, color), ("both gray", gray, gray)):
        far = model.pairwise(a, b, args.distance).numpy()
        own = f"{far.diagonal().mean():.3f}" if title == "gray against color" else ""
        numbers = [np.mean([row[of].mean() for row, of in zip(far, which, strict=True) if of.any()])
                   for which in (another, ~same)]  # fmt: skip
        print(f"| {title} | {own} | {numbers[0]:.3f} | {numbers[1]:.3f} |")


if __name__ == "__main__":
    main()
