"""Images in folders: each command knows the same names."""

from __future__ import annotations

from pathlib import Path

from idmetric.data.importers.folders import pictures
from idmetric.gallery.sources import GallerySource, entries
from idmetric.metric.paths import IMAGE_ENDINGS, listed

NAMES = [f"a{ending}" for ending in IMAGE_ENDINGS] + ["b.JPG", "c.Pgm"]


def test_all_commands_find_the_same_images_in_a_folder(tmp_path: Path) -> None:
    expected = sorted(NAMES)
    for name in (*NAMES, "notes.txt", "a.npy", "jpg"):
        (tmp_path / name).write_bytes(b"")  # the names alone matter
    assert sorted(Path(path).name for path in listed(tmp_path)) == expected  # idmetric score
    assert (
        sorted(entry.name for entry in entries([GallerySource(str(tmp_path))], masked=False)) == expected
    )  # galleries
    assert sorted(picture.path.name for picture in pictures(tmp_path)) == expected  # imported data
