"""Render the small images of this folder: things of the procedural world in several contexts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from idmetric.data.world import Assets, Identity, edit_identity, render_scene, sample_context
from idmetric.data.world.materials import package
from idmetric.data.world.shapes import SHAPES

SIZE = 256


def main(folder: str | Path = Path(__file__).parent / "images") -> list[Path]:
    """Write mug_*.png and box_*.png: a, b, c show one thing; *_other something almost the same in a's context."""
    written = []
    for number, name in enumerate(("mug", "box")):
        rng = np.random.default_rng([5, number])
        thing = Identity(name, SHAPES[{"mug": "cup"}.get(name, name)](rng), package(rng), 0.1)
        contexts = [sample_context(np.random.default_rng([5, number, k]), name, Assets(None), SIZE) for k in range(3)]
        contexts = [replace(c, scale=0.7, centre=(0.5, 0.5), repeat=0.0, occluder=None) for c in contexts]
        shots = [(chr(ord("a") + k), thing, c) for k, c in enumerate(contexts)]
        shots.append(("other", edit_identity(thing, np.random.default_rng([6, number]), Assets(None)), contexts[0]))
        for label, identity, context in shots:
            path = Path(folder) / f"{name}_{label}.png"
            Image.fromarray(render_scene(identity, context, SIZE)[0]).save(path, optimize=True)
            written.append(path)
    return written


if __name__ == "__main__":
    main()
