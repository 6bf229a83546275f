"""A summary of a manifest, and its problems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from idmetric.data.manifest.check import Fault
from idmetric.data.manifest.lineage import has_image, image_keys
from idmetric.data.manifest.split import leaks
from idmetric.data.manifest.table import Manifest
from idmetric.metric.files.tables import aligned, first_few, printable

COUNTED = ("dataset", "split", "role", "domain", "category", "engine", "slot")


def problems(manifest: Manifest, found: Sequence[Fault] = (), need_masks: bool = False) -> dict[str, list[str]]:
    """The kinds of problems of a manifest, which make results wrong, and their cases.

    Args:
        found: the result of `idmetric.data.manifest.check.faults`.
        need_masks: rows of images without a mask are a problem.
    """
    ids, images = manifest.column("id"), image_keys(manifest)
    names: dict[str, str] = {}  # of images, by key
    for key, file, name in zip(images, manifest.column("path"), ids, strict=True):
        names.setdefault(key, file or f"bytes of {name}")

    def shared(column: str) -> list[str]:
        """Images with more than one value of a column."""
        several = _sets(images, manifest.column(column)).items()
        return [f"{names[key]}: {', '.join(values)}" for key, values in several if len(values) > 1]

    lacking = ~has_image(manifest, "mask") & has_image(manifest) & need_masks
    cases = {
        "identities are in more than one split": [f"{name}: {', '.join(s)}" for name, s in leaks(manifest).items()],
        "files are in more than one split": shared("split"),
        "files show more than one identity": shared("identity"),
        "files are missing": [str(f) for f in found if f.missing],
        "images or masks cannot be read": [str(f) for f in found if not f.missing],
        "rows have no mask": [f"row {row + 1}: {ids[row]}" for row in np.flatnonzero(lacking)],
    }
    return {what: listed for what, listed in cases.items() if listed}


def as_text(manifest: Manifest, found: Mapping[str, Sequence[str]]) -> str:
    """Numbers of rows, images and identities, values of columns, and problems as text for a terminal."""
    identity, images, held = manifest.column("identity"), image_keys(manifest), has_image(manifest)
    sizes = [len(own) for own in _sets(identity, images).values()]
    different = len({key for key, has in zip(images, held, strict=True) if has})
    lines = [f"{len(manifest)} rows, {different} images, {len(sizes)} identities"]
    if sizes:
        lines.append(f"images per identity: {min(sizes)} to {max(sizes)}, median {median(sizes):g}")
    extra = {
        "without identity": identity.count(None),
        "of text alone": int((~held).sum()),
        "with mask": int(has_image(manifest, "mask").sum()),
        "with part mask": int(has_image(manifest, "part_mask").sum()),
    }
    lines += [f"rows {what}: {n}" for what, n in extra.items() if n]

    for column in COUNTED:
        values = [value or "" for value in manifest.column(column)]
        counts, named = Counter(values), _sets(values, identity)
        if len(counts) > 1 or (column in ("dataset", "split") and "" not in counts):
            rows = [[f"  {v or '(empty)'}", f"{n}", f"{len(named.get(v, ()))}"] for v, n in counts.most_common()]
            head, *rest = aligned([[column, "rows", "identities"], *rows], right=(1, 2))
            lines += ["", head, *first_few(rest)]

    lines += ["", "problems:" if found else "no problems found"]
    for what, listed in found.items():
        lines += [f"  {len(listed)} {what}", *(f"      {printable(case)}" for case in first_few(listed, 3))]
    return "\n".join(lines)


def _sets(keys: Iterable[str | None], values: Iterable[str | None]) -> dict[str, dict[str, None]]:
    """Each key -> its different values, in order; without empty ones."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for key, value in zip(keys, values, strict=True):
        if key is not None and value is not None:
            found[key][value] = None
    return found
