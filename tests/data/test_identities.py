"""Identities as tables of other people write them: one rule for every importer and for manifests."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idmetric.data.importers.run import import_dataset
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.schema import text_of
from idmetric.data.old_manifest.table import Manifest, Row, read
from tests.import_parts import put_all

CAFE = unicodedata.normalize("NFC", "café")


@pytest.mark.parametrize(
    ("value", "text"),
    [("rex", "rex"), (7, "7"), (7.0, "7"), (np.int64(7), "7"), (np.float64(7), "7"), (math.nan, None), (None, None),
     (np.float32(math.nan).item(), None), ("", ""), ("nan", "nan"), (-1, "-1")],
)  # fmt: skip
def test_the_text_of_a_name(value: Any, text: str | None) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize("value", [[1], (1, 2), b"rex", True, np.True_, 7.5, math.inf, {"a": 1}])
def test_what_is_no_name(value: Any) -> None:
    with pytest.raises(TypeError):
        text_of(value)


def written(path: Path, identities: list[Any], name: str = "identity", image: str = "path") -> Path:
    put_all(path.parent, *(f"{number}.png" for number in range(len(identities))))
    pq.write_table(pa.table({name: identities, image: [f"{k}.png" for k in range(len(identities))]}), path)
    return path


def test_nan_in_a_column_of_numbers_is_missing_and_whole_numbers_are_text(tmp_path: Path) -> None:
    """Manifests, `table`, `mveb` and `pods` alike; one identity "nan" would be a pair of strangers."""
    numbers = [7.0, 7.0, math.nan, math.nan, 8.0]
    assert read(written(tmp_path / "m.parquet", numbers)).column("identity") == ["7", "7", None, None, "8"]
    table = import_dataset("table", written(tmp_path / "t.parquet", numbers))
    assert table.column("identity") == ["t/7", "t/7", None, None, "t/8"]
    mveb = import_dataset("mveb", written(tmp_path / "v.parquet", numbers, "class_id", "image"), on_error="skip")
    assert mveb.column("identity") == ["mveb/v/7", "mveb/v/7", "mveb/v/8"]
    pods = import_dataset("pods", written(tmp_path / "p.parquet", numbers, "label", "image"), on_error="skip")
    assert pods.column("identity") == ["pods/7", "pods/7", "pods/8"]


@pytest.mark.parametrize("value", [[1, 2], b"rex", True, 7.5])
def test_what_is_no_name_is_refused_by_row_and_column(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ManifestError, match=r"row 1, column 'identity': .* is not text"):
        read(written(tmp_path / "m.parquet", [value]))
    with pytest.raises(ManifestError, match=r"t\.parquet: row 1, column 'identity': .* is not a name"):
        import_dataset("table", written(tmp_path / "t.parquet", [value]), name="t")
    for kind, name, image in (("mveb", "class_id", "image"), ("pods", "label", "image")):
        with pytest.raises(ManifestError, match=rf"row 1, column '{name}': .* is not a name"):
            import_dataset(kind, written(tmp_path / f"{kind}.parquet", [value], name, image))


def test_rows_filter_by_numbers_as_by_text() -> None:
    manifest = Manifest.from_rows([Row("7", "1.jpg"), Row("8", "2.jpg"), Row(None, "3.jpg")])
    assert len(manifest.filter(identity=7)) == len(manifest.filter(identity=7.0)) == 1
    assert len(manifest.filter(identity=(7, 8))) == 2
    assert len(manifest.filter(identity=None)) == 1


def test_nan_is_missing_in_every_column(tmp_path: Path) -> None:
    """As pandas writes missing numbers: a label, a seed, an id and a data set."""
    put_all(tmp_path, "0.png", "1.png")
    columns = {name: [7.0, math.nan] for name in ("identity", "id", "label", "seed", "dataset")}
    pq.write_table(pa.table({**columns, "path": ["0.png", "1.png"]}), tmp_path / "t.parquet")
    first, second = import_dataset("table", tmp_path / "t.parquet")
    assert (first.identity, first.id, first.label, first.seed, first.dataset) == ("t/7", "t/7", 7.0, 7, "7")
    assert (second.identity, second.id, second.label, second.seed) == (None, "t/all/000001", None, None)
    assert second.dataset == "t"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_twins_among_identities_get_a_note_with_both_names(tmp_path: Path, ending: str) -> None:
    decomposed = unicodedata.normalize("NFD", CAFE)
    names = ["rex", "rex ", "Tom", "tom", CAFE, decomposed, "anna"]
    rows = [Row(name, f"{number}.png") for number, name in enumerate(names)]
    file = tmp_path / f"m.{ending}"
    Manifest.from_rows(rows, tmp_path).write(file)
    expected = r"stay different: 'rex' and 'rex '; 'Tom' and 'tom'; 'caf\\xe9' and 'cafe\\u0301'$"
    with pytest.warns(UserWarning, match=expected):
        assert read(file).column("identity") == names
    put_all(tmp_path, *(f"{number}.png" for number in range(len(names))))
    with pytest.warns(UserWarning, match=r"'m/rex' and 'm/rex '; 'm/Tom' and 'm/tom'; "):
        import_dataset("table", file)
