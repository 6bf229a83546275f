"""Lines of text: aligned columns, and lists that are cut short."""

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


def first_few(lines: Sequence[str], shown: int = 10) -> list[str]:
    """The first lines and, if there are more, a line with their number.

    >>> first_few(["a", "b", "c"], shown=2)
    ['a', 'b', 'and 1 more']
    """
    more = len(lines) - shown
    return [*lines[:shown], f"and {more} more"] if more > 0 else list(lines)
