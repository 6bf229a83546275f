"""The reader of videos: damage, orientation, transparency, streams, time stamps, and files that cannot be used."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image

from idmetric import IDSim
from idmetric.data.frames.clips import AnnotatedClip as FramesClip
from idmetric.data.frames.clips import find_clips
from idmetric.data.frames.footage import open_clip
from idmetric.matching import clips, match
from idmetric.matching.clips import Clip, sources_of, timeline
from idmetric.matching.frames import ClipError
from idmetric.matching.video import Video
from idmetric.metric.images import ImageReadError, read_image
from tests.clip_files import number_of, packets_of, picture, set_matrix, write_video
from tests.matching.films import sound

PHOTO = Path(__file__).parents[2] / "examples/images/mug_a.png"


def frames_of(path: Path) -> list[np.ndarray | None]:
    """All frames of a video; None for one that is refused."""
    video = Video(path)
    frames: list[np.ndarray | None] = []
    for load in video.read(range(len(video.times))):
        try:
            frames.append(np.asarray(load()))
        except ImageReadError:
            frames.append(None)
    return frames


def moving(count: int, size: tuple[int, int] = (160, 96)) -> list[Image.Image]:
    """Frames that all codecs predict from each other: a photo under a moving window."""
    photo = Image.open(PHOTO).convert("RGB").resize((size[0] * 2, size[1] * 2))
    frames = []
    for number in range(count):
        left = round((1 + np.sin(number / 5)) * size[0] / 2)
        top = round((1 + np.cos(number / 6)) * size[1] / 2)
        frames.append(photo.crop((left, top, left + size[0], top + size[1])))
    return frames


def overwrite(path: Path, number: int, fill: bytes | None = None, rng: random.Random | None = None) -> None:
    """Replace all bytes of a packet, in decode order, by one value or at random."""
    data = bytearray(path.read_bytes())
    position, size, _ = packets_of(path)[number]
    data[position : position + size] = fill * size if fill else rng.randbytes(size)  # type: ignore[union-attr]
    path.write_bytes(data)


# Damage

X264 = "keyint=12:bframes=3:b-adapt=0:scenecut=0"
PREDICTED = {
    "H.264, closed": ("mp4", "libx264", {"x264-params": X264}),
    "H.264, open": ("mkv", "libx264", {"x264-params": f"{X264}:open-gop=1"}),
    "H.264, CAVLC": ("mov", "libx264", {"x264-params": f"{X264}:cabac=0:b-pyramid=none"}),
    "HEVC, closed": ("mp4", "libx265", {"x265-params": "keyint=12:bframes=3:open-gop=0:log-level=none"}),
    "HEVC, open": ("mkv", "libx265", {"x265-params": "keyint=12:bframes=3:open-gop=1:log-level=none"}),
    "MPEG-2, open": ("mkv", "mpeg2video", {"bf": "2", "g": "12", "sc_threshold": "1000000000"}),
    "MPEG-2, closed": ("mkv", "mpeg2video", {"bf": "2", "g": "12", "flags": "+cgop", "sc_threshold": "1000000000"}),
    "MPEG-4": ("avi", "mpeg4", {"bf": "2", "g": "12"}),
    "AV1": ("mp4", "libsvtav1", {"g": "12", "preset": "12", "svtav1-params": "pred-struct=1"}),
    "VP9": ("webm", "libvpx-vp9", {"g": "12", "cpu-used": "8", "deadline": "realtime"}),
}


@pytest.mark.parametrize("kind", PREDICTED)
def test_no_frame_differs_from_the_intact_video_where_a_packet_is_overwritten(tmp_path: Path, kind: str) -> None:
    """Also frames that are shown before the damaged packet's and refer to it; from the damage on, all are refused."""
    ending, codec, options = PREDICTED[kind]
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    path = write_video(tmp_path / f"a.{ending}", moving(40), 25, codec=codec, codec_options=options)
    intact, data = frames_of(path), path.read_bytes()
    assert not any(frame is None for frame in intact)
    rng = random.Random(0)
    refused_frames = 0
    for number in (3, 14, 26, 39):
        path.write_bytes(data)
        overwrite(path, number, rng.choice((None, b"\xff", b"\0")), rng)
        frames = frames_of(path)
        for index, frame in enumerate(frames):
            assert frame is None or np.array_equal(frame, intact[index]), (number, index)
        is_refused = [frame is None for frame in frames]
        assert is_refused == sorted(is_refused)
        refused_frames += sum(is_refused)
    assert refused_frames > 8


def test_a_damaged_video_is_refused_by_name_with_what_to_do(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving(24), 25)
    overwrite(path, 8, b"\xff")
    loads = list(Video(path).read(range(24)))
    loads[0]()
    with pytest.raises(ImageReadError, match=r"a\.mp4: it is damaged at or before frame .*ffmpeg -i"):
        loads[23]()


def test_two_ts_files_in_one_have_repeated_stamps_and_are_refused(tmp_path: Path) -> None:
    part = write_video(tmp_path / "part.ts", moving(20), 25, codec="mpeg2video")
    joint = tmp_path / "joint.ts"
    joint.write_bytes(part.read_bytes() * 2)
    with pytest.raises(ClipError, match=r"joint\.ts: several frames have one time stamp: .*ffmpeg -i"):
        Video(joint)


def test_an_avi_has_its_frames_in_order_of_display(tmp_path: Path) -> None:
    """It has no times of display: frames with B-frames between them came in the order of decoding."""
    options = {"x264-params": "bframes=3:b-adapt=0"}
    pictures = [picture(number) for number in range(40)]
    path = write_video(tmp_path / "a.avi", pictures, codec="libx264", codec_options=options)
    assert [number_of(load()) for load in Video(path).read(range(40))] == list(range(40))


def test_frames_of_vp8_that_are_not_shown_have_no_time(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.webm", [picture(number) for number in range(20)], 25, codec="libvpx")
    data = bytearray(path.read_bytes())
    position, _, _ = packets_of(path)[4]
    data[position] &= 0xEF
    path.write_bytes(data)
    times = Video(path).times
    assert times.round(2).tolist() == [number / 25 for number in range(20) if number != 4]
    shown = [number_of(load()) for load in Video(path).read(range(19))]
    assert shown == [number for number in range(20) if number != 4]


def test_what_an_edit_list_cuts_off_is_not_shown(tmp_path: Path) -> None:
    pictures = [picture(number) for number in range(30)]
    options = {"x264-params": X264}
    path = write_video(tmp_path / "a.mp4", pictures, 25, codec="libx264", codec_options=options)
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 16
    [start] = struct.unpack(">i", data[at : at + 4])
    data[at : at + 4] = struct.pack(">i", start + 7 * 512)  # 7 frames, of 12,800 units a second
    path.write_bytes(data)
    assert [number_of(load()) for load in Video(path).read(range(23))] == list(range(7, 30))


# Orientation

ONE = 1 << 16
# a, b, c, d of the display matrix; how FFmpeg shows it, as in its program's insert_autorotate, in Pillow's words
MATRICES = {
    "hflip": ((-1, 0, 0, 1), [Image.Transpose.FLIP_LEFT_RIGHT]),
    "vflip": ((1, 0, 0, -1), [Image.Transpose.FLIP_TOP_BOTTOM]),
    "both": ((-1, 0, 0, -1), [Image.Transpose.ROTATE_180]),
    "clock": ((0, 1, -1, 0), [Image.Transpose.ROTATE_270]),
    "cclock": ((0, -1, 1, 0), [Image.Transpose.ROTATE_90]),
    "cclock_flip": ((0, 1, 1, 0), [Image.Transpose.ROTATE_90, Image.Transpose.FLIP_TOP_BOTTOM]),
    "clock_flip": ((0, -1, -1, 0), [Image.Transpose.ROTATE_270, Image.Transpose.FLIP_TOP_BOTTOM]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_display_matrices_are_shown_as_ffmpeg_shows_them(tmp_path: Path, name: str) -> None:
    """Mirrored ones, too."""
    matrix, steps = MATRICES[name]
    path = write_video(tmp_path / "a.mp4", [picture(77)] * 2)
    [load] = Video(path).read([0])
    expected = load()
    for step in steps:
        expected = expected.transpose(step)
    set_matrix(path, *(value * ONE for value in matrix))
    [load] = Video(path).read([0])
    assert np.array_equal(np.asarray(load()), np.asarray(expected))


# HDR

TRANSFERS = {"pq": 16, "hlg": 18}  # FFmpeg's AVColorTransferCharacteristic


@pytest.mark.parametrize("in_stream", [True, False], ids=["in the stream", "in the container"])
@pytest.mark.parametrize("codec", ["libx265", "ffv1"])
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_hdr_is_refused_with_what_to_do(tmp_path: Path, transfer: str, codec: str, in_stream: bool) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=5)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p10le"
        context = stream.codec_context
        if not in_stream:
            context.open()
        context.color_primaries, context.color_trc, context.colorspace = 9, TRANSFERS[transfer], 9
        container.mux(stream.encode(av.VideoFrame.from_image(picture(3)).reformat(format="yuv420p10le")))
        container.mux(stream.encode())
    with pytest.raises(ClipError, match=r"a\.mkv: it is HDR: convert it to SDR, for example: ffmpeg .*tonemap"):
        Video(path)


# Transparency

TRANSPARENT = {
    "VP8": ("webm", "libvpx", "yuva420p", {"auto-alt-ref": "0"}),
    "VP9": ("webm", "libvpx-vp9", "yuva420p", {"auto-alt-ref": "0"}),
    "ProRes 4444": ("mov", "prores_ks", "yuva444p10le", {}),
    "QuickTime Animation": ("mov", "qtrle", "argb", {}),
    "FFV1": ("mkv", "ffv1", "bgra", {}),
    "PNG": ("mov", "png", "rgba", {}),
}


@pytest.mark.parametrize("name", TRANSPARENT)
def test_transparency_is_composited_on_the_background(tmp_path: Path, name: str) -> None:
    """As of images."""
    ending, codec, pixels, options = TRANSPARENT[name]
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    layer = np.full((64, 96, 4), (200, 60, 30, 0), np.uint8)
    layer[:, :48, 3] = 255
    layer[:, 32:48, 3] = 128
    path = write_video(
        tmp_path / f"a.{ending}", [Image.fromarray(layer)] * 3, codec=codec, pixels=pixels, codec_options=options
    )
    [load] = timeline([Clip(path)], "1fps", "fail").loads()
    shown = np.asarray(read_image(load(), background=(0, 0, 255))).astype(int)
    # half of (200, 60, 30) and half of the background are (100, 30, 143)
    for column, color in {8: (200, 60, 30), 40: (100, 30, 143), 80: (0, 0, 255)}.items():
        assert np.abs(shown[32, column] - color).max() <= 6, column


# Streams


def write_streams(path: Path, streams: list[tuple[tuple[int, int], int]], has_sound: bool = False) -> Path:
    """An .mp4 with video streams of these sizes and dispositions."""
    with av.open(str(path), "w") as container:
        sound_stream = container.add_stream("aac", rate=44100) if has_sound else None
        video_streams = []
        for size, disposition in streams:
            is_cover = bool(disposition & Disposition.attached_pic)
            stream = container.add_stream("mjpeg" if is_cover else "mpeg4", rate=5)
            stream.width, stream.height = size
            stream.pix_fmt = "yuvj420p" if is_cover else "yuv420p"
            stream.disposition = disposition
            video_streams.append((stream, size, 1 if is_cover else 3))
        if sound_stream:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            silence.sample_rate = 44100
            container.mux(sound_stream.encode(silence))
            container.mux(sound_stream.encode())
        for stream, size, count in video_streams:
            for _ in range(count):
                container.mux(stream.encode(av.VideoFrame.from_image(picture(5, size=size))))
            container.mux(stream.encode())
    return path


def test_the_default_or_else_the_largest_stream_is_taken_and_no_cover(tmp_path: Path) -> None:
    none, default, cover = Disposition(0), Disposition.default, Disposition.attached_pic
    cases = {
        "large": [((96, 64), default), ((192, 128), default), ((48, 32), default)],
        "default": [((192, 128), none), ((96, 64), default)],
        "cover": [((192, 128), cover), ((96, 64), none)],
    }
    for (name, streams), size in zip(cases.items(), [(192, 128), (96, 64), (96, 64)], strict=True):
        video = Video(write_streams(tmp_path / f"{name}.mp4", streams))
        assert len(video.times) == 3
        assert [load().size for load in video.read([0, 2])] == [size] * 2
    with pytest.raises(ClipError, match=r"song\.mp4: the file contains no video"):
        Video(write_streams(tmp_path / "song.mp4", [((96, 64), cover)], has_sound=True))


def test_the_default_image_of_an_animated_png_is_no_frame(tmp_path: Path) -> None:
    first, *others = [picture(number) for number in range(5)]
    path = tmp_path / "a.png"
    first.save(path, save_all=True, append_images=others, default_image=True, duration=[100, 200, 300, 400])
    line = timeline([Clip(path)], "all", "fail")
    assert [number_of(read_image(load())) for load in line.loads()] == [1, 2, 3, 4]
    assert [moment.seconds for moment in line.moments] == pytest.approx([0, 0.1, 0.3, 0.6])


# Time stamps


@pytest.mark.parametrize("frames", ["2fps", "1000000fps"])
def test_a_clip_of_years_takes_no_more_memory(frames: str) -> None:
    line = timeline([Clip([picture(0), picture(1)], fps=1e-9)], frames, "fail")
    assert [moment.frame for moment in line.moments] == [0, 1]


def test_frames_by_a_rate_are_those_shown_at_its_moments() -> None:
    rng = np.random.default_rng(0)
    for rate in (0.3, 2.0, 7.0, 40.0):
        times = np.concatenate([[0.0], np.cumsum(rng.choice([0.02, 0.1, 0.5, 1.5], 60))])
        expected = set()
        for moment in range(int(times[-1] * rate) + 1):
            expected.add(max(index for index, time in enumerate(times) if time <= moment / rate + 1e-6))
        assert clips._shown_at_rate(times, rate) == sorted(expected)


# Files that cannot be used


def unusable(folder: Path) -> dict[str, str]:
    """Files with the names of clips -> what their messages say."""
    good = write_video(folder / "good.mp4", [picture(3)] * 3).read_bytes()
    unknown = write_video(folder / "unknown.mov", [picture(3)] * 3, codec="png")
    unknown.write_bytes(unknown.read_bytes().replace(b"png ", b"zzzz"))
    (folder / "cut.mp4").write_bytes(good[: len(good) // 2])
    (folder / "text.mkv").write_bytes(b"no video at all" * 50)
    (folder / "empty.avi").write_bytes(b"")
    os.mkfifo(folder / "pipe.mp4")
    os.mkfifo(folder / "pipe.gif")
    (folder / "device.mp4").symlink_to("/dev/zero")
    (folder / "nowhere.mp4").symlink_to(folder / "absent.mp4")
    sound(folder / "sound.m4v")
    return {
        "unknown.mov": "no decoder",
        "cut.mp4": "not readable as a video",
        "text.mkv": "not readable as a video",
        "empty.avi": "the file is empty",
        "pipe.mp4": "it is a pipe or a device",
        "pipe.gif": "it is a pipe or a device",
        "device.mp4": "it is a pipe or a device",
        "nowhere.mp4": "the file does not exist",
        "sound.m4v": "contains no video",
    }


def test_no_file_of_a_folder_ends_a_run_that_skips(tmp_path: Path) -> None:
    """Unknown codecs, pipes and devices among them, which are refused at once."""
    reasons = unusable(tmp_path)
    for name, reason in reasons.items():
        with pytest.raises(ClipError, match=reason) as caught:
            timeline([Clip(tmp_path / name)], 1, "fail")
        assert str(tmp_path / name) in str(caught.value)
        if not name.endswith(".gif"):
            with pytest.raises(ClipError, match=reason):
                open_clip(FramesClip("a", tmp_path / name), 30)
    line = timeline(sources_of(tmp_path), 1, "skip")
    assert sorted(line.problems) == sorted(str(tmp_path / name) for name in reasons)
    assert [moment.name for moment in line.moments] == [f"{tmp_path / 'good.mp4'} @ 0"]

    found = match(IDSim("tiny"), {"mug": PHOTO}, tmp_path, frames=1, on_error="skip")
    assert len(found.skipped) == len(reasons)
    assert [clip.name for clip in find_clips(tmp_path)] == sorted(
        Path(name).stem for name in [*reasons, "good.mp4"] if not name.endswith("gif")
    )


def test_metadata_in_any_encoding_does_not_matter(tmp_path: Path) -> None:
    """It raised UnicodeDecodeError."""
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "TITLE"
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.metadata["title"] = "TITLE"
        container.mux(stream.encode(av.VideoFrame.from_image(picture(9))))
        container.mux(stream.encode())
    path.write_bytes(path.read_bytes().replace(b"TITLE", b"caf\xe9\xff"))
    assert [number_of(load()) for load in Video(path).read([0])] == [9]
