"""Curves of a LoRA's checkpoints over training steps; see `idmetric.protocols.checkpoints`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from idmetric.protocols.common.result import Result, Row, Value, names_of
from idmetric.report.figure import Place, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_ANCHOR = "real"  # dashed in the panel of identity


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
            _curve(panel, rows, name, f"C{k % 10}", result.model)
            anchors = [v.value for row in rows.values() if isinstance(v := row.get(_ANCHOR), Value)]
            if name == "identity" and anchors:
                panel.axhline(anchors[-1], color=f"C{k % 10}", linestyle="--", linewidth=1)
        panel.set(title=name, xlabel="step")

    for panel in axes[len(names) :]:
        panel.remove()
    for panel in axes[1 : len(names)]:  # one legend is enough
        for line in panel.get_lines():
            line.set_label(None)
    save_figure(figure, path)


def _curve(panel: Axes, rows: Mapping[int, Row], name: str, color: str, label: str) -> None:
    found = {step: value for step, row in sorted(rows.items()) if isinstance(value := row.get(name), Value)}
    panel.plot(list(found), [v.value for v in found.values()], color=color, marker=".", label=label, zorder=3)
    banded = {step: v for step, v in found.items() if v.low is not None and v.high is not None}
    low, high = ([getattr(v, end) for v in banded.values()] for end in ("low", "high"))
    panel.fill_between(list(banded), low, high, color=color, alpha=0.15, linewidth=0)
    for step, value in found.items():
        if rows[step].get("best"):
            panel.plot([step], [value.value], color=color, marker="o", markersize=11, fillstyle="none", zorder=4)
