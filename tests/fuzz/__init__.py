"""Files that are meant to do harm, and commands that are stopped: parts of the tests of robustness."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from random import Random


def forget_peak() -> int:
    """Forget the peak of this process's memory so far; returns what is used now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(name: str) -> int:
    """A number of /proc/self/status in bytes, such as the peak of memory, "VmHWM"."""
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(f"{name}:"):
            return int(text.split()[1]) * 1024
    raise OSError(f"no {name} in /proc/self/status: this needs Linux")


def damage(data: bytes, rng: Random) -> bytes:
    """Bytes with one to four faults: cut, left out, repeated, blanked, or replaced at random."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, kind, span = rng.randrange(len(out) + 1), rng.randrange(5), rng.choice((1, 4, 8, 64, 512))
        if kind == 0:
            del out[at:]
        elif kind == 1:
            del out[at : at + span]
        elif kind == 2:
            out[at:at] = out[at : at + span] * rng.choice((1, 2, 50))
        elif kind == 3:
            out[at : at + span] = rng.choice((b"\0", b"\xff")) * span
        else:
            out[at : at + span] = rng.randbytes(span)
    return bytes(out)


# PNG by hand


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG with its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int = 8, color: int = 0, *more: bytes) -> bytes:
    """A PNG that says this of itself; its pixels are those of 8 x 8 gray."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, depth, color, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(9 * 8)))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + pixels + chunk(b"IEND", b"")


def repaired(data: bytes) -> bytes:
    """A PNG with right checksums, as far as its chunks can be followed."""
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        end = at + 8 + int.from_bytes(out[at : at + 4], "big")
        if end + 4 > len(out):
            break
        out[end : end + 4] = struct.pack(">I", zlib.crc32(out[at + 4 : end]))
        at = end + 4
    return bytes(out)
