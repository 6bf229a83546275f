from __future__ import annotations

import json
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from idmetric.data.manifest import (
    COLUMNS,
    FORMATS,
    ROLES,
    SLOTS,
    ManifestError,
    checked,
    merge,
    read,
    take,
    text_of,
    with_columns,
    write,
)
from idmetric.metric.files import MissingExtraError

Records = list[dict[str, Any]]


def made(*rows: dict[str, Any], root: Path | str = ".") -> pd.DataFrame:
    return checked(rows, root)


def records(table: pd.DataFrame) -> Records:
    """The rows as dicts, without missing values."""
    return [{name: value for name, value in row.items() if not pd.isna(value)} for row in table.to_dict("records")]


def write_text(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# Files

# no surrogates, and no control characters: neither CSV nor the paths of a file system take NUL
texts = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t,;\"'"), max_size=12
)
names = st.text(string.ascii_letters + "äß€ 0123456789,\"'", min_size=1, max_size=8).filter(str.strip)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | texts


@st.composite
def rows(draw: st.DrawFn) -> Records:
    drawn = []
    for number in range(draw(st.integers(0, 6))):
        grouped = draw(st.booleans())
        row = {
            "identity": draw(st.none() | names | st.sampled_from(["nan", "None", "NA", "null", "007"])),
            "path": f"{draw(names)}/{number}.png",
            "id": f"row {number}",
            "mask": draw(st.none() | st.just(f"masks/{number}.png")),
            "role": draw(st.sampled_from(ROLES)),
            "oracle": draw(st.none() | st.floats(0, 1)),
            "label": draw(st.none() | numbers),
            "text": draw(st.none() | texts.filter(bool)),
            "group": f"g{number}" if grouped else None,
            "slot": draw(st.sampled_from(SLOTS)) if grouped else None,
            "seed": draw(st.none() | st.integers(0, 2**63 - 1)),
            "parameters": draw(st.none() | st.dictionaries(texts, plain | st.lists(plain, max_size=2), max_size=3)),
            "shop": draw(st.none() | names),
        }
        drawn.append(row)
    return drawn


@pytest.mark.parametrize("ending", FORMATS)
@given(drawn=rows())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_format_gives_back_every_row(tmp_path: Path, ending: str, drawn: Records) -> None:
    table = made(*drawn, root=tmp_path)
    write(table, tmp_path / f"m{ending}")
    again = read(tmp_path / f"m{ending}")
    assert list(again)[: len(COLUMNS)] == list(COLUMNS)
    assert records(again) == records(table)
    for row, values in zip(drawn, records(again), strict=True):
        given_values = {name: value for name, value in row.items() if value is not None}
        given_values["path"] = str(tmp_path / row["path"])
        if "mask" in given_values:
            given_values["mask"] = str(tmp_path / row["mask"])
        if "parameters" in values:
            values["parameters"] = json.loads(values["parameters"])
        assert values == given_values


def test_csv_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    header = '\ufeff"Identity";"path";"text";"label"\r\n'
    text = f'{header}007;ä/ß 1.jpg;"two\r\nlines, ""quoted""";0,5\r\n;2.jpg;;\r\n;;;\r\n\r\n'
    first, second = records(read(write_text(tmp_path / "m.csv", text)))
    assert first == {
        "id": "ä/ß 1.jpg", "identity": "007", "path": str(tmp_path / "ä/ß 1.jpg"), "role": "real",
        "text": 'two\r\nlines, "quoted"', "label": 0.5,
    }  # fmt: skip
    assert second == {"id": "2.jpg", "path": str(tmp_path / "2.jpg"), "role": "real"}


def test_paths_of_windows_are_read_unless_a_file_is_called_so(tmp_path: Path) -> None:
    (tmp_path / r"a\1.jpg").touch()
    table = read(write_text(tmp_path / "m.csv", "path,mask\na\\1.jpg,\na\\2.jpg,m\\2.png\n"))
    assert table["path"].tolist() == [str(tmp_path / r"a\1.jpg"), str(tmp_path / "a/2.jpg")]
    assert table["mask"].tolist() == [None, str(tmp_path / "m/2.png")]


@pytest.mark.parametrize("ending", FORMATS)
def test_missing_values_are_none_or_nan_and_types_are_the_same_from_every_format(tmp_path: Path, ending: str) -> None:
    big = 9007199254740993  # no float holds it
    write(made({"path": "1", "seed": big, "shop": "", "text": ""}, {"path": "2", "shop": "x"}), tmp_path / f"m{ending}")
    table = read(tmp_path / f"m{ending}")
    assert table["seed"].tolist() == [big, None]
    assert table["shop"].tolist() == ["" if ending != ".csv" else None, "x"]
    assert table["identity"].tolist() == table["text"].tolist() == [None, None]
    assert np.isnan(table["oracle"]).all()
    dtypes = {name: str(table[name].dtype) for name in COLUMNS}
    assert dtypes == {name: "float64" if name in ("oracle", "label") else "object" for name in COLUMNS}


@pytest.mark.parametrize("ending", FORMATS)
def test_paths_follow_the_file_to_another_folder(tmp_path: Path, ending: str) -> None:
    photo = tmp_path / "data" / "a" / "1.png"
    photo.parent.mkdir(parents=True)
    Image.new("RGB", (6, 4)).save(photo)
    write(made({"path": "a/1.png", "mask": "m/1.png"}, root=tmp_path / "data"), tmp_path / "data" / f"m{ending}")
    write(read(tmp_path / "data" / f"m{ending}"), tmp_path / "other" / "deep" / f"n{ending}")
    again = read(tmp_path / "other" / "deep" / f"n{ending}")
    assert again[["id", "path", "mask"]].values.tolist() == [["a/1.png", str(photo), str(tmp_path / "data/m/1.png")]]
    if ending == ".csv":
        assert '"../../data/a/1.png"' in (tmp_path / "other/deep/n.csv").read_text()
    (tmp_path / "data").rename(tmp_path / "renamed")  # with its images, the manifest still works
    assert read(tmp_path / "renamed" / f"m{ending}")["path"].tolist() == [str(tmp_path / "renamed/a/1.png")]


def test_a_folder_behind_a_link_keeps_its_paths(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    write(made({"path": "../1.png"}, root=tmp_path / "link"), tmp_path / "link" / "m.csv")
    assert read(tmp_path / "link" / "m.csv")["path"].tolist() == [str(tmp_path / "real" / "1.png")]


def test_a_named_index_of_pandas_is_a_column_and_one_without_a_name_is_none(tmp_path: Path) -> None:
    table = pd.DataFrame({"identity": ["rex", "tom"], "path": ["1.png", "2.png"], "own": [3, 4]})
    expected = checked(table, tmp_path)
    for indexed in (table.set_index("identity"), table.set_index(["path", "own"]), table.set_index([[7, 8]])):
        indexed.to_parquet(tmp_path / "m.parquet")
        found = read(tmp_path / "m.parquet")
        pd.testing.assert_frame_equal(found, expected)


def test_text_formats_need_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    table = made({"path": "1", "identity": "a"})
    for ending in (".csv", ".jsonl"):
        write(table, tmp_path / f"m{ending}")
        assert read(tmp_path / f"m{ending}")["identity"].tolist() == ["a"]
    with pytest.raises(MissingExtraError, match=r"\[eval\]"):
        write(table, tmp_path / "m.parquet")


def test_what_a_format_cannot_hold_is_named(tmp_path: Path) -> None:
    table = made({"path": "1"})
    (tmp_path / "m.csv").write_text("as it was")
    for ending, value in (("csv", b"x"), ("jsonl", b"x"), ("csv", ["a"]), ("csv", {"k": 1}), ("jsonl", float("inf"))):
        with pytest.raises(ManifestError, match=rf"m\.{ending}.*(own|row 1)"):
            write(table.assign(own=pd.Series([value], dtype=object)), tmp_path / f"m.{ending}")
    write(table.assign(own=[["a", "b"]]), tmp_path / "m.jsonl")
    assert read(tmp_path / "m.jsonl")["own"].tolist() == [["a", "b"]]
    assert (tmp_path / "m.csv").read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.csv", "m.jsonl"]


# What is refused: each by the file, and what names its row and column

REFUSED = {
    'identity,path\na,1\n" ",2\n': ("row 2", "'identity'"),
    "identity,pth\na,1.jpg\n": ("'path'", "'pth'"),
    "identity,path,path\na,1,2\n": ("'path' occurs twice",),
    "identity,path\na,1\nb,\n": ("row 2", "'path'"),
    "identity,path\na,1\nb,https://x.org/1.jpg\n": ("row 2", "'path'"),
    "path,mask\n1,data:image/png\n": ("row 1", "'mask'"),
    "identity,path,role\na,1,real\nb,2,fake\n": ("row 2", "'role'", "'fake'", "distractor"),
    "identity,path,group,slot\na,1,g,front\n": ("row 1", "'slot'", "'front'", "anchor"),
    "identity,path,group\na,1,g\n": ("row 1", "'slot'"),
    "identity,path,oracle\na,1,0.5\nb,2,1.5\n": ("row 2", "'oracle'", "1.5"),
    "identity,path,oracle\na,1,x\n": ("row 1", "'oracle'", "'x'"),
    "identity,path,label\na,1,nan\n": ("row 1", "'label'", "nan"),
    "identity,path,seed\na,1,7\nb,2,1.5\n": ("row 2", "'seed'", "'1.5'"),
    "identity,path,seed\na,1,9223372036854775808\n": ("row 1", "'seed'"),
    'path,parameters\n1,"{""k"": NaN}"\n': ("row 1", "'parameters'"),
    "path,parameters\n1,[1]\n": ("row 1", "'parameters'"),
    "path,parameters\n1," + "[" * 100_000 + "\n": ("row 1", "'parameters'"),
    "identity,path,id\na,1,x\nb,2,x\n": ("row 2", "'id'", "'x'", "row 1"),
    "path,mask_bytes\n1,abc\n": ("'mask_bytes'", "idmetric data import table"),
    "identity,path\na,1,extra\n": ("row 2",),
    "identity,path,text\na,1,b\nx.jpg,dog\n": ("row 3",),
    "identity,path\na,1\n,\nb,2\n": ("row 3",),
    "path,x_1,y_1,x_2,y_2\n1,0,0,5,5\n": ("x_1, x_2, y_1, y_2", "wildlife"),
    "path,xmin,ymin,xmax,ymax\n1,0,0,5,5\n": ("xmin",),
    "path,left,top,width,height\n1,0,0,5,5\n": ("left",),
    "path,BBox\n1,0 0 5 5\n": ("BBox",),
    "path,bounding_box\n1,0 0 5 5\n": ("bounding_box",),
    "path,bboxes\n1,0 0 5 5\n": ("bboxes",),
    "path,bbox_x,bbox_y,bbox_w,bbox_h\n1,0,0,5,5\n": ("bbox_h, bbox_w, bbox_x, bbox_y",),
    "path,bbox_x1,bbox_y1,bbox_x2,bbox_y2\n1,0,0,5,5\n": ("bbox_x1",),
    "path,face_xmin,face_ymin,face_xmax,face_ymax\n1,0,0,5,5\n": ("face_xmin",),
    "path,left,top,right,bottom\n1,0,0,5,5\n": ("right",),
    "path,x_center,y_center,width,height\n1,0,0,5,5\n": ("x_center",),
    "path,xtl,ytl,xbr,ybr\n1,0,0,5,5\n": ("xbr",),
    "": ("csv",),
}


@pytest.mark.parametrize("text", REFUSED)
def test_errors_name_file_row_and_column(tmp_path: Path, text: str) -> None:
    path = write_text(tmp_path / "m.csv", text)
    with pytest.raises(ManifestError) as caught:
        read(path)
    for part in (str(path), *REFUSED[text]):
        assert part in str(caught.value)


def test_files_that_are_no_tables_are_named(tmp_path: Path) -> None:
    contents: dict[str, bytes] = {
        "cut.jsonl": b'{"identity": "a", "path": "1"}\n{"identity"\n',
        "deep.jsonl": b"[" * 100_000 + b"\n",
        "list.jsonl": b"[1]\n",
        "latin.csv": "identity,path\nä,1\n".encode("latin-1"),
        "text.parquet": b"identity",
        "m.txt": b"path\n1\n",
    }
    write(made({"path": "1"}), tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    contents["half.parquet"] = whole[: len(whole) // 2]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in (*contents, "none.csv"):
        with pytest.raises(ManifestError, match=name):
            read(tmp_path / name)


def test_text_of_parquet_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    pq.write_table(pa.table({"identity": text, "path": ["1"]}), tmp_path / "m.parquet")
    with pytest.raises(ManifestError, match=r"m\.parquet"):
        read(tmp_path / "m.parquet")


@pytest.mark.parametrize(
    ("value", "text"),
    [("007", "007"), (7, "7"), (7.0, "7"), (np.int32(7), "7"), (np.float32(7), "7"), (Path("a"), "a"),
     (True, None), (1.5, None), (2.0**53, None), (b"x", None), (["a"], None), ("\udc80", None)],
)  # fmt: skip
def test_whole_numbers_are_names_and_what_is_none_is_refused(value: Any, text: str | None) -> None:
    rows = pd.DataFrame({"path": ["1", "2"], "identity": pd.Series(["a", value], dtype=object)})
    if text is None:
        with pytest.raises(ManifestError, match="row 2, column 'identity'"):
            checked(rows)
        with pytest.raises((TypeError, ValueError)):
            text_of(value)
    else:
        assert checked(rows)["identity"].tolist() == ["a", text]


@pytest.mark.parametrize(
    ("columns", "column"),
    [({"oracle": "x"}, "oracle"), ({"label": float("inf")}, "label"), ({"seed": -1}, "seed"), ({"seed": True}, "seed"),
     ({"parameters": {"f": object()}}, "parameters"), ({"parameters": {"k": float("nan")}}, "parameters"),
     ({"path": " "}, "path"), ({"path": "a\0b"}, "path"), ({"path": b"x"}, "path"), ({"own": 1}, "own")],
)  # fmt: skip
def test_values_of_wrong_types_are_named(columns: dict[str, Any], column: str) -> None:
    with pytest.raises(ManifestError, match=f"column '{column}'"):
        made({"path": "1", "own": "text"}, {"path": "2", **columns})


def test_columns_without_text_as_names_are_refused() -> None:
    with pytest.raises(ManifestError, match="column is called 7"):
        checked(pd.DataFrame({"path": ["1"], 7: [1]}))


# What is filled in


def test_a_table_of_paths_is_a_manifest_and_its_columns_come_along(tmp_path: Path) -> None:
    own = {
        "source": ["web", None],
        "width": [3, 4],
        "taken": pd.to_datetime(["2020-01-01", "2021-01-01"]),
        "x": [0.5, None],
    }
    table = checked(pd.DataFrame({"path": ["a.jpg", "b.jpg"], **own}, index=[7, 3]), tmp_path)
    assert list(table) == [*COLUMNS, *own]
    assert table.index.equals(pd.RangeIndex(2))
    assert table["path"].tolist() == [str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")]
    assert table["identity"].tolist() == [None, None]
    assert table["source"].tolist() == ["web", None]
    assert [str(table[name].dtype)[:8] for name in ("width", "taken", "x")] == ["int64", "datetime", "float64"]
    write(table, tmp_path / "m.parquet")
    assert read(tmp_path / "m.parquet")["taken"].tolist() == table["taken"].tolist()


def test_an_empty_manifest_is_written_and_read(tmp_path: Path) -> None:
    for ending in FORMATS:
        write(checked(pd.DataFrame()), tmp_path / f"m{ending}")
        assert list(read(tmp_path / f"m{ending}")) == list(COLUMNS)


def test_ids_name_rows_by_group_slot_and_path_as_given(tmp_path: Path) -> None:
    rows: Records = [
        {"path": "a/../1.jpg", "group": "g", "slot": "anchor"}, {"path": "1.jpg", "group": "g", "slot": "positive"},
        {"path": "1.jpg"},
        {"text": "one", "group": "g", "slot": "query"}, {"text": "two", "group": "g", "slot": "query"},
    ]  # fmt: skip
    ids = made(*rows, root=tmp_path)["id"].tolist()
    assert ids[:3] == ["g/anchor/a/../1.jpg", "g/positive/1.jpg", "1.jpg"]
    assert len(set(ids)) == 5
    assert made(*rows[::-1])["id"].tolist() == ids[::-1]


def test_parameters_are_json_and_splits_have_their_usual_names() -> None:
    table = made(
        {"path": "1", "parameters": {"b": np.float32(0.5), "a": Path("x")}, "split": "Training"}, {"path": "2"}
    )
    assert table["parameters"].tolist() == ['{"a": "x", "b": 0.5}', None]
    assert table["split"].tolist() == ["train", None]


def test_checked_leaves_a_checked_table_as_it_is(tmp_path: Path) -> None:
    table = made({"path": "1", "seed": 3, "parameters": {"k": 1}, "own": "x"}, {"path": "2"}, root=tmp_path)
    pd.testing.assert_frame_equal(checked(table), table)


def test_columns_are_replaced_without_a_change_of_types() -> None:
    table = made({"path": "1", "label": 1.0}, {"path": "2"})
    for values in (["a", None], ("a", None), np.array(["a", None]), pd.Series(["a", None], index=[3, 4])):
        replaced = with_columns(table, split=values, label=None, role="distractor", own=values)
        assert replaced["split"].tolist() == replaced["own"].tolist() == ["a", None]
        assert replaced["role"].tolist() == ["distractor"] * 2
        assert replaced.drop(columns="own").dtypes.equals(table.dtypes)
    assert table["split"].tolist() == [None, None]
    assert with_columns(table[::-1], split=["b", "a"])["split"].tolist() == ["b", "a"]  # by place, not by number
    with pytest.raises(ValueError, match="1 values of split"):
        with_columns(table, split=["a"])
    with pytest.raises(ManifestError, match="'role'"):
        write(with_columns(table, role="fake"), "m.csv")


# Several manifests, and parts of one


def test_merge_keeps_rows_and_whole_numbers(tmp_path: Path) -> None:
    big = 2**53 + 1
    first = made({"identity": "x/1", "path": "1.png", "id": "x", "own": big}, root=tmp_path / "x")
    second = made(
        {"identity": "y/1", "path": "1.png", "id": "y", "seed": 4, "shop": "s", "x": 0.5}, root=tmp_path / "y"
    )
    both = merge([first, second])
    assert both["path"].tolist() == [str(tmp_path / "x/1.png"), str(tmp_path / "y/1.png")]
    assert both["own"].tolist() == [big, None]
    assert both["shop"].tolist() == [None, "s"]
    assert both["x"].dtype == float
    assert both["seed"].tolist() == [None, 4]
    assert both.index.equals(pd.RangeIndex(2))


@pytest.mark.parametrize(
    ("row", "name"),
    [({"identity": "1", "path": "b"}, "identity"), ({"path": "b", "group": "g", "slot": "query"}, "group"),
     ({"path": "b", "id": "g/query/a"}, "id")],
)  # fmt: skip
def test_merge_refuses_what_two_manifests_both_use(row: dict[str, Any], name: str) -> None:
    first = made({"identity": "1", "path": "a", "group": "g", "slot": "query"})
    with pytest.raises(ManifestError, match=f"1 {name} values"):
        merge([first, made(row)])
    if name == "id":
        with pytest.raises(ManifestError, match="id values"):
            merge([first, made(row)], shared=True)
    else:
        assert len(merge([first, made(row)], shared=True)) == 2


def test_merge_refuses_own_columns_of_two_types() -> None:
    with pytest.raises(ManifestError, match="'own'"):
        merge([made({"path": "1", "own": 1}), made({"path": "2", "own": "one"})])


@pytest.mark.parametrize(
    "pick", [lambda t: [2, 0, 2], lambda t: t["role"] == "real", lambda t: np.array([], int), lambda t: []]
)
def test_take_numbers_rows_anew(pick: Callable[[pd.DataFrame], Any]) -> None:
    table = made(*({"path": str(n), "role": "real" if n % 2 else "distractor", "width": n} for n in range(4)))
    taken = take(table, pick(table))
    expected = table[pick(table)] if isinstance(pick(table), pd.Series) else table.iloc[list(pick(table))]
    assert taken["path"].tolist() == expected["path"].tolist()
    assert taken.index.equals(pd.RangeIndex(len(expected)))
    assert taken.dtypes.equals(table.dtypes)


def test_a_column_that_is_the_index_is_refused() -> None:
    table = pd.DataFrame({"identity": ["a", "b"], "path": ["a.png", "b.png"]})
    with pytest.raises(ManifestError, match="'identity'"):
        checked(table.set_index("identity"))
