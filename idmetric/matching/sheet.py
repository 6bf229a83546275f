"""The page of `idmetric match --html`: each image with its regions named, the worst first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

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


def match_page(found: Any) -> str:
    """Make the page of a `Match`, whose module imports this one; needs jinja2.

    Files are read again; an image in memory, and one that cannot be read any more, has no picture.
    """
    rows_of: dict[str, list[Record]] = {image.moment.name: [] for image in found.images}
    for row in found.best.to_dict("records"):
        rows_of[row["image"]].append(row)
    images = {image.moment.name: image for image in found.images}
    worst_first = sorted(images, key=lambda name: max(map(_badness, rows_of[name])), reverse=True)[:_MOST]
    owners: dict[tuple[str, int], Record] = {}  # of regions by image and number: a row of the subject that it shows
    for row in found:
        key = (row["image"], row["region"])
        if row["counts"] and (row["assigned"] or key not in owners):
            owners[key] = row
    shown = {}
    for name, picture in _pictures([images[name].moment for name in worst_first]):
        shown[name] = thumbnail(_drawn(images[name], owners, picture), room(len(worst_first)))

    cards = []
    for name, short_name in zip(worst_first, short(worst_first), strict=True):
        worst = max(rows_of[name], key=_badness)
        lines = []
        for row in rows_of[name]:
            distance = "in no region" if row["distance"] != row["distance"] else four(row["distance"])
            lines.append(f"{row['subject']}: {row['state']} {distance}")
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


def _drawn(image: Cutouts, owners: Mapping[tuple[str, int], Record], picture: Image.Image) -> Image.Image:
    """A picture, reduced, with its regions and the names of the subjects that they show, else their labels."""
    small = reduced(picture, _SIDE)
    draw = ImageDraw.Draw(small)
    for number, (left, top, right, bottom) in enumerate(image.boxes):
        label = image.regions[number].label or "unknown"
        owner = owners.get((image.moment.name, number), {"subject": label, "state": "unknown"})
        color = _COLORS[_TONES.get(owner["state"], "")]
        across, along = small.width / picture.width, small.height / picture.height
        box = (left * across, top * along, right * across - 1, bottom * along - 1)
        draw.rectangle(box, outline=color, width=3)
        draw.text((box[0] + 6, box[1] + 4), owner["subject"], fill="white", stroke_width=2, stroke_fill=color)
    return small
