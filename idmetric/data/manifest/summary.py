"""Statistics of a manifest, and its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.check import Fault
from idmetric.data.manifest.lineage import VIEW_ROLES, has_image, image_keys
from idmetric.data.manifest.split import leaks
from idmetric.data.manifest.table import Manifest
from idmetric.io.tables import first_few

COUNTED = ("dataset", "split", "role", "domain", "category", "engine", "slot")


@dataclass(frozen=True)
class Summary:
    """Statistics of a manifest.

    Attributes:
        rows: number of rows.
        images: number of different files and bytes.
        identities: number of identities.
        unnamed: number of rows without an identity. texts: number of rows that are texts without an image.
        per_identity: smallest, median and largest number of images of an identity; None without identities.
        masks, part_masks: number of rows that have them.
        embedded: number of images stored as bytes.
        groups: number of groups.
        parents: number of rows made from another.
        oracle: lowest, mean and highest score; None without scores.
        counts: column -> value ("" if empty) -> number of rows, the most frequent first.
        identities_of: dataset -> number of identities.
    """

    rows: int
    images: int
    identities: int
    unnamed: int
    texts: int
    per_identity: tuple[int, float, int] | None
    masks: int
    part_masks: int
    embedded: int
    groups: int
    parents: int
    oracle: tuple[float, float, float] | None
    counts: dict[str, dict[str, int]]
    identities_of: dict[str, int]


@dataclass(frozen=True)
class Problem:
    """A kind of problem, its number of cases and some examples; serious problems make results wrong."""

    what: str
    count: int
    examples: tuple[str, ...]
    serious: bool


def summarize(manifest: Manifest) -> Summary:
    """The statistics of a manifest."""
    identity = manifest.column("identity")
    keys = image_keys(manifest)
    held = has_image(manifest)
    owned = _images_of(manifest, keys)
    sizes = [len(images) for images in owned.values()]
    scores = [s for s in manifest.column("oracle") if s is not None]
    pairs = {(d or "", i) for d, i in zip(manifest.column("dataset"), identity, strict=True) if i is not None}

    return Summary(
        rows=len(manifest),
        images=len({key for key, has in zip(keys, held, strict=True) if has}),
        identities=len(owned),
        unnamed=identity.count(None),
        texts=int((~held).sum()),
        per_identity=(min(sizes), float(median(sizes)), max(sizes)) if sizes else None,
        masks=int(_has(manifest, "mask").sum()),
        part_masks=int(_has(manifest, "part_mask").sum()),
        embedded=len(manifest) - manifest.table["image_bytes"].null_count,
        groups=len(set(manifest.column("group")) - {None}),
        parents=len(manifest) - manifest.table["parent"].null_count,
        oracle=(min(scores), sum(scores) / len(scores), max(scores)) if scores else None,
        counts={c: dict(Counter(v or "" for v in manifest.column(c)).most_common()) for c in COUNTED},
        identities_of=dict(Counter(d for d, _ in sorted(pairs)).most_common()),
    )


def problems(manifest: Manifest, found: Sequence[Fault] = (), need_masks: bool = False) -> list[Problem]:
    """The problems of a manifest, serious ones first.

    Args:
        found: the result of `idmetric.data.manifest.check.faults`.
        need_masks: treat rows without a mask as serious, even if no row has one.
    """
    keys = image_keys(manifest)
    columns = {c: manifest.column(c) for c in ("id", "identity", "role", "group", "parent", "dataset")}
    ids = set(columns["id"])
    orphans = list(dict.fromkeys(p for p in columns["parent"] if p is not None and p not in ids))

    # a query that lists its candidates, as MMEB's do, may be alone in its group
    listing = "x_candidates" in manifest.table.column_names
    candidates = manifest.column("x_candidates") if listing else [None] * len(manifest)
    asked = {group for group, listed in zip(columns["group"], candidates, strict=True) if listed is not None}
    lone = [g for g, n in Counter(columns["group"]).items() if g is not None and n == 1 and g not in asked]

    # distractors and the like always have one image
    owned = _images_of(manifest, keys)
    pairs = zip(columns["identity"], columns["role"], strict=True)
    named = dict.fromkeys(i for i, role in pairs if i is not None and role in VIEW_ROLES)
    singles = [name for name in named if len(owned[name]) == 1]

    masked = _has(manifest, "mask")
    some = {columns["dataset"][i] for i in np.flatnonzero(masked)}
    lacking = np.flatnonzero(~masked & has_image(manifest))
    maskless = [f"row {i + 1}: {columns['id'][i]}" for i in lacking if need_masks or columns["dataset"][i] in some]
    others = "" if need_masks else ", where others of their dataset have one"
    crossing = [f"{name}: {', '.join(parts)}" for name, parts in leaks(manifest).items()]
    cases = {
        "identities are in more than one split": crossing,
        "files are in more than one split": _shared(manifest, keys, "split"),
        "files show more than one identity": _shared(manifest, keys, "identity"),
        "files are missing": [str(f) for f in found if f.missing],
        "images or masks cannot be read": [str(f) for f in found if not f.missing],
        f"rows have no mask{others}": maskless,
        "parents are not in the manifest": orphans,
        "groups have one row": lone,
        "identities have one image": singles,
    }
    serious = 6 if need_masks else 5  # the first ones make results wrong
    listed = enumerate(cases.items())
    return [Problem(what, len(c), tuple(first_few(c, 3)), k < serious) for k, (what, c) in listed if c]


def as_text(summary: Summary, found: Sequence[Problem]) -> str:
    """Summary and problems as text for a terminal."""
    s = summary
    lines = [f"{s.rows} rows, {s.images} images, {s.identities} identities"]
    if s.per_identity:
        low, middle, high = s.per_identity
        lines.append(f"images per identity: {low} to {high}, median {middle:g}")
    extra = {"without identity": s.unnamed, "of text alone": s.texts, "with mask": s.masks,
             "with part mask": s.part_masks, "held as bytes": s.embedded, "made from another": s.parents}  # fmt: skip
    lines += [f"rows {what}: {n}" for what, n in extra.items() if n]
    if s.groups:
        lines.append(f"groups: {s.groups}")
    if s.oracle:
        lines.append(f"oracle: {s.oracle[0]:.3f} to {s.oracle[2]:.3f}, mean {s.oracle[1]:.3f}")

    for column, counts in s.counts.items():
        if set(counts) - {""} and (len(counts) > 1 or column in ("dataset", "split")):
            lines += ["", f"{column:<24} rows" + ("  identities" if column == "dataset" else "")]
            rows = [f"{value or '(empty)':<20} {n:>6}" for value, n in counts.items()]
            if column == "dataset":
                rows = [f"{row}  {s.identities_of.get(v, 0):>10}" for row, v in zip(rows, counts, strict=True)]
            lines += [f"  {row}" for row in first_few(rows)]

    lines += ["", "problems:" if found else "no problems found"]
    for problem in found:
        lines.append(f"  {'!' if problem.serious else '-'} {problem.count} {problem.what}")
        lines += [f"      {example}" for example in problem.examples]
    return "\n".join(lines)


def _has(manifest: Manifest, column: str) -> NDArray[np.bool_]:
    path, held = (np.asarray(manifest.table[c].is_valid()) for c in (column, f"{column}_bytes"))
    return np.asarray(path | held, dtype=bool)


def _images_of(manifest: Manifest, keys: Sequence[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for identity, key in zip(manifest.column("identity"), keys, strict=True):
        if identity is not None:
            found.setdefault(identity, set()).add(key)
    return found


def _shared(manifest: Manifest, keys: Sequence[str], column: str) -> list[str]:
    """Images with more than one value of a column."""
    seen: dict[str, dict[str, None]] = {}
    names: dict[str, str] = {}
    columns = (manifest.column(c) for c in ("path", "id", column))
    for key, path, row, value in zip(keys, *columns, strict=True):
        names.setdefault(key, path or f"bytes of {row}")
        if value is not None:
            seen.setdefault(key, {})[value] = None
    return [f"{names[key]}: {', '.join(values)}" for key, values in seen.items() if len(values) > 1]
