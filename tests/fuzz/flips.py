"""Damaged copies of a file."""

from __future__ import annotations

from collections.abc import Iterator


def spread_flips(whole: bytes, count: int = 40) -> Iterator[bytes]:
    """Copies of bytes with one flipped bit each, at equal distances."""
    bits = len(whole) * 8
    for number in range(count):
        bit = number * bits // count
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)
