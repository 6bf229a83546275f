"""Import of MMEB: texts and images of queries, targets, negatives and candidates, compared with the tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from idmetric import ImageReadError
from idmetric.data.curate.balance import distinct
from idmetric.data.importers.mmeb_sets import target_words
from idmetric.data.importers.run import import_dataset
from idmetric.data.old_manifest.bridge import to_frame
from idmetric.data.old_manifest.check import faults
from idmetric.data.old_manifest.lineage import image_keys
from idmetric.data.old_manifest.summary import problems
from idmetric.data.old_manifest.table import Manifest, ManifestError, Row, read
from tests.import_parts import refuses
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


def test_pairs_become_groups_with_the_texts_and_images_of_the_table(train: Path) -> None:
    manifest = import_dataset("mmeb", train)
    assert set(manifest.column("dataset")) == {"mmeb/ImageNet_1K", "mmeb/MSCOCO_t2i", "mmeb/WebQA"}
    assert set(manifest.column("split")) == {"train"}
    assert set(manifest.column("identity")) == {None}
    first = manifest.filter(dataset="mmeb/ImageNet_1K")
    assert first.column("slot") == ["query", "positive", "negative"] * 8
    assert first[0].text == "\nIdentify the color\n"  # the token stands for the image; its line break stays
    assert [first[k].path is None for k in range(3)] == [False, True, True]
    assert [first[k].text for k in range(3)] == ["\nIdentify the color\n", "red", "green"]
    second = manifest.filter(dataset="mmeb/MSCOCO_t2i")
    assert second.column("slot") == ["query", "positive"] * 8
    assert (second[0].path, second[0].text) == (None, "Find the image: number 0")
    assert second[1].text == "\nRepresent the given image."
    assert Path(str(second[1].path)).name == "0.png"
    assert len(set(manifest.column("group"))) == 24


def test_a_variant_of_the_instructions_is_chosen(train: Path) -> None:
    manifest = import_dataset("mmeb", train, options={"variant": "diverse_instruction"})
    assert manifest[0].text == "\nSay which color it is\n"
    assert len(manifest) == 8 * (3 + 2 + 2)
    refuses("one of original, diverse_instruction", "mmeb", train, options={"variant": "other"})
    one = train / "WebQA" / "diverse_instruction-00000-of-00001.parquet"
    refuses("variant=diverse_instruction", "mmeb", one, options={"image_dir": str(train)})


def test_the_first_rows_of_each_subset_are_kept(train: Path) -> None:
    manifest = import_dataset("mmeb", train, options={"most": "3"})
    counts = [len(manifest.filter(dataset=f"mmeb/{name}", slot="query")) for name in ("ImageNet_1K", "WebQA")]
    assert counts == [3, 3]
    assert len(import_dataset("mmeb", train, options={"most": "0"})) == len(import_dataset("mmeb", train))


def test_targets_of_text_can_have_b3s_instructions(train: Path, evaluation: Path, tmp_path: Path) -> None:
    plain, given = (import_dataset("mmeb", train, options={"targets": name}) for name in ("plain", "b3"))
    for a, b in zip(plain, given, strict=True):
        words = "Represent the class label: " if a.slot != "query" and a.dataset == "mmeb/ImageNet_1K" else ""
        assert b.text == words + (a.text or "")
    chosen = {**options(evaluation), "targets": "b3"}
    candidates = import_dataset("mmeb", evaluation, options=chosen).filter(slot="candidate")
    assert candidates[0].text == "Represent the class label: red"
    assert candidates.filter(dataset="mmeb/OVEN")[0].text == "\nred things"  # with an image
    assert candidates.filter(dataset="mmeb/Mine")[0].text == "one"
    path = image(tmp_path, "a.png", 0)
    columns = {"qry": ["What?"] * 2, "qry_image_path": [""] * 2, "pos_text": ["a", f"{TOKEN}b"]}
    table(tmp_path, "OK-VQA", "original", {**columns, "pos_image_path": ["", path]})
    answers = import_dataset("mmeb", tmp_path, options={"targets": "b3"}).filter(slot="positive")
    assert answers.column("text") == ["Represent the answer: a", "\nb"]  # no words before an image
    refuses("one of plain, b3", "mmeb", train, options={"targets": "other"})
    expected = {"MSCOCO_i2t": "Represent the image caption: ", "GQA": "Represent the answer: ", "WebQA": "", "x": ""}
    assert {name: target_words(name) for name in expected} == expected


def test_b3s_tables_have_lists_of_hard_negatives(tmp_path: Path) -> None:
    path = image(tmp_path, "images/0.png", 0)
    table(tmp_path, "OK-VQA_HNPS", "train", {
        "qry": [f"{TOKEN}What?"], "qry_image_path": [path], "pos_text": ["a"], "pos_image_path": [""],
        "neg_text": [["b", "c"]], "neg_image_path": [["", ""]],
    })  # fmt: skip
    manifest = import_dataset("mmeb", tmp_path)
    assert list(zip(manifest.column("slot"), manifest.column("text"), strict=True)) == [
        ("query", "\nWhat?"), ("positive", "a"), ("negative", "b"), ("negative", "c"),
    ]  # fmt: skip
    assert set(manifest.column("dataset")) == {"mmeb/OK-VQA_HNPS"}


# Evaluation tables


def test_each_query_lists_its_candidates_in_the_tables_order(evaluation: Path) -> None:
    manifest = import_dataset("mmeb", evaluation, options=options(evaluation))
    rows = {row.id: row for row in manifest}
    lists = dict(zip(manifest.column("id"), manifest.column("x_candidates"), strict=True))
    for subset in ("ImageNet-1K", "MSCOCO_t2i", "OVEN"):
        given = pq.read_table(evaluation / subset).to_pylist()
        queries = [row for row in rows.values() if row.dataset == f"mmeb/{subset}" and row.slot == "query"]
        assert len(queries) == len(given)
        for query, line in zip(queries, given, strict=True):
            assert query.text == line["qry_text"].removeprefix("<|image_1|>")
            assert (query.path or "").endswith(line["qry_img_path"])
            assert (query.path is None) == (not line["qry_img_path"])
            cells = list(dict.fromkeys(zip(line["tgt_text"], line["tgt_img_path"], strict=True)))
            found = [rows[f"mmeb/{subset}/test/candidate-{n:06d}"] for n in lists[query.id]]
            assert [c.text for c in found] == [text.removeprefix("<|image_1|>") for text, _ in cells]
            assert [(c.path or "")[-len(p):] if p else c.path for c, (_, p) in zip(found, cells, strict=True)] == [
                p or None for _, p in cells
            ]  # fmt: skip
    assert len(manifest.filter(dataset="mmeb/ImageNet-1K", slot="candidate")) == len(COLORS)  # shared by all queries
    assert lists["mmeb/MSCOCO_t2i/test/000006/query"] == [0, 1, 2]  # a repeated candidate counts once


# Faults


def test_a_missing_image_is_named_with_the_way_to_find_it(evaluation: Path) -> None:
    refuses(r"no such image: unpack .* --option image_dir=DIR", "mmeb", evaluation)
    refuses("image_dir=nowhere: no such folder", "mmeb", evaluation, options={"image_dir": "nowhere"})
    kept = import_dataset("mmeb", evaluation, on_error="skip")
    assert set(kept.column("dataset")) == {"mmeb/Mine"}  # the subset of texts alone


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


# Texts in manifests


def test_a_row_without_image_needs_a_text_and_a_place_in_a_search() -> None:
    row = Row(None, text="a caption", group="g", slot="query")
    manifest = Manifest.from_rows([row, Row(None, text="an answer", group="g", slot="positive")])
    assert manifest.sources() == [None, None]
    assert len(set(image_keys(manifest))) == 2
    assert len(distinct(to_frame(manifest))) == 2
    assert manifest.column("id")[0].startswith("g/query/")
    for wrong in (
        Row(None, group="g", slot="query"),
        Row("a", text="t"),
        Row(None, text="t", group="g", slot="anchor"),
    ):
        with pytest.raises(ManifestError, match="no image"):
            Manifest.from_rows([wrong])
    with pytest.raises(ImageReadError):
        manifest.image(0)


def test_texts_need_no_masks(evaluation: Path, tmp_path: Path) -> None:
    queries = import_dataset("mmeb", evaluation, options=options(evaluation))
    assert faults(queries) == []
    queries.write(tmp_path / "mmeb.parquet")
    assert read(tmp_path / "mmeb.parquet").column("x_candidates") == queries.column("x_candidates")
    assert len(problems(queries, need_masks=True)["rows have no mask"]) == 24  # the 16 texts need none
