"""Spoil what was whole: bytes, and JSON values."""

from __future__ import annotations

import json
from random import Random
from typing import Any

# numbers at which arithmetic, allocation and conversion go wrong
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 255, 256, 65535, 65536, 10**5, 10**6, 2**31 - 1, 2**31, -(2**31), 10**9, 2**32, 2**53 + 1,
    2**63 - 1, 2**63,
    -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
WORDS: tuple[str, ...] = (
    "", " ", "\0", "a\0b", "..", "../../outside", "/etc/passwd", "/dev/zero", "nul", "null", "NaN", "true", "1e999",
    "0x10",
    "\ud800", "\ufeff", "\u202e", "e\u0301", "\U0001f600", "a" * 5000, "\n", "\r\n", "a,b", '"', "'", "{}", "[]",
    "%s%n", "{0}",
    "$HOME", "`id`", "-1", "--help", "file:///etc/passwd", "http://127.0.0.1:1/x", "data:image/png;base64,AAAA",
)  # fmt: skip


def damage(data: bytes, rng: Random, most: int = 4) -> bytes:
    """Bytes with one to `most` faults: cut, flipped, zeroed, repeated, swapped, lengthened, numbers at the edge."""
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        out = bytearray(rng.choice(_FAULTS)(out, rng)) if out else bytearray(rng.randbytes(rng.randint(0, 64)))
    return bytes(out)


def _cut(data: bytearray, rng: Random) -> bytes:
    return bytes(data[: rng.randrange(len(data) + 1)])


def _behead(data: bytearray, rng: Random) -> bytes:
    return bytes(data[rng.randrange(min(len(data), 64) + 1) :])


def _flip(data: bytearray, rng: Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 8, 32))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _flip_early(data: bytearray, rng: Random) -> bytes:
    for _ in range(rng.choice((1, 2, 4))):
        data[rng.randrange(min(len(data), 128))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(data)


def _blank(data: bytearray, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    span = min(rng.choice((1, 4, 16, 256)), len(data) - start)
    data[start : start + span] = bytes([rng.choice((0, 0xFF))]) * span
    return bytes(data)


def _number(data: bytearray, rng: Random) -> bytes:
    size = rng.choice((2, 4, 8))
    value = rng.choice((0, 1, 0x7FFF, 0x8000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)) % 2 ** (8 * size)
    start = rng.randrange(max(1, min(len(data), 256) - size))
    data[start : start + size] = value.to_bytes(size, rng.choice(("little", "big")))
    return bytes(data)


def _repeat(data: bytearray, rng: Random) -> bytes:
    start = rng.randrange(len(data))
    part = data[start : start + rng.choice((1, 8, 64, 512))]
    return bytes(data[:start] + part * rng.choice((2, 3, 50)) + data[start:])


def _swap(data: bytearray, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return bytes(data[at:] + data[:at])


def _lengthen(data: bytearray, rng: Random) -> bytes:
    return bytes(data) + rng.choice((b"\0" * 4096, b"\n", rng.randbytes(100), bytes(data)))


_FAULTS = (_cut, _behead, _flip, _flip, _flip_early, _flip_early, _blank, _number, _number, _repeat, _swap, _lengthen)


def odd(rng: Random) -> Any:
    """A JSON value where another was expected."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(WORDS)
    return rng.choice(
        (None, True, False, [], {}, [[]], {"a": {}}, [None], [1, "a", None], {"": 0}, nested(30), [0] * 1000)
    )


def nested(depth: int) -> Any:
    """Lists within lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def spoil(value: Any, rng: Random, most: int = 3) -> Any:
    """A JSON value with one to `most` parts replaced by odd ones, removed, or added."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, most)):
        value = _spoil_one(value, rng)
    return value


def _spoil_one(value: Any, rng: Random) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.05:
        return odd(rng)
    place = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    kind = rng.random()
    if kind < 0.1:
        del value[place]
    elif kind < 0.2 and isinstance(value, dict):
        value[rng.choice(("x", "", "__class__", "auto_map", "config_path", place + "2"))] = odd(rng)
    elif kind < 0.5 or not isinstance(value[place], dict | list):
        value[place] = odd(rng)
    else:
        value[place] = _spoil_one(value[place], rng)
    return value


def json_bytes(value: Any, rng: Random) -> bytes:
    """A JSON text of an odd value: sometimes too deep, in another encoding, with a byte order mark, or damaged."""
    data = json.dumps(value).encode()
    kind = rng.randrange(14)
    if kind == 0:
        return b"[" * 100_000
    if kind == 1:
        return b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    if kind == 2:
        return b"\xef\xbb\xbf" + data
    if kind == 3:
        return json.dumps(value).encode(rng.choice(("utf-16", "utf-32")))
    if kind == 4:
        return b"1" * 10_000
    if kind in (5, 6, 7):
        return damage(data, rng)
    if kind == 8:
        return data.replace(b":", b": 1" + b"0" * 400 + b", ", 1) if rng.random() < 0.5 else b""
    return data
