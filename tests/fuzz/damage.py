"""Spoil what was whole: bytes, and JSON values."""

from __future__ import annotations

import json
from random import Random
from typing import Any

# numbers at which arithmetic, allocation and conversion go wrong
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 255, 256, 65535, 65536, 10**6, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, 2**63, 10**30,
    10**400, 0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
WORDS: tuple[str, ...] = (
    "", " ", "\0", "a\0b", "..", "../../outside", "/etc/passwd", "/dev/zero", "null", "NaN", "true", "1e999", "\ud800",
    "\ufeff", "\u202e", "e\u0301", "\U0001f600", "a" * 5000, "\r\n", "a,b", '"', "{}", "%s%n", "{0}", "-1", "--help",
    "file:///etc/passwd", "http://127.0.0.1:1/x", "data:image/png;base64,AAAA",
)  # fmt: skip


def damage(data: bytes, rng: Random, most: int = 4) -> bytes:
    """Bytes with one to `most` faults: cut, flipped, blanked, repeated, swapped, lengthened, numbers at the edge."""
    for _ in range(rng.randint(1, most)):
        data = _damaged(bytearray(data), rng) if data else rng.randbytes(rng.randint(0, 64))
    return data


def _damaged(data: bytearray, rng: Random) -> bytes:
    kind, at = rng.randrange(9), rng.randrange(len(data))
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        return bytes(data[at % 65 :])
    if kind == 2:
        part = data[at : at + rng.choice((1, 8, 64, 512))]
        return bytes(data[:at] + part * rng.choice((2, 3, 50)) + data[at:])
    if kind == 3:
        return bytes(data[at:] + data[:at])
    if kind == 4:
        return bytes(data) + rng.choice((b"\0" * 4096, b"\n", rng.randbytes(100), bytes(data)))
    if kind == 5:
        span = min(rng.choice((1, 4, 16, 256)), len(data) - at)
        data[at : at + span] = bytes([rng.choice((0, 0xFF))]) * span
        return bytes(data)
    if kind == 6:  # numbers in a head
        size = rng.choice((2, 4, 8))
        value = rng.choice((0, 1, 0x7FFF, 0x8000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)) % 2 ** (8 * size)
        data[at % 256 : at % 256 + size] = value.to_bytes(size, rng.choice(("little", "big")))
        return bytes(data)
    early = kind == 7
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(min(len(data), 128) if early else len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def odd(rng: Random) -> Any:
    """A JSON value where another was expected."""
    others = (None, True, [], {}, [[]], {"a": {}}, [None], [1, "a", None], {"": 0}, nested(30), [0] * 1000)
    return rng.choice(rng.choice((NUMBERS, WORDS, others)))


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
    others = (
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"\xef\xbb\xbf" + data,
        data.decode().encode(rng.choice(("utf-16", "utf-32"))),
        b"1" * 10_000,
        data.replace(b":", b": 1" + b"0" * 400 + b", ", 1),
        damage(data, rng),
        damage(data, rng),
    )
    return rng.choice(others) if rng.random() < 0.6 else data
