"""One small data set as people's tools write it: as a folder, CSV, Parquet and JSON lines, each with its oddities.

All give the numbers of the clean manifest, which scikit-learn computes again.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas import DataFrame
from PIL import Image
from sklearn.metrics import average_precision_score

from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import checked, read, take
from idmetric.evaluate.protocols import folder, openset
from idmetric.evaluate.protocols import retrieval_ilgen_table2 as retrieval
from idmetric.evaluate.protocols.common.result import Value
from idmetric.evaluate.protocols.openset import OpenSetOptions
from tests.evaluate.protocols.parts import PLAIN, Drawn
from tests.table_parts import a_row, a_table

MODEL = Drawn(spread=1.6)
LITTER = ("@eaDir", "#recycle", "$RECYCLE.BIN", ".ipynb_checkpoints", "__MACOSX")


def photos(root: Path) -> list[dict[str, Any]]:
    """Four animals of three photos, one of them a query, and in tables two photos of unknown animals."""
    rows = []
    for animal in (7, 8, 9, 10, None, None):
        for number in range(3 if animal else 1):
            seed = animal or 40 + len(rows)
            path = root / f"{seed}-{number}.png"
            Image.new("RGB", (4, 4), (seed, number, 0)).save(path)
            split = "gallery" if number or not animal else "query"
            rows.append({"identity": animal, "path": path.name, "split": split})
    return rows


def clean(root: Path) -> DataFrame:
    rows = []
    for row in photos(root):
        name = None if row["identity"] is None else str(row["identity"])
        rows.append(a_row(name, row["path"], split=row["split"], dataset="zoo"))
    return a_table(rows, root)


def numbers(manifest: DataFrame) -> dict[str, Any]:
    """All values of three protocols, and how many queries or identities they count."""
    results = [
        *folder.run(manifest, {"m": MODEL}, PLAIN),
        *retrieval.run(manifest, {"m": MODEL}, PLAIN),
        *openset.run(manifest, {"m": MODEL}, PLAIN, OpenSetOptions(threshold=(0.5,))),
    ]
    flat: dict[str, Any] = {}
    for protocol, result in enumerate(results):
        for row in result.rows:
            for name, value in row.items():
                if isinstance(value, Value):
                    key = f"{protocol} {row.get('threshold')} {name}"
                    flat[key] = round(value.value, 9)
                    flat[f"{key}, n"] = value.count
    return flat


def test_the_clean_numbers_are_those_of_scikit_learn(tmp_path: Path) -> None:
    manifest = clean(tmp_path)
    vectors = MODEL.of(manifest)
    names = manifest["identity"].tolist()
    known = [row for row, name in enumerate(names) if name is not None]
    precisions = []
    for query in known:
        others = [row for row in known if row != query]
        is_same = [names[row] == names[query] for row in others]
        precisions.append(average_precision_score(is_same, vectors[others] @ vectors[query]))
    [result] = folder.run(manifest, {"m": MODEL}, PLAIN)
    assert result.rows[0]["mAP"].value == pytest.approx(np.mean(precisions), abs=1e-6)  # type: ignore[union-attr]


def as_is(rows: list[dict[str, Any]]) -> None:
    """Whole numbers, and nothing for unknown animals."""


def capitals(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["split"] = row["split"].upper()


def other_words(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["split"] = {"query": " Probe", "gallery": "Database"}[row["split"]]


def floats(rows: list[dict[str, Any]]) -> None:
    """A column of pandas in which a number is missing."""
    for row in rows:
        row["identity"] = math.nan if row["identity"] is None else float(row["identity"])


def texts(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["identity"] = row["identity"] and str(row["identity"])


ODDITIES = (as_is, capitals, other_words, floats, texts)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:  # as pandas writes NaN
            is_missing = isinstance(row["identity"], float) and math.isnan(row["identity"])
            writer.writerow({**row, "identity": None if is_missing else row["identity"]})


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    lines = []
    for row in rows:
        is_missing = isinstance(row["identity"], float) and math.isnan(row["identity"])
        lines.append(json.dumps({**row, "identity": None if is_missing else row["identity"]}))
    path.write_text("\n".join(lines))


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pq.write_table(pa.table(columns), path)


WRITERS = {"csv": write_csv, "jsonl": write_lines, "parquet": write_parquet}


@pytest.mark.parametrize("oddity", ODDITIES, ids=lambda oddity: oddity.__name__)
@pytest.mark.parametrize("ending", WRITERS)
def test_tables_give_the_clean_numbers(tmp_path: Path, ending: str, oddity: Any) -> None:
    expected = numbers(clean(tmp_path))
    rows = photos(tmp_path)
    oddity(rows)
    path = tmp_path / f"zoo.{ending}"
    WRITERS[ending](path, rows)
    assert numbers(import_dataset("table", path, name="zoo")) == expected
    assert numbers(checked(read(path).assign(dataset="zoo"))) == expected


@pytest.mark.parametrize("words", [("query", "gallery"), ("Query", "Gallery"), ("QUERY", "DATABASE")])
@pytest.mark.parametrize("layout", ["{split}/{animal}/{name}", "{animal}/{split}/{name}"])
@pytest.mark.parametrize("littered", [False, True])
def test_folders_give_the_clean_numbers(tmp_path: Path, words: tuple[str, str], layout: str, littered: bool) -> None:
    manifest = clean(tmp_path)
    named = take(manifest, manifest["identity"].notna())
    root = tmp_path / "zoo"
    for row in named.itertuples():
        word = words[row.split == "gallery"]
        file = root / layout.format(split=word, animal=row.identity, name=Path(row.path).name)
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(row.path, file)
    if littered:
        for path in [root, *root.rglob("*")]:
            if path.is_dir() and path.name not in LITTER:
                for name in LITTER:
                    (path / name).mkdir()
                    shutil.copy(tmp_path / "7-0.png", path / name / "7-0.png")
                for name in ("._7-0.png", ".DS_Store", "Thumbs.db"):
                    (path / name).write_bytes(b"\0\5\26\7")
    assert numbers(import_dataset("folder", root)) == numbers(named)
