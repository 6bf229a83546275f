"""Calibrate a model: from labeled pairs to the probability that two images show the same identity.

    idmetric eval calibrate --data photos.parquet --model tiny --plots png --out results/
    idmetric score ref.jpg gen/*.png --model tiny --calibration results/tiny.calibration.json

No paper prints such values. docs/use/reading.md explains how to read the result.

As many pairs of one identity as of two are drawn. Expected calibration error, log loss and Brier score are measured on
pairs of identities that the curve was not fitted to; the curve in the file is fitted to all pairs. A family (an object
and the images edited from it) counts as one identity, in folds and in intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Truths
from idmetric.evaluate.protocols.common.intervals import COSINE, POSITIVE, SHARE, Range, any_statistic, auc
from idmetric.evaluate.protocols.common.labeled_pairs import LabeledPairs, draw_pairs, usable
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value, numbers_of, slug
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.calibration.fitting import fit, held_out
from idmetric.evaluate.statistics.calibration.quality import expected_calibration_error
from idmetric.evaluate.statistics.calibration.thresholds import accepted, threshold_at_false_accept
from idmetric.metric.files import need
from idmetric.scoring.calibration import Calibration
from idmetric.version import __version__

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.metric.embedder import Embedder


@dataclass(frozen=True)
class CalibrateOptions(Checked):
    """Options of the protocol `calibrate`."""

    rates: tuple[float, ...] = option((0.1, 0.05, 0.01), "false-accept rates to find thresholds for", metavar="RATE")
    strangers: int = option(
        0, "further pairs of two identities, which only thresholds see: low rates such as 0.001 need thousands", least=0
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


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: CalibrateOptions = CalibrateOptions(),
) -> list[Result]:
    """A result for each model, and its calibration, in `settings.out` as MODEL.calibration.json.

    Raises:
        ValueError: if a model's weights have no revision, or there are too few identities or pairs.
    """
    embedders = check_models(models)
    labeled = usable(data)
    draw_pairs(labeled, seed=settings.seed)  # before anything is embedded
    bound = bind(labeled, models, settings)
    pairs = draw_pairs(bound.manifest, seed=settings.seed, strangers=options.strangers)
    about = {**settings.as_dict(), "pairs": pairs.counts()}

    results = []
    for scorer, result in bound.results("calibrate", about, _notes(pairs)):
        scores = scorer.pairs(pairs.a, pairs.b)
        metric = embedders[result.model]
        calibration = calibrate(metric, scores, pairs, bound.manifest, settings, options, result)
        if settings.out is not None:
            calibration.write(settings.out / f"{slug(result.model)}.calibration.json")
        results.append(result)
    return results


def check_models(models: Models) -> dict[str, Embedder]:
    """The models, each with weights of a name that a calibration could be for.

    Raises:
        ValueError: naming the model.
    """
    from idmetric.metric.embedder import Embedder

    embedders = {}
    for name, metric in models.items():
        if not isinstance(metric, Embedder):
            raise ValueError(f"{name} cannot be calibrated: only models that idmetric.load opens can")
        if not metric.revision or metric.revision.endswith("+changed"):
            raise ValueError(f"the weights of {name} have no revision: save the model first (save_pretrained)")
        embedders[name] = metric
    return embedders


def _notes(pairs: LabeledPairs) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in pairs.counts().items())
    notes = [f"pairs: {counts}"]
    families = len(np.unique(pairs.family))
    if families < 50:
        notes.append(f"{families} families of identities are few: intervals are wide")
    return notes


def calibrate(
    metric: Embedder,
    scores: Array,
    pairs: LabeledPairs,
    data: DataFrame,
    settings: EvalSettings,
    options: CalibrateOptions,
    result: Result,
) -> Calibration:
    """The calibration of a model whose similarities (P,) of the pairs are `scores`; adds its measurements."""
    need("eval", "a calibration", sklearn="scikit-learn")
    import sklearn

    facts = _facts(data, pairs, settings)
    limit = 1 / (facts["families"] + 2)  # pairs of one family are not independent
    is_even = pairs.even()
    even = pairs.take(is_even)
    even_scores = scores[is_even]

    # quality on identities that the curve was not fitted to
    probability = held_out(
        even_scores,
        even.same,
        even.family,
        limit=limit,
        folds=FOLDS,
        seed=settings.seed,
    )
    quality = quality_row(probability, even, settings)
    quality |= auc(scores, pairs.same, pairs.family, settings)
    quality_facts: dict[str, Any] = {"folds": FOLDS}
    for column, value in numbers_of(quality).items():
        quality_facts[column] = {"value": value.value, "low": value.low, "high": value.high}
    _keep(result, data, even, even_scores, probability)
    result.rows.append(quality)
    result.notes.append("probabilities of the pairs come from curves fitted without their identities")

    # decisions by thresholds
    thresholds = []
    for rate in options.rates:
        row, threshold = _threshold(scores, pairs, rate, settings)
        result.rows.append(row)
        thresholds.append(threshold)

    return Calibration(
        curve=fit(even_scores, even.same, limit),
        model=metric.calibration_id(),
        distance=settings.distance,
        outside=settings.outside,
        name=result.model,
        thresholds=tuple(thresholds),
        held_out=quality_facts,
        data=facts,
        versions={
            "idmetric": __version__,
            "scikit-learn": sklearn.__version__,
            "dtype": result.signature["dtype"],
        },
    )


def _facts(data: DataFrame, pairs: LabeledPairs, settings: EvalSettings) -> dict[str, Any]:
    """What a calibration keeps of its data."""
    rows = np.unique([pairs.a, pairs.b])
    is_generated = data["engine"][rows].notna().any()
    return {
        "about": settings.data_name,
        "origin": "generated" if is_generated else "photos",
        "datasets": sorted(data["dataset"][rows].dropna().unique()),
        "images": len(rows),
        "identities": data["identity"][rows].nunique(),
        "families": len(np.unique(pairs.family)),
        "pairs": pairs.counts(),
        "seed": settings.seed,
    }


def quality_row(probability: Array, pairs: LabeledPairs, settings: EvalSettings) -> Row:
    """Calibration error, log loss and Brier score of probabilities (P,)."""
    from sklearn.metrics import brier_score_loss, log_loss

    def log_loss_of(drawn: Array, same: Truths) -> float:
        return float(log_loss(same, drawn, labels=[False, True]))

    def brier_score_of(drawn: Array, same: Truths) -> float:
        return float(brier_score_loss(same, drawn, pos_label=True))

    row: Row = {"what": "probability, isotonic"}
    columns = (probability, pairs.same)
    measures: dict[str, tuple[Callable[..., float], Range]] = {
        "ECE": (expected_calibration_error, SHARE),
        "log loss": (log_loss_of, POSITIVE),
        "Brier": (brier_score_of, SHARE),
    }
    for name, (measure, limits) in measures.items():
        row[name] = any_statistic(measure, columns, pairs.family, settings, limits=limits)
    return row


def _threshold(
    scores: Array,
    pairs: LabeledPairs,
    rate: float,
    settings: EvalSettings,
) -> tuple[Row, dict[str, Any]]:
    """The row of a false-accept rate, and its threshold as the calibration's file keeps it."""

    def measured(name: str, limits: Range) -> Value:
        """An attribute of the operating point; each bootstrap sample chooses its own threshold."""
        return any_statistic(
            lambda drawn, same: getattr(threshold_at_false_accept(drawn, same, rate), name),
            (scores, pairs.same),
            pairs.family,
            settings,
            limits=limits,
        )

    threshold, true_accept = measured("threshold", COSINE), measured("true_accept", SHARE)
    distance = replace(threshold, value=1 - threshold.value)
    if threshold.low is not None and threshold.high is not None:
        distance = replace(distance, low=1 - threshold.high, high=1 - threshold.low)
    false_accepts = _false_accepts(threshold.value, scores, pairs)
    row: Row = {"what": f"threshold at {rate:g} false accepts", "distance": distance, "true accept": true_accept}
    entry = {
        "false_accept_rate": rate,
        "distance": distance.value,
        "low": distance.low,
        "high": distance.high,
        "true_accept": true_accept.value,
        "false_accept": accepted(scores[~pairs.same], threshold.value),
        "false_accept_by_kind": {column.removeprefix(OF_KIND): share.value for column, share in false_accepts.items()},
    }
    return row | false_accepts, entry


def _false_accepts(threshold: float, scores: Array, pairs: LabeledPairs) -> dict[str, Value]:
    """The false-accept rate of each kind of pairs of two identities, as columns of a row."""
    shares = {}
    for kind, count in pairs.counts().items():
        if kind != "same":
            share = accepted(scores[pairs.kind == kind], threshold)
            shares[f"{OF_KIND}{kind}"] = Value(share, None, None, count)
    return shares


def _keep(
    result: Result,
    data: DataFrame,
    pairs: LabeledPairs,
    scores: Array,
    probability: Array,
) -> None:
    """Add the score and probability of each pair."""
    ids = data["id"].to_numpy()
    result.keep(
        "pairs",
        a=ids[pairs.a],
        b=ids[pairs.b],
        kind=pairs.kind,
        score=scores,
        same=pairs.same,
        probability=probability,
    )


def run_command(
    data: DataFrame,
    models: Models,
    settings: EvalSettings,
    options: CalibrateOptions,
) -> list[Result]:
    """`run`, which refuses to make calibrations that nobody keeps."""
    if settings.out is None:
        raise ValueError("no place for the calibration: give --out DIR")
    return run(data, models, settings, options)


PROTOCOL = Protocol(
    name="calibrate",
    run=run_command,
    options=CalibrateOptions,
    columns=COLUMNS,
)
