"""How far are generated images from real photos, as sets? How many images does such a number need?

    idmetric eval sets --data outputs/ --pattern '{method}/{subject}/{prompt}_{seed}.png' --references refs/ --out r/
    idmetric eval sets --references refs/ --pool --model tiny --out results/       the noise floor alone

For each subject, three distances of the generated and the real set, from the model's global features at unit length:

| measure | meaning |
|---|---|
| CMMD | 1000 x squared maximum mean discrepancy, sigma 10, unbiased |
| Frechet | distance of Gaussians with the sets' means and covariances, FID's formula |
| centroid | cosine of the sets' mean features; higher = more alike |

Each depends on the number of images, so sets are compared at equal numbers n = 2, 4, 8, ...: the mean over random draws
of n images of each set.

The columns: --explain, or docs/columns.md. n "all" has all images of both sets, which no floor belongs to. Intervals
are over subjects; for a single subject they hold 95 % of the draws. --pool takes all subjects as one set. Subjects
need four photos, and two generated images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Array, Ints, listed
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, VectorScorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.generator.images import Images
from idmetric.evaluate.protocols.generator.options import OUTPUTS_HELP, OutputsOptions
from idmetric.evaluate.protocols.generator.outputs import open_outputs
from idmetric.evaluate.settings import option
from idmetric.evaluate.statistics.sets import centroid_similarity, cmmd, frechet_distance

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


@dataclass(frozen=True)
class SetsOptions(OutputsOptions):
    """Options of the protocol `sets`."""

    pool: bool = option(False, "take all subjects as one set")
    draws: int = option(100, "random draws of n images of a set", least=2)


COLUMNS = {
    "score": Column("the measure named in the row", 0),
    "real": Column("the noise floor: the same of two halves of n real photos each, split at random", 0),
    "beyond": Column("share of subjects with a score worse than 97.5 % of the splits of their own photos", -1),
}

ALL, REAL = "all", "real photos"  # of n, of subjects; the method of rows without generated images
MEASURES: dict[str, Callable[[Array, Array], float]] = {
    "CMMD": cmmd,
    "Frechet": frechet_distance,
    "centroid": centroid_similarity,
}
# CMMD's estimator is below 0 by chance
_RANGES = {"CMMD": intervals.ANY, "Frechet": intervals.POSITIVE, "centroid": intervals.COSINE}
_TAIL = 2.5  # % of the floor's draws beyond which a score is worse


def open_data(data: Path | None, settings: EvalSettings, options: SetsOptions) -> Manifest:
    """The manifest of the command's outputs and references."""
    if data is None and options.references is None:
        raise ValueError("--references PATH is needed: real photos, a folder for each subject; or --data, a table")
    return open_outputs(data, settings, options)


def run(
    data: Manifest, models: Models, settings: EvalSettings = EvalSettings(), options: SetsOptions = SetsOptions()
) -> list[Result]:
    """A result for each model, with rows for methods, measures and numbers of images.

    Args:
        data: as `outputs.read` makes it.

    Raises:
        ValueError: if no subject has four references, a model has no features, or for another distance than "cls".
        ManifestError: see `scorers.bind`.
    """
    lacking = [name for name, model in models.items() if not hasattr(model, "embed_prepared")]
    if lacking:
        raise ValueError(f"{', '.join(lacking)}: sets are compared by features, and metrics of pairs have none")
    if settings.distance != "cls":
        raise ValueError(f"--distance {settings.distance}: sets are compared by global features, the distance cls")
    _sets(data, options.pool)  # before anything is embedded
    bound = bind(data, models, settings)
    real, generated, notes = _sets(bound.manifest, options.pool)
    about = {**settings.as_dict(), "pool": options.pool, "draws": options.draws}
    results = []
    for scorer, result in bound.results("sets", about, notes):
        assert isinstance(scorer, VectorScorer)
        dimensions = scorer.vectors(next(iter(real.values()))[:1]).shape[1]
        for method, lines in _lines(scorer, real, generated, settings.seed, options.draws).items():
            result.rows.extend(_rows(method, lines, settings))
            for line in lines:
                result.keep("sets", **{name: [value] for name, value in line.items()})
            result.notes.extend(_within_floor(method, lines))
            most = max(int(line["n"]) for line in lines if line["n"] != ALL)
            if most <= dimensions:
                result.notes.append(
                    f"WARNING: Frechet: at most {most} images in {dimensions} dimensions: covariances are singular and "
                    "the distance is too high; compare it at equal numbers of images only"
                )
        results.append(result)
    return results


Rows = Mapping[str, Ints]  # subject -> rows of a manifest


def _sets(data: Manifest, pool: bool) -> tuple[Rows, Mapping[str, Rows], list[str]]:
    """At least four photos of each subject, at least two images of each by method, and notes on subjects with fewer."""
    images = Images.of(data)
    real, subject = dict(images.references), images.subject
    if pool:
        real = {ALL: np.concatenate(list(real.values()))}
        subject = np.full(len(subject), ALL, dtype=object)

    notes = []
    few = [name for name, rows in real.items() if len(rows) < 4]
    if few:
        notes.append(f"{len(few)} subjects have fewer than four photos and are left out: {listed(few)}")
    real = {name: rows for name, rows in real.items() if len(rows) >= 4}
    if not real:
        raise ValueError(
            "no subject has four real photos, two for each half: add some, or take all subjects as one set (--pool)"
        )

    generated: dict[str, dict[str, Ints]] = {}
    for method in images.methods:
        rows_of = {name: images.rows[(images.method == method) & (subject == name)] for name in real}
        lone = [name for name, rows in rows_of.items() if len(rows) < 2]
        if lone:
            notes.append(f"{method} has fewer than two images of {len(lone)} subjects: {listed(lone)}")
        if len(lone) < len(rows_of):
            generated[method] = {name: rows for name, rows in rows_of.items() if len(rows) > 1}
    if images.methods and not generated:
        raise ValueError("no subject has two generated images of a method: take all subjects as one set (--pool)")

    # a method without its hardest subject would rise
    shared = [name for name in real if all(name in rows_of for rows_of in generated.values())]
    count = len(set().union(*generated.values()))
    if 0 < len(shared) < count and generated:
        notes.append(f"compared on the {len(shared)} of {count} subjects that all methods have")
        for method, rows_of in generated.items():
            generated[method] = {name: rows for name, rows in rows_of.items() if name in shared}
    return real, generated, notes


def _lines(
    scorer: VectorScorer, real: Rows, generated: Mapping[str, Rows], seed: int, draws: int
) -> dict[str, list[dict[str, Any]]]:
    """Method -> a line for each subject, measure and number of images; the score is None without generated images."""

    @cache  # the floor of a subject is one for all methods
    def floor(subject: str, n: int) -> dict[str, Array]:
        photos = scorer.vectors(real[subject])
        return _drawn(None, photos, n, (seed, n, 0), draws)

    nothing = np.empty(0, np.int64)
    lines: dict[str, list[dict[str, Any]]] = {}
    for method, rows_of in (generated or {REAL: dict.fromkeys(real, nothing)}).items():
        lines[method] = []
        for subject, rows in rows_of.items():
            photos = scorer.vectors(real[subject])
            images = scorer.vectors(rows) if len(rows) else None

            # number of images -> measure -> scores and floors of the draws
            numbers: dict[str, tuple[dict[str, Array], dict[str, Array]]] = {}
            n = 2
            while n <= min(len(photos) // 2, len(rows) or len(photos)):
                scores = {} if images is None else _drawn(images, photos, n, (seed, n, 1), draws)
                numbers[str(n)] = scores, floor(subject, n)
                n *= 2
            if images is not None:
                whole = {measure: np.array([statistic(images, photos)]) for measure, statistic in MEASURES.items()}
                numbers[ALL] = whole, {}

            for number, (scores, floors) in numbers.items():
                for measure in MEASURES:
                    labels = {"method": method, "subject": subject, "measure": measure, "n": number}
                    summary = _summary(scores.get(measure), floors.get(measure), measure)
                    lines[method].append(labels | summary)
    return lines


def _drawn(images: Array | None, photos: Array, n: int, seed: tuple[int, ...], draws: int) -> dict[str, Array]:
    """Each measure of n images, or n other photos, and n photos in every draw."""
    rng = np.random.default_rng(seed)
    values = {name: np.empty(draws) for name in MEASURES}
    for index in range(draws):
        order = rng.permutation(len(photos))
        x = photos[order[n : 2 * n]]
        if images is not None:
            x = images[rng.choice(len(images), n, replace=False)]
        for name, statistic in MEASURES.items():
            values[name][index] = statistic(x, photos[order[:n]])
    return values


def _summary(score: Array | None, real: Array | None, measure: str) -> dict[str, Any]:
    """Means over draws, the range of 95 % of them, and whether the score is worse than the floor."""
    summary: dict[str, Any] = {}
    for name, values in ("score", score), ("real", real):
        mean = low = high = None
        if values is not None:
            mean = float(values.mean())
            if len(values) > 1:
                low, high = np.percentile(values, [_TAIL, 100 - _TAIL]).tolist()
        summary |= {name: mean, f"{name}_low": low, f"{name}_high": high}

    beyond = None
    if score is not None and real is not None:
        beyond = summary["score"] > summary["real_high"]
        if measure == "centroid":  # the only similarity
            beyond = summary["score"] < summary["real_low"]
    return {**summary, "beyond": beyond}


# Rows


def _rows(method: str, lines: Sequence[Mapping[str, Any]], settings: EvalSettings) -> list[Row]:
    """A row for each measure and number of images: means over the subjects that have so many."""
    numbers = sorted({line["n"] for line in lines}, key=lambda n: (n == ALL, n.zfill(12)))
    rows: list[Row] = []
    for measure, n in product(MEASURES, numbers):
        members = [line for line in lines if (line["measure"], line["n"]) == (measure, n)]
        row: Row = {"method": method, "measure": measure, "n images": n}
        for name in ("score", "real", "beyond"):
            if members[0][name] is not None:
                limits = intervals.SHARE if name == "beyond" else _RANGES[measure]
                row[name] = _mean(members, name, settings, limits)
        rows.append(row)
    return rows


def _mean(lines: Sequence[Mapping[str, Any]], name: str, settings: EvalSettings, limits: intervals.Range) -> Value:
    values = np.array([float(line[name]) for line in lines])
    if len(lines) == 1:  # one subject: the range of its draws
        [line] = lines
        return Value(float(line[name]), line.get(f"{name}_low"), line.get(f"{name}_high"), 1)
    subjects = np.array([line["subject"] for line in lines], dtype=object)
    return intervals.mean(values, subjects, settings, limits=limits)


def _within_floor(method: str, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warn of scores that the real photos reach among themselves."""
    parts = []
    for measure in MEASURES:
        largest = {line["subject"]: line for line in lines if line["measure"] == measure and line["n"] != ALL}
        within = sum(line["beyond"] is False for line in largest.values())
        if within:
            parts.append(f"{measure} of {within} of {len(largest)} subjects")
    if not parts:
        return []
    return [
        f"WARNING: {method}: within the noise floor at the largest n: {', '.join(parts)}. Two halves of their real "
        "photos differ as much"
    ]


PROTOCOL = Protocol(
    name="sets",
    run=run,
    options=SetsOptions,
    columns=COLUMNS,
    open_data=open_data,
    data_help=OUTPUTS_HELP,
    needs_data=False,
    data_options=("pattern", "layout", "benchmark", "references"),
)
