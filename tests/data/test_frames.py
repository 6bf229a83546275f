from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco

from idmetric.data.frames.choose import SAMPLINGS, Faults, Sampling, candidates, choose, plan, positions
from idmetric.data.frames.clips import AnnotatedClip, find_clips
from idmetric.data.frames.extract import Extraction, extract, finished, to_manifest
from idmetric.data.frames.footage import AnnotatedFrame, Footage, open_clip, read_boxes
from idmetric.data.old_manifest.table import read
from idmetric.data.sharpness import blur_score
from idmetric.matching.frames import ClipError
from idmetric.metric.images import ImageReadError
from tests.clip_files import mask, number_of, picture, turn_video, write_folder, write_masks, write_video

ALL = Sampling(fps=10, stride=1, annotated=10, parts=5, coverage=(0, 1), blur=0)


def is_readable(frame: AnnotatedFrame) -> bool:
    try:
        frame.image()
    except ImageReadError:
        return False
    return True


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


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
    blur = blur_score(picture(0, size=(90, 64)))
    found = {}
    for clip in find_clips(tmp_path, tmp_path / "masks"):
        sampling = Sampling(fps=10, stride=1, annotated=10, parts=5, blur=0)
        found[clip.name] = len(list(choose(open_clip(clip, 10), sampling, 0, Faults())))
    assert found == {"least": 2, "most": 2, "less": 0, "more": 0}
    clip = find_clips(tmp_path / "least", tmp_path / "masks/least")[0]
    scores = {i: blur_score(picture(i, size=(90, 64))) for i in range(10)}
    only = max(scores, key=lambda i: (scores[i], -i))
    exact = Sampling(fps=10, stride=1, annotated=10, parts=5, blur=scores[only])
    first = next(choose(open_clip(clip, 10), exact, 0, Faults()))
    assert scores[first.index] == scores[only] >= blur


# The choice


def clip_with_faults(root: Path) -> tuple[AnnotatedClip, set[int]]:
    """Two seconds at 10 fps, annotated every second frame; and the frames that are valid."""
    write_folder(root / "clip", 20, blurred=(2, 4, 14), first=95)
    shares = dict.fromkeys(range(0, 20, 2), 0.5) | {0: 0.05, 6: 0.95, 12: 0.02}
    write_masks(root / "masks" / "clip", shares, first=95)
    return find_clips(root / "clip", root / "masks")[0], {8, 10, 16, 18}


EVERY = Sampling(fps=10, stride=2, annotated=5, parts=5)


def test_one_valid_frame_of_each_window_is_chosen_evenly(tmp_path: Path) -> None:
    clip, valid = clip_with_faults(tmp_path)
    assert clip.masks == tmp_path / "masks" / "clip"
    counts = dict.fromkeys(valid, 0)
    for seed in range(150):
        picks = list(choose(open_clip(clip, 10), EVERY, seed, Faults()))
        assert [p.window for p in picks] == [0, 1]
        for p in picks:
            assert p.index in valid
            assert p.index // 10 == p.window
            assert number_of(p.image) == p.index  # names sorted by number: 95, ..., 99, 100, ...
            assert p.object.coverage == 0.5
            assert p.object.mask is not None
            assert p.object.mask.mean() == 0.5
            assert p.blur == blur_score(picture(p.index))
            counts[p.index] += 1
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
    found = {i["object"]: i for i in record["instances"]}
    assert set(found) == {1, 3, 7}
    assert [f["frame"] // 10 for f in found[1]["frames"]] == [0, 1]
    assert [len(found[number]["frames"]) for number in (3, 7)] == [0, 1]
    assert record["reasons"] == {"too small": 10}
    manifest = to_manifest([record], tmp_path / "out", "davis")
    assert set(manifest.column("identity")) == {"davis/clip/1"}  # 7 has one frame, and needs two
    for i, frame in enumerate(manifest.column("x_frame")):
        cover = manifest.mask(i)
        assert cover is not None
        assert cover[:, :40].all()
        assert not cover[:, 40:].any()
        assert number_of(manifest.image(i)) == frame
    names = {p.name for p in (tmp_path / "out" / record["folder"]).iterdir()}
    assert len(names) == 5  # frames of instances that are left out are not kept


def test_gray_masks_of_several_objects_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "clip", 10)
    for i in range(10):
        numbers = np.zeros((64, 96), np.uint16 if i % 2 else np.uint8)
        numbers[:, :30], numbers[:, 30:60] = 2, 5 if i else 2
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(numbers).save(tmp_path / "masks" / f"{i}.png")
    clip = find_clips(tmp_path / "clip", tmp_path / "masks")[0]
    with pytest.raises(ClipError, match=r"\d\.png"):
        [*_] = choose(open_clip(clip, 10), ALL, 0, Faults())
    [thing] = next(open_clip(clip, 10).read([0])).objects()  # of one value
    assert thing.coverage == 60 / 96


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
    with pytest.raises(ClipError, match="no such file or folder"):
        find_clips(tmp_path / "nothing")
    with pytest.raises(ClipError, match="no images"):
        find_clips(tmp_path)
    for name in ("a.mp4", "a.mov"):
        (tmp_path / name).touch()
    with pytest.raises(ClipError, match=r"a\.mov and .*a\.mp4 are both the clip 'a'"):
        find_clips(tmp_path)
    write_folder(tmp_path / "b", 2)
    picture(0).save(tmp_path / "b/0.jpg")
    with pytest.raises(ClipError, match=r"0\.jpg and .*0\.png are both the frame '0'"):
        open_clip(find_clips(tmp_path / "b")[0], 10)


def test_missing_and_misfitting_masks_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "clip", 4)
    clip = find_clips(tmp_path / "clip")[0]
    with pytest.raises(ClipError, match="clip: no masks found; give --masks"):
        open_clip(clip, 10)
    write_masks(tmp_path / "other", {7: 0.5})
    with pytest.raises(ClipError, match=r"other: no mask is named like a frame .*'0'"):
        open_clip(AnnotatedClip("clip", tmp_path / "clip", tmp_path / "other"), 10)
    (tmp_path / "masks").mkdir()
    mask(0.5, (48, 32)).save(tmp_path / "masks/1.png")
    faults = Faults()
    list(choose(open_clip(AnnotatedClip("clip", tmp_path / "clip", tmp_path / "masks"), 10), ALL, 0, faults))
    assert "clip, frame 1: its mask has 48x32 pixels, the frame 96x64" in faults.unreadable[0]


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
    for text, message in (("1,2,3\n" * 6, "line 1 is not left"), ("1,2,3,4\n" * 5, "5 boxes for the 6 frames"),
                          ("1,2,3,x\n" * 6, "line 1 is not left")):  # fmt: skip
        boxes.write_text(text)
        with pytest.raises(ClipError, match=message):
            read_boxes(clip, 6)
    boxes.write_text("1 2 3 4\n" * 6)
    (tmp_path / "cat/cat-1/absence.label").write_text("0\n" * 5)
    with pytest.raises(ClipError, match=r"absence\.label: 5 values for the 6 frames"):
        read_boxes(clip, 6)


def film(path: Path, count: int) -> Footage:
    """A video, with full masks in a folder."""
    write_masks(path.with_name("masks"), dict.fromkeys(range(count), 0.5))
    return open_clip(AnnotatedClip("a", path, path.with_name("masks")), 30)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_videos_give_the_frames_that_were_written(tmp_path: Path, codec: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    path = write_video(tmp_path / "a.mp4", [picture(i) for i in range(60)], codec=codec)
    footage = film(path, 60)
    assert len(footage.times) == 60
    assert np.allclose(footage.times, np.arange(60) / 30)
    for wanted in ([], [0], [59], [3, 17, 18, 40], list(range(60))):
        frames = [(frame.index, number_of(frame.image())) for frame in footage.read(wanted)]
        assert frames == [(i, i) for i in wanted]


def test_a_varying_frame_rate_is_placed_by_time_stamps(tmp_path: Path) -> None:
    stamps = [600 + i * 60 for i in range(20)] + [1800 + i * 300 for i in range(5)]  # 10 per second, then 2
    path = write_video(tmp_path / "a.mkv", [picture(i) for i in range(25)], stamps=stamps)
    footage = film(path, 25)
    assert np.allclose(footage.times, (np.array(stamps) - 600) / 600, atol=0.002)
    at, count = positions(footage.times, SAMPLINGS["uco3d"])
    assert at == [i * 3 for i in range(20)] + [60, 75, 90, 105, 120]
    assert count == 125
    picks = list(choose(footage, SAMPLINGS["uco3d"], 0, Faults()))
    assert [
        p.index in group for p, group in zip(picks, (range(10), range(10, 20), (20, 21), (22, 23), (24,)), strict=True)
    ] == [True] * 5
    assert all(number_of(p.image) == p.index for p in picks)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_rotated_videos_are_turned_upright(tmp_path: Path, turns: int) -> None:
    upright = picture(77)
    stored = upright.rotate(90 * turns, expand=True)  # counter-clockwise, as the sensor had it
    path = write_video(tmp_path / "a.mp4", [stored] * 3)
    turn_video(path, turns)
    image = next(film(path, 3).read([1])).image()
    assert image.size == upright.size
    assert number_of(image) == 77
    assert np.abs(np.asarray(image).astype(int) - np.asarray(upright)).mean() < 12


@pytest.mark.parametrize("kind", ["video", "folder"])
def test_masks_of_a_video_lie_on_its_frames(tmp_path: Path, kind: str) -> None:
    write_video(tmp_path / "rgb_video.mp4", [picture(i) for i in range(60)])
    shares = {i: (i + 12) / 96 for i in range(60)}
    if kind == "video":
        write_video(tmp_path / "mask_video.mkv", [mask(s) for s in shares.values()], codec="ffv1")
    else:
        write_masks(tmp_path / "masks/rgb_video", shares, first=1)
    clip = find_clips(tmp_path, None if kind == "video" else tmp_path / "masks")[0]
    footage = open_clip(clip, 30)
    picks = list(choose(footage, SAMPLINGS["uco3d"], 3, Faults()))
    assert [p.window for p in picks] == [0, 1]
    for p in picks:
        assert number_of(p.image) == p.index
        assert p.object.coverage == pytest.approx((p.index + 12) / 96)


def test_masks_of_another_length_than_their_video_are_named(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [picture(i) for i in range(12)])
    write_video(tmp_path / "masks/a.mkv", [mask(0.5)] * 11, codec="ffv1")
    with pytest.raises(ClipError, match=r"a\.mkv: 11 masks for the 12 frames"):
        open_clip(find_clips(tmp_path, tmp_path / "masks")[0], 30)
    (tmp_path / "masks/a.mkv").unlink()
    write_masks(tmp_path / "masks/a", {3: 0.5, 12: 0.5})
    with pytest.raises(ClipError, match=r"2 masks for the 12 frames"):
        open_clip(find_clips(tmp_path, tmp_path / "masks")[0], 30)


def test_damaged_videos_are_named(tmp_path: Path) -> None:
    good = write_video(tmp_path / "good.mp4", [picture(i) for i in range(60)]).read_bytes()
    cases = {"empty.mp4": b"", "text.mp4": b"no video at all" * 50, "cut.mp4": good[: len(good) // 2]}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ClipError, match=name):
            open_clip(AnnotatedClip("x", tmp_path / name), 30)
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(ClipError, match=r"sound\.mp4: the file contains no video"):
        open_clip(AnnotatedClip("x", tmp_path / "sound.mp4"), 30)


def test_frames_from_the_first_that_does_not_decode_are_listed_and_the_others_used(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mov", [picture(i) for i in range(60)], codec="png")
    with av.open(str(path)) as container:
        packets = {round(p.pts * p.time_base * 30): (p.pos, p.size) for p in container.demux() if p.size}
    data = bytearray(path.read_bytes())
    for number in (33, 34):
        start, size = packets[number]
        data[start : start + size] = b"\xa5" * size
    path.write_bytes(data)
    footage = film(path, 60)
    assert [f.index for f in footage.read(range(60))] == list(range(60))
    readable = [i for i, f in zip(range(60), footage.read(range(60)), strict=True) if is_readable(f)]
    assert readable == list(range(33))  # nothing after the damage is trusted
    faults = Faults()
    picks = list(choose(footage, Sampling(fps=30, stride=1, annotated=1, parts=5), 0, faults))
    assert [number_of(p.image) for p in picks] == readable
    assert len(faults.unreadable) == 27
    assert "a.mov @ 33" in faults.unreadable[0]


# Files


def make_clips(root: Path, count: int = 3) -> list[AnnotatedClip]:
    for i in range(count):
        write_folder(root / f"kind/clip {i}", 20, blurred=(i, i + 3))
        write_masks(root / f"masks/kind/clip {i}", {k: 0.3 + 0.02 * k for k in range(0, 20, 2)})
    return find_clips(root, root / "masks")


def test_frames_masks_and_manifest_say_where_they_come_from(tmp_path: Path) -> None:
    clips = make_clips(tmp_path / "in")
    settings = Extraction(EVERY, seed=5)
    records = [extract(clip, tmp_path / "out", settings) for clip in clips]
    to_manifest(records, tmp_path / "out", "films", category_level=1).write(tmp_path / "frames.parquet")
    manifest = read(tmp_path / "frames.parquet")
    assert len(manifest) == 6
    assert set(manifest.column("identity")) == {f"films/kind/clip {i}" for i in range(3)}
    for i, row in enumerate(manifest):
        index = manifest.column("x_frame")[i]
        source = picture(index, index not in (int(str(row.identity)[-1]), int(str(row.identity)[-1]) + 3))
        assert manifest.image(i).tobytes() == source.tobytes()  # lossless
        cover = manifest.mask(i)
        assert cover is not None
        assert manifest.column("x_coverage")[i] == pytest.approx(float(cover.mean()))
        assert manifest.column("x_blur")[i] == blur_score(source)
        assert manifest.column("x_time")[i] == index / 10
        assert (row.dataset, row.category, row.role, row.seed) == ("films", "kind", "real", 5)
        assert row.parameters is not None
        assert row.parameters["sampling"]["stride"] == 2
        assert row.parameters["window"] == index // 10
        assert row.parameters["clip"] == str(row.identity).removeprefix("films/")


def test_finished_clips_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = make_clips(tmp_path / "in")
    settings = Extraction(EVERY)
    records = [extract(clip, tmp_path / "out", settings) for clip in clips]
    before = files(tmp_path / "out")
    monkeypatch.setattr("idmetric.data.frames.extract.open_clip", None)  # would fail
    assert [extract(clip, tmp_path / "out", settings) for clip in clips] == records
    assert files(tmp_path / "out") == before
    with pytest.raises(ClipError, match="made with other settings"):
        extract(clips[0], tmp_path / "out", Extraction(EVERY, seed=1))


def test_unreadable_frames_stop_a_clip_or_are_passed_over(tmp_path: Path) -> None:
    clip = make_clips(tmp_path / "in", 1)[0]
    for i in (0, 2, 4, 6, 8):
        data = (clip.frames / f"{i}.png").read_bytes()
        (clip.frames / f"{i}.png").write_bytes(data[: len(data) // 2])
    settings = Extraction(EVERY)
    with pytest.raises(ClipError, match="truncated") as caught:
        extract(clip, tmp_path / "out", settings)
    assert len(str(caught.value).splitlines()) == 5
    assert not list((tmp_path / "out").iterdir())
    record = extract(clip, tmp_path / "out", settings, skip=True)
    assert len(record["unreadable"]) == 5
    assert finished(clip, tmp_path / "out", settings) == record
    with pytest.raises(ClipError, match="truncated"):  # also when a run that skipped them is followed by one that won't
        extract(clip, tmp_path / "out", settings)
