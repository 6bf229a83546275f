"""The largest distance that passes, with its source."""

from __future__ import annotations

from dataclasses import dataclass

GIVEN = "given"
OWN_PHOTOS = "own photos"


@dataclass(frozen=True)
class Limit:
    """The largest distance that passes.

    Attributes:
        source: where it comes from, in words to show next to it: "given" by an argument, of a command such as
            "option --threshold", "own photos" (leave-one-out), or "stored calibration, 5 % of pairs".
        rate: of a calibration's threshold, the share of pairs of two identities within it; None for others.
    """

    distance: float
    source: str = GIVEN
    rate: float | None = None

    @classmethod
    def of(cls, value: float | Limit) -> Limit:
        """A limit as it is, or one of a given distance."""
        return value if isinstance(value, Limit) else cls(value)

    def __str__(self) -> str:
        """Its distance with the source, such as "0.3 (option --threshold)"."""
        return f"{self.distance:.6g} ({self.source})"
