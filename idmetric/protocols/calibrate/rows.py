"""Rows and item tables of the protocol `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.calibration.curves import from_log_odds
from idmetric.calibration.fitting import Method, fit
from idmetric.calibration.quality import brier_score, expected_calibration_error, log_loss, reliability
from idmetric.calibration.thresholds import Threshold, accepted, threshold_at_false_accept
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import comparable
from idmetric.protocols.calibrate.pairs import Pairs
from idmetric.protocols.common.arrays import Array, Truths
from idmetric.protocols.common.intervals import any_statistic
from idmetric.protocols.common.result import Columns, Row, Value
from idmetric.protocols.common.scorers import Settings


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
