"""What pages and notebooks show of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from idmetric.scoring.limits import Limit
from idmetric.scoring.records import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from idmetric.metric.calibration.apply import Calibration

File = tuple[str, str | None]  # an image and its mask


class ShownBaseline(Protocol):
    """See `Baseline`."""

    @property
    def distances(self) -> Mapping[str, float]:
        """The distance of each reference to the others."""

    @property
    def aggregate(self) -> str:
        """To the nearest ("best") or their mean."""

    @property
    def mean(self) -> float:
        """The mean of the distances."""

    @property
    def max(self) -> float:
        """The largest of the distances."""


class ShownScores(Protocol):
    """See `Scores`."""

    @property
    def rows(self) -> list[Record]:
        """A row for each image."""

    @property
    def signature(self) -> Mapping[str, str]:
        """What made the scores."""

    @property
    def skipped(self) -> Sequence[Record]:
        """Images without a row."""

    @property
    def baseline(self) -> ShownBaseline | None:
        """Distances of the references to each other."""

    @property
    def limit(self) -> Limit | None:
        """The largest distance that passes."""

    @property
    def threshold(self) -> float | None:
        """Its distance."""

    @property
    def threshold_source(self) -> str:
        """Its source."""

    @property
    def calibration(self) -> Calibration | None:
        """The source of the probabilities."""

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of all rows."""

    def to_dict(self) -> dict[str, Any]:
        """All values."""


class MatchedSide(Protocol):
    """The patches of an image, and how strongly each is matched."""

    @property
    def strength(self) -> NDArray[np.float32]:
        """One number for each patch."""


class MatchedPatches(Protocol):
    """Matched patches of a reference and an image, see `idmetric.evaluate.patch_matches.Matches`."""

    @property
    def reference(self) -> MatchedSide:
        """Those of the reference."""

    @property
    def image(self) -> MatchedSide:
        """Those of the image."""

    def packed(self) -> dict[str, Any]:
        """Values for JSON."""


class PageEntry(Protocol):
    """A row of scores, its image, the reference shown next to the image, and their matches."""

    @property
    def row(self) -> dict[str, Any]:
        """See `Scores.rows`."""

    @property
    def image(self) -> File:
        """The image."""

    @property
    def reference(self) -> File:
        """The reference."""

    @property
    def matches(self) -> MatchedPatches | None:
        """None without patches."""


class PageAlbum(Protocol):
    """The pictures of a page: `idmetric.evaluate.report.album.Album`, or `FileAlbum`.

    Attributes:
        details: number of nearest images with matches. pictures: as data addresses. references: in order.
    """

    details: int
    pictures: dict[File, str]
    references: dict[File, None]

    def finish(self, rows: Sequence[dict[str, Any]], /) -> Sequence[PageEntry]:
        """Return the entries in the order of the rows."""
