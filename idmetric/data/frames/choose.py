"""Choice of video frames: sharp, with a well visible object, one from each window (ID-Sim, A.2.1, Table 4).

    footage = open_clip(clip, fps=10)
    for pick in choose(footage, SAMPLINGS["got10k"], seed=0, faults=Faults()):
        pick.image, pick.object.mask, pick.blur

`idmetric.data.frames.extract` writes them to files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.footage import Footage, Frame, FrameObject
from idmetric.metric.images.read import ImageReadError


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
        seen: numbers of all objects that the annotation shows.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)


def blur_score(image: Image.Image) -> float:
    """Variance of the Laplacian of the 8-bit gray image; higher = sharper (ID-Sim, A.2.1, after Pech-Pacheco, 2000).

    Equals `cv2.Laplacian(gray, cv2.CV_64F).var()`: kernel [[0, 1, 0], [1, -4, 1], [0, 1, 0]], borders mirrored without
    repeating the edge. Gray is ITU-R 601 luma as Pillow rounds it. The score depends on the resolution of the image.
    """
    gray = np.pad(np.asarray(image.convert("L"), dtype=np.int32), 1, mode="reflect")
    around = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:]
    return float((around - 4 * gray[1:-1, 1:-1]).var(dtype=np.float64))


def plan(count: int, sampling: Sampling) -> list[range]:
    """The windows of a clip of `count` frames at the sampling's rate, each of which gives one frame.

    Clips of more than `long` seconds are cut into `parts` equal parts, shorter ones into windows of k x stride frames;
    the last window may be shorter (A.2.1; a clip of exactly 6 s, which the paper leaves open, counts as short).
    """
    if count > sampling.long * sampling.fps:
        bounds = [count * i // sampling.parts for i in range(sampling.parts + 1)]
    else:
        bounds = [*range(0, count, sampling.window), count]
    return [range(a, b) for a, b in pairwise(bounds) if a < b]


def places(times: NDArray[np.float64], sampling: Sampling) -> tuple[list[int], int]:
    """Places of frames with these times (seconds) at the sampling's rate, and the clip's length in the same unit.

    The last frame gets the average duration of all earlier ones.
    """
    end = times[-1] + (times[-1] / (len(times) - 1) if len(times) > 1 else 1 / sampling.fps)
    at = np.floor(times * sampling.fps + 0.5).astype(np.int64)
    return at.tolist(), max(int(np.floor(end * sampling.fps + 0.5)), int(at[-1]) + 1)


def candidates(at: Sequence[int], annotated: Sequence[bool] | NDArray[np.bool_], stride: int) -> list[int]:
    """Indices of annotated frames at least a stride apart, starting with the first; `at` holds places of all frames."""
    chosen: list[int] = []
    for index, place in enumerate(at):
        if annotated[index] and (not chosen or place >= at[chosen[-1]] + stride):
            chosen.append(index)
    return chosen


def choose(footage: Footage, sampling: Sampling, seed: int, faults: Faults) -> Iterator[Pick]:
    """One valid frame of each window for each object, drawn uniformly from its valid frames.

    Seed and clip name determine a random order of a window's frames, and the first valid one is chosen. The clip is
    read once, in order of time; memory holds one frame per object.

    Args:
        faults: a new one, to which frames that are not valid are added; unreadable ones are skipped.
    """
    at, count = places(footage.times, sampling)
    starts = [window.start for window in plan(count, sampling)]
    wanted = candidates(at, footage.annotated, sampling.stride)
    home = [bisect_right(starts, at[index]) - 1 for index in wanted]
    ranks = _ranks(home, [seed, *hashlib.sha256(footage.clip.name.encode()).digest()])
    best: dict[int, Pick] = {}
    now = 0

    for frame, window, rank in zip(footage.read(wanted), home, ranks, strict=True):
        if window != now:
            yield from (best[number] for number in sorted(best))
            best, now = {}, window
        if not footage.indexed and 0 in best and best[0].rank < rank:
            continue  # the only object already has a frame of a better rank
        blur = cache(lambda frame=frame: blur_score(frame.image()))
        try:
            for shown in frame.objects():
                faults.seen.add(shown.number)
                if shown.number in best and best[shown.number].rank < rank:
                    continue
                if reason := _reason(frame, shown, blur, sampling):
                    faults.reasons[reason] += 1
                else:
                    best[shown.number] = Pick(window, shown, frame.index, rank, frame.image(), blur())
        except ImageReadError as error:
            faults.unreadable.append(str(error))

    yield from (best[number] for number in sorted(best))


def _ranks(home: Sequence[int], seed: Sequence[int]) -> list[int]:
    """A random order of the frames of each window; `home` holds the window of each frame, ascending."""
    ranks: list[int] = []
    for window, members in groupby(home):
        ranks += np.random.default_rng([*seed, window]).permutation(len(list(members))).tolist()
    return ranks


def _reason(frame: Frame, shown: FrameObject, blur: Callable[[], float], sampling: Sampling) -> str | None:
    """The reason why the frame is not valid for the object, or None if it is valid."""
    if shown.coverage < sampling.coverage[0]:
        return "too small"
    if shown.coverage > sampling.coverage[1]:
        return "too large"
    size = frame.image().size
    if shown.mask.shape != size[::-1]:
        found = f"{shown.mask.shape[1]}x{shown.mask.shape[0]}"
        raise ImageReadError(frame.name, f"its mask has {found} pixels, the frame {size[0]}x{size[1]}: scale the mask")
    return "blurred" if blur() < sampling.blur else None
