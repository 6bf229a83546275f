"""Filters: rules that keep or drop images and identities.

A filter file is a JSON list of rules. A rule keeps or drops rows by the values of their columns, or drops identities by
their number of images:

    [{"drop": {"dataset": "FORB", "category": "Logo"}, "why": "one name for different logos"},
     {"of": {"dataset": "GLDv2"}, "keep": {"category": ["tower", "fountain"]}},
     {"min_images": 2}]

A row must match all columns of a rule, and one value of each. Case is ignored; null matches an empty value. Columns are
those of a manifest, free ones (x_...), and single parameters (parameters.NAME).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import followers, without_orphans
from idmetric.data.manifest.table import COLUMNS, Manifest
from idmetric.metric.files import json_file

Where = Mapping[str, Any]  # column -> value, or a list of values


@dataclass(frozen=True)
class Rule:
    """One decision about rows or identities; it has exactly one of keep, drop and an image count.

    Attributes:
        keep: drop all rows without these values.
        drop: drop all rows with these values.
        min_images: drop identities with fewer images.
        of: restricts the rule to rows with these values; empty = all rows.
        why: the reason, shown in reports of the rule.
    """

    keep: Where = field(default_factory=dict)
    drop: Where = field(default_factory=dict)
    min_images: int | None = None
    of: Where = field(default_factory=dict)
    why: str = ""

    def __post_init__(self) -> None:
        if sum([bool(self.keep), bool(self.drop), self.min_images is not None]) != 1:
            raise ValueError("a rule has one of keep, drop and min_images")
        if not isinstance(self.min_images, int | None):
            raise ValueError(f"{self.min_images!r} is not a number of images")
        for where in (self.keep, self.drop, self.of):
            if not isinstance(where, Mapping):
                raise ValueError(f"{where!r} is not a table of columns and values")
            if wrong := [c for c in where if c not in COLUMNS and not c.startswith(("x_", "parameters."))]:
                raise ValueError(
                    f"unknown column {wrong[0]!r}; there are {', '.join(COLUMNS)}, free ones x_... and parameters.NAME"
                )

    def __str__(self) -> str:
        given = {k: v for k, v in asdict(self).items() if k != "why" and v not in (None, {})}
        return json.dumps(given, ensure_ascii=False)


# ID-Sim, A.1. Its "CatIndividuallD" is WildlifeReID-10k's subset CatIndividualImages. Column x_subset holds the subset
# of an image: `import table --name WildlifeReID10k` moves column dataset of metadata.csv there. FORB's and GLDv2's
# labels are in category.
IDSIM_RULES = (
    Rule(drop={"dataset": "FORB", "category": ["logo", "logos"]}, why="one name for different logo styles"),
    Rule(
        of={"dataset": "GLDv2"},
        keep={"category": ["house", "lighthouse", "tower", "skyscraper", "observatory", "fountain", "windmill",
                           "sculpture", "boat", "school", "cross", "pyramid"]},
        why="other landmarks are too broad to be one object",
    ),
    Rule(drop={"dataset": ["SOP", "StanfordOnlineProducts", "Stanford Online Products"]},
         why="one name for several colors and versions"),
    Rule(
        of={"dataset": ["WildlifeReID10k", "WildlifeReID-10k"]},
        keep={"x_subset": ["DogFaceNet", "CatIndividualImages"]},
        why="other animals lack markings or are seen from opposite sides",
    ),
    Rule(drop={"dataset": ["MVImgNet", "MVImgNet2"]}, why="backgrounds and lighting hardly vary"),
)  # fmt: skip

# NearID, section 3.3
NEARID_RULES = (
    Rule(drop={"x_partition": "deformable"}, why="lacks foreground descriptions; few classes"),
    Rule(drop={"parameters.partition": "deformable"}, why="lacks foreground descriptions; few classes"),
)


@dataclass(frozen=True)
class Applied:
    """The effect of a rule: numbers of dropped rows (with followers) and identities."""

    rule: Rule
    rows: int
    identities: int


def apply_rules(manifest: Manifest, rules: Sequence[Rule]) -> tuple[Manifest, list[Applied]]:
    """Apply the rules in order; returns the remaining rows and the effect of each rule.

    With an image, the identity-edits and distractors made from it are dropped too. They do not count as images.
    """
    done = []
    for number, rule in enumerate(rules, 1):
        concerned = matches(manifest, rule.of)
        absent = [c for c in rule.keep if column_values(manifest, c) is None]
        if absent and concerned.any():
            raise ValueError(
                f"rule {number} {rule} needs column {absent[0]!r}, which the manifest lacks: add it, or leave the "
                f"rule's dataset out"
            )
        if rule.keep:
            good = matches(manifest, rule.keep)
        elif rule.drop:
            good = ~matches(manifest, rule.drop)
        else:
            identity, follows = manifest.column("identity"), followers(manifest)
            counts = Counter(v for v, c in zip(identity, concerned & ~follows, strict=True) if c)
            least = rule.min_images or 0
            good = follows | np.array([v is not None and counts[v] >= least for v in identity], dtype=bool)
        kept = manifest.take(without_orphans(manifest, ~concerned | good))
        gone = len(set(manifest.column("identity"))) - len(set(kept.column("identity")))
        done.append(Applied(rule, len(manifest) - len(kept), gone))
        manifest = kept
    return manifest, done


def matches(manifest: Manifest, where: Where) -> NDArray[np.bool_]:
    """True (N,) for rows that have one of the given values in every column; an absent free column is empty."""
    out = np.ones(len(manifest), dtype=bool)
    for column, given in where.items():
        wanted = {_plain(v) for v in (given if isinstance(given, list | tuple | set) else [given])}
        values = column_values(manifest, column) or [None] * len(manifest)
        out &= np.array([_plain(v) in wanted for v in values], dtype=bool)
    return out


def column_values(manifest: Manifest, column: str) -> list[Any] | None:
    """The values of a column, or of one parameter ("parameters.NAME"); None if the manifest lacks it."""
    if column.startswith("parameters."):
        name = column.removeprefix("parameters.")
        values = [None if p is None else json.loads(p).get(name) for p in manifest.column("parameters")]
        return values if any(v is not None for v in values) else None
    return manifest.column(column) if column in manifest.table.column_names else None


def _plain(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # text files and JSON write the same number in two ways
    return str(value).strip().casefold()


def read_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """The rules of a filter file."""
    try:
        found = json_file.read(path, "utf-8-sig")
    except ValueError as error:  # of JSON or UTF-8
        raise ValueError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(r, dict) for r in found):
        raise ValueError(f"{path}: a filter file is a list of rules")
    rules = []
    for number, values in enumerate(found, 1):
        try:
            rules.append(Rule(**values))
        except (TypeError, ValueError) as error:  # an unknown key, or a wrong value
            raise ValueError(f"{path}: rule {number}: {error}") from error
    return tuple(rules)


def rules_json(rules: Sequence[Rule]) -> str:
    """Rules as the text of a filter file."""
    lines = [json.dumps({k: v for k, v in asdict(r).items() if v not in (None, {}, "")}) for r in rules]
    return "[\n  " + ",\n  ".join(lines) + "\n]\n" if lines else "[]\n"
