"""From a distance to the probability that two images show one identity, and to a word.

    calibration = calibration_of(metric)  # the one in the folder of its weights, or None
    calibration.probability(distances)
    calibration.answer(0.31)  # "same", "unsure" or "different"

`idmetric eval calibrate` makes a calibration for one model, distance and way of masking (docs/use/reading.md); it is
refused for any other. The curve is of the similarity 1 - distance.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.metric.errors import NonFiniteError
from idmetric.metric.files import StrPath, accept, read_json_file, replacing
from idmetric.metric.ties import comparable
from idmetric.scoring.scores import Limit, Record
from idmetric.tables import rounded

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder

Answer = Literal["same", "unsure", "different"]
Array = NDArray[np.float64]
KIND = "idmetric-calibration"
STORED = "stored"  # names the calibration in the folder of the model's weights
SURE = 0.9  # least P(same) of the answer "same"; 1 - SURE is the largest of "different"
PAIR_RATE = 0.05  # false-accept rate of decisions about one image and one subject
# Of decisions that compare an image with many: a stranger stays unknown only if no comparison accepts it. Of 100
# independent ones, 5 % each leave 0.95**100 = 0.6 % of the strangers unknown, 1 % leaves 37 %.
SEARCH_RATE = 0.01
_MOST_BYTES = 2**24  # of a file


class CalibrationError(ValueError):
    """A calibration that is unreadable, or made for other scores; the message says why, and how to fix it."""


@dataclass(frozen=True)
class Isotonic:
    """A curve from scores to probabilities: linear between knots and constant beyond them.

    Attributes:
        scores: increasing (K,). probabilities: of these scores, increasing, above 0 and below 1.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        curve = (self.scores, self.probabilities)
        knots = np.array(curve, dtype=np.float64)  # ValueError for other numbers of one than of the other
        is_finite = knots.size > 0 and np.isfinite(knots).all()
        increases = is_finite and (np.diff(knots) > 0).all()
        if not increases or knots[1, 0] <= 0 or knots[1, -1] >= 1:
            raise ValueError("scores must increase, and as many probabilities must increase and lie between 0 and 1")

    def probability(self, scores: ArrayLike) -> Array:
        """The probability of the same identity for scores of any shape."""
        x = np.asarray(scores, np.float64)
        probabilities = np.interp(x, self.scores, self.probabilities)
        return np.asarray(probabilities)


@dataclass(frozen=True)
class Calibration:
    """A curve with the facts that its use depends on.

    Attributes:
        curve: from the similarity 1 - distance to the probability.
        model: `Embedder.calibration_id` of the only model that it is for. name: the model's name at that time.
        distance: see `idmetric.metric.distance`. outside: "all" for whole images, else what replaced the pixels outside
            the subject's mask.
        thresholds: for each chosen false-accept rate: `false_accept_rate`, `distance` with its interval `low` and
            `high`, and the measured rates.
        held_out: its quality on identities that it was not fitted to.
        data: its images and pairs; `origin` is "photos", "rendered" or "generated".
        versions: of the package and scikit-learn.
        source: in words, where it was found.
    """

    curve: Isotonic
    model: str
    distance: str
    outside: str = "all"
    name: str = ""
    thresholds: tuple[Mapping[str, Any], ...] = ()
    held_out: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    source: str = field(default="given calibration", compare=False)

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
        """Same from a probability of `SURE` on, different up to 1 - `SURE`, unsure between them."""
        probability = float(self.probability(distance))
        if probability >= SURE:
            return "same"
        if probability <= 1 - SURE:
            return "different"
        return "unsure"

    @property
    def basis(self) -> str:
        """The sentence on the images behind the calibration, to show once with its answers."""
        origin = self.data.get("origin")
        if origin == "photos":
            about = self.data.get("about") or self.name
            return f"same, unsure or different by a calibration on photos: {about}"
        images = f"{origin or 'unrecorded'} images, not on photos"
        return f"same, unsure or different by a calibration on {images}, and may be far off on yours"

    def threshold_at(self, rate: float = PAIR_RATE) -> Limit:
        """The largest distance that counts as the same identity, at the nearest listed rate at or below this one.

        Args:
            rate: share of the pairs of two identities that may be accepted.

        Raises:
            CalibrationError: if no such rate is listed.
        """
        if not 0 < rate < 1:
            raise ValueError(f"a false-accept rate is a share of pairs, such as 0.05, got {rate:g}")
        limits = []
        for threshold in self.thresholds:
            listed_rate = round(float(threshold["false_accept_rate"]), 9)
            if listed_rate <= round(rate, 9):
                source = f"{self.source}, {100 * listed_rate:g} % of pairs"
                limits.append(Limit(threshold["distance"], source, listed_rate))
        if not limits:
            raise CalibrationError(
                f"the calibration lists no threshold at a false-accept rate of {rate:g} or less: make one, "
                f"idmetric eval calibrate --rates {rate:g}"
            )
        return max(limits, key=lambda limit: limit.rate or 0)

    def misfit(self, metric: Embedder, distance: str, outside: str | None) -> str:
        """Why it does not hold for a model, distance and way of masking, with the fix; "" if it does."""
        again = "make one for it: idmetric eval calibrate"
        if self.model != metric.calibration_id():
            made_for = f"{self.name} ({self.model})"
            return f"the calibration was made for {made_for}, this model is {metric.model_id}: {again}"
        if distance != self.distance:
            return f"the calibration was made for the distance {self.distance!r}, not {distance!r}: {again}"
        if outside not in (None, self.outside):
            return f"the calibration was made for pixels outside masks {self.outside!r}, not {outside!r}: {again}"
        return ""

    def write(self, path: StrPath) -> None:
        """Write the JSON file atomically; creates its folder."""
        record = {"kind": KIND, **asdict(self)}
        del record["source"]
        text = json.dumps(record, indent=2, allow_nan=False) + "\n"
        with replacing(Path(path), parents=True) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, path: StrPath) -> Calibration:
        """Read the JSON file.

        Raises:
            CalibrationError: naming the file, if it is absent, damaged or not a calibration.
        """
        try:
            record = read_json_file(path, most=_MOST_BYTES)
        except (OSError, ValueError) as error:
            raise CalibrationError(f"cannot read {str(path)!r}: {error}") from error
        if not isinstance(record, dict) or record.pop("kind", None) != KIND:
            raise CalibrationError(f"{str(path)!r} is not a calibration: `idmetric eval calibrate` writes them")
        try:
            curve = record["curve"]
            record["curve"] = Isotonic(tuple(curve["scores"]), tuple(curve["probabilities"]))
            record["thresholds"] = tuple(record["thresholds"])
            return cls(**record, source=Path(path).name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise CalibrationError(f"{str(path)!r} is a damaged calibration: {problem}") from error


def calibration_of(
    metric: Embedder, given: StrPath | Calibration | None = None, distance: str = "cls", outside: str | None = "all"
) -> Calibration | None:
    """The calibration of a model for a distance and a way of masking.

    Args:
        outside: "all" for whole images, as in `Embedder.embed` for masked ones; None: not checked.
        given: a file, one in memory, or "stored" for the one in the folder of the model's weights. None: that one as
            well, if there is one and it holds for these.

    Raises:
        CalibrationError: for a given one that is damaged, missing or does not hold.
    """
    if given is None or given == STORED:
        folder = metric.folder
        path = None if folder is None else folder / "calibration.json"
        if path is None or not path.is_file():
            if given is None:
                return None
            raise CalibrationError(f"{metric.name} has no calibration in its folder: make one, idmetric eval calibrate")
        try:
            calibration = replace(Calibration.read(path), source="stored calibration")
        except CalibrationError as error:
            if given == STORED:
                raise
            warnings.warn(f"scores have no answers: {error}", stacklevel=3)
            return None
    elif isinstance(given, Calibration):
        calibration = given
    else:
        calibration = Calibration.read(given)

    problem = calibration.misfit(metric, distance, outside)
    if problem and given is not None:
        raise CalibrationError(problem)
    return None if problem else calibration


def judged(
    row: Record, signature: Mapping[str, str], calibration: Calibration | None, threshold: float | None
) -> Record:
    """A row with the one answer, the probability behind it, and the signature, in the order of the columns."""
    row = rounded(row)
    distance = row["distance"]
    result: Record = {"rank": 0, "distance": distance}
    if threshold is not None:
        passes = comparable(distance) <= comparable(threshold)
        result["answer"] = "pass" if passes else "fail"
    elif calibration is not None:
        result["answer"] = calibration.answer(distance)
    result |= {"image": row["image"], "reference": row["reference"]}
    if calibration is not None:
        result["probability"] = float(calibration.probability(distance))
    for name, value in signature.items():
        column = "distance_name" if name == "distance" else name
        result[column] = value
    return result | row
