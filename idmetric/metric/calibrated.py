"""Calibrations of a model, found and checked. Imported when a calibration is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from idmetric.metric.calibration import Calibration, Model, read_calibration
from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import content_digest
from idmetric.metric.files import StrPath


def calibration_of(chosen: Calibration | None, weights: Any, label: str, resolution: str) -> Calibration | None:
    """The calibration of a model: the one that was chosen or found before, else that in its folder, or None.

    Args:
        weights: the model, an `Embedder`, with its label and resolution.

    Raises:
        CalibrationError: if the file is damaged, or was made for other weights.
    """
    calibration = chosen
    if calibration is None and weights.folder is not None:
        path = weights.folder / checkpoint.CALIBRATION
        if path.is_file():
            calibration = checked_calibration(path, weights, label, resolution)
    if calibration is None:
        return None

    model = model_of(weights, label, resolution, files=False)
    if weights.has_changed() or calibration.model.settings != model.settings:
        calibration.check_model(model)  # which fails: the weights or `decode` have changed
    return calibration


def checked_calibration(source: StrPath | Calibration, weights: Any, label: str, resolution: str) -> Calibration:
    """A calibration, or the one in a file, for this model: CalibrationError if it was made for another."""
    calibration = source if isinstance(source, Calibration) else read_calibration(source)
    if not calibration.model.is_same(model_of(weights, label, resolution, files=False)):  # mostly the revision suffices
        calibration.check_model(model_of(weights, label, resolution))
    return calibration


def model_of(weights: Any, label: str, resolution: str, files: bool = True) -> Model:
    """The model that a calibration is bound to; with `files`, also their hash (a second for each gigabyte)."""
    content = None
    if files and weights.folder is not None and not weights.has_changed():
        content = _content_of(weights.folder)
    kind, _, name_and_settings = label.partition(":")
    settings = name_and_settings.removeprefix(weights.short_name)
    return Model(kind, settings, weights.revision, content, resolution)


def write_beside(calibration: Calibration | None, saved: Path, revision: str) -> None:
    """Write a calibration into the folder to which the weights that it was made for were just saved.

    Args:
        saved, revision: the folder, and its name of the weights.
    """
    if calibration is not None:
        model = replace(calibration.model, revision=revision, files=_content_of(saved))
        replace(calibration, model=model).write(saved / checkpoint.CALIBRATION)


def _content_of(folder: Path) -> str | None:
    """The name of exactly these weights and settings by their content, the same in a folder and on the Hub.

    None where the folder is not one of weights and config.json, as `save_pretrained` makes it. Reads the weights: a
    second or so for each gigabyte.
    """
    weights = folder / checkpoint.WEIGHTS
    config = folder / checkpoint.CONFIG
    if not (weights.is_file() and config.is_file()):
        return None
    return content_digest(weights, config)
