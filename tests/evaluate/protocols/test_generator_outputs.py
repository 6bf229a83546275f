"""Readers of generated images: patterns, published layouts, tables; references and training images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image, ImageColor

from idmetric.data.manifest.errors import ManifestError
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.generator.outputs import read
from idmetric.evaluate.protocols.generator.pattern import fields_of, split
from idmetric.metric.errors import RequestError
from tests.evaluate.protocols.parts import picture

PLACE = "{method}/{subject}/{prompt}_{seed}.png"


def files(root: Path, *names: str) -> Path:
    """Different pictures at these paths below a folder."""
    for k, name in enumerate(names):
        picture(root / name, k)
    return root


def listed(data: Manifest, role: str, *columns: str) -> list[tuple[str | None, ...]]:
    """Values of free columns of the rows of a role."""
    every = zip(*(data.column(f"x_{name}") for name in ("role", *columns)), strict=True)
    return [rest for one, *rest in map(list, every) if one == role]  # type: ignore[misc]


# Patterns


@pytest.mark.parametrize(
    ("pattern", "path", "fields"),
    [
        (PLACE, "a/dog/on_a_beach_12.png", {"method": "a", "subject": "dog", "prompt": "on_a_beach", "seed": "12"}),
        (PLACE, "a/dog/beach_x.png", None),  # a seed is a number
        (PLACE, "a/dog/beach_1.jpg", None),
        (PLACE, "b/a/dog/beach_1.png", None),
        ("{ignore}/{subject}-{ignore}.*", "x/dog-y.tar.png", {"subject": "dog"}),
        ("{subject}/{subject}_{seed}.png", "dog/dog_3.png", {"subject": "dog", "seed": "3"}),
        ("{subject}/{subject}_{seed}.png", "dog/cat_3.png", None),
        ("run(1)/{subject}.p+g", "run(1)/dog.p+g", {"subject": "dog"}),
        ("{a}_{b}", "x_y_z", {"a": "x_y", "b": "z"}),
    ],
)
def test_a_pattern_gives_the_fields_of_a_path(pattern: str, path: str, fields: dict[str, str] | None) -> None:
    assert fields_of(pattern)(path) == fields


@pytest.mark.parametrize("pattern", ["", "{}", "{a", "a}b", "{a}{b}", "{a b}", "/x/{a}", "../{a}", "{1a}"])
def test_patterns_without_meaning_are_refused(pattern: str) -> None:
    with pytest.raises(RequestError, match="pattern "):
        fields_of(pattern)


def test_a_path_with_fields_is_split_at_the_first() -> None:
    assert split("/x/y/{subject}/*.jpg") == ("/x/y", "{subject}/*.jpg")
    assert split("refs/*.jpg") == ("refs", "*.jpg")
    assert split("{subject}.jpg") == (".", "{subject}.jpg")


# Folders


def test_outputs_and_references_become_rows_in_natural_order(tmp_path: Path) -> None:
    files(tmp_path / "out", "b/dog/run_10.png", "b/dog/run_9.png", "a/dog/run_9.png", "a/cat/in_the_sun_1.png")
    files(tmp_path / "refs", "dog/1.jpg", "dog/2.jpg", "cat/1.jpg")
    data = read(tmp_path / "out", PLACE, references=str(tmp_path / "refs"))
    assert listed(data, "generated", "method", "subject", "prompt", "seed") == [
        ["a", "cat", "in_the_sun", "1"], ["a", "dog", "run", "9"], ["b", "dog", "run", "9"], ["b", "dog", "run", "10"],
    ]  # fmt: skip
    assert listed(data, "reference", "subject") == [["cat"], ["dog"], ["dog"]]
    assert data.column("text")[0] == "in the sun"
    assert all(Path(p).is_file() for p in data.column("path"))
    same = read(tmp_path / "out", PLACE, references=str(tmp_path / "refs" / "{subject}" / "*.jpg"))
    assert same.table.equals(data.table)


def test_images_that_do_not_match_are_listed(tmp_path: Path) -> None:
    files(tmp_path / "out", "a/dog/run_1.png", "a/grid.png", "a/dog/last.png")
    (tmp_path / "out" / "a" / "log.txt").write_text("no image")
    files(tmp_path / "refs", "dog/1.jpg")
    with pytest.raises(RequestError, match=r"2 images do not match[\s\S]*last\.png[\s\S]*grid\.png") as caught:
        read(tmp_path / "out", PLACE, references=str(tmp_path / "refs"))
    assert "log.txt" not in str(caught.value)
    with pytest.warns(UserWarning, match="2 images"):
        data = read(tmp_path / "out", PLACE, references=str(tmp_path / "refs"), skip=True)
    assert len(listed(data, "generated")) == 1


def test_what_is_missing_or_twice_there_is_named(tmp_path: Path) -> None:
    out, refs = files(tmp_path / "out", "a/dog/run_1.png", "a/cat/run_1.png"), files(tmp_path / "refs", "dog/1.jpg")
    with pytest.raises(RequestError, match="no references of cat; there are references of dog"):
        read(out, PLACE, references=str(refs))
    with pytest.raises(RequestError, match="no references: name their folder"):
        read(out, PLACE)
    with pytest.raises(RequestError, match="--pattern, such as"):
        read(out, references=str(refs))
    with pytest.raises(RequestError, match="are both of method 'a', subject 'subject', prompt '', seed '1'"):
        read(out, "{method}/{ignore}/run_{seed}.png", references=str(refs / "dog"))
    with pytest.raises(RequestError, match="absent: no such images"):
        read(out, PLACE, references=str(tmp_path / "absent"))


def test_images_without_seeds_count(tmp_path: Path) -> None:
    out, refs = files(tmp_path / "out", "a/dog/x.png", "a/dog/y.png"), files(tmp_path / "refs", "dog/1.jpg")
    data = read(out, "{method}/{subject}/*", references=str(refs))
    assert listed(data, "generated", "seed") == [["0"], ["1"]]


# Tables


def test_a_table_keeps_its_further_columns(tmp_path: Path) -> None:
    files(tmp_path, "o/1.png", "o/2.png", "r.png", "t.png")
    rows = {
        "path": ["o/1.png", "o/2.png", "r.png", "t.png"], "role": [None, "generated", "reference", "training"],
        "method": ["a", "b", None, None], "subject": ["dog"] * 4, "prompt": ["p", "p", None, None],
        "seed": [7.0, 7.0, None, None], "text": ["a dog, running", None, None, None],
        "prompt_class": ["action", "action", None, None], "held_out": [None, None, "Yes", None],
    }  # fmt: skip
    pa.parquet.write_table(pa.table(rows), tmp_path / "outputs.parquet")
    data = read(tmp_path / "outputs.parquet")
    assert listed(data, "generated", "method", "seed", "prompt_class") == [["a", "7", "action"], ["b", "7", "action"]]
    assert listed(data, "reference", "held_out", "method") == [["yes", None]]
    assert len(listed(data, "training")) == 1
    assert data.column("text")[:2] == ["a dog, running", "p"]
    text = "path,method,subject,prompt,seed,role\no/1.png,a,dog,p,0,\no/2.png,b,dog,p,0.0,\nr.png,,dog,,,reference\n"
    (tmp_path / "outputs.csv").write_text(text)
    found = listed(read(tmp_path / "outputs.csv"), "generated", "method", "seed")
    assert found == [["a", "0"], ["b", "0"]]  # one seed, as pandas writes a column with gaps


@pytest.mark.parametrize(("value", "answer"), [(True, "yes"), (False, "no"), (1, "yes"), (0.0, "no"), ("N", "no")])
def test_a_table_may_say_in_booleans_whether_a_reference_was_held_out(tmp_path: Path, value: Any, answer: str) -> None:
    files(tmp_path, "o.png", "r.png")
    rows = {"path": ["o.png", "r.png"], "role": [None, "reference"], "held_out": [None, value]}
    pa.parquet.write_table(pa.table(rows), tmp_path / "outputs.parquet")
    assert listed(read(tmp_path / "outputs.parquet"), "reference", "held_out") == [[answer]]


def test_faults_of_a_table_are_named_by_row(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    for text, message in (
        ("file\nx\n", "no column 'path'"),
        ("path,role\nx.png,other\n", "row 1, column 'role'"),
        ("path,role\nx.png,\n,reference\n", "row 2 has no path"),
        ("path,held_out\nx.png,perhaps\n", "column 'held_out': 'perhaps'"),
    ):
        table.write_text(text)
        with pytest.raises(ManifestError, match=message):
            read(table)


def test_equal_references_of_a_subject_count_once(tmp_path: Path) -> None:
    refs = files(tmp_path / "refs", "dog/1.jpg", "dog/2.jpg")
    (refs / "dog" / "3.jpg").write_bytes((refs / "dog" / "1.jpg").read_bytes())
    out = files(tmp_path / "out", "a/dog/run_1.png")
    assert len(listed(read(out, PLACE, references=str(refs)), "reference")) == 2


# Published layouts


def test_dreambench_plus_plus(tmp_path: Path) -> None:
    run = "emu2_gs3_step50_seed42_torch_bfloat16"
    for prompt in (0, 4):
        picture(tmp_path / run / "src_image" / "object_00_motorcycle" / f"{prompt}_0.jpg", 1)
        picture(tmp_path / run / "tgt_image" / "object_00_motorcycle" / f"{prompt}_0.jpg", 2 + prompt)
    data = read(tmp_path, layout="dreambench++")
    expected = [[run, "object_00_motorcycle", prompt, "0"] for prompt in ("0", "4")]
    assert listed(data, "generated", "method", "subject", "prompt", "seed") == expected
    assert listed(data, "reference", "subject") == [["object_00_motorcycle"]]  # saved once for each prompt
    assert listed(read(tmp_path / run, layout="dreambench++"), "generated", "method") == [[run], [run]]


def test_uno(tmp_path: Path) -> None:
    files(tmp_path / "datasets", "dreambooth/dataset/backpack/02.jpg", "dreambooth/dataset/can/00.jpg")
    entries = [
        {"prompt": "a backpack in the jungle", "image_paths": ["./dreambooth/dataset/backpack/02.jpg"]},
        {"prompt": "a can on a beach", "image_paths": ["./dreambooth/dataset/can/00.jpg"]},
    ]
    benchmark = tmp_path / "datasets" / "dreambench_singleip.json"
    benchmark.write_text(json.dumps(entries))
    files(tmp_path / "uno", "0_0.png", "0_1.png", "1_0.png")
    (tmp_path / "uno" / "0_0.json").write_text("{}")
    data = read(tmp_path / "uno", layout="uno", benchmark=benchmark)
    assert listed(data, "generated", "method", "subject", "prompt", "seed") == [
        ["uno", "backpack", "a backpack in the jungle", "0"], ["uno", "backpack", "a backpack in the jungle", "1"],
        ["uno", "can", "a can on a beach", "0"],
    ]  # fmt: skip
    assert listed(data, "reference", "subject") == [["backpack"], ["can"]]
    with pytest.raises(RequestError, match="needs --benchmark"):
        read(tmp_path / "uno", layout="uno")
    picture(tmp_path / "uno" / "2_0.png", 9)
    with pytest.raises(RequestError, match="has no entry 2"):
        read(tmp_path / "uno", layout="uno", benchmark=benchmark)
    (tmp_path / "uno" / "2_0.png").unlink()
    (tmp_path / "datasets" / "dreambooth" / "dataset" / "can" / "00.jpg").unlink()
    with pytest.raises(RequestError, match=r"no file .*can/00\.jpg; paths are relative"):
        read(tmp_path / "uno", layout="uno", benchmark=benchmark)


@pytest.mark.parametrize(
    "content",
    ["{", "[1]", "[{}]", '[{"prompt": "x", "image_paths": []}]',
     '[{"prompt": "x", "image_paths": ["a/0.jpg"], "index": 1}, {"prompt": "y", "image_paths": ["a/0.jpg"]}]'],
)  # fmt: skip
def test_a_benchmark_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "b.json").write_text(content)
    out = files(tmp_path / "out", "m/0_0.png")
    with pytest.raises(RequestError, match=r"b\.json:.* not as the layout's project writes it"):
        read(out, layout="uno", benchmark=tmp_path / "b.json")


def test_uno_with_several_subjects_has_a_row_for_each(tmp_path: Path) -> None:
    shown = {name: f"./dreambooth/dataset/{name}/0{k}.jpg" for k, name in enumerate(("can", "dog", "dog2"))}
    files(tmp_path / "datasets", *(path.removeprefix("./") for path in shown.values()))
    text = "a can and a dog in the jungle"  # of two pairs: the classes alone are named
    entries = [
        {"prompt": text, "image_paths": [shown["can"], shown["dog"]]},
        {"prompt": text, "image_paths": [shown["can"], shown["dog2"]]},
        {"prompt": "a dog and a dog on the beach", "image_paths": [shown["dog"], shown["dog2"]]},
    ]
    benchmark = tmp_path / "datasets" / "dreambench_multiip.json"
    benchmark.write_text(json.dumps(entries))
    files(tmp_path / "out", "m/0_0.png", "m/1_0.png", "m/2_0.png", "m/2_1.png")
    data = read(tmp_path / "out", layout="uno", benchmark=benchmark)
    assert listed(data, "generated", "subject", "prompt", "seed", "subjects") == [
        ["can", f"{text} [0]", "0", "2"], ["dog", f"{text} [0]", "0", "2"],
        ["can", f"{text} [1]", "0", "2"], ["dog2", f"{text} [1]", "0", "2"],
        ["dog", entries[2]["prompt"], "0", "2"], ["dog2", entries[2]["prompt"], "0", "2"],
        ["dog", entries[2]["prompt"], "1", "2"], ["dog2", entries[2]["prompt"], "1", "2"],
    ]  # fmt: skip
    assert data.column("text")[2] == text
    assert data.column("path")[0] == data.column("path")[1]
    assert sorted(listed(data, "reference", "subject")) == [["can"], ["dog"], ["dog2"]]
    everything = read(tmp_path / "out", layout="uno", benchmark=benchmark,
                            references=str(tmp_path / "datasets" / "dreambooth" / "dataset"))  # fmt: skip
    assert len(listed(everything, "generated")) == 8


def xverse(root: Path) -> Path:
    """XVerseBench's files, as its repository has them: two entries, the first of two subjects."""
    images = ("human/05_man.jpg", "object/00_motorcycle.jpg", "animal/07_old dog.jpg")
    files(root / "assets" / "XVerseBench", *images)

    def entry(index: int, prompt: str, *shown: tuple[str, str]) -> dict[str, Any]:
        inputs = [{"image_path": f"assets/XVerseBench/{path}", "caption": f"a {word}"} for path, word in shown]
        words = [[k, word, word] for k, (_, word) in enumerate(shown)]
        return {
            "index": index, "input_images": [], "position_delta": [0, -32], "prompt": prompt,
            "modulation": [{"type": "adapter", "src_inputs": inputs, "use_words": words}],
        }  # fmt: skip

    entries = [
        entry(0, "A man is riding a motorcycle.", (images[0], "man"), (images[1], "motorcycle")),
        entry(1, "An old dog sleeps.", (images[2], "old dog")),
    ]
    path = root / "eval" / "tools" / "XVerseBench_multi.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(entries))
    return path


def test_xversebench(tmp_path: Path) -> None:
    benchmark = xverse(tmp_path)
    colors = ("red", "green", "blue", "white")
    grid = Image.new("RGB", (65, 64))  # XVerse drops the column that is left over
    for k, color in enumerate(colors):
        grid.paste(Image.new("RGB", (32, 32), color), (k % 2 * 32, k // 2 * 32))
    (tmp_path / "results" / "m").mkdir(parents=True)
    grid.save(tmp_path / "results" / "m" / "0_A_man_is_riding_a_motorcycle..png")
    grid.save(tmp_path / "results" / "m" / "1_An_old_dog_sleeps..png")
    cells = tmp_path / "r" / "cells"
    data = read(tmp_path / "results", layout="xversebench", benchmark=benchmark, cells=cells)
    rows = listed(data, "generated", "method", "subject", "prompt", "seed", "category", "label", "subjects")
    assert len(rows) == 12  # 2 subjects x 4 images, 1 x 4
    assert rows[:2] == [
        ["m", "human_05_man", "A man is riding a motorcycle.", "0", "human", "man", "2"],
        ["m", "object_00_motorcycle", "A man is riding a motorcycle.", "0", "object", "motorcycle", "2"],
    ]
    assert rows[-1] == ["m", "animal_07_old dog", "An old dog sleeps.", "3", "animal", "old dog", "1"]
    for k, color in enumerate(colors):
        cell = data.image(8 + k)
        assert (cell.size, cell.getcolors()) == ((32, 32), [(1024, ImageColor.getrgb(color))])
    assert len(listed(data, "reference")) == 3
    same = read(tmp_path / "results" / "m", layout="xversebench", benchmark=benchmark, cells=cells)
    assert listed(same, "generated", "method", "subject", "seed")[0] == ["m", "human_05_man", "0"]


def test_multiid_bench(tmp_path: Path) -> None:
    names = [f"{name}.jpg" for name in ("out", "ori", "ref_1", "ref_2")]
    files(tmp_path / "withanyone", *(f"0001/{name}" for name in names), *(f"0002/{name}" for name in names[:3]))
    meta = tmp_path / "withanyone" / "0001" / "meta.json"
    meta.write_text(json.dumps({"prompt": "two people in a park"}))
    data = read(tmp_path, layout="multiid-bench")
    assert listed(data, "generated", "method", "subject", "prompt") == [
        ["withanyone", "0001", "two people in a park"], ["withanyone", "0002", None],
    ]  # fmt: skip
    assert data.column("text").count("two people in a park") == 1
    assert listed(data, "reference", "subject") == [["0001"], ["0002"]]
    assert listed(data, "training", "subject") == [["0001"], ["0001"], ["0002"]]
    assert listed(read(tmp_path / "withanyone", layout="multiid-bench"), "training") == [[], [], []]
    meta.write_text("[]")
    with pytest.raises(RequestError, match=r"meta\.json: no prompt"):
        read(tmp_path, layout="multiid-bench")


def test_imagenhub(tmp_path: Path) -> None:
    files(tmp_path / "results" / "exp", "input/sample_7.jpg", "DreamBooth/sample_7.jpg", "SuTI/sample_7.jpg")
    (tmp_path / "results" / "exp" / "dataset_lookup.json").write_text("{}")
    data = read(tmp_path / "results" / "exp", layout="imagenhub")
    assert listed(data, "generated", "method", "subject") == [["DreamBooth", "7"], ["SuTI", "7"]]
    assert listed(data, "reference", "subject") == [["7"]]


def test_omnicontext(tmp_path: Path) -> None:
    files(tmp_path / "results", "OmniGen2/fullset/single_object/0003.png")
    refs = files(tmp_path / "refs", "0003/1.jpg")
    data = read(tmp_path / "results", layout="omnicontext", references=str(refs))
    assert listed(data, "generated", "method", "task", "subject") == [["OmniGen2", "single_object", "0003"]]


def test_mirrormetrics(tmp_path: Path) -> None:
    files(tmp_path, "Lora_Candidates/step 500/x.png", "Lora_Candidates/step 1000/y.png", "Reference_Images/1.jpg")
    data = read(tmp_path, layout="mirrormetrics")
    assert listed(data, "generated", "method", "seed") == [["step 500", "0"], ["step 1000", "0"]]
    assert len(listed(data, "reference")) == 1


def psr(root: Path) -> Path:
    """Two of PSRBench's files: two items of two subjects, and one of three."""
    images = ["subjects/mug/00.jpg", "animals/dog.jpg", "animals/cat.jpg"]
    files(root / "PSRBench", *images)

    def item(instruction: str, *shown: int) -> dict[str, Any]:
        words = ("mug", "dog", "cat")
        categories = {f"category{number}": words[index] for number, index in enumerate(shown, 1)}
        return {"input_path": [images[index] for index in shown], "instruction": instruction, **categories}

    action = [item("a dog by a mug", 1, 0), item("a dog and a cat", 1, 2)]
    three = [item("a dog by a mug", 1, 0, 2)]
    (root / "PSRBench" / "Action.json").write_text(json.dumps(action))
    (root / "PSRBench" / "Three.json").write_text(json.dumps(three))
    return root / "PSRBench"


def test_psrbench(tmp_path: Path) -> None:
    benchmark = psr(tmp_path)
    files(tmp_path / "outputs", "m/Action/0.png", "m/Action/1.png", "m/Three/0.png")
    data = read(tmp_path / "outputs", layout="psrbench", benchmark=benchmark)
    assert listed(data, "generated", "method", "task", "subject", "label", "prompt") == [
        ["m", "Action", "animals_dog", "dog", "a dog by a mug [Action 0]"],
        ["m", "Action", "subjects_mug_00", "mug", "a dog by a mug [Action 0]"],
        ["m", "Action", "animals_dog", "dog", "a dog and a cat"],
        ["m", "Action", "animals_cat", "cat", "a dog and a cat"],
        ["m", "Three", "animals_dog", "dog", "a dog by a mug [Three 0]"],
        ["m", "Three", "subjects_mug_00", "mug", "a dog by a mug [Three 0]"],
        ["m", "Three", "animals_cat", "cat", "a dog by a mug [Three 0]"],
    ]
    assert data.column("text")[0] == "a dog by a mug"
    assert sorted(listed(data, "reference", "subject")) == [["animals_cat"], ["animals_dog"], ["subjects_mug_00"]]
    alone = read(tmp_path / "outputs" / "m", layout="psrbench", benchmark=benchmark)
    assert listed(alone, "generated", "method", "task")[0] == ["m", "Action"]


def test_psrbench_finds_outputs_by_their_result_path_and_names_a_missing_file(tmp_path: Path) -> None:
    benchmark = psr(tmp_path)
    items = json.loads((benchmark / "Action.json").read_text())
    for item, number in zip(items, (7, 3), strict=True):
        item["result_path"] = f"outputs/Action/{number}.png"
    (benchmark / "Action.json").write_text(json.dumps(items))
    files(tmp_path / "outputs", "m/Action/3.png")
    data = read(tmp_path / "outputs", layout="psrbench", benchmark=benchmark / "Action.json")
    assert [prompt for [prompt] in listed(data, "generated", "prompt")] == ["a dog and a cat"] * 2
    picture(tmp_path / "outputs" / "m" / "Four" / "0.png", 1)
    with pytest.raises(RequestError, match=r"0\.png: .*Four\.json, which should hold its prompt"):
        read(tmp_path / "outputs", layout="psrbench", benchmark=benchmark)
    (tmp_path / "outputs" / "m" / "Four" / "0.png").unlink()
    (benchmark / "animals" / "cat.jpg").unlink()
    with pytest.raises(RequestError, match=r"Action\.json: no file .*animals/cat\.jpg"):
        read(tmp_path / "outputs", layout="psrbench", benchmark=benchmark)


def test_people_of_multiid_bench_are_subjects_in_regions(tmp_path: Path) -> None:
    files(tmp_path / "m", *(f"01/{name}.jpg" for name in ("output_0", "output_1", "ori", "ref_1", "ref_2")))
    (tmp_path / "m" / "01" / "meta.json").write_text(json.dumps({"caption_en": "two friends", "name": ["x", "y"]}))
    data = read(tmp_path, layout="multiid-bench", in_regions=True)
    assert listed(data, "generated", "subject", "sample", "prompt", "seed") == [
        ["01 ref_1", "01", "two friends", "0"], ["01 ref_2", "01", "two friends", "0"],
        ["01 ref_1", "01", "two friends", "1"], ["01 ref_2", "01", "two friends", "1"],
    ]  # fmt: skip
    assert listed(data, "reference", "subject") == [["01 ref_1"], ["01 ref_2"]]
    assert listed(data, "training") == []
    for name in ("ref_1", "ref_2"):
        (tmp_path / "m" / "01" / f"{name}.jpg").unlink()
    with pytest.raises(RequestError, match=r"output_0\.jpg: there are no photos ref_1\.jpg, .* of the people of 01"):
        read(tmp_path, layout="multiid-bench", in_regions=True)


# The floor


def test_images_of_the_floor_have_the_names_of_outputs(tmp_path: Path) -> None:
    """The floor is one method, whatever its folder is called; a table gives it by a role."""
    refs = files(tmp_path / "refs", "dog/1.jpg")
    out = files(tmp_path / "out", "m/dog/run_1.png", "m/dog/run_2.png")
    floor = files(tmp_path / "floor", "m/dog/run_1.png")
    data = read(out, PLACE, references=str(refs), floor=floor)
    assert listed(data, "floor", "subject", "prompt", "seed") == [["dog", "run", "1"]]
    assert len(listed(data, "generated")) == 2
    in_one_folder = read(out, PLACE, references=str(refs), floor=floor / "m")
    assert listed(in_one_folder, "floor", "subject", "prompt", "seed") == [["dog", "run", "1"]]

    picture(floor / "n" / "dog" / "run_1.png", 8)
    with pytest.raises(RequestError, match=r"m/dog/run_1\.png and .*n/dog/run_1\.png are both of method"):
        read(out, PLACE, references=str(refs), floor=floor)
    with pytest.raises(RequestError, match="absent: no file or folder has this name"):
        read(out, PLACE, references=str(refs), floor=tmp_path / "absent")

    lines = ["path,subject,prompt,role", "out/m/dog/run_1.png,dog,run,", "floor/m/dog/run_1.png,dog,run,floor"]
    (tmp_path / "t.csv").write_text("\n".join([*lines, "refs/dog/1.jpg,dog,,reference"]))
    assert listed(read(tmp_path / "t.csv"), "floor", "subject", "prompt", "seed") == [["dog", "run", "0"]]


def test_grids_of_outputs_and_floor_are_cut_into_different_files(tmp_path: Path) -> None:
    benchmark = xverse(tmp_path)
    for root, color in (("results", "red"), ("floor", "blue")):
        (tmp_path / root / "m").mkdir(parents=True)
        Image.new("RGB", (64, 64), color).save(tmp_path / root / "m" / "1_An_old_dog_sleeps..png")
    data = read(tmp_path / "results", layout="xversebench", benchmark=benchmark, cells=tmp_path / "cells",
                floor=tmp_path / "floor")  # fmt: skip
    colors = {"generated": set(), "floor": set()}  # type: ignore[var-annotated]
    for row, role in enumerate(data.column("x_role")):
        if role in colors:
            colors[role].add(data.image(row).getpixel((0, 0)))
    assert colors == {"generated": {ImageColor.getrgb("red")}, "floor": {ImageColor.getrgb("blue")}}
