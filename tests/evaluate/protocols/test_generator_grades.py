"""Grades by language models, in files of the form that each benchmark's script writes."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric.cli import eval as cli
from idmetric.data.manifest.errors import ManifestError
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.generator.grades import Grades, read_grades
from idmetric.evaluate.protocols.generator.images import Images
from idmetric.evaluate.protocols.generator.outputs import read
from idmetric.evaluate.protocols.generator_methods import GeneratorOptions, run
from tests.evaluate.protocols.parts import PLAIN, Drawn, picture, values
from tests.runner import Runner

OMNICONTEXT = "{method}/fullset/{task}/{subject}.png"


def omnicontext_row(method: str, key: str, pf: Any, sc: Any, reason: str = "fine", **more: Any) -> dict[str, Any]:
    """A line of score.jsonl; the images were graded on another machine."""
    return {
        "key": key, "task_type": "single_object", "instruction": "a mug on a beach", "instruction_language": "en",
        "output_image_path": f"/mnt/results/{method}/fullset/single_object/{key}.png",
        "PF_score": pf, "PF_score_reason": "fine", "SC_score": sc, "SC_score_reason": reason, **more,
    }  # fmt: skip


def write_lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """OmniContext's outputs of two methods for three subjects, and their references."""
    for key in ("0001", "0002", "0003"):
        for number, method in enumerate(("omnigen2", "uno")):
            picture(tmp_path / "results" / method / "fullset" / "single_object" / f"{key}.png", int(key), number)
        picture(tmp_path / "refs" / key / "a.png", int(key), 5)
    return tmp_path


def graded(folder: Path, pattern: str, *sources: Path | str) -> tuple[Grades, Images]:
    """The grades in some files of the outputs in `folder`/results."""
    images = Images.of(read(folder / "results", pattern, references=str(folder / "refs")))
    return read_grades([str(source) for source in sources], images), images


def column(grades: Grades, images: Images, name: str) -> list[float | None]:
    numbers = grades.columns(images)[name]
    return [None if np.isnan(number) else round(float(number), 4) for number in numbers]


# Each benchmark's files


def test_omnicontext_grades_are_roots_of_products_and_random_ones_are_missing(results: Path) -> None:
    guessed = "guess_if_cannot_parse | I cannot judge images of people."
    file = write_lines(
        results / "results" / "omnigen2" / "gpt4dot1" / "single_object" / "score.jsonl",
        omnicontext_row("omnigen2", "0001", 4, 9),
        omnicontext_row("omnigen2", "0002", 8, 5, guessed),
        omnicontext_row("omnigen2", "0003", "?", 7),
    )
    grades, images = graded(results, OMNICONTEXT, file)
    assert list(images.method) == ["omnigen2"] * 3 + ["uno"] * 3
    assert column(grades, images, "grade") == [6.0, None, None, None, None, None]
    assert column(grades, images, "consistency") == [9.0, None, 7.0, None, None, None]  # SC
    assert column(grades, images, "grade PF") == [4.0, 8.0, None, None, None, None]
    about, warning = grades.notes
    assert about.startswith("grade: OmniContext or SconeEval")
    assert re.match("WARNING: 5 of 6 images have no grade: 1 .*random, 1 .*read, 3 without", warning)


def test_grades_of_another_method_do_not_count(results: Path) -> None:
    """The outputs of one method next to the grades of two: 9 and 1 for each image."""
    for method, grade in (("omnigen2", 9), ("uno", 1)):
        rows = [omnicontext_row(method, key, grade, grade) for key in ("0001", "0002", "0003")]
        write_lines(results / "grades" / method / "single_object" / "score.jsonl", *rows)
    shutil.rmtree(results / "results" / "uno")
    grades, images = graded(results, OMNICONTEXT, results / "grades")
    assert column(grades, images, "grade") == [9.0, 9.0, 9.0]
    assert "3 grades are of other images, such as other methods', and left out" in grades.notes[-1]


def test_sconeeval_grades_an_image_three_times_and_tells_subjects_apart(tmp_path: Path) -> None:
    for key in ("7", "8"):
        picture(tmp_path / "results" / "Scone" / "distinction_multi_cross" / f"{key}.png", int(key))
        picture(tmp_path / "refs" / key / "a.png", int(key), 5)
    metrics = {"DIS_acc": 10.0, "DIS_prec": 5.0, "DIS_recall": 10.0, "DIS_f1": 5.0, "DIS_pred": [[1, 0], [1]]}
    folder = tmp_path / "scores" / "Scone"
    for number, (pf, sc) in enumerate(((9, 4), (4, 4), (10, 10)), 1):
        row = omnicontext_row("", "7", pf, sc, input_images=["a.png", "b.png"], **metrics)
        line = {**row, "output_image_path": "results/Scone/distinction_multi_cross/7.png"}
        write_lines(folder / f"score_try{number}" / "distinction_multi_cross" / "score.jsonl", line)
        write_lines(folder / f"score_try{number}" / "combined_score.jsonl", line)
    grades, images = graded(tmp_path, "{method}/{task}/{subject}.png", tmp_path / "scores")
    assert column(grades, images, "grade") == [round((6 + 4 + 10) / 3, 4), None]
    assert column(grades, images, "consistency") == [6.0, None]
    assert column(grades, images, "grade DIS") == [7.5, None]


def test_gedit_grades_are_roots_of_products(tmp_path: Path) -> None:
    fields = ["key", "edited_image", "instruction", "sementics_score", "quality_score", "intersection_exist"]
    for language in ("en", "cn"):
        picture(tmp_path / "results" / "step1x" / "fullset" / "subject-add" / language / "ab12.png", 1)
    picture(tmp_path / "refs" / "ab12" / "a.png", 1, 5)
    path = tmp_path / "csv" / "step1x_subject-add_all_vie_score.csv"
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*fields, "instruction_language"])
        writer.writeheader()
        for language, sc, pq in (("en", 8, 2), ("cn", "", 6)):
            image = f"edit_images/step1x/fullset/subject-add/{language}/ab12.jpg"
            row = {"key": "ab12", "edited_image": image, "instruction": "add, please", "intersection_exist": True}
            writer.writerow({**row, "sementics_score": sc, "quality_score": pq, "instruction_language": language})
    grades, images = graded(tmp_path, "{method}/fullset/{task}/{language}/{subject}.png", path.parent)
    assert column(grades, images, "grade") == [None, 4.0]  # cn, en
    assert column(grades, images, "grade PQ") == [6.0, 2.0]
    assert "consistency" not in grades.columns(images)
    assert "random grades in place of answers that it cannot read, without a mark" in grades.notes[0]


def test_imgedit_grades_are_means_of_the_lines_of_an_answer(tmp_path: Path) -> None:
    keys = ("1082", "1068", "673", "9")
    for key in keys:
        picture(tmp_path / "results" / "bagel" / f"{key}.png", int(key))
        picture(tmp_path / "refs" / key / "a.png", int(key), 5)
    answers: dict[str, Any] = {
        "1082": "Brief reasoning: 2 shells, one too many.\nPrompt Compliance: 1  \nVisual Seamlessness: 4\n"
        "Physical & Detail Fidelity: 4",
        "1068": "I'm sorry, I can't help with that.",
        "673": "Style Fidelity: 1\nContent Preservation: 5\nRendering Quality: 5",
        "9": {"error": "Image conversion failed"},
    }
    file = tmp_path / "results" / "bagel" / "result.json"
    file.write_text(json.dumps(answers))
    by_key = dict(zip(["1068", "1082", "673", "9"], [None, 3.0, round(11 / 3, 4), None], strict=True))
    grades, images = graded(tmp_path, "{method}/{subject}.png", file)
    assert dict(zip(images.subject, column(grades, images, "grade"), strict=True)) == by_key
    assert grades.notes[1].endswith("2 with an answer that cannot be read")
    averages = tmp_path / "results" / "bagel" / "average_score.json"  # as its next script writes it
    averages.write_text(json.dumps({"1082": 3.0, "673": 3.67}))
    grades, images = graded(tmp_path, "{method}/{subject}.png", averages)
    assert dict(zip(images.subject, column(grades, images, "grade"), strict=True)) == {
        "1068": None, "1082": 3.0, "673": 3.67, "9": None,
    }  # fmt: skip


BANANA = """Reasoning: 3 people, as asked: good.
Instruction Alignment: 8
Reference Consistency: 4
Background-Subject Match: 6.
Physical Realism: **7**
Visual Quality: 5/10
"""


def test_multibanana_grades_are_means_of_five(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "3_back"
    for number in ("006", "014"):
        picture(folder / f"{number}_generated.png", int(number))
        picture(tmp_path / "refs" / number / "a.png", int(number), 5)
    (folder / "006_gemini_judge.txt").write_text(BANANA)
    (folder / "014_gemini_judge.txt").write_text(BANANA.replace("Visual Quality: 5/10", ""))
    (folder / "006_prompt.txt").write_text("all of them")
    grades, images = graded(tmp_path, "{task}/{subject}_generated.png", tmp_path / "results")
    assert column(grades, images, "grade") == [6.0, None]
    assert column(grades, images, "consistency") == [4.0, 4.0]
    (folder / "006_gpt_judge.txt").write_text("Error during evaluation: 429")
    with pytest.raises(ManifestError, match=r"answers of 2 models, gemini, gpt: choose one by a pattern"):
        graded(tmp_path, "{task}/{subject}_generated.png", tmp_path / "results")
    grades, images = graded(tmp_path, "{task}/{subject}_generated.png", f"{tmp_path}/results/*/*_gemini_judge.txt")
    assert column(grades, images, "grade") == [6.0, None]


def test_dreambench_ratings_are_grades_by_collection_and_prompt(tmp_path: Path) -> None:
    run_folder = tmp_path / "results" / "emu2_gs3_step50_seed42_torch_bfloat16"
    for prompt in (0, 1, 2):
        picture(run_folder / "tgt_image" / "object_19_magic_cube" / f"{prompt}_0.jpg", 1, prompt)
    picture(run_folder / "src_image" / "object_19_magic_cube" / "0_0.jpg", 1, 5)
    file = tmp_path / "concept_preservation_full" / "emu2.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"object_19_rubik's_cube-0": 3, "object_19_rubik's_cube-1": None}))
    images = Images.of(read(tmp_path / "results", layout="dreambench++"))
    grades = read_grades([str(file.parent)], images)
    assert column(grades, images, "grade") == [3.0, None, None]


# Which image a grade belongs to


def test_a_grade_that_fits_two_images_is_refused(results: Path) -> None:
    row = omnicontext_row("another", "0001", 4, 9)
    file = write_lines(results / "score.jsonl", row)
    with pytest.raises(ManifestError, match=r"would be that of both .*omnigen2.* and .*uno.*"):
        graded(results, OMNICONTEXT, file)


def test_files_that_do_not_fit_are_named(results: Path) -> None:
    write_lines(results / "a.jsonl", {"key": "0001", "score": 3})
    (results / "b.csv").write_text("key,score\n1,2\n")
    (results / "c.json").write_text('{"1": [1, 2]}')
    (results / "d.txt").write_text("7")
    write_lines(results / "e.jsonl", omnicontext_row("uno", "9", 4, 9))
    (results / "empty").mkdir()
    for name, reason in {
        "a.jsonl": "line 1: no output_image_path, PF_score, SC_score",
        "b.csv": "no column edited_image, sementics_score, quality_score",
        "c.json": r"'1': \[1, 2\] is neither an answer",
        "d.txt": "no result file of a benchmark",
        "e.jsonl": "none of its grades belongs to an image of --data",
        "absent.csv": "absent.csv",
        "empty": "no result files of a benchmark",
    }.items():
        with pytest.raises(ManifestError, match=reason):
            graded(results, OMNICONTEXT, results / name)
    first = write_lines(results / "score.jsonl", omnicontext_row("uno", "0001", 4, 9))
    (results / "uno_vie_score.csv").write_text("edited_image,sementics_score,quality_score\n0001.png,1,2\n")
    with pytest.raises(ManifestError, match="grades of two benchmarks, on different scales"):
        graded(results, OMNICONTEXT, first, results / "uno_vie_score.csv")


# In the table


def test_grades_stand_beside_identity_with_intervals_and_paired_differences(results: Path) -> None:
    rows = [
        omnicontext_row(method, key, pf, sc)
        for method, grades in {"omnigen2": ((4, 9), (9, 9), (4, 4)), "uno": ((1, 4), (9, 4), (1, 9))}.items()
        for key, (pf, sc) in zip(("0001", "0002", "0003"), grades, strict=True)
    ]
    file = write_lines(results / "score.jsonl", *rows)
    data = read(results / "results", OMNICONTEXT, references=str(results / "refs"))
    options = GeneratorOptions(grades=(str(file),))
    [result] = run(data, {"drawn": Drawn()}, EvalSettings(bootstrap=100, workers=1), options)
    best = values(result, method="omnigen2")
    assert best["grade"].value == pytest.approx((6 + 9 + 4) / 3)
    assert best["grade"].count == 3
    assert best["consistency"].value == pytest.approx((9 + 9 + 4) / 3)
    assert best["grade"].low < best["grade"].value < best["grade"].high  # type: ignore[operator]
    difference = values(result, method="omnigen2 - uno")["grade"]
    assert difference.value == pytest.approx(((6 - 2) + (9 - 6) + (4 - 3)) / 3)
    assert result.items["images"]["grade"][:3] == [6.0, 9.0, 4.0]
    assert result.items["images"]["grade_SC"][3:] == [4.0, 4.0, 9.0]
    assert "grade: OmniContext or SconeEval, sqrt(PF x SC), 0 to 10" in result.notes


def test_an_image_of_several_subjects_counts_once(tmp_path: Path) -> None:
    """The image of two subjects has two rows; its grade has the weight of one image."""
    for name in ("pair", "alone"):
        picture(tmp_path / "results" / "bagel" / f"{name}.png", len(name))
    table = ["path,method,subject,prompt,role"]
    table += [f"results/bagel/pair.png,bagel,{subject},p," for subject in ("cat", "dog")]
    table += ["results/bagel/alone.png,bagel,dog,q,"]
    for subject in ("cat", "dog"):
        picture(tmp_path / f"{subject}.png", len(subject), 9)
        table.append(f"{subject}.png,,{subject},,reference")
    (tmp_path / "table.csv").write_text("\n".join(table))
    (tmp_path / "results" / "bagel" / "average_score.json").write_text('{"pair": 2, "alone": 5}')
    options = GeneratorOptions(grades=(str(tmp_path / "results" / "bagel" / "average_score.json"),))
    [result] = run(read(tmp_path / "table.csv"), {"drawn": Drawn()}, PLAIN, options)
    grade = values(result, method="bagel")["grade"]
    assert (grade.value, grade.count) == (3.5, 2)
    assert values(result, method="bagel")["identity"].count == 3


def test_the_command_reads_grades_before_it_embeds(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Runner(cli.main, capsys, "generator", "--data", results / "results", "--layout", "omnicontext")
    options = ["--references", results / "refs", "--model", "tiny", "--held-out", "--bootstrap", "0"]
    command.fails("none.jsonl", *options, "--out", results / "out", "--grades", results / "none.jsonl")
    assert not list((results / "out").rglob("*.npy"))
    file = write_lines(results / "score.jsonl", *(omnicontext_row("uno", f"000{k}", 4, 9) for k in (1, 2, 3)))
    status, out, _ = command.all(*options, "--out", results / "out", "--grades", file)
    assert status == 0
    assert re.search(r"method +.* grade +consistency", out)
    assert re.search(r"uno +.* 6\.000 +9\.000", out)
