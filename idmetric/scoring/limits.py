"""The largest distance that passes, with its source."""

from __future__ import annotations

from dataclasses import dataclass

GIVEN = "given"
OWN_PHOTOS = "own photos"
SUBJECTS_OWN = "the subject's own"


@dataclass(frozen=True)
class Limit:
    """The largest distance that passes.

    Attributes:
        source: where it comes from, in words to show next to it: "given" by an argument, of a command such as
            "option --threshold", "own photos" (leave-one-out), "the subject's own" (given when it was made), or "stored
            calibration, 5 % of pairs".
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


def limit_of_subject(own: Limit | None, by_pairs: Limit | None) -> Limit | None:
    """Choose between a subject's own limit and a calibration's.

    A limit that was given to the subject stands. Otherwise the larger one is taken: a further genuine photo lies beyond
    the limit of n photos in 1 of n + 1 cases, and a photo in a composite more often (benchmarks/states.py).
    """
    if own is None:
        return by_pairs
    if by_pairs is None or own.source != OWN_PHOTOS:
        return own
    return own if own.distance >= by_pairs.distance else by_pairs
