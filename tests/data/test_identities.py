"""Identities as tables of other people write them: one rule for every importer and for manifests."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import ManifestError, checked, read, write
from tests.import_parts import by_id, column, put_all

CAFE = unicodedata.normalize("NFC", "café")


def written(path: Path, identities: list[Any], name: str = "identity", image: str = "path") -> Path:
    put_all(path.parent, *(f"{number}.png" for number in range(len(identities))))
    pq.write_table(pa.table({name: identities, image: [f"{k}.png" for k in range(len(identities))]}), path)
    return path


def test_nan_in_a_column_of_numbers_is_missing_and_whole_numbers_are_text(tmp_path: Path) -> None:
    """Manifests, `table`, `mveb` and `pods` alike; one identity "nan" would be a pair of strangers."""
    numbers = [7.0, 7.0, math.nan, math.nan, 8.0]
    assert read(written(tmp_path / "m.parquet", numbers))["identity"].tolist() == ["7", "7", None, None, "8"]
    table = import_dataset("table", written(tmp_path / "t.parquet", numbers))
    assert column(table, "identity") == ["t/7", "t/7", None, None, "t/8"]
    mveb = import_dataset("mveb", written(tmp_path / "v.parquet", numbers, "class_id", "image"), on_error="skip")
    assert column(mveb, "identity") == ["mveb/v/7", "mveb/v/7", "mveb/v/8"]
    pods = import_dataset("pods", written(tmp_path / "p.parquet", numbers, "label", "image"), on_error="skip")
    assert column(pods, "identity") == ["pods/7", "pods/7", "pods/8"]


@pytest.mark.parametrize("value", [[1, 2], b"rex", True, 7.5])
def test_what_is_no_name_is_refused_by_row_and_column(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ManifestError, match=r"row 1, column 'identity': .* is not text"):
        read(written(tmp_path / "m.parquet", [value]))
    with pytest.raises(ManifestError, match=r"t\.parquet: row 1, column 'identity': .* is not a name"):
        import_dataset("table", written(tmp_path / "t.parquet", [value]), name="t")
    for kind, name, image in (("mveb", "class_id", "image"), ("pods", "label", "image")):
        with pytest.raises(ManifestError, match=rf"row 1, column '{name}': .* is not a name"):
            import_dataset(kind, written(tmp_path / f"{kind}.parquet", [value], name, image))


def test_nan_is_missing_in_every_column(tmp_path: Path) -> None:
    """As pandas writes missing numbers: a label, a seed, an id and a data set."""
    put_all(tmp_path, "0.png", "1.png")
    columns = {name: [7.0, math.nan] for name in ("identity", "id", "label", "seed", "dataset")}
    pq.write_table(pa.table({**columns, "path": ["0.png", "1.png"]}), tmp_path / "t.parquet")
    first, second = by_id(import_dataset("table", tmp_path / "t.parquet")).values()
    assert (first.identity, first.id, first.label, first.seed, first.dataset) == ("t/7", "t/7", 7.0, 7, "7")
    assert (second.identity, second.id, second.seed) == (None, "t/all/000001", None)
    assert math.isnan(second.label)
    assert second.dataset == "t"


def test_twins_among_identities_get_a_note_with_both_names(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", CAFE)
    names = ["rex", "rex ", "Tom", "tom", CAFE, decomposed, "anna"]
    files = [f"{number}.png" for number in range(len(names))]
    put_all(tmp_path, *files)
    write(checked(pd.DataFrame({"identity": names, "path": files}), tmp_path), tmp_path / "m.csv")
    expected = r"stay different: 'rex' and 'rex '; 'Tom' and 'tom'; 'caf\\xe9' and 'cafe\\u0301'$"
    with pytest.warns(UserWarning, match=expected):
        assert read(tmp_path / "m.csv")["identity"].tolist() == names
    with pytest.warns(UserWarning, match=r"'m/rex' and 'm/rex '; 'm/Tom' and 'm/tom'; "):
        import_dataset("table", tmp_path / "m.csv")
