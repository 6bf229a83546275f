"""Filters: rules that keep or drop images and identities.

A filter file is a JSON list of rules. A rule keeps or drops the rows that a query of their columns selects, as
`pandas.DataFrame.query` reads it, or drops identities by their number of images:

    [{"drop": "dataset == 'FORB' and category in ['logo', 'logos']", "why": "one name for different logos"},
     {"of": "dataset == 'GLDv2'", "keep": "category in ['tower', 'fountain']"},
     {"min_images": 2}]

A query compares columns with values by ==, !=, <, in and not in, joined by and, or, not. Text is compared letter by
letter; an empty value is ''. Columns are those of a manifest and the table's own.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idmetric.data.manifest import numbered, take
from idmetric.data.split import followers, without_orphans
from idmetric.metric.files import read_json_file

# what a query may hold: no calls, attributes or variables of Python, which could do anything
_PARTS = (ast.Expression, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop, ast.Name, ast.Load,
          ast.Constant, ast.List, ast.Tuple)  # fmt: skip


def columns_of(query: str) -> set[str]:
    """The columns that a query compares; ValueError for anything but comparisons of columns with values."""
    try:
        tree = ast.parse(query, mode="eval")
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"{query!r} is not a query: {error}") from error
    parts = list(ast.walk(tree))
    kinds = {type(part) for part in parts}
    is_comparison = {ast.Compare, ast.Name} <= kinds
    if not is_comparison or not all(issubclass(kind, _PARTS) for kind in kinds):
        raise ValueError(f"{query!r} is not a query: compare columns with values, joined by and, or, not")
    return {part.id for part in parts if isinstance(part, ast.Name)}


@dataclass(frozen=True)
class Rule:
    """One decision about rows or identities; it has exactly one of keep, drop and min_images.

    Attributes:
        keep: drop all rows that this query does not select.
        drop: drop all rows that this query selects.
        min_images: drop identities with fewer images.
        of: restricts the rule to the rows that this query selects; empty = all rows.
        why: the reason, shown in reports of the rule.
    """

    keep: str = ""
    drop: str = ""
    min_images: int | None = None
    of: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        decisions = [bool(self.keep), bool(self.drop), self.min_images is not None]
        if sum(decisions) != 1:
            raise ValueError("a rule has one of keep, drop and min_images")
        if not isinstance(self.min_images, int | None):
            raise ValueError(f"{self.min_images!r} is not a number of images")
        for query in filter(None, (self.keep, self.drop, self.of)):
            columns_of(query)

    def __str__(self) -> str:
        """The rule as in a filter file."""
        settings = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return json.dumps(settings, ensure_ascii=False)


# ID-Sim, A.1. Its "CatIndividuallD" is WildlifeReID-10k's subset CatIndividualImages. Column x_subset holds the subset
# of an image: `import table --name WildlifeReID10k` moves column dataset of metadata.csv there. FORB's and GLDv2's
# labels are in category.
IDSIM_RULES = (
    Rule(
        drop="dataset == 'FORB' and category in ['logo', 'logos', 'Logo', 'Logos']",
        why="one name for different logo styles",
    ),
    Rule(
        of="dataset == 'GLDv2'",
        keep="category in ['house', 'lighthouse', 'tower', 'skyscraper', 'observatory', 'fountain', 'windmill', "
        "'sculpture', 'boat', 'school', 'cross', 'pyramid']",
        why="other landmarks are too broad to be one object",
    ),
    Rule(
        drop="dataset in ['SOP', 'StanfordOnlineProducts', 'Stanford Online Products']",
        why="one name for several colors and versions",
    ),
    Rule(
        of="dataset in ['WildlifeReID10k', 'WildlifeReID-10k']",
        keep="x_subset in ['DogFaceNet', 'CatIndividualImages']",
        why="other animals lack markings or are seen from opposite sides",
    ),
    Rule(drop="dataset in ['MVImgNet', 'MVImgNet2']", why="backgrounds and lighting hardly vary"),
)

# NearID, section 3.3
NEARID_RULES = (Rule(drop="x_partition == 'deformable'", why="lacks foreground descriptions; few classes"),)


def apply_rules(table: pd.DataFrame, rules: Sequence[Rule]) -> tuple[pd.DataFrame, list[str]]:
    """Apply the rules in order; returns the remaining rows, and a note on what each rule dropped, with followers.

    With an image, the identity-edits and distractors made from it are dropped too. They do not count as images.

    Raises:
        ValueError: naming the rule whose query cannot be answered, such as by a column that the table lacks.
    """
    table = numbered(table)
    notes = []
    for rule in rules:
        try:
            may_stay = _may_stay(table, rule)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ValueError(f"rule {rule}: {error}") from error
        is_kept = without_orphans(table, may_stay)
        remaining = take(table, is_kept)
        images = len(table) - len(remaining)
        identities_before = table["identity"].nunique()
        identities = identities_before - remaining["identity"].nunique()
        notes.append(f"rule {rule}: -{images} images, -{identities} identities")
        table = remaining
    return table, notes


def _may_stay(table: pd.DataFrame, rule: Rule) -> NDArray[np.bool_]:
    """Whether a rule lets each row (N,) stay, if its parent stays."""
    is_concerned = np.ones(len(table), dtype=bool)
    if rule.of:
        is_concerned = selected(table, rule.of)
    if not is_concerned.any():
        return ~is_concerned
    if rule.keep:
        return ~is_concerned | selected(table, rule.keep)
    if rule.drop:
        return ~is_concerned | ~selected(table, rule.drop)

    # followers show an identity once, and are not judged by it
    is_follower = followers(table)
    identity = table["identity"].fillna("")
    counts = identity[is_concerned & ~is_follower].value_counts()
    counts[""] = 0  # rows without an identity
    is_enough = identity.map(counts) >= (rule.min_images or 0)
    return np.asarray(~is_concerned | is_follower | is_enough)


def selected(table: pd.DataFrame, query: str) -> NDArray[np.bool_]:
    """True (N,) for the rows that a query selects."""
    columns = columns_of(query)
    missing = sorted(columns.difference(table.columns))
    if missing:
        raise ValueError(f"the manifest lacks column {missing[0]!r}: add it, or change the rule (--filters)")
    values = table[sorted(columns)].infer_objects()
    texts = values.select_dtypes(["object", "str"]).fillna("")
    chosen = values.assign(**texts).query(query, engine="python")
    return np.asarray(table.index.isin(chosen.index))


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
    lines = ",\n  ".join(map(str, rules))
    return f"[\n  {lines}\n]\n"
