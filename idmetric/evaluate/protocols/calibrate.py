"""Calibrate a model: from labeled pairs to the probability that two images show the same identity.

    idmetric eval calibrate --data photos.parquet --model tiny --plots png --out results/
    idmetric score ref.jpg gen/*.png --model tiny --calibration results/tiny.calibration.json
    idmetric eval calibrate --data photos.parquet --model tiny --check stored          measure the model's own

No paper prints such values. docs/reading.md explains how to read the result.

`common.labeled_pairs` draws the pairs, equally many of one identity and of two.

Expected calibration error, log loss and Brier score are measured on pairs of identities that the curve was not fitted
to; the curve in the file is fitted to all pairs. A family (an object and the images edited from it) counts as one
identity, in folds and in intervals. Where the data have several datasets, each is also left out once: rows "NAME left
out" measure a curve and thresholds made from the other datasets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Truths, texts
from idmetric.evaluate.protocols.common.intervals import any_statistic, auc
from idmetric.evaluate.protocols.common.labeled_pairs import Pairs, draw_pairs, usable
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value, numbers_of, slug
from idmetric.evaluate.protocols.common.scorers import Bound, EvalSettings, Models, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.calibration.fitting import METHODS, Method, fit, held_out
from idmetric.evaluate.statistics.calibration.quality import (
    brier_score,
    expected_calibration_error,
    log_loss,
    reliability,
)
from idmetric.evaluate.statistics.calibration.thresholds import accepted, threshold_at_false_accept, threshold_intervals
from idmetric.metric.calibration.apply import Calibration, CalibrationError, read
from idmetric.metric.calibration.curves import from_log_odds
from idmetric.metric.distance.ties import comparable
from idmetric.version import __version__

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.metric.models.embedder import Embedder


@dataclass(frozen=True)
class CalibrateOptions(Checked):
    """Options of the protocol `calibrate`."""

    method: Method = option(
        "isotonic",
        "curve to keep; the other one is measured too. isotonic (default) assumes no shape; platt, a logistic curve, "
        "is better where identities are few",
    )
    rates: tuple[float, ...] = option((0.1, 0.05, 0.01), "false-accept rates to find thresholds for", metavar="RATE")
    pairs: int = option(10, "of one identity, at most", least=1)
    strangers: int = option(
        0, "further pairs of two identities, which only thresholds see: low rates such as 0.001 need thousands", least=0
    )
    check: str | None = option(
        None,
        "measure that calibration on the pairs instead of making one; 'stored': the one in each model's folder "
        "(default: make one)",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 < rate < 1 for rate in self.rates):
            raise ValueError(f"rates lie between 0 and 1, got {self.rates}")


COLUMNS = {
    "ECE": Column("expected calibration error of probabilities, in 0..1", -1, "Naeini et al. 2015"),
    "log loss": Column("mean of -log P(true label), in nats", -1),
    "Brier": Column("mean squared error of probabilities", -1, "Brier 1950"),
    "true accept": Column("share of pairs of one identity under the distance"),
    "false accept": Column("share of pairs of two identities under the distance", -1),
}

FOLDS = 5  # of cross-fitting
OF_KIND = "false accept, "  # columns of the false-accept rate of one kind of pairs
STORED = "stored"  # as --check: the calibration in the model's folder


def run(
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: CalibrateOptions = CalibrateOptions(),
) -> list[Result]:
    """A result for each model, and its calibration, in `settings.out` as MODEL.calibration.json.

    Raises:
        ValueError: as `calibrations`.
        CalibrationError: if the calibration to check is absent, or for another model or distance.
    """
    if options.check is not None:
        return _checked(data, models, settings, options)
    results = []
    for name, (calibration, result) in calibrations(data, models, settings, options).items():
        if settings.out is not None:
            calibration.write(settings.out / f"{slug(name)}.calibration.json")
        results.append(result)
    return results


def calibrations(
    data: Manifest,
    models: Models,
    settings: EvalSettings,
    options: CalibrateOptions,
) -> dict[str, tuple[Calibration, Result]]:
    """The calibration of each model, and its measurements.

    Raises:
        ValueError: if a model's weights have no revision, or there are too few identities or pairs.
    """
    embedders = check_models(models)
    bound, pairs = _bound(data, models, settings, options)
    made = {}
    for name, scorer in bound.models.items():
        scores = scorer.pairs(pairs.a, pairs.b)
        made[name] = _calibrated(name, embedders[name], bound, pairs, scores, settings, options)
    return made


def _checked(
    data: Manifest,
    models: Models,
    settings: EvalSettings,
    options: CalibrateOptions,
) -> list[Result]:
    """Measure the calibrations named by `options.check` on pairs of this data; errors as in `run`."""
    embedders = check_models(models)
    calibrations: dict[str, Calibration] = {}
    for name, metric in embedders.items():
        calibration = metric.calibration
        if options.check not in (None, STORED):
            calibration = read(options.check)
        if calibration is None:
            raise CalibrationError(f"{name} has no calibration in its folder: name a file, --check FILE")
        calibration.check_model(metric.calibrated_model())
        calibration.check_distance(settings.distance)
        calibration.check_outside(settings.outside)
        calibrations[name] = calibration

    bound, pairs = _bound(data, models, settings, options)
    is_even = pairs.even()
    even = pairs.take(is_even)
    about = {**settings.as_dict(), "check": options.check, "pairs": pairs.counts()}
    results = []
    for name, scorer in bound.models.items():
        calibration = calibrations[name]
        scores = scorer.pairs(pairs.a, pairs.b)
        probability = calibration.probability(1 - scores[is_even])
        quality = quality_row("as given", probability, even, settings)
        quality |= auc(scores, pairs.same, pairs.family, settings)
        rows = [quality]
        for threshold in calibration.thresholds:
            rate, distance = float(threshold["false_accept_rate"]), float(threshold["distance"])
            rows.append(decision_row(rate, distance, scores, pairs, settings))

        origin = f"calibration: {calibration.data.get('about', 'of unknown data')}"
        notes = [origin, calibration.basis, *bound.notes, *_notes(pairs)]
        signature = embedders[name].signature(settings.distance)
        result = Result("calibrate", name, rows, signature, about, notes=notes)
        _keep(result, bound.manifest, even, scores[is_even], probability)
        results.append(result)
    return results


def check_models(models: Models) -> dict[str, Embedder]:
    """The models, each with weights of a name that a calibration could be for.

    Raises:
        ValueError: naming the model.
    """
    from idmetric.metric.models.embedder import Embedder

    embedders = {}
    for name, metric in models.items():
        if not isinstance(metric, Embedder):
            raise ValueError(f"{name} cannot be calibrated: only models that idmetric.load opens can")
        if not metric.revision or metric.revision.endswith("+changed"):
            raise ValueError(f"the weights of {name} have no revision: save the model first (save_pretrained)")
        embedders[name] = metric
    return embedders


def _bound(
    data: Manifest,
    models: Models,
    settings: EvalSettings,
    options: CalibrateOptions,
) -> tuple[Bound, Pairs]:
    labeled = usable(data)
    draw_pairs(labeled, options.pairs, settings.seed)  # before anything is embedded
    bound = bind(labeled, models, settings)
    return bound, draw_pairs(bound.manifest, options.pairs, settings.seed, options.strangers)


def _calibrated(
    name: str,
    metric: Embedder,
    bound: Bound,
    pairs: Pairs,
    scores: Array,
    settings: EvalSettings,
    options: CalibrateOptions,
) -> tuple[Calibration, Result]:
    """The calibration of a model whose similarities (P,) of the pairs are `scores`, and its measurements."""
    import sklearn

    facts = _facts(bound.manifest, pairs, settings)
    limit = 1 / (facts["families"] + 2)  # pairs of one family are not independent
    is_even = pairs.even()
    even = pairs.take(is_even)
    even_scores = scores[is_even]

    # quality on identities that the curve was not fitted to
    rows = {}
    probabilities = {}
    for method in METHODS:
        probabilities[method] = held_out(
            even_scores,
            even.same,
            even.family,
            method,
            limit=limit,
            folds=FOLDS,
            seed=settings.seed,
        )
        rows[method] = quality_row(method, probabilities[method], even, settings)
    quality = rows[options.method]
    quality |= auc(scores, pairs.same, pairs.family, settings)
    quality_facts: dict[str, Any] = {}
    for column, value in numbers_of(quality).items():
        quality_facts[column] = {"value": value.value, "low": value.low, "high": value.high}
    quality_facts["folds"] = FOLDS

    # decisions by thresholds, and everything again with each dataset left out
    threshold_rows, thresholds = _thresholds(scores, pairs, options.rates, settings)
    dataset = texts(bound.manifest, "dataset", "unnamed")[pairs.a]
    left_out = left_out_rows(
        scores,
        pairs,
        dataset,
        options.method,
        limit,
        options.rates,
        settings,
    )

    signature = metric.signature(settings.distance)
    calibration = Calibration(
        curve=fit(even_scores, even.same, options.method, limit),
        model=metric.calibrated_model(),
        distance=settings.distance,
        prior=float(even.same.mean()),
        outside=settings.outside,
        name=name,
        thresholds=tuple(thresholds),
        held_out=quality_facts,
        data=facts,
        versions={"idmetric": __version__, "scikit-learn": sklearn.__version__, "dtype": signature["dtype"]},
    )
    result = Result(
        "calibrate",
        name,
        [*rows.values(), *threshold_rows, *left_out],
        signature,
        {**settings.as_dict(), "method": options.method, "pairs": pairs.counts()},
        notes=[*bound.notes, *_notes(pairs, "; probabilities come from curves fitted without the pair's identities")],
    )
    _keep(result, bound.manifest, even, even_scores, probabilities[options.method])
    return calibration, result


def _facts(data: Manifest, pairs: Pairs, settings: EvalSettings) -> dict[str, Any]:
    """What a calibration keeps of its data."""
    rows = np.unique([pairs.a, pairs.b])
    is_generated = any(texts(data, "engine")[rows])
    return {
        "about": settings.data_name,
        "origin": "generated" if is_generated else "photos",
        "datasets": sorted(set(texts(data, "dataset", "")[rows]) - {""}),
        "images": len(rows),
        "identities": len(set(texts(data, "identity")[rows])),
        "families": len(np.unique(pairs.family)),
        "pairs": pairs.counts(),
        "seed": settings.seed,
    }


def _notes(pairs: Pairs, remark: str = "") -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in pairs.counts().items())
    notes = [f"pairs: {counts}{remark}"]
    families = len(np.unique(pairs.family))
    if families < 50:
        notes.append(f"{families} families of identities are few: intervals are wide, and --method platt needs fewer")
    return notes


def quality_row(
    method: str,
    probability: Array,
    pairs: Pairs,
    settings: EvalSettings,
) -> Row:
    """Calibration error, log loss and Brier score of probabilities (P,)."""
    row: Row = {"what": f"probability, {method}"}
    columns = (probability, pairs.same)
    for name, measure in (("ECE", expected_calibration_error), ("log loss", log_loss), ("Brier", brier_score)):
        row[name] = any_statistic(measure, columns, pairs.family, settings)
    return row


def _thresholds(
    scores: Array,
    pairs: Pairs,
    rates: Sequence[float],
    settings: EvalSettings,
) -> tuple[list[Row], list[dict[str, Any]]]:
    """A row for each false-accept rate, and its threshold as the calibration's file keeps it."""
    rows: list[Row] = []
    entries = []
    for chosen in threshold_intervals(
        scores,
        pairs.same,
        pairs.family,
        rates,
        samples=settings.bootstrap,
        seed=settings.seed,
    ):
        point = chosen.point
        distance = Value(1 - point.threshold, None, None, len(scores))
        if chosen.threshold is not None:
            low, high = chosen.threshold.low, chosen.threshold.high
            distance = replace(distance, low=1 - high, high=1 - low)
        true_accept = Value(point.true_accept, None, None, len(scores))
        if chosen.true_accept is not None:
            low, high = chosen.true_accept.low, chosen.true_accept.high
            true_accept = replace(true_accept, low=low, high=high)

        false_accepts = _false_accepts(point.threshold, scores, pairs)
        row: Row = {"what": f"threshold at {chosen.rate:g} false accepts"}
        row |= {"distance": distance, "true accept": true_accept, **false_accepts}
        rows.append(row)
        entries.append(
            {
                "false_accept_rate": chosen.rate,
                "distance": distance.value,
                "low": distance.low,
                "high": distance.high,
                "true_accept": point.true_accept,
                "false_accept": point.false_accept,
                "false_accept_by_kind": {
                    column.removeprefix(OF_KIND): share.value for column, share in false_accepts.items()
                },
            }
        )
    return rows, entries


def decision_row(
    rate: float,
    distance: float,
    scores: Array,
    pairs: Pairs,
    settings: EvalSettings,
    label: str = "",
) -> Row:
    """The pairs that a threshold for a false-accept rate accepts, among pairs that it was not chosen on."""
    threshold = 1 - distance
    is_accepted = (comparable(scores) >= comparable(threshold)).astype(np.float64)
    row: Row = {"what": f"threshold for {rate:g} false accepts{label}"}
    row["distance"] = Value(distance, None, None, len(scores))
    for name, is_kind in (("true accept", pairs.same), ("false accept", ~pairs.same)):
        count = int(is_kind.sum())
        row[name] = any_statistic(_share, (is_accepted, is_kind), pairs.family, settings, count=count)
    return row | _false_accepts(threshold, scores, pairs)


def _share(is_accepted: Array, is_kind: Truths) -> float:
    """The share of the pairs of a kind that are accepted; NaN in a sample without such pairs."""
    return float(is_accepted[is_kind].mean()) if is_kind.any() else np.nan


def _false_accepts(threshold: float, scores: Array, pairs: Pairs) -> dict[str, Value]:
    """The false-accept rate of each kind of pairs of two identities, as columns of a row."""
    shares = {}
    for kind, count in pairs.counts().items():
        if kind != "same":
            share = accepted(scores[pairs.kind == kind], threshold)
            shares[f"{OF_KIND}{kind}"] = Value(share, None, None, count)
    return shares


def left_out_rows(
    scores: Array,
    pairs: Pairs,
    dataset: NDArray[Any],
    method: Method,
    limit: float,
    rates: Sequence[float],
    settings: EvalSettings,
) -> list[Row]:
    """Each dataset's pairs, by a curve and thresholds made from those of the other datasets; none for one dataset.

    Args:
        dataset: of each pair (P,). method, limit: see `fitting.fit`.
    """
    is_even = pairs.even()
    rows = []
    for name in np.unique(dataset):
        is_left_out = dataset == name
        is_fitted = ~is_left_out & is_even
        is_measured = is_left_out & is_even
        fitted_same = pairs.same[is_fitted]
        if len(set(pairs.same[is_measured])) < 2 or len(set(fitted_same)) < 2:
            continue  # an error or a threshold needs pairs of both kinds
        curve = fit(scores[is_fitted], fitted_same, method, limit)
        probability = from_log_odds(curve.log_odds(scores[is_measured]))
        label = f", {name} left out"
        measured = pairs.take(is_measured)
        rows.append(quality_row(f"{method}{label}", probability, measured, settings))
        left_out = pairs.take(is_left_out)
        for rate in rates:
            point = threshold_at_false_accept(scores[~is_left_out], pairs.same[~is_left_out], rate)
            distance = 1 - point.threshold
            rows.append(decision_row(rate, distance, scores[is_left_out], left_out, settings, label))
    return rows


def _keep(
    result: Result,
    data: Manifest,
    pairs: Pairs,
    scores: Array,
    probability: Array,
) -> None:
    """Add the score and probability of each pair, and the reliability curve."""
    ids = texts(data, "id")
    result.keep(
        "pairs",
        a=ids[pairs.a],
        b=ids[pairs.b],
        kind=pairs.kind,
        score=scores,
        same=pairs.same,
        probability=probability,
    )
    for group in reliability(probability, pairs.same):
        result.keep(
            "reliability",
            probability=[group.probability],
            share=[group.share],
            count=[group.count],
        )


def run_command(
    data: Manifest,
    models: Models,
    settings: EvalSettings,
    options: CalibrateOptions,
) -> list[Result]:
    """`run`, which refuses to make calibrations that nobody keeps."""
    if options.check is None and settings.out is None:
        raise ValueError("no place for the calibration: give --out DIR")
    return run(data, models, settings, options)


PROTOCOL = Protocol(
    name="calibrate",
    run=run_command,
    options=CalibrateOptions,
    columns=COLUMNS,
)
