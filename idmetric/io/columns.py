"""Aligned columns of text."""

from __future__ import annotations

from collections.abc import Container, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Each row of cells as a line, the columns two spaces apart.

    >>> aligned([["image", "distance"], ["a.png", "0.1"]], right=[1])
    ['image  distance', 'a.png       0.1']

    Args:
        rows: as many cells in each. right: numbers of the columns that are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
