"""Whether and when a clip changes its subject, without references: tables with known segments, and thirty clips."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric import Clip, IDSim, consistency
from idmetric.matching.consistency import Consistency
from idmetric.matching.segments import Jump, is_drift, jumps, names_of_segments, segments, table_of, turning_point
from idmetric.metric.errors import RequestError
from tests.clip_files import write_video
from tests.matching.films import background, film
from tests.matching.scenes import ANN, REX

LIMIT = 0.35
FPS = 12
COUNT = 36  # frames of a clip
SIZE = (256, 192)
IMAGES = Path(__file__).parents[2] / "examples" / "images"


# Tables


def features(*angles: float) -> list[Any]:
    """Unit vectors in a plane, at these angles in degrees."""
    return [np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))]) for angle in angles]


def found(angles: Sequence[float], cuts: Sequence[int] = (), limit: float = LIMIT) -> list[tuple[int, int]]:
    is_cut = [frame in cuts for frame in range(len(angles))]
    return [(jump.before, jump.after) for jump in jumps(table_of(features(*angles)), is_cut, limit)]


def wobbling(*parts: tuple[float, int]) -> list[float]:
    """So many frames at each angle, give or take a degree."""
    angles = [angle for angle, count in parts for _ in range(count)]
    return [angle + (-1) ** number for number, angle in enumerate(angles)]


def test_segments_of_known_tables() -> None:
    assert found(wobbling((0, 16))) == []
    assert found([0.0] * 16) == []
    assert found(wobbling((0, 8), (80, 8))) == [(7, 8)]
    assert found(wobbling((0, 5), (80, 6), (0, 5))) == [(4, 5), (10, 11)]
    assert found(wobbling((0, 4), (80, 4), (160, 4))) == [(3, 4), (7, 8)]
    assert found(wobbling((0, 7), (80, 1), (0, 8))) == [(6, 7), (7, 8)]  # away for one frame


def test_drifts_and_pans_are_one_segment() -> None:
    assert found(list(np.linspace(0, 90, 16))) == []
    assert found([90 * (number / 15) ** 2 for number in range(16)]) == []
    assert found([0.0] * 6 + list(np.linspace(0, 60, 10))) == []  # it stands, then pans


def test_a_jump_within_a_pan_is_found() -> None:
    angles = [2.0 * number for number in range(8)] + [90 + 2.0 * number for number in range(8)]
    assert found(angles) == [(7, 8)]


def test_a_dissolve_is_one_jump() -> None:
    assert found([0, 1, 0, 1, 0, 1, 0, 40, 80, 81, 80, 81, 80, 81, 80, 81]) == [(6, 8)]


def test_a_cut_needs_another_subject_and_within_a_shot_less_is_enough() -> None:
    near = wobbling((0, 8), (40, 8))  # 1 - cos 40 degrees = 0.23
    assert found(near) == [(7, 8)]
    assert found(near, cuts=[8]) == []
    assert found(near, cuts=[8], limit=0.2) == [(7, 8)]
    assert found(wobbling((0, 8), (25, 8))) == []  # 0.09


def test_few_frames() -> None:
    assert found([]) == []
    assert found([0]) == []
    assert found([0, 80]) == []  # a step has nothing to be compared with
    assert found([0, 1, 80, 81]) == [(1, 2)]
    assert found([0, 80, 81, 0]) == [(0, 1), (2, 3)]
    assert found([0, 25, 50, 75]) == []


def test_a_change_that_goes_step_by_step_is_drift() -> None:
    table = table_of(features(0, 10, 32, 42, 52))
    jump = Jump(1, 2)
    assert is_drift(table, jump, table_of(features(*range(10, 33))))
    assert not is_drift(table, jump, table_of(features(10, 11, 12, 30, 31, 32)))
    # a dissolve, next to which nothing moves
    assert not is_drift(table_of(features(0, 0.5, 60, 60.5)), jump, table_of(features(*range(1, 61))))


def test_the_turning_point_is_the_last_frame_that_is_nearer_to_the_first_one() -> None:
    assert turning_point(table_of(features(0, 80))) == 0
    assert turning_point(table_of(features(0, 1, 2, 79, 80))) == 2
    assert turning_point(table_of(features(0, 10, 20, 30, 60, 80))) == 3
    assert turning_point(table_of(features(0, 79, 80, 80))) == 0


def test_letters_of_segments() -> None:
    def letters(*parts: tuple[float, int]) -> str:
        angles = wobbling(*parts)
        table = table_of(features(*angles))
        ends = jumps(table, [False] * len(angles), LIMIT)
        return "".join(names_of_segments(table, segments(ends, len(angles)), LIMIT))

    assert letters((0, 8)) == "A"
    assert letters((0, 5), (80, 5)) == "AB"
    assert letters((0, 5), (80, 5), (0, 5)) == "ABA"
    assert letters((0, 5), (80, 5), (160, 5)) == "ABC"
    assert letters((0, 5), (80, 5), (5, 5), (80, 5), (160, 5)) == "ABABC"


# Thirty clips


@dataclass(frozen=True)
class Example:
    """A clip and its truth.

    Attributes:
        draw: from a frame's number to the frame.
        changes: the first frame with each new subject.
    """

    draw: Callable[[int], Image.Image]
    changes: tuple[int, ...] = ()


def photo(name: str) -> Image.Image:
    return Image.open(IMAGES / f"{name}.png").convert("RGB")


def view(image: Image.Image, across: float, zoom: float = 1.3) -> Image.Image:
    """A part of an image, whose left edge moves from the left (0) to the right (1)."""
    width, height = image.width / zoom, 0.75 * image.width / zoom
    left, top = across * (image.width - width), (image.height - height) / 2
    return image.resize(SIZE, Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))


def pan(name: str, start: float, end: float, zoom: float = 1.3) -> Callable[[int], Image.Image]:
    image = photo(name)
    return lambda number: view(image, start + (end - start) * number / (COUNT - 1), zoom)


def still(name: str) -> Callable[[int], Image.Image]:
    return pan(name, 0.5, 0.5)


def drift(first: str, second: str) -> Callable[[int], Image.Image]:
    one, other = view(photo(first), 0.5), view(photo(second), 0.5)
    return lambda number: Image.blend(one, other, number / (COUNT - 1))


def shots(*parts: tuple[Callable[[int], Image.Image], int]) -> Example:
    """Shots one after the other, each up to a frame."""

    def draw(number: int) -> Image.Image:
        shot = next(shot for shot, end in parts if number < end)
        return shot(number)

    return Example(draw, tuple(end for _, end in parts[:-1]))


def placed(name: str | None, seed: int, number: int) -> Image.Image:
    """A subject that moves to the right in front of a background; None leaves the background."""
    picture = background(seed).resize(SIZE)
    if name:
        small = photo(name).resize((128, 128))
        picture.paste(small, (30 + 2 * number, 32))
    return picture


def in_front(seed: int, *parts: tuple[str | None, int]) -> Example:
    """Subjects in front of one background, each up to a frame; None is nobody."""

    def draw(number: int) -> Image.Image:
        name = next(name for name, end in parts if number < end)
        return placed(name, seed, number)

    return Example(draw, tuple(end for _, end in parts[:-1]))


CONSTANT = {f"constant {name}": Example(still(name)) for name in ("box_a", "box_b", "mug_a", "mug_b", "mug_c")}
PANS = {
    "pan to the right": Example(pan("box_b", 0, 1)),
    "pan to the left": Example(pan("mug_c", 1, 0)),
    "pan of a close view": Example(pan("box_a", 0, 1, zoom=1.8)),
    "pan of half the way": Example(pan("mug_b", 0, 0.5)),
    "subject that moves": in_front(1, ("mug_a", COUNT)),
}
DRIFTS = {
    f"drift {first} {second}": Example(drift(first, second))
    for first, second in (
        ("mug_a", "box_a"),
        ("box_c", "mug_b"),
        ("mug_c", "box_other"),
        ("box_b", "mug_a"),
        ("mug_other", "box_c"),
    )
}
CUTS = {
    "cut of stills": shots((still("mug_a"), 17), (still("box_a"), COUNT)),
    "cut of pans": shots((pan("mug_b", 0, 1), 11), (pan("box_c", 1, 0), COUNT)),
    "early cut": shots((still("box_b"), 4), (still("mug_c"), COUNT)),
    "late cut": shots((pan("box_a", 0, 1), 31), (still("mug_b"), COUNT)),
    "two cuts": shots((still("mug_c"), 12), (still("box_other"), 23), (pan("mug_b", 0, 1), COUNT)),
}
REPLACED = {
    "mug by box": in_front(0, ("mug_a", 19), ("box_a", COUNT)),
    "box by mug": in_front(1, ("box_b", 14), ("mug_c", COUNT)),
    "box by another mug": in_front(2, ("box_c", 25), ("mug_other", COUNT)),
    "mug by another box": in_front(3, ("mug_b", 9), ("box_other", COUNT)),
    "mug by box late": in_front(4, ("mug_c", 29), ("box_b", COUNT)),
}
RETURNS = {
    "mug leaves and returns": in_front(0, ("mug_a", 13), (None, 24), ("mug_a", COUNT)),
    "box leaves and returns": in_front(1, ("box_a", 8), (None, 27), ("box_a", COUNT)),
    "away for half a second": in_front(2, ("box_b", 16), (None, 22), ("box_b", COUNT)),
    "another one for a while": in_front(3, ("mug_c", 10), ("box_c", 21), ("mug_c", COUNT)),
    "another shot for a while": shots((still("mug_b"), 15), (still("box_b"), 26), (still("mug_b"), COUNT)),
}
ONE_SEGMENT = CONSTANT | PANS
CHANGING = CUTS | REPLACED | RETURNS


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny", device="cpu")


def movie(folder: Path, example: Example) -> str:
    pictures = [example.draw(number) for number in range(COUNT)]
    return str(write_video(folder / "clip.mp4", pictures, fps=FPS))


def test_there_are_thirty_clips() -> None:
    assert len(ONE_SEGMENT | DRIFTS | CHANGING) == 30


@pytest.mark.parametrize("name", ONE_SEGMENT)
def test_clips_that_stand_or_pan_have_no_change(metric: IDSim, tmp_path: Path, name: str) -> None:
    clip = movie(tmp_path, ONE_SEGMENT[name])
    for frames in (4, 16):
        result = consistency(metric, clip, frames=frames)
        assert len(result.changes) == 0
        assert f"{clip}: no change of subject" in result.to_table().splitlines()


@pytest.mark.parametrize("name", DRIFTS)
def test_a_slow_drift_is_no_change_and_is_called_one(metric: IDSim, tmp_path: Path, name: str) -> None:
    clip = movie(tmp_path, DRIFTS[name])
    for frames in (4, 16):
        result = consistency(metric, clip, frames=frames)
        assert len(result.changes) == 0
        first, last = (view(photo(image), 0.5) for image in name.split()[1:])
        (row,) = result.rows
        assert row["first_to_last"] == pytest.approx(metric(first, last).item(), abs=0.05)
        line = f"{clip}: no change of subject, but it drifts, first to last {row['first_to_last']:.4f}"
        assert line in result.to_table().splitlines()


@pytest.mark.parametrize("name", CHANGING)
def test_changes_have_their_exact_frames(metric: IDSim, tmp_path: Path, name: str) -> None:
    example = CHANGING[name]
    clip = movie(tmp_path, example)
    result = consistency(metric, clip)
    assert [row["first_frame"] for row in result.changes] == list(example.changes)
    assert all(row["exact"] for row in result.changes)
    seconds = [frame / FPS for frame in example.changes]
    assert [row["first_seconds"] for row in result.changes] == pytest.approx(seconds)
    (row,) = result.rows
    assert row["change_seconds"] == pytest.approx(seconds)
    if name in RETURNS:
        assert [(row["from"], row["to"]) for row in result.changes] == [("A", "B"), ("B", "A")]


@pytest.mark.parametrize("frames", [6, "2fps", "all"])
def test_changes_are_found_by_other_choices_of_frames(metric: IDSim, tmp_path: Path, frames: Any) -> None:
    for name in ("cut of pans", "mug by box", "mug leaves and returns"):
        example = CHANGING[name]
        result = consistency(metric, movie(tmp_path, example), frames=frames)
        assert [row["first_frame"] for row in result.changes] == list(example.changes)


# The result


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> str:
    return movie(tmp_path_factory.mktemp("leaving"), RETURNS["another shot for a while"])


@pytest.fixture(scope="module")
def result(metric: IDSim, leaving: str) -> Consistency:
    return consistency(metric, leaving)


def test_one_line_says_whether_and_when_and_cuts_have_times(result: Consistency, leaving: str) -> None:
    lines = result.to_table().splitlines()
    first, second = (f"{row['distance']:.4f}" for row in result.changes)
    assert (
        f"{leaving}: changes its subject 2 times: at 1.25 s (frame 15), distance {first}; at 2.17 s (frame 26), "
        f"distance {second}, back to the first"
    ) in lines
    assert f"{leaving}: cuts: at 1.25 s (frame 15), at 2.17 s (frame 26)" in lines
    assert "threshold of one subject: 0.3635 (stored calibration, 5 % of pairs)" in lines
    content = json.loads(result.to_json())
    assert [cut["first_seconds"] for cut in content["cuts"]] == pytest.approx([15 / 12, 26 / 12])
    assert [change["first_frame"] for change in content["changes"]] == [15, 26]
    assert content["rows"][0]["cut_seconds"] == pytest.approx([1.25, 26 / 12])
    assert content["threshold_source"] == "stored calibration, 5 % of pairs"


def test_the_distance_of_a_change_is_the_mean_of_pairs(metric: IDSim, leaving: str, result: Consistency) -> None:
    frames = [int(name.split(" @ ")[1]) for name in result.images.table.times]
    vectors = np.array([features_of_frame[0] for features_of_frame in result.images.features[0]])
    pairs = []
    for before, vector in zip(frames, vectors, strict=True):
        for after, other in zip(frames, vectors, strict=True):
            if before < 15 <= after < 26:
                pairs.append(1 - vector @ other)
    assert result.changes[0]["distance"] == pytest.approx(np.mean(pairs), abs=2e-3)


def test_without_refining_changes_lie_between_two_frames(metric: IDSim, leaving: str) -> None:
    coarse = consistency(metric, leaving, frames=8, refine=False)
    assert [(row["last_frame"], row["first_frame"], row["exact"]) for row in coarse.changes] == [
        (10, 15, False),
        (25, 30, False),
    ]
    assert f"{leaving}: cuts or fast motion: between 0.83 and 1.25 s, between 2.08 and 2.50 s" in coarse.to_table()
    assert "between 0.83 and 1.25 s, distance" in coarse.to_table()


def test_regions_by_frame_leave_an_interval_and_one_region_for_all_does_not(metric: IDSim, leaving: str) -> None:
    box = (20, 20, 240, 180)
    listed = {f"{leaving} @ {number}": [box] for number in range(COUNT)}
    assert [row["exact"] for row in consistency(metric, leaving, frames=8, regions=listed).changes] == [False, False]
    result = consistency(metric, leaving, frames=8, regions=[box])
    assert [row["first_frame"] for row in result.changes] == [15, 26]


def test_the_threshold_decides_across_cuts(metric: IDSim, leaving: str) -> None:
    result = consistency(metric, leaving, threshold=1.5)
    assert len(result.changes) == 0
    assert (result.threshold, result.threshold_source) == (1.5, "given")
    with pytest.raises(RequestError, match="must be a distance"):
        consistency(metric, leaving, threshold=-1)


def test_clips_without_changes_and_still_images(metric: IDSim) -> None:
    pictures = film([(ANN, REX)] * 3)
    stills = consistency(metric, pictures)
    (row,) = stills.rows
    assert (row["changes"], row["verdict"], row["first_to_last"]) == (None, None, None)
    assert len(stills.changes) == len(stills.cuts) == 0
    assert "threshold" not in stills.to_table()
    one = consistency(metric, Clip(pictures[:1], name="one"))
    assert one.rows[0]["verdict"] == "fewer than two frames"
    none = consistency(metric, Clip(pictures, name="none"), regions=[[], [], []])
    assert none.rows[0]["verdict"] == "fewer than two frames"


def test_a_match_without_subjects_has_all_of_its_results(result: Consistency) -> None:
    images = result.images
    assert images.summary.to_records() == images.over_time.to_records() == images.rows.to_records() == []
    assert "subject" in images.to_table()
    assert json.loads(images.to_json())["summary"] == []
    assert (images.worst, images.coverage, images.histories()) == ({}, {}, {})
    assert images.badness.shape == (16, 0)
