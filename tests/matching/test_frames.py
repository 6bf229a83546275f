"""The reader of videos: frames and times, damage, orientation, transparency, and files that cannot be used."""

from __future__ import annotations

import os
import random
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image

from idmetric.matching import frames as reader
from idmetric.matching.frames import ClipError, frames, times
from idmetric.metric.images import read_image
from tests.clip_files import number_of, packets_of, picture, set_matrix, turn_video, write_video
from tests.matching.films import sound

PHOTO = Path(__file__).parents[2] / "examples/images/mug_a.png"
X264 = "keyint=12:bframes=3:b-adapt=0:scenecut=0"
CODECS = {
    "H.264, closed": ("mp4", "libx264", {"x264-params": X264}),
    "H.264, open": ("mkv", "libx264", {"x264-params": f"{X264}:open-gop=1"}),
    "HEVC, open": ("mkv", "libx265", {"x265-params": "keyint=12:bframes=3:open-gop=1:log-level=none"}),
    "MPEG-4": ("avi", "mpeg4", {"g": "12"}),
    "AV1": ("mp4", "libsvtav1", {"g": "12", "preset": "12", "svtav1-params": "pred-struct=1"}),
    "VP9": ("webm", "libvpx-vp9", {"g": "12", "cpu-used": "8", "deadline": "realtime"}),
}


def moving(count: int, size: tuple[int, int] = (160, 96)) -> list[Image.Image]:
    """Frames that all codecs predict from each other: a photo under a moving window."""
    photo = Image.open(PHOTO).convert("RGB").resize((size[0] * 2, size[1] * 2))
    pictures = []
    for number in range(count):
        left = round((1 + np.sin(number / 5)) * size[0] / 2)
        top = round((1 + np.cos(number / 6)) * size[1] / 2)
        pictures.append(photo.crop((left, top, left + size[0], top + size[1])))
    return pictures


def until_damage(path: Path) -> tuple[list[np.ndarray], bool]:
    """The frames of a video up to its damage, and whether there is any."""
    pixels = []
    try:
        for frame in frames(path):
            pixels.append(np.asarray(frame.image))
    except ClipError:
        return pixels, True
    return pixels, False


@pytest.mark.parametrize("kind", CODECS)
def test_no_frame_differs_from_the_intact_video_where_a_packet_is_overwritten(tmp_path: Path, kind: str) -> None:
    ending, codec, options = CODECS[kind]
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    path = write_video(tmp_path / f"a.{ending}", moving(40), 25, codec=codec, codec_options=options)
    intact, is_damaged = until_damage(path)
    assert (len(intact), is_damaged) == (40, False)
    assert times(path) == pytest.approx(np.arange(40) / 25, abs=2e-3)

    data = path.read_bytes()
    rng = random.Random(0)
    for number in (3, 14, 39):
        position, size, _ = packets_of(path)[number]
        fill = rng.choice((rng.randbytes(size), b"\xff" * size, b"\0" * size))
        path.write_bytes(data[:position] + fill + data[position + size :])
        pixels, is_damaged = until_damage(path)
        assert is_damaged, number
        assert all(np.array_equal(a, b) for a, b in zip(pixels, intact, strict=False)), number
        path.write_bytes(data)


def test_frames_have_numbers_and_times_and_are_shown_at_the_moments_of_a_rate(tmp_path: Path) -> None:
    """Of a varying rate; the oracle looks up the frame that is shown at each moment."""
    rng = np.random.default_rng(0)
    stamps = np.concatenate([[0], np.cumsum(rng.choice([12, 60, 300, 900], 40))]).tolist()
    path = write_video(tmp_path / "a.mkv", [picture(number) for number in range(41)], stamps=stamps)
    shown = list(frames(path))
    assert [frame.number for frame in shown] == list(range(41)) == [number_of(frame.image) for frame in shown]
    assert [frame.time for frame in shown] == pytest.approx(np.array(stamps) / 600, abs=1e-3)
    assert times(path).tolist() == [frame.time for frame in shown]

    for rate in (0.3, 2.0, 7.0, 40.0):
        expected = set()
        for moment in range(int(shown[-1].time * rate + 1e-6) + 1):
            expected.add(max(frame.number for frame in shown if frame.time <= moment / rate + 1e-6))
        assert [frame.number for frame in frames(path, rate)] == sorted(expected)


def test_a_gif_is_a_clip_with_its_own_times(tmp_path: Path) -> None:
    first, *rest = [picture(number) for number in range(4)]
    first.save(tmp_path / "a.gif", save_all=True, append_images=rest, duration=[100, 300, 500, 100])
    shown = list(frames(tmp_path / "a.gif"))
    assert [number_of(frame.image) for frame in shown] == [0, 1, 2, 3]
    assert [frame.time for frame in shown] == pytest.approx([0, 0.1, 0.4, 0.9])


# a, b, c, d of the display matrix; how FFmpeg shows it, as in its program's insert_autorotate, in Pillow's words
MATRICES = {
    "hflip": ((-1, 0, 0, 1), [Image.Transpose.FLIP_LEFT_RIGHT]),
    "both": ((-1, 0, 0, -1), [Image.Transpose.ROTATE_180]),
    "clock": ((0, 1, -1, 0), [Image.Transpose.ROTATE_270]),
    "cclock_flip": ((0, 1, 1, 0), [Image.Transpose.ROTATE_90, Image.Transpose.FLIP_TOP_BOTTOM]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_display_matrices_are_shown_as_ffmpeg_shows_them(tmp_path: Path, name: str) -> None:
    matrix, steps = MATRICES[name]
    path = write_video(tmp_path / "a.mp4", [picture(77)] * 2)
    expected = next(frames(path)).image
    for step in steps:
        expected = expected.transpose(step)
    set_matrix(path, *(value << 16 for value in matrix))
    assert np.array_equal(np.asarray(next(frames(path)).image), np.asarray(expected))


def test_a_rotated_video_is_upright(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", [picture(77).rotate(90, expand=True)] * 3)
    turn_video(path, 1)
    assert [number_of(frame.image) for frame in frames(path)] == [77] * 3


@pytest.mark.parametrize("in_stream", [True, False], ids=["in the stream", "in the container"])
@pytest.mark.parametrize("transfer", [16, 18], ids=["pq", "hlg"])
def test_hdr_is_refused(tmp_path: Path, transfer: int, in_stream: bool) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=5)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p10le"
        context = stream.codec_context
        if not in_stream:
            context.open()
        context.color_primaries, context.color_trc, context.colorspace = 9, transfer, 9
        container.mux(stream.encode(av.VideoFrame.from_image(picture(3)).reformat(format="yuv420p10le")))
        container.mux(stream.encode())
    with pytest.raises(ClipError, match=r"a\.mkv.*HDR"):
        next(frames(path))


TRANSPARENT = {
    "ProRes 4444": ("mov", "prores_ks", "yuva444p10le", {}),
    "QuickTime Animation": ("mov", "qtrle", "argb", {}),
    "FFV1": ("mkv", "ffv1", "bgra", {}),
    "VP9": ("webm", "libvpx-vp9", "yuva420p", {"auto-alt-ref": "0"}),
}


@pytest.mark.parametrize("name", TRANSPARENT)
def test_transparency_is_kept_or_refused(tmp_path: Path, name: str) -> None:
    """FFmpeg's own decoder of VP9 would leave it out in silence."""
    ending, codec, pixels, options = TRANSPARENT[name]
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    layer = np.full((64, 96, 4), (200, 60, 30, 0), np.uint8)
    layer[:, :48, 3] = 255
    layer[:, 32:48, 3] = 128
    path = tmp_path / f"a.{ending}"
    write_video(path, [Image.fromarray(layer)] * 3, codec=codec, pixels=pixels, codec_options=options)
    if name == "VP9":
        with pytest.raises(ClipError, match=r"a\.webm.*transparency"):
            next(frames(path))
        return
    shown = np.asarray(read_image(next(frames(path)).image, background=(0, 0, 255))).astype(int)
    # half of (200, 60, 30) and half of the background are (100, 30, 143)
    for column, color in {8: (200, 60, 30), 40: (100, 30, 143), 80: (0, 0, 255)}.items():
        assert np.abs(shown[32, column] - color).max() <= 6, column


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


def test_the_default_stream_is_taken_and_no_cover(tmp_path: Path) -> None:
    none, default, cover = Disposition(0), Disposition.default, Disposition.attached_pic
    cases = {"default": [((192, 128), none), ((96, 64), default)], "cover": [((192, 128), cover), ((96, 64), none)]}
    for name, streams in cases.items():
        path = write_streams(tmp_path / f"{name}.mp4", streams)
        assert [frame.image.size for frame in frames(path)] == [(96, 64)] * 3
    with pytest.raises(ClipError, match=r"song\.mp4.*no video"):
        next(frames(write_streams(tmp_path / "song.mp4", [((96, 64), cover)], has_sound=True)))


def test_files_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    """Pipes and devices at once, without waiting; transport streams, two of which in one repeat their stamps."""
    good = write_video(tmp_path / "good.mp4", [picture(3)] * 3).read_bytes()
    unknown = write_video(tmp_path / "unknown.mov", [picture(3)] * 3, codec="png")
    unknown.write_bytes(unknown.read_bytes().replace(b"png ", b"zzzz"))
    write_video(tmp_path / "stream.ts", [picture(3)] * 3, codec="mpeg2video")
    (tmp_path / "cut.mp4").write_bytes(good[: len(good) // 2])
    (tmp_path / "text.mkv").write_bytes(b"no video at all" * 50)
    (tmp_path / "empty.avi").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "device.mp4").symlink_to("/dev/zero")
    sound(tmp_path / "sound.m4v")
    names = ["unknown.mov", "stream.ts", "cut.mp4", "text.mkv", "empty.avi", "pipe.mp4", "device.mp4", "sound.m4v"]
    for name in [*names, "absent.mp4", "http://127.0.0.1:9/a.mp4"]:
        for read in (times, lambda path: next(frames(path))):
            with pytest.raises(ClipError) as caught:
                read(tmp_path / name)
            assert str(tmp_path / name) in str(caught.value)


PLAYLISTS = {
    "concat": "ffconcat version 1.0\nfile clip.mp4\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nclip.mp4\n#EXT-X-ENDLIST\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_playlist_with_the_name_of_a_video_opens_no_other_file(tmp_path: Path, kind: str) -> None:
    write_video(tmp_path / "clip.mp4", [picture(0)])
    (tmp_path / "list.mp4").write_text(PLAYLISTS[kind])
    with pytest.raises(ClipError, match=r"list\.mp4"):
        next(frames(tmp_path / "list.mp4"))


def test_an_avi_has_its_frames_in_order_of_display_or_is_refused(tmp_path: Path) -> None:
    """It has no times of display for frames with B-frames between them."""
    pictures = [picture(number) for number in range(40)]
    options = {"x264-params": "bframes=3:b-adapt=0"}
    path = write_video(tmp_path / "a.avi", pictures, codec="libx264", codec_options=options)
    with pytest.raises(ClipError, match=r"a\.avi"):
        list(frames(path))


def test_frames_of_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", [picture(3)] * 3)
    monkeypatch.setattr(reader, "MAX_PIXELS", 96 * 64 - 1)
    with pytest.raises(ClipError, match=r"a\.mp4.*96 x 64"):
        next(frames(path))


def test_metadata_in_any_encoding_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "TITLE"
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_image(picture(9))))
        container.mux(stream.encode())
    path.write_bytes(path.read_bytes().replace(b"TITLE", b"caf\xe9\xff"))
    assert [number_of(frame.image) for frame in frames(path)] == [9]
