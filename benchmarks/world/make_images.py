"""Render examples/images, objects of the procedural world in several contexts, and the pictures of `idmetric demo`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from idmetric import demo_images
from world import Assets, Edit, Identity, render_scene, sample_context

SIZE = 256
OBJECTS = {"mug": Identity("cup", 5), "box": Identity("box", 14)}
DEMO = {"mug": "mug_c", "mug_elsewhere": "mug_b", "another_mug": "mug_other", "box": "box_c"}


def main(folder: str | Path = Path(__file__).parents[2] / "examples" / "images") -> list[Path]:
    """Write mug_*.png and box_*.png: a, b, c show one object; *_other shows a near-identical one in a's context."""
    written = []
    for number, (name, identity) in enumerate(OBJECTS.items()):
        contexts = [sample_context(np.random.default_rng([5, number, k]), identity.kind, Assets()) for k in range(3)]
        contexts = [replace(c, scale=0.7, center=(0.5, 0.5), repeat=0.0, occluders=()) for c in contexts]
        shots = [(chr(ord("a") + k), identity, c) for k, c in enumerate(contexts)]
        shots.append(("other", identity.edited(Edit("print", 0.7, 3), Edit("color", 0.3, 3)), contexts[0]))
        for label, identity, context in shots:
            path = Path(folder) / f"{name}_{label}.png"
            Image.fromarray(render_scene(identity, context, Assets(), SIZE).picture).save(path, optimize=True)
            written.append(path)
    return written


def write_demo(images: Path, folder: Path) -> None:
    """Write the pictures of `idmetric demo` from images that `main` drew; WebP, about 9 KB each."""
    for name, original in DEMO.items():
        picture = Image.open(images / f"{original}.png").convert("RGB")
        picture.save(folder / f"{name}.webp", quality=90, method=6)


if __name__ == "__main__":
    first, *_ = main(*sys.argv[1:2])
    write_demo(first.parent, demo_images()["mug"].parent)
