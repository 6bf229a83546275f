"""The largest distance at which a region counts as a subject, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idmetric.match.encoders import Encoder
from idmetric.metric.calibration.apply import PAIR_RATE, Calibration, CalibrationError
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.scoring.calibrations import STORED, calibration_of, threshold_source
from idmetric.metric.scoring.references import Aggregate
from idmetric.metric.scoring.scores import PathLike, RequestError
from idmetric.metric.scoring.subject import Subject


@dataclass(frozen=True)
class SubjectThreshold:
    """A subject's threshold.

    Attributes:
        distance: the largest that counts as the subject; NaN without a threshold.
        source: where it comes from, such as "own photos"; "" without a threshold.
    """

    distance: float = math.nan
    source: str = ""


@dataclass(frozen=True)
class ThresholdRule:
    """How the thresholds of subjects are found.

    Attributes:
        given: of all subjects, or by name; they come before all others.
        calibration: that a threshold is read from if a subject has none of its own. name: see `threshold_source`.
        rate: the wanted share of pairs of two identities within the threshold.
    """

    given: float | Mapping[str, float] | None
    calibration: Calibration | None
    name: PathLike | Calibration
    rate: float

    @classmethod
    def of(
        cls,
        metric: Embedder,
        distance: str,
        threshold: float | Mapping[str, float] | None,
        calibration: PathLike | Calibration | None,
        rate: float | None,
    ) -> ThresholdRule:
        """The rule of a request; without a calibration, the one that is stored with the model, if there is one.

        Raises:
            RequestError: for a rate without a calibration.
            CalibrationError: for a given calibration of another model or distance.
        """
        chosen = calibration_of(metric, calibration, distance)
        name: PathLike | Calibration = STORED
        if calibration is None:
            chosen = _stored(metric, distance)
        else:
            name = calibration
        if rate is not None and chosen is None:
            raise RequestError(
                f"rate chooses a threshold of a calibration, and {metric.short_name} has none for the distance "
                f"{distance!r}: give calibration= as well"
            )
        return cls(threshold, chosen, name, PAIR_RATE if rate is None else rate)

    def of_subject(
        self, subject: Subject, encoder: Encoder, aggregate: Aggregate, is_calibrated: bool
    ) -> SubjectThreshold:
        """The threshold that was given, else the subject's own, else the calibration's, else none.

        Args:
            is_calibrated: whether the calibration is of the subject's encoder.
        """
        limit = self.given
        if isinstance(limit, Mapping):
            limit = limit.get(subject.name)
        if limit is not None:
            return SubjectThreshold(limit, "given")
        own = subject.own_threshold(encoder.distance, aggregate)
        if own is not None:
            return SubjectThreshold(own, subject.threshold_source)
        if not is_calibrated:
            return SubjectThreshold()
        return self.of_calibration()

    def of_calibration(self) -> SubjectThreshold:
        """The calibration's threshold, none without a calibration."""
        if self.calibration is None or not self.calibration.thresholds:
            return SubjectThreshold()
        listed = self.calibration.threshold_at(self.rate)
        return SubjectThreshold(listed.distance, threshold_source(self.name, listed))


def thresholds_of(
    metric: Embedder,
    roster: Sequence[Subject],
    encoders: Sequence[Encoder],
    distance: str,
    aggregate: Aggregate,
    rule: ThresholdRule,
) -> tuple[SubjectThreshold, ...]:
    """The threshold of each subject.

    Raises:
        RequestError: for a given threshold below 0, or of an unknown subject.
    """
    names = [subject.name for subject in roster]
    limits = rule.given
    if limits is not None and not isinstance(limits, Mapping):
        limits = dict.fromkeys(names, limits)
    for name, limit in (limits or {}).items():
        if name not in names:
            raise RequestError(f"threshold for {name!r}: the subjects are called {', '.join(names)}")
        if not 0 <= limit < math.inf:
            raise RequestError(f"the threshold of {name} must be a distance of at least 0, got {limit}")

    own_signature = metric.signature(distance)
    thresholds = []
    for subject, encoder in zip(roster, encoders, strict=True):
        is_calibrated = encoder.signature == own_signature
        thresholds.append(rule.of_subject(subject, encoder, aggregate, is_calibrated))
    return tuple(thresholds)


def _stored(metric: Embedder, distance: str) -> Calibration | None:
    """The calibration that is saved with the model's weights; None if it has none that fits."""
    try:
        stored = metric.calibration
    except CalibrationError:  # of other weights, such as before a training step
        return None
    if stored is None or stored.distance != distance or not stored.thresholds:
        return None
    return stored
