"""Frames of a video file: their times without decoding, then the frames in order, one in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idmetric.data.frames.clips import ClipError
from idmetric.metric.files.hints import need
from idmetric.metric.images.read import ImageReadError


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
            stamps = [packet.pts for packet in container.demux(stream) if packet.size and not packet.is_discard]
            base, rate = stream.time_base, stream.average_rate

        if not stamps:
            raise ClipError(f"{path}: a video without frames")
        known = sorted(s for s in stamps if s is not None)
        self._index: dict[int, int] | None = None
        if len(set(known)) == len(stamps) and base:
            self._index = {stamp: i for i, stamp in enumerate(known)}
            self.times = (np.array(known, np.float64) - known[0]) * float(base)
        else:
            self.times = np.arange(len(stamps)) / float(rate or 25)

    def read(self, wanted: Sequence[int]) -> Iterator[Callable[[], Image.Image]]:
        """For each of these ascending indices, a function that returns the frame upright as RGB.

        Call it before taking the next one. It raises `ImageReadError` for a frame that doesn't decode, and for all
        frames after it up to the next key frame, because they are differences to a missing picture.
        """
        frames = self._decoded(wanted[-1] if len(wanted) else -1)
        end = (len(self.times), None)
        index, frame = next(frames, end)
        for number in wanted:
            while index < number:
                index, frame = next(frames, end)
            yield self._picture(number, frame if index == number else None)

    def _picture(self, number: int, frame: Any) -> Callable[[], Image.Image]:
        def picture() -> Image.Image:
            if frame is None:
                name = f"{self.path}, frame {number}"
                raise ImageReadError(name, "it cannot be decoded: the video is damaged there or shortly before")
            image: Image.Image = frame.to_image()
            turn = round(frame.rotation / 90) * 90 % 360  # counter-clockwise, as Pillow's
            return image.rotate(turn, expand=True) if turn else image

        return picture

    def _decoded(self, last: int) -> Iterator[tuple[int, Any]]:
        """(index, frame) of all intact frames up to `last`; a damaged frame spoils all frames up to a key frame."""
        from av import FFmpegError

        order, sound = -1, True
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
                    sound = False
                    continue
                for frame in frames:
                    order += 1
                    index = order if self._index is None else self._index.get(frame.pts, -1)
                    if index > last:
                        return
                    whole = not frame.is_corrupt and frame.pts not in broken
                    sound = whole and (sound or frame.key_frame)
                    if index >= 0 and sound:
                        yield index, frame


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file in PyAV; errors of FFmpeg become a `ClipError` that names the file."""
    need("data", "reading videos", av="PyAV")
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ClipError(f"{path}: the file contains no video")
            yield container
    except av.FFmpegError as error:
        raise ClipError(f"{path}: not readable as a video: {error}") from error
