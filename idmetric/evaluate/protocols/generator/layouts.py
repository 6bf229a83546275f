"""Layouts of outputs that projects publish, as patterns; `idmetric eval generator --layout NAME`.

Each reads the folder above the methods, as its project writes it. A method's own folder works too where the pattern
begins with `{method}/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from idmetric.evaluate.protocols.generator.pattern import GENERATED, REFERENCE, OutputsError, Picture
from idmetric.metric.files import json_file


@dataclass(frozen=True)
class Subject:
    """A subject of a benchmark's entry: its name, an image that shows it, and columns to group by."""

    name: str
    image: str
    columns: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[Mapping[str, Any]], Sequence[Subject]]  # the subjects of an entry


def uno(entry: Mapping[str, Any]) -> list[Subject]:
    """The subjects of an entry {prompt, image_paths} of UNO's `dreambench_singleip.json` or `dreambench_multiip.json`.

    A subject has the name of its image's folder.
    """
    return [Subject(Path(image).parent.name, image) for image in entry["image_paths"]]


def xversebench(entry: Mapping[str, Any]) -> list[Subject]:
    """The subjects of an entry of `XVerseBench_single.json` or `XVerseBench_multi.json`.

    It has the form {index, prompt, modulation: [{src_inputs: [{image_path}], use_words: [[n, label, label]]}]}. A
    subject has the name of its image and folder, such as human_05_man; `category` is the folder (human, object,
    animal) and `label` the word that the subject has in the prompt.
    """
    [shown] = entry["modulation"]
    images = [Path(given["image_path"]) for given in shown["src_inputs"]]
    return [
        Subject(f"{image.parent.name}_{image.stem}", str(image), {"category": image.parent.name, "label": label})
        for image, (_, label, *_) in zip(images, shown["use_words"], strict=True)
    ]


def indexed(found: Sequence[Picture], benchmark: Path, subjects: Reader) -> list[Picture]:
    """Outputs with the prompt of their entry, once for each of its subjects, and the references of these subjects.

    Of a prompt that a subject has twice, the field `prompt` holds the entry's number too.

    Raises:
        OutputsError: for a file of another form, an output without an entry, or a reference that does not exist.
    """
    entries = _entries(benchmark, subjects)
    times = Counter((name, text) for text, of in entries.values() for name in {subject.name for subject in of})
    several = any(len({subject.name for subject in of}) > 1 for _, of in entries.values())
    out: list[Picture] = []
    references: dict[tuple[str, Path], None] = {}
    for picture in found:
        index = str(int(picture.fields["index"]))
        if index not in entries:
            raise OutputsError(f"{picture.path}: {benchmark} has no entry {index}")
        text, of = entries[index]
        own = {subject.name: subject for subject in of}
        again = any(times[name, text] > 1 for name in own)
        fields = {**picture.fields, "prompt": f"{text} [{index}]" if again else text}
        del fields["index"]
        if several:
            fields["subjects"] = str(len(own))
        out += [Picture(picture.path, GENERATED, {**fields, **subject.columns, "subject": name}, text)
                for name, subject in own.items()]  # fmt: skip
        references |= {(subject.name, _file_of(benchmark, subject.image)): None for subject in of}

    missing = [path for _, path in references if not path.is_file()]
    if missing:
        raise OutputsError(f"{benchmark}: no file {missing[0]}; paths are relative to its folder or to one above")
    return out + [Picture(path, REFERENCE, {"subject": subject}) for subject, path in references]


def _entries(path: Path, subjects: Reader) -> dict[str, tuple[str, Sequence[Subject]]]:
    """Prompt and subjects of each entry of a JSON list, by its index, or else its place."""
    found: dict[str, tuple[str, Sequence[Subject]]] = {}
    place = -1
    try:
        for place, entry in enumerate(json_file.read(path)):
            index, of = str(entry.get("index", place)), subjects(entry)
            if not of or index in found:
                raise ValueError("no subject, or the index of an earlier entry")
            found[index] = entry["prompt"], of
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        where = "" if place < 0 else f" entry {place}:"
        raise OutputsError(f"{path}:{where} not as the layout's project writes it: {error!r}") from error
    return found


def _file_of(path: Path, image: str) -> Path:
    """An image's file; its path is relative to the benchmark's folder or to one above, such as the repository."""
    folders = path.absolute().parents
    return next((folder / image for folder in folders if (folder / image).is_file()), folders[0] / image)


# Layouts


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
        prompt = str(json_file.read(path)["prompt"])
    except (ValueError, KeyError, TypeError) as error:
        raise OutputsError(f'{path}: no prompt: {error!r}; it should hold {{"prompt": ...}}') from error
    return replace(picture.having(prompt=prompt), text=prompt)
