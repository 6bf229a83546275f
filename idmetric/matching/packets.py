"""The packets of a video: which of them show a frame, in which order, and when; nothing is decoded.

Packets are numbered in the order in which they are decoded, frames in the order in which they are shown. The two differ
where frames refer to later ones (B-frames).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.matching.transport import Transport, read_transport

_USUAL_RATE = 25.0  # frames per second of files that state none
_NO_STAMP = np.iinfo(np.int64).min
_SHOWN_BY_VP8 = 0x10  # bit of a packet's first byte (RFC 6386, 9.1)
# bytes at most of packets that say "no change", for which FFmpeg gives no frame: its MAX_NVOP_SIZE, and qtrle.c
_UNCHANGED = {"mpeg4": 19, "qtrle": 7}


MOST_REORDERED = 16  # frames that a decoder keeps back at most (H.264, H.265)
_JOINABLE = ("mpegts", "mpeg")  # FFmpeg's names of containers that may be appended to each other
_MOST_LOST = 0.5  # share of the units of a transport stream; beyond it, units do not stand for pictures
_UNSOUGHT = ("mpeg",)  # of containers that give other packets after seeking


@dataclass(frozen=True)
class PacketTable:
    """All packets of a video, in decode order.

    Attributes:
        indices: (packets,) the index of each packet's frame, -1 for a packet that shows none; without `is_ordered`,
            indices say no more than that, as the order of frames is known only once they are decoded.
        reach: (packets,) the highest of the indices up to each packet: of the last frame shown of those decoded so far.
        is_ordered: whether `indices` are in the order of display.
        is_inferred: whether the order of display was inferred from the kinds of pictures: damage changes it.
        stamps: (packets,) time stamps as they are stored, in the stream's unit; the least integer for none.
        is_incomplete: (packets,) whether the container knows that a part is missing, or whole packets after it.
        is_optional: (packets,) whether the packet may give no frame as nothing changes.
        keys: ascending numbers of the packets of key frames, with which decoding may begin.
        can_seek: whether a time stamp finds its packet.
        times: (frames,) seconds since the first frame, ascending.
        longest_gap: seconds between two frames at most, by time stamps; 0 where some are missing.
    """

    indices: NDArray[np.int64]
    reach: NDArray[np.int64]
    is_ordered: bool
    is_inferred: bool
    stamps: NDArray[np.int64]
    is_incomplete: NDArray[np.bool_]
    is_optional: NDArray[np.bool_]
    keys: NDArray[np.int64]
    can_seek: bool
    times: NDArray[np.float64]
    longest_gap: float

    def key_before(self, index: int) -> int:
        """The number of the latest key frame's packet that is shown no later than this frame; 0 without seeking."""
        if not self.can_seek or not len(self.keys):
            return 0
        position = int(np.searchsorted(self.indices[self.keys], index, side="right")) - 1
        return int(self.keys[max(0, position)])

    def number_of(self, stamp: int | None) -> int:
        """The number of the packet with this stored time stamp; -1 if none or several have it."""
        numbers = np.flatnonzero(self.stamps == (_NO_STAMP if stamp is None else stamp))
        if stamp is None or len(numbers) != 1:
            return -1
        return int(numbers[0])


@dataclass(frozen=True, slots=True)
class _Packet:
    """A packet, see `PacketTable`; its stamps are None where the container has none."""

    stamp: int | None
    decode_stamp: int | None
    position: int | None
    is_key: bool
    is_shown: bool
    is_incomplete: bool
    is_optional: bool


def demuxed(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of a stream, from where the container stands; empty ones repeat a frame (.avi) or mark the end."""
    try:
        for packet in container.demux(stream):
            if packet.size and packet.stream_index == stream.index:
                yield packet
    except IndexError:  # PyAV's at the end of a file in which further streams have appeared (.ts)
        return


def read_packets(path: Path, container: Any, stream: Any) -> PacketTable:
    """Read all packets of a stream of a file."""
    codec = stream.codec_context.name
    packets = [_noted(packet, codec) for packet in demuxed(container, stream)]
    shown = [number for number, packet in enumerate(packets) if packet.is_shown]
    stamps = [packets[number].stamp for number in shown]
    times = np.arange(len(shown)) / float(stream.average_rate or _USUAL_RATE)
    ranks = np.arange(len(shown))
    # .avi has times of decoding alone
    is_inferred = container.format.name == "avi" and bool(stream.codec_context.has_b_frames)
    is_ordered = False
    longest_gap = 0.0
    starts = [0]
    if stamps and None not in stamps and stream.time_base:
        if container.format.name in _JOINABLE:
            starts = _starts_of_parts([packets[number] for number in shown])
        seconds = _joined(stamps, starts, float(stream.time_base))
        in_order = np.argsort(seconds, kind="stable")
        longest_gap = float(np.diff(seconds[in_order]).max(initial=0.0))
        ranks[in_order] = np.arange(len(shown))
        is_unique = bool((np.diff(seconds[in_order]) > 0).all())
        is_plausible = bool((abs(ranks - np.arange(len(shown))) <= MOST_REORDERED).all())
        if is_unique and is_plausible:
            times = seconds[in_order]
            is_ordered = not (is_inferred and bool((np.diff(ranks) > 0).all()))

    is_incomplete = np.array([packet.is_incomplete for packet in packets], np.bool_)
    if container.format.name == "mpegts":  # FFmpeg marks wrong packets, and not all
        positions = np.array([packet.position or 0 for packet in packets], np.int64)
        part_starts = positions[[shown[start] for start in starts if start < len(shown)]]
        is_incomplete = _incomplete(positions, read_transport(path, stream.id), part_starts)

    indices = np.full(len(packets), -1, np.int64)
    indices[shown] = ranks
    stored_stamps = [_NO_STAMP if packet.stamp is None else packet.stamp for packet in packets]
    return PacketTable(
        indices=indices,
        reach=np.maximum.accumulate(indices),
        is_ordered=is_ordered,
        is_inferred=is_inferred,
        stamps=np.array(stored_stamps, np.int64),
        is_incomplete=is_incomplete,
        is_optional=np.array([packet.is_optional for packet in packets], np.bool_),
        keys=np.flatnonzero([packet.is_key for packet in packets]),
        can_seek=is_ordered and len(starts) == 1 and container.format.name not in _UNSOUGHT,
        times=times,
        longest_gap=longest_gap,
    )


def _noted(packet: Any, codec: str) -> _Packet:
    """What is kept of a packet of PyAV."""
    is_hidden_by_vp8 = codec == "vp8" and not memoryview(packet)[0] & _SHOWN_BY_VP8
    return _Packet(
        stamp=packet.pts,
        decode_stamp=packet.dts,
        position=packet.pos,
        is_key=packet.is_keyframe,
        is_shown=not packet.is_discard and not is_hidden_by_vp8,
        is_incomplete=packet.is_corrupt,
        is_optional=packet.size <= _UNCHANGED.get(codec, 0),
    )


def _starts_of_parts(packets: Sequence[_Packet]) -> list[int]:
    """Where the time stamps of files begin that were appended to each other: at a key frame that goes back in time."""
    starts = [0]
    latest: int | None = None
    for number, packet in enumerate(packets):
        if packet.decode_stamp is None:
            continue
        if latest is not None and packet.decode_stamp < latest and packet.is_key:
            starts.append(number)
        latest = packet.decode_stamp
    return starts


def _joined(stamps: Sequence[Any], starts: Sequence[int], unit: float) -> NDArray[np.float64]:
    """Seconds of time stamps of any size; each part of the file follows the part before it."""
    seconds: list[float] = []
    end = 0.0
    for start, next_start in pairwise([*starts, len(stamps)]):
        part = stamps[start:next_start]
        earliest = min(part)
        seconds += [end + (stamp - earliest) * unit for stamp in part]
        end += (max(part) - earliest + _usual_step(part)) * unit
    return np.array(seconds, np.float64)


def _incomplete(
    positions: NDArray[np.int64], transport: Transport, part_starts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which packets of a transport stream may lack their end, or have lost the packets that follow.

    Args:
        positions: of the packets in the file.
        part_starts: positions at which the counters of packets restart.
    """
    damaged = [before for before, after in transport.gaps if after not in part_starts]
    is_unit_lost = ~np.isin(transport.unit_starts, positions)
    if is_unit_lost.sum() < _MOST_LOST * len(is_unit_lost):
        damaged += (transport.unit_starts[is_unit_lost] - 1).tolist()
    is_incomplete = np.zeros(len(positions), np.bool_)
    numbers = np.searchsorted(np.maximum.accumulate(positions), damaged, side="right") - 1
    is_incomplete[np.maximum(numbers, 0)] = True
    return is_incomplete


def _usual_step(stamps: Sequence[int]) -> int:
    """The median distance of time stamps, at least 1."""
    steps = sorted(after - before for before, after in pairwise(sorted(stamps)))
    if not steps:
        return 1
    return max(1, steps[len(steps) // 2])
