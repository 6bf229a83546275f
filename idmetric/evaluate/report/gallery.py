"""The page of `idmetric gallery report`: duplicates to remove, identities, and the nearest images of each image.

See `idmetric.evaluate.report.page` for the common parts of all pages.
"""

from __future__ import annotations

import base64
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from idmetric.evaluate.report.page import render
from idmetric.gallery import Gallery, Item
from idmetric.gallery.index import file_of
from idmetric.gallery.looks import Looks
from idmetric.gallery.table import NEIGHBORS
from idmetric.metric.scoring.records import Record, Records

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
    items, faults = {gallery.shown(item): item for item in gallery.items}, faults or {}
    copies, clusters = (
        [list(rows) for _, rows in groupby(some or (), itemgetter("group"))] for some in (duplicates, groups)
    )
    copies = [_removable(rows, items) for rows in copies]
    clusters = [_marked(rows) for rows in clusters if len(rows) > 1]
    grouped = dict.fromkeys(row["image"] for rows in (*copies, *clusters) for row in rows)
    number = {name: k for k, name in enumerate((*grouped, *(name for name in items if name not in grouped)))}
    some = [items[name] for name in number]

    shown, pictures = _pictures(gallery, some, faults, room)
    place = {key: k for k, key in enumerate(pictures)}
    near = _neighbors(gallery, some[:shown])
    images = [
        {"path": name, "name": item.name, "picture": place.get(item.key, -1) if item.where not in faults else -1,
         "fault": faults.get(item.where, "" if k < shown else "too many for one page"),
         "manifest": "" if item.place in item.files else file_of(item),
         "width": item.width, "height": item.height, "bytes": item.size, "near": near[k] if k < shown else ""}
        for k, (name, item) in enumerate(zip(number, some, strict=True))
    ]  # fmt: skip
    record = {
        "images": images, "pictures": list(pictures.values()),
        "base": os.getcwd() if gallery.relative else "",
        "copies": [[{**row, "image": number[row["image"]]} for row in rows] for rows in copies],
        "clusters": [[{**row, "image": number[row["image"]]} for row in rows] for rows in clusters],
        "single": list(range(len(grouped), len(number))),
    }  # fmt: skip
    counts = {"copies": len(copies), "clusters": len(clusters), "single": len(number) - len(grouped)}
    return render(
        "gallery", ("theme.js", "gallery.js"), {"record": record}, counts=counts, count=len(items), signature=signature,
        problems=gallery.problems, note=note, neighbors=NEIGHBORS,
    )  # fmt: skip


def _removable(rows: Sequence[Record], items: Mapping[str, Item]) -> list[Record]:
    """The columns of a group's rows that the page shows, and `fixed`, why it cannot remove the row's file."""
    times = Counter(os.path.realpath(row["image"]) for row in rows)

    def fixed(name: str) -> str:
        if items[name].place not in items[name].files:
            return "inside a manifest"
        if os.fsencode(name).decode(errors="ignore") != name:
            return "its name is not UTF-8"
        return "linked to another file of the group" if times[os.path.realpath(name)] > 1 else ""

    return [
        {"image": row["image"], "keep": row["keep"], "reason": row["reason"], "distance": round(row["distance"], 4),
         "agreement": round(row["copy_agreement"], 4), "fixed": fixed(row["image"])}
        for row in rows
    ]  # fmt: skip


def _marked(rows: Sequence[Record]) -> list[Record]:
    """The columns of a cluster's rows that the page shows, and `outlier`, in the order of distance from the center.

    Outliers of four members or more, without the center itself, lie above Tukey's fence, Q3 + 1.5 (Q3 - Q1)
    (Exploratory Data Analysis, 1977).
    """
    fence, far = np.inf, [row["distance"] for row in rows if not row["center"]]
    if len(far) >= 4:
        low, high = np.quantile(far, (0.25, 0.75))
        fence = high + 1.5 * (high - low)
    return [
        {"image": row["image"], "center": row["center"], "distance": round(row["distance"], 4),
         "outlier": not row["center"] and bool(row["distance"] > fence)}
        for row in sorted(rows, key=lambda row: (not row["center"], row["distance"]))
    ]  # fmt: skip


def _pictures(
    gallery: Gallery, items: Sequence[Item], faults: Mapping[tuple[str, ...], str], room: int
) -> tuple[int, dict[str, str]]:
    """Return how many of the first images there is room for, and key -> data address of their pictures."""
    there = [item for item in items if item.where not in faults]
    keys = list(dict.fromkeys(item.key for item in there))[: room // 100]
    found: dict[str, str] = {}
    for key, thumb in zip(keys, Looks(gallery, there).thumbs(keys), strict=True):
        room -= len(thumb)
        if room < 0:
            break
        found[key] = f"data:image/webp;base64,{base64.b64encode(thumb).decode('ascii')}"
    lacking = (k for k, item in enumerate(items) if item.where not in faults and item.key not in found)
    return next(lacking, len(items)), found


def _neighbors(gallery: Gallery, items: Sequence[Item]) -> list[str]:
    """Return the numbers of each image's nearest among these, nearest first, each followed by its distance."""
    table, images = gallery.table(), defaultdict(list)
    for k, item in enumerate(items):
        images[item.key].append(k)
    rows, far = (found.tolist() for found in table.near(NEIGHBORS + 1))

    def near(k: int, row: int) -> str:
        pairs = zip(rows[row], far[row], strict=True)
        found = [f"{n} {d:.4f}" for r, d in pairs for n in images.get(table.keys[r], ()) if n != k]
        return " ".join(found[:NEIGHBORS])

    return [near(k, table.number[item.key]) for k, item in enumerate(items)]
