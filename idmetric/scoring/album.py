"""Pictures for a page of scores: collected while images are scored, or read from the files afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from idmetric.metric.embedder import Embedder
from idmetric.metric.images import ImageReadError, Outside, read_image
from idmetric.metric.masks import MaskLike, cut_out
from idmetric.pages.pictures import data_uri, room
from idmetric.scoring.records import File


@dataclass(frozen=True)
class AlbumEntry:
    """A row of scores, its image, and the reference shown with the image."""

    row: dict[str, Any]
    image: File
    reference: File


class Album:
    """Pictures of a page, each kept as the few kilobytes that go into the page; nothing is read twice.

    Args:
        count: number of pictures on the page, which share its room.

    Attributes:
        pictures: as data addresses. references: in the order in which they were seen.
    """

    def __init__(self, metric: Embedder, count: int) -> None:
        self.pictures: dict[File, str] = {}
        self.references: dict[File, None] = {}
        self._entries: list[AlbumEntry] = []
        self._metric = metric
        self._limit = room(count)

    def add_picture(
        self,
        file: File,
        picture: Image.Image,
        mask: MaskLike | None,
        outside: Outside,
    ) -> None:
        """Keep an image as the model sees it: painted or cut out where a mask says so. Safe in threads."""
        if mask is not None:
            background = self._metric.background
            shown, _ = cut_out(picture, mask, outside, background=background)
            if isinstance(shown, Image.Image):
                picture = shown
        self.pictures[file] = data_uri(picture, self._limit)

    def add(self, row: dict[str, Any], image: File, reference: File) -> None:
        """Add a row before it is ranked."""
        self.references.setdefault(reference)
        self._entries.append(AlbumEntry(row, image, reference))

    def finish(self, rows: Sequence[dict[str, Any]]) -> list[AlbumEntry]:
        """Return the entries in the order of the rows."""
        entry_of = {id(entry.row): entry for entry in self._entries}
        return [entry_of[id(row)] for row in rows]


@dataclass
class FileAlbum:
    """Pictures of scores that are there already, read from the files; see `Album`.

    An image that cannot be read any more, or was in memory, is a gray square.
    """

    pictures: dict[File, str] = field(default_factory=dict)
    references: dict[File, None] = field(default_factory=dict)

    def finish(self, rows: Sequence[dict[str, Any]]) -> list[AlbumEntry]:
        """Return the entries in the order of the rows."""
        entries = []
        for row in rows:
            name = row["reference"]
            if not os.path.isfile(name):  # those of aggregate="mean" in one text
                name = name.split(";")[0]
            entries.append(AlbumEntry(row, (row["image"], None), (name, None)))
        self.references = {entry.reference: None for entry in entries}
        files = [*self.references, *(entry.image for entry in entries)]
        limit = room(len(files))
        for file in files:
            if file not in self.pictures:
                self.pictures[file] = _picture(file[0], limit)
        return entries


def _picture(path: str, limit: int) -> str:
    with suppress(ImageReadError):
        return data_uri(read_image(path), limit)
    return data_uri(Image.new("RGB", (48, 48), "gray"), limit)
