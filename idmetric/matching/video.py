"""Frames of a video file: their times without decoding, then the frames in order, one in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from idmetric.matching.damage import NumberedPacket, intact_frames
from idmetric.matching.packets import demuxed, read_packets
from idmetric.matching.pictures import Colors, to_image
from idmetric.metric.files.hints import need
from idmetric.metric.images.kinds import MAX_PIXELS
from idmetric.metric.images.opening import checked_path
from idmetric.metric.images.read import ImageReadError

_JUMP = 100  # frames, at least, that are passed over by seeking instead of decoding them
# FFmpeg's names of the containers that are opened, whatever a file is called. Playlists, which open further files and
# addresses, are left out.
_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,ivf,flv,ogg,asf,mxf"
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}  # FFmpeg's own decoders leave transparency out
_LONGEST_GAP = 86_400.0  # seconds between two frames; more is a damaged time stamp
_DAMAGED = "it cannot be decoded: the video is damaged there or shortly before"


class ClipError(ValueError):
    """A clip that cannot be used; the message names the file and the reason."""


class Video:
    """A video; each `read` decodes it once from its beginning, or from the key frames before the wanted frames.

    Memory holds a few numbers for each frame, the frames that the decoder keeps back, and one picture.

    Attributes:
        times: (frames,) seconds since the first frame, by the file's time stamps, which covers varying frame rates; by
            order at the stated rate, or 25 per second, if stamps are missing or repeated (raw streams, some .avi). Of
            files appended to each other (.ts), each begins where the one before it ends.
    """

    def __init__(self, path: Path) -> None:
        """Find the frames.

        Raises:
            ClipError: for a file that is missing, no regular file, no video of a known container and codec, or without
                frames; for more pixels than an image may have; for a gap of more than a day between two frames.
        """
        self.path = path
        with _opened(path) as (container, stream):
            self._table = read_packets(path, container, stream)
            gap = self._table.longest_gap
            if gap > _LONGEST_GAP:
                raise ClipError(
                    f"{path}: two frames are {gap:.0f} seconds apart by their time stamps, which are damaged: write "
                    "the clip again"
                )
            self._colors = Colors.of(stream.codec_context)
            if _has_alpha(stream) and _alpha_decoder(stream) is None:
                warnings.warn(f"{path}: PyAV has no libvpx here, so its transparency is not read", stacklevel=2)
        self.times = self._table.times
        if not len(self.times):
            raise ClipError(f"{path}: a video without frames")

    def read(self, indices: Sequence[int]) -> Iterator[Callable[[], Image.Image]]:
        """For each of these ascending indices, a function that returns the frame upright, as RGB or RGBA.

        It raises `ImageReadError` for a frame that doesn't decode, and for all frames that may refer to it, up to the
        next key frame. HDR (BT.2100) is converted to SDR, see `idmetric.matching.hdr`.
        """
        last_index = max(indices, default=-1)
        frames = self._decoded(0, last_index)
        index, frame, reason = -1, None, _DAMAGED
        for wanted in indices:
            key = self._table.key_before(wanted)
            if self._table.indices[key] > index + _JUMP:
                frames.close()
                frames = self._decoded(key, last_index)
            try:
                while index < wanted:
                    index, frame = next(frames, (len(self.times), None))
            except ClipError as error:  # the file has changed since it was opened
                index, reason = len(self.times), str(error)
            if index == wanted:
                yield partial(self._picture, wanted, frame, reason)
            else:
                yield partial(self._picture, wanted, None, reason)

    def _picture(self, index: int, frame: Any, reason: str) -> Image.Image:
        name = f"{self.path} @ {index}"
        if frame is None:
            raise ImageReadError(name, reason)
        too_large = _too_large(frame)  # the size may change within a stream
        if too_large:
            raise ImageReadError(name, too_large)
        try:
            return to_image(frame, self._colors)
        except (ValueError, OSError) as error:  # a pixel format that FFmpeg does not convert
            raise ImageReadError(name, f"its pixels cannot be converted to RGB ({error}): convert the video") from error

    def _decoded(self, start: int, last_index: int) -> Generator[tuple[int, Any], None, None]:
        """(index, frame) of the intact frames up to this one, in order of display.

        Args:
            start: the packet number to seek. Where seeking misses it, as in some streams, all frames are decoded.
        """
        start_index = self._table.indices[start]
        is_sought = start > 0
        for index, frame in self._decoded_from(start, last_index):
            if index > last_index or (is_sought and index > start_index):
                break
            is_sought = False
            yield index, frame
        if not is_sought:
            return
        for index, frame in self._decoded_from(0, last_index):
            if index > last_index:
                return
            yield index, frame

    def _decoded_from(self, start: int, last_index: int) -> Iterator[tuple[int, Any]]:
        """As `_decoded`, and frames after the last one; nothing, or only later frames, if seeking misses the start."""
        with _opened(self.path) as (container, stream):
            decoder = _alpha_decoder(stream) or stream.codec_context
            decoder.thread_type = "AUTO"
            if start > 0:
                container.seek(int(self._table.stamps[start]), stream=stream)
            packets = self._packets(container, stream, start)
            yield from intact_frames(self._table, decoder, packets, start, last_index)

    def _packets(self, container: Any, stream: Any, start: int) -> Iterator[NumberedPacket]:
        """The packets from where the container stands; none if it has missed the start."""
        number = 0
        is_sought = start > 0
        for packet in demuxed(container, stream):
            if is_sought:
                number = self._table.number_of(packet.pts)
                if not 0 <= number <= start:
                    return
                is_sought = False
            if number >= len(self._table.indices):
                raise ClipError(f"{self.path}: the file has changed while it was read")
            yield NumberedPacket(number, _numbered(packet, number))
            number += 1


def _numbered(packet: Any, number: int) -> Any:
    """A packet with its number as time stamp. If it is discarded, its frame comes out too, as others refer to it."""
    from av import Packet

    if packet.is_discard:
        is_keyframe = packet.is_keyframe
        packet = Packet(bytes(packet))
        packet.is_keyframe = is_keyframe
    packet.pts = number
    packet.dts = None
    return packet


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
    except (av.FFmpegError, OverflowError) as error:
        raise ClipError(f"{path}: not readable as a video: {error}") from error


def _stream(path: Path, container: Any) -> Any:
    """The video stream that players show: the default one, of several the largest; never a cover."""
    from av.stream import Disposition

    no_video = Disposition.attached_pic | Disposition.timed_thumbnails
    streams = [stream for stream in container.streams.video if not stream.disposition & no_video]
    if not streams:
        raise ClipError(f"{path}: the file contains no video")
    stream = max(streams, key=_rank)
    if stream.codec_context is None:
        raise ClipError(f"{path}: FFmpeg has no decoder for this video: convert it to H.264")
    reason = _too_large(stream)
    if reason:
        raise ClipError(f"{path}: {reason}: make them smaller")
    return stream


def _rank(stream: Any) -> tuple[bool, int]:
    from av.stream import Disposition

    is_default = bool(stream.disposition & Disposition.default)
    if stream.codec_context is None:
        return is_default, 0
    return is_default, stream.width * stream.height


def _has_alpha(stream: Any) -> bool:
    """Whether a WebM holds transparency in a second picture of each packet."""
    tags = {key.lower(): value for key, value in stream.metadata.items()}
    return tags.get("alpha_mode") == "1" and stream.codec_context.name in _ALPHA_DECODERS


def _alpha_decoder(stream: Any) -> Any:
    """A decoder of that transparency; None if there is none."""
    from av import CodecContext
    from av.codec.codec import UnknownCodecError

    if not _has_alpha(stream):
        return None
    try:
        return CodecContext.create(_ALPHA_DECODERS[stream.codec_context.name], "r")
    except UnknownCodecError:
        return None


def _too_large(picture: Any) -> str:
    """Why a stream or a frame has more pixels than an image may have, or ""."""
    if picture.width * picture.height <= MAX_PIXELS:
        return ""
    return f"frames of {picture.width} x {picture.height} pixels are more than the {MAX_PIXELS} allowed"
