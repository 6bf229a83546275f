"""DreamBench++: does a metric agree with people about generated images? (NearID, Table 2, Fig. 4; ID-Sim, Fig. 25)

    idmetric eval dreambench --ratings ratings/ --out results/                                the published scores
    idmetric eval dreambench --ratings ratings/ --data db.parquet --model nearid --out results/   and a model's own

Seven methods made an image for each of 150 references x 9 prompts; two groups of people rated from 0 to 4 how well each
keeps the reference's concept. M-H of a method and category is the mean over the groups of Pearson's r between a
metric's similarities and the group's ratings, its ± half the difference of the two; H-H is r between the groups, with
Krippendorff's alpha at interval level next to it, as DreamBench++ reports it. The Fisher-z row is Fisher's mean over
the methods, its ± the standard error. Table 2 is over objects alone, 585 images a method, which the paper does not say
and its released code does. docs/protocols/dreambench.md says where the data are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common.columns import Array, Ints
from idmetric.evaluate.protocols.common.intervals import COSINE, any_statistic
from idmetric.evaluate.protocols.common.paper_numbers import (
    ALL_CATEGORIES,
    FISHER_ROW,
    HUMAN,
    NONE,
    Pair,
    missing_rows,
    open_points,
    printed,
    row_of,
)
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value, numbers_of
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.dreambench.ratings import (
    CATEGORIES,
    Item,
    category_of,
    humans,
    pairs,
    rated_methods,
    read,
)
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.agreement import fisher_mean, kendall, rating_alpha, spearman

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.data.importers.dreambench import Ratings


@dataclass(frozen=True)
class DreamBenchOptions(Checked):
    """Options of the protocol `dreambench`."""

    category: tuple[str, ...] = option(
        tuple(CATEGORIES),
        "only images of this category; may be repeated (default: all four)",
        choices=tuple(CATEGORIES),
        repeated=True,
    )
    ratings: Path | None = option(None, "the published folder of ratings")


COLUMNS = {
    "M-H": Column("Pearson's r with the ratings of people, mean over two groups", 1, "NearID, Table 2"),
    "±": Column("half the difference of the two groups, or the standard error over methods", 0),
    "alpha": Column("Krippendorff's alpha of the groups' ratings, interval level", 1, "DreamBench++"),
}

_MH, _SPREAD = "M-H", "±"
_LIMIT = 0.9999  # correlations are clipped there before atanh, as in the released code
_fisher = partial(fisher_mean, limit=_LIMIT)
PATCHES = ("patch", "patch_pooled", "patch_biased")  # ID-Sim does not say which of them Table 2b uses
RANKED = ("animal", "object")  # 45 + 65 collections: ID-Sim's "110 reference subjects"


@dataclass(frozen=True)
class Rated:
    """The images of one method and category that a rater and every human group rated, paired by key.

    Attributes:
        items: (collection, prompt), sorted.
        groups: the human ratings, (G, N).
        scores: the rater's, (N,); None for the humans themselves.
        missing: number of images that the humans rated and the rater did not.
    """

    method: str
    items: Sequence[Item]
    groups: Array
    scores: Array | None
    missing: int = 0

    @property
    def collections(self) -> list[str]:
        """The collection of each image."""
        return [collection for collection, _ in self.items]

    def correlations(self, chosen: Ints) -> Array:
        """Pearson's r of each group with the rater, or of each two groups, over the chosen images (with repetitions).

        Raises:
            ValueError: if one of them gave all of these images the same rating.
        """
        ratings = self.groups[:, chosen]
        if self.scores is not None:
            ratings = np.vstack([ratings, self.scores[chosen]])
        if (np.ptp(ratings, axis=1) == 0).any():
            category = category_of(self.items[0])
            raise ValueError(f"{self.method}, {category}: a rater gave the same rating to all {len(chosen)} images")
        matrix = np.asarray(np.corrcoef(ratings))
        if self.scores is None:
            return np.asarray(matrix[np.triu_indices(len(matrix), 1)])
        return np.asarray(matrix[-1, :-1])


def pair(ratings: Ratings, rater: str, method: str, category: str) -> Rated | None:
    """The ratings of a method's images by the humans and a rater (or `HUMAN`); None if one of them rated none.

    Raises:
        ValueError: if the rater is `HUMAN` and there are fewer than two human groups.
    """
    groups = [ratings[name].get(method, {}) for name in humans(ratings)]
    if rater == HUMAN and len(groups) < 2:
        raise ValueError("the agreement of humans with each other (H-H) needs two groups of them: group1, group2")

    rated_by_people = set(groups[0]).intersection(*groups)
    items = sorted(item for item in rated_by_people if category_of(item) == category)
    count = len(items)
    scores = None
    if rater != HUMAN:
        rater_scores = ratings[rater].get(method, {})
        items = [item for item in items if item in rater_scores]
        scores = np.array([rater_scores[item] for item in items])
    if not items:
        return None
    group_scores = [[group[item] for item in items] for group in groups]
    return Rated(method, items, np.array(group_scores), scores, count - len(items))


def rate(
    ratings: Ratings,
    rater: str,
    settings: EvalSettings,
    options: DreamBenchOptions,
    paper: str | None = None,
) -> tuple[list[Row], list[str]]:
    """The rows of one rater, or of `HUMAN` for the humans among each other, and notes on them.

    Args:
        paper: the row of NearID's tables to print next to them.

    For each category the methods, in the table's order, and the Fisher-z row if there are several; at the end, for all
    categories together, the Fisher-z mean of their Fisher-z rows ("all").

    Raises:
        ValueError: if nothing is rated by humans and the rater, or a correlation is undefined.
    """
    rows: list[Row] = []
    notes = []
    category_means = []
    for category in options.category:
        rated = []
        for method in rated_methods(ratings):
            method_rated = pair(ratings, rater, method, category)
            if method_rated is not None:
                rated.append(method_rated)
                row = _row(paper, category, method, [method_rated], settings)
                if rater == HUMAN:
                    row["alpha"] = _alpha(method_rated, settings)
                rows.append(row)
        if len(rated) > 1:
            rows.append(_row(paper, category, FISHER_ROW, rated, settings))
            category_means.append(numbers_of(rows[-1])[_MH])
        missing = sum(method_rated.missing for method_rated in rated)
        if missing:
            notes.append(f"{category}: {missing} images that people rated have no score and are left out")

    if not rows:
        raise ValueError(f"no image of {', '.join(options.category)} is rated by both {rater} and the human groups")
    if len(category_means) == len(CATEGORIES):
        paper_value, _ = _printed(paper, ALL_CATEGORIES, FISHER_ROW)
        mean, _ = _fisher([value.value for value in category_means])
        count = sum(value.count for value in category_means)
        overall = Value(mean, None, None, count, paper_value)
        rows.append({"category": ALL_CATEGORIES, "method": FISHER_ROW, _MH: overall})
    return rows, notes


def _printed(rater: str | None, category: str, method: str) -> Pair:
    """NearID's correlation with people for a row of its tables and its ±; the method may be `FISHER_ROW`."""
    if rater is None:
        return NONE
    if method != FISHER_ROW:
        return printed("nearid", "table_2", method).get(rater, NONE) if category == "object" else NONE
    fisher = printed("nearid", "fisher", rater)
    if category == "object" and fisher:
        return fisher["M-H"], fisher["±"]
    return printed("nearid", "by_category", rater).get(category), None


def _row(
    rater: str | None,
    category: str,
    method: str,
    rated: Sequence[Rated],
    settings: EvalSettings,
) -> Row:
    """A cell with the interval over collections, which all methods share; several methods give their Fisher-z mean."""
    counts = [len(method_rated.items) for method_rated in rated]
    methods = np.repeat(np.arange(len(rated)), counts)  # the method of each image
    images = np.concatenate([np.arange(count) for count in counts])  # its number in the method

    def mean(drawn_methods: Ints, drawn_images: Ints) -> float:
        cells = []
        for number, method_rated in enumerate(rated):
            correlations = method_rated.correlations(drawn_images[drawn_methods == number])
            cells.append(float(correlations.mean()))
        if method == FISHER_ROW:
            return _fisher(cells)[0]
        return cells[0]

    collections = np.concatenate([method_rated.collections for method_rated in rated])
    paper_mean, paper_spread = _printed(rater, category, method)
    value = any_statistic(mean, (methods, images), collections, settings, paper_mean, limits=COSINE)
    row: Row = {"category": category, "method": method, _MH: value}

    correlations = [
        method_rated.correlations(np.arange(count)) for method_rated, count in zip(rated, counts, strict=True)
    ]
    spread = None
    if method == FISHER_ROW:
        _, spread = _fisher([float(of_method.mean()) for of_method in correlations])
    elif len(correlations[0]) > 1:
        spread = float(np.ptp(correlations[0])) / 2
    if spread is not None:
        row[_SPREAD] = Value(spread, None, None, value.count, paper_spread)
    return row


def _alpha(rated: Rated, settings: EvalSettings) -> Value:
    """Krippendorff's alpha of the human groups, with the interval over collections."""

    def of_images(drawn: Ints) -> float:
        return rating_alpha(rated.groups[:, drawn].T)

    numbers = np.arange(len(rated.items))
    return any_statistic(of_images, (numbers,), np.array(rated.collections), settings, limits=(-math.inf, 1.0))


def rank(ratings: Ratings, rater: str, settings: EvalSettings, paper_row: str | None = None) -> Row | None:
    """ID-Sim's row (appendix D.1, Fig. 25): rank correlations with the mean human rating, all methods pooled.

    The paper says "rank generated images by predicted similarity", Spearman (main) and Kendall, 110 subjects and 6,921
    pairs after filtering; that these are the animals and objects (6,930 pairs), and the ratings' mean, is inferred.

    Args:
        paper_row: the row of ID-Sim's tables to print next to it.

    Returns:
        The row; None without images of both categories, or where all have one rating or score.
    """
    rated: list[Rated] = []
    for category in RANKED:
        before = len(rated)
        for method in sorted(rated_methods(ratings)):
            method_rated = pair(ratings, rater, method, category)
            if method_rated is not None:
                rated.append(method_rated)
        if len(rated) == before:
            return None

    people = np.concatenate([method_rated.groups.mean(0) for method_rated in rated])
    scores = np.concatenate([method_rated.scores for method_rated in rated if method_rated.scores is not None])
    if np.ptp(people) == 0 or np.ptp(scores) == 0:
        return None

    collections = np.concatenate([method_rated.collections for method_rated in rated])
    table = {"cls": "dreambench_fig_25", **dict.fromkeys(PATCHES, "dreambench_table_2b")}.get(settings.distance)
    paper = printed("idsim", table, paper_row) if table else {}
    row: Row = {"category": " + ".join(RANKED), "method": "pooled"}
    for name, statistic in (("Spearman", spearman), ("Kendall", kendall)):
        printed_number = paper.get(name)
        row[name] = any_statistic(statistic, (scores, people), collections, settings, printed_number, limits=COSINE)
    return row


def published(
    ratings: Ratings, settings: EvalSettings = EvalSettings(), options: DreamBenchOptions = DreamBenchOptions()
) -> list[Result]:
    """A result for the agreement of the humans with each other, and one for each rater in the ratings."""
    raters = [name for name in ratings if name not in humans(ratings)]
    return [_result(ratings, rater, settings, options, rater) for rater in [HUMAN, *sorted(raters)]]


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: DreamBenchOptions = DreamBenchOptions(),
    *,
    ratings: Ratings,
) -> list[Result]:
    """Score the generated images of a manifest with models, and correlate that with the ratings.

    Args:
        data: pairs of a reference (anchor) and a generated image (candidate), as `idmetric data import dreambench_pp`
            makes them; only the first image of a prompt is rated.
        models: name -> model, see `scorers.bind`.
        ratings: from `ratings.read`.

    Raises:
        ValueError: if no image of the manifest is rated.
    """
    from idmetric.data.manifest import take  # loads pandas, which the help does without

    rated_pairs = [image for image in pairs(data, ratings) if category_of(image.item) in options.category]
    if not rated_pairs:
        engines = sorted(data["engine"].dropna().unique())
        raise ValueError(
            f"no image of {', '.join(options.category)} is rated: images are of {', '.join(engines) or 'no method'}, "
            f"ratings of {', '.join(rated_methods(ratings))}; a folder of images starts with its method's name"
        )
    rows = np.ravel([(image.reference, image.generated) for image in rated_pairs])
    bound = bind(take(data, rows), models, settings)
    images = pairs(bound.manifest, ratings)
    references = [image.reference for image in images]
    generated = [image.generated for image in images]
    results = []
    for name, scorer in bound.models.items():
        model_scores: dict[str, dict[Item, float]] = {}
        for image, score in zip(images, scorer.pairs(references, generated), strict=True):
            if np.isfinite(score):  # a judge may have given no answer
                model_scores.setdefault(image.method, {})[image.item] = float(score)
        signature = scorer.signature()
        label = signature.get("model", "")
        # by the model and not by its name here, which is the user's: `--model clip=...` may be anything
        paper_row = None if settings.look.masked else row_of("dreambench", label)
        result = _result({**ratings, name: model_scores}, name, settings, options, paper_row)
        notes = [*bound.notes, *result.notes, *open_points("dreambench", label)]
        results.append(replace(result, signature=signature, notes=notes))
    return results


def _result(
    ratings: Ratings, rater: str, settings: EvalSettings, options: DreamBenchOptions, paper_row: str | None
) -> Result:
    nearid_row = paper_row if settings.distance == "cls" else None  # NearID's numbers are of class features
    rows, notes = rate(ratings, rater, settings, options, nearid_row)
    if rater != HUMAN and set(RANKED) <= set(options.category):
        pooled = rank(ratings, rater, settings, paper_row)
        if pooled is not None:
            rows.append(pooled)
    result = Result("dreambench", rater, rows, {}, settings.as_dict(), {}, notes, missing_rows("dreambench"))
    for category, method in product(options.category, rated_methods(ratings)):
        rated = pair(ratings, rater, method, category)
        if rated is None:
            continue
        columns: dict[str, Any] = dict(zip(humans(ratings), rated.groups, strict=True))
        if rated.scores is not None:
            columns["score"] = rated.scores
        count = len(rated.items)
        result.keep(
            "images",
            category=[category] * count,
            method=[method] * count,
            collection=rated.collections,
            prompt=[prompt for _, prompt in rated.items],
            **columns,
        )
    return result


def run_command(data: DataFrame, models: Models, settings: EvalSettings, options: DreamBenchOptions) -> list[Result]:
    """Models' own scores of the data's images; without data, the published scores.

    Raises:
        ValueError: without ratings, for data without a model, or a model without data.
    """
    if options.ratings is None:
        raise ValueError("--ratings PATH is needed: the folder of published ratings")
    if bool(len(data)) != bool(models):
        raise ValueError("--model scores the images of --data: give both, or neither for the published scores alone")
    ratings = read(options.ratings)
    if not models:
        return published(ratings, settings, options)
    return run(data, models, settings, options, ratings=ratings)


PROTOCOL = Protocol(
    name="dreambench",
    run=run_command,
    options=DreamBenchOptions,
    columns=COLUMNS,
    needs_data=False,
    needs_model=False,
    data_options=("ratings",),
)
