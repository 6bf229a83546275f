"""The choice of frames (ID-Sim, A.2.1), where clips have their masks, and what is written of them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco

from idmetric.data.frames.choose import SAMPLINGS, Faults, Sampling, candidates, choose, plan, positions
from idmetric.data.frames.clips import AnnotatedClip, find_clips, with_codes
from idmetric.data.frames.extract import Extraction, extract, to_table
from idmetric.data.frames.footage import open_clip, read_boxes
from idmetric.data.manifest import read, write
from idmetric.data.sharpness import blur_score
from idmetric.matching.frames import ClipError
from idmetric.metric.images import read_image
from idmetric.metric.masks import read_mask
from tests.clip_files import mask, number_of, picture, write_folder, write_masks, write_video

ALL = Sampling(fps=10, stride=1, annotated=10, parts=5, coverage=(0, 1), blur=0)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def bits_of(path: str) -> np.ndarray:
    return read_mask(path).numpy() >= 0.5


# The plan


def test_parameters_are_those_of_table_four() -> None:
    table = {"lasot": (30, 5, 6, 30, 6), "got10k": (10, 5, 2, 10, 5), "youtubevis": (6, 5, 2, 10, 5),
             "uco3d": (30, 1, 30, 30, 5)}  # fmt: skip
    seconds = {"lasot": 1.0, "got10k": 1.0, "youtubevis": 1.7, "uco3d": 1.0}
    for name, s in SAMPLINGS.items():
        assert (s.fps, s.stride, s.annotated, s.window, s.parts) == table[name]
        assert round(s.window / s.fps, 1) == seconds[name]
        assert (s.coverage, s.blur, s.least, s.long) == ((0.1, 0.9), 50, 2, 6)
    assert len(SAMPLINGS) == 4


def test_long_clips_give_equal_parts_and_short_ones_windows() -> None:
    got10k, lasot = SAMPLINGS["got10k"], SAMPLINGS["lasot"]
    assert plan(60, got10k) == [range(i, i + 10) for i in range(0, 60, 10)]  # just 6 seconds
    assert [len(w) for w in plan(61, got10k)] == [12, 12, 12, 12, 13]
    assert [len(w) for w in plan(3000, lasot)] == [500] * 6
    assert plan(25, got10k) == [range(10), range(10, 20), range(20, 25)]
    assert plan(1, got10k) == [range(1)]
    assert plan(0, got10k) == []


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 7))
def test_annotated_frames_a_stride_apart_are_looked_at(annotated: list[bool], stride: int) -> None:
    found = candidates(range(len(annotated)), annotated, stride)
    assert all(annotated[i] for i in found)
    assert all(b - a >= stride for a, b in pairwise(found))
    for i in np.flatnonzero(annotated):  # what is left out lies within a stride of one that is not
        assert any(0 <= i - f < stride for f in found)


# Quality


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_blur_score_is_the_variance_of_opencvs_laplacian(width: int, height: int, seed: int) -> None:
    gray = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    assert blur_score(Image.fromarray(gray)) == pytest.approx(cv2.Laplacian(gray, cv2.CV_64F).var(), rel=1e-12)


def test_limits_of_coverage_and_sharpness_are_valid_themselves(tmp_path: Path) -> None:
    for name, share in (("least", 9 / 90), ("most", 81 / 90), ("less", 8 / 90), ("more", 82 / 90)):
        for i in range(20):
            for place in (tmp_path / name, tmp_path / "masks" / name):
                place.mkdir(parents=True, exist_ok=True)
            picture(i, size=(90, 64)).save(tmp_path / name / f"{i}.png")
            mask(share, (90, 64)).save(tmp_path / "masks" / name / f"{i}.png")
    counts = {}
    sampling = Sampling(fps=10, stride=1, annotated=10, parts=5, blur=0)
    for clip in find_clips(tmp_path, tmp_path / "masks"):
        counts[clip.name] = len(list(choose(open_clip(clip, 10), sampling, 0, Faults())))
    assert counts == {"least": 2, "most": 2, "less": 0, "more": 0}

    clip = find_clips(tmp_path / "least", tmp_path / "masks/least")[0]
    scores = {i: blur_score(picture(i, size=(90, 64))) for i in range(10)}
    sharpest = max(scores, key=lambda i: scores[i])
    exact = Sampling(fps=10, stride=1, annotated=10, parts=5, blur=scores[sharpest])
    first = next(choose(open_clip(clip, 10), exact, 0, Faults()))
    assert scores[first.index] == scores[sharpest]


# The choice


EVERY = Sampling(fps=10, stride=2, annotated=5, parts=5)


def test_one_valid_frame_of_each_window_is_chosen_evenly(tmp_path: Path) -> None:
    """Of two seconds at 10 fps, annotated every second frame, some blurred, too small or too large."""
    write_folder(tmp_path / "clip", 20, blurred=(2, 4, 14), first=95)
    shares = dict.fromkeys(range(0, 20, 2), 0.5) | {0: 0.05, 6: 0.95, 12: 0.02}
    write_masks(tmp_path / "masks" / "clip", shares, first=95)
    clip = find_clips(tmp_path / "clip", tmp_path / "masks")[0]

    counts = dict.fromkeys((8, 10, 16, 18), 0)
    for seed in range(150):
        picks = list(choose(open_clip(clip, 10), EVERY, seed, Faults()))
        assert [pick.window for pick in picks] == [0, 1]
        for pick in picks:
            assert pick.index // 10 == pick.window
            assert number_of(pick.image) == pick.index  # names sorted by number: 95, ..., 99, 100, ...
            assert pick.object.coverage == pick.object.mask.mean() == 0.5
            assert pick.blur == blur_score(picture(pick.index))
            counts[pick.index] += 1  # KeyError for one that is not valid
    assert counts[8] == 150  # the only one of its window
    for index in (10, 16, 18):
        assert abs(counts[index] - 50) <= 4 * (150 * 2 / 9) ** 0.5  # four standard deviations


def test_every_object_of_an_annotation_is_an_instance(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "frames/clip", 20)

    def columns(first: int, last: int) -> dict[str, Any]:
        bits = np.zeros((64, 96), np.uint8, order="F")
        bits[:, first:last] = 1
        return dict(coco.encode(bits))

    kept, thin, late = columns(0, 40), columns(50, 52), columns(40, 50)
    codes = {str(i): {1: kept, 3: thin, **({7: late} if i >= 10 else {})} for i in range(20)}
    record = extract(AnnotatedClip("clip", folder, codes), tmp_path / "out", Extraction(EVERY))
    assert [(frame["object"], frame["frame"] // 10) for frame in record["frames"]] == [(1, 0), (1, 1)]
    assert (record["instances"], record["short"]) == (3, 2)  # 7 has one frame, and needs two
    assert record["reasons"] == {"too small": 10}

    table = to_table([record], tmp_path / "out", "davis", {("clip", 1): "dog"})
    assert set(table["identity"]) == {"davis/clip/1"}
    assert set(table["category"]) == {"dog"}
    expected = np.zeros((64, 96), bool)
    expected[:, :40] = True
    for row in table.itertuples():
        assert np.array_equal(bits_of(row.mask), expected)
        assert number_of(read_image(row.path)) == row.frame
    assert len(list((tmp_path / "out").rglob("*.*"))) == 5  # frames of instances that are left out are not kept


# Sources


def test_masks_are_found_where_datasets_have_them(tmp_path: Path) -> None:
    write_folder(tmp_path / "lasot/cat/cat-1/img", 2)
    (tmp_path / "lasot/cat/cat-1/groundtruth.txt").write_text("1,1,2,2\n1,1,2,2\n")
    write_folder(tmp_path / "got/train/GOT-1", 2)
    write_masks(tmp_path / "annotations/train/GOT-1", {0: 0.5})
    for name in ("uco/animal/cat/1-2/rgb_video.mp4", "uco/animal/cat/1-2/mask_video.mkv", "films/x.mp4", "films/y.MOV",
                 "films/.hidden.mp4", "more/d/z.mp4", "more_masks/d/z.mkv"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "notes.txt").touch()

    def found(root: str, masks: str | None = None) -> dict[str, str | None]:
        clips = find_clips(tmp_path / root, None if masks is None else tmp_path / masks)
        return {c.name: c.masks and c.masks.relative_to(tmp_path).as_posix() for c in clips}

    assert found("lasot") == {"cat/cat-1": None}
    assert find_clips(tmp_path / "lasot")[0].boxes == tmp_path / "lasot/cat/cat-1/groundtruth.txt"
    assert found("got", "annotations") == {"train/GOT-1": "annotations/train/GOT-1"}
    assert found("got/train/GOT-1", "annotations/train/GOT-1") == {"GOT-1": "annotations/train/GOT-1"}
    assert found("uco") == {"animal/cat/1-2": "uco/animal/cat/1-2/mask_video.mkv"}
    assert found("films") == {"x": None, "y": None}
    assert found("films/x.mp4", "annotations") == {"x": "annotations"}
    assert found("more", "more_masks") == {"d/z": "more_masks/d/z.mkv"}
    assert "annotations/train/GOT-1" not in found(".", "annotations")  # masks below the same folder are no clips


def test_clips_that_cannot_be_told_apart_or_found_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ClipError, match="nothing"):
        find_clips(tmp_path / "nothing")
    with pytest.raises(ClipError, match="no images"):
        find_clips(tmp_path)
    for name in ("a.mp4", "a.mov"):
        (tmp_path / name).touch()
    with pytest.raises(ClipError, match=r"a\.mov and .*a\.mp4 "):
        find_clips(tmp_path)
    write_folder(tmp_path / "b", 2)
    picture(0).save(tmp_path / "b/0.jpg")
    with pytest.raises(ClipError, match=r"0\.jpg and .*0\.png "):
        open_clip(find_clips(tmp_path / "b")[0], 10)


def test_missing_and_misfitting_masks_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "clip", 4)
    with pytest.raises(ClipError, match=r"clip: .*--masks"):
        open_clip(AnnotatedClip("clip", folder), 10)
    write_masks(tmp_path / "other", {7: 0.5})
    with pytest.raises(ClipError, match=r"other: .*0\.png"):
        open_clip(AnnotatedClip("clip", folder, tmp_path / "other"), 10)

    (tmp_path / "masks").mkdir()
    mask(0.5, (48, 32)).save(tmp_path / "masks/1.png")
    several = np.zeros((64, 96), np.uint8)
    several[:, :30], several[:, 30:60] = 2, 5
    Image.fromarray(several).save(tmp_path / "masks/2.png")
    faults = Faults()
    assert not list(choose(open_clip(AnnotatedClip("clip", folder, tmp_path / "masks"), 10), ALL, 0, faults))
    assert len(faults.unreadable) == 2
    assert "clip, frame 1" in faults.unreadable[0]
    assert "2.png" in faults.unreadable[1]


def test_boxes_are_read_with_their_flags(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cat/cat-1/img", 6, first=1)
    lines = ["0,0,48,64", "-48,0,96,64", "10,10,0,5", "nan,nan,nan,nan", "0,0,96,64", "0,0,48,64"]
    boxes = tmp_path / "cat/cat-1/groundtruth.txt"
    boxes.write_text("\r\n".join(lines) + "\r\n")
    (tmp_path / "cat/cat-1/full_occlusion.txt").write_text("0,0,0,0,0,1")
    clip = find_clips(tmp_path)[0]
    assert clip.frames == folder
    with pytest.raises(ClipError, match="--segment"):
        open_clip(clip, 10)
    assert read_boxes(clip, 6) == [(0, 0, 48, 64), (-48, 0, 48, 64), None, None, (0, 0, 96, 64), None]
    for text in ("1,2,3\n" * 6, "1,2,3,4\n" * 5, "1,2,3,x\n" * 6):
        boxes.write_text(text)
        with pytest.raises(ClipError, match=r"groundtruth\.txt"):
            read_boxes(clip, 6)
    boxes.write_text("1 2 3 4\n" * 6)
    (tmp_path / "cat/cat-1/absence.label").write_text("0\n" * 5)
    with pytest.raises(ClipError, match=r"absence\.label"):
        read_boxes(clip, 6)


def test_a_varying_frame_rate_is_placed_by_time_stamps(tmp_path: Path) -> None:
    stamps = [600 + i * 60 for i in range(20)] + [1800 + i * 300 for i in range(5)]  # 10 per second, then 2
    path = write_video(tmp_path / "a.mkv", [picture(i) for i in range(25)], stamps=stamps)
    write_masks(tmp_path / "masks", dict.fromkeys(range(25), 0.5))
    footage = open_clip(AnnotatedClip("a", path, tmp_path / "masks"), 30)
    ticks, count = positions(footage.times, SAMPLINGS["uco3d"])
    assert ticks == [i * 3 for i in range(20)] + [60, 75, 90, 105, 120]
    assert count == 125
    picks = list(choose(footage, SAMPLINGS["uco3d"], 0, Faults()))
    windows = (range(10), range(10, 20), (20, 21), (22, 23), (24,))
    for pick, window in zip(picks, windows, strict=True):
        assert pick.index in window
        assert number_of(pick.image) == pick.index


@pytest.mark.parametrize("kind", ["video", "folder"])
def test_masks_of_a_video_lie_on_its_frames(tmp_path: Path, kind: str) -> None:
    write_video(tmp_path / "rgb_video.mp4", [picture(i) for i in range(60)])
    shares = {i: (i + 12) / 96 for i in range(60)}
    if kind == "video":
        write_video(tmp_path / "mask_video.mkv", [mask(s) for s in shares.values()], codec="ffv1")
    else:
        write_masks(tmp_path / "masks/rgb_video", shares, first=1)
    clip = find_clips(tmp_path, None if kind == "video" else tmp_path / "masks")[0]
    picks = list(choose(open_clip(clip, 30), SAMPLINGS["uco3d"], 3, Faults()))
    assert [p.window for p in picks] == [0, 1]
    for p in picks:
        assert number_of(p.image) == p.index
        assert p.object.coverage == pytest.approx((p.index + 12) / 96)


def test_masks_of_another_length_than_their_video_are_named(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [picture(i) for i in range(12)])
    write_video(tmp_path / "masks/a.mkv", [mask(0.5)] * 11, codec="ffv1")
    with pytest.raises(ClipError, match=r"a\.mkv: 11 masks"):
        open_clip(find_clips(tmp_path, tmp_path / "masks")[0], 30)


# YouTube-VIS


def annotated(root: Path, frames: int = 40) -> Path:
    """A video with two objects; the second, smaller one overlaps the first and is gone in the second half."""
    rng = np.random.default_rng(0)
    names = [f"clip/{k:05}.jpg" for k in range(frames)]
    (root / "JPEGImages" / "clip").mkdir(parents=True)
    codes: list[list[Any]] = [[], []]
    for k, name in enumerate(names):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(root / "JPEGImages" / name)
        first, second = np.zeros((20, 30), dtype=bool), np.zeros((20, 30), dtype=bool)
        first[2:18, 2:22], second[5:15, 15:28] = True, True
        one, two = (coco.encode(np.asfortranarray(bits)) for bits in (first, second))
        codes[0].append({**one, "counts": one["counts"].decode()})
        codes[1].append({**two, "counts": two["counts"].decode()} if k < frames // 2 else None)
    content = {
        "videos": [{"id": 3, "file_names": names}],
        "categories": [{"id": 5, "name": "horse"}, {"id": 6, "name": "person"}],
        "annotations": [
            {"id": 9 - k, "video_id": 3, "category_id": 5 + k, "segmentations": own} for k, own in enumerate(codes)
        ],
    }
    path = root / "instances.json"
    path.write_text(json.dumps(content))
    return path


def test_annotations_of_youtube_vis_become_masks(tmp_path: Path) -> None:
    path = annotated(tmp_path)
    [clip], categories = with_codes(find_clips(tmp_path / "JPEGImages"), path)
    assert categories == {("clip", 1): "person", ("clip", 2): "horse"}  # id 8 comes before id 9
    first, last = (frame.objects() for frame in open_clip(clip, 6).read([0, 39]))
    assert [(shown.number, shown.coverage) for shown in first] == [(1, 10 * 13 / 600), (2, 16 * 20 / 600)]
    assert first[0].mask[5:15, 15:28].all()  # where they overlap, both have the pixels
    assert first[1].mask[2:18, 2:22].all()
    assert [shown.number for shown in last] == [2]


def test_damaged_annotations_are_named(tmp_path: Path) -> None:
    path = annotated(tmp_path, 4)
    content = json.loads(path.read_text())
    content["videos"][0]["file_names"].pop()  # fewer files than codes
    nameless = {name: value for name, value in json.loads(path.read_text()).items() if name != "categories"}
    for bad in ({}, content, nameless):
        path.write_text(json.dumps(bad))
        with pytest.raises(ClipError, match=r"instances\.json"):
            with_codes([], path)


# Files


def make_clips(root: Path, count: int = 3) -> list[AnnotatedClip]:
    for i in range(count):
        write_folder(root / f"kind/clip {i}", 20, blurred=(i, i + 3))
        write_masks(root / f"masks/kind/clip {i}", {k: 0.3 + 0.02 * k for k in range(0, 20, 2)})
    return find_clips(root, root / "masks")


def test_frames_masks_and_manifest_say_where_they_come_from(tmp_path: Path) -> None:
    clips = make_clips(tmp_path / "in")
    records = [extract(clip, tmp_path / "out", Extraction(EVERY, seed=5)) for clip in clips]
    write(to_table(records, tmp_path / "out", "films"), tmp_path / "frames.parquet")
    table = read(tmp_path / "frames.parquet")
    assert len(table) == 6
    for row in table.to_dict("records"):
        name = row["identity"].removeprefix("films/")
        clip_number, index = int(name[-1]), int(row["frame"])
        source = picture(index, index not in (clip_number, clip_number + 3))
        assert read_image(row["path"]).tobytes() == source.tobytes()  # lossless
        assert row["coverage"] == pytest.approx(float(bits_of(row["mask"]).mean()))
        assert row["blur"] == blur_score(source)
        assert row["time"] == index / 10
        assert (row["dataset"], row["role"], row["seed"]) == ("films", "real", 5)
        parameters = json.loads(row["parameters"])
        assert parameters["sampling"]["stride"] == 2
        assert (parameters["window"], parameters["clip"]) == (index // 10, name)


def test_finished_clips_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = make_clips(tmp_path / "in")
    settings = Extraction(EVERY)
    records = [extract(clip, tmp_path / "out", settings) for clip in clips]
    before = files(tmp_path / "out")
    monkeypatch.setattr("idmetric.data.frames.extract.open_clip", None)  # would fail
    assert [extract(clip, tmp_path / "out", settings) for clip in clips] == records
    assert files(tmp_path / "out") == before
    with pytest.raises(ClipError, match="other settings"):
        extract(clips[0], tmp_path / "out", Extraction(EVERY, seed=1))


def test_unreadable_frames_stop_a_clip_or_are_passed_over(tmp_path: Path) -> None:
    clip = make_clips(tmp_path / "in", 1)[0]
    assert isinstance(clip.frames, Path)
    for i in (0, 2, 4, 6, 8):
        data = (clip.frames / f"{i}.png").read_bytes()
        (clip.frames / f"{i}.png").write_bytes(data[: len(data) // 2])
    settings = Extraction(EVERY)
    with pytest.raises(ClipError, match=r"0\.png") as caught:
        extract(clip, tmp_path / "out", settings)
    assert len(str(caught.value).splitlines()) == 5
    assert not list((tmp_path / "out").iterdir())
    record = extract(clip, tmp_path / "out", settings, skip=True)
    assert len(record["unreadable"]) == 5
    with pytest.raises(ClipError, match=r"0\.png"):  # also when a run that skipped them is followed by one that won't
        extract(clip, tmp_path / "out", settings)
