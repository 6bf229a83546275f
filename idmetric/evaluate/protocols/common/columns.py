"""Columns of a manifest as protocols read them, and names in messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame


Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]
Group = tuple[str, str | None]  # name and split
_SHOWN = 5


def own(data: DataFrame, *names: str) -> list[Any]:
    """The values of the first of these columns that there is, none of them a manifest's; None where it is empty."""
    for name in names:
        if name in data:
            values = data[name].astype(object)
            return list(values.where(values.notna(), None))
    return [None] * len(data)


def groups(data: DataFrame, rows: Ints | slice = slice(None)) -> dict[Group, dict[str, list[int]]]:
    """Group -> slot -> its rows (default: of all rows); groups of one name in two splits are two."""
    columns = data[["group", "split", "slot"]].iloc[rows]
    slots_of_groups: dict[Group, dict[str, list[int]]] = {}
    for row, name, split, slot in columns[columns["group"].notna()].itertuples():
        rows_of_slots = slots_of_groups.setdefault((name, split), {})
        rows_of_slots.setdefault(slot, []).append(row)
    return slots_of_groups


def positions(values: Ints) -> dict[int, Ints]:
    """Value -> its positions, ascending."""
    order = np.argsort(values, kind="stable")
    different, starts = np.unique(values[order], return_index=True)
    parts = np.split(order, starts[1:])
    return dict(zip(different.tolist(), parts, strict=True))


def known(values: Array) -> list[float | None]:
    """Numbers as items are kept, None in place of NaN."""
    numbers = values.astype(object)
    numbers[np.isnan(values)] = None
    items: list[float | None] = numbers.tolist()
    return items


def parameters(data: DataFrame) -> list[dict[str, Any]]:
    """The parameters of each row; empty for a row without."""
    return [json.loads(text or "{}") for text in data["parameters"]]


def plain(name: str) -> str:
    """A name's letters and digits in lower case, to compare names by."""
    return "".join(character for character in name.lower() if character.isalnum())


def listed(names: Iterable[str]) -> str:
    """The first different names, and how many more there are."""
    different = list(dict.fromkeys(names))
    shown = ", ".join(different[:_SHOWN])
    if len(different) > _SHOWN:
        shown += f" and {len(different) - _SHOWN} more"
    return shown
