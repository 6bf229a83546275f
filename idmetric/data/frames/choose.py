"""Which frames of a video to take: sharp, well covered, one from each stretch of time (ID-Sim, A.2.1, Table 4).

    footage = open_clip(clip, fps=10)
    for pick in choose(footage, SAMPLINGS["got10k"], seed=0, tally=Tally()):
        pick.image, pick.thing.mask, pick.blur

`idmetric.data.frames.extract` writes them to files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.frames.footage import Footage, Frame, Thing
from idmetric.images.read import ImageReadError

# why a window gives no frame, from the first hurdle on: the furthest that any frame of it came to counts
REASONS = ("no annotation", "object too small", "object too large", "blurred", "unreadable")


@dataclass(frozen=True)
class Sampling:
    """How frames are chosen; Table 4 of ID-Sim holds the first four for its datasets, see `SAMPLINGS`.

    Attributes:
        fps: frames per second; times are counted in these frames, whatever the rate of a file.
        stride: annotated frames this far apart are looked at (all that are annotated, if they are further apart).
        annotated: k of the table: such frames in a window.
        parts: equal parts that a long clip is cut into.
        long: seconds; longer clips are cut into parts, others into windows.
        coverage: least and largest share of the frame that the object may cover.
        blur: least variance of the Laplacian.
        least: valid frames without which an instance is left out.
    """

    fps: float
    stride: int
    annotated: int
    parts: int
    long: float = 6.0
    coverage: tuple[float, float] = (0.1, 0.9)
    blur: float = 50.0
    least: int = 2

    def __post_init__(self) -> None:
        if not (0 < self.fps < 1e6 and min(self.stride, self.annotated, self.parts, self.least) >= 1):
            raise ValueError(f"fps must be positive, and stride, annotated, parts and least at least 1: {self}")
        if not (0 <= self.coverage[0] <= self.coverage[1] <= 1 and self.long >= 0 and self.blur >= 0):
            raise ValueError(f"coverage must be two rising shares within 0..1, long and blur at least 0: {self}")

    @property
    def window(self) -> int:
        """Frames in a window of a short clip: k annotated ones, a stride apart ("window size" of the table)."""
        return self.annotated * self.stride


SAMPLINGS = {
    "lasot": Sampling(fps=30, stride=5, annotated=6, parts=6),
    "got10k": Sampling(fps=10, stride=5, annotated=2, parts=5),
    "youtubevis": Sampling(fps=6, stride=5, annotated=2, parts=5),
    "uco3d": Sampling(fps=30, stride=1, annotated=30, parts=5),
}


@dataclass(frozen=True)
class Pick:
    """The frame chosen for an object in a window."""

    window: int
    thing: Thing
    index: int
    rank: int
    image: Image.Image
    blur: float


@dataclass
class Tally:
    """What became of the windows of a clip.

    Attributes:
        windows: as `plan` gives them.
        hurdles: of each window, the furthest hurdle, as its place in `REASONS`, that holds for all objects.
        fates: (object, window) -> the furthest hurdle of this object, len(REASONS) where a frame was chosen.
        unreadable: what could not be read, and why.
        seen: whether any annotation that was read shows an object.
    """

    windows: list[range] = field(default_factory=list)
    hurdles: list[int] = field(default_factory=list)
    fates: dict[tuple[int, int], int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    seen: bool = False

    def note(self, window: int, reason: str | None, thing: int | None = None) -> None:
        """A frame of the window failed for this reason (None: was chosen), for one object or for all."""
        hurdle = len(REASONS) if reason is None else REASONS.index(reason)
        if thing is None:
            self.hurdles[window] = max(self.hurdles[window], hurdle)
        else:
            self.fates[thing, window] = max(self.fates.get((thing, window), 0), hurdle)

    def rejected(self, thing: int) -> dict[str, int]:
        """Reason -> windows that gave the object no frame."""
        fates = [max(hurdle, self.fates.get((thing, w), 0)) for w, hurdle in enumerate(self.hurdles)]
        counts = {reason: fates.count(i) for i, reason in enumerate(REASONS)}
        return {reason: count for reason, count in counts.items() if count}


def blur_score(image: Image.Image) -> float:
    """Variance of the Laplacian of the 8-bit grey image; higher = sharper (ID-Sim, A.2.1, after Pech-Pacheco, 2000).

    `cv2.Laplacian(grey, cv2.CV_64F).var()`: kernel [[0, 1, 0], [1, -4, 1], [0, 1, 0]], borders mirrored without
    repeating the edge. Grey is ITU-R 601 luma as Pillow rounds it. The score depends on the resolution of the image.
    """
    grey = np.pad(np.asarray(image.convert("L"), dtype=np.int32), 1, mode="reflect")
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    return float((around - 4 * grey[1:-1, 1:-1]).var(dtype=np.float64))


def plan(count: int, sampling: Sampling) -> list[range]:
    """The windows of a clip of `count` frames at the sampling's rate; each is to give one frame.

    Clips of more than `long` seconds are cut into `parts` equal parts, shorter ones into windows of k x stride frames,
    the last of which may be shorter (A.2.1; a clip of just 6 s, which the paper leaves open, counts as short).
    """
    if count > sampling.long * sampling.fps:
        bounds = [count * i // sampling.parts for i in range(sampling.parts + 1)]
    else:
        bounds = [*range(0, count, sampling.window), count]
    return [range(a, b) for a, b in pairwise(bounds) if a < b]


def places(times: NDArray[np.float64], sampling: Sampling) -> tuple[list[int], int]:
    """Where frames of these times (seconds) lie at the sampling's rate, and the clip's length in its frames.

    The last frame lasts as long as the others do on average.
    """
    end = times[-1] + (times[-1] / (len(times) - 1) if len(times) > 1 else 1 / sampling.fps)
    at = np.floor(times * sampling.fps + 0.5).astype(np.int64)
    return at.tolist(), max(int(np.floor(end * sampling.fps + 0.5)), int(at[-1]) + 1)


def candidates(at: Sequence[int], annotated: Sequence[bool] | NDArray[np.bool_], stride: int) -> list[int]:
    """Indices of annotated frames at least a stride apart, from the first annotated one on; `at`: their places."""
    chosen: list[int] = []
    for index, place in enumerate(at):
        if annotated[index] and (not chosen or place >= at[chosen[-1]] + stride):
            chosen.append(index)
    return chosen


def choose(footage: Footage, sampling: Sampling, seed: int, tally: Tally) -> Iterator[Pick]:
    """One valid frame of each window for each object, drawn evenly from those that are valid there.

    The frames of a window are put in a random order, by seed and the clip's name, and the first valid one counts. The
    clip is read once, in time; of each object the best frame so far is held, of one window at a time.

    Args:
        tally: a new one, gets the windows and what became of them. Frames and masks that cannot be read are listed in
            it, and passed over; so is what is wrong with the whole clip.
    """
    tally.unreadable += footage.problems
    at, count = places(footage.times, sampling)
    tally.windows = plan(count, sampling)
    tally.hurdles = [0] * len(tally.windows)
    starts = [window.start for window in tally.windows]
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
            continue  # the only object has a frame that was drawn before: this one need not be read
        blur = cache(lambda frame=frame: blur_score(frame.image()))
        try:
            for thing in frame.things():
                number = thing.number
                tally.seen |= bool(thing.coverage)
                if number in best and best[number].rank < rank:
                    continue
                reason = _reason(frame, thing, blur, sampling)
                if reason is None:
                    best[number] = Pick(window, thing, frame.index, rank, frame.image(), blur())
                tally.note(window, reason, number)
            tally.note(window, "object too small")  # holds for those that are not in it
        except ImageReadError as error:
            tally.note(window, "unreadable")
            tally.unreadable.append(str(error))
    yield from (best[number] for number in sorted(best))


def _ranks(home: Sequence[int], seed: Sequence[int]) -> list[int]:
    """A random order of the frames of each window; `home`: the window of each frame, rising."""
    ranks: list[int] = []
    for window, members in groupby(home):
        ranks += np.random.default_rng([*seed, window]).permutation(len(list(members))).tolist()
    return ranks


def _reason(frame: Frame, thing: Thing, blur: Callable[[], float], sampling: Sampling) -> str | None:
    """Why the frame is not valid for the object; None if it is."""
    if thing.coverage is not None and thing.coverage < sampling.coverage[0]:
        return "object too small"
    if thing.coverage is not None and thing.coverage > sampling.coverage[1]:
        return "object too large"
    size = frame.image().size
    if thing.mask is not None and thing.mask.shape != size[::-1]:
        found = f"{thing.mask.shape[1]}x{thing.mask.shape[0]}"
        raise ImageReadError(frame.name, f"its mask has {found} pixels, the frame {size[0]}x{size[1]}: scale the mask")
    return "blurred" if blur() < sampling.blur else None
