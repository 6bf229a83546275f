"""When the state of a subject changes in a clip: films in which a subject leaves or comes at a known frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import pytest
import torch

from idmetric import IDSim
from idmetric.cli.match import main
from idmetric.matching import Clip, Match, Region, Subject, match
from idmetric.matching.changes import FrameStates, history, state_changes
from idmetric.matching.clips import Moment
from idmetric.metric.images.read import ImageReadError
from idmetric.stream.subjects import embed_subject
from tests.clip_files import write_video
from tests.matching.films import BOXES, LEFT, RIGHT, film, frame
from tests.matching.scenes import ANN, REX, STRANGER

FPS = 24
COUNT = 84  # frames
LEAVES = 61  # the first frame without the dog
THRESHOLD = 0.2
ALL = [(ANN, REX)] * COUNT  # the cat is on the left, the dog on the right
LEAVING = [(ANN, REX)] * LEAVES + [(ANN, STRANGER)] * (COUNT - LEAVES)
TEXT = "dog: matched to 2.50 s, missing from 2.54 s (frame 61)"


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def subjects(metric: IDSim) -> list[Subject]:
    return [subject_of(metric, "cat", ANN), subject_of(metric, "dog", REX)]


def subject_of(metric: IDSim, name: str, badge: Any) -> Subject:
    photos = [frame((badge, None), turn, seed=5).crop(LEFT) for turn in (0, 12, 24, 36)]
    return embed_subject(metric, photos, name=name)


def movie(path: Path, shown: Sequence[Any], fps: int = FPS, **options: Any) -> str:
    """A video of badges that turn by a degree a frame."""
    turns = [float(number) for number in range(len(shown))]
    return str(write_video(path, film(shown, turns), fps=fps, **options))


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> str:
    return movie(tmp_path_factory.mktemp("leaving") / "clip.mp4", LEAVING)


def matched(metric: IDSim, subjects: Any, clip: Any, **options: Any) -> Match:
    settings = {"regions": BOXES, "threshold": THRESHOLD, **options}
    return match(metric, subjects, clip, **settings)


def borders(found: Match) -> list[tuple[Any, ...]]:
    """Subject, states, and frames of each change."""
    names = ("subject", "from", "to", "last_frame", "first_frame")
    return [tuple(row[name] for name in names) for row in found.changes]


def boxes_of_frames(folder: Path, clip: str) -> Path:
    """A table of the regions of every frame."""
    lines = ["path,x,y,w,h"]
    for number in range(COUNT):
        for left, top, right, bottom in BOXES:
            lines.append(f"{Path(clip).name} @ {number},{left},{top},{right - left},{bottom - top}")
    path = folder / "boxes.csv"
    path.write_text("\n".join(lines))
    return path


# The exact frame


@pytest.mark.parametrize("frames", [4, 16, "2fps", "all"])
def test_a_subject_that_leaves_is_missing_from_the_exact_frame(
    metric: IDSim, subjects: list[Subject], leaving: str, frames: Any
) -> None:
    found = matched(metric, subjects, leaving, frames=frames)
    (row,) = found.changes
    assert (row["clip"], row["subject"], row["from"], row["to"]) == (leaving, "dog", "matched", "missing")
    assert (row["last_frame"], row["first_frame"], row["exact"]) == (LEAVES - 1, LEAVES, True)
    assert (row["last_image"], row["first_image"]) == (f"{leaving} @ 60", f"{leaving} @ 61")
    assert row["last_seconds"] == pytest.approx(2.5)
    assert row["first_seconds"] == pytest.approx(61 / 24)
    assert row["last_distance"] < THRESHOLD < row["first_distance"]
    lines = found.to_table().splitlines()
    assert TEXT in lines
    assert "cat: matched throughout" in lines


def test_regions_of_a_function_and_whole_frames_have_exact_times(
    metric: IDSim, subjects: list[Subject], leaving: str, tmp_path: Path
) -> None:
    found = matched(metric, subjects, leaving, frames=4, regions=lambda picture: [Region(LEFT), Region(RIGHT)])
    assert borders(found) == [("dog", "matched", "missing", 60, 61)]

    crops = [picture.crop(LEFT) for picture in film([(REX, None)] * 20 + [(STRANGER, None)] * 10)]
    clip = str(write_video(tmp_path / "whole.mp4", crops, fps=10))
    alone = match(metric, subjects[1:], clip, frames=4, threshold=THRESHOLD)
    assert borders(alone) == [("dog", "matched", "missing", 19, 20)]
    assert "dog: matched to 1.90 s, missing from 2.00 s (frame 20)" in alone.to_table().splitlines()


def test_with_a_file_of_regions_the_change_lies_between_two_frames_in_use(
    metric: IDSim, subjects: list[Subject], leaving: str, tmp_path: Path
) -> None:
    boxes = boxes_of_frames(tmp_path, leaving)
    found = matched(metric, subjects, leaving, frames="2fps", regions=boxes)
    (row,) = found.changes
    assert (row["last_seconds"], row["first_seconds"], row["exact"]) == (2.5, 3.0, False)
    assert "dog: matched, missing from a frame between 2.50 and 3.00 s" in found.to_table().splitlines()
    everything = matched(metric, subjects, leaving, frames="all", regions=boxes)
    assert TEXT in everything.to_table().splitlines()


def test_every_change_between_two_frames_in_use_is_found(
    metric: IDSim, subjects: list[Subject], tmp_path: Path
) -> None:
    """The dog leaves, comes back and leaves again; the cat is away in between."""
    shown = list(ALL)
    for number in [*range(30, 34), *range(40, COUNT)]:
        shown[number] = (ANN, STRANGER)
    for number in (35, 36):
        shown[number] = (STRANGER, REX)
    clip = movie(tmp_path / "clip.mp4", shown)
    found = matched(metric, subjects, clip, frames=4)  # 0, 27, 55, 83
    assert borders(found) == [
        ("cat", "matched", "missing", 34, 35),
        ("cat", "missing", "matched", 36, 37),
        ("dog", "matched", "missing", 29, 30),
        ("dog", "missing", "matched", 33, 34),
        ("dog", "matched", "missing", 39, 40),
    ]
    text = (
        "dog: matched to 1.21 s, missing from 1.25 s (frame 30) to 1.38 s, matched from 1.42 s (frame 34) to 1.62 s, "
        "missing from 1.67 s (frame 40)"
    )
    assert text in found.to_table().splitlines()
    assert borders(found) == borders(matched(metric, subjects, clip, frames="all"))


def test_frames_between_count_in_changes_alone(metric: IDSim, subjects: list[Subject], leaving: str) -> None:
    refined = matched(metric, subjects, leaving, frames=4)
    plain = matched(metric, subjects, leaving, frames=4, refine=False)
    assert torch.equal(refined.table.values, plain.table.values)
    assert refined.coverage == plain.coverage == {"cat": 1.0, "dog": 0.75}
    assert refined.summary.to_records() == plain.summary.to_records()
    assert len(refined.rows) == len(plain.rows) == 8
    assert borders(plain) == [("dog", "matched", "missing", 55, 83)]
    assert not plain.changes[0]["exact"]


def test_frames_are_decoded_only_where_two_states_differ(
    metric: IDSim, subjects: list[Subject], leaving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idmetric.matching.video import Video

    wanted: list[list[int]] = []
    read = Video.read

    def recorded(video: Video, indices: Sequence[int]) -> Any:
        wanted.append(list(indices))
        return read(video, indices)

    monkeypatch.setattr(Video, "read", recorded)
    matched(metric, subjects, leaving, frames=4)
    assert wanted == [[0, 27, 55, 83], list(range(56, 83))]
    wanted.clear()
    matched(metric, subjects, leaving, frames=4, threshold={"cat": THRESHOLD, "dog": 2.0})
    assert wanted == [[0, 27, 55, 83]]


def test_a_damaged_frame_leaves_an_interval(metric: IDSim, subjects: list[Subject], tmp_path: Path) -> None:
    path = Path(movie(tmp_path / "clip.mp4", LEAVING))
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux() if packet.size]
    data = bytearray(path.read_bytes())
    start, size = packets[LEAVES]
    data[start : start + size] = b"\xff" * size
    path.write_bytes(data)  # it spoils the frames up to the next key frame, 72
    found = matched(metric, subjects, str(path), frames=4)
    (row,) = found.changes
    assert (row["last_frame"], row["first_frame"], row["exact"]) == (60, 72, False)
    assert "dog: matched, missing from a frame between 2.50 and 3.00 s" in found.to_table().splitlines()
    with pytest.raises(ImageReadError, match=r"clip\.mp4 @ 61"):
        matched(metric, subjects, str(path), frames="all")


def test_times_are_those_of_the_time_stamps(metric: IDSim, subjects: list[Subject], tmp_path: Path) -> None:
    """In 1/600 seconds: the second half runs at half the speed."""
    stamps = [20 * number for number in range(10)] + [200 + 40 * number for number in range(10)]
    shown = [(ANN, REX)] * 13 + [(ANN, STRANGER)] * 7
    clip = movie(tmp_path / "clip.mov", shown, stamps=stamps)
    found = matched(metric, subjects, clip, frames=3)
    (row,) = found.changes
    assert (row["last_seconds"], row["first_seconds"]) == (pytest.approx(280 / 600), pytest.approx(320 / 600))


def test_folders_and_frames_in_memory(metric: IDSim, subjects: list[Subject], tmp_path: Path) -> None:
    pictures = film([(ANN, REX)] * 7 + [(ANN, STRANGER)] * 5)
    found = matched(metric, subjects, Clip(pictures, fps=4, name="film"), frames=3)
    assert borders(found) == [("dog", "matched", "missing", 6, 7)]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    (row,) = matched(metric, subjects, Clip(tmp_path, fps=4), frames=3).changes
    assert row["first_image"] == str(tmp_path / "7.png")
    assert (row["first_frame"], row["first_seconds"]) == (7, 1.75)


def test_several_clips_are_named(metric: IDSim, subjects: list[Subject], leaving: str) -> None:
    calm = Clip(film([(ANN, REX)] * 4), fps=4, name="calm")
    found = matched(metric, subjects, [leaving, calm], frames=4, regions=lambda picture: BOXES)
    lines = found.to_table().splitlines()
    assert f"{leaving}, {TEXT}" in lines
    assert "calm, dog: matched throughout" in lines
    assert borders(found) == [("dog", "matched", "missing", 60, 61)]


# Casts


def test_the_cast_of_a_clip_holds_for_the_frames_between(metric: IDSim, subjects: list[Subject], leaving: str) -> None:
    cast = {"clip.mp4": ["cat", "dog"], "clip.mp4 @ 1.5s-9s": ["cat"]}
    found = matched(metric, subjects, leaving, frames=4, cast=cast)
    assert borders(found) == [("dog", "matched", "unexpected", 35, 36), ("dog", "unexpected", "absent", 60, 61)]


def test_a_cast_of_single_frames_says_nothing_about_the_frames_between(
    metric: IDSim, subjects: list[Subject], leaving: str
) -> None:
    cast = {f"clip.mp4 @ {number}": ["dog"] for number in (0, 27, 55, 83)}
    found = matched(metric, subjects, leaving, frames=4, cast=cast)
    assert borders(found) == [("dog", "matched", "missing", 55, 83)]


# States


def test_a_subject_without_states_has_no_changes(metric: IDSim, leaving: str) -> None:
    photos = {"cat": frame((ANN, None)).crop(LEFT), "dog": frame((REX, None)).crop(LEFT)}
    found = match(metric, photos, leaving, frames=4, regions=BOXES, threshold={"cat": 0.2}, distance="patch")
    assert found.thresholds[1] != found.thresholds[1]
    assert list(found.histories()) == [(leaving, "cat")]
    assert {row["subject"] for row in found.changes} <= {"cat"}


def test_still_images_have_no_changes(metric: IDSim, subjects: list[Subject]) -> None:
    found = matched(metric, subjects, [frame((ANN, REX)), frame((ANN, STRANGER))], regions=lambda picture: BOXES)
    assert [states[1] for states in found.states] == ["matched", "missing"]
    assert len(found.changes) == 0
    assert found.histories() == {}
    assert found.changes.columns[:4] == ("clip", "subject", "from", "to")


def moments(*frames: int) -> list[Moment]:
    return [Moment(f"c @ {number}", "c", number / 4, number) for number in frames]


def test_changes_by_hand() -> None:
    states = [("matched", ""), ("matched", ""), ("doubled", ""), ("missing", "")]
    frames = []
    for moment, frame_states in zip(moments(0, 1, 2, 6), states, strict=True):
        frames.append(FrameStates(moment, frame_states, (0.5, None)))
    changes = state_changes(["cat", "dog"], reversed(frames))
    assert [(change.subject, change.old_state, change.new_state) for change in changes] == [
        ("cat", "matched", "doubled"),
        ("cat", "doubled", "missing"),
    ]
    assert [change.border.is_exact for change in changes] == [True, False]
    assert history("matched", changes) == (
        "matched to 0.25 s, doubled from 0.50 s (frame 2), missing from a frame between 0.50 and 1.50 s"
    )
    assert history("matched", []) == "matched throughout"


def test_many_changes_are_cut_short() -> None:
    states = [("matched",), ("missing",)] * 10
    frames = [FrameStates(moment, state, (0.1,)) for moment, state in zip(moments(*range(20)), states, strict=True)]
    text = history("matched", state_changes(["cat"], frames))
    assert text.count("(frame ") == 6
    assert text.endswith(", and 13 more changes")


# The command


def test_the_command_prints_seconds_and_states_with_their_times(
    leaving: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, badge in (("cat", ANN), ("dog", REX)):
        (tmp_path / name).mkdir()
        for turn in (0, 12, 24, 36):
            frame((badge, None), turn, seed=5).crop(LEFT).save(tmp_path / name / f"{turn}.png")
    arguments = [
        "--model", "tiny", leaving, "--subject", f"dog={tmp_path / 'dog'}", "--frames", "2fps",
        "--threshold", "0.2", "--quiet", "--regions", str(boxes_of_frames(tmp_path, leaving)),
    ]  # fmt: skip
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["subject", "state", "distance", "nearest", "threshold", "region", "seconds", "image"]
    assert lines[6].split()[-4:] == ["2.50", leaving, "@", "60"]
    assert "dog: matched, missing from a frame between 2.50 and 3.00 s" in lines

    assert main([*arguments, "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (change,) = content["changes"]
    assert (change["subject"], change["from"], change["to"], change["exact"]) == ("dog", "matched", "missing", False)
