"""Layouts of outputs that projects publish, as patterns; `idmetric eval generator --layout NAME`.

Each reads the folder above the methods, as its project writes it. A method's own folder works too where the pattern
begins with `{method}/`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from idmetric.io import json_file
from idmetric.protocols.generator.benchmark import Reader, uno, xversebench
from idmetric.protocols.generator.picture import GENERATED, OutputsError, Picture


@dataclass(frozen=True)
class Layout:
    """Where a project keeps generated images, and references if they are in the same folder.

    Attributes:
        outputs, references, training: patterns relative to the folder of outputs; training images are the ones that the
            generator was shown.
        prompts: a JSON file next to each output, with its prompt in words under "prompt".
        benchmark: reads the file of prompts and references that `{index}` in outputs counts.
        grid: each file holds four images, 2 x 2.
    """

    outputs: str
    references: str | None = None
    training: str | None = None
    prompts: str | None = None
    benchmark: Reader | None = None
    grid: bool = False


LAYOUTS = {
    # yuangpeng/dreambench_plus: METHOD/{src_image,tgt_image}/COLLECTION/PROMPT_IMAGE.jpg
    "dreambench++": Layout("{method}/tgt_image/{subject}/{prompt}_{seed}.*", "{ignore}/src_image/{subject}/*"),
    # bytedance/UNO: I_J.png, I = entry of datasets/dreambench_{single,multi}ip.json, J = number of the image
    "uno": Layout("{method}/{index}_{seed}.png", benchmark=uno),
    # bytedance/XVerse: I_PROMPT.png, four images in one, I = entry of eval/tools/XVerseBench_{single,multi}.json
    "xversebench": Layout("{method}/{index}_{ignore}.png", benchmark=xversebench, grid=True),
    # Doby-Xu/WithAnyone, MultiID_Bench: ID/{out,ori,ref_1..4}.jpg, meta.json; ori is a photo of the people of ref_1..4
    "multiid-bench": Layout(
        "{method}/{subject}/out.jpg", "{ignore}/{subject}/ori.jpg", "{ignore}/{subject}/ref_*.jpg", "meta.json"
    ),
    # TIGER-AI-Lab/ImagenHub: results/EXPERIMENT/{input,MODEL}/sample_UID.jpg
    "imagenhub": Layout("{method}/sample_{subject}.jpg", "input/sample_{subject}.jpg"),
    # OmniContext: results/METHOD/fullset/TASK/KEY.png
    "omnicontext": Layout("{method}/fullset/{task}/{subject}.png"),
    # MirrorMetrics: Lora_Candidates/NAME/, Reference_Images/ of the one subject
    "mirrormetrics": Layout("Lora_Candidates/{method}/*", "Reference_Images/*"),
}  # fmt: skip


def prompted(picture: Picture, name: str) -> Picture:
    """An output with the prompt of the JSON file of this name next to it; without the file, as it is."""
    path = picture.path.parent / name
    if picture.role != GENERATED or not path.is_file():
        return picture
    try:
        prompt = json_file.read(path)["prompt"]
        if not isinstance(prompt, str):
            raise ValueError(f"{prompt!r} is not a text")
    except (ValueError, KeyError, TypeError) as error:
        raise OutputsError(f'{path}: no prompt: {error}; it should hold {{"prompt": ...}}') from error
    return replace(picture, fields={**picture.fields, "prompt": prompt}, text=prompt)
