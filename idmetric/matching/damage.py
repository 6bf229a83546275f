"""Which decoded frames show what was recorded: damage spreads in the order of decoding, not of display.

A frame may refer to any frame that was decoded before it, back to the last key frame. So it is intact only if all of
these are, also where it is shown before them (B-frames). Frames that are shown before a key frame, but stored after
it (open groups of pictures), may refer to frames before that key frame as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from idmetric.matching.packets import MOST_REORDERED, PacketTable

_AT_ONCE = 16  # packets at most that the decoder's threads work on at once
_UNKNOWN = 0  # PyAV's PictureType.NONE
_INTRA = 1  # PyAV's PictureType.I: a picture that refers to no other


class NumberedPacket(NamedTuple):
    """A packet and its number; None after the last one.

    Attributes:
        packet: of PyAV, with its number as time stamp, which the decoder passes on to the frame.
    """

    number: int
    packet: Any


def intact_frames(
    table: PacketTable, decoder: Any, packets: Iterator[NumberedPacket], start: int, last_index: int
) -> Iterator[tuple[int, Any]]:
    """Decode packets, and return (index, frame) of the intact frames in order of display.

        After damage the decoder is reset at the next key frame: what it remembers of earlier frames is damaged, too.

    Args:
        decoder: a codec context of PyAV.
        packets: from `start` on, a key frame's.
        last_index: no frames after this one are needed.
    """
    run = _run(table, start)
    doubtful: deque[NumberedPacket] = deque()  # what may have to be decoded again
    again: deque[NumberedPacket] = deque()
    while True:
        numbered = again.popleft() if again else next(packets, NumberedPacket(len(table.indices), None))
        is_end = numbered.packet is None
        if numbered.number < run.start:
            continue
        if not is_end:
            doubtful.append(numbered)
            if table.is_incomplete[numbered.number]:
                run.spoil(numbered.number)

        _decode(decoder, numbered, run)
        is_over = is_end or run.is_over
        yield from run.released(is_over)
        while doubtful and doubtful[0].number < run.first_doubtful:
            doubtful.popleft()

        if is_over:
            key = run.next_key
            if key is None or table.indices[key] > last_index:
                return
            decoder.flush_buffers()
            again.extendleft(reversed(doubtful))
            doubtful.clear()
            run = _run(table, key)


def _decode(decoder: Any, numbered: NumberedPacket, run: Run) -> None:
    """Pass a packet to the decoder, and what comes out to the run."""
    from av import FFmpegError

    try:
        frames = decoder.decode(numbered.packet)
    except FFmpegError:
        run.report_error(numbered.number)
        return
    for frame in frames:
        if frame.pts is not None:
            run.add(frame.pts, frame)


def _run(table: PacketTable, start: int) -> Run:
    if table.is_ordered:
        return Run(table, start)
    return UnorderedRun(table, start)


class Run:
    """Frames of a video as the decoder gives them, from a key frame to the first damage.

    A frame is released once all frames that are decoded before it have come out or are missing: they are missing if a
    frame comes that is shown after them.

    Attributes:
        start: the number of the packet from which the video is decoded.
        damaged: the number of the first packet that gave no frame, or a damaged one; None as long as none is known.
    """

    def __init__(self, table: PacketTable, start: int) -> None:
        self.start = start
        self.damaged: int | None = None
        self._table = table
        self._waiting: deque[tuple[int, Any]] = deque()
        self._arrived: set[int] = set()  # packets that gave a frame, from `_unsettled` on
        self._unsettled = start  # all packets before this one gave a frame or are known to be damaged
        self._latest = -1  # the index of the last frame that came out
        self._next_index = int(table.indices[start]) if start < len(table.indices) else 0  # to be released
        self._last_shown: Any = None  # the frame before it, if it is intact
        self._has_key = False  # an intact key frame was released

    def spoil(self, number: int) -> None:
        """Note that the packet of this number is damaged."""
        if self.damaged is None or number < self.damaged:
            self.damaged = number

    def report_error(self, number: int) -> None:
        """Note an error that the decoder reported when it got this packet.

        It concerns this packet or one before it. Packets that should give a frame are missed later.
        """
        end = min(number + 1, len(self._table.indices))
        for earlier in range(max(self._unsettled, number - _AT_ONCE), end):
            is_missed = self._table.indices[earlier] >= 0 and not self._table.is_optional[earlier]
            if not is_missed and earlier not in self._arrived:
                self.spoil(earlier)

    def add(self, number: int, frame: Any) -> None:
        """Take the next frame that comes out, of the packet of this number."""
        if self._is_leading(number):
            return
        index = int(self._table.indices[number])
        is_late = 0 <= index <= self._latest  # it comes twice, or a time stamp is wrong: this one, or one that waits
        if is_late or frame.is_corrupt:
            self.spoil(number)
        for waiting_number, _ in self._waiting:
            if is_late and self._table.indices[waiting_number] > index:
                self.spoil(waiting_number)
        self._arrived.add(number)
        self._latest = max(self._latest, index)
        self._waiting.append((number, frame))

    def released(self, is_end: bool = False) -> Iterator[tuple[int, Any]]:
        """(index, frame) of the frames that are known to be intact now, in order of display.

        Args:
            is_end: whether no more frames come out that are intact.
        """
        while self._waiting and (is_end or self._is_due(self._waiting[0][0])):
            number, frame = self._waiting.popleft()
            yield from self._settled(number)
            yield from self._shown(number, frame)
        if is_end:
            yield from self._settled(len(self._table.indices))

    @property
    def is_over(self) -> bool:
        """Whether all frames that were decoded before the damage have come out or are missing."""
        if self.damaged is None:
            return False
        is_last_confirmed = not self._waiting or self._waiting[-1][0] >= self.damaged
        have_come = self.damaged == 0 or self._table.reach[self.damaged - 1] <= self._latest
        return is_last_confirmed and bool(have_come)

    @property
    def next_key(self) -> int | None:
        """The number of the first key frame's packet after the damage; None if there is none."""
        if self.damaged is None:
            return None
        position = int(np.searchsorted(self._table.keys, self.damaged, side="right"))
        if position == len(self._table.keys):
            return None
        return int(self._table.keys[position])

    @property
    def first_doubtful(self) -> int:
        """The number of the first packet that is damaged, or may turn out to be."""
        numbers = [self._unsettled, *(number for number, _ in self._waiting)]
        if self.damaged is not None:
            numbers.append(self.damaged)
        return min(numbers)

    def _is_due(self, number: int) -> bool:
        """Whether the first frame that waits is released: not before one more, which may show that stamps are wrong."""
        return len(self._waiting) > 1 and bool(self._table.reach[number] <= self._latest)

    def _is_intact(self, number: int) -> bool:
        return self.damaged is None or number < self.damaged

    def _is_leading(self, number: int) -> bool:
        """Whether a frame is shown before the key frame of the start, and so may refer to frames before it."""
        return bool(0 <= self._table.indices[number] < self._table.indices[self.start])

    def _settled(self, number: int) -> Iterator[tuple[int, Any]]:
        """Note which packets before this one gave no frame; those that say "no change" show the last frame again."""
        for earlier in range(self._unsettled, number):
            index = int(self._table.indices[earlier])
            is_missing = index >= 0 and earlier not in self._arrived and not self._is_leading(earlier)
            self._arrived.discard(earlier)
            if is_missing and not self._table.is_optional[earlier]:
                self.spoil(earlier)
            elif is_missing and self._is_intact(earlier) and index == self._next_index and self._last_shown is not None:
                self._next_index += 1
                yield index, self._last_shown
        self._unsettled = max(self._unsettled, number)

    def _shown(self, number: int, frame: Any) -> Iterator[tuple[int, Any]]:
        """The frame, if it is intact and to be shown."""
        index = int(self._table.indices[number])
        if not self._has_key and self._is_intact(number):
            self._has_key = self._is_key(number, frame)
        if index < 0:  # cut off by an edit list
            return
        is_misplaced = self._table.is_inferred and index != self._next_index
        is_shown = self._has_key and self._is_intact(number) and not is_misplaced
        self._next_index = index + 1
        self._last_shown = frame if is_shown else None
        if is_shown:
            yield index, frame

    def _is_key(self, number: int, frame: Any) -> bool:
        """Whether a frame refers to no other, and no later one to others before it."""
        if frame.pict_type == _UNKNOWN:  # libvpx does not say
            return number in self._table.keys
        return bool(frame.key_frame and frame.pict_type == _INTRA)


class UnorderedRun(Run):
    """As `Run`, where the order of display is not known before the frames come out.

    A missing frame would shift all frames shown after it. So each frame waits for twice as many frames as a decoder can
    keep back, which show whether one is missing, and nothing is released after the first damage.
    """

    @property
    def is_over(self) -> bool:
        """Whether anything is damaged."""
        return self.damaged is not None

    @property
    def next_key(self) -> None:
        """None: where a key frame belongs is unknown after damage."""

    def add(self, number: int, frame: Any) -> None:
        """Take the next frame that comes out, of the packet of this number."""
        if frame.is_corrupt or number in self._arrived:
            self.spoil(number)
        self._arrived.add(number)
        self._waiting.append((number, frame))

    def released(self, is_end: bool = False) -> Iterator[tuple[int, Any]]:
        """As in `Run`."""
        settled = len(self._table.indices)
        if not is_end:
            settled = max(self._arrived, default=0) - MOST_REORDERED
        for number in range(self._unsettled, settled):
            if self._table.indices[number] >= 0 and number not in self._arrived:
                self.spoil(number)
        self._unsettled = max(self._unsettled, settled)

        while self._waiting and self.damaged is None and (is_end or len(self._waiting) > 2 * MOST_REORDERED):
            number, frame = self._waiting.popleft()
            self._has_key = self._has_key or self._is_key(number, frame)
            if self._table.indices[number] >= 0:
                index = self._next_index
                self._next_index += 1
                if self._has_key:
                    yield index, frame
