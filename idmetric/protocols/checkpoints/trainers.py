"""Names that trainers give the samples of their checkpoints.

| trainer | names | read |
|---|---|---|
| kohya sd-scripts | `[NAME_]000500_00_20240101120000[_SEED].png`; `e000003` in place of a step for an epoch | step, prompt's number, seed |
| ai-toolkit | `1712345678901__000000500_0.jpg` | step, prompt's number |
| diffusers, and scripts like its own | `checkpoint-500/PROMPT_SEED.png`, also with a folder for each prompt, and `step` for `checkpoint` | step, prompt, seed |

Files may lie in further folders above these. An epoch counts as a step.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Mapping

_END = r"\.[A-Za-z0-9]+"
_STEP = r"(?:.*/)?(?:checkpoint|step|epoch)[-_](?P<step>[0-9]+)/"

TRAINERS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    # library/train_util.py, sample_image_inference
    "kohya": (
        re.compile(
            r"(?:.*/)?(?:[^/]+_)?(?P<epoch>e)?(?P<step>[0-9]{6,})_(?P<prompt>[0-9]{2,})_[0-9]{14}(?:_(?P<seed>[0-9]+))?"
            + _END
        ),
    ),
    "ai-toolkit": (re.compile(r"(?:.*/)?[0-9]+__(?P<step>[0-9]{9,})_(?P<prompt>[0-9]+)" + _END),),
    "diffusers": (
        re.compile(_STEP + r"(?:(?P<prompt>[^/]+)[/_])?(?P<seed>[0-9]+)" + _END),
        re.compile(_STEP + r"(?P<prompt>[^/]+)" + _END),
    ),
}


def fields_of(trainer: str, path: str) -> dict[str, str] | None:
    """The fields of a path with forward slashes; None if the trainer does not name its samples so.

    >>> fields_of("kohya", "sample/dog_000500_01_20240101120000_42.png")
    {'step': '000500', 'prompt': '01', 'seed': '42'}
    """
    for expression in TRAINERS[trainer]:
        found = expression.fullmatch(path)
        if found is not None:
            return {name: text for name, text in found.groupdict().items() if text is not None}
    return None
