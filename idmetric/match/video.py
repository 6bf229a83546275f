"""Frames of a video file: their times without decoding, then the frames in order, one in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idmetric.metric.files.hints import need
from idmetric.metric.images.read import ImageReadError


class ClipError(ValueError):
    """A clip that cannot be used; the message names the file and the reason."""


class Video:
    """A video, decoded once from its beginning for each `read`.

    Attributes:
        times: (frames,) seconds since the first frame, by the file's time stamps, which covers varying frame rates; by
            order at the stated rate, or 25 per second, if stamps are missing (raw streams, some .avi).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as container:
            stream = container.streams.video[0]
            # an empty packet marks the end; an edit list cuts discarded ones off
            packets = container.demux(stream)
            stamps = [packet.pts for packet in packets if packet.size and not packet.is_discard]
            time_base, rate = stream.time_base, stream.average_rate

        if not stamps:
            raise ClipError(f"{path}: a video without frames")
        self._index_of: dict[int, int] = {}  # time stamps; empty without them
        self.times = np.arange(len(stamps)) / float(rate or 25)
        are_unique = None not in stamps and len(set(stamps)) == len(stamps)
        if are_unique and time_base:
            stamps.sort()
            self._index_of = {stamp: index for index, stamp in enumerate(stamps)}
            ticks = np.array(stamps, np.float64) - stamps[0]
            self.times = ticks * float(time_base)

    def read(self, indices: Sequence[int]) -> Iterator[Callable[[], Image.Image]]:
        """For each of these ascending indices, a function that returns the frame upright as RGB.

        Call it before taking the next one. It raises `ImageReadError` for a frame that doesn't decode, and for all
        frames after it up to the next key frame, because they are differences to a missing picture.
        """
        frames = self._decoded(max(indices, default=-1))
        index, frame = -1, None
        for wanted in indices:
            while index < wanted:
                index, frame = next(frames, (len(self.times), None))
            yield partial(self._picture, wanted, frame if index == wanted else None)

    def _picture(self, index: int, frame: Any) -> Image.Image:
        if frame is None:
            name = f"{self.path}, frame {index}"
            raise ImageReadError(name, "it cannot be decoded: the video is damaged there or shortly before")
        image: Image.Image = frame.to_image()
        turn = round(frame.rotation / 90) * 90 % 360  # counter-clockwise, as Pillow's
        return image.rotate(turn, expand=True) if turn else image

    def _decoded(self, last_index: int) -> Iterator[tuple[int, Any]]:
        """(index, frame) of all intact frames up to this one; a damaged frame spoils all frames up to a key frame."""
        from av import FFmpegError

        count, is_intact = 0, True
        broken: set[int | None] = set()  # time stamps of incomplete packets
        with _opened(self.path) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for packet in container.demux(stream):
                if packet.is_corrupt:
                    broken.add(packet.pts)
                try:
                    frames = packet.decode()
                except FFmpegError:
                    is_intact = False
                    continue
                for frame in frames:
                    index = self._index_of.get(frame.pts, -1) if self._index_of else count
                    count += 1
                    if index > last_index:
                        return
                    is_whole = not frame.is_corrupt and frame.pts not in broken
                    is_intact = is_whole and (is_intact or frame.key_frame)
                    if index >= 0 and is_intact:
                        yield index, frame


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file in PyAV; errors of FFmpeg become a `ClipError` that names the file."""
    need("match", "reading videos", av="PyAV")
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ClipError(f"{path}: the file contains no video")
            yield container
    except av.FFmpegError as error:
        raise ClipError(f"{path}: not readable as a video: {error}") from error
