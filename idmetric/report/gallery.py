"""The page of `idmetric gallery report`: duplicates to remove, identities, and the nearest images of each image.

See `idmetric.report.page` for the common parts of all pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from idmetric.embed.nearest import nearest
from idmetric.gallery import Gallery, GalleryError, Item
from idmetric.images.opening import Named
from idmetric.images.read import ImageReadError, read_image
from idmetric.report.page import render
from idmetric.report.pictures import data_uri, room
from idmetric.scoring.records import Record, Records

SHOWN = 2000  # images on a page, at most
NEIGHBORS = 12  # nearest images of each


def gallery_page(
    gallery: Gallery,
    duplicates: Records,
    groups: Records | None,
    *,
    signature: Mapping[str, Any],
    note: str = "",
    most: int = SHOWN,
) -> str:
    """Make the page of a gallery.

    Args:
        duplicates: from `near_duplicates`. groups: from `identities`; None leaves identities out.
        note: the reason for leaving identities out.
        most: images on the page; duplicates come first, then identities, then single images. Totals, and the files to
            remove, are those of all groups.

    Raises:
        ImportError: without jinja2. GalleryError: as `Gallery.query`.
    """
    items = {item.place: item for item in gallery.items}
    shown: dict[str, int] = {}  # place -> number on the page
    all_copies = _by_group(duplicates)
    all_clusters = [rows for rows in _by_group(groups or ()) if len(rows) > 1]
    copies = [_removable(rows, items) for rows in _first(all_copies, shown, most)]
    unseen = [
        {"path": row["image"], "bytes": row["bytes"]}
        for rows in all_copies[len(copies) :] for row in _removable(rows, items) if not (row["keep"] or row["fixed"])
    ]  # fmt: skip
    clusters = [_marked(rows) for rows in _first(all_clusters, shown, most)]
    grouped = {row["image"] for rows in (*all_copies, *all_clusters) for row in rows}
    single = [place for place in items if place not in grouped][: most - len(shown)]
    shown |= {place: len(shown) + k for k, place in enumerate(single)}

    some = [items[place] for place in shown]
    keys = list(dict.fromkeys(item.key for item in some))
    pictures, faults = _pictures(gallery, some, room(len(keys)))
    images = [
        {"path": item.place, "name": item.name, "picture": keys.index(item.key) if item.key in pictures else -1,
         "fault": faults.get(item.place, ""), "width": item.width, "height": item.height, "bytes": item.size, **near}
        for item, near in zip(some, _neighbors(gallery, some), strict=True)
    ]  # fmt: skip
    return render(
        "gallery", ("theme.js", "gallery.js"),
        {"record": {"images": images, "pictures": [pictures.get(key) for key in keys], "unseen": unseen}},
        images=images, number=shown, copies=copies, clusters=clusters, single=single, count=len(items),
        problems=gallery.problems, signature=signature, note=note, neighbors=NEIGHBORS, unseen=len(unseen),
        left={"copies": len(all_copies) - len(copies), "clusters": len(all_clusters) - len(clusters),
              "images": len(items) - len(shown)},
    )  # fmt: skip


def _by_group(rows: Records | tuple[()]) -> list[list[Record]]:
    found: dict[int, list[Record]] = {}
    for row in rows:
        found.setdefault(row["group"], []).append(row)
    return list(found.values())


def _first(groups: Sequence[list[Record]], shown: dict[str, int], most: int) -> Iterator[list[Record]]:
    """Yield the first groups, while all their images fit on the page; their images are numbered in `shown`."""
    for rows in groups:
        new = [row["image"] for row in rows if row["image"] not in shown]
        if len(shown) + len(new) > most:
            return
        shown |= {place: len(shown) + k for k, place in enumerate(new)}
        yield rows


def _removable(rows: Sequence[Record], items: Mapping[str, Item]) -> list[Record]:
    """Add `fixed`, the reason why the page cannot remove a file, to each row of a group of duplicates."""
    real = [os.path.realpath(row["image"]) for row in rows]

    def fixed(row: Record, target: str) -> str:
        if row["image"] not in items[row["image"]].files:
            return "inside a manifest"
        if os.fsencode(row["image"]).decode(errors="ignore") != row["image"]:
            return "its name is not UTF-8"
        return "linked to another file of the group" if real.count(target) > 1 else ""

    return [{**row, "fixed": fixed(row, target)} for row, target in zip(rows, real, strict=True)]


def _marked(rows: Sequence[Record]) -> list[Record]:
    """Add `outlier` to each row of a cluster, and order them by their distance from its center.

    Outliers of four members or more, without the center itself, lie above Tukey's fence, Q3 + 1.5 (Q3 - Q1)
    (Exploratory Data Analysis, 1977).
    """
    others = sorted((row for row in rows if not row["center"]), key=lambda row: float(row["distance"]))
    fence = np.inf
    if len(others) >= 4:
        low, high = np.quantile([row["distance"] for row in others], (0.25, 0.75))
        fence = high + 1.5 * (high - low)
    center = [{**row, "outlier": False} for row in rows if row["center"]]
    return center + [{**row, "outlier": bool(row["distance"] > fence)} for row in others]


def _pictures(gallery: Gallery, items: Sequence[Item], limit: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return key -> data address, and place -> why there is none or why the file differs from its embedding."""
    found: dict[str, str] = {}
    faults: dict[str, str] = {}
    for item in items:
        try:
            data = gallery.read(item)[0]
            if item.key not in found:
                found[item.key] = data_uri(read_image(Named(data, item.place)), limit)
        except (GalleryError, ImageReadError) as error:
            faults[item.place] = str(error).removeprefix(f"{item.place} ").removeprefix(f"{item.place}: ")
    return found, faults


def _neighbors(gallery: Gallery, items: Sequence[Item]) -> list[dict[str, list[Any]]]:
    """Return the numbers of each image's nearest images on the page, nearest first, and their distances."""
    if not items:
        return []
    vectors = gallery.table().rows_of([item.key for item in items])
    rows, far = nearest(vectors, vectors, NEIGHBORS + 1)
    found = []
    for k, (row, distance) in enumerate(zip(rows.tolist(), far.tolist(), strict=True)):
        pairs = [(r, round(d, 4)) for r, d in zip(row, distance, strict=True) if r != k][:NEIGHBORS]
        found.append({"near": [r for r, _ in pairs], "far": [d for _, d in pairs]})
    return found
