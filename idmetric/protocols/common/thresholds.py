"""The threshold of a model's calibration, as a similarity: the same for every protocol that decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idmetric.calibration.apply import Calibration
from idmetric.calibration.apply import read as read_calibration
from idmetric.models.embedder import Embedder
from idmetric.protocols.common.scorers import Settings


def by_label(taus: Sequence[float], label: str) -> dict[str, float]:
    """Similarities that a user gives as thresholds, each by its label, such as "SCR@0.5" of "SCR@".

    Raises:
        ValueError: for one that is not a finite number.
    """
    for tau in taus:
        if not math.isfinite(tau):
            raise ValueError(f"{tau:g} is not a threshold: a similarity is a number, such as 0.5")
    return {f"{label}{tau:g}": tau for tau in taus}


def calibrated(model: Any, settings: Settings, file: Path | None = None, rate: float = 0.05) -> float | None:
    """The similarity that a share of the pairs of two identities reach in the calibration.

    Args:
        file: the calibration to use in place of the model's own.
        rate: this share, one of the calibration's false-accept rates.

    Returns:
        None for baselines, and for models without a calibration for this distance and treatment of masks.

    Raises:
        CalibrationError: for a file of another model, distance or way of masking.
        ValueError: if the calibration has no threshold at this false-accept rate.
    """
    if not isinstance(model, Embedder):
        return None
    found: Calibration | None = model.calibration
    if file is not None:
        found = read_calibration(file)
        found.check_model(model.calibrated_model())
        found.check_distance(settings.distance)
        found.check_outside(settings.outside)
    elif found is None or (found.distance, found.outside) != (settings.distance, settings.outside):
        return None
    rates = [float(t["false_accept_rate"]) for t in found.thresholds]
    if rate not in rates:
        raise ValueError(f"--rate {rate:g}: the calibration has thresholds at {', '.join(map(str, rates))}")
    return 1 - float(found.thresholds[rates.index(rate)]["distance"])
