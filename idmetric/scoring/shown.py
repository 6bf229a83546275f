"""What pages and notebooks show of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from idmetric.scoring.limits import Limit
from idmetric.scoring.records import Record

if TYPE_CHECKING:
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
