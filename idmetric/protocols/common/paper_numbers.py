"""Numbers printed in the papers, to stand next to measured ones, and the model that runs each of their rows.

The tables are in `idmetric/protocols/papers/*.json`, in the papers' units (shares or percent); functions return shares.
A model is matched with a paper's row by its label (`Embedder.label`; baselines have their names). A number that a paper
does not print is None.

A protocol's result names the rows without a model (`Result.missing`), so that a table next to a paper's is never
shorter than the paper's without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

Pair = tuple[float | None, float | None]
NONE: Pair = (None, None)


def _tuples(value: Any) -> Any:
    """A JSON value with tuples in place of lists."""
    if isinstance(value, dict):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read(name: str) -> dict[str, Any]:
    text = files("idmetric.protocols").joinpath("papers", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = _tuples(json.loads(text))
    return found


def row_of(label: str, rows: Mapping[str, str]) -> str | None:
    """The row of the first key that the label starts with, or None."""
    return next((row for start, row in rows.items() if label.startswith(start)), None)


# ID-Sim

_IDSIM = _read("idsim")
IDSIM_COLUMNS: tuple[tuple[str, str], ...] = _IDSIM["fig_25"]["columns"]
IDSIM_FIG_25: dict[str, tuple[float, ...]] = _IDSIM["fig_25"]["rows"]
IDSIM_PATCH_COLUMNS: tuple[tuple[str, str], ...] = _IDSIM["table_2b"]["columns"]
IDSIM_TABLE_2B: dict[str, tuple[float, ...]] = _IDSIM["table_2b"]["rows"]
IDSIM_TABLE_2A: dict[str, float] = _IDSIM["table_2a"]["rows"]
IDSIM_TABLE_2C: dict[str, Pair] = _IDSIM["table_2c"]["rows"]
IDSIM_DREAMBENCH_FIG_25: dict[str, Pair] = _IDSIM["dreambench_fig_25"]["rows"]
IDSIM_DREAMBENCH_TABLE_2B: dict[str, float] = _IDSIM["dreambench_table_2b"]["rows"]
IDSIM_ROWS = tuple(dict.fromkeys([*IDSIM_FIG_25, *IDSIM_TABLE_2B, *IDSIM_TABLE_2A]))
PATCH_DISTANCES = ("patch", "patch_pooled", "patch_biased")  # the paper does not say which of them Table 2b uses


def idsim_row(label: str) -> str | None:
    """ID-Sim's row for a model; its DreamSim is the ensemble, not one of the single branches."""
    return None if label.startswith("dreamsim:") else row_of(label, _IDSIM["labels"])


def idsim_printed(row: str | None, benchmark: str, metric: str, distance: str = "cls") -> float | None:
    """ID-Sim's number in a row; None for distances that join class token and patches, which the paper does not use."""
    if row in IDSIM_TABLE_2A:
        return IDSIM_TABLE_2A[row] if (benchmark, metric) == ("subjects2k", "AP") else None
    if row is None or distance in ("joint", "joint_pooled"):
        return None
    patches = distance in PATCH_DISTANCES
    columns, table = (IDSIM_PATCH_COLUMNS, IDSIM_TABLE_2B) if patches else (IDSIM_COLUMNS, IDSIM_FIG_25)
    return dict(zip(columns, table.get(row, ()), strict=False)).get((benchmark, metric))


def dreambench_ranks(label: str, distance: str) -> Pair:
    """ID-Sim's Spearman and Kendall correlations with people on DreamBench++ for a model."""
    row = idsim_row(label) or ""
    if distance == "cls":
        return IDSIM_DREAMBENCH_FIG_25.get(row, NONE)
    return (IDSIM_DREAMBENCH_TABLE_2B.get(row), None) if distance in PATCH_DISTANCES else NONE


# NearID

ALL_ENGINES, PART_EDITS = "all", "MTG"  # rows of Table 5
HUMAN = "human"  # stands for the agreement of the human groups with each other, among Table 2's raters
FISHER_ROW, ALL_CATEGORIES = "Fisher-z", "all"  # of Table 2 and Fig. 4

_NEARID = _read("nearid")
NEARID_TABLE_5: dict[str, dict[str, Pair]] = _NEARID["table_5"]["rows"]
NEARID_TABLE_7: dict[str, Pair] = _NEARID["table_7"]["rows"]
NEARID_ORACLE: dict[str, tuple[float, float, float]] = _NEARID["oracle"]["rows"]
NEARID_TABLE_2: dict[str, dict[str, Pair]] = _NEARID["table_2"]["rows"]
NEARID_FISHER: dict[str, tuple[float, float]] = _NEARID["fisher"]["rows"]
NEARID_BY_CATEGORY: dict[str, dict[str, float]] = _NEARID["by_category"]["rows"]
DREAMBENCH_METHODS = tuple(NEARID_TABLE_2)


def nearid_row(label: str) -> str | None:
    """NearID's row for a model."""
    return row_of(label, _NEARID["labels"])


def nearid_printed(row: str | None, source: str, foreground: bool) -> Pair:
    """NearID's SSR and PA against a source of distractors, on whole images or foregrounds alone."""
    if row is None:
        return NONE
    table = {"fill": NEARID_TABLE_7[row]} if foreground else NEARID_TABLE_5[row]
    pair = table.get(source, NONE)
    ssr, pa = (None if x is None else x / 100 for x in pair)
    return ssr, pa


def nearid_oracle(row: str | None, foreground: bool) -> Pair:
    """NearID's M-O and M-O-pair; the latter is not printed for foregrounds."""
    if row is None:
        return NONE
    whole, pair, foregrounds = NEARID_ORACLE[row]
    return (foregrounds, None) if foreground else (whole, pair)


def dreambench_printed(rater: str, category: str, method: str) -> Pair:
    """NearID's correlation with people on DreamBench++ for a rater and its ±; the method may be `FISHER_ROW`."""
    if method != FISHER_ROW:
        return NEARID_TABLE_2.get(method, {}).get(rater, NONE) if category == "object" else NONE
    if category == "object" and rater in NEARID_FISHER:
        return NEARID_FISHER[rater]
    return NEARID_BY_CATEGORY.get(rater, {}).get(category), None


# ILGen

_ILGEN = _read("ilgen")
ILGEN_COLUMNS: tuple[str, ...] = _ILGEN["table_5"]["columns"]
ILGEN_TABLE_5: dict[str, tuple[float, ...]] = _ILGEN["table_5"]["rows"]


def ilgen_row(label: str) -> str | None:
    """ILGen's row for a model; a checkpoint of `idmetric train ilgen` does not name its training data: --paper does."""
    return row_of(label, _ILGEN["labels"])


def ilgen_printed(label: str, row: str | None = None) -> dict[str, float]:
    """ILGen's mAP by column, of the given row or the model's own; empty without a row."""
    row = row or ilgen_row(label)
    return {} if row is None else dict(zip(ILGEN_COLUMNS, (v / 100 for v in ILGEN_TABLE_5[row]), strict=True))


# VisME: meta-tasks, and the mean of all sets; in domain and out of it

_VISME = _read("visme")
VISME_TABLE_1: dict[str, tuple[float, ...]] = _VISME["mveb"]["rows"]
VISME_MMEB: dict[str, tuple[float, ...]] = _VISME["mmeb"]["rows"]  # Table 1 too
VISME_DOMAINS: dict[str, dict[str, tuple[float, float]]] = {name: _VISME[name]["domains"] for name in ("mveb", "mmeb")}


def visme_row(label: str) -> str | None:
    """VisME's row for a model, without the options in brackets at the end of its label."""
    found: str | None = _VISME["labels"].get(label.partition("[")[0])
    return found


def visme_printed(row: str | None, column: str, benchmark: str = "mveb") -> float | None:
    """VisME's P@1 for a meta-task, the mean of a benchmark's sets, or those in domain ("IND") or out of it ("OOD")."""
    if row is None:
        return None
    table = _VISME[benchmark]
    columns = dict(zip(table["columns"], table["rows"][row], strict=True))
    columns |= dict(zip(("IND", "OOD"), table["domains"].get(row, ()), strict=False))
    return columns[column] / 100 if column in columns else None


# Rows and the models that run them


class PaperRow(NamedTuple):
    """A row of a paper's table.

    Attributes:
        model: what `--model` opens for it; "judge:FILE.json" is a language model that a file describes.
        missing: why there is no such model; one of the two is empty.
    """

    model: str = ""
    missing: str = ""


# protocol -> row -> how it runs
PAPER_ROWS: dict[str, dict[str, PaperRow]] = {
    protocol: {name: PaperRow(**row) for name, row in rows.items()} for protocol, rows in _read("rows").items()
}


def missing_rows(protocol: str) -> dict[str, str]:
    """Rows of the protocol's tables that this package has no model for, with the reason."""
    return {name: row.missing for name, row in PAPER_ROWS.get(protocol, {}).items() if row.missing}
