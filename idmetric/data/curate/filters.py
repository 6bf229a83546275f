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

from idmetric.data.old_manifest.lineage import followers, without_orphans
from idmetric.data.old_manifest.table import COLUMNS, Manifest
from idmetric.metric.files import read_json_file

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
            for column in where:
                if column not in COLUMNS and not column.startswith(("x_", "parameters.")):
                    listed = ", ".join(COLUMNS)
                    raise ValueError(
                        f"unknown column {column!r}; there are {listed}, free ones x_... and parameters.NAME"
                    )

    def __str__(self) -> str:
        values = _set_values(self)
        values.pop("why", None)
        return json.dumps(values, ensure_ascii=False)


# ID-Sim, A.1. Its "CatIndividuallD" is WildlifeReID-10k's subset CatIndividualImages. Column x_subset holds the subset
# of an image: `import table --name WildlifeReID10k` moves column dataset of metadata.csv there. FORB's and GLDv2's
# labels are in category.
IDSIM_RULES = (
    Rule(drop={"dataset": "FORB", "category": ["logo", "logos"]}, why="one name for different logo styles"),
    Rule(
        of={"dataset": "GLDv2"},
        keep={
            "category": [
                "house",
                "lighthouse",
                "tower",
                "skyscraper",
                "observatory",
                "fountain",
                "windmill",
                "sculpture",
                "boat",
                "school",
                "cross",
                "pyramid",
            ]
        },
        why="other landmarks are too broad to be one object",
    ),
    Rule(
        drop={"dataset": ["SOP", "StanfordOnlineProducts", "Stanford Online Products"]},
        why="one name for several colors and versions",
    ),
    Rule(
        of={"dataset": ["WildlifeReID10k", "WildlifeReID-10k"]},
        keep={"x_subset": ["DogFaceNet", "CatIndividualImages"]},
        why="other animals lack markings or are seen from opposite sides",
    ),
    Rule(drop={"dataset": ["MVImgNet", "MVImgNet2"]}, why="backgrounds and lighting hardly vary"),
)

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
    applied = []
    for number, rule in enumerate(rules, 1):
        is_concerned = matches(manifest, rule.of)
        for column in rule.keep:
            if column_values(manifest, column) is None and is_concerned.any():
                raise ValueError(
                    f"rule {number} {rule} needs column {column!r}, which the manifest lacks: add it, or leave the "
                    "rule's dataset out"
                )
        if rule.keep:
            is_good = matches(manifest, rule.keep)
        elif rule.drop:
            is_good = ~matches(manifest, rule.drop)
        else:
            is_good = _has_enough(manifest, is_concerned, rule.min_images or 0)
        remaining = manifest.take(without_orphans(manifest, ~is_concerned | is_good))
        identities = len(set(manifest.column("identity"))) - len(set(remaining.column("identity")))
        applied.append(Applied(rule, len(manifest) - len(remaining), identities))
        manifest = remaining
    return manifest, applied


def _has_enough(manifest: Manifest, is_concerned: NDArray[np.bool_], least: int) -> NDArray[np.bool_]:
    """True (N,) for rows of identities with enough images among the concerned ones, and for followers."""
    identity = manifest.column("identity")
    is_follower = followers(manifest)
    counts = Counter(identity[row] for row in np.flatnonzero(is_concerned & ~is_follower))
    is_good: NDArray[np.bool_] = is_follower.copy()
    for row, name in enumerate(identity):
        if name is not None and counts[name] >= least:
            is_good[row] = True
    return is_good


def matches(manifest: Manifest, where: Where) -> NDArray[np.bool_]:
    """True (N,) for rows that have one of the given values in every column; an absent free column is empty."""
    is_match = np.ones(len(manifest), dtype=bool)
    for column, wanted in where.items():
        if not isinstance(wanted, list | tuple | set):
            wanted = [wanted]
        wanted_texts = {_plain(value) for value in wanted}
        values = column_values(manifest, column) or [None] * len(manifest)
        is_match &= np.array([_plain(value) in wanted_texts for value in values], dtype=bool)
    return is_match


def column_values(manifest: Manifest, column: str) -> list[Any] | None:
    """The values of a column, or of one parameter ("parameters.NAME"); None if the manifest lacks it."""
    if column.startswith("parameters."):
        name = column.removeprefix("parameters.")
        values = [None if text is None else json.loads(text).get(name) for text in manifest.column("parameters")]
        return values if any(value is not None for value in values) else None
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
        entries = read_json_file(path)
    except ValueError as error:  # of JSON or UTF-8
        raise ValueError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: a filter file is a list of rules")
    rules = []
    for number, values in enumerate(entries, 1):
        try:
            rules.append(Rule(**values))
        except (TypeError, ValueError) as error:  # an unknown key, or a wrong value
            raise ValueError(f"{path}: rule {number}: {error}") from error
    return tuple(rules)


def rules_json(rules: Sequence[Rule]) -> str:
    """Rules as the text of a filter file."""
    if not rules:
        return "[]\n"
    lines = [json.dumps(_set_values(rule)) for rule in rules]
    return "[\n  " + ",\n  ".join(lines) + "\n]\n"


def _set_values(rule: Rule) -> dict[str, Any]:
    """The fields of a rule that are set."""
    return {name: value for name, value in asdict(rule).items() if value not in (None, {}, "")}
