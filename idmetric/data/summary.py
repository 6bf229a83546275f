"""A summary of a manifest, and its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from idmetric.data.check import Fault
from idmetric.data.split import image_keys, leaks
from idmetric.tables import aligned, first_few, printable

if TYPE_CHECKING:
    import pandas as pd

COUNTED = ("dataset", "split", "role", "domain", "category", "engine", "slot")


def problems(table: pd.DataFrame, faults: Sequence[Fault] = (), need_masks: bool = False) -> dict[str, list[str]]:
    """The kinds of problems of a manifest, which make results wrong, and their cases.

    Args:
        faults: the result of `idmetric.data.check.faults`.
        need_masks: rows of images without a mask are a problem.
    """
    leaking = []
    for name, splits in leaks(table).items():
        leaking.append(f"{name}: {', '.join(splits)}")
    missing = []
    unreadable = []
    for fault in faults:
        if fault.missing:
            missing.append(str(fault))
        else:
            unreadable.append(str(fault))
    names = table["id"].tolist()
    without_mask = []
    lacks_mask = table["path"].notna() & table["mask"].isna() & need_masks
    for row in np.flatnonzero(lacks_mask):
        without_mask.append(f"row {row + 1}: {names[row]}")
    cases = {
        "identities are in more than one split": leaking,
        "files are in more than one split": _files_with_several(table, "split"),
        "files show more than one identity": _files_with_several(table, "identity"),
        "files are missing": missing,
        "images or masks cannot be read": unreadable,
        "rows have no mask": without_mask,
    }
    return {kind: lines for kind, lines in cases.items() if lines}


def _files_with_several(table: pd.DataFrame, column: str) -> list[str]:
    """A line for each file of rows with different values in a column."""
    lines = []
    values_of_files = table[column].dropna().groupby(table["path"], sort=False).unique()
    for path, values in values_of_files.items():
        if len(values) > 1:
            lines.append(f"{path}: {', '.join(values)}")
    return lines


def as_text(table: pd.DataFrame, cases: Mapping[str, Sequence[str]]) -> str:
    """Numbers of rows, images and identities, values of columns, and problems as text for a terminal.

    Args:
        cases: the result of `problems`.
    """
    groups = table.assign(image=image_keys(table)).groupby("identity")
    images = groups["image"].nunique()
    lines = [f"{len(table)} rows, {table['path'].nunique()} images, {len(images)} identities"]
    if len(images):
        lines.append(f"images per identity: {images.min()} to {images.max()}, median {images.median():g}")
    counts = {
        "without identity": table["identity"].isna().sum(),
        "of text alone": table["path"].isna().sum(),
        "with mask": table["mask"].notna().sum(),
        "with part mask": table["part_mask"].notna().sum(),
    }
    lines += [f"rows {kind}: {count}" for kind, count in counts.items() if count]

    # a table for each column that has several values
    for column in COUNTED:
        values = table[column].fillna("")
        row_counts = Counter(values)
        is_single = len(row_counts) <= 1
        if is_single and (column not in ("dataset", "split") or "" in row_counts):
            continue
        identities = table["identity"].groupby(values).nunique()
        cells = [[column, "rows", "identities"]]
        for value, count in row_counts.most_common():
            cells.append([f"  {value or '(empty)'}", str(count), str(identities[value])])
        head, *rest = aligned(cells, right=(1, 2))
        lines += ["", head, *first_few(rest)]

    lines += ["", "problems:" if cases else "no problems found"]
    for kind, cases_of_kind in cases.items():
        lines.append(f"  {len(cases_of_kind)} {kind}")
        lines += [f"      {printable(case)}" for case in first_few(cases_of_kind, 3)]
    return "\n".join(lines)
