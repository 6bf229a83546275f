from __future__ import annotations

import json
import os
import string
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from idmetric.data.old_manifest.table import FORMATS, ROLES, SLOTS, Manifest, ManifestError, Row, merge, read
from idmetric.metric.images import ImageReadError


def three(root: Path | str = ".") -> Manifest:
    return Manifest.from_rows(
        [
            Row("mug", "a/1.jpg", dataset="toys", split="train", category="mug", seed=3, parameters={"steps": 8}),
            Row("mug", "a/2.jpg", dataset="toys", mask="a/2_mask.png", role="context-edit", parent="a/1.jpg"),
            Row("cup", "b/1.jpg", dataset="toys", role="part-edit", oracle=0.25, text="a cup, „blue“\nand round"),
        ],
        root,
    )


def wrong(tmp_path: Path, text: str, name: str = "m.csv") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


# Reading and writing

# no surrogates, and no control characters: neither CSV nor the paths of a file system take NUL
texts = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t,;\"'"), max_size=12
)
names = st.text(string.ascii_letters + "äß€ 0123456789,\"'", min_size=1, max_size=8).filter(lambda s: s.strip())
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | texts


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    count = draw(st.integers(0, 6))
    made = []
    for i in range(count):
        grouped = draw(st.booleans())
        made.append(
            Row(
                identity=draw(st.none() | names),
                path=f"{draw(names).replace('/', '_')}/{i}.png",
                id=f"row {i}",
                dataset=draw(st.none() | names),
                split=draw(st.sampled_from([None, "train", "test"])),
                mask=draw(st.none() | st.just(f"masks/{i}.png")),
                role=draw(st.sampled_from(ROLES)),
                oracle=draw(st.none() | st.floats(0, 1)),
                label=draw(st.none() | numbers),
                text=draw(st.none() | texts.filter(bool)),
                group=f"g{i}" if grouped else None,
                slot=draw(st.sampled_from(SLOTS)) if grouped else None,
                seed=draw(st.none() | st.integers(0, 2**63 - 1)),
                parameters=draw(st.none() | st.dictionaries(texts, plain | st.lists(plain, max_size=2), max_size=3)),
            )
        )
    return made


@pytest.mark.parametrize("ending", FORMATS)
@given(made=rows())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_format_gives_back_every_row(tmp_path: Path, ending: str, made: list[Row]) -> None:
    path = tmp_path / f"m{ending}"
    Manifest.from_rows(made, tmp_path).write(path)
    again = read(path)
    assert list(again) == made
    assert again.root == tmp_path
    again.write(path)
    assert list(read(path)) == made


def test_csv_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    text = '\ufeff"identity","path","text","label"\r\n007,ä/ß 1.jpg,"two\r\nlines, ""quoted""",0.5\r\n,2.jpg,,\r\n'
    (tmp_path / "m.csv").write_bytes(text.encode("utf-8"))
    first, second = read(tmp_path / "m.csv")
    assert (first.identity, first.path, first.label) == ("007", "ä/ß 1.jpg", 0.5)  # leading zeros stay
    assert first.text == 'two\r\nlines, "quoted"'
    assert first.id == "ä/ß 1.jpg"
    assert (second.identity, second.text, second.label, second.role) == (None, None, None, "real")


def test_empty_text_is_an_empty_value_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"identity": "a", "path": "1", "text": "", "split": "", "role": "", "id": ""}\n')
    pq.write_table(pa.table({"identity": ["a"], "path": ["1"], "text": [""], "role": [""]}), tmp_path / "m.parquet")
    (tmp_path / "m.csv").write_text("identity,path,text,role\na,1,,\n")
    assert list(read(tmp_path / "m.jsonl")) == list(read(tmp_path / "m.parquet")) == list(read(tmp_path / "m.csv"))
    assert read(tmp_path / "m.csv")[0] == Row("a", "1", id="1")


def test_whole_numbers_are_names_in_every_format_and_others_in_none(tmp_path: Path) -> None:
    for value, taken in ((1, "1"), (1.0, "1"), (1.5, None), (True, None)):
        (tmp_path / "m.jsonl").write_text(json.dumps({"identity": value, "path": "1"}) + "\n")
        pq.write_table(pa.table({"identity": [value], "path": ["1"]}), tmp_path / "m.parquet")
        for name in ("m.jsonl", "m.parquet"):
            if taken is None:
                with pytest.raises(ManifestError, match=rf"{name}: row 1, column 'identity': {value} is not text"):
                    read(tmp_path / name)
            else:
                assert read(tmp_path / name).column("identity") == [taken]


def test_what_a_format_cannot_hold_is_named(tmp_path: Path) -> None:
    plain = Manifest.from_rows([Row("a", "1")], tmp_path)
    for ending in ("csv", "jsonl"):
        with pytest.raises(ManifestError, match=rf"m\.{ending}: \.{ending} holds no bytes \(column 'x_b'\)"):
            plain.replace(x_b=[b"x"]).write(tmp_path / f"m.{ending}")
    with pytest.raises(ManifestError, match=r"\.csv holds no lists or objects \(column 'x_l'\); write \.parquet"):
        plain.replace(x_l=[["a", "b"]]).write(tmp_path / "m.csv")
    plain.replace(x_l=[["a", "b"]]).write(tmp_path / "m.jsonl")
    assert read(tmp_path / "m.jsonl").column("x_l") == [["a", "b"]]
    plain.replace(x_n=[float("nan")]).write(tmp_path / "m.jsonl")
    assert "NaN" not in (tmp_path / "m.jsonl").read_text()
    for value in (float("inf"), [b"x"]):
        with pytest.raises(ManifestError, match=r"m\.jsonl: row 1: a free column cannot be JSON"):
            plain.replace(x_n=[value]).write(tmp_path / "m.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


# What is refused

REFUSED = {
    'identity,path\na,1\n" ",2\n': ["row 2", "'identity'", "blank"],
    "path\n1.jpg\n": ["'identity' is missing"],
    "identity,path,path\na,1,2\n": ["'path' occurs twice"],
    "identity,path,color\na,1,red\n": ["unknown column 'color'", "x_"],
    "identity,path\na,1\nb,\n": ["row 2", "neither path nor image_bytes"],
    "identity,path\na,1\nb,https://x.org/1.jpg\n": ["row 2", "'path'", "not a file's path"],
    "identity,path,role\na,1,real\nb,2,fake\n": ["row 2", "'role'", "'fake'", "distractor"],
    "identity,path,group,slot\na,1,g,front\n": ["row 1", "'slot'", "'front'", "anchor"],
    "identity,path,group\na,1,g\n": ["row 1", "'slot'", "group and slot go together"],
    "identity,path,oracle\na,1,0.5\nb,2,1.5\n": ["row 2", "'oracle'", "1.5", "at most 1"],
    "identity,path,label\na,1,nan\n": ["row 1", "'label'", "nan"],
    "identity,path,seed\na,1,7\nb,2,1.5\n": ["row 2", "'seed'", "'1.5' is not a whole number"],
    'identity,path,parameters\na,1,"{""k"": NaN}"\n': ["row 1", "'parameters'", "JSON object"],
    "identity,path,parameters\na,1," + "[" * 100_000 + "\n": ["row 1", "'parameters'", "JSON object"],
    "identity,path,id\na,1,x\nb,2,x\n": ["row 2", "'id'", "'x'", "row 1"],
    "identity,path,mask_bytes\na,1,abc\n": ["row 1", "'mask_bytes'", "not bytes"],
    "identity,path\na,1,extra\n": ["3", "csv"],
    "": ["csv"],
}


@pytest.mark.parametrize("text", REFUSED)
def test_errors_name_file_row_and_column(tmp_path: Path, text: str) -> None:
    message = wrong(tmp_path, text)
    for part in REFUSED[text]:
        assert part in message


def test_files_that_are_no_tables_are_named(tmp_path: Path) -> None:
    assert "line 2 is not JSON" in wrong(tmp_path, '{"identity": "a", "path": "1"}\n{"identity"\n', "m.jsonl")
    assert "line 1 is not JSON: it is nested too deeply" in wrong(tmp_path, "[" * 100_000 + "\n", "m.jsonl")
    assert "line 1 is not an object" in wrong(tmp_path, "[1]\n", "m.jsonl")
    assert "'x_k'" in wrong(tmp_path, '{"identity":"a","path":"1","x_k":1}\n{"path":"2","x_k":"b"}\n', "m.jsonl")
    wrong(tmp_path, "identity", "m.parquet")
    three().write(tmp_path / "cut.parquet")
    whole = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ManifestError, match=r"cut\.parquet"):
        read(tmp_path / "cut.parquet")
    (tmp_path / "latin.csv").write_bytes("identity,path\nä,1\n".encode("latin-1"))
    with pytest.raises(ManifestError, match=r"latin\.csv.*row 2, column 1: it is not UTF-8 text"):
        read(tmp_path / "latin.csv")
    with pytest.raises(ManifestError, match="no such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(ManifestError, match="ends in"):
        read(tmp_path / "m.txt")


def test_rows_of_wrong_types_are_named() -> None:
    values: list[tuple[dict[str, Any], str]] = [
        ({"oracle": "x"}, r"'oracle': 'x' is not a number"), ({"mask_bytes": "text"}, "'mask_bytes'.*not bytes"),
        ({"parameters": {"f": object()}}, "'parameters'.*object"), ({"image_bytes": b"x"}, "'path'.*both given"),
        ({"mask": "m", "mask_bytes": b"x"}, "'mask'.*both given"),
        ({"parameters": {"k": float("nan")}}, "'parameters': not JSON serializable"),
    ]  # fmt: skip
    for columns, message in values:
        with pytest.raises(ManifestError, match=f"row 2, column {message}"):
            Manifest.from_rows([Row("a", "1"), Row("a", "2", **columns)])


def test_ids_name_rows_by_group_slot_and_image() -> None:
    made = Manifest.from_rows([
        Row("a", "1.jpg", group="g", slot="anchor"), Row("a", "1.jpg", group="g", slot="positive"), Row("a", "1.jpg"),
        Row("b", image_bytes=b"one"), Row("b", image_bytes=b"two"),
    ])  # fmt: skip
    ids = made.column("id")
    assert ids[:3] == ["g/anchor/1.jpg", "g/positive/1.jpg", "1.jpg"]
    assert len(set(ids)) == 5
    assert Manifest.from_rows(list(made)[::-1]).column("id") == ids[::-1]


# Choosing and changing


def test_filter_by_values_several_values_and_none() -> None:
    manifest = three()
    assert manifest.filter(role=("context-edit", "part-edit")).column("path") == ["a/2.jpg", "b/1.jpg"]
    assert manifest.filter(mask=None, identity="mug").column("path") == ["a/1.jpg"]
    assert manifest.filter(lambda row: row.oracle is not None and row.oracle < 0.5).column("identity") == ["cup"]
    with pytest.raises(KeyError, match="color"):
        manifest.filter(color="red")


def test_replace_takes_one_value_for_all_or_one_for_each() -> None:
    manifest = three()
    assert manifest.replace(split="val").column("split") == ["val"] * 3
    assert manifest.replace(split=None).column("split") == [None] * 3
    for values in (["a", "b", None], ("a", "b", None), np.array(["a", "b", None])):
        assert manifest.replace(split=values).column("split") == ["a", "b", None]
    assert manifest.replace(seed=range(3)).column("seed") == [0, 1, 2]
    assert manifest.replace(parameters={"k": 1})[2].parameters == {"k": 1}
    assert manifest.column("split") == ["train", None, None]  # the first one is as it was
    with pytest.raises(ValueError, match="2 values of split for 3 rows"):
        manifest.replace(split=["a", "b"])
    with pytest.raises(ManifestError, match="'role'"):
        manifest.replace(role="fake")
    with pytest.raises(ManifestError, match="unknown column"):
        manifest.replace(color="red")


# Paths


def save_image(path: Path, value: int = 200, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (6, 4), value if mode == "L" else (value, 0, 0)).save(path)
    return path


@pytest.mark.parametrize("ending", FORMATS)
def test_paths_follow_the_file_to_another_folder(tmp_path: Path, ending: str) -> None:
    image, mask = save_image(tmp_path / "data" / "a" / "1.png"), save_image(tmp_path / "data" / "a" / "1_mask.png")
    (tmp_path / "data" / f"m{ending}").write_text("")
    Manifest.from_rows([Row("a", "a/1.png", mask="a/1_mask.png")], tmp_path / "data").write(
        tmp_path / f"data/m{ending}"
    )
    moved = read(tmp_path / f"data/m{ending}")
    moved.write(tmp_path / "other" / "deep" / f"n{ending}")
    again = read(tmp_path / "other" / "deep" / f"n{ending}")
    assert again.column("path") == ["../../data/a/1.png"]
    assert again.column("id") == ["a/1.png"]  # names stay
    assert again.image(0).size == (6, 4)
    assert os.path.samefile(str(again.source(0)), image)
    assert os.path.samefile(str(again.source(0, "mask")), mask)
    (tmp_path / "data").rename(tmp_path / "renamed")  # with its images, the manifest still works
    assert read(tmp_path / f"renamed/m{ending}").image(0).size == (6, 4)


def test_images_and_masks_are_read(tmp_path: Path) -> None:
    image = save_image(tmp_path / "1.png")
    mask = save_image(tmp_path / "m.png", 255, "L")
    manifest = Manifest.from_rows(
        [Row("a", "1.png", mask="m.png"), Row("a", image_bytes=image.read_bytes(), mask_bytes=mask.read_bytes()),
         Row("a", "none.png")], tmp_path,
    )  # fmt: skip
    for row in (0, 1):
        assert manifest.image(row).getpixel((0, 0)) == (200, 0, 0)
        cover = manifest.mask(row, (2, 3))
        assert cover is not None
        assert tuple(cover.shape) == (2, 3)
        assert cover.min() == 1
    assert manifest.mask(2) is None
    assert manifest.sources()[1] == image.read_bytes()
    with pytest.raises(ImageReadError, match=r"none\.png"):
        manifest.image(2)
    with pytest.raises(KeyError, match="text"):
        manifest.source(0, "text")


# Merging


def test_merge_makes_paths_relative_to_the_first(tmp_path: Path) -> None:
    a = Manifest.from_rows([Row("x/1", "1.png", id="x")], tmp_path / "x")
    b = Manifest.from_rows([Row("y/1", "1.png", id="y", seed=4)], tmp_path / "y").replace(x_k="k")
    both = merge([a, b])
    assert both.column("path") == ["1.png", "../y/1.png"]
    assert both.root == tmp_path / "x"
    assert both.column("x_k") == [None, "k"]
    assert both.column("seed") == [None, 4]


def test_merge_refuses_what_two_manifests_both_use() -> None:
    a = Manifest.from_rows([Row("1", "a.png", group="g", slot="query")])
    for other, what in (
        (Row("1", "b.png"), "identity"), (Row("2", "b.png", group="g", slot="query"), "group"),
        (Row("2", "b.png", id="g/query/a.png"), "id"),
    ):  # fmt: skip
        with pytest.raises(ManifestError, match=f"1 {what} values are in more than one.*prefix"):
            merge([a, Manifest.from_rows([other])])
    assert len(merge([a, Manifest.from_rows([Row("1", "b.png", group="g", slot="candidate")])], shared=True)) == 2
    with pytest.raises(ManifestError, match="id values"):
        merge([a, a], shared=True)
    with pytest.raises(ManifestError, match="different kinds"):
        merge([a.replace(x_k=1), Manifest.from_rows([Row("3", "c.png")]).replace(x_k="one")])
