"""The files of a training run that others must know: its record and its checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

from idmetric.metric.files.folders import matching

RECORD = "recipe.json"
FOLDER = "checkpoints"


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoint files of a run by step, in order."""
    paths = {}
    for path in matching(run / FOLDER, "step-*.safetensors"):
        if match := re.fullmatch(r"step-(\d{6,})", path.stem):
            paths[int(match[1])] = path
    return dict(sorted(paths.items()))
