"""Clips: the frames of videos, animations, folders and grids, and the choice among them."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from idmetric.matching import video
from idmetric.matching.clips import Clip, sources_of, timeline
from idmetric.matching.frames import ClipError
from idmetric.matching.video import Video
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError, read_image
from tests.clip_files import number_of, picture, turn_video, write_folder, write_video
from tests.matching.films import sound


def numbers(clip, frames="all"):
    """The numbers that are painted into the chosen frames of a clip."""
    line = timeline(sources_of(clip), frames, "fail")
    return [number_of(read_image(load())) for load in line.loads()]


@pytest.fixture
def clip(tmp_path):
    return write_video(tmp_path / "clip.mp4", [picture(number) for number in range(60)])


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (16, [int(59 * number / 15) for number in range(16)]),
        ("3", [0, 29, 59]),
        (1, [0]),
        (1000, list(range(60))),
        ("all", list(range(60))),
        ("2fps", [0, 15, 30, 45]),
        ("0.5fps", [0]),
        ("60fps", list(range(60))),
    ],
)
def test_frames_are_chosen_by_count_rate_or_all(clip, frames, expected):
    assert numbers(clip, frames) == expected


def test_frames_have_names_seconds_and_their_clip(clip):
    line = timeline(sources_of([picture(1), clip]), "2fps", "fail")
    still, *moments = line.moments
    assert (still.clip, np.isnan(still.seconds)) == ("", True)
    assert [moment.name for moment in moments] == [f"{clip} @ {index}" for index in (0, 15, 30, 45)]
    assert [moment.seconds for moment in moments] == pytest.approx([0, 0.5, 1, 1.5])
    assert {moment.clip for moment in moments} == {str(clip)}


def test_a_varying_rate_is_sampled_by_time(tmp_path):
    stamps = [60 * number for number in range(20)] + [1200 + 600 * number for number in range(5)]  # 10 a second, then 1
    path = write_video(tmp_path / "a.mkv", [picture(number) for number in range(25)], stamps=stamps)
    assert numbers(path, "1fps") == [0, 10, 20, 21, 22, 23, 24]
    assert numbers(path, "2fps") == [0, 5, 10, 15, 20, 21, 22, 23, 24]  # a frame that is still shown counts once


def test_a_rotated_video_is_upright(tmp_path):
    path = write_video(tmp_path / "a.mp4", [picture(77).rotate(90, expand=True)] * 3)
    turn_video(path, 1)
    assert numbers(path) == [77, 77, 77]


CODECS = [
    ("mp4", "mpeg4"),
    ("mp4", "libx264"),
    ("mkv", "libx264"),
    ("avi", "mpeg4"),
    ("ts", "mpeg2video"),
    ("webm", "libvpx-vp9"),
    ("mpg", "mpeg1video"),
]


@pytest.mark.parametrize(("ending", "codec"), CODECS)
def test_frames_that_are_sought_are_those_that_are_decoded_in_order(tmp_path, monkeypatch, ending, codec):
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    path = write_video(tmp_path / f"a.{ending}", [picture(number) for number in range(120)], codec=codec)
    indices = [0, 1, 30, 31, 59, 95, 119]
    in_order = [np.asarray(load()) for load in Video(path).read(indices)]
    monkeypatch.setattr(video, "_JUMP", 0)
    sought = [np.asarray(load()) for load in Video(path).read(indices)]
    for expected, pixels in zip(in_order, sought, strict=True):
        assert np.array_equal(expected, pixels)


def test_seeking_decodes_few_frames(tmp_path, monkeypatch):
    path = write_video(tmp_path / "a.mp4", [picture(number % 256) for number in range(600)])
    decoded = []
    frames_of = video._frames_of

    def noted(*arguments):
        frames = frames_of(*arguments)
        decoded.extend(frame.pts for frame in frames)
        return frames

    monkeypatch.setattr(video, "_frames_of", noted)
    assert [number_of(load()) for load in Video(path).read([0, 299, 598])] == [0, 299 - 256, 598 - 512]
    assert len(decoded) < 60  # at most a group of 12 for each, and what the threads have begun


@pytest.mark.slow
def test_a_clip_of_ten_hours_is_read_in_little_memory(tmp_path):
    path = tmp_path / "long.mp4"
    write_video(path, [picture(number % 256) for number in range(0, 36000)], fps=1, keyframes=60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert numbers(path, 4) == [0, 11999 % 256, 23999 % 256, 35999 % 256]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


# Animations, folders, grids


@pytest.mark.parametrize("ending", ["gif", "webp", "png"])
def test_animations_have_their_own_times(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    first, *rest = [picture(number) for number in range(6)]
    durations = [100, 100, 300, 500, 100, 100]
    first.save(path, save_all=True, append_images=rest, duration=durations, lossless=True)
    line = timeline([Clip(path)], "all", "fail")
    assert [number_of(read_image(load())) for load in line.loads()] == list(range(6))
    assert [moment.seconds for moment in line.moments] == pytest.approx([0, 0.1, 0.2, 0.5, 1.0, 1.1])
    assert numbers(Clip(path), "2fps") == [0, 3, 4]
    assert isinstance(sources_of(path)[0], Clip) == (ending == "gif")


def test_a_folder_is_a_list_of_images_and_clips_unless_it_is_declared_a_clip(tmp_path):
    folder = write_folder(tmp_path / "frames", 12)
    write_video(folder / "3b.mp4", [picture(99)] * 2)
    assert [moment.clip for moment in timeline(sources_of(folder), 16, "fail").moments].count("") == 12
    assert numbers(folder) == [0, 1, 2, 3, 99, 99, *range(4, 12)]
    (folder / "3b.mp4").unlink()
    line = timeline([Clip(folder, fps=4)], 4, "fail")
    assert [moment.name for moment in line.moments] == [str(folder / f"{number}.png") for number in (0, 3, 7, 11)]
    assert [moment.seconds for moment in line.moments] == [0, 0.75, 1.75, 2.75]
    assert {moment.clip for moment in line.moments} == {str(folder)}


def test_a_grid_is_read_row_by_row(tmp_path):
    sheet = Image.new("RGB", (3 * 96, 2 * 64))
    for number in range(6):
        sheet.paste(picture(number), (number % 3 * 96, number // 3 * 64))
    sheet.save(tmp_path / "story.png")
    assert numbers(Clip(tmp_path / "story.png", grid=(2, 3)), frames=2) == list(range(6))  # all panels
    assert numbers(Clip(sheet, grid=(1, 3))) == [0, 1, 2]
    with pytest.raises(ClipError, match=r"story\.png: .* cut into 0 rows and 3 columns"):
        numbers(Clip(tmp_path / "story.png", grid=(0, 3)))
    with pytest.raises(ClipError, match="a grid of panels is one image, and this is a clip"):
        numbers(Clip(tmp_path / "clip.mp4", grid=(2, 2)))


def test_pictures_in_memory_are_a_clip():
    pictures = [picture(number) for number in range(4)]
    assert numbers(Clip(pictures)) == [0, 1, 2, 3]
    assert numbers(Clip(np.stack(pictures))) == [0, 1, 2, 3]
    names = [moment.name for moment in timeline([Clip(pictures, name="dance")], 2, "fail").moments]
    assert names == ["dance @ 0", "dance @ 3"]


# Shots


def test_clips_that_cannot_be_used_are_named_or_skipped(tmp_path):
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "empty.gif").write_bytes(b"")
    (tmp_path / "text.mp4").write_bytes(b"no video at all" * 50)
    (tmp_path / "folder").mkdir()
    good = write_video(tmp_path / "good.mp4", [picture(3)])
    picture(0).save(tmp_path / "cut.gif", save_all=True, append_images=[picture(1), picture(2)])
    whole = (tmp_path / "cut.gif").read_bytes()
    (tmp_path / "cut.gif").write_bytes(whole[: len(whole) * 5 // 6])
    reasons = {
        "empty.mp4": "the file is empty",
        "empty.gif": "the file is empty",
        "text.mp4": "not readable as a video",
        "absent.mp4": "the file does not exist",
        "cut.gif": "damaged after",
        "folder": "holds no images",
        "sound.mp4": "the file contains no video",
    }
    sound(tmp_path / "sound.mp4")
    clips = [Clip(tmp_path / name) for name in reasons]
    for clip, reason in zip(clips, reasons.values(), strict=True):
        with pytest.raises((ClipError, ImageReadError), match=reason) as caught:
            timeline([clip], 16, "fail")
        assert str(clip.source) in str(caught.value)
    with pytest.raises(ClipError, match="without frames"):
        timeline([Clip([])], 16, "fail")

    line = timeline([*clips, Clip(good)], 16, "skip")
    assert [moment.clip for moment in line.moments] == [str(good)]
    assert list(line.problems) == [str(clip.source) for clip in clips]


PLAYLISTS = {
    "concat": "ffconcat version 1.0\nfile clip.mp4\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nclip.ts\n#EXT-X-ENDLIST\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_playlist_with_the_name_of_a_video_opens_no_other_file(clip, tmp_path, kind):
    write_video(tmp_path / "clip.ts", [picture(0)])
    playlist = tmp_path / "list.mp4"
    playlist.write_text(PLAYLISTS[kind])
    with pytest.raises(ClipError, match=r"list\.mp4: not readable as a video"):
        Video(playlist)


def test_an_address_is_no_video():
    with pytest.raises(ClipError, match="the file does not exist"):
        Video(Path("http://127.0.0.1:9/clip.mp4"))


def test_frames_of_too_many_pixels_are_refused(clip, monkeypatch):
    [load] = Video(clip).read([0])
    monkeypatch.setattr(video, "MAX_PIXELS", 96 * 64 - 1)
    with pytest.raises(ClipError, match=r"clip\.mp4: frames of 96 x 64 pixels are more than the 6143 allowed"):
        Video(clip)
    with pytest.raises(ImageReadError, match="frames of 96 x 64 pixels"):  # which changed within the stream
        load()


@pytest.mark.parametrize("frames", ["0", 0, -1, "0fps", "2 fps", "some", "fps", "1.5"])
def test_wrong_frames_are_refused(frames):
    with pytest.raises(RequestError, match="unknown frames"):
        timeline([Clip([picture(0)])], frames, "fail")


@pytest.mark.parametrize("fps", [0, -24.0, math.nan, math.inf])
def test_a_rate_of_nothing_is_refused(fps):
    with pytest.raises(RequestError, match="a clip has more than 0 frames per second"):
        Clip([picture(0)], fps=fps)


def test_two_clips_of_one_name_are_refused():
    with pytest.raises(RequestError, match="two clips are called 'clip'"):
        timeline([Clip([picture(0)]), Clip([picture(1)])], 16, "fail")
