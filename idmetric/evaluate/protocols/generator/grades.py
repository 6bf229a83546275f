"""Grades of generated images by language models, from the result files that benchmarks' own scripts write.

| benchmark | file | of an image | grade |
|---|---|---|---|
| OmniContext, SconeEval | METHOD/.../TASK/score.jsonl | PF_score and SC_score, 0-10 | sqrt(PF x SC) |
| GEdit-Bench | METHOD_TASK_LANGUAGE_vie_score.csv | sementics_score (SC) and quality_score (PQ), 0-10 | sqrt(SC x PQ) |
| ImgEdit-Bench | METHOD/result.json | lines such as "Prompt Compliance: 4", 1-5 | mean |
| MultiBanana | TASK/NNN_MODEL_judge.txt | five lines such as "Visual Quality: 7", 1-10 | mean |
| DreamBench++ | METHOD.json | a rating of concept preservation, 0-4 | the rating |

Sources: VectorSpaceLab/OmniGen2 omnicontext/, Ryann-Ran/Scone eval/s2i/sconeeval/, stepfun-ai/Step1X-Edit
GEdit-Bench/, PKU-YuanGroup/ImgEdit Benchmark/Basic/, matsuolab/multibanana judge.py, yuangpeng/dreambench_plus
dreambench_plus/merge_data.py.

An answer that cannot be read is missing. OmniContext's script replaces it by a random grade with a mark, and such a
grade is missing, too. Grades with decimals count as they are; MultiBanana's script cuts them, and ImgEdit's passes over
them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.importers.source import read_json
from idmetric.data.manifest.errors import ManifestError
from idmetric.evaluate.protocols.common.columns import Array, listed
from idmetric.evaluate.protocols.generator.images import Images
from idmetric.evaluate.protocols.judges.answers import grades_in_lines
from idmetric.metric.files import json_file
from idmetric.metric.files.folders import matching
from idmetric.metric.files.tables import cell_name, json_lines, number_of, read_table
from idmetric.metric.files.typed import shown

GRADE, CONSISTENCY = "grade", "consistency"
_FOLDER_PATTERNS = ("score.jsonl", "*_vie_score.csv", "*_judge.txt", "result.json")
_GUESSED = "guess_if_cannot_parse"  # how OmniContext's script marks a random grade
_JUDGE_FILE = re.compile(r"(?P<image>.+)_(?P<judge>[^_]+)_judge")


@dataclass(frozen=True)
class GradingScheme:
    """How a benchmark grades an image.

    Attributes:
        lowest, highest: the range of its grades. formula: of the grade, in words.
        consistency: the part of an answer that is about the subjects alone, or "".
        caution: what its files do not tell.
    """

    name: str
    lowest: float
    highest: float
    formula: str
    consistency: str = ""
    caution: str = ""


OMNICONTEXT = GradingScheme("OmniContext or SconeEval", 0, 10, "sqrt(PF x SC)", "SC")
GEDIT = GradingScheme(
    name="GEdit-Bench",
    lowest=0,
    highest=10,
    formula="sqrt(SC x PQ)",
    caution="its script puts random grades in place of answers that it cannot read, without a mark",
)
IMGEDIT = GradingScheme("ImgEdit-Bench", 1, 5, "mean of the grades in an answer")
MULTIBANANA = GradingScheme("MultiBanana", 1, 10, "mean of five grades", "Reference Consistency")
DREAMBENCH = GradingScheme("DreamBench++", 0, 4, "concept preservation")
_MULTIBANANA_PARTS = (
    "Instruction Alignment",
    "Reference Consistency",
    "Background-Subject Match",
    "Physical Realism",
    "Visual Quality",
)


@dataclass(frozen=True)
class Answer:
    """What a file says of an image.

    Attributes:
        image: the image's path without its ending, of which the end is enough.
        parts: name -> grade. grade: by the benchmark's formula; None if it is missing. problem: why it is.
    """

    image: str
    parts: Mapping[str, float]
    grade: float | None
    problem: str = ""


@dataclass(frozen=True)
class Grades:
    """The grades of images.

    Attributes:
        of_files: an image's path -> `GRADE` and the parts of its answer -> mean over its answers.
        notes: on the benchmark, and on images without a grade.
    """

    benchmark: GradingScheme
    of_files: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]

    def columns(self, images: Images) -> dict[str, Array]:
        """Name -> grades (G,) of the images, NaN where there is none: the grade, consistency, and each part."""
        parts: dict[str, None] = {GRADE: None}
        for grades in self.of_files.values():
            parts |= dict.fromkeys(grades)
        columns = {}
        for part in parts:
            name = part if part == GRADE else f"{GRADE} {part}"
            columns[name] = np.array([self.of_files.get(file, {}).get(part, np.nan) for file in images.file])
        if self.benchmark.consistency in parts:
            columns[CONSISTENCY] = columns[f"{GRADE} {self.benchmark.consistency}"]
        return columns


def read_grades(sources: Sequence[str], images: Images) -> Grades:
    """The grades of these images in the files, in the files of folders, or in the files of patterns with `*`.

    Raises:
        ManifestError: for a file that no benchmark writes, files of several benchmarks or judges, and grades of which
            it is not clear to which image they belong.
    """
    files = [file for source in sources for file in _files_of(source)]
    schemes: dict[GradingScheme, Path] = {}
    answers: list[Answer] = []
    for file in files:
        benchmark, answers_of_file = _read_file(file)
        schemes.setdefault(benchmark, file)
        answers += answers_of_file
    if len(schemes) > 1:
        first, second, *_ = schemes.values()
        raise ManifestError(f"{first} and {second} are grades of two benchmarks, on different scales: name one of them")
    _refuse_several_judges(files)

    [benchmark] = schemes
    nearer: list[str] = []
    if benchmark == DREAMBENCH:
        answers_of = _by_item(answers, images)
    else:
        answers_of, nearer = _by_path(answers, images.file)
    if not answers_of:
        raise ManifestError(
            f"{sources[0]}: none of its grades belongs to an image of --data: it names {answers[0].image}, "
            f"and there is {images.file[0]}"
        )
    of_files = {file: _mean_of(answers_of_file) for file, answers_of_file in answers_of.items()}
    notes = list(_notes(benchmark, answers_of, images))
    if nearer:
        notes.append(
            f"{len(nearer)} grades are of other images, such as other methods', and left out: {listed(nearer)}"
        )
    return Grades(benchmark, of_files, tuple(notes))


def _files_of(source: str) -> list[Path]:
    """The result files that a source names."""
    path = Path(source)
    files = [path]
    if path.is_dir():
        files = [file for pattern in _FOLDER_PATTERNS for file in matching(path, f"**/{pattern}")]
        files = files or matching(path, "*.json")
    elif "*" in source:
        root = Path(path.anchor)
        files = matching(root, str(path.relative_to(root)))
    if not files:
        raise ManifestError(f"{source}: no result files of a benchmark ({', '.join(_FOLDER_PATTERNS)}, METHOD.json)")
    return files


def _refuse_several_judges(files: Sequence[Path]) -> None:
    judges: dict[str, None] = {}
    for file in files:
        match = _JUDGE_FILE.fullmatch(file.stem)
        if match is not None:
            judges[match["judge"]] = None
    if len(judges) > 1:
        raise ManifestError(
            f"these are answers of {len(judges)} models, {listed(judges)}: choose one by a pattern, such as "
            f"'{files[0].parent.parent}/*/*_{next(iter(judges))}_judge.txt'"
        )


def _mean_of(answers: Sequence[Answer]) -> dict[str, float]:
    """The mean of each part, and of the grade, over the answers about one image that have it."""
    values: dict[str, list[float]] = {}
    for answer in answers:
        for part, value in answer.parts.items():
            values.setdefault(part, []).append(value)
        if answer.grade is not None:
            values.setdefault(GRADE, []).append(answer.grade)
    return {part: float(np.mean(numbers)) for part, numbers in values.items()}


def _notes(benchmark: GradingScheme, answers_of: Mapping[str, Sequence[Answer]], images: Images) -> Iterator[str]:
    """What the grades are, and which images have none."""
    files = list(dict.fromkeys(images.file))
    problems: Counter[str] = Counter()
    graded = 0
    for file in files:
        answers = answers_of.get(file, ())
        if any(answer.grade is not None for answer in answers):
            graded += 1
        else:
            problems[answers[0].problem if answers else "without an answer"] += 1
    about = f"grade: {benchmark.name}, {benchmark.formula}, {benchmark.lowest:g} to {benchmark.highest:g}"
    if benchmark.caution:
        about += f"; {benchmark.caution}"
    yield about
    if problems:
        reasons = ", ".join(f"{count} {problem}" for problem, count in problems.items())
        yield f"WARNING: {len(files) - graded} of {len(files)} images have no grade: {reasons}"


# Images of answers


def _by_path(answers: Iterable[Answer], files: Iterable[str]) -> tuple[dict[str, list[Answer]], list[str]]:
    """The file of each image -> its answers: the ones with the longest end of a path in common with the image's.

    Returns:
        Also the images of answers that have a shorter end in common: they are about other methods or tasks.

    Raises:
        ManifestError: if two images have equally long ends.
    """
    parts_of_files: dict[str, tuple[str, ...]] = {}
    files_of_name: dict[str, list[str]] = {}
    for file in dict.fromkeys(files):
        parts = Path(file).with_suffix("").parts
        parts_of_files[file] = parts
        files_of_name.setdefault(parts[-1], []).append(file)

    by_length: dict[str, dict[int, list[Answer]]] = {}
    for answer in answers:
        parts = Path(answer.image).parts
        candidates = files_of_name.get(parts[-1], [])
        if not candidates:
            continue
        lengths = [_common_end(parts_of_files[file], parts) for file in candidates]
        nearest = [file for file, length in zip(candidates, lengths, strict=True) if length == max(lengths)]
        if len(nearest) > 1:
            raise ManifestError(
                f"the grade of {answer.image} would be that of both {nearest[0]} and {nearest[1]}: "
                "the benchmark's folders (METHOD, TASK) should be in the paths of both"
            )
        by_length.setdefault(nearest[0], {}).setdefault(max(lengths), []).append(answer)

    answers_of = {}
    images_of_others = []
    for file, answers_by_length in by_length.items():
        longest = max(answers_by_length)
        answers_of[file] = answers_by_length.pop(longest)
        for answers_about_others in answers_by_length.values():
            images_of_others += [answer.image for answer in answers_about_others]
    return answers_of, images_of_others


def _common_end(parts: Sequence[str], others: Sequence[str]) -> int:
    """The number of equal parts at the ends of two paths."""
    for number, (part, other) in enumerate(zip(reversed(parts), reversed(others), strict=False)):
        if part != other:
            return number
    return min(len(parts), len(others))


def _by_item(answers: Iterable[Answer], images: Images) -> dict[str, list[Answer]]:
    """The file of each image -> its rating, by method, collection and prompt, as DreamBench++ names them."""
    from idmetric.data.importers.dreambench import method_of, rated_item

    by_item = {}
    methods: dict[str, None] = {}
    for answer in answers:
        rated_method, collection, prompt = Path(answer.image).parts
        methods[rated_method] = None
        by_item[rated_method, collection, int(prompt)] = answer

    answers_of: dict[str, list[Answer]] = {}
    for file, run in zip(images.file, images.method, strict=True):
        item = rated_item(Path(file))
        method = method_of(run, methods)
        if item is not None and method is not None and (method, *item) in by_item:
            answers_of[file] = [by_item[method, *item]]
    return answers_of


# Files


def _read_file(path: Path) -> tuple[GradingScheme, list[Answer]]:
    """The benchmark that writes such a file, and the file's answers."""
    try:
        if path.name.endswith("_judge.txt"):
            return MULTIBANANA, [_of_text(path)]
        ending = path.suffix.lower()
        if ending == ".jsonl":
            return OMNICONTEXT, list(_of_lines(path))
        if ending in (".csv", ".tsv"):
            return GEDIT, list(_of_table(path))
        if ending == ".json":
            return _of_json(path)
    except ManifestError:
        raise
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: {error}") from error
    raise ManifestError(f"{path}: no result file of a benchmark: {', '.join(_FOLDER_PATTERNS)}, METHOD.json")


def _of_lines(path: Path) -> Iterator[Answer]:
    """The answers in a file of OmniContext or SconeEval."""
    for number, row in json_lines(path):
        missing = [key for key in ("output_image_path", "PF_score", "SC_score") if key not in row]
        if missing:
            raise ManifestError(
                f"{path}, line {number}: no {', '.join(missing)}, which OmniContext and SconeEval write"
            )
        parts = {}
        problem = ""
        for part in ("PF", "SC"):
            value = _number(row[f"{part}_score"], OMNICONTEXT)
            if str(row.get(f"{part}_score_reason")).startswith(_GUESSED):
                problem = "with a grade that the benchmark's script drew at random"
            elif value is None:
                problem = problem or "with an answer that cannot be read"
            else:
                parts[part] = value
        if "DIS_acc" in row and "DIS_f1" in row:
            scores = (row["DIS_acc"], row["DIS_f1"])
            if not all(isinstance(score, int | float) for score in scores):
                raise ManifestError(f"{path}, line {number}: DIS_acc and DIS_f1 are {shown(scores)}, not numbers")
            parts["DIS"] = sum(scores) / 2
        yield Answer(_image_of(row["output_image_path"]), parts, _geometric_mean(parts, "PF", "SC"), problem)


def _of_table(path: Path) -> Iterator[Answer]:
    """The answers in a file of GEdit-Bench."""
    columns = {"SC": "sementics_score", "PQ": "quality_score"}
    table = read_table(path, needed=("edited_image", *columns.values()))
    for number, row in table.records():
        if row["edited_image"] is None:
            raise ManifestError(f"{path}: {cell_name(number, 'edited_image')} is empty")
        parts = {}
        for part, column in columns.items():
            value = _number(row[column], GEDIT)
            if value is not None:
                parts[part] = value
        grade = _geometric_mean(parts, "SC", "PQ")
        yield Answer(_image_of(row["edited_image"]), parts, grade, "with an answer that cannot be read")


def _of_json(path: Path) -> tuple[GradingScheme, list[Answer]]:
    """The answers in a file of DreamBench++, or of ImgEdit-Bench, where they are texts or means."""
    from idmetric.data.importers.dreambench import read_rating_file

    content: dict[str, Any] = read_json(path, dict)
    is_rating = [re.fullmatch(r".+_\d+_.+-\d+(_0)?", key) is not None for key in content]
    if not content:
        raise ManifestError(f"{path}: it has no grades")
    if all(is_rating):
        method = path.stem.removesuffix("-cp")
        ratings = []
        for (collection, prompt), rating in read_rating_file(path).items():
            image = f"{method}/{collection}/{prompt}"
            ratings.append(Answer(image, {}, _number(rating, DREAMBENCH), "with a rating that is not 0 to 4"))
        return DREAMBENCH, ratings

    folder = path.parent if path.stem in ("result", "average_score") else path.with_suffix("")
    answers = []
    for key, value in content.items():
        parts = {}
        grade = None
        if isinstance(value, str):
            for label, number in grades_in_lines(value).items():
                if IMGEDIT.lowest <= number <= IMGEDIT.highest:
                    parts[label] = number
            if parts:
                grade = float(np.mean(list(parts.values())))
        elif not isinstance(value, dict):  # a dict holds an error
            grade = _number(value, IMGEDIT)
            if grade is None:
                raise ManifestError(
                    f"{path}: {key!r}: {value!r} is neither an answer of ImgEdit-Bench nor a mean of its grades"
                )
        answers.append(Answer(str(folder / key), parts, grade, "with an answer that cannot be read"))
    return IMGEDIT, answers


def _of_text(path: Path) -> Answer:
    """The answer in a file of MultiBanana, which lies next to the image."""
    match = _JUDGE_FILE.fullmatch(path.stem)
    if match is None:
        raise ManifestError(f"{path}: MultiBanana names its answers NUMBER_MODEL_judge.txt")
    image = str(path.parent / f"{match['image']}_generated")
    grades = grades_in_lines(json_file.read_text(path))
    parts = {}
    for part in _MULTIBANANA_PARTS:
        value = _number(grades.get(part), MULTIBANANA)
        if value is not None:
            parts[part] = value
    grade = None
    if len(parts) == len(_MULTIBANANA_PARTS):
        grade = float(np.mean(list(parts.values())))
    return Answer(image, parts, grade, "with an answer that cannot be read")


def _image_of(path: Any) -> str:
    """An image's path in a result file, which another system may have written, without its ending."""
    return str(Path(str(path).replace("\\", "/")).with_suffix(""))


def _number(value: Any, benchmark: GradingScheme) -> float | None:
    """A grade of a benchmark; None for anything else. Some scripts write a grade as text, or as a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = number_of(value.strip()) if isinstance(value, str) else float(value)
    except ValueError:
        return None
    if not benchmark.lowest <= number <= benchmark.highest:
        return None
    return number


def _geometric_mean(parts: Mapping[str, float], first: str, second: str) -> float | None:
    """The root of the product of two grades; None if one is missing."""
    if first not in parts or second not in parts:
        return None
    return math.sqrt(parts[first] * parts[second])
