"""`match` of clips, end to end: painted films with known answers."""

from __future__ import annotations

import itertools
import json
import warnings

import av
import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import Clip, IDSim, Region, consistency, match
from idmetric.matching.frames import ClipError
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError
from tests.clip_files import write_video
from tests.matching.films import BOXES, LEFT, RIGHT, film, frame
from tests.matching.scenes import ANN, REX, STRANGER

THRESHOLD = 0.2


@pytest.fixture(scope="module")
def metric():
    return IDSim("tiny")


def subjects_of(metric, **badges):
    """Subjects by crops of frames with another background."""
    subjects = {}
    for name, badge in badges.items():
        photos = [frame((badge, None), turn, seed=5).crop(LEFT) for turn in (0, 12, 24, 36)]
        subjects[name] = metric.embed(photos)
    return subjects


@pytest.fixture(scope="module")
def subjects(metric):
    return subjects_of(metric, ann=ANN, rex=REX)


def matched(metric, subjects, source, **options):
    """The match of a video, or of a film in memory, by given boxes."""
    settings = {"regions": BOXES, "threshold": THRESHOLD, "frames": "all", **options}
    return match(metric, subjects, source if isinstance(source, str) else Clip(source, fps=8), **settings)


def test_a_calm_film_has_both_subjects_all_the_time(metric, subjects):
    found = matched(metric, subjects, film([(ANN, REX)] * 8))
    assert found.states == [["matched", "matched"]] * 8
    assert found.swapped == [[]] * 8
    assert found.table.clips == ("clip",) * 8
    assert found.table.seconds == pytest.approx([number / 8 for number in range(8)])
    for row, distances in zip(found.intervals, found.distances.T, strict=True):
        assert (row["clip"], row["state"], row["start"], row["end"], row["frames"]) == ("clip", "matched", 0, 0.875, 8)
        assert row["mean"] == pytest.approx(distances.mean())
        assert row["mean"] < THRESHOLD


def test_one_that_is_missing_for_a_while_has_three_intervals(metric, subjects):
    boxes = [BOXES, BOXES, [RIGHT], [RIGHT], BOXES, BOXES]
    shown = [(ANN, REX)] * 2 + [(None, REX)] * 2 + [(ANN, REX)] * 2
    found = matched(metric, subjects, film(shown), regions=boxes)
    assert [states[0] for states in found.states] == ["matched"] * 2 + ["missing"] * 2 + ["matched"] * 2
    rows = [(row["subject"], row["state"], row["start"], row["end"], row["frames"]) for row in found.intervals]
    assert rows == [
        ("ann", "matched", 0, 0.125, 2),
        ("ann", "missing", 0.25, 0.375, 2),
        ("ann", "matched", 0.5, 0.625, 2),
        ("rex", "matched", 0, 0.625, 6),
    ]
    assert found.intervals[1]["mean"] is None
    assert found.coverage == {"ann": pytest.approx(4 / 6), "rex": 1.0}
    assert found.summary[0]["worst_image"] in ("clip @ 2", "clip @ 3")  # Rex is the nearest there


def test_subjects_without_a_threshold_have_no_intervals(metric):
    photos = {"ann": frame((ANN, None)).crop(LEFT)}
    found = matched(metric, photos, film([(ANN, REX)] * 2), threshold=None, distance="patch")
    assert len(found.intervals) == 0


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
    assert found.coverage["rex"] == 0.5


# Videos


@pytest.fixture(scope="module")
def movie(tmp_path_factory):
    path = tmp_path_factory.mktemp("movie") / "movie.mp4"
    return write_video(path, film([(ANN, REX)] * 12 + [(REX, ANN)] * 12), fps=8)


def test_a_video_is_matched_like_its_frames(metric, subjects, movie):
    found = matched(metric, subjects, str(movie), frames=6)
    assert found.table.times == tuple(f"{movie} @ {index}" for index in (0, 4, 9, 13, 18, 23))
    assert found.table.seconds == pytest.approx([0, 0.5, 1.125, 1.625, 2.25, 2.875])
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
    assert {row["clip"] for row in found.intervals} == {str(movie)}
    content = json.loads(found.to_json())
    assert [row["seconds"] for row in content["rows"]][::2] == [None, 0.0, 2.875]
    assert len(content["intervals"]) == len(found.intervals) >= 2
    assert "start" in found.to_table()


def test_a_damaged_clip_is_an_error_or_its_frames_are_skipped_by_name(metric, subjects, movie, tmp_path):
    path = tmp_path / "damaged.mp4"
    data = bytearray(movie.read_bytes())
    with av.open(str(movie)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux() if packet.size]
    start, size = packets[8]
    data[start : start + size] = b"\xff" * size
    path.write_bytes(data)
    with pytest.raises(ImageReadError, match=r"damaged\.mp4: it is damaged at or before frame"):
        matched(metric, subjects, str(path))
    found = matched(metric, subjects, str(path), on_error="skip")
    count = len(found.table.times)
    assert count <= 8
    assert list(found.skipped) == [f"{path} @ {index}" for index in range(count, 24)]


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
    assert row["frames"] == 4
    assert row["mean"] == pytest.approx(np.mean(list(distances.values())), abs=1e-5)
    assert row["first"] == pytest.approx(np.mean([distances["c @ 0", f"c @ {i}"] for i in (1, 2, 3)]), abs=1e-5)
    previous = [distances[f"c @ {i}", f"c @ {i + 1}"] for i in range(3)]
    assert row["previous"] == pytest.approx(np.mean(previous), abs=1e-5)


def test_consistency_of_equal_frames_is_0(metric):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        frame = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        [row] = consistency(metric, Clip([frame] * 3), frames="all").rows
        for name in ("mean", "first", "previous"):
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
    assert (together["clip"], together["frames"], together["first"]) == ("", 3, None)
    crops = [picture.crop(LEFT) for picture in stills]
    pairs = [metric(crops[i], crops[j]).item() for i, j in itertools.combinations(range(3), 2)]
    assert together["mean"] == pytest.approx(np.mean(pairs), abs=1e-5)
    with pytest.raises(RequestError, match="has 2 regions"):
        consistency(metric, stills, regions=lambda picture: BOXES)
    (alone,) = consistency(metric, stills[0]).rows
    assert alone["mean"] is None
    assert alone["frames"] == 1
