"""Pictures and matched patches for a page of scores, collected while images are scored.

Nothing is read or embedded twice. A picture is kept as the few kilobytes that go into the page, an image's matches as
six bytes for each patch, and only for the nearest images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from idmetric.evaluate.patch_matches import Matches, Tokens, matches_of, tokens_of
from idmetric.matching.heatmaps import layout
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.images.fit import SQUASH
from idmetric.metric.images.masks import MaskLike
from idmetric.metric.images.read import Outside
from idmetric.metric.images.regions import cut_out
from idmetric.metric.models.embedder import Embedder
from idmetric.pages.pictures import data_uri, room
from idmetric.scoring.scores import File

_MATCHES = 6_500_000  # bytes for all matches of a page


@dataclass
class AlbumEntry:
    """A row of scores, its image, the reference shown next to the image, and their matches."""

    row: dict[str, Any]
    image: File
    reference: File
    matches: Matches | None


class Album:
    """Pictures and matches of a page.

    Args:
        count: number of pictures on the page, which share its room.
        details: number of nearest images with matches; 0 = none.
    """

    def __init__(self, metric: Embedder, count: int, details: int) -> None:
        self.details = details
        self.entries: list[AlbumEntry] = []
        self.pictures: dict[File, str] = {}
        self.references: dict[File, None] = {}  # in the order in which they were seen
        self._metric = metric
        self._limit = room(count)
        self._sizes: dict[File, tuple[int, int]] = {}  # height and width of the image as shown

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
        self._sizes[file] = (picture.height, picture.width)
        self.pictures[file] = data_uri(picture, self._limit)

    def tokens(self, file: File, masked: bool, embedding: Embedding) -> Tokens | None:
        """Return the tokens for an image's matches; None if its model has no patches, or they cannot be placed."""
        if self._metric.preprocessor.fit != SQUASH:
            return None  # patches do not lie on a grid over the whole image
        if not self.details or embedding.patches is None:
            return None
        if embedding.grid is None and masked:
            return None
        height, width = self._sizes[file]
        grid = layout(self._metric, height, width, embedding)
        return tokens_of(grid, embedding)

    def add(
        self,
        row: dict[str, Any],
        image: File,
        reference: File,
        image_tokens: Tokens | None,
        reference_tokens: Tokens | None,
    ) -> None:
        """Add a row, with the tokens of its image and of the reference."""
        matches = None
        if image_tokens is not None and reference_tokens is not None:
            matches = matches_of(reference_tokens, image_tokens, self._metric.device)
        self.references.setdefault(reference)
        entry = AlbumEntry(row, image, reference, matches)
        self.entries.append(entry)
        if self.details and len(self.entries) % (2 * self.details) == 0:
            self._forget()

    def finish(self, rows: Sequence[dict[str, Any]]) -> list[AlbumEntry]:
        """Return the entries in the order of the rows."""
        self._forget()
        entry_of = {id(entry.row): entry for entry in self.entries}
        return [entry_of[id(row)] for row in rows]

    def _forget(self) -> None:
        """Keep the matches of the nearest images, as far as `details` and the room allow."""
        count, size = 0, 0
        nearest_first = sorted(self.entries, key=lambda entry: entry.row["distance"])
        for entry in nearest_first:
            if entry.matches is None:
                continue
            count += 1
            size += entry.matches.size
            if count > self.details or size > _MATCHES:
                entry.matches = None
