"""The calibration that a request names: a file, one in memory, or the model's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from idmetric.metric.calibration import PAIR_RATE, Calibration, CalibrationError, Threshold
from idmetric.metric.errors import RequestError
from idmetric.scoring.limits import Limit
from idmetric.scoring.scores import PathLike

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder

STORED = "stored"  # names the calibration that is saved with the model's weights


def calibration_of(metric: Embedder, calibration: PathLike | Calibration | None, distance: str) -> Calibration | None:
    """Read the calibration that a file or "stored" names, and check that it fits the model and the distance."""
    if calibration is None:
        return None
    if calibration == STORED:
        chosen = metric.calibration
        if chosen is None:
            raise RequestError(
                f"{metric.short_name} has no calibration next to its weights: make one, `idmetric eval calibrate`"
            )
    else:
        from idmetric.metric.calibrated import checked_calibration

        chosen = checked_calibration(calibration, metric, metric.label, metric.resolution)
    chosen.check_distance(distance)
    return chosen


def threshold_source(calibration: PathLike | Calibration, threshold: Threshold) -> str:
    """The source of a threshold in words, such as "stored calibration, 5 % of pairs"."""
    if isinstance(calibration, Calibration):
        name = "given calibration"
    elif calibration == STORED:
        name = "stored calibration"
    else:
        name = os.path.basename(os.fspath(calibration))
    return f"{name}, {threshold}"


def limit_of(calibration: PathLike | Calibration | None, chosen: Calibration | None) -> Limit | None:
    """The threshold of a calibration at 5 % of pairs, for decisions about one image and one subject.

    Args:
        calibration: as the request names it. chosen: what `calibration_of` read.

    Returns:
        None without a calibration, and if it lists no threshold at 5 % or less, which probabilities do not need.
    """
    if calibration is None or chosen is None:
        return None
    try:
        return limit_at(chosen, PAIR_RATE, calibration)
    except CalibrationError:
        return None


def limit_at(chosen: Calibration, rate: float, calibration: PathLike | Calibration) -> Limit:
    """The threshold of a calibration at a false-accept rate, see `Calibration.threshold_at`.

    Args:
        calibration: its name, as in `threshold_source`.
    """
    threshold = chosen.threshold_at(rate)
    return Limit(threshold.distance, threshold_source(calibration, threshold), threshold.rate)
