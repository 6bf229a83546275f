"""From distances to probabilities and thresholds.

`apply` holds and applies a calibration, `curves` its curves; `fitting` fits them to labeled pairs, `quality` measures
their probabilities, `thresholds` chooses decisions. Applying needs NumPy alone, fitting scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.calibration.apply import Calibration, CalibrationError, CalibrationWarning
    from idmetric.calibration.fitting import METHODS, Flat, Method, fit, held_out
    from idmetric.calibration.quality import Bin, brier_score, expected_calibration_error, log_loss, reliability
    from idmetric.calibration.thresholds import Threshold, accepted, threshold_intervals

_LAZY = {
    **dict.fromkeys(("Calibration", "CalibrationError", "CalibrationWarning"), "idmetric.calibration.apply"),
    **dict.fromkeys(("METHODS", "Flat", "Method", "fit", "held_out"), "idmetric.calibration.fitting"),
    **dict.fromkeys(("Bin", "brier_score", "expected_calibration_error", "log_loss", "reliability"),
                    "idmetric.calibration.quality"),
    **dict.fromkeys(("Threshold", "accepted", "threshold_intervals"), "idmetric.calibration.thresholds"),
}  # fmt: skip

__all__ = [
    "METHODS", "Bin", "Calibration", "CalibrationError", "CalibrationWarning", "Flat", "Method", "Threshold",
    "accepted", "brier_score", "expected_calibration_error", "fit", "held_out", "log_loss", "reliability",
    "threshold_intervals",
]  # fmt: skip

__getattr__, __dir__ = lazy(__name__, _LAZY)
