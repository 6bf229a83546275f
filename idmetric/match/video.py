"""Frames of a video file: their times without decoding, then the frames in order, one in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idmetric.metric.files.hints import need
from idmetric.metric.images.kinds import MAX_PIXELS
from idmetric.metric.images.read import ImageReadError

_JUMP = 100  # frames, at least, that are passed over by seeking instead of decoding them
# FFmpeg's names of the containers that are opened, whatever a file is called. Playlists, which open further files and
# addresses, are left out.
_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,ivf,flv,ogg,asf,mxf"


class ClipError(ValueError):
    """A clip that cannot be used; the message names the file and the reason."""


class Video:
    """A video; each `read` decodes it once from its beginning, or from the key frames before the wanted frames.

    Memory holds the times of all frames, and one picture.

    Attributes:
        times: (frames,) seconds since the first frame, by the file's time stamps, which covers varying frame rates; by
            order at the stated rate, or 25 per second, if stamps are missing (raw streams, some .avi).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        stamps: list[int | None] = []
        key_frames = []
        with _opened(path) as container:
            stream = container.streams.video[0]
            for packet in container.demux(stream):
                # an empty packet marks the end; an edit list cuts discarded ones off
                if packet.size and not packet.is_discard:
                    stamps.append(packet.pts)
                    if packet.is_keyframe:
                        key_frames.append(packet.pts)
            time_base, rate = stream.time_base, stream.average_rate

        if not stamps:
            raise ClipError(f"{path}: a video without frames")
        self._stamps = np.empty(0, np.int64)  # ascending; empty without them
        self._key_frames = np.zeros(1, np.int64)  # their indices
        self.times = np.arange(len(stamps)) / float(rate or 25)
        are_unique = None not in stamps and len(set(stamps)) == len(stamps)
        if are_unique and time_base:
            self._stamps = np.sort(np.array(stamps, np.int64))
            self._key_frames = np.union1d(0, np.searchsorted(self._stamps, key_frames))
            self.times = (self._stamps - self._stamps[0]) * float(time_base)

    def read(self, indices: Sequence[int]) -> Iterator[Callable[[], Image.Image]]:
        """For each of these ascending indices, a function that returns the frame upright as RGB.

        It raises `ImageReadError` for a frame that doesn't decode, and for all frames after it up to the next key
        frame, because they are differences to a missing picture.
        """
        last_index = max(indices, default=-1)
        frames = self._decoded(0, last_index)
        index, frame = -1, None
        for wanted in indices:
            key_frame = self._key_frames[np.searchsorted(self._key_frames, wanted, side="right") - 1]
            if key_frame > index + _JUMP:
                frames.close()
                frames = self._decoded(int(key_frame), last_index)
            while index < wanted:
                index, frame = next(frames, (len(self.times), None))
            if index == wanted:
                yield partial(self._picture, wanted, frame)
            else:
                yield partial(self._picture, wanted, None)

    def _picture(self, index: int, frame: Any) -> Image.Image:
        name = f"{self.path} @ {index}"
        if frame is None:
            raise ImageReadError(name, "it cannot be decoded: the video is damaged there or shortly before")
        reason = _too_large(frame)  # the size may change within a stream
        if reason:
            raise ImageReadError(name, reason)
        image = Image.fromarray(frame.to_ndarray(format="rgb24"))  # to_image() takes twice the time
        turn = round(frame.rotation / 90) * 90 % 360  # counter-clockwise, as Pillow's
        if turn:
            image = image.rotate(turn, expand=True)
        return image

    def _decoded(self, start: int, last_index: int) -> Generator[tuple[int, Any], None, None]:
        """(index, frame) of all intact frames up to this one; a damaged frame spoils all frames up to a key frame.

        Args:
            start: the key frame to seek. Where seeking misses it, as in some streams, all frames are decoded.
        """
        for index, frame in self._intact(start, last_index):
            if index > start > 0:
                break
            yield index, frame
            start = 0
        if start > 0:
            yield from self._intact(0, last_index)

    def _intact(self, start: int, last_index: int) -> Iterator[tuple[int, Any]]:
        from av import FFmpegError

        count, is_intact = 0, start == 0
        broken: set[int | None] = set()  # time stamps of incomplete packets
        with _opened(self.path) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            if start > 0:
                container.seek(int(self._stamps[start]), stream=stream)
            for packet in container.demux(stream):
                if packet.is_corrupt:
                    broken.add(packet.pts)
                try:
                    frames = packet.decode()
                except FFmpegError:
                    is_intact = False
                    continue
                for frame in frames:
                    index = self._index_of(frame.pts, count)
                    count += 1
                    if index > last_index:
                        return
                    is_whole = not frame.is_corrupt and frame.pts not in broken
                    is_intact = is_whole and (is_intact or frame.key_frame)
                    if index >= 0 and is_intact:
                        yield index, frame

    def _index_of(self, stamp: int | None, count: int) -> int:
        """The index of a frame by its time stamp, -1 for an unknown one; by order in a video without stamps."""
        if not len(self._stamps):
            return count
        if stamp is None:
            return -1
        index = int(np.searchsorted(self._stamps, stamp))
        if stamp not in self._stamps[index : index + 1]:
            return -1
        return index


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file in PyAV; errors of FFmpeg become a `ClipError` that names the file."""
    need("match", "reading videos", av="PyAV")
    import av

    try:
        # with "file:", a name with a colon is no address
        with av.open(f"file:{path}", options={"format_whitelist": _CONTAINERS}) as container:
            if not container.streams.video:
                raise ClipError(f"{path}: the file contains no video")
            reason = _too_large(container.streams.video[0])
            if reason:
                raise ClipError(f"{path}: {reason}: make them smaller")
            yield container
    except av.FFmpegError as error:
        raise ClipError(f"{path}: not readable as a video: {error}") from error


def _too_large(picture: Any) -> str:
    """Why a stream or a frame has more pixels than an image may have, or ""."""
    if picture.width * picture.height <= MAX_PIXELS:
        return ""
    return f"frames of {picture.width} x {picture.height} pixels are more than the {MAX_PIXELS} allowed"
