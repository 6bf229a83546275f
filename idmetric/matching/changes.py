"""When a clip changes: the last frame of one state, and the first frame of the next.

Frames are looked at in order. Between two frames in use, all frames may have been compared as well (`match` with
`refine`), and then a change has an exact time. Otherwise it lies between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from idmetric.matching.clips import FrameInterval, Moment
from idmetric.scoring.records import Record

CHANGE_COLUMNS = (
    "clip",
    "subject",
    "from",
    "to",
    "last_image",
    "last_frame",
    "last_seconds",
    "last_distance",
    "first_image",
    "first_frame",
    "first_seconds",
    "first_distance",
    "exact",
)
_LISTED = 6  # changes in a line of text


@dataclass(frozen=True)
class Border:
    """Where a clip changes.

    Attributes:
        before: the last frame before it that was compared. after: the first one after it.
    """

    before: Moment
    after: Moment

    @property
    def is_exact(self) -> bool:
        """Whether no frame lies between the two."""
        return self.after.frame == self.before.frame + 1

    @property
    def when(self) -> str:
        """The time in words."""
        if self.is_exact:
            return f"at {self.after.seconds:.2f} s (frame {self.after.frame})"
        return f"between {self.before.seconds:.2f} and {self.after.seconds:.2f} s"

    @property
    def where(self) -> Record:
        """The two frames as columns."""
        return {
            "last_image": self.before.name,
            "last_frame": self.before.frame,
            "last_seconds": self.before.seconds,
            "first_image": self.after.name,
            "first_frame": self.after.frame,
            "first_seconds": self.after.seconds,
            "exact": self.is_exact,
        }


@dataclass(frozen=True)
class FrameStates:
    """The states of all subjects in a frame, and the distance of each to its region, None without one."""

    moment: Moment
    states: Sequence[str]
    distances: Sequence[float | None]


@dataclass(frozen=True)
class StateChange:
    """A subject's state differs between two frames.

    Attributes:
        old_state, new_state: before and after the border.
        last_distance, first_distance: of the subject to its region, or to the nearest one, in the border's frames.
    """

    subject: str
    old_state: str
    new_state: str
    border: Border
    last_distance: float | None
    first_distance: float | None

    @property
    def clip(self) -> str:
        """The clip's name."""
        return self.border.after.clip

    @property
    def record(self) -> Record:
        """The columns `CHANGE_COLUMNS`."""
        record = {
            "clip": self.clip,
            "subject": self.subject,
            "from": self.old_state,
            "to": self.new_state,
            **self.border.where,
            "last_distance": self.last_distance,
            "first_distance": self.first_distance,
        }
        return {name: record[name] for name in CHANGE_COLUMNS}


def in_order(frames: Iterable[FrameStates]) -> list[list[FrameStates]]:
    """The frames of each clip by time; still images are left out."""
    clips: dict[str, list[FrameStates]] = {}
    for frame in frames:
        if frame.moment.clip:
            clips.setdefault(frame.moment.clip, []).append(frame)
    return [sorted(clip, key=lambda frame: frame.moment.frame) for clip in clips.values()]


def differing_intervals(frames: Iterable[FrameStates]) -> list[FrameInterval]:
    """The parts of clips between two frames in which some subject has another state."""
    intervals = []
    for clip in in_order(frames):
        for before, after in pairwise(clip):
            has_frames_between = after.moment.frame > before.moment.frame + 1
            if has_frames_between and tuple(before.states) != tuple(after.states):
                intervals.append(FrameInterval(after.moment.clip, before.moment.frame, after.moment.frame))
    return intervals


def state_changes(subjects: Sequence[str], frames: Iterable[FrameStates]) -> list[StateChange]:
    """Every change of a subject's state from one frame to the next; subjects without states have none."""
    changes = []
    for clip in in_order(frames):
        for number, subject in enumerate(subjects):
            for before, after in pairwise(clip):
                if before.states[number] == after.states[number]:
                    continue
                change = StateChange(
                    subject=subject,
                    old_state=before.states[number],
                    new_state=after.states[number],
                    border=Border(before.moment, after.moment),
                    last_distance=before.distances[number],
                    first_distance=after.distances[number],
                )
                changes.append(change)
    return changes


def history(first_state: str, changes: Sequence[StateChange]) -> str:
    """The states of a subject in a clip with their times, such as "matched to 2.50 s, missing from 2.54 s (frame 61)".

    Args:
        first_state: in the clip's first frame. changes: of this subject and clip, in order.
    """
    if not changes:
        return f"{first_state} throughout"
    parts = [first_state]
    for change in changes[:_LISTED]:
        before, after = change.border.before, change.border.after
        if change.border.is_exact:
            parts[-1] += f" to {before.seconds:.2f} s"
            parts.append(f"{change.new_state} from {after.seconds:.2f} s (frame {after.frame})")
        else:
            parts.append(f"{change.new_state} from a frame {change.border.when}")
    if len(changes) > _LISTED:
        parts.append(f"and {len(changes) - _LISTED} more changes")
    return ", ".join(parts)
