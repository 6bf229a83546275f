"""One image under several spellings is one image, and two images are never taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from idmetric.matching.listed_paths import by_path
from idmetric.metric.errors import RequestError


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """The working directory, with a file photos/a b.png."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a b.png").touch()
    return tmp_path


SPELLINGS = [
    "photos/a b.png",
    "./photos/a b.png",
    "photos/../photos/./a b.png",
    "photos\\a b.png",
    ".\\photos\\a b.png",
    " photos/a b.png ",
    "photos/ a b.png",
    "photos/a%20b.png",
    "PHOTOS/A B.PNG",
    "{folder}/photos/a b.png",
    "file://{folder}/photos/a%20b.png",
    "../photos/a b.png",
    "/data/local-files/?d=photos/a b.png",
]


@pytest.mark.parametrize("image", ["photos/a b.png", "./photos/a b.png", "{folder}/photos/a b.png"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_19_spellings_of_one_image_are_joined(photos, image, spelling):
    listed = {"photos/a b.png": [1], spelling.format(folder=photos): [2, 3]}
    expected = [1, 2, 3] if len(listed) == 2 else [2, 3]
    assert by_path(listed, [image.format(folder=photos)], "regions") == [expected]


def test_19_all_spellings_at_once(photos):
    listed = {spelling.format(folder=photos): [number] for number, spelling in enumerate(SPELLINGS)}
    (values,) = by_path(listed, ["photos/a b.png"], "regions")
    assert sorted(values) == list(range(len(SPELLINGS)))


def test_19_composed_and_decomposed_letters_are_one_name():
    assert by_path({"caf\u00e9.png": [1]}, ["cafe\u0301.png"], "regions") == [[1]]


def test_19_a_link_is_its_file(photos):
    os.symlink(photos / "photos", photos / "link")
    listed = {f"{photos}/photos/a b.png": [1]}
    assert by_path(listed, ["link/a b.png"], "regions") == [[1]]
    assert by_path({"a b.png": [1]}, ["link/a b.png", "photos/a b.png"], "regions") == [[1], [1]]


@pytest.mark.parametrize("names", [("a.png", "A.png"), ("a%20b.png", "a b.png"), ("a\\b.png", "a/b.png")])
def test_files_that_differ_in_spelling_alone_are_told_apart_by_it(tmp_path, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    listed = {names[0]: [1], names[1]: [2]}
    assert by_path(listed, names, "regions") == [[1], [2]]
    assert by_path({names[0]: [1]}, names, "regions") == [[1], None]
    with pytest.raises(RequestError, match="more folders"):
        by_path({"A.PNG" if names[0] == "a.png" else names[0].upper(): [1]}, [*names, "x/" + names[0]], "regions")


def test_two_ends_of_one_path_may_be_two_files(photos):
    """`a b.png` is the file next to photos/, if there is one; otherwise nobody can know."""
    listed = {"photos/a b.png": [1], "a b.png": [2]}
    with pytest.raises(RequestError, match=r"'photos/a b\.png' and 'a b\.png', which have regions, may both be"):
        by_path(listed, ["photos/a b.png"], "regions")
    (photos / "a b.png").touch()
    assert by_path(listed, ["photos/a b.png"], "regions") == [[1]]
    assert by_path(listed, ["photos/a b.png", "a b.png"], "regions") == [[1], [2]]


def test_label_studios_copies_have_a_part_of_a_hash_before_their_name():
    listed = {"images/3fa8b1c2-a.png": [1], "images/b.png": [2]}
    assert by_path(listed, ["photos/a.png", "photos/b.png"], "regions") == [[1], None]
    listed["images/00000000-a.png"] = [3]
    with pytest.raises(RequestError, match="copies that Label Studio made"):
        by_path(listed, ["photos/a.png"], "regions")
    assert by_path(listed, ["images/00000000-a.png"], "regions") == [[3]]


def test_frames_of_clips_have_names_like_files(photos):
    listed = {"clip.mp4 @ 3": [1], "CLIP.mp4 @ 4": [2]}
    assert by_path(listed, ["x/clip.mp4 @ 3", "x/clip.mp4 @ 4", "x/clip.mp4 @ 5"], "regions") == [[1], [2], None]
