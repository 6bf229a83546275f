"""Import of MMEB: texts and images of queries, targets, negatives and candidates, compared with the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from idmetric.data.check import faults
from idmetric.data.importers.mmeb_sets import target_words
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import read, take, write
from idmetric.data.summary import problems
from tests.import_parts import by_id, column, refuses
from tests.mmeb_files import COLORS, TOKEN, image, table, write_eval, write_train


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_train(tmp_path_factory.mktemp("MMEB-train"))


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eval(tmp_path_factory.mktemp("MMEB-eval"))


def options(folder: Path) -> dict[str, str]:
    return {"image_dir": str(folder / "images")}


# Training tables


def part(table: pd.DataFrame, **values: str) -> pd.DataFrame:
    """The rows with these values, counted from 0."""
    chosen = np.ones(len(table), dtype=bool)
    for name, value in values.items():
        chosen &= (table[name] == value).to_numpy()
    return take(table, chosen)


def listed(candidates: Any) -> list[int] | None:
    return None if candidates is None else [*map(int, candidates)]


def test_pairs_become_groups_with_the_texts_and_images_of_the_table(train: Path) -> None:
    rows = import_dataset("mmeb", train)
    assert set(rows["dataset"]) == {"mmeb/ImageNet_1K", "mmeb/MSCOCO_t2i", "mmeb/WebQA"}
    assert set(rows["split"]) == {"train"}
    assert set(rows["identity"]) == {None}
    first = part(rows, dataset="mmeb/ImageNet_1K")
    assert column(first, "slot") == ["query", "positive", "negative"] * 8
    assert first["path"][:3].isna().tolist() == [False, True, True]
    # the token stands for the image; its line break stays
    assert column(first, "text")[:3] == ["\nIdentify the color\n", "red", "green"]
    second = part(rows, dataset="mmeb/MSCOCO_t2i")
    assert column(second, "slot") == ["query", "positive"] * 8
    assert column(second, "text")[:2] == ["Find the image: number 0", "\nRepresent the given image."]
    assert second["path"][0] is None
    assert Path(second["path"][1]).name == "0.png"
    assert rows["group"].nunique() == 24


def test_a_variant_of_the_instructions_is_chosen(train: Path) -> None:
    rows = import_dataset("mmeb", train, options={"variant": "diverse_instruction"})
    assert rows["text"][0] == "\nSay which color it is\n"
    assert len(rows) == 8 * (3 + 2 + 2)
    refuses("variant=other: one of original, diverse_instruction", "mmeb", train, options={"variant": "other"})
    one = train / "WebQA" / "diverse_instruction-00000-of-00001.parquet"
    refuses("variant=diverse_instruction", "mmeb", one, options={"image_dir": str(train)})


def test_the_first_rows_of_each_subset_are_kept(train: Path) -> None:
    rows = import_dataset("mmeb", train, options={"most": "3"})
    counts = [len(part(rows, dataset=f"mmeb/{name}", slot="query")) for name in ("ImageNet_1K", "WebQA")]
    assert counts == [3, 3]
    assert len(import_dataset("mmeb", train, options={"most": "0"})) == len(import_dataset("mmeb", train))


def test_targets_of_text_can_have_b3s_instructions(train: Path, evaluation: Path, tmp_path: Path) -> None:
    plain, given = (import_dataset("mmeb", train, options={"targets": name}) for name in ("plain", "b3"))
    for a, b in zip(plain.itertuples(), given.itertuples(), strict=True):
        words = "Represent the class label: " if a.slot != "query" and a.dataset == "mmeb/ImageNet_1K" else ""
        assert b.text == words + (a.text or "")
    chosen = {**options(evaluation), "targets": "b3"}
    candidates = part(import_dataset("mmeb", evaluation, options=chosen), slot="candidate")
    assert candidates["text"][0] == "Represent the class label: red"
    assert part(candidates, dataset="mmeb/OVEN")["text"][0] == "\nred things"  # with an image
    assert part(candidates, dataset="mmeb/Mine")["text"][0] == "one"
    path = image(tmp_path, "a.png", 0)
    columns = {"qry": ["What?"] * 2, "qry_image_path": [""] * 2, "pos_text": ["a", f"{TOKEN}b"]}
    table(tmp_path, "OK-VQA", "original", {**columns, "pos_image_path": ["", path]})
    answers = part(import_dataset("mmeb", tmp_path, options={"targets": "b3"}), slot="positive")
    assert column(answers, "text") == ["Represent the answer: a", "\nb"]  # no words before an image
    expected = {"MSCOCO_i2t": "Represent the image caption: ", "GQA": "Represent the answer: ", "WebQA": "", "x": ""}
    assert {name: target_words(name) for name in expected} == expected


def test_b3s_tables_have_lists_of_hard_negatives(tmp_path: Path) -> None:
    path = image(tmp_path, "images/0.png", 0)
    table(tmp_path, "OK-VQA_HNPS", "train", {
        "qry": [f"{TOKEN}What?"], "qry_image_path": [path], "pos_text": ["a"], "pos_image_path": [""],
        "neg_text": [["b", "c"]], "neg_image_path": [["", ""]],
    })  # fmt: skip
    rows = import_dataset("mmeb", tmp_path)
    assert list(zip(rows["slot"], rows["text"], strict=True)) == [
        ("query", "\nWhat?"), ("positive", "a"), ("negative", "b"), ("negative", "c"),
    ]  # fmt: skip
    assert set(rows["dataset"]) == {"mmeb/OK-VQA_HNPS"}


# Evaluation tables


def test_each_query_lists_its_candidates_in_the_tables_order(evaluation: Path) -> None:
    rows = import_dataset("mmeb", evaluation, options=options(evaluation))
    row_of = by_id(rows)
    for subset in ("ImageNet-1K", "MSCOCO_t2i", "OVEN"):
        given = pq.read_table(evaluation / subset).to_pylist()
        queries = part(rows, dataset=f"mmeb/{subset}", slot="query")
        for query, line in zip(queries.itertuples(), given, strict=True):
            assert query.text == line["qry_text"].removeprefix("<|image_1|>")
            assert named(query.path) == Path(line["qry_img_path"]).name
            cells = list(dict.fromkeys(zip(line["tgt_text"], line["tgt_img_path"], strict=True)))
            found = [row_of[f"mmeb/{subset}/test/candidate-{n:06d}"] for n in query.x_candidates]
            assert [c.text for c in found] == [text.removeprefix("<|image_1|>") for text, _ in cells]
            assert [named(c.path) for c in found] == [Path(path).name for _, path in cells]
    assert len(part(rows, dataset="mmeb/ImageNet-1K", slot="candidate")) == len(COLORS)  # shared by all queries
    assert listed(row_of["mmeb/MSCOCO_t2i/test/000006/query"].x_candidates) == [0, 1, 2]  # a repeated one counts once


def named(path: str | None) -> str:
    """The name of an image's file; "" for a text."""
    return Path(path or "").name


# Faults


def test_a_missing_image_is_named_with_the_way_to_find_it(evaluation: Path) -> None:
    refuses("--option image_dir=DIR", "mmeb", evaluation)
    refuses("image_dir=nowhere", "mmeb", evaluation, options={"image_dir": "nowhere"})
    kept = import_dataset("mmeb", evaluation, on_error="skip")
    assert set(kept["dataset"]) == {"mmeb/Mine"}  # the subset of texts alone


@pytest.mark.parametrize(("text", "path", "message"), [
    (f"{TOKEN}Represent it", "", "names no image"),
    ("Look at <|image_1|> here", "a.png", "inside the text"),
    ("", "", "without text and image"),
    ("Find it", "../a.png", "outside the dataset's folder"),
])  # fmt: skip
def test_rows_that_make_no_sense_are_refused(tmp_path: Path, text: str, path: str, message: str) -> None:
    columns = {"qry": [text], "qry_image_path": [path], "pos_text": ["x"], "pos_image_path": [""]}
    table(tmp_path, "N24News", "original", columns)
    refuses(message, "mmeb", tmp_path)


def test_texts_need_no_masks_and_lists_of_candidates_are_written(evaluation: Path, tmp_path: Path) -> None:
    rows = import_dataset("mmeb", evaluation, options=options(evaluation))
    assert faults(rows) == []
    write(rows, tmp_path / "mmeb.parquet")
    again = read(tmp_path / "mmeb.parquet")
    assert [*map(listed, again["x_candidates"])] == [*map(listed, rows["x_candidates"])]
    assert len(problems(rows, need_masks=True)["rows have no mask"]) == 24  # the 16 texts need none
