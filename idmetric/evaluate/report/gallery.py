"""The page of `idmetric gallery report`: duplicates to remove, identities, and the nearest images of each image.

See `idmetric.evaluate.report.render` for the common parts of all pages.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np

from idmetric.evaluate.report.render import render
from idmetric.gallery import Gallery, GalleryItem
from idmetric.gallery.index import file_of
from idmetric.gallery.looks import Looks
from idmetric.gallery.table import NEIGHBORS
from idmetric.page import jpeg_uri
from idmetric.scoring.scores import Record, Records

ROOM = 18_000_000  # bytes of all pictures; text adds a third


def gallery_page(
    gallery: Gallery,
    duplicates: Records,
    groups: Records | None,
    *,
    signature: Mapping[str, Any],
    note: str = "",
    faults: Mapping[tuple[str, ...], str] | None = None,
    room: int = ROOM,
) -> str:
    """Make the page of a gallery.

    Args:
        duplicates: from `near_duplicates`. groups: from `identities`; None leaves identities out.
        note: the reason for leaving identities out.
        faults: of images that have no picture, because their file is missing or changed; `Gallery.stale`.
        room: bytes of all pictures. Duplicates come first, then identities, then single images; images without a
            picture are listed by name.

    Raises:
        ImportError: without jinja2. GalleryError: as `Gallery.query`.
    """
    items = {gallery.shown(item): item for item in gallery.items}
    faults = faults or {}
    copies = [_removable(rows, items) for rows in _by_group(duplicates)]
    clusters = [_marked(rows) for rows in _by_group(groups or ()) if len(rows) > 1]

    # images are numbered in the order in which the page shows them
    rows = list(chain(*copies, *clusters))
    grouped = dict.fromkeys(row["image"] for row in rows)
    names = dict.fromkeys([*grouped, *items])
    number = {name: index for index, name in enumerate(names)}
    for row in rows:
        row["image"] = number[row["image"]]

    ordered = [items[name] for name in number]
    shown, pictures = _pictures(gallery, ordered, faults, room)
    picture_number = {key: index for index, key in enumerate(pictures)}
    neighbors = _neighbors(gallery, ordered[:shown])
    images = []
    for name, index in number.items():
        item = ordered[index]
        has_room = index < shown
        images.append(
            {
                "path": name,
                "name": item.name,
                "picture": -1 if item.where in faults else picture_number.get(item.key, -1),
                "fault": faults.get(item.where, "" if has_room else "too many for one page"),
                "manifest": "" if item.place in item.files else file_of(item),
                "width": item.width,
                "height": item.height,
                "bytes": item.size,
                "near": neighbors[index] if has_room else "",
            }
        )

    record = {
        "images": images,
        "pictures": list(pictures.values()),
        "base": os.getcwd() if gallery.relative else "",
        "copies": copies,
        "clusters": clusters,
        "single": list(range(len(grouped), len(number))),
    }
    return render(
        "gallery",
        ("theme.js", "gallery.js"),
        record=record,
        counts={
            "copies": len(copies),
            "clusters": len(clusters),
            "single": len(number) - len(grouped),
        },
        count=len(items),
        signature=signature,
        problems=gallery.problems,
        note=note,
        threshold=_threshold(groups),
        near_threshold=_threshold(duplicates),
        neighbors=NEIGHBORS,
    )


def _threshold(rows: Records | None) -> str:
    """The threshold that the rows share, with its source; "" without one."""
    if not rows or "threshold" not in rows.columns:
        return ""
    return f"{rows[0]['threshold']:.4f} ({rows[0]['threshold_source']})"


def _by_group(rows: Iterable[Record]) -> list[list[Record]]:
    return [list(members) for _, members in groupby(rows, itemgetter("group"))]


def _removable(rows: Sequence[Record], items: Mapping[str, GalleryItem]) -> list[Record]:
    """The columns of a group's rows that the page shows, and `fixed`, why it cannot remove the row's file."""
    times = Counter(os.path.realpath(row["image"]) for row in rows)
    shown = []
    for row in rows:
        name = row["image"]
        fixed = ""
        if items[name].place not in items[name].files:
            fixed = "inside a manifest"
        elif os.fsencode(name).decode(errors="ignore") != name:
            fixed = "its name is not UTF-8"
        elif times[os.path.realpath(name)] > 1:
            fixed = "linked to another file of the group"
        shown.append(
            {
                "image": name,
                "keep": row["keep"],
                "reason": row["reason"],
                "distance": round(row["distance"], 4),
                "agreement": round(row["copy_agreement"], 4),
                "fixed": fixed,
            }
        )
    return shown


def _marked(rows: Sequence[Record]) -> list[Record]:
    """The columns of a cluster's rows that the page shows, and `outlier`, in the order of distance from the center.

    Outliers of four members or more, without the center itself, lie above Tukey's fence, Q3 + 1.5 (Q3 - Q1)
    (Exploratory Data Analysis, 1977).
    """
    distances = [row["distance"] for row in rows if not row["center"]]
    fence = np.inf
    if len(distances) >= 4:
        low, high = np.quantile(distances, (0.25, 0.75))
        fence = high + 1.5 * (high - low)

    shown = []
    for row in sorted(rows, key=lambda row: (not row["center"], row["distance"])):
        outlier = not row["center"] and bool(row["distance"] > fence)
        distance = round(row["distance"], 4)
        shown.append({"image": row["image"], "center": row["center"], "distance": distance, "outlier": outlier})
    return shown


def _pictures(
    gallery: Gallery,
    items: Sequence[GalleryItem],
    faults: Mapping[tuple[str, ...], str],
    room: int,
) -> tuple[int, dict[str, str]]:
    """Return how many of the first images there is room for, and key -> data address of their pictures."""
    readable = [item for item in items if item.where not in faults]
    different = dict.fromkeys(item.key for item in readable)
    keys = list(different)[: room // 100]
    thumbs = Looks(gallery, readable).thumbs(keys)
    pictures: dict[str, str] = {}
    for key, thumb in zip(keys, thumbs, strict=True):
        room -= len(thumb)
        if room < 0:
            break
        pictures[key] = jpeg_uri(thumb)

    for index, item in enumerate(items):
        if item.where not in faults and item.key not in pictures:
            return index, pictures
    return len(items), pictures


def _neighbors(gallery: Gallery, items: Sequence[GalleryItem]) -> list[str]:
    """Return the numbers of each image's nearest among these, nearest first, each followed by its distance."""
    images: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        images.setdefault(item.key, []).append(index)

    table = gallery.table()
    nearest, distances = table.near(NEIGHBORS + 1)
    texts = []
    for index, item in enumerate(items):
        row = table.number[item.key]
        neighbors = []
        for position, neighbor_row in enumerate(nearest[row]):
            distance = distances[row, position]
            for neighbor in images.get(table.keys[neighbor_row], ()):
                if neighbor != index:
                    neighbors.append(f"{neighbor} {distance:.4f}")
        texts.append(" ".join(neighbors[:NEIGHBORS]))
    return texts
