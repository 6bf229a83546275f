"""Plots of evaluations as PNG or SVG files: ROC, precision and recall, distributions, sensitivity, Pareto fronts, ...

    draw(results, Path("results"), "folder", "svg")  # all plots that the results' items allow

    pairs = {"tiny": Scored(scores, same)}
    roc(pairs, "roc.svg")

A file's extension selects its format. Colors follow the order of the models and agree between plots of one run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmetric.evaluate.protocols.common.result import Result, Row, Value, copying, names_of, slug
from idmetric.evaluate.report.figure import Place, new_figure, save_figure
from idmetric.evaluate.statistics.ranking import average_precision, roc_auc
from idmetric.evaluate.statistics.sensitivity import trend
from idmetric.metric.distance.ties import Truths, comparable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_BINS = 60
_COLUMNS = 3  # panels of steps in a row
_ANCHOR = "real"  # dashed in the panel of identity


@dataclass(frozen=True)
class Scored:
    """Pairs with their similarity (higher = more alike) and whether they show one identity."""

    score: ArrayLike
    same: ArrayLike


# Plots


def roc(pairs: Mapping[str, Scored], path: Place, title: str = "") -> None:
    """Draw ROC curves of models, with their areas; chance is dashed."""
    from sklearn.metrics import roc_curve

    figure, [axes] = new_figure(1, 1)
    for name, found in pairs.items():
        x, y, _ = roc_curve(found.same, comparable(found.score))
        axes.plot(x, y, label=f"{name} ({roc_auc(found.score, found.same):.3f})")
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
    axes.set(xlabel="false-accept rate", ylabel="true-accept rate", title=title, xlim=(0, 1), ylim=(0, 1.005))
    save_figure(figure, path)


def precision_recall(pairs: Mapping[str, Scored], path: Place, title: str = "") -> None:
    """Draw precision over recall of models, with average precision; the share of pairs of one identity is dashed."""
    from sklearn.metrics import precision_recall_curve

    figure, [axes] = new_figure(1, 1)
    for name, found in pairs.items():
        precision, recall, _ = precision_recall_curve(found.same, comparable(found.score))
        axes.step(recall, precision, where="post", label=f"{name} ({average_precision(found.score, found.same):.3f})")
    base = np.mean([np.mean(np.asarray(found.same, dtype=float)) for found in pairs.values()])
    axes.axhline(float(base), color="0.6", linestyle="--", linewidth=1)
    axes.set(xlabel="recall", ylabel="precision", title=title, xlim=(0, 1), ylim=(0, 1.005))
    save_figure(figure, path)


def distributions(pairs: Mapping[str, Scored], path: Place, title: str = "") -> None:
    """Draw distributions of similarities of one identity and of two: density above, ECDF below, a column per model."""
    figure, axes = new_figure(2, len(pairs), width=3.4)
    for column, (name, found) in enumerate(pairs.items()):
        s, r = np.asarray(found.score, dtype=np.float64), np.asarray(found.same, dtype=bool)
        bins = np.linspace(s.min(), s.max() + 1e-9, _BINS + 1)
        above, below = axes[column], axes[len(pairs) + column]
        for label, own, color in (("different", s[~r], "C3"), ("same", s[r], "C0")):
            above.hist(own, bins=bins.tolist(), density=True, alpha=0.5, color=color, label=label)
            below.ecdf(own, color=color, label=label)
        above.set(title=name if not title else f"{name}, {title}", yticks=[])
        below.set(xlabel="similarity", ylabel="share not above", ylim=(0, 1.005))

    save_figure(figure, path)


def against_oracle(scores: Mapping[str, ArrayLike], oracle: ArrayLike, path: Place, title: str = "") -> None:
    """Draw the ECDF of models' similarities to part-edits, and of the oracle 1 - |part| / |object| (NearID, Fig. 9)."""
    figure, [axes] = new_figure(1, 1)
    for name, values in scores.items():
        axes.ecdf(values, label=name)
    axes.ecdf(oracle, color="black", linestyle="--", label="oracle")
    axes.set(xlabel="similarity to the edited view", ylabel="share not above", title=title, ylim=(0, 1.005))
    save_figure(figure, path)


def sensitivity_bars(found: Mapping[str, Mapping[str, tuple[Value, Value]]], path: Place) -> None:
    """Draw sensitivities to identity and to context with intervals, a panel per factor (ID-Sim, Fig. 6, top).

    Args:
        found: model -> factor -> sensitivity to identity, and to the factor.
    """
    factors = list(dict.fromkeys(factor for own in found.values() for factor in own))
    figure, axes = new_figure(1, len(factors), width=3.4)
    for panel, factor in zip(axes, factors, strict=True):
        models = [name for name, own in found.items() if factor in own]
        for k, label in enumerate(("identity", "context")):
            values = [found[name][factor][k] for name in models]
            heights, spread = [v.value for v in values], np.concatenate([_spread(v) for v in values], 1)
            panel.bar(np.arange(len(models)) + 0.4 * k - 0.2, heights, 0.4, yerr=spread, capsize=3, label=label)
        panel.set_xticks(range(len(models)), models, rotation=30, ha="right")
        panel.axhline(0, color="0.3", linewidth=0.8)
        panel.set(title=factor, ylabel="similarity lost" if panel is axes[0] else "")

    save_figure(figure, path)


def similarity_trends(grids: Mapping[str, Mapping[str, Sequence[Any]]], path: Place) -> None:
    """Draw mean similarity over growing identity change, and over each context change (ID-Sim, Fig. 6, bottom).

    Args:
        grids: model -> columns instance, factor, factor_change, identity_change, score; factor "none" marks points
            without a change of context.
    """
    figure, axes = new_figure(1, len(grids), width=3.4)
    for panel, (name, grid) in zip(axes, grids.items(), strict=True):
        score, identity, context = (np.asarray(grid[c], dtype=float) for c in ("score", "identity_change",
                                                                                "factor_change"))  # fmt: skip
        factor, instance = np.asarray(grid["factor"], dtype=object), np.asarray(grid["instance"], dtype=object)
        curves = {"identity": (context == 0, identity)}
        for which in dict.fromkeys(factor):
            if which != "none":
                curves[which] = ((identity == 0) & np.isin(factor.astype(str), (which, "none")), context)
        for label, (chosen, change) in curves.items():
            points = trend(score[chosen], change[chosen], instance[chosen]) if chosen.any() else {}
            if points:
                [line] = panel.plot(list(points), [p.value for p in points.values()], marker=".", label=label)
                low, high = ([getattr(p, side) for p in points.values()] for side in ("low", "high"))
                panel.fill_between(list(points), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        panel.set(title=name, xlabel="change", ylabel="similarity" if panel is axes[0] else "")

    save_figure(figure, path)


def reliability(bins: Mapping[str, Mapping[str, Sequence[Any]]], path: Place, title: str = "") -> None:
    """Draw the reliability of models' probabilities: share of pairs of one identity over probability, counts below.

    Args:
        bins: model -> columns probability (mean of a bin), share, count; see `calibration.reliability`.
    """
    figure, [above, below] = new_figure(2, 1)
    above.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
    for name, columns in bins.items():
        above.plot(columns["probability"], columns["share"], marker="o", markersize=3, label=name)
        below.plot(columns["probability"], columns["count"], marker="o", markersize=3)
    above.set(ylabel="share of same identity", title=title, xlim=(0, 1), ylim=(0, 1.005))
    below.set(xlabel="probability", ylabel="pairs", xlim=(0, 1), yscale="log")
    save_figure(figure, path)


def trade_off(
    found: Mapping[str, Mapping[str, tuple[Value, Value]]],
    path: Place,
    names: tuple[str, str],
    copying: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> None:
    """Draw methods by two scores with intervals, a panel per model; the Pareto front is dashed.

    Names are in a legend next to the panel, where those of near points do not overlap.

    Args:
        found: model -> method -> its two scores, higher = better. names: of the scores.
        copying: model -> methods that return copies, which are drawn hollow and left off the front.
    """
    figure, axes = new_figure(1, len(found))
    for panel, (model, methods) in zip(axes, found.items(), strict=True):
        x, y = (np.array([pair[k].value for pair in methods.values()]) for k in range(2))
        new = np.array([method not in copying.get(model, ()) for method in methods])
        for k, (method, (a, b)) in enumerate(methods.items()):
            panel.errorbar(
                a.value, b.value, yerr=_spread(b), xerr=_spread(a), fmt="o", color=f"C{k % 10}", capsize=3,
                fillstyle="full" if new[k] else "none",
                label=(method if new[k] else f"{method} (copies)").replace("$", r"\$"),
            )  # fmt: skip
        if new.any():
            best = np.flatnonzero(new)[on_front(x[new], y[new])]
            best = best[np.argsort(x[best])]
            panel.plot(x[best], y[best], color="0.5", linestyle="--", linewidth=1, zorder=0)
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)
        panel.set(xlabel=names[0], ylabel=names[1], title=model)

    save_figure(figure, path)


def on_front(x: ArrayLike, y: ArrayLike) -> Truths:
    """Whether no other point (N,) is at least as high on both scores and higher on one.

    >>> on_front([1, 2, 3, 2], [3, 2, 1, 1]).tolist()
    [True, True, True, False]
    """
    a, b = comparable(x), comparable(y)
    not_lower = (a[:, None] >= a) & (b[:, None] >= b)
    higher = (a[:, None] > a) | (b[:, None] > b)
    return np.logical_not((not_lower & higher).any(0))


def _spread(value: Value) -> Array:
    """The distances (2, 1) of an interval's ends from the value; 0 without an interval."""
    ends = (value.value if end is None else end for end in (value.low, value.high))
    found: Array = np.abs(np.array([[end - value.value] for end in ends]))
    return found


# Training steps


def steps_of(result: Result) -> dict[int, Row]:
    """Step -> row of a result with rows of steps; empty for others."""
    return {int(str(row["step"])): row for row in result.rows if str(row.get("step", "")).isdigit()}


def step_curves(results: Sequence[Result], path: Place) -> None:
    """Draw each number over training steps, a panel per number, with intervals as bands; the best step has a ring.

    Args:
        results: with rows of steps, one result per model.
    """
    names = [name for name in names_of(results, Value) if name != _ANCHOR]
    figure, axes = new_figure(math.ceil(len(names) / _COLUMNS), min(_COLUMNS, len(names)), width=3.4)
    for panel, name in zip(axes, names, strict=False):
        for k, result in enumerate(results):
            rows = steps_of(result)
            _curve(panel, rows, name, f"C{k % 10}", result.model if panel is axes[0] else "")  # one legend is enough
            anchors = [v.value for row in rows.values() if isinstance(v := row.get(_ANCHOR), Value)]
            if name == "identity" and anchors:
                panel.axhline(anchors[-1], color=f"C{k % 10}", linestyle="--", linewidth=1)
        panel.set(title=name, xlabel="step")

    for panel in axes[len(names) :]:
        panel.remove()
    save_figure(figure, path)


def _curve(panel: Axes, rows: Mapping[int, Row], name: str, color: str, label: str) -> None:
    found = {step: value for step, row in sorted(rows.items()) if isinstance(value := row.get(name), Value)}
    panel.plot(list(found), [v.value for v in found.values()], color=color, marker=".", label=label, zorder=3)
    banded = [(step, v.low, v.high) for step, v in found.items() if v.low is not None and v.high is not None]
    at, low, high = np.array(banded, dtype=np.float64).reshape(-1, 3).T
    panel.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
    best = {step: value.value for step, value in found.items() if rows[step].get("best")}
    if best:
        panel.plot(list(best), list(best.values()), "o", color=color, markersize=11, fillstyle="none", zorder=4)


# All plots of results


def draw(results: Sequence[Result], out: Path, name: str, ending: str = "png") -> list[Path]:
    """Draw all plots that the results' items allow, as `name`.PLOT.`ending`; each of several datasets has its plots.

    Items named "pairs" (score, same) give ROC, precision and recall, and distributions; "parts" (score, oracle) the
    oracle's ECDF; "grid", with rows of the bench "sensitivity", bars and trends; "reliability" its curve. Rows of
    methods with identity, and diversity or CLIP-T, give the Pareto front of the methods that do not copy; rows of
    steps give curves.
    """
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def place(plot: str, part: str = "") -> Path:
        middle = f".{slug(part)}" if part else ""
        written.append(out / f"{name}{middle}.{plot}.{ending}")
        return written[-1]

    for part, pairs in _pairs(results).items():
        roc(pairs, place("roc", part), part)
        precision_recall(pairs, place("pr", part), part)
        distributions(pairs, place("distributions", part), part)

    parts = {r.model: r.items["parts"] for r in results if "parts" in r.items}
    if parts:
        first = next(iter(parts.values()))
        against_oracle({m: columns["score"] for m, columns in parts.items()}, first["oracle"], place("oracle"))
    bins = {r.model: r.items["reliability"] for r in results if "reliability" in r.items}
    if bins:
        reliability(bins, place("reliability"))
    bars = {r.model: found for r in results if (found := _two_values(r, "bench", "sensitivity", "context", "which"))}
    if bars:
        sensitivity_bars(bars, place("sensitivity"))
        similarity_trends({r.model: r.items["grid"] for r in results if "grid" in r.items}, place("trends"))
    for other in ("diversity", "CLIP-T"):
        methods = {r.model: _two_values(r, "group", "all", other, "method") for r in results}
        fronts = {model: found for model, found in methods.items() if len(found) > 1}
        if fronts:
            copies = {r.model: copying(r) for r in results}
            trade_off(fronts, place("pareto", other), ("identity", other), copying=copies)
    if stepped := [result for result in results if steps_of(result)]:
        step_curves(stepped, place("steps"))
    return written


def _pairs(results: Sequence[Result]) -> dict[str, dict[str, Scored]]:
    """Return dataset (empty for a single one) -> model -> pairs, if both kinds exist."""
    found: dict[str, dict[str, Scored]] = {}
    for result in results:
        columns = result.items.get("pairs", {})
        if not {"score", "same"} <= columns.keys():
            continue
        score, same = np.asarray(columns["score"], dtype=float), np.asarray(columns["same"], dtype=bool)
        names = np.asarray(columns.get("dataset", [""] * len(score)), dtype=object)
        several = len(set(names)) > 1
        for name in dict.fromkeys(names):
            own = names == name
            if same[own].any() and not same[own].all():
                found.setdefault(name if several else "", {})[result.model] = Scored(score[own], same[own])

    return found


def _two_values(result: Result, label: str, text: str, other: str, name: str) -> dict[str, tuple[Value, Value]]:
    """Identity and another score of the rows whose label has this text, by another label."""
    return {
        str(row[name]): (identity, score)
        for row in result.rows
        if row.get(label) == text
        and isinstance(identity := row.get("identity"), Value)
        and isinstance(score := row.get(other), Value)
    }
