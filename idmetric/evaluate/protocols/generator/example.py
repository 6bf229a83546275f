"""A painted example of outputs: four "methods" that copy the reference, do well, drift, or swap the subject.

| method | its images |
|---|---|
| copy | a reference, brightened for the second prompt and mirrored for the second seed |
| good | the same object in other contexts |
| drift | almost the same object in these contexts: its colors are changed |
| swap | the next subject in other contexts |

Subjects are badges of `idmetric.data.painter`; a prompt stands for two of its contexts, one for each seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PIL import ImageEnhance, ImageOps

from idmetric.evaluate.protocols.generator.outputs import read
from idmetric.evaluate.protocols.generator.pattern import FIELD
from idmetric.metric.files import replacing
from idmetric.metric.images import read_image

if TYPE_CHECKING:
    from pandas import DataFrame

PATTERN = "{method}/{subject}/{prompt}_{seed}.jpg"
_SUBJECTS, _REFERENCES, _PROMPTS, _SEEDS = 8, 2, ("first_place", "second_place"), 2
_STRENGTH = 0.5  # of the drift
_SEED = 1000


def example(folder: Path) -> DataFrame:
    """Paint the example into `folder`/outputs and `folder`/references, and read it."""
    from idmetric.data.manifest import with_columns
    from idmetric.data.painter import Painter

    views = _REFERENCES + len(_PROMPTS) * _SEEDS
    painter = Painter(_SEED, views=views, strength=_STRENGTH, distractors=True)
    painted = painter.paint(folder / "painted", _SUBJECTS)
    path_of = dict(zip(painted["id"], painted["path"], strict=True))

    def write(path: str, subject: int, view: str, brighten: bool = False, mirror: bool = False) -> None:
        picture = read_image(path_of[f"painted-{_SEED}-{subject % _SUBJECTS:06d}/view-{view}"])
        if brighten:
            picture = ImageEnhance.Brightness(picture).enhance(1.15)
        if mirror:
            picture = ImageOps.mirror(picture)
        with replacing(folder / path, parents=True) as temporary:
            picture.save(temporary, format="JPEG", quality=90)

    for subject in range(_SUBJECTS):
        for view in range(_REFERENCES):
            write(f"references/object{subject}/{view}.jpg", subject, f"{view}")
        for prompt_number, prompt in enumerate(_PROMPTS):
            for seed in range(_SEEDS):
                name = f"object{subject}/{prompt}_{seed}.jpg"
                view = _REFERENCES + prompt_number * _SEEDS + seed
                write(f"outputs/copy/{name}", subject, "0", brighten=prompt_number == 1, mirror=seed == 1)
                write(f"outputs/good/{name}", subject, f"{view}")
                write(f"outputs/drift/{name}", subject, f"{view}-near-{_STRENGTH:.2f}")
                write(f"outputs/swap/{name}", subject + 1, f"{view}")
    data = read(folder / "outputs", PATTERN, references=str(folder / "references"))
    return with_columns(data, **{f"{FIELD}held_out": "yes"})
