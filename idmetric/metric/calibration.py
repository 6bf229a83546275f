"""Calibration: from a distance to the probability that two images show the same identity.

A calibration is made for one model, distance and treatment of the background (`idmetric eval calibrate`,
docs/use/reading.md), kept as JSON, and refused for any other. Applying one needs NumPy alone.

    metric.calibration.probability(metric("ref.jpg", "gen.png"))  # its own, or after `metric.calibrate_with(file)`

The curve and the thresholds are of the similarity score = 1 - distance.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.embedding import NonFiniteError
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import StrPath, accept, replacing

# The curve from a score to the probability of the same identity: `fitting` fits it, `Calibration` applies it.
#
# NumPy alone: neither torch nor scikit-learn is needed to apply one.

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Isotonic:
    """Linear between knots and constant beyond them.

    Attributes:
        scores: increasing (K,). probabilities: of these scores, increasing, above 0 and below 1.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        x = np.asarray(self.scores, dtype=np.float64)
        p = np.asarray(self.probabilities, dtype=np.float64)
        is_list = x.ndim == 1 and x.size > 0 and x.shape == p.shape
        is_increasing = np.isfinite(x).all() and np.all(np.diff(x) > 0)
        is_monotone = np.all(np.diff(p) > 0)  # False for NaN
        if not (is_list and is_increasing and is_monotone and 0 < p.min() <= p.max() < 1):
            raise ValueError("scores must increase, and as many probabilities must increase and lie between 0 and 1")

    def probability(self, scores: ArrayLike) -> Array:
        """Return the probability of the same identity for scores of any shape."""
        x = np.asarray(scores, dtype=np.float64)
        probabilities: Array = np.asarray(np.interp(x, self.scores, self.probabilities))
        return probabilities


Answer = Literal["same", "unsure", "different"]
FORMAT = 1
KIND = "idmetric-calibration"
PAIR_RATE = 0.05  # false-accept rate of decisions about one image and one subject
# Of decisions that compare an image with many: a stranger stays unknown only if no comparison accepts it. Of 100
# independent ones, 5 % each leave 0.95**100 = 0.6 % of the strangers unknown, 1 % leaves 37 %.
SEARCH_RATE = 0.01
SURE = 0.9  # least P(same) of the answer "same"; 1 - SURE is the largest of "different"
_RATE_TOLERANCE = 1e-9  # 0.1 is the rate 0.1 - 1e-17, too


class CalibrationError(ValueError):
    """A calibration that is unreadable, or made for other scores; the message says why, and how to fix it."""


class CalibrationWarning(UserWarning):
    """A probability does not rest on photos."""


@dataclass(frozen=True)
class Model:
    """The model that a calibration is bound to.

    Attributes:
        kind: the model's class. settings: the ones that change scores (`Embedder.label` without its name).
        revision: the exact weights, see `checkpoint.revision_of`.
        files: a hash of the model folder's weights and settings, equal in a folder and on the Hub; None where unknown.
        resolution: height x width at which images are seen.
    """

    kind: str
    settings: str
    revision: str
    files: str | None
    resolution: str

    def __str__(self) -> str:
        return f"{self.kind}{self.settings}@{self.revision or 'none'}/{self.resolution}"

    def is_same(self, model: Model) -> bool:
        """Whether scores of both models mean the same; a model without a revision equals no other."""
        with_same_weights = replace(model, revision=self.revision, files=self.files)
        if self != with_same_weights:
            return False
        if self.revision and self.revision == model.revision:
            return True
        return bool(self.files) and self.files == model.files


@dataclass(frozen=True)
class Threshold:
    """The largest distance that counts as the same identity, at a false-accept rate.

    Attributes:
        rate: share of the calibration's pairs of two identities that are at most this far apart.
        wanted: the rate that was asked for; it is higher than `rate` where the calibration does not list it.
    """

    distance: float
    rate: float
    wanted: float

    def __str__(self) -> str:
        """Its rate, such as "5 % of pairs", or "1 % of pairs, the nearest below 5 %"."""
        text = f"{100 * self.rate:g} % of pairs"
        if self.wanted - self.rate > _RATE_TOLERANCE:
            text += f", the nearest below {100 * self.wanted:g} %"
        return text


@dataclass(frozen=True)
class Calibration:
    """A curve with the facts that its use depends on.

    Attributes:
        curve: from score = 1 - distance to probability.
        model: the only model that it is for. name: the model's name at that time.
        distance: see `idmetric.metric.distance`.
        outside: "all" for whole images, else the treatment of pixels outside the subject's mask.
        thresholds: for each chosen false-accept rate: `false_accept_rate`, `distance` with its interval `low` and
            `high`, and the measured rates.
        held_out: its quality on identities that it was not fitted to.
        data: its images and pairs; `origin` is "photos", "rendered" or "generated".
        versions: of the package and scikit-learn.
    """

    curve: Isotonic
    model: Model
    distance: str
    outside: str = "all"
    name: str = ""
    thresholds: tuple[Mapping[str, Any], ...] = ()
    held_out: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for threshold in self.thresholds:
            for name in ("false_accept_rate", "distance"):
                accept(f"{name} of a threshold", threshold.get(name), float)

    def probability(self, distance: ArrayLike) -> Array:
        """Probability of the same identity at distances of any shape, if half of the pairs show one identity.

        Raises:
            NonFiniteError: for a distance that is NaN or infinite.
        """
        distances = np.asarray(distance, dtype=np.float64)
        if not np.isfinite(distances).all():
            raise NonFiniteError("a distance that is NaN or infinite has no probability: embed its images again")
        return self.curve.probability(1 - distances)

    def answer(self, distance: float) -> Answer:
        """Whether two images show the same identity, in a word.

        "same" from a probability of `SURE` on, "different" up to 1 - `SURE`, "unsure" between them.

        Args:
            distance: of one pair; see `probability` for its errors.
        """
        probability = float(self.probability(distance))
        if probability >= SURE:
            return "same"
        if probability <= 1 - SURE:
            return "different"
        return "unsure"

    def threshold_at(self, rate: float = PAIR_RATE) -> Threshold:
        """The threshold at a false-accept rate: of the listed rates, the nearest one at or below it.

        Args:
            rate: share of the pairs of two identities that may be accepted, between 0 and 1.

        Raises:
            CalibrationError: if all listed rates are higher, or none is listed. ValueError: if rate is not in (0, 1).
        """
        if not 0 < rate < 1:
            raise ValueError(f"a false-accept rate is a share of pairs, between 0 and 1, such as 0.05, got {rate:g}")
        nearest: Threshold | None = None
        for threshold in self.thresholds:
            listed = float(threshold["false_accept_rate"])
            is_allowed = listed <= rate + _RATE_TOLERANCE
            if is_allowed and (nearest is None or listed > nearest.rate):
                nearest = Threshold(float(threshold["distance"]), listed, rate)
        if nearest is None:
            listed_rates = sorted(float(threshold["false_accept_rate"]) for threshold in self.thresholds)
            names = ", ".join(f"{listed:g}" for listed in listed_rates)
            raise CalibrationError(
                f"the calibration has no threshold at a false-accept rate of {rate:g} or less, only at "
                f"{names or 'none'}: choose one of these, or make one, idmetric eval calibrate --rates {rate:g}"
            )
        return nearest

    @property
    def rests_on_photos(self) -> bool:
        """Whether it was made from photos; False where its file does not record the origin."""
        return self.data.get("origin") == "photos"

    @property
    def basis(self) -> str:
        """The sentence on the images behind the calibration, to show with every probability."""
        origin = self.data.get("origin")
        if self.rests_on_photos:
            return f"P(same) rests on photos: {self.data.get('about') or 'of a data set without a description'}"
        images = "images of unrecorded origin"
        if origin == "rendered":
            images = "rendered objects, not on photos"
        elif origin == "generated":
            images = "generated images, not on photos"
        return (
            f"P(same) rests on {images}, and may be far off on your images; calibrate on labeled photos of your own "
            "(idmetric eval calibrate)"
        )

    def warn(self) -> None:
        """Warn with `basis` unless it rests on photos; Python shows the warning once for each calling line."""
        if not self.rests_on_photos:
            warnings.warn(self.basis, CalibrationWarning, stacklevel=3)

    def check_model(self, model: Model) -> None:
        """Raise a CalibrationError for a model that it was not made for."""
        if not self.model.is_same(model):
            raise CalibrationError(
                f"the calibration was made for {self.name or self.model.kind} ({self.model}), this model is {model}: "
                "scores of other weights or settings mean something else. Make one for it: idmetric eval calibrate"
            )

    def check_distance(self, distance: str) -> None:
        """Raise a CalibrationError for another distance."""
        if distance != self.distance:
            raise CalibrationError(
                f"the calibration was made for the distance {self.distance!r}, not {distance!r}: ask for that, or make "
                f"one: idmetric eval calibrate --distance {distance}"
            )

    def check_outside(self, outside: str) -> None:
        """Raise a CalibrationError for subjects alone if it was made for whole images, and vice versa."""
        if outside != self.outside:
            raise CalibrationError(
                f"the calibration was made for {_images(self.outside)}, not for {_images(outside)}: make one for "
                "these, idmetric eval calibrate with or without --subject"
            )

    # Files

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": KIND,
            "format": FORMAT,
            "score": "1 - distance",
            "method": "isotonic",
            **asdict(self),
        }

    def write(self, path: StrPath) -> None:
        """Write the JSON file atomically; creates its folder."""
        with replacing(Path(path), parents=True) as temporary:
            temporary.write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_calibration(path: StrPath) -> Calibration:
    """The calibration in a file.

    Raises:
        CalibrationError: if the file is absent, not a calibration, or of a later format; the message names it.
    """
    from idmetric.metric.checkpoints.format import read_json

    name = os.fspath(path)
    try:
        return parse_calibration(read_json(name), name)
    except CheckpointError as error:
        raise CalibrationError(str(error)) from error


def parse_calibration(record: Mapping[str, Any], name: str) -> Calibration:
    """The calibration in a JSON object (`Calibration.to_json`); errors as `read`.

    Args:
        name: of its file, for messages.
    """
    if record.get("kind") != KIND:
        raise CalibrationError(f"{name!r} is not a calibration: `idmetric eval calibrate` writes them")
    if record.get("format") != FORMAT:
        raise CalibrationError(f"{name!r} has format {record.get('format')}; this version of idmetric reads {FORMAT}")

    try:
        values: dict[str, Any] = {}
        for field in fields(Calibration):
            values[field.name] = record[field.name]
        curve = {key: tuple(numbers) for key, numbers in values["curve"].items()}
        values["curve"] = Isotonic(**curve)
        values["model"] = Model(**values["model"])
        values["thresholds"] = tuple(values["thresholds"])
        for key in ("held_out", "data", "versions"):
            values[key] = dict(values[key])
        return Calibration(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CalibrationError(f"{name!r} is a damaged calibration: {type(error).__name__}: {error}") from error


def _images(outside: str) -> str:
    if outside == "all":
        return "whole images"
    return f"subjects cut by masks ({outside})"


# Calibrations of a model, found and checked. Imported when a calibration is asked for.
