"""The reader of videos: damage, orientation, HDR, transparency, streams, time stamps, and files that are no videos."""

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
from idmetric.matching.hdr import Transfer, to_sdr
from idmetric.matching.transport import read_transport
from idmetric.matching.video import ClipError, Video
from idmetric.metric.images.read import ImageReadError, read_image
from tests.clip_files import number_of, packets_of, picture, set_matrix, write_video
from tests.matching.films import sound

PHOTO = Path(__file__).parents[2] / "examples/images/mug_a.png"
Frames = dict[float, np.ndarray | None]


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


def by_time(path: Path) -> Frames:
    return dict(zip(Video(path).times.round(3).tolist(), frames_of(path), strict=True))


def refused(path: Path) -> list[int]:
    return [index for index, frame in enumerate(frames_of(path)) if frame is None]


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
    "H.264, .ts": ("ts", "libx264", {"x264-params": f"{X264}:open-gop=1"}),
    "HEVC, closed": ("mp4", "libx265", {"x265-params": "keyint=12:bframes=3:open-gop=0:log-level=none"}),
    "HEVC, open": ("mkv", "libx265", {"x265-params": "keyint=12:bframes=3:open-gop=1:log-level=none"}),
    "MPEG-2, open": ("ts", "mpeg2video", {"bf": "2", "g": "12"}),
    "MPEG-2, closed": ("mkv", "mpeg2video", {"bf": "2", "g": "12", "flags": "+cgop", "sc_threshold": "1000000000"}),
    "MPEG-4": ("avi", "mpeg4", {"bf": "2", "g": "12"}),
    "AV1": ("mp4", "libsvtav1", {"g": "12", "preset": "12", "svtav1-params": "pred-struct=1"}),
    "VP9": ("webm", "libvpx-vp9", {"g": "12", "cpu-used": "8", "deadline": "realtime"}),
}


@pytest.mark.parametrize("kind", PREDICTED)
def test_no_frame_differs_from_the_intact_video_where_a_packet_is_overwritten(tmp_path: Path, kind: str) -> None:
    """Also frames that are shown before the damaged packet's and refer to it, and after it in open groups."""
    ending, codec, options = PREDICTED[kind]
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    path = write_video(tmp_path / f"a.{ending}", moving(40), 25, codec=codec, codec_options=options)
    intact, data = by_time(path), path.read_bytes()
    assert not any(frame is None for frame in intact.values())
    rng = random.Random(0)
    refused_frames = 0
    for number in (3, 5, 11, 14, 17, 22, 26, 39):
        path.write_bytes(data)
        overwrite(path, number, rng.choice((None, b"\xff", b"\0")), rng)
        for time, frame in by_time(path).items():
            refused_frames += frame is None
            assert frame is None or np.array_equal(frame, intact[time]), (number, time)
    assert refused_frames > 8


def test_frames_shown_before_a_damaged_packet_are_refused_if_they_are_decoded_after_it(tmp_path: Path) -> None:
    """In decode order I0 P4 B1 B2 B3 P8 B5 B6 B7 P11 B9 B10 | I12: without P4 none of them up to I12 can be decoded."""
    options = {"x264-params": f"{X264}:b-pyramid=none"}
    path = write_video(tmp_path / "a.mp4", moving(24), 25, codec="libx264", codec_options=options)
    data = path.read_bytes()
    assert [index for _, _, index in packets_of(path)][:13] == [0, 4, 1, 2, 3, 8, 5, 6, 7, 11, 9, 10, 12]
    for number, expected in {1: range(1, 12), 5: range(5, 12), 3: [2, 3, *range(5, 12)], 12: range(12, 24)}.items():
        path.write_bytes(data)
        overwrite(path, number, b"\xff")
        assert refused(path) == list(expected)


def test_frames_before_a_key_frame_may_refer_to_damage_before_it(tmp_path: Path) -> None:
    """MPEG-2, in decode order I0 P3 B1 B2 P6 ... P9 B7 B8 I12 B10 B11 P15: without P9 not B10 and B11 either."""
    options = {"bf": "2", "g": "12", "sc_threshold": "1000000000"}
    path = write_video(tmp_path / "a.mkv", moving(24), 25, codec="mpeg2video", codec_options=options)
    order = [index for _, _, index in packets_of(path)]
    assert order[:13] == [0, 3, 1, 2, 6, 4, 5, 9, 7, 8, 12, 10, 11]
    overwrite(path, 7, b"\xff")
    assert {7, 8, 9, 10, 11} <= set(refused(path)) <= {4, 5, 6, 7, 8, 9, 10, 11}


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_damage_at_the_joint_of_two_ts_files_refuses_no_frame_of_the_second(tmp_path: Path, codec: str) -> None:
    """The time stamps of the second part are those of the first."""
    part = write_video(tmp_path / "part.ts", moving(20), 25, codec=codec)
    frames = frames_of(part)
    joint = tmp_path / "joint.ts"
    joint.write_bytes(part.read_bytes() * 2)
    assert np.allclose(Video(joint).times, np.arange(40) / 25, atol=1e-3)
    assert all(np.array_equal(frame, frames[index % 20]) for index, frame in enumerate(frames_of(joint)[20:]))
    overwrite(joint, 19, b"\xff")
    joined = frames_of(joint)
    of_first, of_second = joined[:-20], joined[-20:]
    assert all(frame is None or np.array_equal(frame, frames[index]) for index, frame in enumerate(of_first))
    assert all(np.array_equal(frame, frames[index]) for index, frame in enumerate(of_second))
    assert len(of_first) < 20 or of_first[-1] is None


def test_an_avi_has_its_frames_in_order_of_display(tmp_path: Path) -> None:
    """It has no times of display: frames with B-frames between them came in the order of decoding."""
    options = {"x264-params": "bframes=3:b-adapt=0"}
    pictures = [picture(number) for number in range(40)]
    path = write_video(tmp_path / "a.avi", pictures, codec="libx264", codec_options=options)
    assert [number_of(load()) for load in Video(path).read(range(40))] == list(range(40))
    overwrite(path, 37, b"\xff")
    numbers = [None if frame is None else number_of(Image.fromarray(frame)) for frame in frames_of(path)]
    assert 0 in numbers
    assert all(number in (None, index) for index, number in enumerate(numbers))


def test_packets_that_say_no_change_show_the_frame_before_them(tmp_path: Path) -> None:
    """QuickTime Animation; FFmpeg gives no frame for them."""
    path = write_video(
        tmp_path / "a.mov", [picture(number // 3) for number in range(12)], codec="qtrle", pixels="rgb24"
    )
    assert [number_of(load()) for load in Video(path).read(range(12))] == [number // 3 for number in range(12)]
    assert [number_of(load()) for load in Video(path).read([4, 11])] == [1, 3]


def test_a_frame_that_mpeg4_does_not_code_shows_the_one_before_it(tmp_path: Path) -> None:
    """As Xvid writes them: the header of a picture alone, with vop_coded = 0."""
    path = write_video(tmp_path / "a.avi", [picture(number) for number in range(12)], 25)
    copy = tmp_path / "b.avi"
    with av.open(str(path)) as source, av.open(str(copy), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                # start code, type P, modulo_time_base, marker, 5 bits of time for 25 per second, marker, vop_coded
                uncoded = int(f"0101{number:05b}1001111".ljust(16, "1"), 2)
                changed = av.Packet(bytes.fromhex("000001b6") + uncoded.to_bytes(2, "big")) if number == 5 else packet
                changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
                changed.stream = stream
                target.mux(changed)
    shown = [number_of(load()) for load in Video(copy).read(range(12))]
    assert shown[:6] == [0, 1, 2, 3, 4, 4]
    assert not refused(copy)


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


def test_damage_in_what_an_edit_list_cuts_off_spreads_to_what_it_shows(tmp_path: Path) -> None:
    options = {"x264-params": X264}
    path = write_video(
        tmp_path / "a.mp4", [picture(number) for number in range(30)], 25, codec="libx264", codec_options=options
    )
    damaged, size, _ = packets_of(path)[1]
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 16
    [start] = struct.unpack(">i", data[at : at + 4])
    data[at : at + 4] = struct.pack(">i", start + 7 * 512)  # 7 frames, of 12,800 units a second
    path.write_bytes(data)
    assert [number_of(load()) for load in Video(path).read(range(23))] == list(range(7, 30))
    data[damaged : damaged + size] = b"\xff" * size
    path.write_bytes(data)
    assert refused(path) == [0, 1, 2, 3, 4]  # up to the key frame, 12


def test_gaps_of_a_transport_stream_are_those_of_its_counters_and_sync_bytes(tmp_path: Path) -> None:
    def packet(counter: int, start: bool = False, pid: int = 256, flags: int = 0x10) -> bytes:
        return bytes([0x47, (0x40 if start else 0) | pid >> 8, pid & 0xFF, flags | counter]) + bytes(184)

    path = tmp_path / "a.ts"
    other = packet(9, pid=17)
    whole = [packet(14, True), packet(15), other, packet(0, True), packet(1), packet(2), packet(3), packet(4)]
    path.write_bytes(b"".join(whole))
    assert read_transport(path, 256).gaps == []
    assert read_transport(path, 256).unit_starts.tolist() == [0, 3 * 188]
    path.write_bytes(b"".join([*whole[:4], *whole[5:]]))
    assert read_transport(path, 256).gaps == [(3 * 188, 4 * 188)]
    path.write_bytes(b"".join([*whole[:3], b"\xff" * 188, *whole[4:]]))
    assert read_transport(path, 256).gaps == [(188, 4 * 188)]
    path.write_bytes(b"".join([*whole[:4], b"more", *whole[4:]]))
    assert read_transport(path, 256).gaps == []
    anew = bytearray(packet(9, flags=0x30))
    anew[4:6] = 1, 0x80
    path.write_bytes(b"".join([whole[0], bytes(anew), packet(10)]))
    assert read_transport(path, 256).gaps == []


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

TO_BT2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])  # BT.2087
LUMINANCE = np.array([0.2627, 0.6780, 0.0593])
TRANSFERS = {"pq": 16, "hlg": 18}  # FFmpeg's AVColorTransferCharacteristic


def hdr(photo: Image.Image, transfer: str) -> np.ndarray:
    """An SDR photo as R'G'B' of BT.2100, 0-1, with its white at 203 cd/m2 (Report BT.2408)."""
    signal = np.asarray(photo) / 255
    linear = np.where(signal <= 0.04045, signal / 12.92, ((signal + 0.055) / 1.055) ** 2.4)
    light = 203 * linear @ TO_BT2020.T
    if transfer == "pq":
        power = (light / 10_000) ** 0.1593017578125
        return ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375
    display = light / 1000
    luminance = np.maximum(display @ LUMINANCE, 1e-9)[..., None]
    scene = display * luminance ** (1 / 1.2 - 1)
    upper = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), upper)


def write_hdr(path: Path, photo: Image.Image, transfer: str, codec: str, in_stream: bool) -> Path:
    """A photo as a video of 10 bits; `in_stream`: tagged in the stream, and not in the container alone."""
    signal = hdr(photo, transfer)
    luma = signal @ LUMINANCE
    height, width = luma.shape
    planes = [64 + 876 * luma]
    for channel, divisor in ((2, 1.8814), (0, 1.4746)):
        chroma = ((signal[..., channel] - luma) / divisor).reshape(height // 2, 2, width // 2, 2).mean((1, 3))
        planes.append(512 + 896 * chroma)
    codes = np.concatenate([plane.round().ravel() for plane in planes]).astype(np.uint16)
    options = {"x265-params": "lossless=1:bframes=0:log-level=none"} if codec == "libx265" else {}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=5, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p10le"
        context = stream.codec_context
        if not in_stream:
            context.open()
        context.color_primaries, context.color_trc = 9, TRANSFERS[transfer]
        context.colorspace, context.color_range = 9, 1
        for number in range(2):
            frame = av.VideoFrame.from_ndarray(codes.reshape(-1, width), format="yuv420p10le")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("in_stream", [True, False])
@pytest.mark.parametrize("codec", ["libx265", "ffv1"])
def test_hdr_is_near_the_same_photo_in_sdr(tmp_path: Path, codec: str, in_stream: bool) -> None:
    """.017 of HLG and .040 of PQ are to be reached (.030 and .098 without a conversion)."""
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg here has no {codec}")
    metric, photo = IDSim("tiny"), Image.open(PHOTO).convert("RGB")
    for transfer, most in {"hlg": 0.018, "pq": 0.04}.items():
        path = write_hdr(tmp_path / f"{transfer}.mkv", photo, transfer, codec, in_stream)
        [load] = Video(path).read([1])
        assert metric(load(), photo).item() < most, transfer
        assert np.abs(np.asarray(load()).astype(int) - np.asarray(photo)).mean() < 5


def test_light_is_mapped_as_bt_2390_and_2408_say() -> None:
    """White is the white of the display, dark colors keep their light, gray stays gray; 92 cd/m2 is the knee."""
    grays = np.linspace(0, 1, 256).round(3)
    for transfer, signal in {"pq": grays, "hlg": grays}.items():
        codes = np.repeat((signal * 65535).astype(np.uint16)[None, :, None], 3, axis=2)
        shown = to_sdr(codes, Transfer[transfer.upper()])[0]
        assert (np.ptp(shown.astype(int), axis=1) <= 1).all()
        assert (np.diff(shown[:, 0].astype(int)) >= 0).all()
        assert (shown[0].tolist(), shown[-1].tolist()) == ([0, 0, 0], [255, 255, 255])
    photo = Image.new("RGB", (2, 2), (128, 128, 128))  # 21.6 % of 203 cd/m2, below the knee
    for transfer in TRANSFERS:
        codes = (hdr(photo, transfer) * 65535).round().astype(np.uint16)
        assert np.abs(to_sdr(codes, Transfer[transfer.upper()]).astype(int) - 128).max() <= 1


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


@pytest.mark.parametrize("frames", ["2fps", "shots", 4, "all"])
def test_a_time_stamp_of_years_is_refused_at_once(tmp_path: Path, frames: int | str) -> None:
    """2 KB with a stamp of 1.5e8 seconds took 7.3 GB, or raised scenedetect's "Framerate must be positive"."""
    pictures = [picture(number, size=(96, 64)) for number in range(4)]
    path = write_video(tmp_path / "a.mkv", pictures, stamps=[0, 20, 40, 600 * 150_000_000], codec="ffv1")
    assert path.stat().st_size < 10_000
    with pytest.raises(ClipError, match=r"a\.mkv: two frames are 1\d{8} seconds apart by their time stamps"):
        timeline([Clip(path)], frames, "fail")


@pytest.mark.parametrize("frames", ["2fps", "1000000fps", "shots"])
def test_a_clip_of_years_takes_no_more_memory(frames: str) -> None:
    line = timeline([Clip([picture(0), picture(1)], fps=1e-9)], frames, "fail")
    assert [moment.frame for moment in line.moments] == ([0] if frames == "shots" else [0, 1])


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
    write_video(folder / "stamp.mkv", [picture(0)] * 3, stamps=[0, 20, 600 * 150_000_000], codec="ffv1")
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
        "stamp.mkv": "seconds apart",
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
