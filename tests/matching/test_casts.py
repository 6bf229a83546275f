"""Casts: who should be in which image, as dicts and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.matching.casts import cast_of
from idmetric.metric.errors import RequestError

NAMES = ["story/1.png", "story/2.png", "clip.mp4", "clip.mp4 @ 0", "clip.mp4 @ 1"]
SUBJECTS = ["cat", "duck"]


def test_images_clips_and_frames_are_found_by_the_ends_of_their_paths() -> None:
    cast = {"1.png": ["cat"], "story/2.png": [], "clip.mp4": ["duck"], "clip.mp4 @ 1": ["cat", "duck"]}
    expected = {"story/1.png": ["cat"], "story/2.png": [], "clip.mp4": ["duck"], "clip.mp4 @ 1": ["cat", "duck"]}
    assert cast_of(cast, NAMES, SUBJECTS) == expected
    assert cast_of(None, NAMES, SUBJECTS) == {}


def test_a_file_has_names_by_semicolons_or_quoted_commas_and_rows_that_add_up(tmp_path: Path) -> None:
    path = tmp_path / "cast.csv"
    path.write_text('image,subjects\n1.png,cat; duck\n2.png,\nclip.mp4,"cat,duck"\n2.png,duck\n')
    expected = {"story/1.png": ["cat", "duck"], "story/2.png": ["duck"], "clip.mp4": ["cat", "duck"]}
    assert cast_of(path, NAMES, SUBJECTS) == expected


@pytest.mark.parametrize(
    "content",
    ["image\n1.png\n", "image,subjects\n,cat\n", "image,subjects\n1.png,cow\n", "image,subjects\n9.png,cat\n"],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cast.csv"
    path.write_text(content)
    with pytest.raises(RequestError, match=r"cast\.csv|1\.png|9\.png"):
        cast_of(str(path), NAMES, SUBJECTS)
    with pytest.raises(RequestError, match=r"gone\.csv"):
        cast_of("gone.csv", NAMES, SUBJECTS)
