"""The largest distance at which a region counts as a subject, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from idmetric.matching.encoders import Encoder
from idmetric.matching.subjects import Subject
from idmetric.metric.distance import distance_matrix
from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath
from idmetric.scoring.calibration import Calibration, CalibrationError, calibration_of
from idmetric.scoring.references import Aggregate, leave_one_out
from idmetric.scoring.scores import OWN_PHOTOS, Limit

FEWEST = 5  # references, below which the farthest says little: many genuine photos would lie beyond it

Thresholds = float | Limit | Mapping[str, float | Limit] | None  # of all subjects, or by name


def limits_of(
    metric: Embedder,
    roster: Sequence[Subject],
    encoders: Sequence[Encoder],
    distance: str,
    aggregate: Aggregate,
    *,
    threshold: Thresholds,
    calibration: StrPath | Calibration | None,
) -> list[Limit | None]:
    """The limit of each subject: the one in `threshold`, else the larger one of its own photos' and the calibration's.

    The calibration is for the subjects that `metric` itself encodes. It is read only if it was asked for, or if one of
    them was given no limit.

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
            is_calibrated = encoder.signature == own_signature
            limit = larger(own_limit(subject, encoder.distance, aggregate), by_pairs() if is_calibrated else None)
        limits.append(limit)
    return limits


def own_limit(subject: Subject, distance: str, aggregate: Aggregate = "best") -> Limit | None:
    """The largest distance of a reference to the others (leave-one-out), in which each picture counts once.

    None for fewer than `FEWEST` pictures: of few photos, many genuine ones would lie beyond the farthest.
    """
    if len(subject.pictures) < FEWEST:
        return None
    matrix = distance_matrix(subject.embedding[subject.pictures], None, distance).double().cpu().numpy()
    return Limit(float(leave_one_out(matrix, aggregate).max()), OWN_PHOTOS)


def larger(own: Limit | None, by_pairs: Limit | None) -> Limit | None:
    """The larger of two limits, either of which may be missing.

    A further genuine photo lies beyond the limit of n photos in 1 of n + 1 cases, and a photo in a composite more often
    (benchmarks/states.py).
    """
    if own is None or by_pairs is None:
        return own or by_pairs
    return own if own.distance >= by_pairs.distance else by_pairs


def calibrated_limit(metric: Embedder, distance: str, calibration: StrPath | Calibration | None) -> Limit | None:
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
