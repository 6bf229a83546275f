"""How often copy detection fires: on genuine photos and on copies.

    python benchmarks/copies.py DATA

DATA holds manifest.csv with the split "dev" (see docs/protocols/folder.md). The script prints the tables of
reports/copies.md in a few minutes on one core.
"""

from __future__ import annotations

import argparse
import io
from collections import defaultdict
from pathlib import Path

import numpy as np
from pandas import DataFrame
from PIL import Image

from idmetric.data.manifest import read, take
from idmetric.metric.images import SIZE, read_image
from idmetric.scoring.copies import THRESHOLD, Print, compare, take_print

COPIED = 100  # photos of each set that are copied


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("data", type=Path)
    args = parser.parse_args()
    photos = read(args.data / "manifest.csv")
    photos = take(photos, photos["split"] == "dev")
    sets = dict(iter(photos.groupby("dataset", sort=False)))
    for name, data in sets.items():
        genuine(name, data)
    for name, data in sets.items():
        copied(name, data)


def print_of(image: Image.Image) -> Print:
    """The print that `idmetric score` takes of an image."""
    return take_print(np.asarray(image.resize((SIZE, SIZE), Image.Resampling.LANCZOS)))


def genuine(name: str, data: DataFrame) -> None:
    """Print the alarms among all photo pairs of one identity, and among those of two."""
    prints = [print_of(read_image(path)) for path in data["path"]]
    identity = data["identity"].to_numpy()
    is_same = identity[:, None] == identity
    for label, is_wanted in (("one identity", is_same), ("two identities", ~is_same)):
        pairs = np.argwhere(np.triu(is_wanted, 1)).tolist()
        agreements = [compare(prints[a], prints[b]).agreement for a, b in pairs]
        alarms = sum(agreement >= THRESHOLD for agreement in agreements)
        print(f"{name}, {label}: {len(pairs)} pairs, {alarms} alarms, highest agreement {max(agreements):.2f}")


def copied(name: str, data: DataFrame) -> None:
    """Print how many copies of photos are found."""
    rng = np.random.default_rng(0)
    found = defaultdict(list)
    chosen = data["path"][:: max(1, len(data) // COPIED)]
    for path in chosen:
        photo = read_image(path)
        own = print_of(photo)
        for kind, copy in copies(photo, rng).items():
            found[kind].append(compare(own, print_of(copy)).agreement)
    hits = ", ".join(f"{kind} {np.mean([v >= THRESHOLD for v in values]):.0%}" for kind, values in found.items())
    print(f"{name}, copies of {len(chosen)} photos found: {hits}")


def copies(photo: Image.Image, rng: np.random.Generator) -> dict[str, Image.Image]:
    """Copies of the photo of several kinds."""
    width, height = photo.size

    def crop(part: float) -> Image.Image:
        left, top = (int(rng.integers(0, int(side * part) + 1)) for side in (width, height))
        return photo.crop((left, top, left + int(width * (1 - part)), top + int(height * (1 - part))))

    def jpeg(image: Image.Image, quality: int) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    def half(image: Image.Image) -> Image.Image:
        return image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)

    def lit(image: Image.Image, factor: float) -> Image.Image:
        return Image.fromarray((np.asarray(image) * factor).clip(0, 255).astype(np.uint8))

    return {
        "JPEG q30": jpeg(photo, 30), "half size": half(photo), "crop 5 %": crop(0.05), "crop 10 %": crop(0.1),
        "darker 20 %": lit(photo, 0.8), "brighter 20 %": lit(photo, 1.2),
        "mirrored": photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "crop 10 %, brighter, half size, JPEG q50": jpeg(half(lit(crop(0.1), 1.2)), 50),
    }  # fmt: skip


if __name__ == "__main__":
    main()
