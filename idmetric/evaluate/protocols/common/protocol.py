"""A protocol of `idmetric eval` as one object, and the protocols that there are.

Each file `idmetric/evaluate/protocols/NAME.py`, or `NAME_TABLE.py`, is a protocol: its options, `run`, its columns, and
at the end `PROTOCOL`. The first line of its docstring describes it in `idmetric eval --help`. Such a file is imported
for `idmetric eval NAME --help`, so that it loads torch and pyarrow only where it uses them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from idmetric.evaluate.protocols.common.table_columns import SHARED, Column
from idmetric.evaluate.settings import Checked

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.evaluate.protocols.common.result import Result
    from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models

_FOLDER = Path(__file__).parents[1]


Options = TypeVar("Options", bound=Checked)


@dataclass(frozen=True)
class Protocol(Generic[Options]):
    """What the command, the tables and the pages know about a protocol.

    Attributes:
        name: in the command and in results.
        run: scores models on data: `run(data, models, settings, options)`.
        options: a frozen dataclass of `settings.option` fields with defaults.
        columns: the columns of numbers that are this protocol's alone; the others are in `table_columns.SHARED`.
        open_data: makes the manifest where --data, a path or a table, is not one, or not all; called without data too.
        data_help: the help of --data.
        needs_data: whether --data is required; without it and `open_data`, `run` gets a manifest without rows.
        needs_model: whether `run` needs a model; then without --model the command's default one is measured.
        data_options: options that name data, which are kept among the settings of results.
        packages: option -> the optional package that it needs.
        has_verdict: whether the page begins with a verdict on methods.
    """

    name: str
    run: Callable[[DataFrame, Models, EvalSettings, Options], list[Result]]
    options: type[Options]
    columns: Mapping[str, Column] = field(default_factory=dict)
    open_data: Callable[[Path | DataFrame | None, EvalSettings, Options], DataFrame] | None = None
    data_help: str = "manifest (.parquet, .csv, .jsonl), folder with a manifest, or folder with one folder per identity"
    needs_data: bool = True
    needs_model: bool = True
    data_options: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    has_verdict: bool = False


@cache
def modules() -> dict[str, tuple[str, str]]:
    """Protocol -> its module, and the line that describes it; imports none of them."""
    protocols = {}
    for path in sorted(_FOLDER.glob("[a-z]*.py")):
        name = path.stem.partition("_")[0]
        with path.open(encoding="utf-8") as file:
            first_line = file.readline()
        protocols[name] = f"idmetric.evaluate.protocols.{path.stem}", first_line.strip('". \n')
    return protocols


def find(name: str) -> Protocol[Checked]:
    """The protocol of a name."""
    path, _ = modules()[name]
    protocol: Protocol[Checked] = importlib.import_module(path).PROTOCOL
    return protocol


def column_of(name: str, protocol: str = "") -> Column | None:
    """The meaning of a protocol's column; "mAP@100" is an mAP."""
    columns = SHARED
    if protocol in modules():
        columns = {**SHARED, **find(protocol).columns}
    stem, _, _ = name.partition("@")
    return columns.get(name) or columns.get(stem)


def has_verdict(protocol: str) -> bool:
    """Whether the page of a protocol begins with a verdict on methods."""
    return protocol in modules() and find(protocol).has_verdict
