"""Readers of generated images: patterns, published layouts, tables; references and training images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pandas import DataFrame

from idmetric.data.manifest import ManifestError
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


def listed(data: DataFrame, role: str, *columns: str) -> list[tuple[str | None, ...]]:
    """Values of free columns of the rows of a role."""
    every = zip(*(data[f"x_{name}"] for name in ("role", *columns)), strict=True)
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
    assert data["text"].tolist()[0] == "in the sun"
    assert all(Path(p).is_file() for p in data["path"].tolist())
    same = read(tmp_path / "out", PLACE, references=str(tmp_path / "refs" / "{subject}" / "*.jpg"))
    assert same.equals(data)


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
    assert data["text"].tolist()[:2] == ["a dog, running", "p"]
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
        ("path,bbox\nx.png,0 0 5 5\n", "bbox"),
    ):
        table.write_text(text)
        with pytest.raises(ManifestError, match=message):
            read(table)
    with pytest.raises(ManifestError, match="bbox"):
        read(DataFrame({"path": ["x.png"], "bbox": ["0 0 5 5"]}))


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
