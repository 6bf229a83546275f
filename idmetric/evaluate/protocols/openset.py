"""Open-set re-identification: name the individuals of a gallery, and call the others new.

    idmetric eval openset --data animals/ --unknown 0.5 --model tiny --out results/
    idmetric eval openset --data wildlife.parquet --model mega=hf-hub:BVRA/MegaDescriptor-T-224 --threshold 0.4 --out r/

A query gets the name of its nearest gallery image if their similarity reaches a threshold, and is called new
otherwise. A query is known if the gallery has another image of its identity. docs/protocols/openset.md says how splits
become galleries and queries, or are drawn; docs/reference/columns.md defines the columns.

All numbers weigh identities equally, the intervals draw whole identities, and n counts identities. Each dataset is a
gallery of its own; with several, last rows hold the means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, listed
from idmetric.evaluate.protocols.common.intervals import SHARE, any_statistic, averages
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Search, measure
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind, calibrated
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics import open_set
from idmetric.evaluate.statistics.open_set import Answers
from idmetric.metric.ties import comparable
from idmetric.scoring.calibration import SEARCH_RATE

if TYPE_CHECKING:
    from pandas import DataFrame, Series


@dataclass(frozen=True)
class OpenSetOptions(Checked):
    """Options of the protocol `openset`."""

    unknown: float | None = option(
        None,
        "make the splits, with this share of the identities unknown (default: the manifest's splits, else 0.5)",
        metavar="SHARE",
    )
    threshold: tuple[float, ...] = option(
        (),
        "similarities under which a query is new (default: the threshold of the model's calibration)",
        metavar="TAU",
    )
    calibration: Path | None = option(None, "calibration for the threshold (default: the model's own)", metavar="FILE")

    def __post_init__(self) -> None:
        if self.unknown is not None and not 0 <= self.unknown < 1:
            raise ValueError(f"--unknown {self.unknown:g}: a share of the identities, 0 or more and below 1")
        for tau in self.threshold:
            if not math.isfinite(tau):
                raise ValueError(f"--threshold {tau:g}: a similarity is a number, such as 0.5")


COLUMNS = {
    "closed": Column("share of queries of known identities with their identity nearest, mean over identities"),
    "OSCR": Column("area under BAKS over 1 - BAUS at all thresholds", 1, "open-set classification rate"),
    "tau": Column("the threshold, a similarity", 0),
    "BAKS": Column("balanced accuracy on queries of known identities"),
    "score": Column("sqrt(BAKS x BAUS), in 0..1", 1, "AnimalCLEF 2025"),
    "BAUS": Column("balanced accuracy on queries of unknown identities, which count if they are called new"),
}

GALLERY, QUERY = ("gallery", "train"), ("query", "test")
ORACLE, EVERY = "oracle", "every"


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: OpenSetOptions = OpenSetOptions(),
) -> list[Result]:
    """A result for each model: rows for each dataset and threshold, and their means.

    Raises:
        ValueError: if no query shows an identity of the gallery.
        CalibrationError: for a calibration of another model or distance.
    """
    from idmetric.data.manifest import take  # loads pandas, which the help does without

    with_identity = take(data, data["identity"].notna())
    _searches(with_identity, options, settings.seed)  # before anything is embedded
    thresholds = {name: _thresholds(model, settings, options) for name, model in models.items()}
    bound = bind(with_identity, models, settings)
    searches, notes = _searches(bound.manifest, options, settings.seed)
    if len(with_identity) < len(data):
        notes.append(f"{len(data) - len(with_identity)} images of unstated identity are left out")
    about = {**settings.as_dict(), "unknown": options.unknown}
    results = []
    for scorer, result in bound.results("openset", about, notes):
        taus, sources = thresholds[result.model]
        result.notes.extend(sources)
        for dataset, search in searches.items():
            _measure(scorer, bound.manifest, dataset, search, taus, settings, result)
        if len(searches) > 1:
            result.rows.extend(_means(result.rows))
        results.append(result)
    return results


def _thresholds(model: Any, settings: EvalSettings, options: OpenSetOptions) -> tuple[dict[str, float], list[str]]:
    """Label -> threshold: the given ones, else the calibration's; and notes on their sources."""
    if options.threshold:
        return {f"given {tau:g}": tau for tau in options.threshold}, []
    limit = calibrated(model, settings, options.calibration, SEARCH_RATE)
    if limit is None:
        reason = "the model has no calibration for this distance with a threshold at 1 % of pairs or below"
        return {}, [f"no threshold: {reason}; give --threshold or --calibration"]
    label = f"{limit.rate:g} of pairs"
    similarity = 1 - limit.distance
    return {label: similarity}, [f"threshold {label}: similarity {similarity:.3f} ({limit.source})"]


def _searches(data: DataFrame, options: OpenSetOptions, seed: int) -> tuple[dict[str, Search], list[str]]:
    """The search of each dataset, and notes on images that are not queried and datasets that are left out."""
    names = data["dataset"].fillna("")
    in_gallery = data["split"].isin(GALLERY).to_numpy()
    is_query = data["split"].isin(QUERY).to_numpy()
    share = options.unknown
    searches = {}
    notes: list[str] = []
    if share is None and not (in_gallery.any() and is_query.any()):
        share = 0.5
        notes += _undivided(data["split"].dropna())

    for name in names.unique():
        rows = np.flatnonzero(names == name)
        whole = Search.of(data, rows, rows)
        if share is None:
            search = replace(whole, queries=rows[is_query[rows]], gallery=rows[in_gallery[rows]])
        else:
            search = _split(whole, share, seed)
        answerable = _answerable(data, search, name, share is not None, notes)
        if answerable is not None:
            searches[name or "all"] = answerable

    if not searches:
        raise ValueError(
            f"no query shows an identity of the gallery. Splits {', '.join(GALLERY)} are the gallery, "
            f"{', '.join(QUERY)} the queries; or make them: --unknown 0.5. Identities with two images are needed"
        )
    return searches, notes


def _undivided(splits: Series) -> list[str]:
    """A note on splits that are not a gallery and its queries; ValueError if they are one of both alone."""
    there = listed(map(repr, sorted(splits.unique())))
    if not there:
        return []
    if splits.isin(("query", "gallery")).any():
        raise ValueError(
            f"the splits {there} are not a gallery ({', '.join(GALLERY)}) and its queries ({', '.join(QUERY)}): rename "
            "them, or draw the queries by chance: --unknown 0.5"
        )
    return [f"the splits {there} are not a gallery and its queries, which were drawn by chance"]


def _answerable(
    data: DataFrame,
    search: Search,
    name: str,
    is_drawn: bool,
    notes: list[str],
) -> Search | None:
    """The search without queries that are the gallery's only image of their identity; None if no query is known.

    Args:
        is_drawn: whether the split was drawn. notes: receives a line on rows left out, and on the sizes.
    """
    of_name = f" of {name}" if name else ""
    gallery_identity = search.identity[search.gallery]
    query_identity = search.identity[search.queries]
    if is_drawn:
        identities, first_rows = np.unique(gallery_identity, return_index=True)
        alone = search.gallery[first_rows[~np.isin(identities, query_identity)]]
        if len(alone):
            listed_names = listed(data["identity"][alone])
            notes.append(
                f"{len(alone)} known identities{of_name} have a single image, which is searched but not queried: "
                f"{listed_names}"
            )

    is_known = search.positives() > 0
    is_only_image = ~is_known & np.isin(query_identity, gallery_identity)
    if is_only_image.any():
        count = int(is_only_image.sum())
        notes.append(f"{count} queries{of_name} are the gallery's only image of their identity: left out")
        search = search.only(~is_only_image)
        is_known = is_known[~is_only_image]
    if not is_known.any():
        notes.append(f"no query{of_name} shows an identity of the gallery: left out")
        return None

    counts = []
    for rows in (search.gallery, search.queries[is_known], search.queries[~is_known]):
        counts.append(f"{len(rows)} images of {len(np.unique(search.identity[rows]))} identities")
    notes.append(f"gallery{of_name}: {counts[0]}; queries: {counts[1]} known, {counts[2]} unknown")
    if is_known.all():
        notes.append(f"no unknown identities{of_name}: a closed set, without AUC, OSCR, BAUS, score and oracle")
    return search


def _split(whole: Search, share: float, seed: int) -> Search:
    """The search of all images of unknown identities and half of the known ones' in the other half."""
    rng = np.random.default_rng(seed)
    identity_of_row = whole.identity[whole.gallery]
    identities = rng.permutation(np.unique(identity_of_row))
    unknown_count = min(round(share * len(identities)), len(identities) - 1)  # one is left to be known
    is_unknown = np.isin(identity_of_row, identities[:unknown_count])
    queries = [whole.gallery[is_unknown]]
    gallery = []
    for identity in np.sort(identities[unknown_count:]):
        rows = whole.gallery[identity_of_row == identity]
        images = rng.permutation(np.unique(whole.image[rows]))
        half = images[: (len(images) + 1) // 2]
        is_gallery = np.isin(whole.image[rows], half)
        gallery.append(rows[is_gallery])
        queries.append(rows[~is_gallery])
    return replace(
        whole,
        queries=np.sort(np.concatenate(queries)),
        gallery=np.sort(np.concatenate(gallery)),
    )


def nearest(scorer: Scorer, search: Search) -> tuple[Ints, Array]:
    """The gallery row (Q,) nearest to each query, and its similarity (Q,); of equally similar ones the first row."""
    _, near = measure(scorer, search, {})
    wrong, wrong_score = near.wrong[:, 0], np.nan_to_num(near.wrong_score[:, 0], nan=-np.inf)
    right_score = np.nan_to_num(near.right_score, nan=-np.inf)
    lead = comparable(right_score) - comparable(wrong_score)
    is_right = (lead > 0) | ((lead == 0) & (near.right < wrong))
    return np.where(is_right, near.right, wrong), np.where(is_right, right_score, wrong_score)


def _measure(
    scorer: Scorer,
    data: DataFrame,
    dataset: str,
    search: Search,
    thresholds: Mapping[str, float],
    settings: EvalSettings,
    result: Result,
) -> None:
    """Add the rows of a dataset, its queries and the curve over all thresholds."""
    nearest_rows, score = nearest(scorer, search)
    identity = search.identity[search.queries]
    is_known = search.positives() > 0
    is_right = is_known & (search.identity[nearest_rows] == identity)
    ids = data["id"].to_numpy()
    names = data["identity"].to_numpy()
    result.keep(
        "queries",
        dataset=[dataset] * len(score),
        id=ids[search.queries],
        identity=names[search.queries],
        known=is_known,
        nearest=ids[nearest_rows],
        nearest_identity=names[nearest_rows],
        score=score,
        right=is_right,
    )
    answers = Answers.of(score, is_right, is_known, identity)
    everyone = np.ones_like(is_known)

    def value(statistic: Callable[[Answers], float], queries: Truths) -> Value:
        """A measure of some queries, with its interval over their identities."""
        chosen = answers.rows(queries)
        owner = identity[queries]
        return any_statistic(
            lambda rows: statistic(chosen.rows(rows)),
            [np.arange(len(owner))],
            owner,
            settings,
            count=len(np.unique(owner)),
            limits=SHARE,
        )

    all_thresholds: Row = {
        "dataset": dataset,
        "threshold": EVERY,
        "closed": value(open_set.known_accuracy, is_known),
    }
    result.rows.append(all_thresholds)
    is_closed = bool(is_known.all())
    if not is_closed:
        all_thresholds["AUC"] = value(open_set.known_auc, everyone)
        all_thresholds["OSCR"] = value(open_set.oscr_area, everyone)
        taus, baks, baus = open_set.curve(answers)
        result.keep(
            "curve",
            dataset=[dataset] * len(taus),
            threshold=taus,
            BAKS=baks,
            BAUS=baus,
        )
        thresholds = {**thresholds, ORACLE: open_set.best_threshold(answers)}

    for label, tau in thresholds.items():
        row = {"tau": Value(tau, None, None, len(np.unique(identity)))}
        row["BAKS"] = value(partial(open_set.known_accuracy, threshold=tau), is_known)
        if not is_closed:
            row["BAUS"] = value(partial(open_set.unknown_accuracy, threshold=tau), ~is_known)
            row["score"] = value(partial(open_set.open_set_score, threshold=tau), everyone)
        if label == ORACLE:  # without intervals, because it would be chosen again in each sample
            row = {name: Value(number.value, None, None, number.count) for name, number in row.items()}
        result.rows.append({"dataset": dataset, "threshold": label, **row})


def _means(rows: Sequence[Row]) -> list[Row]:
    """Means over the datasets that have a number, for each threshold; intervals treat datasets as independent."""
    means = []
    for label in dict.fromkeys(row["threshold"] for row in rows):
        rows_of_label = [row for row in rows if row["threshold"] == label]
        mean_row: Row = {"dataset": "mean", "threshold": str(label), **averages(rows_of_label)}
        if label == ORACLE:
            del mean_row["tau"]  # each dataset has its own
        means.append(mean_row)
    return means


PROTOCOL = Protocol(
    name="openset",
    run=run,
    options=OpenSetOptions,
    columns=COLUMNS,
)
