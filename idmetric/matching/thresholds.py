"""The largest distance at which a region counts as a subject, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from idmetric.matching.subjects import Subject
from idmetric.metric.distance import distance_matrix
from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import RequestError
from idmetric.scoring.calibration import Calibration, calibration_of
from idmetric.scoring.references import Aggregate, leave_one_out
from idmetric.scoring.scores import OWN_PHOTOS, Limit

FEWEST = 5  # references, below which the farthest says little: many genuine photos would lie beyond it

# of all subjects, or by name; or by the pairs of a calibration
Thresholds = float | Limit | Mapping[str, float | Limit] | Calibration | None


def limits_of(
    metric: Embedder, roster: Sequence[Subject], distance: str, aggregate: Aggregate, threshold: Thresholds
) -> dict[str, Limit | None]:
    """The limit of each subject: the one in `threshold`, else the larger one of its own photos' and the calibration's.

    The calibration's has a false-accept rate of 5 %.

    Args:
        threshold: as in `match`.

    Raises:
        RequestError: for a given threshold below 0, or of an unknown subject.
        CalibrationError: for a given calibration of another model or distance, or one without that rate.
    """
    names = [subject.name for subject in roster]
    by_name: Mapping[str, float | Limit] = {}
    if isinstance(threshold, Mapping):
        by_name = threshold
    elif isinstance(threshold, float | int | Limit):
        by_name = dict.fromkeys(names, threshold)
    for name, value in by_name.items():
        if name not in names or not 0 <= Limit.of(value).distance < math.inf:
            listed = ", ".join(names)
            raise RequestError(f"threshold {value} of {name!r}: give distances of at least 0 for subjects of {listed}")

    by_pairs = None
    calibration = None
    if isinstance(threshold, Calibration):
        calibration = threshold
    if set(names) - set(by_name):
        chosen = calibration_of(metric, calibration, distance, outside=None)
        if chosen is not None and chosen.thresholds:
            by_pairs = chosen.threshold_at()
    limits: dict[str, Limit | None] = {}
    for subject in roster:
        if subject.name in by_name:
            limits[subject.name] = Limit.of(by_name[subject.name])
        else:
            limits[subject.name] = larger(own_limit(subject, distance, aggregate), by_pairs)
    return limits


def own_limit(subject: Subject, distance: str, aggregate: Aggregate = "best") -> Limit | None:
    """The largest distance of a reference to the others (leave-one-out), in which each picture counts once.

    None for fewer than `FEWEST` pictures: of few photos, many genuine ones would lie beyond the farthest.
    """
    if len(subject.pictures) < FEWEST:
        return None
    photos = subject.embedding[subject.pictures]
    matrix = distance_matrix(photos, None, distance).double().cpu()
    farthest = leave_one_out(matrix.numpy(), aggregate).max()
    return Limit(float(farthest), OWN_PHOTOS)


def larger(own: Limit | None, by_pairs: Limit | None) -> Limit | None:
    """The larger of two limits, either of which may be missing.

    A further genuine photo lies beyond the limit of n photos in 1 of n + 1 cases, and a photo in a composite more often
    (benchmarks/states.py).
    """
    if own is None or by_pairs is None:
        return own or by_pairs
    return own if own.distance >= by_pairs.distance else by_pairs
