"""The answer of a gallery: a table that shows its images on a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from idmetric.gallery.files import frame_of
from idmetric.metric.files import StrPath, in_order
from idmetric.metric.images import ImageReadError, read_image
from idmetric.page import Group, Page, Picture, Tone, render, room, thumbnail, write_page
from idmetric.scoring.scores import Record, Records
from idmetric.stream import threads

if TYPE_CHECKING:
    import pandas as pd

_MOST_PICTURES = 4000  # of a page; further groups are counted
_TONES: dict[str, Tone] = {"unknown": "unsure", "kept": "good", "center": "good", "query": "note"}


@dataclass(frozen=True)
class Answer(Records):
    """A row for each image that was found.

    Attributes:
        title: of the page. group_column: rows with one value of it, which follow each other, are a group of the page.
        notes: sentences below the table: what the words in `answer` rest on, and the threshold.
        signature: model, revision, distance, resolution, dtype and version, to report with the distances.
        files: path as given -> the image's file.
        left_out: path -> fault of the images that have no row because their files are missing or have changed.
    """

    title: str = ""
    group_column: str = ""
    notes: Sequence[str] = ()
    signature: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def groups(self) -> Iterator[tuple[Any, list[Record]]]:
        """The rows of each query or group, in order, with its name."""
        for name, rows in groupby(self.rows, itemgetter(self.group_column)):
            yield name, list(rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas DataFrame; text is `str` or None, and whole numbers are exact beside missing values."""
        columns = {}
        for name in self.columns:
            columns[name] = [row[name] for row in self.rows]
        return frame_of(columns, "the answer")

    def write(self, path: StrPath) -> None:
        """Write a .csv, .json or .jsonl file, or the page (.html), atomically; ValueError for another ending."""
        if os.fspath(path).lower().endswith(".html"):
            write_page(answer_page(self), path)
            return
        super().write(path)


def answer_page(answer: Answer) -> str:
    """Make the page of an answer: its groups of images in their order; needs jinja2."""
    shown: list[tuple[str, list[Record]]] = []
    count = hidden = 0
    for name, rows in answer.groups():
        if count + len(rows) > _MOST_PICTURES:
            hidden += 1
            continue
        count += len(rows)
        if answer.group_column == "query":
            rows = [{"path": name, "answer": "query"}, *rows]
        shown.append((str(name), rows))

    paths = list(dict.fromkeys(row["path"] for _, rows in shown for row in rows))
    limit = room(len(paths))

    def uri_of(path: str) -> str:
        with suppress(ImageReadError):
            return thumbnail(read_image(answer.files.get(path, path)), limit)
        return ""

    uris = dict(zip(paths, in_order(uri_of, paths, threads=threads(None), waiting=64), strict=True))
    groups = []
    for name, rows in shown:
        pictures = [_picture(row, uris[row["path"]]) for row in rows]
        title = name if answer.group_column == "query" else f"{name}: {len(rows)} images"
        groups.append(Group(title, pictures))
    if answer.left_out:
        pictures = [Picture("", path, lines=[fault]) for path, fault in answer.left_out.items()]
        groups.append(Group("Left out", pictures, small=True))
    notes = list(answer.notes)
    if hidden:
        notes.append(f"{hidden} further groups are not shown")
    return render(Page(answer.title, facts=answer.signature, groups=groups, notes=notes))


def _picture(row: Record, uri: str) -> Picture:
    """The card of a row: its distance, the answer, the reason or the center, and the identity."""
    verdict = row.get("answer") or row.get("reason") or ("center" if row.get("center") else "")
    lines = []
    identity = row.get("identity")
    if identity and identity != verdict:
        lines.append(str(identity))
    if "width" in row:
        lines.append(f"{row['width']} x {row['height']}, {row['bytes']:,} bytes")
    return Picture(uri, row["path"], row.get("distance"), verdict, _TONES.get(verdict, ""), lines=lines)
