"""A summary of a manifest, and its problems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.check import Fault
from idmetric.data.manifest.lineage import VIEW_ROLES, has_image, image_keys
from idmetric.data.manifest.split import leaks
from idmetric.data.manifest.table import Manifest
from idmetric.io.tables import aligned, first_few

COUNTED = ("dataset", "split", "role", "domain", "category", "engine", "slot")


@dataclass(frozen=True)
class Problem:
    """A kind of problem, its number of cases and some examples; serious problems make results wrong."""

    what: str
    count: int
    examples: tuple[str, ...]
    serious: bool


def problems(manifest: Manifest, found: Sequence[Fault] = (), need_masks: bool = False) -> list[Problem]:
    """The problems of a manifest, serious ones first.

    Args:
        found: the result of `idmetric.data.manifest.check.faults`.
        need_masks: treat rows without a mask as serious, even if no row has one.
    """
    ids, identity, role, group, parent, dataset, split, path = (
        manifest.column(c) for c in ("id", "identity", "role", "group", "parent", "dataset", "split", "path")
    )
    known = set(ids)
    names: dict[str, str] = {}  # of images, by key
    images = image_keys(manifest)
    for key, file, name in zip(images, path, ids, strict=True):
        names.setdefault(key, file or f"bytes of {name}")

    def shared(values: Sequence[str | None]) -> list[str]:
        """Images with more than one of these values."""
        found = _sets(images, values)
        return [f"{names[key]}: {', '.join(several)}" for key, several in found.items() if len(several) > 1]

    # a query that lists its candidates, as MMEB's do, may be alone in its group
    listing = "x_candidates" in manifest.table.column_names
    candidates = manifest.column("x_candidates") if listing else [None] * len(manifest)
    asked = {name for name, listed in zip(group, candidates, strict=True) if listed is not None}
    lone = [name for name, n in Counter(group).items() if name is not None and n == 1 and name not in asked]

    # distractors and the like always have one image
    named = {name for name, r in zip(identity, role, strict=True) if r in VIEW_ROLES}
    singles = [name for name, own in _sets(identity, images).items() if len(own) == 1 and name in named]

    masked = _has(manifest, "mask")
    some = {dataset[row] for row in np.flatnonzero(masked)}
    lacking = np.flatnonzero(~masked & has_image(manifest))
    cases = {
        "identities are in more than one split": [f"{name}: {', '.join(s)}" for name, s in leaks(manifest).items()],
        "files are in more than one split": shared(split),
        "files show more than one identity": shared(identity),
        "files are missing": [str(f) for f in found if f.missing],
        "images or masks cannot be read": [str(f) for f in found if not f.missing],
        f"rows have no mask{'' if need_masks else ', where others of their dataset have one'}": [
            f"row {row + 1}: {ids[row]}" for row in lacking if need_masks or dataset[row] in some
        ],
        "parents are not in the manifest": list(dict.fromkeys(p for p in parent if p is not None and p not in known)),
        "groups have one row": lone,
        "identities have one image": singles,
    }
    serious = 6 if need_masks else 5  # the first ones make results wrong
    listed = enumerate(cases.items())
    return [Problem(what, len(c), tuple(first_few(c, 3)), k < serious) for k, (what, c) in listed if c]


def as_text(manifest: Manifest, found: Sequence[Problem]) -> str:
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
        "with mask": int(_has(manifest, "mask").sum()),
        "with part mask": int(_has(manifest, "part_mask").sum()),
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
    for problem in found:
        lines.append(f"  {'!' if problem.serious else '-'} {problem.count} {problem.what}")
        lines += [f"      {example}" for example in problem.examples]
    return "\n".join(lines)


def _has(manifest: Manifest, column: str) -> NDArray[np.bool_]:
    path, held = (np.asarray(manifest.table[c].is_valid()) for c in (column, f"{column}_bytes"))
    return np.asarray(path | held, dtype=bool)


def _sets(keys: Iterable[str | None], values: Iterable[str | None]) -> dict[str, dict[str, None]]:
    """Each key -> its different values, in order; without empty ones."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for key, value in zip(keys, values, strict=True):
        if key is not None and value is not None:
            found[key][value] = None
    return found
