"""Render examples/images: objects of the procedural world in several contexts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from world import Assets, Edit, Identity, render_scene, sample_context

SIZE = 256
OBJECTS = {"mug": Identity("cup", 5), "box": Identity("box", 14)}


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


if __name__ == "__main__":
    main(*sys.argv[1:2])
