"""The importer of Finer-Personalization Rank, on tables as its scripts write them."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from PIL import Image

from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest.errors import ManifestError
from tests.import_parts import refuses

KINDS = {"train_data.csv": "train", "gallery_data.csv": "gallery", "generated_data.csv": "generated_images"}
Named = Callable[[Path, str], str]  # how a table names a file: the method's folder, the path below it


def relative(root: Path, place: str) -> str:
    return place


def absolute(root: Path, place: str) -> str:
    return str(root / place)


def elsewhere(root: Path, place: str) -> str:
    """As on the machine of the scripts, in a folder that is called data too."""
    return f"/home/someone/data/CUB/{place}"


def write(root: Path, named: Named = relative, shade: int = 0, index: bool = False) -> Path:
    """A method's folder: two kinds of birds with two species each; two real and three generated images of each."""
    for file, folder in KINDS.items():
        lines = []
        for group, names in {"wren": ("House_Wren", "Rock_Wren"), "tern": ("Elegant_Tern", "Least_Tern")}.items():
            for name in names:
                for number in range(3 if folder == "generated_images" else 2):
                    place = f"data/{group}/{name}/{folder}/{number}.png"
                    (root / place).parent.mkdir(parents=True, exist_ok=True)
                    Image.new("RGB", (8, 8), (len(name) * 9, 40 * number, shade)).save(root / place)
                    lines.append({"name": name, "file_path": named(root, place), "species": group})
        save(root / file, lines, index)
    return root


def save(file: Path, lines: list[dict[str, str]], index: bool = False) -> None:
    """A table; its index is a column without a name."""
    datasets.Dataset.from_list(lines).to_csv(file, index=index)


def lines_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def change(file: Path, row: int, **cells: str) -> None:
    lines = lines_of(file)
    lines[row].update(cells)
    save(file, lines)


@pytest.mark.parametrize(("named", "index"), [(relative, False), (absolute, True), (elsewhere, False)])
def test_splits_identities_and_methods(tmp_path: Path, named: Named, index: bool) -> None:
    root = write(tmp_path / "OminiControl", named, index=index)
    found = import_dataset("finer", root)
    assert len(found) == 2 * 4 * 2 + 4 * 3
    at = {row.id: row for row in found}
    real, made = at["finer/data/wren/Rock_Wren/gallery/1.png"], at["finer/OminiControl/data/tern/Least_Tern/"
                                                                   "generated_images/2.png"]  # fmt: skip
    assert (real.identity, real.split, real.category, real.role, real.engine) == (
        "finer/wren/Rock_Wren", "gallery", "wren", "real", None,
    )  # fmt: skip
    assert (made.identity, made.split, made.category, made.role, made.engine) == (
        "finer/tern/Least_Tern", "query", "tern", "context-edit", "OminiControl",
    )  # fmt: skip
    assert at["finer/data/wren/Rock_Wren/train/0.png"].split == "train"
    assert all(Path(str(row.path)).is_file() and str(row.path).startswith(str(root)) for row in found)


def test_methods_are_folders_over_the_same_real_images(tmp_path: Path) -> None:
    first, second = write(tmp_path / "Emu2", absolute), write(tmp_path / "IP-Adapter", elsewhere, shade=50)
    (second / "train_data.csv").unlink()  # it need not be everywhere
    found = import_dataset("finer", [first, second])
    engines = [row.engine for row in found if row.split == "query"]
    assert engines == ["Emu2"] * 12 + ["IP-Adapter"] * 12
    real = [row for row in found if row.split != "query"]
    assert len(real) == 16
    assert all(str(row.path).startswith(str(first)) for row in real)

    change(second / "gallery_data.csv", 1, species="tern")
    refuses(r"IP-Adapter/gallery_data.csv: other images than .*Emu2/gallery_data.csv", "finer", [first, second])
    shutil.copytree(first, tmp_path / "again" / "Emu2")
    refuses(r"are both of the method 'Emu2': rename a folder", "finer", [first, tmp_path / "again" / "Emu2"])
    refuses(r"again: none of gallery_data.csv", "finer", [first, tmp_path / "again"])  # a method's folder is below


def test_a_column_names_methods_and_other_columns_are_kept(tmp_path: Path) -> None:
    root = write(tmp_path / "all")
    lines = lines_of(root / "generated_data.csv")
    for number, line in enumerate(lines):
        line |= {"method": ("kontext", "diptych", "")[number % 3], "ref_path": "data/x.png"}
    save(root / "generated_data.csv", lines)
    found = [row for row in import_dataset("finer", root, name="birds") if row.split == "query"]
    assert [row.engine for row in found][:4] == ["kontext", "diptych", "all", "kontext"]
    assert found[0].identity == "birds/wren/House_Wren"
    assert found[0].parameters == {"ref_path": "data/x.png"}


def test_damage_is_named_or_left_out(tmp_path: Path) -> None:
    root = write(tmp_path / "m")
    change(root / "gallery_data.csv", 2, name="")
    (root / "data/tern/Least_Tern/generated_images/1.png").unlink()
    with pytest.raises(ManifestError) as error:
        import_dataset("finer", root)
    assert f"{root}/gallery_data.csv: row 3: no name" in str(error.value)
    missing = root / "data/tern/Least_Tern/generated_images/1.png"
    assert f"{root}/generated_data.csv: row 11: {missing}: no such file" in str(error.value)
    assert len(import_dataset("finer", root, on_error="skip")) == 26


def test_missing_tables_and_columns_are_named(tmp_path: Path) -> None:
    root = write(tmp_path / "m")
    (root / "generated_data.csv").unlink()
    assert {row.split for row in import_dataset("finer", root)} == {"gallery", "train"}  # the baseline alone
    (root / "train_data.csv").unlink()
    refuses(r"needs gallery_data.csv, and generated_data.csv or train_data.csv", "finer", root)
    (root / "gallery_data.csv").rename(root / "train_data.csv")
    refuses(r"needs gallery_data.csv, and", "finer", root)
    save(root / "gallery_data.csv", [{"path": "a.png", "name": "a", "species": "b"}])
    refuses(r"no column 'file_path'; there are path, name, species.*--map file_path=NAME", "finer", root)
