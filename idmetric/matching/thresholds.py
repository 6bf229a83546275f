"""The largest distance at which a region counts as a subject, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from idmetric.matching.encoders import Encoder
from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import RequestError
from idmetric.metric.subject import Subject
from idmetric.scoring.calibration import Calibration, CalibrationError, calibration_of
from idmetric.scoring.limits import Limit, limit_of_subject
from idmetric.scoring.references import Aggregate, own_limit
from idmetric.scoring.scores import PathLike

Thresholds = float | Limit | Mapping[str, float | Limit] | None  # of all subjects, or by name


def limits_of(
    metric: Embedder,
    roster: Sequence[Subject],
    encoders: Sequence[Encoder],
    distance: str,
    aggregate: Aggregate,
    *,
    threshold: Thresholds,
    calibration: PathLike | Calibration | None,
) -> list[Limit | None]:
    """The limit of each subject: the one in `threshold`, else its own or the calibration's, see `limit_of_subject`.

    The calibration is for the subjects that `metric` itself encodes. It is read only if it was asked for, or if one of
    them was given no limit, neither here nor when it was made.

    Args:
        threshold, calibration: as in `match`.

    Raises:
        RequestError: for a given threshold below 0, or of an unknown subject, and as `calibrated_limit`.
        CalibrationError: as `calibrated_limit`.
    """
    given_limits = _given(threshold, [subject.name for subject in roster])
    own_signature = metric.signature(distance)

    @cache
    def by_pairs() -> Limit | None:
        return calibrated_limit(metric, distance, calibration)

    if calibration is not None:
        by_pairs()  # which refuses one that does not fit

    limits = []
    for subject, encoder in zip(roster, encoders, strict=True):
        limit = given_limits.get(subject.name)
        if limit is None:
            is_calibrated = encoder.signature == own_signature and subject.threshold is None
            limit = limit_of_subject(
                own=own_limit(subject, encoder.distance, aggregate), by_pairs=by_pairs() if is_calibrated else None
            )
        limits.append(limit)
    return limits


def calibrated_limit(metric: Embedder, distance: str, calibration: PathLike | Calibration | None) -> Limit | None:
    """The limit by pairs of identities, at a false-accept rate of 5 %.

    Args:
        calibration: default the one that is stored with the model.

    Returns:
        None without a calibration, and if the stored one has no threshold at 5 % or below.

    Raises:
        CalibrationError: for a given calibration of another model or distance, or without a threshold at 5 % or below.
    """
    chosen = calibration_of(metric, calibration, distance, outside=None)
    if chosen is None or not chosen.thresholds:
        return None
    try:
        return chosen.threshold_at()
    except CalibrationError:
        if calibration is not None:
            raise
        return None


def _given(threshold: Thresholds, names: Sequence[str]) -> dict[str, Limit]:
    """The given limits, by the name of the subject."""
    if threshold is None:
        return {}
    thresholds = threshold if isinstance(threshold, Mapping) else dict.fromkeys(names, threshold)
    limits = {name: Limit.of(value) for name, value in thresholds.items()}
    for name, limit in limits.items():
        if name not in names:
            raise RequestError(f"threshold for {name!r}: the subjects are called {', '.join(names)}")
        if not 0 <= limit.distance < math.inf:
            raise RequestError(f"the threshold of {name} must be a distance of at least 0, got {limit.distance}")
    return limits
