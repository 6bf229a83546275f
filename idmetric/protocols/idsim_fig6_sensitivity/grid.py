"""Edit grids in a manifest: pictures with their anchor and the amounts of their changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.columns import free, parameters

NONE = "none"  # the factor of pictures without a change of context
_COLUMNS = ("factor", "factor_change", "identity_change")


@dataclass(frozen=True)
class Cell:
    """A picture of an edit grid: its row, its anchor's row, its instance, and its changes."""

    row: int
    anchor: int
    instance: str
    factor: str
    factor_change: float
    identity_change: float


def cells(data: Manifest) -> list[Cell]:
    """The cells of all edit grids of a manifest, in its order; the anchors have no change.

    Raises:
        ValueError: if there are no grids, a row lacks its changes, or an instance does not have exactly one anchor.
    """
    groups, slots = list(zip(data.column("group"), data.column("split"), strict=True)), data.column("slot")
    about = _about(data)
    edits = [
        slot == "candidate" and any(a[n] is not None for n in _COLUMNS) for slot, a in zip(slots, about, strict=True)
    ]
    instances = {group for group, edit in zip(groups, edits, strict=True) if edit}
    anchors: dict[Any, int] = {}
    for row, (group, slot) in enumerate(zip(groups, slots, strict=True)):
        if slot == "anchor" and group in instances and anchors.setdefault(group, row) != row:
            raise ValueError(f"row {row + 1}: a second anchor of the instance (group) {group[0]!r}: one is unchanged")
    found: list[Cell] = []

    for row, (group, changes) in enumerate(zip(groups, about, strict=True)):
        if group not in instances or not (edits[row] or slots[row] == "anchor"):
            continue
        if group not in anchors:
            raise ValueError(f"row {row + 1}: its instance (group {group[0]!r}) has no anchor: slot anchor = unchanged")
        instance = group[0] if group[1] is None else f"{group[1]}/{group[0]}"
        if not edits[row]:
            found.append(Cell(row, row, instance, NONE, 0.0, 0.0))
            continue
        factor = changes["factor"]
        if factor is None:
            raise ValueError(f"row {row + 1}: no factor: say which context was changed, or {NONE!r} (column x_factor)")
        numbers = [_number(changes[name], name, row) for name in _COLUMNS[1:]]
        found.append(Cell(row, anchors[group], instance, str(factor), *numbers))

    if not found:
        raise ValueError(
            "no edit grids: rows with slot candidate and x_factor, x_factor_change, x_identity_change, in the group of "
            "an anchor (or render some: idmetric data world --grid light)"
        )
    return found


def rescaled(grid: Sequence[Cell]) -> list[Cell]:
    """Identity changes, and each factor's changes, over their largest."""
    identity = max(abs(cell.identity_change) for cell in grid) or 1.0
    largest: dict[str, float] = {}
    for cell in grid:
        largest[cell.factor] = max(largest.get(cell.factor, 0.0), abs(cell.factor_change))
    return [
        replace(
            cell, identity_change=cell.identity_change / identity,
            factor_change=cell.factor_change / (largest[cell.factor] or 1.0),
        )
        for cell in grid
    ]  # fmt: skip


def _about(data: Manifest) -> list[dict[str, Any]]:
    """The changes of each row, by its columns x_... or its parameters."""
    columns = {name: free(data, name) for name in _COLUMNS}
    return [
        {name: given.get(name) if values[row] in (None, "") else values[row] for name, values in columns.items()}
        for row, given in enumerate(parameters(data))
    ]


def _number(given: Any, name: str, row: int) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise ValueError(f"row {row + 1}: {name} is {given!r}: a number says how much was changed, 0 = not at all")
    return value
