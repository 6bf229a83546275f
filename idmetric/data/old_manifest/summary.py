"""A summary of a manifest, and its problems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from idmetric.data.check import Fault
from idmetric.data.old_manifest.lineage import has_image, image_keys
from idmetric.data.old_manifest.split import leaks
from idmetric.data.old_manifest.table import Manifest
from idmetric.tables import aligned, first_few, printable

COUNTED = ("dataset", "split", "role", "domain", "category", "engine", "slot")


def problems(manifest: Manifest, faults: Sequence[Fault] = (), need_masks: bool = False) -> dict[str, list[str]]:
    """The kinds of problems of a manifest, which make results wrong, and their cases.

    Args:
        faults: the result of `idmetric.data.old_manifest.check.faults`.
        need_masks: rows of images without a mask are a problem.
    """
    ids, keys = manifest.column("id"), image_keys(manifest)
    file_of: dict[str, str] = {}
    for key, path, name in zip(keys, manifest.column("path"), ids, strict=True):
        file_of.setdefault(key, path or f"bytes of {name}")

    def images_with_several(column: str) -> list[str]:
        lines = []
        for key, values in _values_of(keys, manifest.column(column)).items():
            if len(values) > 1:
                lines.append(f"{file_of[key]}: {', '.join(values)}")
        return lines

    lacks_mask = has_image(manifest) & ~has_image(manifest, "mask")
    unmasked = np.flatnonzero(lacks_mask) if need_masks else ()
    cases = {
        "identities are in more than one split": [
            f"{name}: {', '.join(splits)}" for name, splits in leaks(manifest).items()
        ],
        "files are in more than one split": images_with_several("split"),
        "files show more than one identity": images_with_several("identity"),
        "files are missing": [str(fault) for fault in faults if fault.missing],
        "images or masks cannot be read": [str(fault) for fault in faults if not fault.missing],
        "rows have no mask": [f"row {row + 1}: {ids[row]}" for row in unmasked],
    }
    return {kind: lines for kind, lines in cases.items() if lines}


def as_text(manifest: Manifest, cases: Mapping[str, Sequence[str]]) -> str:
    """Numbers of rows, images and identities, values of columns, and problems as text for a terminal.

    Args:
        cases: the result of `problems`.
    """
    identity, shows_image = manifest.column("identity"), has_image(manifest)
    keys = np.array(image_keys(manifest), dtype=object)
    images_of = _values_of(identity, keys)
    images_of.pop(None, None)  # rows without an identity
    sizes = [len(images) for images in images_of.values()]
    lines = [f"{len(manifest)} rows, {len({*keys[shows_image]})} images, {len(sizes)} identities"]
    if sizes:
        lines.append(f"images per identity: {min(sizes)} to {max(sizes)}, median {median(sizes):g}")
    counts = {
        "without identity": identity.count(None),
        "of text alone": (~shows_image).sum(),
        "with mask": has_image(manifest, "mask").sum(),
        "with part mask": has_image(manifest, "part_mask").sum(),
    }
    lines += [f"rows {kind}: {count}" for kind, count in counts.items() if count]

    # a table for each column that has several values
    for column in COUNTED:
        values = [value or "" for value in manifest.column(column)]
        row_counts = Counter(values)
        is_single = len(row_counts) <= 1
        if is_single and (column not in ("dataset", "split") or "" in row_counts):
            continue
        identities = _values_of(values, identity)
        table = [[column, "rows", "identities"]]
        for value, count in row_counts.most_common():
            table.append([f"  {value or '(empty)'}", str(count), str(len(identities[value]))])
        head, *rest = aligned(table, right=(1, 2))
        lines += ["", head, *first_few(rest)]

    lines += ["", "problems:" if cases else "no problems found"]
    for kind, cases_of_kind in cases.items():
        lines.append(f"  {len(cases_of_kind)} {kind}")
        lines += [f"      {printable(case)}" for case in first_few(cases_of_kind, 3)]
    return "\n".join(lines)


def _values_of(keys: Iterable[Any], values: Iterable[str | None]) -> dict[Any, dict[str, None]]:
    """Each key -> its different values, in order; without empty ones."""
    values_of: dict[Any, dict[str, None]] = defaultdict(dict)
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            values_of[key][value] = None
    return values_of
