"""How good are generators of pictures of given subjects? Methods x subjects x prompts x seeds, in one table.

    idmetric eval generator --data outputs/ --pattern '{method}/{subject}/{prompt}_{seed}.png' --references refs/
    idmetric eval generator --data outputs.csv --by prompt_class --model tiny --out results/
    idmetric eval generator --model tiny --out results/      a painted example of four methods, no download

A row for each method (and each value of --by), then one for each two methods: the difference on equal subjects, prompts
and seeds. Images at a place (subject, prompt, seed) that another method lacks are left out, and listed.

The columns: --explain, or docs/reference/columns.md. Intervals and tests take subjects as units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Array, Truths, listed
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value, copying, tested_family
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind, calibrated
from idmetric.evaluate.protocols.generator.columns import (
    CLIP,
    COLUMNS,
    NOT_CHECKED,
    agreements,
    columns_of,
    distinct_references,
    keep_items,
    keep_missing,
    notes_on,
    prompt_fidelity,
    refuse_judges,
)
from idmetric.evaluate.protocols.generator.confusion import note_on_confusion
from idmetric.evaluate.protocols.generator.example import example
from idmetric.evaluate.protocols.generator.images import Images, MethodScores, Names, score, sizes_of
from idmetric.evaluate.protocols.generator.outputs import read
from idmetric.evaluate.protocols.generator.pattern import FIELD, LAYOUTS
from idmetric.evaluate.protocols.generator.pictures import PicturesTaken
from idmetric.evaluate.settings import Checked, option
from idmetric.evaluate.statistics.paired import Comparison, compare, too_few
from idmetric.scoring.copies import MANY
from idmetric.scoring.scores import GIVEN

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class GeneratorOptions(Checked):
    """Options of the protocol `generator`."""

    pattern: str | None = option(
        None,
        "names of output files below --data, such as '{method}/{subject}/{prompt}_{seed}.png'",
        metavar="PATTERN",
    )
    layout: str | None = option(None, "a published layout instead of --pattern", choices=tuple(LAYOUTS))
    references: str | None = option(
        None, "a folder with a folder for each subject, or a path such as 'refs/{subject}/*.jpg'", metavar="PATH"
    )
    training: str | None = option(
        None, "images that the generators were trained on, given as --references are", metavar="PATH"
    )
    held_out: bool = option(False, "state that no reference was among the training images")
    by: tuple[str, ...] = option(
        (), "also group by this field or column; may be repeated", metavar="COLUMN", repeated=True
    )
    against: str | None = option(None, "compare each method with this one (default: each two)", metavar="METHOD")
    clip_t: str | None = option(
        None,
        "CLIP or SigLIP for prompt fidelity: folder or Hub repository (pip install 'idmetric[eval]')",
        metavar="REPO",
    )
    copies: bool = option(True, "look for copies of references")
    threshold: float | None = option(
        None,
        "largest distance of one subject, for the share called same (default: the calibration's)",
        least=0,
    )
    calibration: Path | None = option(None, "calibration for this threshold (default: the model's own)", metavar="FILE")


Scored = Mapping[str, Mapping[tuple[str, ...], float]]  # method -> place, which begins with the subject -> score


def add_differences(result: Result, scores: Mapping[str, Scored], settings: EvalSettings, against: str | None) -> None:
    """Add a row for each two methods with common places, or each with one, and all tests as items.

    Methods that copy are in no comparison. Notes name the tested methods, and say if there are too few subjects for any
    difference to show.

    Args:
        scores: metric -> method -> place -> score; the rows have p of the first metric, see `paired.compare`.
    """
    result.keep("tests", metric=[], **{field.name: [] for field in fields(Comparison)})
    copiers = copying(result)
    if against in copiers:
        result.notes.append(f"no method is tested: --against {against} is a method that copies")
        return
    rows: dict[tuple[str, str], Row] = {}
    first_metric = next(iter(scores))
    for metric, scored in scores.items():
        competing = {method: places for method, places in scored.items() if method not in copiers}
        comparisons = compare(competing, against, limits=intervals.DIFFERENCE)
        if not comparisons:
            continue
        for test in comparisons:
            row = rows.setdefault((test.a, test.b), {"method": f"{test.a} - {test.b}", "group": "paired"})
            row[metric] = Value(test.difference, None, None, test.pairs)
            if settings.bootstrap > 1:
                row[metric] = Value(test.difference, test.low, test.high, test.pairs)
            if metric == first_metric:
                row["p"] = Value(test.p_holm, None, None, test.subjects)
            result.keep("tests", metric=[metric], **{name: [value] for name, value in vars(test).items()})

        if metric == first_metric:
            result.notes.append(tested_family(result))
            if few := too_few(comparisons):
                result.notes.append(few)
    result.rows.extend(rows.values())


def by_place(method: Names, places: Sequence[tuple[str, ...]], values: Array) -> Scored:
    """Scores as `differences` takes them, without NaN."""
    scores: dict[str, dict[tuple[str, ...], float]] = {}
    for name, place, value in zip(method, places, values, strict=True):
        if not np.isnan(value):
            scores.setdefault(name, {})[place] = float(value)
    return scores


def open_data(data: Path | DataFrame | None, settings: EvalSettings, options: GeneratorOptions) -> DataFrame:
    """The manifest of the command's outputs and references, or of the painted example."""
    if data is None:
        if settings.out is None:
            raise ValueError("--out DIR is needed: the example is painted there (or give outputs: --data PATH)")
        return example(settings.out / "example")
    if not isinstance(data, Path) and f"{FIELD}role" in data:  # the data of another evaluation
        return data
    return read(
        data,
        options.pattern,
        layout=options.layout,
        references=options.references,
        training=options.training,
        skip=settings.on_error == "skip",
    )


def run(
    data: DataFrame,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: GeneratorOptions = GeneratorOptions(),
) -> list[Result]:
    """A result for each model, with rows for methods, their groups, and their paired differences.

    Args:
        data: as `outputs.read` makes it.
        models: a `DualEncoder` of the name `CLIP-T` adds prompt fidelity.

    Raises:
        ValueError: for an unknown method or column, or a model that gives no similarities of all pairs.
        CalibrationError: for a calibration of another model or distance.
        ManifestError: see `scorers.bind`.
    """
    if options.clip_t is not None:
        from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder

        models = {**models, CLIP: DualEncoder(options.clip_t, device=settings.device)}
    refuse_judges(models)
    images = Images.of(data)
    if not len(images.rows):
        raise ValueError("no generated images of subjects with references")
    if options.against is not None and options.against not in images.methods:
        raise ValueError(f"--against {options.against!r}: no such method; there are {', '.join(images.methods)}")
    _groups(images, data, options.by)  # refuses unknown columns before anything is embedded
    about = {**settings.as_dict(), "by": list(options.by), "held_out": options.held_out}
    thresholds = {name: _threshold(model, images, settings, options) for name, model in models.items()}

    taken = PicturesTaken()
    bound = bind(data, models, settings, wants=[taken.take])
    images = Images.of(bound.manifest)
    notes = notes_on(bound.manifest, images, options.held_out)
    missing = images.missing()
    shared = images.on_shared_places()
    images = shared.images
    groups = _groups(images, bound.manifest, options.by)
    is_unchecked = images.have_several_subjects
    copies = None
    notes += shared.notes
    sizes = sizes_of(images, bound.manifest, taken)
    if len(set(sizes.values())) > 1:
        listing = ", ".join(f"{method} {size}" for method, size in sizes.items())
        notes.append(
            f"WARNING: images differ in size ({listing}), which alone changes similarities: compare methods at one size"
        )
    if is_unchecked:
        notes.append("images show several subjects: copies are not checked")
    elif options.copies:
        copies, gray = agreements(images, bound.manifest, settings, taken)
        notes += gray
    photos, repeated = distinct_references(images, bound.manifest, taken)
    notes += repeated
    fidelity = prompt_fidelity(images, bound, models, notes)

    if shared.compared_on:
        about["compared_on"] = shared.compared_on
    results = []
    for scorer, result in bound.results("generator", about, notes):
        scores = score(images, scorer, photos, copies, fidelity)
        least: float | None = None  # the similarity from which an image is of its subject
        result.notes.extend(note_on_confusion(images, photos, scorer, settings.seed))
        threshold, source = thresholds[result.model]
        if threshold is not None:
            least = 1 - threshold
            result.notes.append(f"same: images up to a mean distance of {threshold:.4f} ({source})")
            result = replace(result, settings={**result.settings, "same": threshold, "same_source": source})

        for method, (group, members) in product(images.methods, groups.items()):
            chosen = members & (images.method == method)
            if not chosen.any():
                continue
            row: Row = {"method": method, "group": group}
            if group == "all":
                row["image size"] = sizes[method]
            row |= columns_of(images, scores, chosen, least, settings)
            if is_unchecked and options.copies:
                row["copies"] = NOT_CHECKED
            result.rows.append(row)
        if copiers := copying(result):
            result.notes.append(
                f"WARNING: more than {100 * MANY:g} % of the images are copies, so that these methods cannot be the "
                f"best: {listed(copiers)}"
            )

        _compare(images, scores, settings, options, result)
        keep_items(images, scores, bound.manifest, options.by, result)
        keep_missing(missing, result)
        results.append(result)
    return results


def _groups(images: Images, data: DataFrame, by: Sequence[str]) -> dict[str, Truths]:
    """Names of groups, and their images (G,)."""
    groups = {"all": np.ones(len(images.rows), dtype=bool)}
    columns = {"subject": images.subject, "prompt": images.prompt}
    for name in data:
        if name.startswith(FIELD):
            columns.setdefault(name.removeprefix(FIELD), data[name].to_numpy()[images.rows])
    for column in by:
        if column not in columns:
            raise ValueError(f"--by {column}: no such column; there are {', '.join(sorted(columns))}")
        for value in dict.fromkeys(columns[column]):
            if value is not None:
                groups[f"{column}: {value}"] = columns[column] == value
    return groups


def _threshold(
    model: Any, images: Images, settings: EvalSettings, options: GeneratorOptions
) -> tuple[float | None, str]:
    """The largest distance that is called same, and its source; None without a calibration for these images."""
    if options.threshold is not None:
        return options.threshold, GIVEN
    if images.have_several_subjects:  # a calibration is of pairs of images of one subject
        return None, ""
    limit = calibrated(model, settings, options.calibration)
    if limit is None:
        return None, ""
    return limit.distance, limit.source


def _compare(
    images: Images, scores: MethodScores, settings: EvalSettings, options: GeneratorOptions, result: Result
) -> None:
    if len(images.methods) < 2:
        return
    places = images.places()
    cells = [places[index][:2] for index in scores.several]
    by_metric = {
        "identity": by_place(images.method, places, scores.identity),
        "diversity": by_place(images.method[scores.several], cells, scores.diversity),
    }
    if scores.fidelity is not None:
        by_metric[CLIP] = by_place(images.method, places, scores.fidelity)
    add_differences(result, by_metric, settings, options.against)


PROTOCOL = Protocol(
    name="generator",
    run=run,
    options=GeneratorOptions,
    columns=COLUMNS,
    open_data=open_data,
    data_help="folder of generated images (--pattern or --layout), or table of them (.csv, .parquet, .jsonl)",
    needs_data=False,
    data_options=("pattern", "layout", "references", "training", "clip_t"),
    packages={"clip_t": "transformers"},
    has_verdict=True,
)
