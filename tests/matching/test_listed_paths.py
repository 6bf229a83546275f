"""One image under several spellings is one image, and two images are never taken for one."""

from __future__ import annotations

import pytest

from idmetric.matching.listed_paths import by_path
from idmetric.metric.errors import RequestError

SPELLINGS = [
    "photos/a b.png",
    "./photos/a b.png",
    "photos/../photos/./a b.png",
    "photos\\a b.png",
    " photos/a b.png ",
    "{folder}/photos/a b.png",
]


@pytest.mark.parametrize("image", ["photos/a b.png", "./photos/a b.png", "{folder}/photos/a b.png"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_one_image_are_one(tmp_path, monkeypatch, image, spelling):
    monkeypatch.chdir(tmp_path)
    listed = {spelling.format(folder=tmp_path): [2, 3]}
    assert by_path(listed, [image.format(folder=tmp_path)], "regions") == [[2, 3]]


def test_spellings_of_one_listed_path_are_joined():
    listed = {"photos/a.png": [1], "./photos/a.png": [2]}
    assert by_path(listed, ["x/photos/a.png"], "regions") == [[1, 2]]


def test_the_longest_end_of_a_path_counts():
    listed = {"photos/a.png": [1], "a.png": [2]}
    assert by_path(listed, ["photos/a.png"], "regions") == [[1]]
    assert by_path(listed, ["photos/a.png", "other/a.png", "b.png"], "regions") == [[1], [2], None]


def test_two_images_do_not_share_what_is_listed():
    with pytest.raises(RequestError, match="more folders"):
        by_path({"a.png": [1]}, ["x/a.png", "y/a.png"], "regions")
    assert by_path({"a.png": [1]}, ["x/a.png", "./x/a.png"], "regions") == [[1], [1]]


def test_frames_of_clips_have_names_like_files():
    listed = {"clip.mp4 @ 3": [1]}
    assert by_path(listed, ["x/clip.mp4 @ 3", "x/clip.mp4 @ 5"], "regions") == [[1], None]
