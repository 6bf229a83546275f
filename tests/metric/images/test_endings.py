"""Images in folders: each command knows the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.data.importers.folders import pictures
from idmetric.gallery.sources import list_images
from idmetric.metric.paths import IMAGE_ENDINGS, listed

NAMES = [f"a{ending}" for ending in IMAGE_ENDINGS] + ["b.JPG", "c.Pgm"]


def test_all_commands_find_the_same_images_in_a_folder(tmp_path: Path) -> None:
    expected = sorted(NAMES)
    for name in (*NAMES, "notes.txt", "a.npy", "jpg"):
        (tmp_path / name).write_bytes(b"")  # the names alone matter
    assert sorted(Path(path).name for path in listed(tmp_path)) == expected  # idmetric score
    images = list_images([tmp_path], masked=False, mask_dir=None)
    assert sorted(Path(path).name for path in images["path"]) == expected  # galleries
    assert sorted(picture.path.name for picture in pictures(tmp_path)) == expected  # imported data


def test_pictures_that_are_not_read_are_counted_in_one_warning(tmp_path: Path) -> None:
    for name in ("a.png", "b.svg", "c/d.NEF", ".e.nef", "a.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    for read in (listed, pictures, lambda folder: list_images([folder], False, None)["path"]):
        with pytest.warns(UserWarning, match="2 files") as caught:
            assert len(list(read(tmp_path))) == 1
        [warning] = caught
        assert str(warning.message).startswith(f"{tmp_path}: 2 files")
        assert str(warning.message).endswith(".nef, .svg")
