"""Plots of evaluations as PNG or SVG files: ROC, the oracle of part edits, sensitivity, the Pareto front.

    draw(results, Path("results"), "folder", "svg")  # all plots that the results' items allow

    pairs = {"tiny": Scored(scores, same)}
    roc(pairs, "roc.svg")

A file's extension selects its format. Colors follow the order of the models and agree between plots of one run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from idmetric.evaluate.protocols.common.result import (
    Columns,
    Result,
    Value,
    copying,
    numbers_of,
    slug,
)
from idmetric.evaluate.report.figure import new_figure, save_figure
from idmetric.evaluate.statistics.checks import Truths
from idmetric.evaluate.statistics.ranking import roc_auc
from idmetric.evaluate.statistics.sensitivity import trend
from idmetric.metric.files import StrPath, need
from idmetric.metric.ties import comparable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TwoValues = Mapping[str, tuple[Value, Value]]
_DASHED: dict[str, Any] = {"color": "0.6", "linestyle": "--", "linewidth": 1}
_SHARES: dict[str, Any] = {"ylim": (0, 1.005)}
_UNIT_SQUARE: dict[str, Any] = {"xlim": (0, 1), **_SHARES}


@dataclass(frozen=True)
class Scored:
    """Pairs with their similarity (higher = more alike) and whether they show one identity."""

    score: ArrayLike
    same: ArrayLike


# Plots


def roc(pairs: Mapping[str, Scored], path: StrPath, title: str = "") -> None:
    """Draw ROC curves of models, with their areas; chance is dashed."""
    need("eval", "ROC curves", sklearn="scikit-learn")
    from sklearn.metrics import roc_curve

    figure, [axes] = new_figure(1, 1)
    for model, scored in pairs.items():
        area = roc_auc(scored.score, scored.same)
        scores = comparable(scored.score)
        false_accepts, true_accepts, _ = roc_curve(scored.same, scores)
        axes.plot(false_accepts, true_accepts, label=f"{model} ({area:.3f})")
    axes.plot([0, 1], [0, 1], **_DASHED)
    axes.set(
        xlabel="false-accept rate",
        ylabel="true-accept rate",
        title=title,
        **_UNIT_SQUARE,
    )
    save_figure(figure, path)


def against_oracle(scores: Mapping[str, ArrayLike], oracle: ArrayLike, path: StrPath) -> None:
    """Draw the ECDF of models' similarities to part-edits, and of the oracle 1 - |part| / |object| (NearID, Fig. 9)."""
    figure, [axes] = new_figure(1, 1)
    for model, values in scores.items():
        axes.ecdf(values, label=model)
    axes.ecdf(oracle, color="black", linestyle="--", label="oracle")
    axes.set(
        xlabel="similarity to the edited view",
        ylabel="share not above",
        **_SHARES,
    )
    save_figure(figure, path)


def sensitivity_bars(slopes: Mapping[str, TwoValues], path: StrPath) -> None:
    """Draw sensitivities to identity and to context with intervals, a panel per factor (ID-Sim, Fig. 6, top).

    Args:
        slopes: model -> factor -> sensitivity to identity, and to the factor.
    """
    factors = list(dict.fromkeys(chain.from_iterable(slopes.values())))
    figure, axes = new_figure(1, len(factors), width=3.4)
    for panel, factor in zip(axes, factors, strict=True):
        pairs = {}
        for model, by_factor in slopes.items():
            if factor in by_factor:
                pairs[model] = by_factor[factor]

        x = np.arange(len(pairs))
        for index, label in enumerate(("identity", "context")):
            values = [pair[index] for pair in pairs.values()]
            heights = [value.value for value in values]
            ends = np.transpose([_error_bar(value) for value in values])
            left = x + 0.4 * index - 0.2
            panel.bar(left, heights, 0.4, yerr=ends, capsize=3, label=label)
        panel.set_xticks(x, list(pairs), rotation=30, ha="right")
        panel.axhline(0, color="0.3", linewidth=0.8)
        panel.set(title=factor)
    axes[0].set(ylabel="similarity lost")
    save_figure(figure, path)


def similarity_trends(grids: Mapping[str, Columns], path: StrPath) -> None:
    """Draw mean similarity over growing identity change, and over each context change (ID-Sim, Fig. 6, bottom).

    Args:
        grids: model -> columns instance, factor, factor_change, identity_change, score; factor "none" marks points
            without a change of context.
    """
    figure, axes = new_figure(1, len(grids), width=3.4)
    for panel, (model, grid) in zip(axes, grids.items(), strict=True):
        columns = {name: np.asarray(values) for name, values in grid.items()}
        identity = columns["identity_change"]
        context = columns["factor_change"]
        curves = {"identity": (context == 0, identity)}
        for factor in dict.fromkeys(grid["factor"]):
            if factor != "none":
                in_curve = np.isin(columns["factor"], (factor, "none"))
                curves[factor] = (in_curve & (identity == 0), context)

        for name, (chosen, change) in curves.items():
            if not chosen.any():
                continue
            points = trend(columns["score"][chosen], change[chosen], columns["instance"][chosen])
            if points:
                heights = [interval.value for interval in points.values()]
                ends = [(interval.low, interval.high) for interval in points.values()]
                [line] = panel.plot(list(points), heights, marker=".", label=name)
                _band(panel, list(points), ends, line.get_color())
        panel.set(title=model, xlabel="change")
    axes[0].set(ylabel="similarity")
    save_figure(figure, path)


def trade_off(
    scores: Mapping[str, TwoValues],
    path: StrPath,
    names: tuple[str, str],
    copying: Mapping[str, Collection[str]],
) -> None:
    """Draw methods by two scores with intervals, a panel per model; the Pareto front is dashed.

    Names are in a legend next to the panel, where those of near points do not overlap.

    Args:
        scores: model -> method -> its two scores, higher = better. names: of the scores.
        copying: model -> methods that return copies, which are drawn hollow and left off the front.
    """
    figure, axes = new_figure(1, len(scores))
    for panel, (model, methods) in zip(axes, scores.items(), strict=True):
        new = []  # points of methods that do not copy
        for index, (method, (a, b)) in enumerate(methods.items()):
            label, fill = method, "full"
            if method in copying.get(model, ()):
                label, fill = f"{method} (copies)", "none"
            else:
                new.append((a.value, b.value))
            panel.errorbar(
                a.value,
                b.value,
                xerr=np.transpose([_error_bar(a)]),
                yerr=np.transpose([_error_bar(b)]),
                fmt="o",
                color=f"C{index % 10}",
                capsize=3,
                fillstyle=fill,
                label=label.replace("$", r"\$"),
            )
        if new:
            x, y = np.transpose(new)
            front = np.flatnonzero(on_front(x, y))
            front = front[np.argsort(x[front])]
            panel.plot(x[front], y[front], color="0.5", linestyle="--", linewidth=1, zorder=0)
        panel.legend(
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            fontsize="small",
            frameon=False,
        )
        panel.set(xlabel=names[0], ylabel=names[1], title=model)
    save_figure(figure, path)


def on_front(x: ArrayLike, y: ArrayLike) -> Truths:
    """Whether no other point (N,) is at least as high on both scores and higher on one.

    >>> on_front([1, 2, 3, 2], [3, 2, 1, 1]).tolist()
    [True, True, True, False]
    """
    points = np.stack([comparable(x), comparable(y)], axis=1)
    front = np.ones(len(points), dtype=bool)
    for index, point in enumerate(points):
        is_as_high = (points >= point).all(1)
        is_higher = (points > point).any(1)
        front[index] = not (is_as_high & is_higher).any()
    return front


def _error_bar(value: Value) -> tuple[float, float]:
    """The distances of an interval's ends from the value; 0 without an interval."""
    if value.low is None or value.high is None:
        return 0.0, 0.0
    below = abs(value.value - value.low)
    above = abs(value.high - value.value)
    return below, above


def _band(
    panel: Axes,
    x: Sequence[float],
    ends: Sequence[tuple[float, float]],
    color: str,
) -> None:
    """Shade the intervals of a curve."""
    low, high = np.reshape(ends, (-1, 2)).T
    panel.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


# All plots of results


def draw(results: Sequence[Result], out: Path, name: str, ending: str = "png") -> list[Path]:
    """Draw all plots that the results' items allow, as `name`.PLOT.`ending`; each of several datasets has its plots.

    Items named "pairs" (score, same) give ROC curves; "parts" (score, oracle) the oracle's ECDF; "grid" and rows of
    sensitivities to context bars and trends. Rows of methods with identity and diversity, or else CLIP-T, give the
    Pareto front of the methods that do not copy.
    """
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def new_path(plot: str, part: str = "") -> Path:
        stem = name
        if part:
            stem += f".{slug(part)}"
        path = out / f"{stem}.{plot}.{ending}"
        written.append(path)
        return path

    for part, pairs in _pairs(results).items():
        roc(pairs, new_path("roc", part), part)

    if parts := _items(results, "parts"):
        oracles = [columns["oracle"] for columns in parts.values()]
        scores = {model: columns["score"] for model, columns in parts.items()}
        against_oracle(scores, oracles[0], new_path("oracle"))
    if slopes := _two_values(results, "which", "context"):
        sensitivity_bars(slopes, new_path("sensitivity"))
        similarity_trends(_items(results, "grid"), new_path("trends"))

    for score in ("diversity", "CLIP-T"):
        values = _two_values(results, "method", score)
        several = {model: methods for model, methods in values.items() if len(methods) > 1}
        if several:
            copies = {result.model: copying(result) for result in results}
            trade_off(several, new_path("pareto", score), ("identity", score), copies)
            break
    return written


def _items(results: Sequence[Result], table: str) -> dict[str, Columns]:
    """Model -> a table of its items."""
    return {result.model: result.items[table] for result in results if table in result.items}


def _pairs(results: Sequence[Result]) -> dict[str, dict[str, Scored]]:
    """Return dataset (empty for a single one) -> model -> pairs, if both kinds exist."""
    pairs: dict[str, dict[str, Scored]] = {}
    for model, columns in _items(results, "pairs").items():
        if not {"score", "same"} <= columns.keys():
            continue
        score = np.asarray(columns["score"], dtype=float)
        same = np.asarray(columns["same"], dtype=bool)
        datasets = np.asarray(columns.get("dataset", [""] * len(score)), dtype=object)
        names = list(dict.fromkeys(datasets))
        for name in names:
            rows = datasets == name
            scored = Scored(score[rows], same[rows])
            if len(np.unique(scored.same)) < 2:
                continue
            if len(names) == 1:
                name = ""
            pairs.setdefault(name, {})[model] = scored
    return pairs


def _two_values(results: Sequence[Result], label: str, score: str) -> dict[str, TwoValues]:
    """Model -> text of a label -> identity and another score of the row; rows of groups are left out."""
    by_model: dict[str, TwoValues] = {}
    for result in results:
        rows = {}
        for row in result.rows:
            numbers = numbers_of(row)
            is_whole = row.get("group", "all") == "all"
            if is_whole and label in row and {"identity", score} <= numbers.keys():
                rows[str(row[label])] = numbers["identity"], numbers[score]
        if rows:
            by_model[result.model] = rows
    return by_model
