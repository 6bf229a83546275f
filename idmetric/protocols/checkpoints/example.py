"""A rendered example: a training run that finds its subject, and copies its photos in the end.

The images are those of the generator's example. At each step, the images of a subject and prompt come from one of its
methods: another object, one with changed colors, print or proportions, the subject, or a copy of a reference.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.columns import texts
from idmetric.protocols.common.scorers import Progress
from idmetric.protocols.generator.example import example as methods
from idmetric.protocols.generator.picture import GENERATED

# step -> the methods of a subject's images of the first and of the second prompt, with two seeds each
STEPS = {
    0: ("swap", "swap"),
    200: ("swap", "drift"),
    400: ("drift", "drift"),
    600: ("drift", "good"),
    800: ("good", "good"),
    1000: ("good", "copy"),
    1200: ("copy", "copy"),
}


def example(folder: Path, subjects: int = 8, progress: Progress | None = None) -> Manifest:
    """Render the images of the generator's example into a folder, and give them steps.

    Raises:
        ValueError, ImportError: see `generator.example.example`.
    """
    data = methods(folder, subjects, progress)
    ids, role, method, prompt = (texts(data, name) for name in ("id", "x_role", "x_method", "x_prompt"))
    made = role == GENERATED
    prompts = sorted(set(prompt[made]))

    rows = np.flatnonzero(~made).tolist()
    names: list[str] = ids[rows].tolist()
    steps: list[str | None] = [None] * len(rows)
    for step, shown in STEPS.items():
        wanted = dict(zip(prompts, shown, strict=True))
        own = [k for k in np.flatnonzero(made).tolist() if method[k] == wanted[prompt[k]]]
        rows += own
        names += [f"{step}: {ids[k]}" for k in own]
        steps += [str(step)] * len(own)
    return data.take(rows).replace(id=names, x_method=steps)
