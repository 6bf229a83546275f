"""Every reader of tables takes the forms that spreadsheets write, and refuses others by row and column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import read
from idmetric.evaluate.protocols.generator.outputs import read_table as read_outputs
from idmetric.matching.casts import cast_of
from idmetric.matching.region_files import read_regions

Rows = list[list[str]]


@pytest.fixture(autouse=True)
def photos(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name)


# Readers: a table, and what it says

READERS: dict[str, tuple[Rows, Callable[[Path], Any], Any]] = {
    "regions": (
        [["path", "x", "y", "w", "h"], ["a.png", "1.5", "2", "3", "4"]],
        lambda path: [(name, region.box) for name, [region] in read_regions(str(path), []).items()],
        [("a.png", (1.5, 2.0, 4.5, 6.0))],
    ),
    "cast": (
        [["image", "subjects"], ["a.png", "cat"], ["a.png", "duck"]],
        lambda path: cast_of(path, ["a.png"], ["cat", "duck"]),
        {"a.png": ["cat", "duck"]},
    ),
    "manifest": (
        [["identity", "path", "oracle"], ["cat", "a.png", "0.25"], ["dog", "b.png", ""]],
        lambda path: read(path)[["identity", "id", "oracle"]].fillna(-1).values.tolist(),
        [["cat", "a.png", 0.25], ["dog", "b.png", -1]],
    ),
    "import": (
        [["identity", "path", "oracle"], ["cat", "a.png", "0.25"]],
        lambda path: [
            (row.identity, Path(row.path).name, row.oracle) for row in import_dataset("table", path).itertuples()
        ],
        [("table/cat", "a.png", 0.25)],
    ),
    "outputs": (
        [["path", "method", "subject"], ["a.png", "one", "cat"]],
        lambda path: [(picture.path.name, picture.fields) for picture in read_outputs(path)],
        [("a.png", {"method": "one", "subject": "cat"})],
    ),
}


def joined(rows: Rows, separator: str = ",") -> str:
    return "".join(separator.join(row) + "\n" for row in rows)


def decimal_commas(rows: Rows) -> Rows:
    return [rows[0], *([cell if "png" in cell else cell.replace(".", ",") for cell in row] for row in rows[1:])]


def capitals(rows: Rows) -> Rows:
    return [[f" {name.upper().replace('_', ' ')} " for name in rows[0]], *rows[1:]]


def empty_rows(rows: Rows) -> Rows:
    empty = [""] * len(rows[0])
    return [rows[0], empty, *rows[1:], empty, empty]


FORMS: dict[str, Callable[[Rows], bytes]] = {
    "commas": lambda rows: joined(rows).encode(),
    "semicolons": lambda rows: joined(rows, ";").encode(),
    "tabs": lambda rows: joined(rows, "\t").encode(),
    "BOM": lambda rows: joined(rows).encode("utf-8-sig"),
    "UTF-16": lambda rows: joined(rows, "\t").encode("utf-16"),
    "UTF-16 without a mark": lambda rows: joined(rows, "\t").encode("utf-16-le"),
    "capitals": lambda rows: joined(capitals(rows)).encode(),
    "rows of commas": lambda rows: joined(empty_rows(rows)).encode(),
    "quotes": lambda rows: joined([[f' "{cell}"' for cell in row] for row in rows]).encode(),
    "spaces": lambda rows: joined([[f" {cell}" for cell in row] for row in rows]).encode(),
    "decimal commas": lambda rows: joined(decimal_commas(rows), ";").encode(),
    "line breaks of Windows": lambda rows: joined(rows).replace("\n", "\r\n").encode(),
}


EXACT = ("import", "outputs")  # readers whose columns have exactly the names in small letters


@pytest.mark.parametrize(
    ("reader", "form"), [pair for pair in product(READERS, FORMS) if pair[1] != "capitals" or pair[0] not in EXACT]
)
def test_every_reader_takes_every_form(tmp_path: Path, reader: str, form: str) -> None:
    rows, read_rows, expected = READERS[reader]
    path = tmp_path / "table.CSV"
    path.write_bytes(FORMS[form](rows))
    if reader == "manifest" and form == "rows of commas":
        with pytest.raises(ValueError, match="row 2 is blank"):
            read_rows(path)
        return
    assert read_rows(path) == expected


def faults() -> Iterator[tuple[str, bytes, str]]:
    for reader, (rows, _, _) in READERS.items():
        first, second = rows[0], rows[1]
        yield reader, joined([first, ["\xe9", *second[1:]]]).encode("latin-1"), r"row 2: it is not UTF-8"
        yield reader, joined([first, [second[0], '"open', *second[2:]]]).encode(), r"row 2: "
        yield reader, joined([first, [*second, "more"]]).encode(), "cells for"
        yield reader, joined([[*first, first[0]], [*second, "x"]]).encode(), r"occurs twice|mean the same"
        yield reader, b"PK\x03\x04workbook", "save the sheet as CSV"


@pytest.mark.parametrize(("reader", "data", "message"), list(faults()))
def test_every_reader_names_the_cell_that_it_cannot_read(
    tmp_path: Path, reader: str, data: bytes, message: str
) -> None:
    _, read_rows, _ = READERS[reader]
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_rows(path)


@pytest.mark.parametrize("reader", ["regions", "manifest"])
def test_a_comma_that_may_separate_thousands_is_refused(tmp_path: Path, reader: str) -> None:
    rows, read_rows, _ = READERS[reader]
    cells = [cell.replace("0.25", "1,234").replace("1.5", "1,234") for cell in rows[1]]
    path = tmp_path / "table.csv"
    path.write_text(joined([rows[0], cells], ";"))
    with pytest.raises(ValueError, match=r"1,234 may be 1234 or 1\.234"):
        read_rows(path)


def test_lists_of_sop_are_read_and_those_of_cub_named(tmp_path: Path) -> None:
    (tmp_path / "Ebay_train.txt").write_text("image_id class_id super_class_id path\n1 1 7 a.png\n2 2 7 b.png\n")
    manifest = import_dataset("table", tmp_path / "Ebay_train.txt", columns={"identity": "class_id"})
    assert manifest["identity"].tolist() == ["Ebay_train/1", "Ebay_train/2"]
    (tmp_path / "images.txt").write_text("1 001.Albatross/a.png\n2 001.Albatross/b.png\n")
    with pytest.raises(ValueError, match=r"name another by --map \w+=NAME"):
        import_dataset("table", tmp_path / "images.txt")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"identity": "a", "path": "a.png", "k": 1}', '{"identity": "b", "path": "b.png", "k": "x"}'],
         r"row 2, column 'k': it is text, but a number in rows above"),
        (['{"identity": "a", "path": "a.png", "path": "b.png"}'], "'path' occurs twice"),
    ],
)  # fmt: skip
def test_json_lines_are_refused_by_row_and_column(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        import_dataset("table", path)
