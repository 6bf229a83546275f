"""Layouts of outputs that projects publish, as patterns; `idmetric eval generator --layout NAME`.

Each reads the folder above the methods, as its project writes it. A method's own folder works too where the pattern
begins with `{method}/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from idmetric.io import json_file
from idmetric.protocols.generator.pattern import GENERATED, REFERENCE, OutputsError, Picture


@dataclass(frozen=True)
class Subject:
    """A subject of an entry: its name, the files that show it, and columns to group by."""

    name: str
    references: tuple[Path, ...]
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """An entry of a benchmark.

    Attributes:
        text: the prompt in words. prompt: the same, with the entry's number where a subject has it twice.
        subjects: that an image of this entry should show, one or several.
    """

    text: str
    prompt: str
    subjects: Sequence[Subject]


Reader = Callable[[Path], Mapping[str, Entry]]


def uno(path: Path) -> Mapping[str, Entry]:
    """The entries of UNO's `dreambench_singleip.json` or `dreambench_multiip.json`, by number.

    A list of {prompt, image_paths}; each image shows a subject, which has the name of the image's folder.

    Raises:
        ValueError: naming the entry, if the file is not of this form.
    """

    def subjects(where: str, entry: Mapping[str, Any]) -> Iterator[Subject]:
        images = entry.get("image_paths")
        if not isinstance(images, list) or not images or not all(isinstance(image, str) for image in images):
            raise ValueError(f"{where} has no image_paths")
        for image in images:
            yield Subject(Path(image).parent.name, (_file_of(path, image),))

    return _entries(path, "prompt and image_paths", subjects)


def xversebench(path: Path) -> Mapping[str, Entry]:
    """The entries of `XVerseBench_single.json` or `XVerseBench_multi.json`, by index.

    A list of {index, prompt, modulation: [{src_inputs: [{image_path, caption}], use_words: [[n, label, label]]}]}. A
    subject has the name of its image and folder, such as human_05_man; `category` is the folder (human, object,
    animal) and `label` the word that the subject has in the prompt.

    Raises:
        ValueError: naming the entry, if the file is not of this form.
    """

    def subjects(where: str, entry: Mapping[str, Any]) -> Iterator[Subject]:
        try:
            [shown] = entry["modulation"]
            images = [Path(given["image_path"]) for given in shown["src_inputs"]]
            labels = [str(words[1]) for words in shown["use_words"]]
            pairs = list(zip(images, labels, strict=True))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{where} has no modulation with src_inputs and use_words") from error
        for image, label in pairs:
            columns = {"category": image.parent.name, "label": label}
            yield Subject(f"{image.parent.name}_{image.stem}", (_file_of(path, str(image)),), columns)

    return _entries(path, "prompt and modulation", subjects)


def indexed(found: Sequence[Picture], entries: Mapping[str, Entry], benchmark: str) -> list[Picture]:
    """Outputs with the prompt of their entry, once for each of its subjects, and the references of these subjects."""
    several = any(len(entry.subjects) > 1 for entry in entries.values())
    out: list[Picture] = []
    references: dict[tuple[str, Path], None] = {}
    for picture in found:
        index = picture.fields["index"]
        entry = entries.get(str(int(index)))
        if entry is None:
            raise OutputsError(f"{picture.path}: {benchmark} has no entry {index}")
        fields = {k: v for k, v in picture.fields.items() if k != "index"} | {"prompt": entry.prompt}
        if several:
            fields["subjects"] = str(len(entry.subjects))
        for subject in entry.subjects:
            own = {**fields, **subject.columns, "subject": subject.name}
            out.append(Picture(picture.path, GENERATED, own, entry.text))
            references |= {(subject.name, path): None for path in subject.references}
    missing = [path for _, path in references if not path.is_file()]
    if missing:
        raise OutputsError(f"{benchmark}: no file {missing[0]}; paths are relative to its folder or to one above")
    return out + [Picture(path, REFERENCE, {"subject": subject}) for subject, path in references]


def _entries(
    path: Path, form: str, subjects: Callable[[str, Mapping[str, Any]], Iterator[Subject]]
) -> Mapping[str, Entry]:
    """The entries of a JSON list, by their index, or else their place."""
    try:
        given = json_file.read(path)
    except FileNotFoundError:
        raise ValueError(f"--benchmark {path}: no such file") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(given, list):
        raise ValueError(f"{path}: not a list of entries with {form}")

    texts: dict[str, str] = {}
    shown: dict[str, list[Subject]] = {}
    for place, entry in enumerate(given):
        where = f"{path}: entry {place}"
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise ValueError(f"{where} has no prompt")
        index = str(entry.get("index", place))
        if index in texts:
            raise ValueError(f"{where} has the index {index} of an earlier entry")
        texts[index], shown[index] = entry["prompt"], _merged(subjects(where, entry), where)

    times = Counter((subject.name, texts[index]) for index, of in shown.items() for subject in of)
    return {
        index: Entry(text, f"{text} [{index}]" if any(times[s.name, text] > 1 for s in shown[index]) else text,
                     shown[index])
        for index, text in texts.items()
    }  # fmt: skip


def _merged(given: Iterator[Subject], where: str) -> list[Subject]:
    """The subjects, each once, with all its references."""
    found: dict[str, Subject] = {}
    for subject in given:
        references = (*found[subject.name].references, *subject.references) if subject.name in found else None
        found[subject.name] = Subject(subject.name, references or subject.references, subject.columns)
    if not found:
        raise ValueError(f"{where} shows no subject")
    return list(found.values())


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
        prompt = json_file.read(path)["prompt"]
        if not isinstance(prompt, str):
            raise ValueError(f"{prompt!r} is not a text")
    except (ValueError, KeyError, TypeError) as error:
        raise OutputsError(f'{path}: no prompt: {error}; it should hold {{"prompt": ...}}') from error
    return replace(picture, fields={**picture.fields, "prompt": prompt}, text=prompt)
