"""Results of protocols: numbers with support, interval and the paper's value, and the score of every item.

    result = run(manifest, {"tiny": IDSim("tiny")}, EvalSettings())[0]

`idmetric.evaluate.protocols.common.tables` prints and writes them.

Shares lie in 0..1. A row of a result is flat: first its labels (text), such as a source of distractors, then `Value`s.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.statistics.paired import Comparison, family
from idmetric.metric.files import json_text, need, replacing
from idmetric.tables import csv_text, in_csv, printable, rounded
from idmetric.version import __version__


@dataclass(frozen=True)
class Value:
    """A number of a table.

    Attributes:
        value: the number; shares in 0..1.
        low, high: its interval (95 % unless stated otherwise), or None.
        count: support: the number of queries, pairs, samples or trials.
        paper: the paper's number for this model, in the same unit.

    Raises:
        ValueError: if a number is not finite; leave undefined ones out of their row.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    paper: float | None = None

    def __post_init__(self) -> None:
        optional = (self.low, self.high, self.paper)
        numbers = [self.value, *(number for number in optional if number is not None)]
        if not np.isfinite(numbers).all():
            raise ValueError(f"a value of a table must be finite, got {numbers}: leave out undefined numbers")


Row = dict[str, str | Value]
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Result:
    """One model under one protocol.

    Attributes:
        protocol: its name. model: the user's name for the model.
        rows: of the table: labels, then values.
        signature: which model exactly, see `Embedder.signature`.
        settings: everything else that changes the numbers (distance, k, bootstrap, seed, ...).
        items: table -> columns of equal length: the score of each query, pair or sample. By convention a table "pairs"
            has the columns `score` (similarity, higher = more alike) and `same` (bool); plots use it.
        notes: remarks for readers of the numbers, such as on queries that were left out.
        missing: row of the paper's table that no model here can run -> the reason, see `paper_numbers.PAPER_ROWS`.
    """

    protocol: str
    model: str
    rows: list[Row]
    signature: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: Mapping[str, str] = field(default_factory=dict)

    def keep(self, table: str, **columns: Sequence[Any] | NDArray[Any]) -> None:
        """Append lines to a table of items; columns have equal length."""
        columns_of_table = self.items.setdefault(table, {})
        for name, values in columns.items():
            if isinstance(values, np.ndarray):
                values = values.tolist()
            columns_of_table.setdefault(name, []).extend(values)


def numbers_of(row: Row) -> dict[str, Value]:
    """The numbers of a row, without its labels."""
    return {name: entry for name, entry in row.items() if isinstance(entry, Value)}


def names_of(results: Iterable[Result], kind: type) -> list[str]:
    """Labels (str) or metrics (Value) of all rows, in order of first appearance."""
    names: dict[str, None] = {}
    for result in results:
        for row in result.rows:
            for name, entry in row.items():
                if isinstance(entry, kind):
                    names[name] = None
    return list(names)


def copying(result: Result) -> list[str]:
    """The methods with a share of copies above `MANY`."""
    from idmetric.scoring.copies import MANY

    copiers = []
    for row in result.rows:
        name = row.get("method")
        share = row.get("copies")
        if not name or row.get("group", "all") != "all":
            continue
        if isinstance(share, Value) and share.value > MANY:
            copiers.append(str(name))
    return copiers


def comparisons_of(result: Result) -> dict[str, list[Comparison]]:
    """Metric -> the comparisons of each two methods, which a result keeps as items "tests"."""
    tests = result.items.get("tests", {})
    comparisons: dict[str, list[Comparison]] = {}
    for entries in zip(*tests.values(), strict=True):
        test = dict(zip(tests, entries, strict=True))
        comparisons.setdefault(test.pop("metric"), []).append(Comparison(**test))
    return comparisons


def behind(result: Result) -> list[str]:
    """The methods that a test finds below another method in identity."""
    names: dict[str, None] = {}
    for comparison in comparisons_of(result).get("identity", []):
        if comparison.is_clear:
            lower = comparison.b if comparison.difference > 0 else comparison.a
            names[lower] = None
    return list(names)


def tested_family(result: Result) -> str:
    """The methods that are tested against each other, the correction of p, and the methods that are left out."""
    [comparisons, *_] = comparisons_of(result).values()
    sentence = f"tested: {family(comparisons)}"
    if len(comparisons) > 1:
        sentence += ", for which p of each number is corrected by Holm"
    if copiers := copying(result):
        sentence += f"; not tested, because of copies: {', '.join(copiers)}"
    return sentence


def as_csv(results: Sequence[Result]) -> str:
    """One line for each number: protocol, model, labels, metric, value, low, high, count, paper, revision, distance."""
    labels = names_of(results, str)
    numbers = ("value", "low", "high", "count", "paper")
    about = ("revision", "distance", "resolution", "dtype", "idmetric")
    lines: list[list[Any]] = []
    for result in results:
        facts = [result.signature.get(name, "") for name in about]
        for row in result.rows:
            texts = [row.get(label, "") for label in labels]
            texts = [result.protocol, result.model, *texts]
            for metric, value in numbers_of(row).items():
                shown = in_csv(asdict(value))
                figures = [shown[name] for name in numbers]
                lines.append([*texts, metric, *figures, *facts])
    heads = ["protocol", "model", *labels, "metric", *numbers, *about]
    return csv_text(heads, lines)


def as_json(
    results: Sequence[Result],
    files: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Everything but the items; `files` names their files: model -> table -> file."""
    entries = []
    for result in results:
        rows = []
        for row in result.rows:
            labels, metrics = {}, {}
            for name, entry in row.items():
                if isinstance(entry, Value):
                    metrics[name] = rounded(asdict(entry))
                else:
                    labels[name] = entry
            rows.append({"labels": labels, "metrics": metrics})
        entries.append(
            {
                "protocol": result.protocol,
                "model": result.model,
                "signature": dict(result.signature),
                "settings": dict(result.settings),
                "rows": rows,
                "notes": list(result.notes),
                "missing": dict(result.missing),
                "items": dict((files or {}).get(result.model, {})),
            }
        )
    return json_text({"idmetric": __version__, "results": entries}, indent=2, default=str) + "\n"


def footnotes(results: Sequence[Result]) -> list[str]:
    """Each note once, with the models that it concerns unless it concerns all, and the paper's rows without a model."""
    models_of: dict[str, list[str]] = {}  # note -> models
    reasons: dict[str, str] = {}  # row of a paper -> why it is missing
    for result in results:
        reasons |= result.missing
        for note in result.notes:
            models_of.setdefault(note, []).append(result.model)
    rows_of: dict[str, list[str]] = {}  # reason -> rows
    for row, reason in reasons.items():
        rows_of.setdefault(reason, []).append(row)

    notes = []
    for note, models in models_of.items():
        if len(models) < len(results):
            note = f"{', '.join(models)}: {note}"
        notes.append(note)
    notes += smoke_tests(results)
    for reason, rows in rows_of.items():
        notes.append(f"missing row of the paper: {', '.join(rows)} ({reason})")
    return [printable(note) for note in notes]


def smoke_tests(results: Sequence[Result]) -> list[str]:
    """A sentence on each model that is `tiny`."""
    sentences = []
    for result in results:
        if result.signature.get("model") == "IDSim:tiny":
            sentences.append(f"{result.model} is a smoke-test model, not for a paper")
    return sentences


def slug(name: str) -> str:
    """A model's name as part of a file's name; different for different names."""
    plain = re.sub("[^A-Za-z0-9._-]+", "-", name)[:80].strip("-.")
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
    if plain == name:
        return name
    return f"{plain}-{digest}".lstrip("-")


def write_items(path: Path, columns: Columns, result: Result) -> None:
    """Write a table of items as a Parquet file, atomically."""
    need("eval", "a table of items", pyarrow="pyarrow")
    import pyarrow as pa
    import pyarrow.parquet

    about = {
        "protocol": result.protocol,
        "model": result.model,
        **result.signature,
        **result.settings,
    }
    metadata = {"idmetric": json_text(about, default=str)}
    items = pa.table(dict(columns)).replace_schema_metadata(metadata)
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(items, temporary)
