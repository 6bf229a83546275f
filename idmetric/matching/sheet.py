"""The page of `idmetric match --html`: each image with its regions named, the worst first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from idmetric.matching.assignment import FOUND
from idmetric.matching.clips import Cutouts, Moment
from idmetric.matching.frames import ClipError, frames
from idmetric.metric.images import ImageReadError, read_image
from idmetric.page import Group, Page, PageTable, Picture, Tone, reduced, render, room, short, thumbnail
from idmetric.scoring.scores import Record
from idmetric.tables import four

_MOST = 200  # images on a page
_SIDE = 640  # pixels of a picture, about
_TONES: dict[str, Tone] = {
    "missing": "bad",
    "unexpected": "bad",
    "twice": "unsure",
    "matched": "good",
    "absent": "note",
}
_COLORS = {"good": "#1a7f37", "bad": "#cf222e", "unsure": "#bf8700", "note": "#57606a", "": "#0969da"}


def match_page(found: Any, messages: Sequence[str] = ()) -> str:
    """Make the page of a `Match`, whose module imports this one, with the warnings in `messages`; needs jinja2.

    Files are read again; an image in memory, and one that cannot be read any more, has no picture.
    """
    rows_of: dict[str, list[Record]] = {image.moment.name: [] for image in found.images}
    for row in found.best.to_dict("records"):
        rows_of[row["image"]].append(row)
    images = {image.moment.name: image for image in found.images}
    worst_first = sorted(images, key=lambda name: max(map(_badness, rows_of[name])), reverse=True)[:_MOST]
    shown = {}
    for name, picture in _pictures([images[name].moment for name in worst_first]):
        shown[name] = thumbnail(_drawn(images[name], rows_of[name], picture), room(len(worst_first)))

    cards = []
    for name, short_name in zip(worst_first, short(worst_first), strict=True):
        worst = max(rows_of[name], key=_badness)
        lines = [f"{row['subject']}: {row['state'] or 'no state'} {four(row['distance'])}" for row in rows_of[name]]
        tone = _TONES.get(worst["state"], "")
        cards.append(Picture(shown.get(name, ""), short_name, None, worst["state"], tone, lines=lines, path=name))
    skipped = [Picture("", name, lines=[reason]) for name, reason in found.skipped.items()]
    groups = [Group("Images, the worst first", cards), Group("Left out", skipped, small=True)]
    tables = []
    for title, frame in (("Subjects", found.summary), ("Times", found.intervals())):
        if len(frame):
            cells = frame.astype(object).where(frame.notna(), None)
            tables.append(PageTable(title, list(frame.columns), cells.to_numpy().tolist()))
    return render(
        Page(
            "Subjects in images",
            facts=found.signature,
            warnings=messages,
            tables=tables,
            groups=[group for group in groups if group.pictures],
            notes=found.notes,
        )
    )


def _badness(row: Record) -> tuple[int, float]:
    """By which images are sorted: missing subjects first, then unexpected, others by distance, absent ones last."""
    ranks = {"missing": 3, "unexpected": 2, "absent": 0}
    return ranks.get(row["state"], 1), np.nan_to_num(row["distance"])


def _pictures(moments: Sequence[Moment]) -> Iterator[tuple[str, Image.Image]]:
    """Yield the names and pictures of images that can be read, and of frames, clip by clip."""
    names_of_frames: dict[str, dict[int, str]] = {}
    for moment in moments:
        if moment.clip:
            names_of_frames.setdefault(moment.clip, {})[moment.frame] = moment.name
        elif os.path.isfile(moment.name):
            with suppress(ImageReadError):
                yield moment.name, read_image(moment.name)
    for clip, names in names_of_frames.items():
        with suppress(ClipError):
            for frame in frames(clip):
                if frame.number in names:
                    yield names[frame.number], frame.image.convert("RGB")


def _drawn(image: Cutouts, rows: Sequence[Record], picture: Image.Image) -> Image.Image:
    """A picture, reduced, with its regions and the names of the subjects that they are assigned to."""
    small = reduced(picture, _SIDE)
    draw = ImageDraw.Draw(small)
    owners = {row["region"]: row for row in rows if row["assigned"] and row["state"] in (*FOUND, "")}
    for number, (left, top, right, bottom) in enumerate(image.boxes):
        owner = owners.get(number, {"subject": image.regions[number].label or "unknown", "state": "unknown"})
        color = _COLORS[_TONES.get(owner["state"], "")]
        across, along = small.width / picture.width, small.height / picture.height
        box = (left * across, top * along, right * across - 1, bottom * along - 1)
        draw.rectangle(box, outline=color, width=3)
        draw.text((box[0] + 6, box[1] + 4), owner["subject"], fill="white", stroke_width=2, stroke_fill=color)
    return small
