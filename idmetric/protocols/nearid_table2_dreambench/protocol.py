"""DreamBench++: does a metric agree with people about generated images? (NearID, Table 2, Fig. 4; ID-Sim, Fig. 25)

    idmetric eval dreambench --ratings ratings/ --out results/                                the published scores
    idmetric eval dreambench --ratings ratings/ --data samples/ --model nearid --out results/     and a model's own

Seven methods made an image for each of 150 references x 9 prompts; two groups of people rated from 0 to 4 how well each
keeps the reference's concept. M-H of a method and category is the mean over the groups of Pearson's r between a
metric's similarities and the group's ratings, its ± half the difference of the two; H-H is r between the groups. The
Fisher-z row is tanh(mean(atanh(r))) over the methods (equation 6), its ± the standard error over the methods. Table 2
is over objects alone, 585 images a method, which the paper does not say and its released code does. ID-Sim's row
(Fig. 25) pools the methods' animals and objects: Spearman's and Kendall's correlation with the mean human rating.

Data: github.com/yuangpeng/dreambench_plus (images of the seven methods, ratings). docs/protocols-dreambench.md says
which files are needed and how they become a folder or a manifest; `paper_numbers` in this package has the printed
numbers.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.importers.dreambench import Ratings
from idmetric.data.manifest.table import Manifest, read
from idmetric.protocols.common.paper_rows import missing_rows
from idmetric.protocols.common.result import Result
from idmetric.protocols.common.scorers import Models, Settings, bind
from idmetric.protocols.judges.scorer import JudgeScorer
from idmetric.protocols.nearid_table2_dreambench import ratings as dreambench_ratings
from idmetric.protocols.nearid_table2_dreambench import samples as dreambench_samples
from idmetric.protocols.nearid_table2_dreambench.paper_numbers import HUMAN
from idmetric.protocols.nearid_table2_dreambench.ratings import Item, from_manifest, humans, rated_methods
from idmetric.protocols.nearid_table2_dreambench.samples import pairs, rated
from idmetric.protocols.nearid_table2_dreambench.table import RANKED, pair, rank, rate
from idmetric.protocols.options import DreamBenchOptions

OPTIONAL = ("data", "model")

_SETTINGS, _OPTIONS = Settings(), DreamBenchOptions()


def read_data(path: Path) -> Manifest:
    """The manifest of --data, an imported manifest or a folder of generated images."""
    return dreambench_samples.read(path) if path.is_dir() else read(path)


def command(args: argparse.Namespace, data: Manifest | None, models: Models, settings: Settings) -> list[Result]:
    """Run with the options of the command line: published ratings without data, models' own scores with it.

    Raises:
        ValueError: if there are neither ratings nor data, or data without a model or a model without data.
    """
    options: DreamBenchOptions = args.options
    if data is None and options.ratings is None:
        raise ValueError("--ratings PATH is needed, or --data with an imported manifest that holds ratings")
    if (data is None) != (not models):
        raise ValueError("--model scores the images of --data: give both, or neither for the published scores alone")

    ratings = None if options.ratings is None else dreambench_ratings.read(options.ratings)
    if data is None:
        assert ratings is not None
        return published(ratings, settings, options)
    return run(data, models, settings, options, ratings=ratings)


def published(ratings: Ratings, settings: Settings = _SETTINGS, options: DreamBenchOptions = _OPTIONS) -> list[Result]:
    """A result for the agreement of the humans with each other, and one for each rater in the ratings."""
    raters = [name for name in ratings if name not in humans(ratings)]
    return [_result(ratings, rater, settings, options) for rater in [HUMAN, *sorted(raters)]]


def run(
    data: Manifest,
    models: Models,
    settings: Settings = _SETTINGS,
    options: DreamBenchOptions = _OPTIONS,
    *,
    ratings: Ratings | None = None,
) -> list[Result]:
    """Score the generated images of a manifest with models, and correlate that with the ratings.

    Args:
        data: pairs of a reference (anchor) and a generated image (candidate), as `idmetric data import dreambench_pp`
            or `dreambench_samples.read` makes them; only the first image of a prompt is rated.
        models: name -> model, see `scorers.bind`.
        ratings: from `ratings.read`; None: those in the manifest.

    Raises:
        ValueError: if there are no ratings, or no image of the manifest is rated.
    """
    given = from_manifest(data) if ratings is None else ratings
    if not humans(given):
        raise ValueError("no human ratings: name their folder (--ratings), or import them with --option ratings=FOLDER")

    taken = [name for name in models if name == HUMAN or name in humans(given)]
    if taken:
        raise ValueError(f"a model cannot be called {taken[0]!r}, which stands for people here")

    bound = bind(rated(data, given, options.category), models, settings)
    images = pairs(bound.manifest, given)
    a, b = [image.reference for image in images], [image.generated for image in images]
    results = []

    for name, scorer in bound.models.items():
        own: dict[str, dict[Item, float]] = {}
        for image, score in zip(images, scorer.pairs(a, b), strict=True):
            if np.isfinite(score):  # a judge may have given no answer
                own.setdefault(image.method, {})[image.item] = float(score)
        signature = scorer.signature()
        result = _result({**given, name: own}, name, settings, options, signature.get("model", ""))
        notes = [*bound.notes, *result.notes, *(scorer.notes() if isinstance(scorer, JudgeScorer) else [])]
        results.append(replace(result, signature=signature, notes=notes))

    return results


def _result(ratings: Ratings, rater: str, settings: Settings, options: DreamBenchOptions, label: str = "") -> Result:
    rows, notes = rate(ratings, rater, settings, options)
    if rater != HUMAN and set(RANKED) <= set(options.category):
        pooled = rank(ratings, rater, settings, label)
        rows += [] if pooled is None else [pooled]
    return Result(
        protocol="dreambench",
        model=rater,
        rows=rows,
        settings={**settings.as_dict(), "published_rounding": options.published_rounding},
        items={"images": _table(ratings, rater, options)},
        notes=notes,
        missing=missing_rows("dreambench"),
    )


def _table(ratings: Ratings, rater: str, options: DreamBenchOptions) -> dict[str, list[Any]]:
    """Columns of every rated image: its method and item, each group's rating and the rater's score."""
    groups = humans(ratings)
    columns: dict[str, list[Any]] = {name: [] for name in ("category", "method", "collection", "prompt", *groups)}
    if rater != HUMAN:
        columns["score"] = []

    for category in options.category:
        for method in rated_methods(ratings):
            found = pair(ratings, rater, method, category)
            if found is None:
                continue
            for k, (collection, prompt) in enumerate(found.items):
                values = [category, method, collection, prompt, *found.groups[:, k].tolist()]
                values += [] if found.scores is None else [float(found.scores[k])]
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)

    return columns
