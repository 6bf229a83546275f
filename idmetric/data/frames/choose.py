"""Choice of video frames: sharp, with a well visible object, one from each window (ID-Sim, A.2.1, Table 4).

    footage = open_clip(clip, fps=10)
    for pick in choose(footage, SAMPLINGS["got10k"], seed=0, faults=Faults()):
        pick.image, pick.object.mask, pick.blur

`idmetric.data.frames.extract` writes them to files.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.footage import AnnotatedFrame, Footage, FrameObject
from idmetric.metric.images import ImageReadError


@dataclass(frozen=True)
class Sampling:
    """Parameters of the choice; Table 4 of ID-Sim has the first four for its datasets, see `SAMPLINGS`.

    Attributes:
        fps: frames per second, the unit of times for files of any frame rate.
        stride: smallest distance between the annotated frames that are examined.
        annotated: number k of these frames in a window.
        parts: number of equal parts of a long clip.
        long: longest duration in seconds of a clip that is cut into windows; longer clips are cut into parts.
        coverage: smallest and largest share of the frame that the object may cover.
        blur: smallest variance of the Laplacian.
        least: smallest number of valid frames of an instance.
    """

    fps: float
    stride: int
    annotated: int
    parts: int
    long: float = 6.0
    coverage: tuple[float, float] = (0.1, 0.9)
    blur: float = 50.0
    least: int = 2

    @property
    def window(self) -> int:
        """Number of frames in a window of a short clip, k times the stride ("window size" in the table)."""
        return self.annotated * self.stride


SAMPLINGS = {
    "lasot": Sampling(fps=30, stride=5, annotated=6, parts=6),
    "got10k": Sampling(fps=10, stride=5, annotated=2, parts=5),
    "youtubevis": Sampling(fps=6, stride=5, annotated=2, parts=5),
    "uco3d": Sampling(fps=30, stride=1, annotated=30, parts=5),
}


@dataclass(frozen=True)
class Pick:
    """The chosen frame of an object in a window."""

    window: int
    object: FrameObject
    index: int
    rank: int
    image: Image.Image
    blur: float


@dataclass
class Faults:
    """Frames of a clip that were not valid.

    Attributes:
        reasons: why -> number of objects in frames.
        unreadable: messages about unreadable frames and masks.
        objects: numbers of all objects that the annotation shows.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    objects: set[int] = field(default_factory=set)


def plan(count: int, sampling: Sampling) -> list[range]:
    """The windows of a clip of `count` frames at the sampling's rate, each of which gives one frame.

    Clips of more than `long` seconds are cut into `parts` equal parts, shorter ones into windows of k x stride frames;
    the last window may be shorter (A.2.1; a clip of exactly 6 s, which the paper leaves open, counts as short).
    """
    starts = list(range(0, count, sampling.window))
    if count > sampling.long * sampling.fps:
        starts = [count * part // sampling.parts for part in range(sampling.parts)]
    windows = []
    for start, end in pairwise([*starts, count]):
        if start < end:
            windows.append(range(start, end))
    return windows


def positions(times: NDArray[np.float64], sampling: Sampling) -> tuple[list[int], int]:
    """Positions of frames with these times (seconds) at the sampling's rate, and the clip's length in the same unit.

    The last frame gets the average duration of all earlier ones.
    """
    last = times[-1]
    duration = 1 / sampling.fps
    if len(times) > 1:
        duration = last / (len(times) - 1)
    times = np.append(times, last + duration)
    rounded = np.floor(times * sampling.fps + 0.5)
    *ticks, end = rounded.astype(int).tolist()
    count = max(end, ticks[-1] + 1)
    return ticks, count


def candidates(ticks: Sequence[int], annotated: Sequence[bool], stride: int) -> list[int]:
    """Indices of annotated frames at least a stride apart, starting with the first.

    Args:
        ticks: positions of all frames.
    """
    chosen = []
    earliest = 0
    for index, tick in enumerate(ticks):
        if annotated[index] and tick >= earliest:
            chosen.append(index)
            earliest = tick + stride
    return chosen


def choose(footage: Footage, sampling: Sampling, seed: int, faults: Faults) -> Iterator[Pick]:
    """One valid frame of each window for each object, drawn uniformly from its valid frames.

    Seed and clip name determine a random order of a window's frames, and the first valid one is chosen. The clip is
    read once, in order of time; memory holds one frame per object.

    Args:
        faults: a new one, to which frames that are not valid are added; unreadable ones are skipped.
    """
    ticks, count = positions(footage.times, sampling)
    annotated = [annotation is not None for annotation in footage.annotations]
    indices = candidates(ticks, annotated, sampling.stride)
    frames = footage.read(indices)
    clip_seed = [seed, *hashlib.sha256(footage.clip.name.encode()).digest()]

    for window, span in enumerate(plan(count, sampling)):
        frame_count = sum(ticks[index] in span for index in indices)
        rng = np.random.default_rng([*clip_seed, window])
        ranks = rng.permutation(frame_count).tolist()
        best: dict[int, Pick] = {}
        for rank, frame in zip(ranks, frames, strict=False):  # frames of later windows follow
            if not footage.indexed and 0 in best and best[0].rank < rank:
                continue  # the only object already has a frame of a better rank
            try:
                for shown in frame.objects():
                    faults.objects.add(shown.number)
                    if shown.number in best and best[shown.number].rank < rank:
                        continue
                    reason = _reason(frame, shown, sampling)
                    if reason:
                        faults.reasons[reason] += 1
                        continue
                    best[shown.number] = Pick(
                        window=window,
                        object=shown,
                        index=frame.index,
                        rank=rank,
                        image=frame.image,
                        blur=frame.blur,
                    )
            except ImageReadError as error:
                faults.unreadable.append(str(error))
        yield from (best[number] for number in sorted(best))


def _reason(frame: AnnotatedFrame, shown: FrameObject, sampling: Sampling) -> str:
    """The reason why the frame is not valid for the object; empty if it is valid."""
    least, most = sampling.coverage
    if shown.coverage < least:
        return "too small"
    if shown.coverage > most:
        return "too large"

    width, height = frame.image.size
    if shown.mask.shape != (height, width):
        mask_height, mask_width = shown.mask.shape
        reason = f"its mask has {mask_width}x{mask_height} pixels, the frame {width}x{height}: scale the mask"
        raise ImageReadError(frame.name, reason)
    if frame.blur < sampling.blur:
        return "blurred"
    return ""
