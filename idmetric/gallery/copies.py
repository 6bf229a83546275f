"""Near-duplicates: groups of a gallery's images that repeat each other's pixels. No image is deleted or moved."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.nearest import Double, Ints, distances, nearest
from idmetric.gallery.build import PRINT, Progress, keep_print, prints_of
from idmetric.gallery.clusters import connected, members
from idmetric.gallery.files import IMAGES, GalleryError
from idmetric.metric.files import OutputError, check_writable, in_order, need
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
_SAME = Copy(1.0, False)
_DIFFERENT = Copy(0.0, False)
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
    gallery.check_usable()
    limit = None if max_distance is None else Limit.of(max_distance)
    numbers, records = gallery.current()
    by_key: dict[str, list[int]] = {}
    for position, record in enumerate(records):
        by_key.setdefault(record["_key"], []).append(position)
    first = [positions[0] for positions in by_key.values()]
    contents = [records[position] for position in first]
    units = gallery.features.unit(numbers[first])

    with _Comparisons(gallery, contents, progress) as comparisons:
        # links of contents
        a, b, distance = nearest_pairs(*nearest(units, units, neighbors + 1))
        linked = np.zeros(len(a), bool)
        if limit is not None:
            linked = comparable(distance) <= comparable(limit.distance)
        by_row = np.lexsort((b, a))  # pairs of one image follow each other, whose print is then at hand
        for done, pair in enumerate(by_row.tolist(), 1):
            linked[pair] |= comparisons.copy(int(a[pair]), int(b[pair])).found
            if progress is not None:
                progress(done, len(a))

        groups: list[list[Record]] = []
        keys = list(by_key)
        for component in members(connected(len(keys), a[linked], b[linked])):
            rest = [int(content) for content in component]
            while rest:
                rest, rows = _group(rest, [by_key[key] for key in keys], records, units, comparisons, limit)
                if len(rows) > 1:
                    groups.append(rows)

    rows = _numbered(groups, limit)
    spare = sum(not row["keep"] for row in rows)
    note = f"{len(records)} images, {len(groups)} groups of near-duplicates, {spare} could go"
    if limit is not None:
        note += f"; near: within {limit}"
    tail: tuple[str, ...] = ("width", "height", "bytes", "distance", "copy_agreement", "mirrored")
    if limit is not None:
        tail = (*tail, "threshold", "threshold_source")
    return gallery.answer("Near-duplicates", ("group", "size", "keep", "reason"), rows, tail, records, [note])


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


class _Comparisons:
    """How far pairs of contents are copies, by their small pictures; those that are not kept yet are read now.

    A context: pictures for which the gallery has no room, as it is read-only, are kept until its end.
    """

    def __init__(self, gallery: Contents, contents: Sequence[Record], progress: Progress | None) -> None:
        self._contents = contents
        self._copies: dict[tuple[int, int], Copy] = {}
        self._prints: dict[int, Print] = {}
        self._temporary = tempfile.TemporaryDirectory(prefix="idmetric-", ignore_cleanup_errors=True)
        folder = gallery.store
        try:
            check_writable(folder / IMAGES)
        except OutputError:
            folder = Path(self._temporary.name)
        self._parts = prints_of(folder)
        missing = [content for content in contents if content["_key"] not in self._parts]

        def small(content: Record) -> np.ndarray:
            try:
                return small_picture(gallery.metric.read_image(content["_file"]))
            except ImageReadError as error:
                raise GalleryError(f"{content['path']}: {error.reason}; bring the gallery up to date") from error

        pictures = in_order(small, missing, threads=threads(None), waiting=64)
        for done, (content, picture) in enumerate(zip(missing, pictures, strict=True), 1):
            keep_print(self._parts, content["_key"], picture)
            if progress is not None:
                progress(done, len(missing))
        self._parts.save()

    def __enter__(self) -> _Comparisons:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def copy(self, a: int, b: int) -> Copy:
        """Whether one content is a copy of the other; each pair is compared once."""
        if a == b:
            return _SAME
        pair = (min(a, b), max(a, b))
        if pair not in self._copies:
            has_frames = self._contents[a]["_animated"] or self._contents[b]["_animated"]
            self._copies[pair] = _DIFFERENT if has_frames else compare(self._print(pair[0]), self._print(pair[1]))
        return self._copies[pair]

    def _print(self, number: int) -> Print:
        if number not in self._prints:
            if len(self._prints) >= _HELD:
                self._prints.clear()
            key = self._contents[number]["_key"]
            row = self._parts.rows([key])
            if key not in row:
                raise GalleryError(f"the picture of {self._contents[number]['path']} is damaged: start again")
            self._prints[number] = take_print(row[key][PRINT].numpy())
        return self._prints[number]


# Groups


def _group(
    contents: list[int],
    positions: Sequence[Sequence[int]],
    records: Sequence[Record],
    units: np.ndarray,
    comparisons: _Comparisons,
    limit: Limit | None,
) -> tuple[list[int], list[Record]]:
    """Of linked contents, those that do not repeat the one to keep; and the rows of the images that do, and of itself.

    Args:
        contents: numbers. positions: the images of each content, as numbers of `records`.
    """
    images = [position for content in contents for position in positions[content]]
    kept_image = min(images, key=lambda position: _precedence(records[position]))
    kept = next(content for content in contents if kept_image in positions[content])
    contents = [kept, *(content for content in contents if content != kept)]
    vectors = units[contents]
    from_kept = distances(np.broadcast_to(vectors[0], vectors.shape), vectors).tolist()

    rest = []
    rows: list[Record] = []
    for content, distance in zip(contents, from_kept, strict=True):
        copy = comparisons.copy(kept, content)
        is_animated = records[positions[content][0]]["_animated"] or records[kept_image]["_animated"]
        is_near = limit is not None and not is_animated and comparable(distance) <= comparable(limit.distance)
        if content != kept and not copy.found and not is_near:
            rest.append(content)
            continue
        for position in positions[content]:
            reason = "copy" if copy.found else "near"
            if content == kept:
                reason = "kept" if position == kept_image else "same bytes"
            facts = {"distance": distance, "copy_agreement": copy.agreement, "mirrored": copy.mirrored}
            rows.append({"keep": reason == "kept", "reason": reason, **facts, **records[position]})
    rows.sort(key=lambda row: not row["keep"])
    return rest, rows


def _precedence(record: Record) -> tuple[object, ...]:
    """Sort key: the image to keep comes first."""
    area = record["_width"] * record["_height"]
    stem, _ = os.path.splitext(os.path.basename(record["path"]))
    return -area, -record["_size"], _COPY_NAME.search(stem) is not None, natural(record["path"])


def _numbered(groups: list[list[Record]], limit: Limit | None) -> list[Record]:
    """The rows of groups, large groups first; a file that is kept by one path or mask is kept by all."""
    kept_files = {os.path.realpath(row["_file"]) for rows in groups for row in rows if row["keep"]}
    groups.sort(key=lambda rows: (-len(rows), min(row["path"] for row in rows)))
    numbered: list[Record] = []
    for number, rows in enumerate(groups, 1):
        for row in rows:
            if not row["keep"] and os.path.realpath(row["_file"]) in kept_files:
                row |= {"keep": True, "reason": SAME_FILE}
            row |= {"group": number, "size": len(rows)}
            row |= {"width": row["_width"], "height": row["_height"], "bytes": row["_size"]}
            if limit is not None:
                row |= {"threshold": limit.distance, "threshold_source": limit.source}
            numbered.append(row)
    return numbered
