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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Truths, texts
from idmetric.evaluate.protocols.common.intervals import any_statistic, auc
from idmetric.evaluate.protocols.common.labeled_pairs import Pairs, draw_pairs, usable
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Columns, Result, Row, Value, slug
from idmetric.evaluate.protocols.common.scorers import Bound, EvalSettings, Models, bind
from idmetric.evaluate.protocols.common.table_columns import Column
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
from idmetric.metric.files.settings import Checked, option
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
        return checked(data, models, settings, options)
    made = calibrations(data, models, settings, options)
    for name, (calibration, _) in made.items():
        if settings.out is not None:
            calibration.write(settings.out / f"{slug(name)}.calibration.json")
    return [result for _, result in made.values()]


def calibrations(
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: CalibrateOptions = CalibrateOptions(),
) -> dict[str, tuple[Calibration, Result]]:
    """The calibration of each model, and its measurements.

    Raises:
        ValueError: if a model's weights have no revision, or there are too few identities or pairs.
    """
    embedders = check_models(models)
    bound, pairs = _bound(data, models, settings, options)
    facts = _facts(bound.manifest, pairs, settings)
    return {
        name: _calibrated(name, embedders[name], bound, pairs, scorer.pairs(pairs.a, pairs.b), settings, options, facts)
        for name, scorer in bound.models.items()
    }


def checked(
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: CalibrateOptions = CalibrateOptions(),
) -> list[Result]:
    """Measure the calibrations named by `options.check` on pairs of this data; errors as in `run`."""
    embedders = check_models(models)
    given: dict[str, Calibration] = {}
    for name, metric in embedders.items():
        found = metric.calibration if options.check == STORED else read(options.check or "")
        if found is None:
            raise CalibrationError(f"{name} has no calibration in its folder: name a file, --check FILE")
        found.check_model(metric.calibrated_model())
        found.check_distance(settings.distance)
        found.check_outside(settings.outside)
        given[name] = found

    bound, pairs = _bound(data, models, settings, options)
    even, results = pairs.even(), []
    for name, scorer in bound.models.items():
        scores, calibration = scorer.pairs(pairs.a, pairs.b), given[name]
        p = calibration.probability(1 - scores)
        rows = [quality_row("as given", p[even], pairs.take(even), settings)]
        rows[0] |= auc(scores, pairs.same, pairs.family, settings)
        rows += [held_row(one, scores, pairs, settings) for one in calibration.thresholds]
        about = {**settings.as_dict(), "check": options.check, "pairs": pairs.counts()}
        notes = [f"calibration: {calibration.data.get('about', 'of unknown data')}", calibration.basis]
        notes += [*bound.notes, *_notes(pairs)]
        items = items_of(bound.manifest, pairs.take(even), scores[even], p[even])
        results.append(
            Result("calibrate", name, rows, embedders[name].signature(settings.distance), about, items, notes)
        )
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


def _bound(data: Manifest, models: Models, settings: EvalSettings, options: CalibrateOptions) -> tuple[Bound, Pairs]:
    known = usable(data)
    draw_pairs(known, options.pairs, settings.seed)  # before anything is embedded
    bound = bind(known, models, settings)
    return bound, draw_pairs(bound.manifest, options.pairs, settings.seed, options.strangers)


def _facts(data: Manifest, pairs: Pairs, settings: EvalSettings) -> dict[str, Any]:
    """What a calibration keeps of its data."""
    used = np.unique([pairs.a, pairs.b])
    datasets, identities, engines = (set(texts(data, name)[used]) for name in ("dataset", "identity", "engine"))
    origin = "generated" if any(engines) else "photos"
    return {
        "about": settings.data_name, "origin": origin,
        "datasets": sorted(n for n in datasets if n), "images": len(used),
        "identities": len(identities), "families": len(np.unique(pairs.family)),
        "pairs": pairs.counts(), "seed": settings.seed,
    }  # fmt: skip


def _calibrated(
    name: str, metric: Embedder, bound: Bound, pairs: Pairs, scores: Array, settings: EvalSettings,
    options: CalibrateOptions, facts: dict[str, Any],
) -> tuple[Calibration, Result]:  # fmt: skip
    import sklearn

    limit = 1 / (facts["families"] + 2)  # pairs of one family are not independent
    even, own = pairs.take(pairs.even()), scores[pairs.even()]
    unseen = {
        method: held_out(own, even.same, even.family, method, limit=limit, folds=FOLDS, seed=settings.seed)
        for method in METHODS
    }
    rows = [quality_row(method, p, even, settings) for method, p in unseen.items()]
    chosen = rows[METHODS.index(options.method)]
    chosen |= auc(scores, pairs.same, pairs.family, settings)
    found = threshold_intervals(
        scores, pairs.same, pairs.family, options.rates, samples=settings.bootstrap, seed=settings.seed
    )

    kept = []
    for one in found:
        point, at, took = one.point, one.threshold, one.true_accept
        low, high = (None, None) if at is None else (1 - at.high, 1 - at.low)
        ends = (None, None) if took is None else (took.low, took.high)
        rows.append({
            "what": f"threshold at {one.rate:g} false accepts",
            "distance": Value(1 - point.threshold, low, high, len(scores)),
            "true accept": Value(point.true_accept, ends[0], ends[1], len(scores)),
            **_alarm_values(point.threshold, scores, pairs),
        })  # fmt: skip
        kept.append({
            "false_accept_rate": one.rate, "distance": 1 - point.threshold, "low": low, "high": high,
            "true_accept": point.true_accept, "false_accept": point.false_accept,
            "false_accept_by_kind": _alarms(point.threshold, scores, pairs),
        })  # fmt: skip
    dataset = texts(bound.manifest, "dataset")[pairs.a]
    rows += left_out_rows(scores, pairs, dataset, options.method, limit, options.rates, settings)

    held = {k: {end: getattr(v, end) for end in ("value", "low", "high")} for k, v in chosen.items()
            if isinstance(v, Value)}  # fmt: skip
    versions = {"idmetric": __version__, "scikit-learn": sklearn.__version__,
                "dtype": str(metric.dtype).removeprefix("torch.")}  # fmt: skip
    calibration = Calibration(
        fit(own, even.same, options.method, limit), metric.calibrated_model(), settings.distance,
        float(even.same.mean()), settings.outside, name, tuple(kept), held | {"folds": FOLDS}, facts, versions,
    )  # fmt: skip
    notes = [*bound.notes, *_notes(pairs, "; probabilities come from curves fitted without the pair's identities")]
    items = items_of(bound.manifest, even, own, unseen[options.method])
    used = {**settings.as_dict(), "method": options.method, "pairs": pairs.counts()}
    return calibration, Result("calibrate", name, rows, metric.signature(settings.distance), used, items, notes)


def _notes(pairs: Pairs, remark: str = "") -> list[str]:
    found = [f"pairs: {', '.join(f'{n} {kind}' for kind, n in pairs.counts().items())}{remark}"]
    families = len(np.unique(pairs.family))
    if families < 50:
        found.append(f"{families} families of identities are few: intervals are wide, and --method platt needs fewer")
    return found


def quality_row(method: str, p: Array, pairs: Pairs, settings: EvalSettings) -> Row:
    """Calibration error, log loss and Brier score of probabilities (P,)."""
    measures = {"ECE": expected_calibration_error, "log loss": log_loss, "Brier": brier_score}
    values = {name: any_statistic(f, (p, pairs.same), pairs.family, settings) for name, f in measures.items()}
    return {"what": f"probability, {method}", **values}


def held_row(given: Mapping[str, Any], scores: Array, pairs: Pairs, settings: EvalSettings, label: str = "") -> Row:
    """A calibration's threshold, and the pairs that it accepts among ones that it was not chosen on."""
    threshold, count = 1 - float(given["distance"]), len(scores)
    took = (comparable(scores) >= comparable(threshold)).astype(np.float64)
    row: Row = {"what": f"threshold for {given['false_accept_rate']:g} false accepts{label}"}
    row["distance"] = Value(float(given["distance"]), None, None, count)

    for name, own in (("true accept", pairs.same), ("false accept", ~pairs.same)):
        row[name] = any_statistic(_share, (took, own), pairs.family, settings, count=int(own.sum()))

    return row | _alarm_values(threshold, scores, pairs)


def left_out_rows(
    scores: Array, pairs: Pairs, dataset: NDArray[Any], method: Method, limit: float, rates: Sequence[float],
    settings: EvalSettings,
) -> list[Row]:  # fmt: skip
    """Each dataset's pairs, by a curve and thresholds made from those of the other datasets; none for one dataset.

    Args:
        dataset: of each pair (P,). method, limit: see `fitting.fit`.
    """
    rows, even, names = list[Row](), pairs.even(), np.unique(dataset)
    for name in names if len(names) > 1 else ():
        its, label = dataset == name, f", {name} left out"
        if len(set(pairs.same[its & even])) < 2 or len(set(pairs.same[~its & even])) < 2:
            continue  # an error or a threshold needs pairs of both kinds
        curve = fit(scores[~its & even], pairs.same[~its & even], method, limit)
        p = from_log_odds(curve.log_odds(scores[its & even]))
        rows.append(quality_row(f"{method}{label}", p, pairs.take(its & even), settings))
        for rate in rates:
            point = threshold_at_false_accept(scores[~its], pairs.same[~its], rate)
            given = {"distance": 1 - point.threshold, "false_accept_rate": rate}
            rows.append(held_row(given, scores[its], pairs.take(its), settings, label))
    return rows


def items_of(data: Manifest, pairs: Pairs, scores: Array, probability: Array) -> dict[str, Columns]:
    """The score and probability of each pair, and the reliability curve."""
    bins = reliability(probability, pairs.same)
    ids = np.array(data.column("id"), dtype=object)
    return {
        "pairs": {
            "a": ids[pairs.a].tolist(), "b": ids[pairs.b].tolist(), "kind": pairs.kind.tolist(),
            "score": scores.tolist(), "same": pairs.same.tolist(), "probability": probability.tolist(),
        },
        "reliability": {
            "probability": [b.probability for b in bins], "share": [b.share for b in bins],
            "count": [b.count for b in bins],
        },
    }  # fmt: skip


def _share(took: Array, own: Truths) -> float:
    return float(took[own].mean()) if own.any() else np.nan


def _alarm_values(threshold: float, scores: Array, pairs: Pairs) -> dict[str, Value]:
    shares, counts = _alarms(threshold, scores, pairs), pairs.counts()
    return {f"false accept, {kind}": Value(share, None, None, counts[kind]) for kind, share in shares.items()}


def _alarms(threshold: float, scores: Array, pairs: Pairs) -> dict[str, float]:
    """False-accept rate of each kind of pairs of two identities."""
    return {kind: accepted(scores[pairs.kind == kind], threshold) for kind in pairs.counts() if kind != "same"}


def run_command(data: Manifest, models: Models, settings: EvalSettings, options: CalibrateOptions) -> list[Result]:
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
