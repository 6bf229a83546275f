"""The page that commands write with --html: facts, tables, plots, and groups of captioned pictures.

    page = Page("Mugs", groups=[Group("Images", [Picture(thumbnail(photo, room(1)), "mug.jpg", 0.31)])])
    write_page(render(page), "mugs.html")

A page is one file, which opens from disk and loads nothing from the network: pictures, style and script are in it. It
can be read without its script, which moves the threshold. All text comes from files and is untrusted: the template
escapes it, and the page's content security policy runs the one script of the template and nothing else.

Notebooks get a smaller table, see `notebook_table`. Nothing here loads torch.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from idmetric.metric.files import StrPath, check_writable, need, replacing
from idmetric.metric.images import ImageLike, ImageReadError, read_image
from idmetric.tables import four
from idmetric.version import __version__

Tone = Literal["", "good", "bad", "unsure", "note"]  # the color of a verdict


# What a page shows


@dataclass(frozen=True)
class Picture:
    """A captioned picture.

    Attributes:
        uri: from `thumbnail`; "" for an image that cannot be shown.
        name: below the picture; the alternative text as well.
        value: the number in front of the name, such as a distance; None for none.
        verdict: one word on the picture, such as "same" or "copy"; "" for none. tone: its color.
        judged: whether the page's threshold decides the verdict: it is "pass" or "fail", and follows the slider.
        lines: further lines of the caption.
        path: of the file, which the name may shorten; shown on hover.
        beside: a picture to compare with: in a corner, and next to the picture when that is enlarged.
    """

    uri: str
    name: str
    value: float | None = None
    verdict: str = ""
    tone: Tone = ""
    judged: bool = False
    lines: Sequence[str] = ()
    path: str = ""
    beside: Picture | None = None


@dataclass(frozen=True)
class Group:
    """Pictures under a title, in order; `small` ones, such as references, take less room."""

    title: str
    pictures: Sequence[Picture]
    note: str = ""
    small: bool = False


@dataclass(frozen=True)
class PageTable:
    """A table: the heads of its columns, and rows of text, numbers, or None for an empty cell."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Plot:
    """The values of pictures as dots on one axis; dots that would cover each other are stacked.

    Attributes:
        axis: what the axis measures.
        pictures: each has a value. The color of a dot is the tone of its picture.
        range_name: what the numbers of `range_values` are, such as real photos: name of each -> number. The plot shades
            the range that they span.
    """

    title: str
    axis: str
    pictures: Sequence[Picture]
    range_name: str = ""
    range_values: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A page, in the order in which it shows its parts.

    Attributes:
        facts: name -> text, how the numbers were made. notes: sentences at the end.
        threshold: the largest value that passes; with one, the first plot gets a slider that changes the verdicts.
        threshold_source: where it comes from, in words.
    """

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    tables: Sequence[PageTable] = ()
    plots: Sequence[Plot] = ()
    threshold: float | None = None
    threshold_source: str = ""
    groups: Sequence[Group] = ()
    notes: Sequence[str] = ()


def render(page: Page) -> str:
    """Make the HTML of a page; the same page gives the same text.

    Raises:
        ImportError: without jinja2.
    """
    need("eval", "an HTML page", jinja2="jinja2")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"four": four, "digest": _digest, "wrapped": _wrapped}

    # a picture beside many others is in the page once, as a class of its style
    beside: dict[str, int] = {}
    for group in page.groups:
        for picture in group.pictures:
            if picture.beside is not None:
                beside.setdefault(picture.beside.uri, len(beside))

    drawings = [_draw(plot, page.threshold) for plot in page.plots]
    template = environment.get_template("sheet.html")
    return template.render(page=page, beside=beside, drawings=drawings, version=__version__)


def _digest(script: str) -> str:
    """The SHA-256 by which a content security policy names a script."""
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _wrapped(name: str) -> Any:
    """Escape a file's name, and let its line break after each folder and word."""
    from markupsafe import Markup, escape

    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))


def check_page(path: StrPath) -> None:
    """Check, before the work, that a page can be written there.

    Raises:
        ImportError: without jinja2.
        OutputError: if the path is a folder, or its folder is absent or cannot be written to.
    """
    need("eval", "an HTML page", jinja2="jinja2")
    check_writable(path)


def write_page(page: str, path: StrPath) -> None:
    """Write the HTML of a page atomically; bytes of file names that are not text become question marks."""
    with replacing(Path(path), parents=True) as temporary:
        temporary.write_bytes(page.encode("utf-8", "replace"))


def short(paths: Sequence[str]) -> list[str]:
    """Remove the folders that all paths share."""
    try:
        shared = os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # absolute and relative paths, several drives, or no paths
        shared = ""
    if not shared:
        return list(paths)
    return [os.path.relpath(path, shared) for path in paths]


# Plots

_COLUMNS = 100  # of stacked dots
_DOT = 9.0  # pixels from dot to dot, if there is room
_HEIGHT = 96.0  # pixels of the highest stack, at most


@dataclass(frozen=True)
class Axis:
    """An axis with round ends; `ticks` are positions and texts.

    Positions are percent of the way from the low end to the high one.
    """

    low: float
    high: float
    ticks: list[tuple[float, str]]

    def position(self, value: float) -> float:
        """The position of a value; of one beyond an end, that end."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)


@dataclass(frozen=True)
class Drawing:
    """A plot with the positions of its parts.

    Attributes:
        dots: x in percent, y in pixels from the bottom, and the picture of each. height: of the stacks, in pixels.
        marks: name and position of each number of the plot's range.
    """

    plot: Plot
    axis: Axis
    dots: list[tuple[float, float, Picture]]
    height: float
    marks: list[tuple[str, float]]


def _draw(plot: Plot, threshold: float | None) -> Drawing:
    pictures = [picture for picture in plot.pictures if picture.value is not None]
    values = [picture.value for picture in pictures if picture.value is not None]
    axis = axis_of([0.0, *values, *plot.range_values.values()], threshold)

    # a few dots stand at their values, many in columns
    positions = [axis.position(value) for value in values]
    columns = [int(x * _COLUMNS / 100.001) for x in positions]
    highest = max(Counter(columns).values(), default=1)
    gap = min(_DOT, _HEIGHT / highest)
    heights: Counter[int] = Counter()
    dots = []
    for x, column, picture in zip(positions, columns, pictures, strict=True):
        if gap < _DOT:
            x = round(100 * (column + 0.5) / _COLUMNS, 2)
        y = round(6 + gap * heights[column], 1)
        dots.append((x, y, picture))
        heights[column] += 1

    marks = [(name, axis.position(value)) for name, value in plot.range_values.items()]
    return Drawing(plot, axis, dots, round(max(36.0, gap * highest + 12)), marks)


def axis_of(values: Sequence[float], threshold: float | None = None) -> Axis:
    """The axis that holds these values, and a threshold unless it is far beyond all of them."""
    low = min(values)
    high = max(*values, 1e-3)
    if threshold is not None and low <= threshold <= 2 * high:
        high = max(high, threshold)

    # the ends are multiples of the distance of two ticks
    step = _round_step((high - low) / 4)
    low_tick = math.floor(low / step)
    high_tick = math.ceil(round(high / step, 9))
    axis = Axis(round(step * low_tick, 10), round(step * high_tick, 10), [])
    for number in range(low_tick, high_tick + 1):
        value = step * number
        axis.ticks.append((axis.position(value), four(value)))
    return axis


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    for factor in (1, 2, 5):
        if factor * power >= least * (1 - 1e-9):
            return factor * power
    return 10 * power


# Pictures in the page

_TOTAL = 11_000_000  # bytes for all pictures of a page; text adds a third
_LARGEST, _SMALLEST = 60_000, 2_000  # bytes for one picture
_LEAST_SIDE = 48  # pixels below which a picture shows nothing
_QUALITY = 80
_DENSITY = 0.15  # bytes per pixel of most photos


def room(count: int) -> int:
    """Return the bytes for each of so many pictures; a page of up to 2,000 pictures stays below 25 MB."""
    return max(_SMALLEST, min(_LARGEST, _TOTAL // max(count, 1)))


def thumbnail(picture: Image.Image, limit: int) -> str:
    """A picture as the data address of a small JPEG.

    Args:
        picture: RGB.
        limit: bytes of the JPEG; exceeded only by a picture of the least size.
    """
    side = max(_LEAST_SIDE, round(math.sqrt(limit / _DENSITY)))
    small = reduced(picture, side)
    while True:
        data = jpeg_of(small)
        if len(data) <= limit or max(small.size) <= _LEAST_SIDE:
            return jpeg_uri(data)
        # the bytes grow a little more slowly than the area
        shrink = min(0.9, 0.95 * math.sqrt(limit / len(data)))
        side = max(_LEAST_SIDE, int(shrink * max(small.size)))
        small.thumbnail((side, side), Image.Resampling.BILINEAR)


def reduced(picture: Image.Image, side: int) -> Image.Image:
    """Reduce a picture to about this longer side, by averages of whole blocks: a resize takes five times as long."""
    block = max(1, round(max(picture.size) / side))
    return picture.reduce(block)


def jpeg_of(picture: Image.Image) -> bytes:
    """A picture as a JPEG file."""
    file = io.BytesIO()
    picture.save(file, "jpeg", quality=_QUALITY)
    return file.getvalue()


def jpeg_uri(data: bytes) -> str:
    """A JPEG file as a data address."""
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode('ascii')}"


# Tables in notebooks

ROWS = 10  # that are shown of a table
_SIDE = 96  # of pictures, in pixels
_BYTES = 4_000  # of a picture, at most
_LONGEST = 60  # characters of a cell
_CELL = (
    "border-bottom:1px solid rgba(128,128,128,.4);padding:.25em .7em;text-align:left;vertical-align:middle;"
    "white-space:nowrap"
)
_TABLE = "border-collapse:collapse;color:inherit;background:transparent;font-size:.9em"
_IMG = f"max-width:{_SIDE}px;max-height:{_SIDE}px;display:block"
_NOTE = "opacity:.75;font-size:.85em;margin:.3em 0"


def picture_of(image: ImageLike, name: str) -> Picture | None:
    """The picture of an image for `notebook_table`; None if it cannot be read (any more)."""
    with suppress(ImageReadError):
        picture = read_image(image)
        picture.thumbnail((_SIDE, _SIDE))
        return Picture(thumbnail(picture, _BYTES), name)
    return None


def notebook_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], count: int, notes: Sequence[str] = ()) -> str:
    """The HTML of a table for notebooks, one element without scripts and addresses, in the notebook's own colors.

    Args:
        heads: of the columns. rows: cells in their order: text, numbers, `Picture`s, or None for an empty one.
        count: of the rows that there are; the first `ROWS` are given.
        notes: lines below the table.
    """
    lines = [f'<table style="{_TABLE}"><thead><tr>']
    lines += [f'<th style="{_CELL}">{_text(head)}</th>' for head in heads]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        cells = "".join(f'<td style="{_CELL}">{_cell(value)}</td>' for value in row)
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</tbody></table>")

    if count > len(rows):
        notes = [f"{len(rows)} of {count} rows", *notes]
    lines += [f'<div style="{_NOTE}">{_text(note)}</div>' for note in notes]
    return f'<div style="overflow-x:auto">{"".join(lines)}</div>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Picture):
        name = _text(value.name)
        return f'<img src="{value.uri}" alt="{name}" title="{name}" style="{_IMG}">'
    text = four(value) if isinstance(value, float) else str(value)
    if len(text) > _LONGEST:
        return f'<span title="{_text(text)}">{_text(text[:20])} … {_text(text[20 - _LONGEST :])}</span>'
    return _text(text)


def _text(text: str) -> str:
    """Escaped text; bytes of file names that are not text become question marks."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))
