"""Layouts of outputs that projects publish, as patterns; `idmetric eval generator --layout NAME`.

Each reads the folder above the methods, as its project writes it. A method's own folder works too where the pattern
begins with `{method}/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idmetric.io import json_file


@dataclass(frozen=True)
class Layout:
    """Where a project keeps generated images, and references if they are in the same folder.

    Attributes:
        outputs, references: patterns relative to the folder of outputs.
        benchmark: whether `{index}` in outputs counts the entries of a file that holds prompts and references.
    """

    outputs: str
    references: str | None = None
    benchmark: bool = False


LAYOUTS = {
    # yuangpeng/dreambench_plus: METHOD/{src_image,tgt_image}/COLLECTION/PROMPT_IMAGE.jpg
    "dreambench++": Layout("{method}/tgt_image/{subject}/{prompt}_{seed}.*", "{ignore}/src_image/{subject}/*"),
    # bytedance/UNO: I_J.png, I = entry of datasets/dreambench_singleip.json, J = number of the image
    "uno": Layout("{method}/{index}_{seed}.png", benchmark=True),
    # TIGER-AI-Lab/ImagenHub: results/EXPERIMENT/{input,MODEL}/sample_UID.jpg
    "imagenhub": Layout("{method}/sample_{subject}.jpg", "input/sample_{subject}.jpg"),
    # OmniContext: results/METHOD/fullset/TASK/KEY.png
    "omnicontext": Layout("{method}/fullset/{task}/{subject}.png"),
    # MirrorMetrics: Lora_Candidates/NAME/, Reference_Images/ of the one subject
    "mirrormetrics": Layout("Lora_Candidates/{method}/*", "Reference_Images/*"),
}


@dataclass(frozen=True)
class Entry:
    """An entry of a benchmark: what to generate, of which subject, and the files that show it."""

    subject: str
    prompt: str
    references: tuple[Path, ...]


def read_benchmark(path: Path) -> Mapping[str, Entry]:
    """The entries of UNO's `dreambench_singleip.json`, by number: a list of {prompt, image_paths}.

    A subject has the name of its image's folder; paths are relative to the file's folder.

    Raises:
        ValueError: if the file is not of this form, or an entry has several images: their subjects cannot be separated.
    """
    try:
        found = json_file.read(path)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, list):
        raise ValueError(f"{path}: not a list of entries with prompt and image_paths")
    return {str(k): _entry(path, k, value) for k, value in enumerate(found)}


def _entry(path: Path, number: int, value: Any) -> Entry:
    where = f"{path}: entry {number}"
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        raise ValueError(f"{where} has no prompt")
    images = value.get("image_paths")
    if not isinstance(images, list) or not images or not all(isinstance(image, str) for image in images):
        raise ValueError(f"{where} has no image_paths")
    if len(images) > 1:
        raise ValueError(f"{where} shows {len(images)} subjects: only benchmarks of one subject per image can be read")
    return Entry(Path(images[0]).parent.name, value["prompt"], tuple(path.parent / image for image in images))
