"""Run-length codes of masks, as COCO and YouTube-VIS publish them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def decode(code: Mapping[str, Any]) -> NDArray[np.bool_]:
    """The mask (H, W) of {"size": [H, W], "counts": ...}: runs of 0 and 1 in turn, down each column.

    Args:
        code: counts is a list of numbers, or a text that packs them (COCO's compressed form).

    Raises:
        ValueError: if it is not such a code, or its runs do not fill the mask.
    """
    try:
        height, width = (int(n) for n in code["size"])
        counts = code["counts"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a run-length code with size and counts: {str(code)[:60]}") from error
    runs = unpacked(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(isinstance(n, int) and n >= 0 for n in runs):
        raise ValueError(f"counts of a run-length code are whole numbers, not {str(runs)[:60]}")
    if sum(runs) != height * width:
        raise ValueError(f"a run-length code of {sum(runs)} pixels for a mask of {height}x{width}")
    bits = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return np.ascontiguousarray(bits.reshape(width, height).T)


def unpacked(text: str) -> list[int]:
    """The counts in COCO's compressed form: five bits in each character from "0" on, the least significant first.

    A sixth bit says that the number continues, and the last character's fifth bit is its sign. From the fourth count
    on, the number is the difference to the count two before.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"{character!r} cannot be in a run-length code")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("a run-length code that ends within a number")
    return counts
