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
_COLORS = {"good": "#1a7f37", "bad": "#cf222e", "unsure": "#bf8700", "": "#0969da"}


def match_page(matches: Any) -> str:
    """Make the page of a `Match`, whose module imports this one; needs jinja2.

    Files are read again; an image in memory, and one that cannot be read any more, has no picture.
    """
    groups = [Group("Images, the worst first", _cards(matches))]
    if matches.skipped:
        left_out = []
        for name, reason in matches.skipped.items():
            left_out.append(Picture("", name, lines=[reason]))
        groups.append(Group("Left out", left_out, small=True))
    tables = []
    frames_of_titles = {
        "Subjects": matches.summary,
        "Times": matches.intervals(),
    }
    for title, frame in frames_of_titles.items():
        if len(frame):
            cells = frame.astype(object).where(frame.notna(), None)
            rows = cells.to_numpy().tolist()
            tables.append(PageTable(title, list(frame.columns), rows))
    page = Page(
        "Subjects in images",
        matches.signature,
        tables=tables,
        groups=groups,
        notes=matches.notes,
    )
    return render(page)


def _cards(matches: Any) -> list[Picture]:
    """A card of each image, the worst first."""
    images = {image.moment.name: image for image in matches.images}
    rows: dict[str, list[Record]] = {name: [] for name in images}
    for row in matches.best.to_dict("records"):
        rows[row["image"]].append(row)
    worst_rows = []
    for rows_of_image in rows.values():
        worst_rows.append(max(rows_of_image, key=_badness))
    worst_rows.sort(key=_badness, reverse=True)
    worst_rows = worst_rows[:_MOST]
    names = [row["image"] for row in worst_rows]

    # their pictures, each of so many bytes that the page stays small
    addresses = {}
    limit = room(len(names))
    owners = _owners(matches)
    moments = [images[name].moment for name in names]
    for name, picture in _pictures(moments):
        drawn = _drawn(images[name], owners, picture)
        addresses[name] = thumbnail(drawn, limit)

    cards = []
    for worst, short_name in zip(worst_rows, short(names), strict=True):
        name = worst["image"]
        state = worst["state"]
        lines = list(map(_line, rows[name]))
        address = addresses.get(name, "")
        card = Picture(
            address,
            short_name,
            verdict=state,
            tone=_tone(state),
            lines=lines,
            path=name,
        )
        cards.append(card)
    return cards


def _tone(state: str) -> Tone:
    tones: dict[str, Tone] = {
        "missing": "bad",
        "unexpected": "bad",
        "twice": "unsure",
        "matched": "good",
    }
    return tones.get(state, "")


def _line(row: Record) -> str:
    """The line of a subject in the caption of an image."""
    distance = row["distance"]
    where = four(distance)
    if np.isnan(distance):
        where = "in no region"
    return f"{row['subject']}: {row['state']} {where}"


def _owners(rows: Any) -> dict[tuple[str, int], Record]:
    """The row of the subject that each region shows, by image and number; none of unknown regions."""
    owners: dict[tuple[str, int], Record] = {}
    for row in rows:
        region = (row["image"], row["region"])
        if row["counts"] and (row["assigned"] or region not in owners):
            owners[region] = row
    return owners


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
    scale = small.width / picture.width
    for number, (region, box) in enumerate(zip(image.regions, image.boxes, strict=True)):
        name = region.label or "unknown"
        color = _COLORS[""]
        owner = owners.get((image.moment.name, number))
        if owner is not None:
            name = owner["subject"]
            color = _COLORS[_tone(owner["state"])]
        left, top, right, bottom = (scale * side for side in box)
        draw.rectangle((left, top, right - 1, bottom - 1), outline=color, width=3)
        draw.text((left + 6, top + 4), name, fill="white", stroke_width=2, stroke_fill=color)
    return small
