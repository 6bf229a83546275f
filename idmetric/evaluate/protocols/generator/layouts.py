"""Layouts of outputs that projects publish, as patterns; `idmetric eval generator --layout NAME`.

Each reads the folder above the methods, as its project writes it. A method's own folder works too where the pattern
begins with `{method}/`, but for `vistorybench`, which has more folders above its stories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from idmetric.evaluate.protocols.generator.pattern import GENERATED, REFERENCE, TRAINING, GeneratedPicture
from idmetric.metric.errors import RequestError
from idmetric.metric.files import json_file


@dataclass(frozen=True)
class BenchmarkSubject:
    """A subject of a benchmark's entry: its name, an image that shows it, and columns to group by."""

    name: str
    image: str
    columns: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[Mapping[str, Any]], Sequence[BenchmarkSubject]]  # the subjects of an entry


def uno(entry: Mapping[str, Any]) -> list[BenchmarkSubject]:
    """The subjects of an entry {prompt, image_paths} of UNO's `dreambench_singleip.json` or `dreambench_multiip.json`.

    A subject has the name of its image's folder.
    """
    return [BenchmarkSubject(Path(image).parent.name, image) for image in entry["image_paths"]]


def xversebench(entry: Mapping[str, Any]) -> list[BenchmarkSubject]:
    """The subjects of an entry of `XVerseBench_single.json` or `XVerseBench_multi.json`.

    It has the form {index, prompt, modulation: [{src_inputs: [{image_path}], use_words: [[n, label, label]]}]}. A
    subject has the name of its image and folder, such as human_05_man; `category` is the folder (human, object,
    animal) and `label` the word that the subject has in the prompt.
    """
    [modulation] = entry["modulation"]
    subjects = []
    for source, (_, label, *_) in zip(modulation["src_inputs"], modulation["use_words"], strict=True):
        image = Path(source["image_path"])
        category = image.parent.name
        subjects.append(
            BenchmarkSubject(f"{category}_{image.stem}", str(image), {"category": category, "label": label})
        )
    return subjects


def psrbench(entry: Mapping[str, Any]) -> list[BenchmarkSubject]:
    """The subjects of an item {input_path: [...], instruction, category1, ...} of a file of PSRBench.

    A subject has the name of its image's path, such as animals_dog_00; `label` is its category.
    """
    subjects = []
    for number, image in enumerate(entry["input_path"], 1):
        name = "_".join(Path(image).with_suffix("").parts)
        subjects.append(BenchmarkSubject(name, image, {"label": entry[f"category{number}"]}))
    return subjects


def indexed(pictures: Sequence[GeneratedPicture], benchmark: Path, reader: Reader) -> list[GeneratedPicture]:
    """Outputs with the prompt of their entry, once for each of its subjects, and the references of these subjects.

    Of a prompt that a subject has twice, the field `prompt` holds the entry's number too.

    Args:
        benchmark: a file of entries, or a folder with a file for each `task` of the pictures.

    Raises:
        RequestError: for a file of another form, an output without an entry, or a reference that does not exist.
    """
    file_of = {picture.path: _entries_file(picture, benchmark) for picture in pictures}
    entries: dict[tuple[Path, str], tuple[str, Sequence[BenchmarkSubject]]] = {}
    for file in dict.fromkeys(file_of.values()):
        for index, file_entry in _entries(file, reader).items():
            entries[file, index] = file_entry
    times: Counter[tuple[str, str]] = Counter()
    have_several = False
    for prompt, subjects in entries.values():
        names = {subject.name for subject in subjects}
        times.update((name, prompt) for name in names)
        have_several |= len(names) > 1

    outputs: list[GeneratedPicture] = []
    references: dict[tuple[str, Path], None] = {}
    for picture in pictures:
        file = file_of[picture.path]
        index = str(int(picture.fields["index"]))
        if (file, index) not in entries:
            raise RequestError(f"{picture.path}: {file} has no entry {index}")
        prompt, subjects = entries[file, index]
        by_name = {subject.name: subject for subject in subjects}
        fields = {**picture.fields, "prompt": prompt}
        del fields["index"]
        if any(times[name, prompt] > 1 for name in by_name):
            number = index if file == benchmark else f"{file.stem} {index}"
            fields["prompt"] += f" [{number}]"
        if have_several:
            fields["subjects"] = str(len(by_name))
        for name, subject in by_name.items():
            outputs.append(
                GeneratedPicture(picture.path, GENERATED, {**fields, **subject.columns, "subject": name}, prompt)
            )
        for subject in subjects:
            references[subject.name, _file_of(file, subject.image)] = None

    return outputs + [GeneratedPicture(path, REFERENCE, {"subject": subject}) for subject, path in references]


def _entries_file(picture: GeneratedPicture, benchmark: Path) -> Path:
    """The file with an output's entry."""
    if not benchmark.is_dir():
        return benchmark
    file = benchmark / f"{picture.fields.get('task', '')}.json"
    if not file.is_file():
        raise RequestError(f"{picture.path}: {file}, which should hold its prompt and references, does not exist")
    return file


def _entries(path: Path, reader: Reader) -> dict[str, tuple[str, Sequence[BenchmarkSubject]]]:
    """Prompt and subjects of each entry of a JSON list, by its index, its result's name, or else its number."""
    entries: dict[str, tuple[str, Sequence[BenchmarkSubject]]] = {}
    where = ""
    try:
        for number, entry in enumerate(json_file.read(path)):
            where = f" entry {number}:"
            index, subjects = str(entry.get("index", number)), reader(entry)
            if "result_path" in entry:
                index = str(int(Path(entry["result_path"]).stem))
            if not subjects or index in entries:
                raise ValueError("no subject, or the index of an earlier entry")
            entries[index] = entry["instruction" if "instruction" in entry else "prompt"], subjects
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path}:{where} not as the layout's project writes it: {error!r}") from error
    return entries


def _file_of(path: Path, image: str) -> Path:
    """An image's file; its path is relative to the benchmark's folder or to one above, such as the repository.

    Raises:
        RequestError: if there is none.
    """
    folders = path.absolute().parents
    for folder in folders:
        if (folder / image).is_file():
            return folder / image
    raise RequestError(f"{path}: no file {folders[0] / image}; paths are relative to its folder or to one above")


# Layouts


@dataclass(frozen=True)
class ProjectLayout:
    """Where a project keeps generated images, and references if they are in the same folder.

    Attributes:
        outputs, references, training: patterns relative to the folder of outputs; training images are the ones that the
            generator was shown.
        prompts: a JSON file next to each output, with its prompt in words under "prompt" or "caption_en".
        benchmark: reads the file of prompts and references that `{index}` in outputs counts.
        stories: outputs are shots with a cast each, in folders that `stories.in_stories` finds; it needs the benchmark.
        grid: each file holds four images, 2 x 2.
        people: in regions, each training image shows a subject, see `people`.
        numbers: published numbers of regions, see `idmetric.matching.named`. margin: context around these regions.
        square: whether they are padded to a white square, and white outside of their masks.
    """

    outputs: str
    references: str | None = None
    training: str | None = None
    prompts: str | None = None
    benchmark: Reader | None = None
    stories: bool = False
    grid: bool = False
    people: bool = False
    numbers: tuple[str, ...] = ()
    margin: float = 0.0
    square: bool = False


LAYOUTS = {
    # yuangpeng/dreambench_plus: METHOD/{src_image,tgt_image}/COLLECTION/PROMPT_IMAGE.jpg
    "dreambench++": ProjectLayout("{method}/tgt_image/{subject}/{prompt}_{seed}.*", "{ignore}/src_image/{subject}/*"),
    # bytedance/UNO: I_J.png, I = entry of datasets/dreambench_{single,multi}ip.json, J = number of the image
    "uno": ProjectLayout("{method}/{index}_{seed}.png", benchmark=uno, numbers=("uno-distill",), margin=0.12),
    # bytedance/XVerse: I_PROMPT.png, four images in one, I = entry of eval/tools/XVerseBench_{single,multi}.json
    "xversebench": ProjectLayout(
        "{method}/{index}_{ignore}.png",
        benchmark=xversebench,
        grid=True,
        numbers=("xverse-ip", "xverse-id"),
        square=True,
    ),
    # Doby-Xu/WithAnyone, MultiID_Bench: ID/{out,ori,ref_1..4}.jpg, meta.json; ori is a photo of the people of ref_1..4;
    # eval.py calls the output output_0.jpg
    "multiid-bench": ProjectLayout(
        "{method}/{subject}/out*.jpg",
        "{ignore}/{subject}/ori.jpg",
        "{ignore}/{subject}/ref_*.jpg",
        "meta.json",
        people=True,
        numbers=("multiid",),
    ),
    # wang-shulei/PSR: outputs/SUBSET/I.png, I = item of PSRBench/SUBSET.json
    "psrbench": ProjectLayout("{method}/{task}/{index}.png", benchmark=psrbench, numbers=("psr",)),
    # ViStoryBench/vistorybench: METHOD/MODE/LANGUAGE/TIME/STORY/shots/shot_NN.png, and older forms
    "vistorybench": ProjectLayout(
        "{method}/.../{story}/...", stories=True, numbers=("vistory-cross", "vistory-self", "vistory-occm")
    ),
    # TIGER-AI-Lab/ImagenHub: results/EXPERIMENT/{input,MODEL}/sample_UID.jpg
    "imagenhub": ProjectLayout("{method}/sample_{subject}.jpg", "input/sample_{subject}.jpg"),
    # OmniContext: results/METHOD/fullset/TASK/KEY.png
    "omnicontext": ProjectLayout("{method}/fullset/{task}/{subject}.png"),
    # MirrorMetrics: Lora_Candidates/NAME/, Reference_Images/ of the one subject
    "mirrormetrics": ProjectLayout("Lora_Candidates/{method}/*", "Reference_Images/*"),
}


def prompted(picture: GeneratedPicture, name: str) -> GeneratedPicture:
    """An output with the prompt of the JSON file of this name next to it; without the file, as it is."""
    path = picture.path.parent / name
    if picture.role != GENERATED or not path.is_file():
        return picture
    try:
        meta = json_file.read(path)
        prompt = str(meta["caption_en" if "caption_en" in meta else "prompt"])
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f'{path}: no prompt: {error!r}; it should hold {{"prompt": ...}}') from error
    return replace(picture.having(prompt=prompt), text=prompt)


def people(pictures: Sequence[GeneratedPicture]) -> list[GeneratedPicture]:
    """Outputs once for each person that they should show; each training image of a sample becomes a person's reference.

    A person has the name of sample and file, such as "0001 ref_1"; the sample is in the field `sample`.

    Raises:
        RequestError: for an output of a sample without such images.
    """
    names: dict[str, list[str]] = {}
    references = []
    for picture in pictures:
        if picture.role == TRAINING:
            sample = picture.fields["subject"]
            name = f"{sample} {picture.path.stem}"
            names.setdefault(sample, []).append(name)
            references.append(replace(picture, role=REFERENCE).having(subject=name))

    outputs = []
    for picture in pictures:
        if picture.role in (REFERENCE, TRAINING):
            continue
        sample = picture.fields["subject"]
        if sample not in names:
            raise RequestError(
                f"{picture.path}: there are no photos ref_1.jpg, ref_2.jpg, ... of the people of {sample}"
            )
        for name in dict.fromkeys(names[sample]):
            outputs.append(picture.having(subject=name, sample=sample))
    return outputs + references
