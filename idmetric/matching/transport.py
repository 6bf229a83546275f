"""Gaps in MPEG transport streams (.ts), which FFmpeg does not report for all of their packets.

A transport stream is cut into packets of 188 bytes, each with a sync byte, the number of its stream (PID), and a
counter of the packets of that stream, modulo 16 (ISO/IEC 13818-1, section 2.4.3).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SIZE = 188
_SYNC = 0x47
_ROWS = 65_536  # packets that are looked at at once

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]


class Transport(NamedTuple):
    """The packets of one stream of a file.

    Attributes:
        gaps: positions in the file of the packets before and after each place where some are missing or damaged.
        unit_starts: positions of the packets with which a picture, or a part of one, begins.
    """

    gaps: list[tuple[int, int]]
    unit_starts: Offsets


def read_transport(path: Path, pid: int) -> Transport:
    """The packets of the stream of this PID."""
    data: Bytes = np.memmap(path, np.uint8, "r")
    offsets = _packets(data)
    pids = (data[offsets + 1].astype(np.int64) & 0x1F) << 8 | data[offsets + 2]
    offsets = offsets[pids == pid]

    # the counter goes up by one where a packet has a payload, unless the packet says that it restarts
    flags = data[offsets + 3]
    counters = flags.astype(np.int64) & 0x0F
    has_payload = (flags & 0x10) > 0
    has_adaptation = ((flags & 0x20) > 0) & (data[offsets + 4] > 0)
    restarts = has_adaptation & ((data[offsets + 5] & 0x80) > 0)
    expected = (counters[:-1] + has_payload[1:]) % 16
    is_gap = (counters[1:] != expected) & ~restarts[1:]
    is_damaged = (data[offsets + 1] & 0x80) > 0  # says the receiver
    is_gap |= is_damaged[1:]
    gaps = [(int(offsets[number]), int(offsets[number + 1])) for number in np.flatnonzero(is_gap)]
    is_start = (data[offsets + 1] & 0x40) > 0
    return Transport(gaps, offsets[is_start])


def _packets(data: Bytes) -> Offsets:
    """The positions of all packets; damaged sync bytes, and bytes left out or added, are passed over."""
    runs: list[Offsets] = []
    position = 0
    while position + _SIZE <= len(data):
        rows = min(_ROWS, (len(data) - position) // _SIZE)
        is_sync = data[position : position + rows * _SIZE : _SIZE] == _SYNC
        count = rows if is_sync.all() else int(is_sync.argmin())
        runs.append(position + _SIZE * np.arange(count))
        position += _SIZE * count
        if count < rows:
            position = _next_sync(data, position + 1)
    return np.concatenate([np.empty(0, np.int64), *runs])


def _next_sync(data: Bytes, position: int) -> int:
    """The first position from which three packets follow each other; the end if there is none."""
    while position + 3 * _SIZE <= len(data):
        window = data[position : position + _ROWS + 2 * _SIZE]
        count = min(_ROWS, len(window) - 2 * _SIZE)
        is_sync = window[:count] == _SYNC
        is_sync &= window[_SIZE : _SIZE + count] == _SYNC
        is_sync &= window[2 * _SIZE : 2 * _SIZE + count] == _SYNC
        if is_sync.any():
            return position + int(is_sync.argmax())
        position += count
    return len(data)
