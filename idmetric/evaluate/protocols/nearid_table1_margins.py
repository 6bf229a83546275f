"""NearID-bench and Mind-the-Glitch: does identity outweigh a matched context? (NearID, Tables 1, 5 and 7)

    idmetric eval nearid --data bench.parquet --split test --model nearid --out results/
    idmetric eval nearid --data bench.parquet --split test --model nearid --subject black --out results-fg/

Rows: each engine's distractors (Table 5), the averages of Table 5, weighted by support, and the part-edits of
Mind-the-Glitch (MTG). `--subject black` (FG only, Table 7) shows models the subject alone, by the manifest's masks: the
paper speaks of crops, but the released code paints the background black and crops nothing. docs/protocols/nearid.md has
the columns, the data and the papers' numbers.

The released code counts each sample's mean margin as one more trial of PA, and the paper's numbers may do so too;
`--released-pa` follows it. Equation 5, the default, does not. SSR is the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array
from idmetric.evaluate.protocols.common.matched import Matched, margins_of, matched, part_edits, rates
from idmetric.evaluate.protocols.common.paper_numbers import ALL_ENGINES, NONE, PART_EDITS, Pair, printed, row_of
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class NearIDOptions(Checked):
    """Options of the protocol `nearid`."""

    released_pa: bool = option(
        False, "count each sample's mean margin as a trial of PA, as the code that printed the paper's tables does"
    )


COLUMNS = {
    "SSR": Column(
        "share of samples with all views nearer to each other than to any distractor", 1, "NearID, Eq. 4 and 5"
    ),
    "PA": Column("share of pairs of views that are nearer than the view and its distractor", 1, "NearID, Eq. 5"),
    "M-O": Column("correlation of similarity to part edits with the share of the object that they keep", 1, "NearID"),
    "M-O-pair": Column("the same between a view and its own part edit alone", 1, "NearID"),
}

# averages of Table 5 -> the engines they are over, by their names on the Hub
GROUPS = {
    "training": ("Flux", "Flux_1024", "Qwen", "Qwen_1328"),
    "unseen fill": ("PowerPaint", "SDXL", "SDXL_1024"),
    "unseen canny": ("FluxC", "FluxC_1024"),
    "fill": ("Flux", "Flux_1024", "Qwen", "Qwen_1328", "PowerPaint", "SDXL", "SDXL_1024"),
}
PAPER_ENGINES = {*GROUPS["fill"], *GROUPS["unseen canny"]}


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: NearIDOptions = NearIDOptions(),
) -> list[Result]:
    """A result for each model: a row for each engine, the averages, and the part-edits.

    Raises:
        ValueError: if there are neither distractors nor part-edits of identities with two views.
    """
    _samples(data)  # before anything is embedded
    bound = bind(data, models, settings)
    samples, parts = _samples(bound.manifest)
    notes = []
    splits = sorted(bound.manifest["split"].dropna().unique())
    if splits not in ([], ["test"]):
        notes.append(f"measured on the split {', '.join(splits)}; the paper's numbers are of test (--split)")
    about = {**settings.as_dict(), "released_pa": options.released_pa}
    results = []
    for scorer, result in bound.results("nearid", about, notes):
        _measure(scorer, bound.manifest, samples, parts, settings, options, result)
        results.append(result)
    return results


def _samples(data: DataFrame) -> tuple[Matched, Matched]:
    """Samples against distractors and identity-edits, and against part-edits; ValueError if none has a margin."""
    engines = data["engine"].fillna("unnamed").tolist()
    samples = matched(data, ("distractor", "identity-edit"), engines)
    parts = matched(data, ("part-edit",), [PART_EDITS] * len(data)).of_edited_views()
    if not len(samples) and not len(parts):
        raise ValueError(
            "no distractors or part-edits of known views: give rows of these roles with an identity's view as parent"
        )
    for kind, what in ((samples, "distractors"), (parts, "part-edits")):
        view_counts = (kind.views >= 0).sum(1)
        if len(kind) and view_counts.max() < 2:
            raise ValueError(f"no identity with {what} has two views: a margin needs a positive in another context")
    return samples, parts


def _measure(
    scorer: Scorer,
    data: DataFrame,
    samples: Matched,
    parts: Matched,
    settings: EvalSettings,
    options: NearIDOptions,
    result: Result,
) -> None:
    """Add the rows of engines, of averages and of part-edits, and the margins of each sample."""
    papers, part_papers = _printed(result.signature.get("model", ""), settings)
    engines = list(dict.fromkeys(samples.source))
    groups: list[tuple[str, Sequence[str]]] = [(engine, [engine]) for engine in engines]  # rows -> their engines
    for name, averaged in GROUPS.items():
        if set(averaged) <= set(engines):
            groups.append((name, averaged))
    if len(engines) > 1:
        groups.append((ALL_ENGINES, engines))
    if set(engines) != PAPER_ENGINES:
        papers = {source: pair for source, pair in papers.items() if source != ALL_ENGINES}

    def rates_of(source: str, margins: Array, identity: NDArray[np.object_]) -> dict[str, Value]:
        """SSR and PA of a row; empty if no margin is valid."""
        if np.isnan(margins).all():
            return {}
        paper = papers.get(source, NONE)
        return rates(margins, identity, settings, count_mean=options.released_pa, paper=paper)

    if len(samples):
        margins = margins_of(scorer, samples, result.notes)
        _keep(result, samples, margins)
        sources = samples.source.astype(str)
        for source, group in groups:
            is_of_group = np.isin(sources, group)
            values = rates_of(source, margins[is_of_group], samples.identity[is_of_group])
            if values:
                result.rows.append({"source": source, **values})

    if len(parts):
        margins = margins_of(scorer, parts, result.notes)
        _keep(result, parts, margins)
        values = rates_of(PART_EDITS, margins, parts.identity)
        agreement, result.items["parts"] = part_edits(scorer, data, parts, settings, result.notes, part_papers)
        values |= agreement
        if values:
            result.rows.append({"source": PART_EDITS, **values})

    if not result.rows:
        raise ValueError("no margin is valid: views or distractors lack scores")


def _printed(label: str, settings: EvalSettings) -> tuple[dict[str, Pair], Pair]:
    """The paper's SSR and PA by source, and its M-O and M-O-pair: of whole images, or on black (Table 7)."""
    model = row_of("nearid", label)
    if settings.distance != "cls" or model is None:
        return {}, NONE
    oracle = printed("nearid", "oracle", model)
    if settings.outside == "all":
        return printed("nearid", "table_5", model), (oracle["M-O"], oracle["M-O-pair"])
    if settings.outside == "black":
        foreground = printed("nearid", "table_7", model)
        return {"fill": (foreground["SSR"], foreground["PA"])}, (oracle["M-O of foregrounds"], None)
    return {}, NONE


def _keep(result: Result, samples: Matched, margins: Array) -> None:
    """Append a line for each sample, with its margins that are not NaN."""
    valid = [row[~np.isnan(row)].tolist() for row in margins]
    is_won = [len(row) > 0 and min(row) > 0 for row in valid]
    result.keep(
        "samples",
        source=samples.source,
        identity=samples.identity,
        margins=valid,
        won=is_won,
    )


PROTOCOL = Protocol(
    name="nearid",
    run=run,
    options=NearIDOptions,
    columns=COLUMNS,
)
