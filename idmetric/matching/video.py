"""Frames of a video file, by PyAV: their times without decoding, then the frames in order, one in memory.

A video that FFmpeg reports as damaged, and one in HDR, is refused: re-encode it with FFmpeg.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idmetric.matching.frames import ClipError
from idmetric.matching.pictures import Colors, to_image
from idmetric.metric.files import need
from idmetric.metric.images import MAX_PIXELS, ImageReadError, checked_path

_JUMP = 100  # frames, at least, that are passed over by seeking instead of decoding them
# FFmpeg's names of the containers that are opened, whatever a file is called. Playlists, which open further files and
# addresses, are left out.
_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,ivf,flv,ogg,asf,mxf"
_INDEXED = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")  # containers in which a time stamp finds its key frame
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}  # FFmpeg's own decoders leave transparency out
_SHOWN_BY_VP8 = 0x10  # bit of a packet's first byte (RFC 6386, 9.1)
_HDR = (16, 18)  # FFmpeg's AVCOL_TRC_SMPTE2084 (PQ) and AVCOL_TRC_ARIB_STD_B67 (HLG)
_USUAL_RATE = 25.0  # frames per second of files that state none
_AGAIN = "re-encode it, for example: ffmpeg -i clip.mp4 -c:v libx264 -crf 15 new.mp4"
_TO_SDR = (
    "convert it to SDR, for example: ffmpeg -i clip.mov -vf zscale=t=linear:npl=100,format=gbrpf32le,zscale=p=bt709,"
    "tonemap=hable,zscale=t=bt709:m=bt709:r=tv,format=yuv420p -c:v libx264 -crf 15 sdr.mp4"
)


class Video:
    """A video; each `read` decodes it once from its beginning, or from the key frames before the wanted frames.

    Attributes:
        times: (frames,) seconds since the first frame, by the file's time stamps, which covers varying frame rates; by
            order at the stated rate, or 25 per second, where stamps are missing (raw streams, some .avi).
    """

    def __init__(self, path: Path) -> None:
        """Find the frames.

        Raises:
            ClipError: for a file that is missing, no regular file, no video of a known container and codec, without
                frames, in HDR, or with damaged time stamps; for more pixels than an image may have.
        """
        self.path = path
        with _opened(path) as (container, stream):
            context = stream.codec_context
            if int(context.color_trc) in _HDR:
                raise ClipError(f"{path}: it is HDR: {_TO_SDR}")
            self._colors = Colors.of(context)
            stamps: list[int | None] = []
            is_key: list[bool] = []
            for number, packet in enumerate(container.demux(stream)):
                if number == 0 and packet.size and not packet.is_keyframe:
                    raise ClipError(f"{path}: it does not begin with a key frame: {_AGAIN}")
                if _is_shown(packet, context.name):
                    stamps.append(packet.pts)
                    is_key.append(packet.is_keyframe)
            is_indexed = container.format.name in _INDEXED
            rate = float(stream.average_rate or _USUAL_RATE)
            time_base = float(stream.time_base or 0)
            is_by_decoding = container.format.name == "avi" and bool(context.has_b_frames)
        if not stamps:
            raise ClipError(f"{path}: a video without frames")

        self.times = np.arange(len(stamps)) / rate
        self._stamps: list[int] = []  # of the frames in order; empty where some are missing
        self._keys = [0]  # the frames at which decoding may begin
        known_stamps = [stamp for stamp in stamps if stamp is not None]
        if len(known_stamps) < len(stamps) or not time_base or is_by_decoding:
            return
        self._stamps = sorted(known_stamps)
        if len(set(self._stamps)) < len(self._stamps):
            raise ClipError(f"{path}: several frames have one time stamp: {_AGAIN}")
        self.times = np.array([stamp - self._stamps[0] for stamp in self._stamps], np.float64) * time_base
        if is_indexed:
            key_stamps = [stamp for stamp, starts in zip(known_stamps, is_key, strict=True) if starts]
            self._keys += np.searchsorted(self._stamps, sorted(key_stamps)).tolist()

    def read(self, indices: Sequence[int]) -> Iterator[Callable[[], Image.Image]]:
        """For each of these ascending indices, a function that returns the frame upright, as RGB or RGBA.

        It raises `ImageReadError` from the first damage on that FFmpeg reports.
        """
        frames = self._decoded(0)
        start = 0
        keys = self._keys
        index, frame, damage = -1, None, ""
        for wanted in indices:
            key = max(key for key in keys if key <= max(wanted, 0))
            if key > index + _JUMP:
                frames.close()
                frames = self._decoded(key)
                start = key
            while index < wanted and not damage:
                try:
                    index, frame = next(frames)
                except ClipError as error:
                    if start == 0:
                        damage = str(error)
                        continue
                    # an open group of pictures may refer to frames before its key frame
                    frames = self._decoded(0)
                    start, keys, index = 0, [0], -1
            yield partial(self._picture, wanted, frame, damage)
        frames.close()

    def _picture(self, index: int, frame: Any, damage: str) -> Image.Image:
        name = f"{self.path} @ {index}"
        if damage:
            raise ImageReadError(name, damage)
        too_large = _too_large(frame)  # the size may change within a stream
        if too_large:
            raise ImageReadError(name, too_large)
        try:
            return to_image(frame, self._colors)
        except (ValueError, OSError) as error:  # a pixel format that FFmpeg does not convert
            raise ImageReadError(name, f"its pixels cannot be converted to RGB ({error}): {_AGAIN}") from error

    def _decoded(self, start: int) -> Generator[tuple[int, Any], None, None]:
        """Yield (index, frame) from a key frame on; ClipError where the video is damaged."""
        index = start
        damaged = f"{self.path}: it is damaged at or before frame"
        with _opened(self.path) as (container, stream):
            decoder = _decoder(self.path, stream)
            decoder.options = {"err_detect": "explode"}
            decoder.thread_type = "AUTO"
            if start > 0:
                container.seek(self._stamps[start], stream=stream)
            for packet in container.demux(stream):
                if start > 0 and packet.pts is not None and packet.pts < self._stamps[start]:
                    continue  # shown before the key frame, and may refer to frames before it
                if packet.is_corrupt:
                    raise ClipError(f"{damaged} {index}: {_AGAIN}")
                for frame in _frames_of(decoder, packet, f"{damaged} {index}"):
                    is_expected = index < len(self.times)
                    if is_expected and self._stamps:
                        is_expected = frame.pts == self._stamps[index]
                    if frame.is_corrupt or not is_expected:
                        raise ClipError(f"{damaged} {index}: {_AGAIN}")
                    yield index, frame
                    index += 1
        raise ClipError(f"{damaged} {index}: {_AGAIN}")


def _frames_of(decoder: Any, packet: Any, damaged: str) -> Sequence[Any]:
    """The frames that come out when a packet goes in; ClipError for an error that FFmpeg reports."""
    from av import FFmpegError

    try:
        frames: Sequence[Any] = decoder.decode(packet)
    except FFmpegError as error:
        raise ClipError(f"{damaged} ({error}): {_AGAIN}") from error
    return frames


def _is_shown(packet: Any, codec: str) -> bool:
    """Whether a packet gives a frame: an empty one marks the end, others are cut off by an edit list."""
    if not packet.size or packet.is_discard:
        return False
    return codec != "vp8" or bool(memoryview(packet)[0] & _SHOWN_BY_VP8)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file opened in PyAV, and its video stream; errors become a `ClipError` that names the file."""
    need("eval", "reading videos", av="PyAV")
    import av

    try:
        checked_path(path, str(path))
        # with "file:", a name with a colon is no address; tags may be in any encoding
        options = {"format_whitelist": _CONTAINERS}
        with av.open(f"file:{path}", options=options, metadata_errors="replace") as container:
            yield container, _stream(path, container)
    except ImageReadError as error:
        raise ClipError(f"{path}: {error.reason}") from error
    except (av.FFmpegError, OverflowError, IndexError) as error:  # IndexError: PyAV's for streams that appear later
        raise ClipError(f"{path}: not readable as a video ({error}): {_AGAIN}") from error


def _stream(path: Path, container: Any) -> Any:
    """The video stream that players show: the default one, of several the largest; never a cover."""
    from av.stream import Disposition

    no_video = Disposition.attached_pic | Disposition.timed_thumbnails
    streams = [stream for stream in container.streams.video if not stream.disposition & no_video]
    if not streams:
        raise ClipError(f"{path}: the file contains no video")
    for stream in streams:
        if stream.codec_context is None:
            raise ClipError(f"{path}: FFmpeg has no decoder for this video: convert it to H.264")
    stream = max(streams, key=lambda one: (bool(one.disposition & Disposition.default), one.width * one.height))
    reason = _too_large(stream)
    if reason:
        raise ClipError(f"{path}: {reason}: make them smaller")
    return stream


def _decoder(path: Path, stream: Any) -> Any:
    """The decoder of a stream: that of libvpx for a WebM with transparency in a second picture of each packet."""
    from av import CodecContext
    from av.codec.codec import UnknownCodecError

    tags = {key.lower(): value for key, value in stream.metadata.items()}
    name = _ALPHA_DECODERS.get(stream.codec_context.name, "")
    if not name or tags.get("alpha_mode") != "1":
        return stream.codec_context
    try:
        return CodecContext.create(name, "r")
    except UnknownCodecError as error:
        raise ClipError(f"{path}: PyAV has no {name} here, which its transparency needs: {_AGAIN}") from error


def _too_large(picture: Any) -> str:
    """Why a stream or a frame has more pixels than an image may have, or ""."""
    if picture.width * picture.height <= MAX_PIXELS:
        return ""
    return f"frames of {picture.width} x {picture.height} pixels are more than the {MAX_PIXELS} allowed"
