"""Images in folders: each command knows the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.cli.score import _expand
from idmetric.data.importers.folders import pictures
from idmetric.endings import IMAGE_ENDINGS
from idmetric.gallery.sources import Source, entries
from idmetric.scale.chunks import chunks
from idmetric.train.photo_groups import photo_files

NAMES = [f"a{ending}" for ending in IMAGE_ENDINGS] + ["b.JPG", "c.Pgm"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of which the names alone matter."""
    (tmp_path / "clip").mkdir()
    for name in (*NAMES, "notes.txt", "a.npy", "jpg"):
        (tmp_path / "clip" / name).write_bytes(b"")
    return tmp_path


def test_all_commands_find_the_same_images_in_a_folder(folder: Path) -> None:
    expected = sorted(NAMES)
    clip = folder / "clip"
    assert sorted(Path(path).name for path in _expand([str(clip)])) == expected  # idmetric-score
    assert sorted(entry.name for entry in entries([Source(str(clip))], masked=False)) == expected  # galleries
    assert sorted(picture.path.name for picture in pictures(clip)) == expected  # imported data
    assert sorted(path.name for path in photo_files([str(clip)])) == expected  # idmetric-train tiny
    found = chunks([str(clip)])  # idmetric-data embed
    assert sorted(Path(name).name for chunk in found for name in chunk.paths) == expected
