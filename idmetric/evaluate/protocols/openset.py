"""Open-set re-identification: name the individuals of a gallery, and call the others new.

    idmetric eval openset --data animals/ --unknown 0.5 --model tiny --out results/
    idmetric eval openset --data wildlife.parquet --model mega=hf-hub:BVRA/MegaDescriptor-T-224 --threshold 0.4 --out r/

A query gets the name of its nearest gallery image if their similarity reaches a threshold, and is called new
otherwise. A query is known if the gallery has another image of its identity. docs/protocols-openset.md says how splits
become galleries and queries, or are drawn; `idmetric.evaluate.statistics.open_set` defines the columns.

All numbers weigh identities equally, the intervals draw whole identities, and n counts identities. Each dataset is a
gallery of its own; with several, last rows hold the means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, listed, named, texts
from idmetric.evaluate.protocols.common.intervals import any_statistic, averages
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.ranked import Search, blocks
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind, by_label, calibrated
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.statistics import open_set
from idmetric.evaluate.statistics.open_set import Answers
from idmetric.metric.distance.ties import first_highest
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


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
    rate: tuple[float, ...] = option((0.01,), "false-accept rates of the calibration's thresholds", metavar="RATE")

    def __post_init__(self) -> None:
        if self.unknown is not None and not 0 <= self.unknown < 1:
            raise ValueError(f"--unknown {self.unknown:g}: a share of the identities, 0 or more and below 1")


COLUMNS = {
    "closed": Column("share of queries of known identities with their identity nearest, mean over identities"),
    "OSCR": Column("area under BAKS over 1 - BAUS at all thresholds", 1, "open-set classification rate"),
    "tau": Column("the threshold, a similarity", 0),
    "BAKS": Column("balanced accuracy on queries of known identities"),
    "score": Column("sqrt(BAKS x BAUS), in 0..1", 1, "AnimalCLEF 2025"),
    "BAUS": Column("balanced accuracy on queries of unknown identities, which count if they are called new"),
}

GALLERY, QUERY = ("database", "gallery", "index", "train"), ("query", "test")
ORACLE, EVERY = "oracle", "every"


def run(
    data: Manifest, models: Models, settings: EvalSettings = EvalSettings(), options: OpenSetOptions = OpenSetOptions()
) -> list[Result]:
    """A result for each model: rows for each dataset and threshold, and their means.

    Raises:
        ValueError: if no query shows an identity of the gallery.
        CalibrationError: for a calibration of another model or distance.
    """
    known = data.take(named(data))
    _searches(known, options, settings.seed)  # before anything is embedded
    limits = {name: by_label(options.threshold, "given ") for name in models}
    for name, model in models.items():
        for rate in () if options.threshold else options.rate:
            tau = calibrated(model, settings, options.calibration, rate)
            limits[name] |= {} if tau is None else {f"{rate:g} of pairs": tau}
    bound = bind(known, models, settings)
    searches, notes = _searches(bound.manifest, options, settings.seed)
    if len(known) < len(data):
        notes.append(f"{len(data) - len(known)} images of unstated identity are left out")
    about = {**settings.as_dict(), "unknown": options.unknown}
    results = []
    for scorer, result in bound.results("openset", about, notes):
        taus = limits[result.model]
        if not taus:
            lacks = "the model has no calibration for this distance; give --threshold or --calibration"
            result.notes.append(f"no threshold: {lacks}")
        for dataset, search in searches.items():
            _measure(scorer, bound.manifest, dataset, search, taus, settings, result)
        if len(searches) > 1:
            result.rows.extend(_means(result.rows))
        results.append(result)
    return results


def _searches(data: Manifest, options: OpenSetOptions, seed: int) -> tuple[dict[str, Search], list[str]]:
    """The search of each dataset, and notes on images that are not queried and datasets that are left out."""
    names, split = texts(data, "dataset", ""), texts(data, "split", "")
    gallery, query = np.isin(split, GALLERY), np.isin(split, QUERY)
    share = options.unknown
    if share is None and not (gallery.any() and query.any()):
        share = 0.5
    found, notes = {}, []

    for name in dict.fromkeys(names):
        rows, of = np.flatnonzero(names == name), f" of {name}" if name else ""
        whole = Search.of(data, rows, rows)
        if share is None:
            search = Search(rows[query[rows]], rows[gallery[rows]], whole.identity, whole.image)
        else:
            search = _made(whole, share, seed)
            identity, first = np.unique(search.identity[search.gallery], return_index=True)
            alone = search.gallery[first[~np.isin(identity, search.identity[search.queries])]]
            if len(alone):
                notes.append(f"{len(alone)} known identities{of} have a single image, which is searched but not "
                             f"queried: {listed(data.take(alone).column('identity'))}")  # fmt: skip
        is_known = search.positives() > 0
        itself = ~is_known & np.isin(search.identity[search.queries], search.identity[search.gallery])
        if itself.any():
            notes.append(f"{int(itself.sum())} queries{of} are the gallery's only image of their identity: left out")
            search, is_known = search.only(~itself), is_known[~itself]
        if not is_known.any():
            notes.append(f"no query{of} shows an identity of the gallery: left out")
            continue
        parts = (search.gallery, search.queries[is_known], search.queries[~is_known])
        counts = [f"{len(part)} images of {len(np.unique(search.identity[part]))} identities" for part in parts]
        notes.append(f"gallery{of}: {counts[0]}; queries: {counts[1]} known, {counts[2]} unknown")
        if is_known.all():
            notes.append(f"no unknown identities{of}: a closed set, without AUC, OSCR, BAUS, score and oracle")
        found[name or "all"] = search

    if not found:
        raise ValueError(
            f"no query shows an identity of the gallery. Splits {', '.join(GALLERY)} are the gallery, "
            f"{', '.join(QUERY)} the queries; or make them: --unknown 0.5. Identities with two images are needed"
        )
    return found, notes


def _made(whole: Search, share: float, seed: int) -> Search:
    """The search of all images of unknown identities and half of the known ones' in the other half."""
    rng = np.random.default_rng(seed)
    identities = rng.permutation(np.unique(whole.identity[whole.gallery]))
    unknown = identities[: min(round(share * len(identities)), len(identities) - 1)]  # one is left to be known
    queries = [whole.gallery[np.isin(whole.identity[whole.gallery], unknown)]]
    gallery = []
    for identity in np.sort(identities[len(unknown) :]):
        rows = whole.gallery[whole.identity[whole.gallery] == identity]
        images = rng.permutation(np.unique(whole.image[rows]))
        is_gallery = np.isin(whole.image[rows], images[: (len(images) + 1) // 2])
        gallery.append(rows[is_gallery])
        queries.append(rows[~is_gallery])
    return Search(np.sort(np.concatenate(queries)), np.sort(np.concatenate(gallery)), whole.identity, whole.image)


def nearest(scorer: Scorer, search: Search) -> tuple[Ints, Array]:
    """The gallery row (Q,) nearest to each query, and its similarity (Q,), block by block."""
    rows, scores = np.empty(len(search.queries), np.int64), np.empty(len(search.queries))
    for block in blocks(scorer, search):
        found = np.fmax(block.scores, -np.inf)  # NaN: no answer of a judge
        for line, hidden in zip(found, block.hidden, strict=True):
            line[hidden] = -np.inf  # its own image
        best = np.array([first_highest(line) for line in found])
        rows[block.part], scores[block.part] = search.gallery[best], found[np.arange(len(best)), best]
    return rows, scores


def _measure(
    scorer: Scorer, data: Manifest, dataset: str, search: Search, limits: Mapping[str, float], settings: EvalSettings,
    result: Result,
) -> None:  # fmt: skip
    near, score = nearest(scorer, search)
    identity, known = search.identity[search.queries], search.positives() > 0
    right = known & (search.identity[near] == identity)
    answers, closed = Answers.of(score, right, known, identity), bool(known.all())
    ids, names = texts(data, "id"), texts(data, "identity")
    result.keep("queries", dataset=[dataset] * len(near), id=ids[search.queries], identity=names[search.queries],
                known=known, nearest=ids[near], nearest_identity=names[near], score=score, right=right)  # fmt: skip

    def value(of: Callable[[Answers], float], chosen: Truths | None = None) -> Value:
        """A measure of some queries (default all), with its interval over their identities."""
        own, who = (answers, identity) if chosen is None else (answers.rows(chosen), identity[chosen])
        count = len(np.unique(who))
        return any_statistic(lambda rows: of(own.rows(rows)), [np.arange(len(who))], who, settings, count=count)

    every: Row = {"dataset": dataset, "threshold": EVERY, "closed": value(open_set.known_accuracy, known)}
    result.rows.append(every)
    if not closed:
        every |= {"AUC": value(open_set.known_auc), "OSCR": value(open_set.oscr_area)}
        taus, baks, baus = open_set.curve(answers)
        result.keep("curve", dataset=[dataset] * len(taus), threshold=taus, BAKS=baks, BAUS=baus)
        limits = {**limits, ORACLE: open_set.best_threshold(answers)}

    for label, tau in limits.items():
        row: Row = {"tau": Value(tau, None, None, len(np.unique(identity)))}
        row["BAKS"] = value(partial(open_set.known_accuracy, threshold=tau), known)
        if not closed:
            row["BAUS"] = value(partial(open_set.unknown_accuracy, threshold=tau), ~known)
            row["score"] = value(partial(open_set.open_set_score, threshold=tau))
        if label == ORACLE:  # without intervals, because it would be chosen again in each sample
            row = {name: Value(v.value, None, None, v.count) for name, v in row.items() if isinstance(v, Value)}
        result.rows.append({"dataset": dataset, "threshold": label, **row})


def _means(rows: Sequence[Row]) -> list[Row]:
    """Means over the datasets that have a number, for each threshold; intervals treat datasets as independent."""
    found = []
    for label in dict.fromkeys(row["threshold"] for row in rows):
        own = [row for row in rows if row["threshold"] == label]
        out: Row = {"dataset": "mean", "threshold": str(label), **averages(own)}
        if label == ORACLE:
            del out["tau"]  # each dataset has its own
        found.append(out)
    return found


PROTOCOL = Protocol(
    name="openset",
    run=run,
    options=OpenSetOptions,
    columns=COLUMNS,
)
