"""`match` of clips, end to end: painted films with known answers."""

from __future__ import annotations

import itertools
import json
import warnings
from dataclasses import replace

import av
import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import Clip, IDSim, Region, consistency, match
from idmetric.matching.tracks import CUT
from idmetric.matching.video import ClipError
from idmetric.metric.errors import RequestError
from idmetric.metric.images.read import ImageReadError
from idmetric.stream.subjects import embed_subject
from tests.clip_files import write_video
from tests.matching.films import BOXES, LEFT, RIGHT, blend, film, frame
from tests.matching.scenes import ANN, REX, STRANGER

THRESHOLD = 0.2
TWIN = replace(blend(ANN, REX, 0.25), emblem=REX.emblem)  # a look-alike: Ann's shapes, and nearly her colors


@pytest.fixture(scope="module")
def metric():
    return IDSim("tiny")


def subjects_of(metric, **badges):
    """Subjects by crops of frames with another background."""
    subjects = []
    for name, badge in badges.items():
        photos = [frame((badge, None), turn, seed=5).crop(LEFT) for turn in (0, 12, 24, 36)]
        subjects.append(embed_subject(metric, photos, name=name))
    return subjects


@pytest.fixture(scope="module")
def subjects(metric):
    return subjects_of(metric, ann=ANN, rex=REX)


def matched(metric, subjects, source, **options):
    """The match of a video, or of a film in memory, by given boxes."""
    settings = {"regions": BOXES, "threshold": THRESHOLD, "frames": "all", **options}
    return match(metric, subjects, source if isinstance(source, str) else Clip(source, fps=8), **settings)


def rows_of(found):
    return {row["subject"]: row for row in found.over_time}


def test_a_calm_film_has_both_subjects_all_the_time(metric, subjects):
    found = matched(metric, subjects, film([(ANN, REX)] * 8))
    assert found.states == [["matched", "matched"]] * 8
    assert found.swapped == [[]] * 8
    assert found.table.clips == ("clip",) * 8
    assert found.table.seconds == pytest.approx([number / 8 for number in range(8)])
    for row in found.over_time:
        assert (row["frames"], row["coverage"], row["cuts"], row["swapped"]) == (8, 1.0, 0, [])
        assert row["mean"] < row["worst"] < THRESHOLD


def test_frames_in_which_an_encoder_sees_nothing_keep_the_tracks(metric):
    """A face that turns away for a frame: its region shows nothing, and then another face."""

    def colors(images):
        means = [np.asarray(image).reshape(-1, 3).mean(0) for image in images]
        return [None if np.ptp(mean) < 2 else mean - 128 for mean in means]

    pictures = [frame((ANN, REX)) for _ in range(3)]
    people = {"ann": pictures[0].crop(LEFT), "rex": pictures[0].crop(RIGHT)}
    pictures[1].paste((120, 120, 120), LEFT)
    pictures[2].paste(people["rex"], LEFT)
    pictures[2].paste(people["ann"], RIGHT)
    for names in (["ann", "rex"], ["ann"]):
        encoders = dict.fromkeys(names, colors)
        found = matched(metric, people, pictures, encoders=encoders, threshold=0.1)
        assert max(found.frame_differences[1:]) < CUT
        assert found.states[1] == ["missing", "matched"]
        assert found.swapped == [[], [], ["ann", "rex"]]


def test_numbers_over_time_by_a_slow_loop(metric, subjects):
    pictures = film([(ANN, REX)] * 5)
    found = matched(metric, subjects, pictures)
    for subject, box in zip(subjects, (LEFT, RIGHT), strict=True):
        crops = [picture.crop(box) for picture in pictures]
        to_references = [float(metric.pairwise(subject.embedding, [crop]).min()) for crop in crops]
        to_first = [metric(crops[0], crop).item() for crop in crops[1:]]
        to_previous = [metric(crops[number], crops[number + 1]).item() for number in range(4)]
        row = rows_of(found)[subject.name]
        for name, values, start in (("to_first", to_first, 1), ("to_previous", to_previous, 1)):
            assert row[name] == pytest.approx(np.mean(values), abs=1e-5)
            assert row[f"{name}_worst"] == pytest.approx(max(values), abs=1e-5)
            assert row[f"{name}_worst_time"] == f"clip @ {start + int(np.argmax(values))}"
        assert row["mean"] == pytest.approx(np.mean(to_references), abs=1e-5)
        assert row["worst"] == pytest.approx(max(to_references), abs=1e-5)
        assert row["worst_time"] == f"clip @ {int(np.argmax(to_references))}"


@pytest.mark.parametrize("other", [REX, TWIN], ids=["another", "a look-alike"])
@pytest.mark.parametrize("threshold", [THRESHOLD, None], ids=["threshold", "none"])
def test_two_that_are_exchanged_half_way_are_swapped_there(metric, other, threshold):
    pair = subjects_of(metric, ann=ANN, other=other)
    pictures = film([(ANN, other)] * 4 + [(other, ANN)] * 4)
    found = matched(metric, pair, pictures, threshold=threshold)
    assert found.swapped == [[]] * 4 + [["ann", "other"]] + [[]] * 3
    assert {row["coverage"] for row in found.over_time} == {1.0}
    assert {tuple(row["swapped"]) for row in found.over_time} == {("clip @ 4",)}
    assert [row["swapped"] for row in found.rows].count(True) == 2
    # as far as distances to references go, all is well
    calm = matched(metric, pair, film([(ANN, other)] * 8), threshold=threshold)
    assert rows_of(found)["ann"]["mean"] == pytest.approx(rows_of(calm)["ann"]["mean"], abs=0.02)


def test_one_that_is_missing_for_a_while_lowers_the_coverage_and_is_not_swapped(metric, subjects):
    boxes = [BOXES, BOXES, [RIGHT], [RIGHT], BOXES, BOXES]
    shown = [(ANN, REX)] * 2 + [(None, REX)] * 2 + [(ANN, REX)] * 2
    found = matched(metric, subjects, film(shown), regions=boxes)
    assert [states[0] for states in found.states] == ["matched"] * 2 + ["missing"] * 2 + ["matched"] * 2
    assert found.swapped == [[]] * 6
    rows = rows_of(found)
    assert rows["ann"]["coverage"] == pytest.approx(4 / 6)
    assert rows["rex"]["coverage"] == 1.0
    assert rows["ann"]["worst_time"] in ("clip @ 2", "clip @ 3")  # Rex is the nearest there
    assert rows["ann"]["worst"] > THRESHOLD > rows["ann"]["mean"]


def test_doubled_and_replaced_subjects_have_their_times(metric, subjects):
    shown = [(ANN, REX), (ANN, ANN), (ANN, REX), (ANN, STRANGER)]
    found = matched(metric, subjects, film(shown))
    assert [tuple(states) for states in found.states] == [
        ("matched", "matched"),
        ("doubled", "missing"),
        ("matched", "matched"),
        ("matched", "missing"),
    ]
    assert found.surplus == [[], [], [], [1]]
    assert rows_of(found)["rex"]["coverage"] == 0.5


def test_a_still_is_the_most_consistent_clip_and_says_so(metric, subjects):
    still = matched(metric, subjects, film([(ANN, REX)] * 6, turns=[7.0] * 6))
    turning = matched(metric, subjects, film([(ANN, REX)] * 6, turns=[0, 40, 80, 120, 160, 200]))
    for name in ("ann", "rex"):
        standing, moving = rows_of(still)[name], rows_of(turning)[name]
        assert standing["to_previous"] == pytest.approx(0, abs=1e-6)
        assert standing["to_previous"] < moving["to_previous"]
        assert (standing["stillness"], standing["flicker"]) == (1.0, 1.0)
        assert moving["stillness"] == 0.0
        assert moving["flicker"] < 1


def test_a_slow_drift_is_seen_from_the_first_frame_and_not_from_the_previous_one(metric):
    (ann,) = subjects_of(metric, ann=ANN)
    start, end = frame((ANN, None)), frame((STRANGER, None))
    pictures = [Image.blend(start, end, step / 11) for step in range(12)]
    (row,) = matched(metric, [ann], pictures, regions=[LEFT]).over_time
    assert row["worst_time"] in [f"clip @ {number}" for number in range(8, 12)]
    assert row["to_first"] > 2 * row["to_previous"]
    assert row["to_first_worst"] > 2 * row["to_previous_worst"]


def test_a_subject_that_turns_into_another_is_swapped(metric, subjects):
    badges = [replace(REX, corners=REX.corners) if step > 3 else ANN for step in range(8)]
    found = matched(metric, subjects, film([(badge, None) for badge in badges]), regions=[LEFT])
    assert found.swapped == [[]] * 4 + [["rex"]] + [[]] * 3


def test_a_hard_cut_is_counted_and_swaps_nobody(metric, subjects):
    before = [frame((ANN, REX), 3.0 * number) for number in range(4)]
    after = [frame((REX, ANN), 3.0 * number, seed=1) for number in range(4)]
    dark = [picture.point(lambda value: value // 4) for picture in after]
    found = matched(metric, subjects, before + dark, threshold=None)
    assert found.frame_differences[4] > CUT > max(found.frame_differences[1:4])
    assert found.swapped == [[]] * 8
    assert {row["cuts"] for row in found.over_time} == {1}
    assert [row["cut_seconds"] for row in found.over_time] == [[0.5], [0.5]]


def test_one_frame_has_no_values_from_frame_to_frame(metric, subjects):
    row = matched(metric, subjects, film([(ANN, REX)])).over_time[0]
    assert row["frames"] == 1
    for name in ("to_first", "to_previous_worst_time", "stillness", "flicker"):
        assert row[name] is None
    assert row["cuts"] == 0


# Videos


@pytest.fixture(scope="module")
def movie(tmp_path_factory):
    path = tmp_path_factory.mktemp("movie") / "movie.mp4"
    return write_video(path, film([(ANN, REX)] * 12 + [(REX, ANN)] * 12), fps=8)


def test_a_video_is_matched_like_its_frames(metric, subjects, movie):
    found = matched(metric, subjects, str(movie), frames=6)
    assert found.table.times == tuple(f"{movie} @ {index}" for index in (0, 4, 9, 13, 18, 23))
    assert found.table.seconds == pytest.approx([0, 0.5, 1.125, 1.625, 2.25, 2.875])
    assert [place for place, swapped in enumerate(found.swapped) if swapped] == [3]
    with av.open(str(movie)) as container:
        pictures = [picture.to_image() for picture in container.decode(video=0)]
    same = match(metric, subjects, [pictures[index] for index in (0, 4, 9, 13, 18, 23)], regions=[BOXES] * 6)
    torch.testing.assert_close(found.table.values, same.table.values, atol=1e-6, rtol=0)


def test_regions_of_frames(metric, subjects, movie, tmp_path):
    expected = matched(metric, subjects, str(movie), frames=2).table.values
    names = [f"{movie.name} @ {index}" for index in (0, 23)]
    lines = ["path,x,y,w,h"]
    for name in names:
        lines += [f"{name},{left},{top},{right - left},{bottom - top}" for left, top, right, bottom in BOXES]
    (tmp_path / "boxes.csv").write_text("\n".join(lines))
    for regions in ([BOXES, BOXES], dict.fromkeys(names, BOXES), lambda picture: BOXES, tmp_path / "boxes.csv"):
        values = matched(metric, subjects, str(movie), frames=2, regions=regions).table.values
        assert torch.equal(values, expected)
    first = matched(metric, subjects, str(movie), frames=2, regions=[[LEFT], BOXES])
    assert [len(regions) for regions in first.table.regions] == [1, 2]
    with pytest.raises(RequestError, match="regions of 3 images were given for 2"):
        matched(metric, subjects, str(movie), frames=2, regions=[BOXES] * 3)


def test_masks_of_frames_by_label(metric, subjects, movie, tmp_path):
    mask = frame((None, None)).convert("L").point(lambda value: 0)
    mask.paste(255, LEFT)
    folder = tmp_path / "masks" / f"{movie.name} @ 23"
    folder.mkdir(parents=True)
    mask.save(folder / "rex.png")
    mask.save(tmp_path / "masks" / f"{movie.name} @ 0.png")
    found = matched(metric, subjects, str(movie), frames=2, regions=tmp_path / "masks")
    assert [[region.label for region in regions] for regions in found.table.regions] == [[""], ["rex"]]
    assert found.boxes[0].tolist() == [list(map(float, LEFT))]


def test_images_and_clips_in_one_request(metric, subjects, movie):
    still = film([(ANN, REX)])[0]
    found = match(metric, subjects, [still, str(movie)], regions=lambda picture: BOXES, frames=2)
    assert found.table.clips == ("", str(movie), str(movie))
    assert np.isnan(found.table.seconds[0])
    assert [row["clip"] for row in found.over_time] == [str(movie)] * 2
    content = json.loads(found.to_json())
    assert [row["seconds"] for row in content["rows"]][::2] == [None, 0.0, 2.875]
    assert content["over_time"][0]["frames"] == 2
    assert "stillness" in found.to_table()


def test_damaged_frames_are_an_error_or_skipped_by_name(metric, subjects, movie, tmp_path):
    path = tmp_path / "damaged.mp4"
    data = bytearray(movie.read_bytes())
    with av.open(str(movie)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux() if packet.size]
    start, size = packets[8]
    data[start : start + size] = b"\xff" * size
    path.write_bytes(data)
    with pytest.raises(ImageReadError, match=r"damaged\.mp4 @ 8"):
        matched(metric, subjects, str(path))
    found = matched(metric, subjects, str(path), on_error="skip")
    assert list(found.skipped) == [f"{path} @ {index}" for index in range(8, 12)]
    assert "cannot be decoded" in found.skipped[f"{path} @ 9"]
    assert len(found.table.times) == 20
    assert found.over_time[0]["frames"] == 20


def test_a_clip_that_cannot_be_opened_is_an_error_or_skipped(metric, subjects, movie, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"")
    with pytest.raises(ClipError, match=r"broken\.mp4: the file is empty"):
        match(metric, subjects, [str(broken), str(movie)])
    found = match(metric, subjects, [str(broken), str(movie)], on_error="skip", frames=1)
    assert list(found.skipped) == [str(broken)]
    assert len(found.table.times) == 1


def test_gradients_reach_the_frames_of_a_clip_in_memory(metric, subjects):
    pictures = np.stack([np.asarray(picture) for picture in film([(ANN, REX)] * 2)])
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float().div(255).requires_grad_()
    matched(metric, subjects, pixels).table.values[1, 0, :, 0].sum().backward()
    assert pixels.grad[0].abs().sum() == 0
    assert pixels.grad[1].abs().sum() > 0


# Without references


def test_consistency_by_a_slow_loop(metric):
    pictures = [frame((badge, None)) for badge in (ANN, ANN, REX, ANN)]
    pictures[1] = frame((ANN, None), turn=20)
    result = consistency(metric, Clip(pictures, name="c"), frames="all")
    distances = {}
    for i, j in itertools.combinations(range(4), 2):
        distances[f"c @ {i}", f"c @ {j}"] = metric(pictures[i], pictures[j]).item()
    (row,) = result.rows
    assert row["mean"] == pytest.approx(np.mean(list(distances.values())), abs=1e-5)
    assert tuple(row["worst_pair"]) == max(distances, key=distances.get)
    assert row["worst"] == pytest.approx(max(distances.values()), abs=1e-5)
    assert row["outlier"] == "c @ 2"
    to_others = [distance for pair, distance in distances.items() if "c @ 2" in pair]
    assert row["outlier_mean"] == pytest.approx(np.mean(to_others), abs=1e-5)
    assert row["to_first"] == pytest.approx(np.mean([distances["c @ 0", f"c @ {i}"] for i in (1, 2, 3)]), abs=1e-5)
    assert row["frames"] == 4


def test_consistency_of_equal_frames_is_0(metric):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        frame = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        [row] = consistency(metric, Clip([frame] * 3), frames="all").rows
        for name in ("mean", "worst", "outlier_mean", "to_first", "to_previous", "first_to_last"):
            assert str(row[name]) == "0.0", (seed, name)


def test_consistency_takes_regions_with_any_label(metric):
    stills = film([(ANN, REX)] * 2)
    labeled = [[Region(LEFT, label="ann")], [Region(LEFT, label="a dog")]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (row,) = consistency(metric, stills, regions=labeled).rows
    assert row["mean"] == pytest.approx(metric(*(picture.crop(LEFT) for picture in stills)).item(), abs=1e-5)


def test_consistency_of_stills_and_clips_apart_and_by_regions(metric, movie):
    stills = film([(ANN, REX)] * 3)
    result = consistency(metric, [*stills, str(movie)], frames=4, regions=lambda picture: [LEFT])
    clip, together = result.rows
    assert (clip["clip"], clip["frames"]) == (str(movie), 4)
    assert (together["clip"], together["frames"], together["to_first"]) == ("", 3, None)
    crops = [picture.crop(LEFT) for picture in stills]
    pairs = [metric(crops[i], crops[j]).item() for i, j in itertools.combinations(range(3), 2)]
    assert together["mean"] == pytest.approx(np.mean(pairs), abs=1e-5)
    with pytest.raises(RequestError, match="has 2 regions"):
        consistency(metric, stills, regions=lambda picture: BOXES)
    (alone,) = consistency(metric, stills[0]).rows
    assert alone["mean"] is None
    assert alone["frames"] == 1
