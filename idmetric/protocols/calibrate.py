"""Calibrate a model: from labeled pairs to the probability that two images show the same identity.

    idmetric eval calibrate --data photos.parquet --model tiny --plots png --out results/
    idmetric score ref.jpg gen/*.png --model tiny --calibration results/tiny.calibration.json
    idmetric eval calibrate --data photos.parquet --model tiny --check stored          measure the model's own
    calibration

No paper prints such values. docs/reading.md explains how to read the result.

Pairs are drawn from the manifest without repetition, equally many of one identity and of two. Of the latter, up to half
are hard: `context`, an image and the distractor or identity edit made from it; `kin`, an image of an object and one
edited from another image of it; `category`, two identities of one category, if the manifest has categories. The others
are any two identities of a dataset. Part-edits are left out: an object with a changed part is neither itself nor
another.

Expected calibration error, log loss and Brier score are measured on pairs of identities that the curve was not fitted
to; the curve in the file is fitted to all pairs. A family (an object and the images edited from it) counts as one
identity, in folds and in intervals. Where the data have several datasets, each is also left out once: rows "NAME left
out" measure a curve and thresholds made from the other datasets, as on photos of a kind that the calibration never saw.

False-accept rates below 0.01 need more pairs of two identities than of one: `--strangers 50000` adds such pairs, of any
two identities of a dataset, for the thresholds alone.

`--check FILE` fits and writes nothing; it measures an existing calibration on these pairs, which should show other
identities than the calibration was made from.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.calibration.apply import Calibration, CalibrationError, read
from idmetric.calibration.curves import from_log_odds
from idmetric.calibration.fitting import METHODS, Method, fit, held_out
from idmetric.calibration.quality import brier_score, expected_calibration_error, log_loss, reliability
from idmetric.calibration.thresholds import Threshold, accepted, threshold_at_false_accept, threshold_intervals
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import comparable
from idmetric.models.embedder import Embedder
from idmetric.protocols.common.columns import Array, Truths, texts
from idmetric.protocols.common.intervals import any_statistic, auc
from idmetric.protocols.common.labeled_pairs import Pairs, draw_pairs, usable
from idmetric.protocols.common.result import Columns, Result, Row, Value, slug
from idmetric.protocols.common.scorers import Bound, Models, Settings, bind
from idmetric.protocols.options import CalibrateOptions
from idmetric.version import __version__


def quality_row(method: str, p: Array, pairs: Pairs, settings: Settings) -> Row:
    """Calibration error, log loss and Brier score of probabilities (P,)."""
    measures = {"ECE": expected_calibration_error, "log loss": log_loss, "Brier": brier_score}
    values = {name: any_statistic(f, (p, pairs.same), pairs.family, settings) for name, f in measures.items()}
    return {"what": f"probability, {method}", **values}


def decision_row(found: Threshold, scores: Array, pairs: Pairs) -> Row:
    """A threshold as a distance, and the pairs that it accepts."""
    point, count = found.point, len(scores)
    row: Row = {"what": f"threshold at {found.rate:g} false accepts"}

    row["distance"] = Value(1 - point.threshold, *_distances(found), count)
    took = found.true_accept
    low, high = (None, None) if took is None else (took.low, took.high)
    row["true accept"] = Value(point.true_accept, low, high, count)

    return row | _alarm_values(point.threshold, scores, pairs)


def held_row(given: Mapping[str, Any], scores: Array, pairs: Pairs, settings: Settings, label: str = "") -> Row:
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
    settings: Settings,
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


def as_json(found: Threshold, scores: Array, pairs: Pairs) -> dict[str, Any]:
    """A threshold as a calibration keeps it; distances in place of similarities."""
    low, high = _distances(found)
    return {
        "false_accept_rate": found.rate, "distance": 1 - found.point.threshold, "low": low, "high": high,
        "true_accept": found.point.true_accept, "false_accept": found.point.false_accept,
        "false_accept_by_kind": _alarms(found.point.threshold, scores, pairs),
    }  # fmt: skip


def _distances(found: Threshold) -> tuple[float | None, float | None]:
    """The interval of a threshold's distance."""
    at = found.threshold
    return (None, None) if at is None else (1 - at.high, 1 - at.low)


def _share(took: Array, own: Truths) -> float:
    return float(took[own].mean()) if own.any() else np.nan


def _alarm_values(threshold: float, scores: Array, pairs: Pairs) -> dict[str, Value]:
    shares, counts = _alarms(threshold, scores, pairs), pairs.counts()
    return {f"false accept, {kind}": Value(share, None, None, counts[kind]) for kind, share in shares.items()}


def _alarms(threshold: float, scores: Array, pairs: Pairs) -> dict[str, float]:
    """False-accept rate of each kind of pairs of two identities."""
    return {kind: accepted(scores[pairs.kind == kind], threshold) for kind in pairs.counts() if kind != "same"}


RENDERER = "idmetric.data.world"  # the engine in manifests of rendered identities
FOLDS = 5  # of cross-fitting
STORED = "stored"  # as --check: the calibration in the model's folder


def command(args: argparse.Namespace, data: Manifest, models: Models, settings: Settings) -> list[Result]:
    """Run with the options of the command line."""
    if args.options.check is None and args.out is None:
        raise ValueError("no place for the calibration: give --out DIR")
    return run(data, models, settings, args.options, args.out, args.data.name)


def run(
    data: Manifest,
    models: Models,
    settings: Settings = Settings(),
    options: CalibrateOptions = CalibrateOptions(),
    out: Path | None = None,
    about: str = "",
) -> list[Result]:
    """A result for each model, and its calibration, in `out` as MODEL.calibration.json.

    Args:
        about: a description of the data, kept in the calibration.

    Raises:
        ValueError: as `calibrations`.
        CalibrationError: if the calibration to check is absent, or for another model or distance.
    """
    if options.check is not None:
        return checked(data, models, settings, options)
    made = calibrations(data, models, settings, options, about)
    for name, (calibration, _) in made.items():
        if out is not None:
            calibration.write(out / f"{slug(name)}.calibration.json")
    return [result for _, result in made.values()]


def calibrations(
    data: Manifest,
    models: Models,
    settings: Settings = Settings(),
    options: CalibrateOptions = CalibrateOptions(),
    about: str = "",
) -> dict[str, tuple[Calibration, Result]]:
    """The calibration of each model, and its measurements.

    Raises:
        ValueError: if a model's weights have no revision, or there are too few identities or pairs.
    """
    _check_models(models)
    bound, pairs = _bound(data, models, settings, options)
    found = {}
    for name, scorer in bound.models.items():
        scores = scorer.pairs(pairs.a, pairs.b)
        kept = _about(bound.manifest, pairs, about, settings)
        found[name] = _calibrated(
            name, models[name], bound.manifest, pairs, scores, settings, options, kept, bound.notes
        )
    return found


def checked(
    data: Manifest, models: Models, settings: Settings = Settings(), options: CalibrateOptions = CalibrateOptions()
) -> list[Result]:
    """Measure the calibrations named by `options.check` on pairs of this data; errors as in `run`."""
    _check_models(models)
    given = {name: _given(name, metric, settings, options) for name, metric in models.items()}
    bound, pairs = _bound(data, models, settings, options)
    results = []

    even = pairs.even()
    for name, scorer in bound.models.items():
        scores, calibration = scorer.pairs(pairs.a, pairs.b), given[name]
        p = calibration.probability(1 - scores)
        rows = [quality_row("as given", p[even], pairs.take(even), settings)]
        rows[0] |= auc(scores, pairs.same, pairs.family, settings)
        rows += [held_row(one, scores, pairs, settings) for one in calibration.thresholds]
        about = {**settings.as_dict(), "check": options.check, "pairs": pairs.counts()}
        notes = [f"calibration: {calibration.data.get('about', 'of unknown data')}", calibration.basis]
        notes += [*bound.notes, *_notes(pairs, unseen=False)]
        items = items_of(bound.manifest, pairs.take(even), scores[even], p[even])
        results.append(Result("calibrate", name, rows, models[name].signature(settings.distance), about, items, notes))

    return results


def _check_models(models: Models) -> None:
    for name, metric in models.items():
        if not isinstance(metric, Embedder):
            raise ValueError(f"{name} cannot be calibrated: only models that idmetric.load opens can")
        if not metric.revision or metric.revision.endswith("+changed"):
            raise ValueError(f"the weights of {name} have no revision: save the model first (save_pretrained)")


def _given(name: str, metric: Embedder, settings: Settings, options: CalibrateOptions) -> Calibration:
    """The calibration to check; it must be for this model, distance and treatment of the background."""
    found = metric.calibration if options.check == STORED else read(options.check or "")
    if found is None:
        raise CalibrationError(f"{name} has no calibration in its folder: name a file, --check FILE")
    found.check_model(metric.calibrated_model())
    found.check_distance(settings.distance)
    found.check_outside(settings.outside)
    return found


def _bound(data: Manifest, models: Models, settings: Settings, options: CalibrateOptions) -> tuple[Bound, Pairs]:
    known = usable(data)
    draw_pairs(known, options.pairs, settings.seed)  # before anything is embedded
    bound = bind(known, models, settings)
    return bound, draw_pairs(bound.manifest, options.pairs, settings.seed, options.strangers)


# Curves


def _calibrated(
    name: str, metric: Embedder, data: Manifest, pairs: Pairs, scores: Array, settings: Settings,
    options: CalibrateOptions, about: dict[str, Any], notes: Sequence[str],
) -> tuple[Calibration, Result]:  # fmt: skip
    limit = 1 / (about["families"] + 2)  # pairs of one family are not independent
    rows: list[Row] = []
    unseen: dict[str, Array] = {}
    even = pairs.take(pairs.even())
    own = scores[pairs.even()]

    for method in METHODS:
        unseen[method] = held_out(own, even.same, even.family, method, limit=limit, folds=FOLDS, seed=settings.seed)
        rows.append(quality_row(method, unseen[method], even, settings))

    chosen = rows[METHODS.index(options.method)]
    chosen |= auc(scores, pairs.same, pairs.family, settings)
    found = threshold_intervals(
        scores, pairs.same, pairs.family, options.rates, samples=settings.bootstrap, seed=settings.seed
    )
    rows += [decision_row(t, scores, pairs) for t in found]
    dataset = texts(data, "dataset")[pairs.a]
    rows += left_out_rows(scores, pairs, dataset, options.method, limit, options.rates, settings)
    calibration = Calibration(
        fit(own, even.same, options.method, limit), metric.calibrated_model(), settings.distance,
        float(even.same.mean()), settings.outside, name,
        tuple(as_json(t, scores, pairs) for t in found),
        {k: {end: getattr(v, end) for end in ("value", "low", "high")} for k, v in chosen.items()
         if isinstance(v, Value)} | {"folds": FOLDS},
        about, _versions(metric),
    )  # fmt: skip
    items = items_of(data, even, own, unseen[options.method])
    used = {**settings.as_dict(), "method": options.method, "pairs": pairs.counts()}
    signature = metric.signature(settings.distance)

    return calibration, Result("calibrate", name, rows, signature, used, items, [*notes, *_notes(pairs)])


def _about(data: Manifest, pairs: Pairs, about: str, settings: Settings) -> dict[str, Any]:
    used = np.unique([pairs.a, pairs.b])
    datasets, identities, engines = (set(texts(data, name)[used]) for name in ("dataset", "identity", "engine"))
    origin = "photos" if not any(engines) else "rendered" if engines == {RENDERER} else "generated"
    return {
        "about": about, "origin": origin, "datasets": sorted(n for n in datasets if n), "images": len(used),
        "identities": len(identities), "families": len(np.unique(pairs.family)),
        "pairs": pairs.counts(), "seed": settings.seed,
    }  # fmt: skip


def _notes(pairs: Pairs, unseen: bool = True) -> list[str]:
    counts, families = ", ".join(f"{n} {kind}" for kind, n in pairs.counts().items()), len(np.unique(pairs.family))
    found = [f"pairs: {counts}"]
    if unseen:
        found = [f"{found[0]}; probabilities come from curves fitted without the pair's identities"]
    if families < 50:
        found.append(f"{families} families of identities are few: intervals are wide, and --method platt needs fewer")
    return found


def _versions(metric: Embedder) -> dict[str, str]:
    import sklearn

    dtype = str(metric.dtype).removeprefix("torch.")
    return {"idmetric": __version__, "scikit-learn": sklearn.__version__, "dtype": dtype}
