"""Columns of a manifest as protocols read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from idmetric.data.old_manifest.table import Manifest


Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]
Group = tuple[str, str | None]  # name and split
_SHOWN = 5


def texts(data: Manifest, name: str, empty: str | None = None) -> NDArray[Any]:
    """A column of texts as an array (N,) of objects, with `empty` in place of missing ones."""
    column = [empty if text is None else text for text in data.column(name)]
    return np.array(column, dtype=object)


def named(data: Manifest) -> Truths:
    """Whether each row (N,) has an identity."""
    return np.array([identity is not None for identity in data.column("identity")], dtype=bool)


def free(data: Manifest, name: str) -> list[Any]:
    """The column x_`name`; None for each row if the manifest lacks it."""
    column = f"x_{name}"
    if column not in data.table.column_names:
        return [None] * len(data)
    return data.column(column)


def groups(data: Manifest, rows: Iterable[int] | None = None) -> dict[Group, dict[str, list[int]]]:
    """Group -> slot -> its rows (default: of all rows); groups of one name in two splits are two."""
    names = data.column("group")
    splits = data.column("split")
    slots = data.column("slot")
    if rows is None:
        rows = range(len(data))

    slots_of_groups: dict[Group, dict[str, list[int]]] = {}
    for row in rows:
        slot = slots[row]
        if names[row] is not None and slot is not None:
            group = (names[row], splits[row])
            rows_of_slots = slots_of_groups.setdefault(group, {})
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


def parameters(data: Manifest) -> list[dict[str, Any]]:
    """The parameters of each row; empty for a row without."""
    return [json.loads(text or "{}") for text in data.column("parameters")]


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
