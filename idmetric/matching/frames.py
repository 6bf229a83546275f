"""Frames of a video with their times, by PyAV.

    for frame in frames("clip.mp4", rate=2):
        frame.time, frame.number, frame.image

A clip that FFmpeg reports as damaged, one in HDR, and one without ascending time stamps is refused: re-encode it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.files import StrPath, need
from idmetric.metric.images import MAX_PIXELS, ImageReadError, checked_path

# FFmpeg's names of the containers that are opened, whatever a file is called; others may open further files
CONTAINERS = "mov,matroska,avi,gif"
_HDR = (16, 18)  # FFmpeg's AVCOL_TRC_SMPTE2084 (PQ) and AVCOL_TRC_ARIB_STD_B67 (HLG)
_UNSPECIFIED = 2  # FFmpeg's AVCOL_SPC_UNSPECIFIED; that of a range is 0
_AGAIN = "write it again: ffmpeg -i IN -c:v libx264 -crf 15 OUT.mp4"
_TO_SDR = (
    "convert it to SDR: ffmpeg -i IN -vf zscale=t=linear:npl=100,format=gbrpf32le,zscale=p=bt709,tonemap=hable,"
    "zscale=t=bt709:m=bt709:r=tv,format=yuv420p -c:v libx264 -crf 15 OUT.mp4"
)


class ClipError(ValueError):
    """A clip that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame of a video.

    Attributes:
        number: from 0, in the order of display.
        time: seconds since the first frame.
    """

    number: int
    time: float
    _frame: Any  # PyAV's

    @cached_property
    def image(self) -> Image.Image:
        """The frame upright, RGB, or RGBA where the video has transparency; converted at the first use."""
        pixel_format = self._frame.format
        mode = "rgb24"
        if pixel_format.name == "pal8" or any(part.is_alpha for part in pixel_format.components):
            mode = "rgba"
        pixels = self._frame.to_ndarray(format=mode)

        matrix = self._frame.side_data.get("DISPLAYMATRIX")
        if matrix is not None:
            pixels = _displayed(pixels, np.frombuffer(matrix, np.int32, 9))
        return Image.fromarray(np.ascontiguousarray(pixels))


def frames(path: StrPath, rate: float | None = None) -> Iterator[Frame]:
    """The frames of a video in order of display, one in memory at a time.

    Args:
        rate: frames per second: the frames that are shown at 0, 1 / rate, 2 / rate, ... seconds; None = all.

    Raises:
        ClipError: for a file that is missing or no regular file, has no video in a known container and codec, is in
            HDR, has frames without time stamps or of too many pixels; at the first damage that FFmpeg reports.
    """
    decoded = _decoded(Path(path))
    if rate is None:
        yield from decoded
        return
    for frame, following in pairwise(chain(decoded, [None])):
        assert frame is not None
        end = frame.time + 2e-6
        if following is not None:
            end = following.time
        first_moment = math.ceil((frame.time - 1e-6) * rate) / rate  # from its beginning on, to 1e-6 s
        if first_moment + 1e-6 < end:
            yield frame


def times(path: StrPath) -> NDArray[np.float64]:
    """(frames,) seconds of a video's frames since the first, found without decoding; errors as `frames`."""
    path = Path(path)
    with _opened(path) as (container, stream):
        stamps = []
        for packet in container.demux(stream):
            if _is_shown(packet):
                stamps.append(_stamp(path, packet))
        stamps.sort()
        seconds = np.array(stamps, np.float64) * float(stream.time_base)
    if not len(seconds) or (np.diff(seconds) <= 0).any():
        _refuse(path, f"it has no frames, or several of one time stamp: {_AGAIN}")
    since_first: NDArray[np.float64] = seconds - seconds[0]
    return since_first


def _decoded(path: Path) -> Iterator[Frame]:
    """All frames; each packet must give one, so that none is lost in silence."""
    with _opened(path) as (container, stream):
        context = stream.codec_context
        colors = (int(context.colorspace), int(context.color_range))  # decoding forgets those of the container
        context.options = {"err_detect": "explode"}
        context.thread_type = "AUTO"

        awaited: list[int] = []  # a heap of the time stamps of packets whose frames did not come out yet
        stamps: list[int] = []  # of the frames that did
        for number, packet in enumerate(container.demux(stream)):
            if number == 0 and not packet.is_keyframe:
                _refuse(path, f"it does not begin with a key frame: {_AGAIN}")
            if _is_shown(packet):
                heapq.heappush(awaited, _stamp(path, packet))
            for frame in packet.decode():
                is_damaged = frame.is_corrupt or not awaited or frame.pts != heapq.heappop(awaited)
                if is_damaged or (stamps and frame.pts <= stamps[-1]):
                    _refuse(path, f"it is damaged at frame {len(stamps)}: {_AGAIN}")
                _set_colors(frame, *colors)
                stamps.append(frame.pts)
                seconds = (frame.pts - stamps[0]) * float(stream.time_base)
                yield Frame(len(stamps) - 1, seconds, frame)
        if awaited or not stamps:
            _refuse(path, f"it is damaged at frame {len(stamps)}: {_AGAIN}")


def _set_colors(frame: Any, space: int, color_range: int) -> None:
    """Give a frame the coding of colors that its stream alone states."""
    if frame.colorspace == _UNSPECIFIED:
        frame.colorspace = space
    if frame.color_range == 0:
        frame.color_range = color_range


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file opened in PyAV, and its video stream; errors become a `ClipError` that names the file."""
    need("eval", "reading videos", av="PyAV")
    import av

    try:
        checked_path(path, str(path))
        # with "file:", a name with a colon is no address; tags may be in any encoding
        with av.open(f"file:{path}", options={"format_whitelist": CONTAINERS}, metadata_errors="replace") as container:
            yield container, _video_stream(path, container)
    except ImageReadError as error:
        raise ClipError(f"{path}: {error.reason}") from error
    except av.FFmpegError as error:
        raise ClipError(f"{path}: it cannot be read as a video ({error}): {_AGAIN}") from error


def _video_stream(path: Path, container: Any) -> Any:
    """The stream that FFmpeg shows by default, which is checked."""
    from av.stream import Disposition

    stream = container.streams.best("video")
    if stream is None or stream.disposition & Disposition.attached_pic:
        _refuse(path, "the file contains no video")
    if stream.codec_context is None:
        _refuse(path, "FFmpeg has no decoder for it: convert it to H.264")
    if int(stream.codec_context.color_trc) in _HDR:
        _refuse(path, f"it is HDR: {_TO_SDR}")
    if stream.width * stream.height > MAX_PIXELS:
        _refuse(path, f"frames of {stream.width} x {stream.height} pixels are too large: make them smaller")
    is_vp = stream.codec_context.name in ("vp8", "vp9")
    if is_vp and {key.lower(): value for key, value in stream.metadata.items()}.get("alpha_mode") == "1":
        _refuse(path, "its transparency cannot be read: ffmpeg -c:v libvpx-vp9 -i IN -c:v ffv1 OUT.mkv")
    return stream


def _is_shown(packet: Any) -> bool:
    """Whether a packet gives a frame: an empty one marks the end, others are cut off by an edit list."""
    return bool(packet.size) and not packet.is_discard


def _stamp(path: Path, packet: Any) -> int:
    if packet.pts is None:
        _refuse(path, f"a frame has no time stamp: {_AGAIN}")
    return int(packet.pts)


def _displayed(pixels: NDArray[np.uint8], matrix: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Pixels (height, width, channels) turned and mirrored by a display matrix, to the nearest quarter turn.

    The matrix [a b u; c d v; x y w] shows the pixel (x, y) at (a x + c y, b x + d y); FFmpeg's libavutil/display.h.
    """
    a, b, _, c, d, *_ = matrix.tolist()
    across, down = a, d
    if abs(b) > abs(a):  # a quarter turn: columns become rows
        pixels = pixels.transpose(1, 0, 2)
        across, down = c, b
    if across < 0:
        pixels = pixels[:, ::-1]
    if down < 0:
        pixels = pixels[::-1]
    return pixels


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ClipError(f"{path}: {reason}")
