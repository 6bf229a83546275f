"""Small tables with pictures for notebooks: what `_repr_html_` of a result gives.

A table is one element with its style and pictures in it, without scripts and addresses. Text is escaped; colors are
those of the notebook, light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import Any, NamedTuple

from idmetric.metric.images import ImageLike, ImageReadError, read_image
from idmetric.metric.tables import four
from idmetric.pages.pictures import jpeg_uri

ROWS = 10  # that are shown of a table
_SIDE = 96  # of pictures, in pixels
_BYTES = 4_000  # of a picture, at most
_LONGEST = 60  # characters of a cell
_LINE = (
    "border-bottom:1px solid rgba(128,128,128,.4);padding:.25em .7em;text-align:left;vertical-align:middle;"
    "white-space:nowrap"
)
_TABLE = "border-collapse:collapse;color:inherit;background:transparent;font-size:.9em"
_PICTURE = f"max-width:{_SIDE}px;max-height:{_SIDE}px;display:block"


class Picture(NamedTuple):
    """A small picture as a data address, and the name of its image."""

    uri: str
    name: str


def picture_of(image: ImageLike, name: str) -> Picture | None:
    """The picture of an image, which its path names or whose file is given; None if it cannot be read (any more)."""
    with suppress(ImageReadError):
        picture = read_image(image)
        picture.thumbnail((_SIDE, _SIDE))
        return Picture(jpeg_uri(picture, _BYTES), name)
    return None


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], count: int, notes: Sequence[str] = ()) -> str:
    """The HTML of a table.

    Args:
        columns: the heads. rows: cells in their order: text, numbers, `Picture`s, or None for an empty one.
        count: of the rows that there are; the first `ROWS` are given.
        notes: lines below the table.
    """
    lines = [f'<table style="{_TABLE}"><thead><tr>']
    lines += [f'<th style="{_LINE}">{_text(name)}</th>' for name in columns]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        cells = "".join(f'<td style="{_LINE}">{_cell(value)}</td>' for value in row)
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</tbody></table>")
    if count > len(rows):
        notes = [f"{len(rows)} of {count} rows", *notes]
    lines += [f'<div style="opacity:.75;font-size:.85em;margin:.3em 0">{_text(note)}</div>' for note in notes]
    return f'<div style="overflow-x:auto">{"".join(lines)}</div>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Picture):
        name = _text(value.name)
        return f'<img src="{value.uri}" alt="{name}" title="{name}" style="{_PICTURE}">'
    text = four(value) if isinstance(value, float) else str(value)
    if len(text) > _LONGEST:
        return f'<span title="{_text(text)}">{_text(text[:20])} … {_text(text[20 - _LONGEST :])}</span>'
    return _text(text)


def _text(text: str) -> str:
    """Escaped text; bytes of file names that are not text become question marks."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))
