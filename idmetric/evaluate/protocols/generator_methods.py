"""How good are generators of pictures of given subjects? Methods x subjects x prompts x seeds, in one table.

    idmetric eval generator --data outputs/ --pattern '{method}/{subject}/{prompt}_{seed}.png' --references refs/ \
        --model tiny --out results/
    idmetric eval generator --data outputs.csv --by prompt_class --model tiny --out results/
    idmetric eval generator --model tiny --out results/      a painted example of four methods, no download

A row for each method (and each value of --by), then one for each two methods: the difference on equal subjects, prompts
and seeds. Images at a place (subject, prompt, seed) that another method lacks are left out, and listed.

The columns: --explain, or docs/columns.md. Intervals and tests take subjects as units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Array, Truths, free, listed
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value, copying
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind, by_label, calibrated
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.generator.columns import (
    CLIP,
    NOT_CHECKED,
    SEVERAL,
    agreements,
    columns_of,
    keep_items,
    keep_missing,
    means_of,
    notes_on,
    prompt_fidelity,
    refuse_judges,
    with_clip,
)
from idmetric.evaluate.protocols.generator.columns import COLUMNS as generator_columns
from idmetric.evaluate.protocols.generator.example import example
from idmetric.evaluate.protocols.generator.images import Images, Names, Scores, score
from idmetric.evaluate.protocols.generator.options import OUTPUTS_HELP, CopyingOptions, OutputsOptions
from idmetric.evaluate.protocols.generator.outputs import open_outputs
from idmetric.evaluate.statistics.paired import Comparison, compare
from idmetric.metric.distance.ties import comparable
from idmetric.metric.files.settings import option
from idmetric.metric.models.named import NamedScore
from idmetric.metric.scoring.copies import MANY

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


@dataclass(frozen=True)
class GeneratorOptions(CopyingOptions, OutputsOptions):
    """Options of the protocol `generator`."""

    by: tuple[str, ...] = option(
        (), "also group by this field or column; may be repeated", metavar="COLUMN", repeated=True
    )
    against: str | None = option(None, "compare each method with this one (default: each two)", metavar="METHOD")
    scr: tuple[float, ...] = option(
        (),
        "similarities under which a subject has failed (default: the threshold of the model's calibration)",
        metavar="TAU",
    )
    calibration: Path | None = option(None, "calibration for SCR (default: the model's own)", metavar="FILE")
    rate: float = option(0.05, "false-accept rate of the calibration's threshold")


COLUMNS = {
    "weakest": Column("mean over images of the lowest identity of their subjects, in -1..1"),
    "worst": Column("lowest mean identity of a subject, in -1..1"),
    "SCR": Column("share of subjects with a mean identity under the threshold", -1, "SCR@tau"),
    "real SCR": Column("share of subjects of which the references themselves are under the threshold", 0),
    "published": Column("the published score of that name, in its own unit"),
    "p": Column("sign-flip test over subjects of the differences in identity, corrected by Holm over all pairs", 0),
}

Scored = Mapping[str, Mapping[tuple[str, ...], float]]  # method -> place, which begins with the subject -> score


def add_differences(result: Result, scores: Mapping[str, Scored], settings: EvalSettings, against: str | None) -> None:
    """Add a row for each two methods with common places, or each with one, and all tests as items.

    A note says if there are too few subjects for any difference to show.

    Args:
        scores: metric -> method -> place -> score; the rows have p of the first metric, see `paired.compare`.
    """
    rows: dict[tuple[str, str], Row] = {}
    first_metric = next(iter(scores))
    for metric, scored in scores.items():
        comparisons = compare(scored, against)
        if not comparisons:
            continue
        for c in comparisons:
            row = rows.setdefault((c.a, c.b), {"method": f"{c.a} - {c.b}", "group": "paired"})
            low, high = (c.low, c.high) if settings.bootstrap > 1 else (None, None)
            row[metric] = Value(c.difference, low, high, c.pairs)
            if metric == first_metric:
                row["p"] = Value(c.p_holm, None, None, c.subjects)
        columns = {field.name: [getattr(c, field.name) for c in comparisons] for field in fields(Comparison)}
        result.keep("tests", metric=[metric] * len(comparisons), **columns)

        best_supported = max(comparisons, key=lambda c: c.subjects)
        if metric == first_metric and best_supported.too_few:
            fewer = ", or fewer comparisons (--against METHOD)" if against is None and len(comparisons) > 1 else ""
            result.notes.append(f"{best_supported.too_few}{fewer}")
    result.rows.extend(rows.values())


def by_place(method: Names, places: Sequence[tuple[str, ...]], values: Array) -> Scored:
    """Scores as `differences` takes them, without NaN."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for name, place, value in zip(method, places, values, strict=True):
        if not np.isnan(value):
            found.setdefault(name, {})[place] = float(value)
    return found


# Published numbers


def published(model: Any, images: Images, settings: EvalSettings) -> tuple[NamedScore | None, list[str]]:
    """The published score that a model names, if it is defined for these images, and otherwise a note on the reason."""
    named: NamedScore | None = getattr(model, "named", None)
    if named is None:
        return None, []
    several = [name for name in dict.fromkeys(images.subject) if len(images.references[name]) > 1]
    if settings.distance != "cls" or settings.look.masked or named.references == "frames":
        return None, ["no published number: it is of whole images and photos of subjects, by --distance cls"]
    if named.references == "own" and several:
        return None, [f"no published number: it has one reference of each subject, and {len(several)} have several"]
    return named, []


def value_of(named: NamedScore, identity: Array, subject: Names, settings: EvalSettings) -> Value:
    """The published number of a method's images, of their mean cosines (N,) with the references of their subject (N,).

    The mean over images and their reference, or, of a score over all pairs of images and references, the mean over
    subjects of each subject's pairs; then the source's clamp and factor, also of the interval's ends.
    """
    if named.references == "all":
        each = means_of(identity, subject)
        identity, subject = np.array(list(each.values())), np.array(list(each), dtype=object)
    plain = intervals.mean(identity, subject, settings)

    def of(mean: float) -> float:
        return named.value([[mean]])

    low, high = (None if end is None else of(end) for end in (plain.low, plain.high))
    return replace(plain, value=of(plain.value), low=low, high=high)


def open_data(data: Path | None, settings: EvalSettings, options: GeneratorOptions) -> Manifest:
    """The manifest of the command's outputs and references, or of the painted example."""
    if data is None:
        if settings.out is None:
            raise ValueError("--out DIR is needed: the example is painted there (or give outputs: --data PATH)")
        return example(settings.out / "example")
    return open_outputs(data, settings, options, options.training)


def with_property(options: GeneratorOptions, names: tuple[str, ...]) -> GeneratorOptions:
    """Options that also group images by these properties, which a pivot of the table needs."""
    properties = [name for name in names if name not in ("model", "metric", "method")]
    return replace(options, by=tuple(dict.fromkeys([*options.by, *properties])))


def run(
    data: Manifest,
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
        UnreadableError: see `scorers.bind`.
    """
    models = with_clip(models, options, settings)
    refuse_judges(models)
    images = Images.of(data)
    if not len(images.rows):
        raise ValueError("no generated images of subjects with references")
    if options.against is not None and options.against not in images.methods:
        raise ValueError(f"--against {options.against!r}: no such method; there are {', '.join(images.methods)}")
    dict(_groups(images, data, options.by))  # refuses unknown columns before anything is embedded
    limits = {name: _limits(model, settings, options) for name, model in models.items()}

    bound = bind(data, models, settings)
    images = Images.of(bound.manifest)
    notes = notes_on(bound.manifest, images, options.held_out)
    missing = images.missing()
    images, compared_on = images.on_shared_places()
    groups = dict(_groups(images, bound.manifest, options.by))
    several = images.have_several_subjects
    copies, gray = agreements(images, bound.manifest, settings) if options.copies and not several else (None, [])
    notes += compared_on + gray
    fidelity = prompt_fidelity(images, bound, models, notes)

    about = {**settings.as_dict(), "by": list(options.by), "held_out": options.held_out}
    results = []
    for scorer, result in bound.results("generator", about, notes):
        found = score(images, scorer, copies, fidelity)
        taus, remark = limits[result.model]
        if several:  # the calibration is of pairs of images of one subject
            taus, remark = by_label(options.scr, "SCR@"), [SEVERAL]
        if "SCR" in taus:
            result = replace(result, settings={**result.settings, "scr": taus["SCR"]})
        named, reason = published(models[result.model], images, settings)
        result.notes.extend([*remark, *reason])
        for method in images.methods:
            for group, members in groups.items():
                chosen = members & (images.method == method)
                if chosen.any():
                    row: Row = {"method": method, "group": group, **_values(images, found, chosen, taus, settings)}
                    if several and options.copies:
                        row["copies"] = NOT_CHECKED
                    if named is not None:
                        row["published"] = value_of(named, found.identity[chosen], images.subject[chosen], settings)
                    result.rows.append(row)
        if copiers := copying(result):
            result.notes.append(
                f"WARNING: more than {100 * MANY:g} % of the images are copies, so that these methods cannot be the "
                f"best: {listed(copiers)}"
            )
        _compare(images, found, settings, options, result)
        keep_items(images, found, bound.manifest, options.by, taus, result)
        keep_missing(missing, result, "method")
        results.append(result)
    return results


def _groups(images: Images, data: Manifest, by: Sequence[str]) -> Iterator[tuple[str, Truths]]:
    """Names of groups, and their images (G,)."""
    yield "all", np.ones(len(images.rows), dtype=bool)
    own = {"subject": images.subject, "prompt": images.prompt}
    for column in by:
        if column not in own and f"x_{column}" not in data.table.column_names:
            have = sorted(name[2:] for name in data.table.column_names if name.startswith("x_"))
            raise ValueError(f"--by {column}: no such column; there are {', '.join([*own, *have])}")
        values = own.get(column, np.array(free(data, column), dtype=object)[images.rows])
        for value in dict.fromkeys(values):
            if value is not None:
                yield f"{column}: {value}", values == value


def _limits(model: Any, settings: EvalSettings, options: GeneratorOptions) -> tuple[dict[str, float], list[str]]:
    """Column -> similarity under which a subject has failed, and a note on its origin."""
    if options.scr:
        return by_label(options.scr, "SCR@"), []
    tau = calibrated(model, settings, options.calibration, options.rate)
    if tau is None:
        from idmetric.metric.models.embedder import Embedder

        lacks = "no SCR: the model has no calibration for this distance; give --scr or --calibration"
        return {}, [lacks] if isinstance(model, Embedder) else []
    return {"SCR": tau}, [
        f"SCR: subjects with a mean similarity under {tau:.3f}, which {100 * options.rate:g} % of the pairs of two "
        "identities reach in the calibration"
    ]  # fmt: skip


# Scores


def _values(images: Images, found: Scores, chosen: Truths, taus: Mapping[str, float], settings: EvalSettings) -> Row:
    """The numbers of one method's images."""
    subject = images.subject[chosen]
    own = means_of(found.identity[chosen], subject)
    shared = columns_of(images, found, chosen, images.subject, settings)
    row: Row = {"identity": shared.pop("identity")}

    scenes = [of[chosen[of]] for of in images.scenes if chosen[of].any()]
    if len(scenes) < len(subject):
        lowest = np.array([found.identity[of].min() for of in scenes])
        together = np.array([" + ".join(images.subject[of]) for of in scenes], dtype=object)
        row["weakest"] = intervals.mean(lowest, together, settings)
    row["worst"] = Value(min(own.values()), None, None, len(own))

    if "real" in shared:
        row["real"] = shared.pop("real")
    real = {name: found.real[name] for name in own if name in found.real}
    for column, tau in taus.items():
        for name, means in ((column, own), (f"real {column}", real)):
            if means:
                failed = comparable(list(means.values())) < comparable(tau)
                row[name] = intervals.mean(failed.astype(float), np.array(list(means), dtype=object), settings)
    return row | shared


def _compare(images: Images, found: Scores, settings: EvalSettings, options: GeneratorOptions, result: Result) -> None:
    if len(images.methods) < 2:
        return
    places, several = images.places(), found.several
    cells = list(zip(images.subject[several], images.prompt[several], strict=True))
    scores = {
        "identity": by_place(images.method, places, found.identity),
        "diversity": by_place(images.method[several], cells, found.diversity),
    }
    if found.fidelity is not None:
        scores[CLIP] = by_place(images.method, places, found.fidelity)
    add_differences(result, scores, settings, options.against)


PROTOCOL = Protocol(
    name="generator",
    run=run,
    options=GeneratorOptions,
    columns={**generator_columns, **COLUMNS},
    open_data=open_data,
    data_help=OUTPUTS_HELP,
    needs_data=False,
    data_options=("pattern", "layout", "benchmark", "references", "training", "clip_t"),
    packages={"clip_t": "transformers"},
    group_by=with_property,
    compares="method",
)
