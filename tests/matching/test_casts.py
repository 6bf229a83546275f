"""Casts: who should be in each image, from dicts and files, and what follows from it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric import IDSim
from idmetric.matching import Clip, Match, match
from idmetric.matching.assignment import UNASSIGNED, assigned
from idmetric.matching.casts import cast_of, read_cast
from idmetric.matching.clips import Moment
from idmetric.metric.errors import RequestError
from tests.matching.films import BOXES, film
from tests.matching.scenes import ANN, REX, STRANGER, references, scene

NAMES = ["cat", "duck"]
THRESHOLD = 0.25


def expected(cast: Any, *images: str, clip: str = "") -> list[list[str]]:
    """The names that are expected in each image; frames of a clip are one second apart."""
    moments = [Moment(image, clip, float(time) if clip else float("nan")) for time, image in enumerate(images)]
    listed = read_cast(cast) if isinstance(cast, str | Path) else cast
    rows = cast_of(listed, moments, NAMES)
    return [[name for name, is_member in zip(NAMES, row, strict=True) if is_member] for row in rows]


# Who is where, of one image


@pytest.mark.parametrize(
    ("similarity", "cast", "states", "region"),
    [
        ([[0.80], [0.10]], [1, 0], ("matched", "absent"), [0, UNASSIGNED]),
        ([[0.10], [0.80]], [1, 0], ("missing", "unexpected"), [0, 0]),
        ([[0.80, 0.1], [0.10, 0.7]], [1, 0], ("matched", "unexpected"), [0, 1]),
        ([[0.10], [0.10]], [1, 0], ("missing", "absent"), [0, UNASSIGNED]),
        ([[0.70], [0.72]], [1, 0], ("matched", "absent"), [0, UNASSIGNED]),
        ([[0.70], [0.90]], [1, 0], ("matched", "absent"), [0, UNASSIGNED]),
        ([[0.80, 0.60], [0.10, 0.90]], [1, 0], ("matched", "unexpected"), [0, 1]),
        ([[0.80, 0.1], [0.10, 0.7]], [0, 0], ("unexpected", "unexpected"), [0, 1]),
        ([[0.80, 0.45], [0.42, 0.78]], [1, 1], ("matched", "matched"), [0, 1]),
    ],
    ids=[
        "alone",
        "the wrong one",
        "both",
        "a stranger",
        "a look-alike outside",
        "one outside is nearer",
        "a further region is nearer to one outside",
        "nobody expected",
        "all",
    ],
)
def test_members_come_first_and_the_others_take_what_is_left(
    similarity: list[list[float]], cast: list[int], states: tuple[str, ...], region: list[int]
) -> None:
    result = assigned(1 - np.array(similarity), [0.5, 0.5], cast=cast)
    assert result.states == states
    assert result.region.tolist() == region


def test_a_region_of_an_unexpected_subject_is_not_surplus() -> None:
    assert assigned([[0.9, 0.9], [0.9, 0.2]], [0.5, 0.5], cast=[1, 0]).surplus == (0,)


# Reading


def test_an_image_has_its_own_cast_by_the_end_of_its_path(tmp_path: Path) -> None:
    images = [str(tmp_path / "story" / f"{number}.png") for number in (1, 2, 3)]
    cast = {"story/1.png": ["cat"], "2.png": ["duck", "cat"], "3.png": []}
    assert expected(cast, *images) == [["cat"], NAMES, []]
    assert expected(None, *images) == [NAMES] * 3


def test_a_table_lists_names_with_semicolons_or_commas(tmp_path: Path) -> None:
    file = tmp_path / "cast.csv"
    file.write_text('\ufeffimage,subjects\n1.png,cat\n2.png,"cat, duck"\n3.png,\n4.png,duck ; cat\n', encoding="utf-8")
    assert read_cast(file) == {
        "1.png": ["cat"],
        "2.png": ["cat", "duck"],
        "3.png": [],
        "4.png": ["duck", "cat"],
    }
    assert expected(file, "1.png", "2.png", "3.png", "4.png") == [["cat"], NAMES, [], NAMES]


def test_a_clip_a_part_of_it_and_a_frame() -> None:
    frames = [f"clip.mp4 @ {number}" for number in (0, 25, 50, 75, 100)]
    cast = {"clip.mp4": ["cat"], "clip.mp4 @ 1s-3s": ["duck"], "clip.mp4 @ 50": []}
    assert expected(cast, *frames, clip="clip.mp4") == [["cat"], ["duck"], [], ["cat"], ["cat"]]


def test_images_without_a_cast_have_everyone_and_are_named() -> None:
    with pytest.warns(UserWarning, match=r"1 of 2 images are not listed with a cast.*: 2.png"):
        assert expected({"1.png": ["cat"]}, "1.png", "2.png") == [["cat"], NAMES]


@pytest.mark.parametrize(
    ("cast", "message"),
    [
        ({"1.png": ["cow"]}, "the cast of 1.png has cow: the subjects are called cat, duck"),
        ({"9.png": ["cat"]}, r"none of the images \(1.png, 2.png\) is among the ones with a cast \(9.png\)"),
        ({"1.png @ 3s-2s": ["cat"]}, "write the start before the end"),
        ("absent.csv", "cannot read the cast absent.csv: No such file"),
    ],
)
def test_casts_that_do_not_fit_are_refused(cast: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        expected(cast, "1.png", "2.png")


def test_a_file_that_is_no_cast_says_so(tmp_path: Path) -> None:
    (tmp_path / "cast.csv").write_text("path,subjects\n1.png,cat\n")
    with pytest.raises(RequestError, match=r"cast\.csv.* has no column image"):
        read_cast(tmp_path / "cast.csv")


# What follows


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny")


@pytest.fixture(scope="module")
def story(metric: IDSim) -> Match:
    """Four panels: Ann alone as expected; Rex where Ann alone was expected; Ann and Rex as expected; a stranger."""
    subjects = {"ann": references(ANN), "rex": references(REX)}
    panels = [scene((ANN,)), scene((ANN, REX), 1), scene((ANN, REX), 2), scene((STRANGER,), 3)]
    return match(
        metric,
        subjects,
        Clip([picture.resize((224, 112)) for picture, _ in panels], name="story"),
        regions=[[(0, 0, 224, 112)], BOXES_OF_TWO, BOXES_OF_TWO, [(0, 0, 224, 112)]],
        frames="all",
        threshold=THRESHOLD,
        cast={"story @ 0": ["ann"], "story @ 1": ["ann"], "story @ 2": ["ann", "rex"], "story @ 3": ["ann"]},
    )


BOXES_OF_TWO = [(0, 0, 112, 112), (112, 0, 224, 112)]


def test_numbers_follow_the_cast(story: Match) -> None:
    assert story.states == [
        ["matched", "absent"],
        ["matched", "unexpected"],
        ["matched", "matched"],
        ["missing", "absent"],
    ]
    assert story.coverage == {"ann": 0.75, "rex": 1.0}
    ann, rex, everyone = story.summary
    assert (ann["n"], rex["n"], everyone["n"]) == (4, 1, 4)
    assert everyone["coverage"] == pytest.approx(4 / 5)
    assert (everyone["missing"], everyone["unexpected"], everyone["matched"]) == (1, 1, 4)
    assert rex["worst"] == pytest.approx(story.nearest[2, 1])
    assert rex["mean"] == pytest.approx(story.nearest[2, 1])
    assert [row["expected"] for row in story.rows] == [True, False, True, False, True, True, True, False]


def test_the_worst_is_a_member_of_the_cast(story: Match) -> None:
    assert (story.worst["image"], story.worst["subject"], story.worst["state"]) == ("story @ 3", "ann", "missing")
    order = np.argsort(-story.badness.max(1), kind="stable").tolist()
    assert order[:2] == [3, 1]  # the missing subject, then the unexpected one
    assert np.isneginf(story.badness[0, 1])  # rex, absent as expected


def test_a_panel_without_a_subject_that_does_not_belong_there_is_right(metric: IDSim) -> None:
    picture, boxes = scene((ANN,))
    subjects = {"ann": references(ANN), "rex": references(REX)}
    options: dict[str, Any] = {"regions": boxes, "threshold": THRESHOLD}
    alone = match(metric, subjects, picture, **options)
    assert (alone.worst["subject"], alone.worst["state"]) == ("rex", "missing")
    name = alone.table.times[0]
    with_cast = match(metric, subjects, picture, cast={name: ["ann"]}, **options)
    assert (with_cast.worst["subject"], with_cast.worst["state"]) == ("ann", "matched")


def test_labels_of_regions_are_no_cast(metric: IDSim) -> None:
    """A detector that found the one subject only: the other one is missing."""
    picture, (box,) = scene((ANN,))
    subjects = {"ann": references(ANN), "rex": references(REX)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = match(metric, subjects, picture, regions=[(*box,)], threshold=THRESHOLD)
    assert found.states == [["matched", "missing"]]


def test_a_clip_whose_cast_changes(metric: IDSim) -> None:
    pictures = film([(ANN, REX)] * 2 + [(ANN, None)] * 2)
    subjects = {"ann": [pictures[0].crop(BOXES[0])], "rex": [pictures[0].crop(BOXES[1])]}
    regions = [BOXES, BOXES, BOXES[:1], BOXES[:1]]
    clip = Clip(pictures, fps=1)
    options: dict[str, Any] = {"regions": regions, "threshold": THRESHOLD, "frames": "all"}
    assert match(metric, subjects, clip, **options).coverage == {"ann": 1.0, "rex": 0.5}
    cast = {"clip": ["ann", "rex"], "clip @ 2s-9s": ["ann"]}
    assert match(metric, subjects, clip, cast=cast, **options).coverage == {"ann": 1.0, "rex": 1.0}
