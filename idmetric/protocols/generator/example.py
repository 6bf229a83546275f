"""A rendered example of outputs: four "methods" that copy the reference, do well, drift, or swap the subject.

| method | its images |
|---|---|
| copy | a reference, brightened for the second prompt and mirrored for the second seed |
| good | the same object in other contexts |
| drift | almost the same object in these contexts: its colors, print or proportions changed (`World.near`) |
| swap | the next subject in other contexts |

Subjects are objects of the procedural world; a prompt stands for two of its contexts, one for each seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from idmetric.data.manifest.table import Manifest
from idmetric.io.output import replacing, writing
from idmetric.protocols.common.columns import texts
from idmetric.protocols.common.rendered import rendered
from idmetric.protocols.common.scorers import Progress
from idmetric.protocols.generator.outputs import Where, read
from idmetric.protocols.generator.pattern import GENERATED

PATTERN = "{method}/{subject}/{prompt}_{seed}.jpg"
METHODS = ("copy", "good", "drift", "swap")
_REFERENCES, _PROMPTS, _SEEDS = 2, ("first_place", "second_place"), 2
_STRENGTH = 0.5  # of the drift
_SEED, _SIZE = 1000, 224


def example(folder: Path, subjects: int = 8, progress: Progress | None = None) -> Manifest:
    """Render the example into `folder`/outputs and `folder`/references, and read it; rendered objects are reused.

    Raises:
        ValueError: for fewer than two subjects, or a folder with another world.
        ImportError: if VTK is missing.
    """
    from idmetric.data.world.write import WorldPlan

    if subjects < 2:
        raise ValueError("the example needs at least two subjects")
    views = _REFERENCES + len(_PROMPTS) * _SEEDS
    plan = WorldPlan(_SEED, _SIZE, views=views, distractors=1, strengths=(_STRENGTH,))
    world = rendered(folder / "world", {"objects": (plan, subjects)}, progress)
    place = {name: k for k, name in enumerate(world.column("id"))}

    for subject in range(subjects):
        for name, source, picture in _pictures(subject, subjects):
            _write(folder / name.format(f"object{subject}"), world.image(place[source]), picture)
    return read(Where(folder / "outputs", PATTERN, references=str(folder / "references")))


def _pictures(subject: int, subjects: int) -> Iterator[tuple[str, str, tuple[bool, bool]]]:
    """Path of each picture with the subject's name open, the rendering it shows, and whether to brighten or mirror."""

    def view(number: int, which: int) -> str:
        return f"world-{_SEED}-{number:06d}/view-{which}"

    plain = False, False
    for k in range(_REFERENCES):
        yield f"references/{{}}/{k}.jpg", view(subject, k), plain
    for p, prompt in enumerate(_PROMPTS):
        for seed in range(_SEEDS):
            which = _REFERENCES + p * _SEEDS + seed
            made = {
                "copy": (view(subject, 0), (p == 1, seed == 1)),
                "good": (view(subject, which), plain),
                "drift": (f"{view(subject, which)}-near-{_STRENGTH:.2f}", plain),
                "swap": (view((subject + 1) % subjects, which), plain),
            }
            for method, (source, change) in made.items():
                yield f"outputs/{method}/{{}}/{prompt}_{seed}.jpg", source, change


def _write(path: Path, picture: Image.Image, change: tuple[bool, bool]) -> None:
    brighten, mirror = change
    picture = ImageEnhance.Brightness(picture).enhance(1.15) if brighten else picture
    picture = ImageOps.mirror(picture) if mirror else picture
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        picture.save(temporary, format="JPEG", quality=90)


# Checkpoints


# step -> the example of a subject's images of the first and of the second prompt, with two seeds each
STEPS = {
    0: ("swap", "swap"),
    200: ("swap", "drift"),
    400: ("drift", "drift"),
    600: ("drift", "good"),
    800: ("good", "good"),
    1000: ("good", "copy"),
    1200: ("copy", "copy"),
}


def checkpoints_example(folder: Path, subjects: int = 8, progress: Progress | None = None) -> Manifest:
    """Render the images of the generator's example into a folder, and give them steps.

    Raises:
        ValueError, ImportError: see `example`.
    """
    data = example(folder, subjects, progress)
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
