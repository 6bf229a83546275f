"""Near-duplicates: groups of a gallery's images that repeat each other's pixels. No image is deleted or moved."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.data.nearest import Double, Ints, Single, distances, nearest
from idmetric.gallery.build import PRINT, Progress, keep_print, prints_of
from idmetric.gallery.clusters import connected, members
from idmetric.gallery.files import GalleryError
from idmetric.metric.files import in_order, need
from idmetric.metric.images import ImageReadError, small_picture
from idmetric.metric.paths import natural
from idmetric.metric.ties import comparable
from idmetric.scoring.copies import Copy, Print, compare, take_print
from idmetric.scoring.scores import Limit, Record
from idmetric.stream import threads

if TYPE_CHECKING:
    from idmetric.gallery.answer import Answer
    from idmetric.gallery.contents import Contents

SAME_FILE = "same file"  # the reason of a link to a kept file, or of another mask of it
_HELD = 2**12  # prints in memory at once (200 MB)
# how file managers and browsers call copies: photo (1), photo - Copy, photo copy 2, photo_copy, Copy of photo
_COPY_NAME = re.compile(r"(^copy of .+|.[ _-]+copy(?:[ _]?\(?\d+\)?)?|.[ _]?\(\d+\))$", re.IGNORECASE)


def duplicates(
    gallery: Contents,
    *,
    neighbors: int = 10,
    max_distance: float | Limit | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Find groups of images that repeat each other's pixels.

    Two images are linked if they have the same bytes, or if one is a copy of the other (compressed, scaled, cropped,
    relit, mirrored; `scoring.copies`) and is among its nearest neighbors. Of linked images one is kept: the largest, of
    these that with the most bytes, of these one whose name is not that of a copy. The images that repeat it are its
    group; of the rest another is kept, and so on. So a copy's copy that does not repeat the kept image is never
    suggested to go with it.

    Args:
        gallery: up to date.
        neighbors: number of nearest images that are compared with each.
        max_distance: also link images this near by `cls`, such as the pictures of a burst, with any pixels. It has no
            default: a calibration's threshold would also link different photos of one identity.
        progress: called with (done, all) of images that are read, then of pairs that are compared.

    Returns:
        A row for each image of a group, large groups first. `keep` is true for one image of each group; `distance`,
        `copy_agreement` and `mirrored` compare the others with it; `reason` is "kept", "same bytes", "copy" or "near".
        Links to a file that is kept, and other masks of it, are kept too, of the reason "same file". Files of several
        frames or pages are linked by their bytes alone.

    Raises:
        GalleryError: as `Gallery.query`, and for an image that cannot be read any more. ImportError: without SciPy.
    """
    need("eval", "finding duplicates", scipy="SciPy")
    gallery.check()
    if gallery.is_table:
        raise GalleryError(f"{str(gallery.folder)!r} has vectors alone: build a gallery of the images for duplicates")
    limit = None if max_distance is None else Limit.of(max_distance)
    rows, records = gallery.current()
    by_key: dict[str, list[Record]] = {}
    for record in records:
        by_key.setdefault(record["_key"], []).append(record)
    contents = list(by_key.values())
    _, positions = np.unique([record["_key"] for record in records], return_index=True)
    units = gallery.features.unit(rows[np.sort(positions)])

    # links of contents; pairs of one image follow each other, so that its print is at hand
    copy_of = _comparison(gallery, [images[0] for images in contents], progress)
    a, b, distance = nearest_pairs(*nearest(units, units, neighbors + 1))
    linked = np.zeros(len(a), bool)
    if limit is not None:
        linked = comparable(distance) <= comparable(limit.distance)
    for done, pair in enumerate(np.lexsort((b, a)).tolist(), 1):
        linked[pair] |= copy_of(int(a[pair]), int(b[pair])).found
        if progress is not None:
            progress(done, len(a))

    groups: list[list[Record]] = []
    labels = connected(len(contents), a[linked], b[linked])
    for component in members(labels):
        rest = component.tolist()
        while rest:
            rest, group = _group(rest, contents, units, copy_of, limit)
            if len(group) > 1:
                groups.append(group)

    table = _numbered(groups)
    spare = sum(not row["keep"] for row in table)
    note = f"{len(records)} images, {len(groups)} groups of near-duplicates, {spare} could go"
    columns: tuple[str, ...] = ("width", "height", "bytes", "distance", "copy_agreement", "mirrored")
    if limit is not None:
        note += f"; near: within {limit}"
        columns += ("threshold", "threshold_source")
    return gallery.answer("Near-duplicates", ("group", "size", "keep", "reason"), table, columns, records, [note])


def nearest_pairs(neighbors: Ints, distance: Double) -> tuple[Ints, Ints, Double]:
    """Pairs a < b in which one is among the other's nearest, and their distances, nearest first.

    Args:
        neighbors, distance: the nearest of each row, perhaps itself, and their distances.
    """
    count = len(neighbors)
    row = np.broadcast_to(np.arange(count)[:, None], neighbors.shape)
    is_pair = row != neighbors
    low = np.minimum(row, neighbors)
    high = np.maximum(row, neighbors)
    code = low * count + high

    pair, position = np.unique(code[is_pair], return_index=True)
    pair_distance = distance[is_pair][position]
    order = np.lexsort((pair, comparable(pair_distance)))
    a, b = np.divmod(pair[order], count)
    return a, b, pair_distance[order]


# Comparisons

CopyOf = Callable[[int, int], Copy]  # whether two contents, by their numbers, are copies


def _comparison(gallery: Contents, contents: Sequence[Record], progress: Progress | None) -> CopyOf:
    """Compare contents by their small pictures; those that the gallery lacks are taken from the files now.

    Raises:
        GalleryError: if a file cannot be read any more, or the gallery has no room for a picture.
    """
    prints = prints_of(gallery.store)
    missing = [content for content in contents if content["_key"] not in prints]

    def small(content: Record) -> NDArray[np.uint8]:
        try:
            return small_picture(gallery.metric.read_image(content["_file"]))
        except ImageReadError as error:
            raise GalleryError(f"{content['path']}: {error.reason}; bring the gallery up to date") from error

    pictures = in_order(small, missing, threads=threads(None), waiting=64)
    for done, (content, picture) in enumerate(zip(missing, pictures, strict=True), 1):
        keep_print(prints, content["_key"], picture)
        if progress is not None:
            progress(done, len(missing))
    prints.save()

    @lru_cache(_HELD)
    def print_of(number: int) -> Print:
        key = contents[number]["_key"]
        stored = prints.rows([key])
        if not stored:
            raise GalleryError(
                f"no picture of {contents[number]['path']} is kept in {str(prints.folder)!r}: start again"
            )
        return take_print(stored[key][PRINT].numpy())

    @cache
    def compared(a: int, b: int) -> Copy:
        has_frames = contents[a]["_animated"] or contents[b]["_animated"]
        return Copy(0.0, False) if has_frames else compare(print_of(a), print_of(b))

    def copy_of(a: int, b: int) -> Copy:
        return Copy(1.0, False) if a == b else compared(min(a, b), max(a, b))

    return copy_of


# Groups


def _group(
    numbers: list[int], contents: Sequence[list[Record]], units: Single, copy_of: CopyOf, limit: Limit | None
) -> tuple[list[int], list[Record]]:
    """Of linked contents, those that do not repeat the one to keep; and a row for each image of the rest."""
    kept_number = min(numbers, key=lambda number: min(map(_precedence, contents[number])))
    kept_image = min(contents[kept_number], key=_precedence)
    vectors = units[numbers]
    from_kept = distances(np.broadcast_to(units[kept_number], vectors.shape), vectors).tolist()

    rest: list[int] = []
    rows: list[Record] = []
    for number, distance in zip(numbers, from_kept, strict=True):
        copy = copy_of(kept_number, number)
        is_animated = kept_image["_animated"] or contents[number][0]["_animated"]
        is_near = limit is not None and not is_animated and comparable(distance) <= comparable(limit.distance)
        if not copy.found and not is_near:
            rest.append(number)
            continue
        reason = "copy" if copy.found else "near"
        if number == kept_number:
            reason = "same bytes"
        facts = {"distance": distance, "copy_agreement": copy.agreement, "mirrored": copy.mirrored}
        if limit is not None:
            facts |= {"threshold": limit.distance, "threshold_source": limit.source}
        rows += [{**image, **facts, "keep": False, "reason": reason} for image in contents[number]]

    rows.sort(key=_precedence)
    kept_row = next(row for row in rows if row["path"] == kept_image["path"])
    kept_row |= {"keep": True, "reason": "kept"}
    return rest, [kept_row, *(row for row in rows if row is not kept_row)]


def _precedence(record: Record) -> tuple[object, ...]:
    """Sort key: the image to keep comes first."""
    area = record["_width"] * record["_height"]
    stem, _ = os.path.splitext(os.path.basename(record["path"]))
    return -area, -record["_size"], _COPY_NAME.search(stem) is not None, natural(record["path"])


def _numbered(groups: list[list[Record]]) -> list[Record]:
    """The rows of groups, large groups first; a file that is kept by one path or mask is kept by all."""
    kept_files = {os.path.realpath(rows[0]["_file"]) for rows in groups}
    groups.sort(key=lambda rows: (-len(rows), min(row["path"] for row in rows)))
    table: list[Record] = []
    for number, rows in enumerate(groups, 1):
        for row in rows:
            if not row["keep"] and os.path.realpath(row["_file"]) in kept_files:
                row |= {"keep": True, "reason": SAME_FILE}
            sizes = {"width": row["_width"], "height": row["_height"], "bytes": row["_size"]}
            table.append({**row, **sizes, "group": number, "size": len(rows)})
    return table
