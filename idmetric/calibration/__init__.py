"""From distances to probabilities and thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idmetric.io.lazy import lazy

if TYPE_CHECKING:
    from idmetric.calibration.apply import Calibration, CalibrationError, CalibrationWarning

_LAZY = {
    "Calibration": "idmetric.calibration.apply",
    "CalibrationError": "idmetric.calibration.apply",
    "CalibrationWarning": "idmetric.calibration.apply",
}

__all__ = ["Calibration", "CalibrationError", "CalibrationWarning"]

__getattr__, __dir__ = lazy(__name__, _LAZY)
