"""The importer of ILIAS, on files in its published layout."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from idmetric.cli.data import main
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import ManifestError, read
from tests.import_parts import by_id, refuses

# object -> queries, positives
OBJECTS = {"bold_bimp_000": (1, 2), "bold_flep_001": (2, 1), "zippy_zootlenibble_999": (1, 3)}
TAXONOMY = {
    "toy": {"stuffed": {"plushie": ["bold_bimp_000"]}},
    "technology": {"gaming": {"other": ["bold_flep_001"]}, "other": {"other": ["zippy_zootlenibble_999"]}},
}


def photo(file: Path) -> None:
    """A photo, and the files that stand next to it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30)).save(file)
    file.with_name(f"{file.stem}_bbox.txt").write_text("5 4 20 10\n")


def write(root: Path) -> Path:
    """As downloaded: ilias_core/ and image_ids/, and the repository's taxonomy."""
    queries, positives = [], []
    for name, (asked, shown) in OBJECTS.items():
        code = name[-3:]
        for number in range(asked):
            path = f"{name}/query/Q{code}_{number:02d}.jpg"
            photo(root / "ilias_core" / path)
            queries.append(f"{path},clean")
        (root / "ilias_core" / name / "query" / f"T{code}.txt").write_text("a thing")
        for number in range(shown):
            path = f"{name}/pos/P{code}_{number:02d}.jpg"
            photo(root / "ilias_core" / path)
            (root / "ilias_core" / path).with_name(f"P{code}_{number:02d}_url.txt").write_text("https://...")
            positives.append(f"{path},{0.05 * (number + 1)},{20 * number}")
    (root / "image_ids").mkdir()
    (root / "image_ids" / "image_query_ids.txt").write_text("\n".join(queries) + "\n")
    (root / "image_ids" / "positive_ids.txt").write_text("\n".join(positives) + "\n")
    (root / "taxonomy.json").write_text(json.dumps(TAXONOMY))
    return root


def test_queries_positives_and_what_is_published_of_them(tmp_path: Path) -> None:
    table = import_dataset("ilias", write(tmp_path / "ilias"))
    assert len(table) == 4 + 6
    rows = by_id(table)
    row = rows["ilias/zippy_zootlenibble_999/pos/P999_02.jpg"]
    assert (row.identity, row.split, row.domain, row.category) == (
        "ilias/zippy_zootlenibble_999", "gallery", "technology", "other",
    )  # fmt: skip
    assert row.parameters == {"kind": "other"}
    assert (row.x_scale, row.x_clutter) == (pytest.approx(0.15), 40)
    row = rows["ilias/bold_flep_001/query/Q001_01.jpg"]
    assert (row.split, row.domain, row.category) == ("query", "technology", "gaming")
    assert pd.isna(row.x_scale)
    bare = import_dataset("ilias", tmp_path / "ilias", options={"splits": "no"})
    assert bare.drop(columns="split").equals(table.drop(columns="split"))
    assert set(bare["split"]) == {None}


def test_images_and_lists_that_differ_are_named(tmp_path: Path) -> None:
    root = write(tmp_path / "ilias")
    gone = root / "ilias_core/bold_bimp_000/pos/P000_01.jpg"
    gone.unlink()
    photo(root / "ilias_core/bold_flep_001/pos/P001_07.jpg")
    with pytest.raises(ManifestError) as error:
        import_dataset("ilias", root)
    missing, extra = gone.with_suffix(""), root / "ilias_core/bold_flep_001/pos/P001_07.jpg"
    assert f"{missing}: in positive_ids.txt, but the image does not exist" in str(error.value)
    assert f"{extra}: not in positive_ids.txt" in str(error.value)
    assert len(import_dataset("ilias", root, on_error="skip")) == 9


def test_other_layouts_and_options_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "ilias")
    refuses("splits=none", "ilias", root, options={"splits": "none"})
    refuses(r"none\.json", "ilias", root, options={"taxonomy": str(root / "none.json")})
    (root / "taxonomy.json").write_text('{"toy": ["bold_bimp_000"]}')
    refuses("not ILIAS's taxonomy", "ilias", root)
    (root / "taxonomy.json").unlink()
    photo(root / "ilias_core/bold_bimp_000/other/x.jpg")
    refuses("not the layout of ILIAS", "ilias", root)


def test_distractors_are_searched_and_have_no_identity(tmp_path: Path) -> None:
    root, out = write(tmp_path / "ilias"), tmp_path / "ilias.csv"
    photo(tmp_path / "yfcc100m" / "000" / "abc.jpg")
    argv = ["import", "ilias", str(root), "--option", f"distractors={tmp_path / 'yfcc100m'}", "-o", str(out), "--quiet"]
    assert main(argv) == 0
    table = read(out)
    row = by_id(table)["ilias/000/abc.jpg"]
    assert (row.identity, row.split, len(table)) == (None, "gallery", 11)
    refuses("none: no such folder", "ilias", root, options={"distractors": str(tmp_path / "none")})
