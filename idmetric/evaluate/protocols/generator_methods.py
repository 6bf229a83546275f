"""How good are generators of pictures of given subjects? Methods x subjects x prompts x seeds, in one table.

    idmetric eval generator --data outputs/ --pattern '{method}/{subject}/{prompt}_{seed}.png' --references refs/ \
        --model tiny --out results/
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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Array, Truths, listed, texts
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value, copying, tested_family
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, bind, by_label, calibrated
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.generator.columns import (
    CLIP,
    NO_SCR,
    NOT_CHECKED,
    SEVERAL,
    agreements,
    columns_of,
    distinct_references,
    keep_items,
    keep_missing,
    means_of,
    notes_on,
    prompt_fidelity,
    refuse_judges,
    with_clip,
)
from idmetric.evaluate.protocols.generator.columns import COLUMNS as generator_columns
from idmetric.evaluate.protocols.generator.confusion import confusion_of, keep_confusions
from idmetric.evaluate.protocols.generator.example import example
from idmetric.evaluate.protocols.generator.grades import CONSISTENCY, GRADE, Grades, read_grades
from idmetric.evaluate.protocols.generator.images import (
    Images,
    MethodScores,
    Names,
    Sightings,
    on_places,
    score,
    sizes_of,
)
from idmetric.evaluate.protocols.generator.layouts import LAYOUTS, ProjectLayout
from idmetric.evaluate.protocols.generator.options import OUTPUTS_HELP, CopyingOptions, OutputsOptions
from idmetric.evaluate.protocols.generator.outputs import open_outputs
from idmetric.evaluate.protocols.generator.pattern import FLOOR
from idmetric.evaluate.protocols.generator.pictures import PicturesTaken
from idmetric.evaluate.settings import option
from idmetric.evaluate.statistics.paired import Comparison, compare, too_few
from idmetric.metric.distance.ties import comparable
from idmetric.metric.files.tables import first_few
from idmetric.metric.models.named import NamedScore
from idmetric.scoring.copies import MANY
from idmetric.scoring.limits import GIVEN

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.protocols.generator.regions import RegionsOf
    from idmetric.matching.detected import DetectedRegions
    from idmetric.matching.similarities import Similarities


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
    calibration: Path | None = option(
        None, "calibration for SCR and for regions (default: the model's own)", metavar="FILE"
    )
    regions: str | None = option(
        None,
        "boxes or masks of subjects, as for `idmetric match`: each subject is compared in its region",
        metavar="FILE",
    )
    regions_of: Literal["upright", "stored"] | None = option(
        None, "of photos that EXIF turns, regions were drawn on the upright photo (default), or on the stored pixels"
    )
    detect: str | None = option(
        None,
        "find regions by words, such as 'dog,person' (pip install 'idmetric[eval]')",
        metavar="WORDS",
    )
    detector: str = option(
        "grounding-dino", "detector for --detect, see `idmetric match --help`", metavar="NAME[=WEIGHTS]"
    )
    keep_regions: Path | None = option(None, "keep found regions there, for the next run", metavar="DIR")
    threshold: float | None = option(None, "largest distance at which a region shows a subject (for states)")
    floor: Path | None = option(
        None, "images of the same prompts generated without references, named as in --data", metavar="FOLDER"
    )
    grades: tuple[str, ...] = option(
        (),
        "result file or folder of OmniContext, SconeEval, GEdit-Bench, ImgEdit-Bench, MultiBanana or DreamBench++",
        metavar="PATH",
        repeated=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regions is not None and self.detect is not None:
            raise ValueError("--regions and --detect both say where subjects are: leave one out")
        if self.regions_of is not None and self.regions is None:
            raise ValueError("--regions-of says how the regions of --regions were drawn: give these, too")
        if self.threshold is not None and not self.in_regions:
            raise ValueError("--threshold is for subjects in regions: give --regions or --detect, or --scr for SCR")
        if self.scr and not self.in_regions and self.calibration is not None:
            raise ValueError("--scr and --calibration both give the threshold of SCR: leave one out")

    @property
    def in_regions(self) -> bool:
        """Whether each subject is compared in its region."""
        return self.regions is not None or self.detect is not None


COLUMNS = {
    "coverage": Column("share of subjects that are found in a region of their image (--regions)"),
    "matched": Column("share of subjects with exactly one region that counts as them"),
    "missing": Column("share of subjects without a region that counts as them", -1),
    "doubled": Column("share of subjects with several regions that count as them", -1),
    "blended": Column("share of subjects with a region that also counts as another subject", -1),
    "xverse-ip": Column("XVerseBench's IP similarity, of regions, without humans", 1, "XVerse"),
    "xverse-id": Column("XVerseBench's ID similarity, of regions of humans", 1, "XVerse"),
    "uno-distill": Column("lowest of an image's subjects in their best region, mean over images", 1, "UNO, distill"),
    "psr": Column("PSRBench's subject consistency, of regions, as released", 1, "PSR"),
    "multiid": Column("similarity of assigned regions without outliers, as released", 1, "MultiID-Bench"),
    "vistory-cross": Column(
        "similarity of characters' regions to the references, mean over stories, as released", 1, "ViStoryBench, CIDS"
    ),
    "vistory-self": Column(
        "similarity of a character's regions with each other, mean over stories, as released", 1, "ViStoryBench, CIDS"
    ),
    "vistory-occm": Column("number of regions against the number of characters, 0-100", 1, "ViStoryBench, OCCM"),
    "floor": Column("mean identity of images that the same prompts give without references", 0),
    "above floor": Column("share (identity - floor) / (real - floor): 0 = as by the prompt alone, 1 = as real photos"),
    "weakest": Column("mean over images of the lowest identity of their subjects, in -1..1"),
    "worst": Column("lowest mean identity of a subject, in -1..1"),
    "SCR": Column("share of subjects with a mean identity under the threshold", -1, "SCR@tau"),
    "real SCR": Column("share of subjects of which the references themselves are under the threshold", 0),
    "confused": Column("share of images nearer to another subject's references than to their own; ties count half", -1),
    "real confused": Column("the same share of the references, each left out of its subject in turn", 0),
    "chance confused": Column("the same share if the nearest subject is drawn at random: 1 - 1 / subjects", 0),
    GRADE: Column("mean grade of images by a benchmark's language model, on the benchmark's scale (--grades)"),
    CONSISTENCY: Column("mean of the part of such grades that is about the subjects alone"),
    "published": Column("the published score of that name, in its own unit"),
    "p": Column(
        "sign-flip test over subjects of the differences in identity, corrected by Holm for all comparisons", 0
    ),
}

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
        limits = intervals.ANY if metric == GRADE else intervals.DIFFERENCE
        comparisons = compare(competing, against, limits=limits)
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


# Published numbers


def published(
    model: Any, images: Images, settings: EvalSettings, in_regions: bool = False
) -> tuple[NamedScore | None, list[str]]:
    """The published score that a model names, if it is defined for these images, and otherwise a note on the reason."""
    named: NamedScore | None = getattr(model, "named", None)
    if named is None:
        return None, []
    if settings.distance != "cls" or in_regions or settings.look.masked or named.references == "frames":
        return None, ["no published number: it is of whole images and photos of subjects, by --distance cls"]
    several = sum(len(images.references[subject]) > 1 for subject in set(images.subject))
    if named.references == "own" and several:
        return None, [f"no published number: it has one reference of each subject, and {several} have several"]
    return named, []


def _published_in_regions(similarities: Mapping[str, Similarities], layout: ProjectLayout) -> Row:
    """The published numbers of a layout, as released: of all images, or the mean over stories."""
    from idmetric.matching.named import PUBLISHED
    from idmetric.matching.published import mean_of_values

    row: Row = {}
    for name in layout.numbers:
        number_of_story, image_count = [], 0
        for of_story in similarities.values():
            number_of_story.append(PUBLISHED[name].compute(of_story, "released"))
            image_count += len(of_story.aggregated)
        number = mean_of_values(number_of_story)
        count = len(number_of_story) if layout.stories else image_count
        if np.isfinite(number):
            row[name] = Value(number, None, None, count)
    return row


def value_of(named: NamedScore, identity: Array, subject: Names, settings: EvalSettings) -> Value:
    """The published number of a method's images, of their mean cosines (N,) with the references of their subject (N,).

    The mean over images and their reference, or, of a score over all pairs of images and references, the mean over
    subjects of each subject's pairs; then the source's clamp and factor, also of the interval's ends.
    """
    if named.references == "all":
        means = means_of(identity, subject)
        identity, subject = np.array(list(means.values())), np.array(list(means), dtype=object)
    mean = intervals.mean(identity, subject, settings, limits=intervals.COSINE)
    if mean.low is not None and mean.high is not None:
        mean = replace(mean, low=named.value([[mean.low]]), high=named.value([[mean.high]]))
    return replace(mean, value=named.value([[mean.value]]))


def open_data(data: Path | None, settings: EvalSettings, options: GeneratorOptions) -> Manifest:
    """The manifest of the command's outputs and references, or of the painted example."""
    if data is None:
        if settings.out is None:
            raise ValueError("--out DIR is needed: the example is painted there (or give outputs: --data PATH)")
        return example(settings.out / "example")
    return open_outputs(data, settings, options, options.training, options.floor, options.in_regions)


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
        ManifestError: see `scorers.bind`.
    """
    models = with_clip(models, options, settings)
    refuse_judges(models)
    images = Images.of(data)
    if not len(images.rows):
        raise ValueError("no generated images of subjects with references")
    if options.against is not None and options.against not in images.methods:
        raise ValueError(f"--against {options.against!r}: no such method; there are {', '.join(images.methods)}")
    _groups(images, data, options.by)  # refuses unknown columns before anything is embedded
    grades: Grades | None = None
    if options.grades:
        grades = read_grades(options.grades, images)
    regions: RegionsOf | None = None
    unlisted: tuple[str, ...] = ()
    detector = ""
    if options.in_regions:
        from idmetric.evaluate.protocols.generator.regions import detect_regions, read_regions, sightings

        _refuse_without_regions(models, settings)
        to_cut = [images, Images.of(data, FLOOR)]
        if options.regions is not None:
            regions, unlisted = read_regions(options.regions, to_cut, data, options.regions_of)
        else:
            detected = _detected(options, settings)
            detector = detected.signature
            regions = detect_regions(detected, to_cut, data, settings)
    layout = LAYOUTS[options.layout] if options.layout else ProjectLayout("")
    limits: dict[str, tuple[dict[str, float], str, list[str]]] = {}
    for name, of_pairs in models.items():
        limits[name] = ({}, "", []) if options.in_regions else _limits(of_pairs, settings, options)

    taken = PicturesTaken(regions)
    bound = bind(data, models, settings, head=taken.take_size, wants=[taken.take])
    images = Images.of(bound.manifest)
    floor = Images.of(bound.manifest, FLOOR)
    has_floor = options.floor is not None or len(floor.rows) > 0
    notes = notes_on(bound.manifest, images, options.held_out, floor=floor if has_floor else None)
    missing = images.missing()
    shared = images.on_shared_places()
    images = shared.images
    groups = _groups(images, bound.manifest, options.by)
    several = images.have_several_subjects
    is_unchecked = several and regions is None
    copies = None
    notes += shared.notes
    sizes = sizes_of(images, bound.manifest, taken)
    if len(set(sizes.values())) > 1:
        listing = ", ".join(f"{method} {size}" for method, size in sizes.items())
        notes.append(
            f"WARNING: images differ in size ({listing}), which alone changes similarities: compare methods at one size"
        )
    if unlisted:
        notes.append(
            f"WARNING: {len(unlisted)} images are not listed in {options.regions}, and count as images without "
            f"regions: {', '.join(first_few(unlisted, 3))}"
        )
    if options.copies and not is_unchecked:
        copies, gray = agreements(images, bound.manifest, settings, taken)
        notes += gray
    photos, repeated = distinct_references(images, bound.manifest, taken)
    notes += repeated
    fidelity = prompt_fidelity(images, bound, models, notes)
    grade_columns = {}
    if grades is not None:
        notes += grades.notes
        grade_columns = grades.columns(images)

    about = {**settings.as_dict(), "by": list(options.by), "held_out": options.held_out}
    if regions is not None:
        about |= {"margin": layout.margin, "square": layout.square, "threshold": options.threshold}
        if options.regions_of is not None:
            about["regions_of"] = options.regions_of
    if detector:
        about["detector"] = detector
    if shared.compared_on:
        about["compared_on"] = shared.compared_on
    results = []
    for scorer, result in bound.results("generator", about, notes):
        scores = score(images, scorer, photos, copies, fidelity)
        floor_identity = score(floor, scorer, {}).identity if len(floor.rows) else np.empty(0)
        if regions is not None:
            model: Any = models[result.model]
            how = (model, regions, layout, settings, options.threshold, options.calibration)
            seen = sightings(images, bound.manifest, *how)
            scores = replace(scores, identity=seen.identity, seen=seen)
            result.notes.extend(_notes_on_thresholds(images, seen))
            floor_identity = sightings(floor, bound.manifest, *how).identity
        else:
            scores = replace(scores, confusion=confusion_of(images, photos, scorer, settings.seed))
        scores = replace(scores, floor=on_places(images, floor, floor_identity), grades=grade_columns)
        taus, source, limit_notes = limits[result.model]
        if several or regions is not None:  # the calibration is of pairs of images of one subject
            taus, limit_notes = by_label(options.scr, "SCR@"), [SEVERAL if is_unchecked else NO_SCR]
        if "SCR" in taus:
            result = replace(result, settings={**result.settings, "scr": taus["SCR"], "scr_source": source})
        named, published_notes = published(models[result.model], images, settings, regions is not None)
        result.notes.extend([*limit_notes, *published_notes])

        for method, (group, members) in product(images.methods, groups.items()):
            chosen = members & (images.method == method)
            if not chosen.any():
                continue
            row: Row = {"method": method, "group": group}
            if group == "all":
                row["image size"] = sizes[method]
            row |= _values(images, scores, chosen, taus, settings)
            if group == "all" and scores.seen is not None:
                row |= _published_in_regions(scores.seen.similarities[method], layout)
            if is_unchecked and options.copies:
                row["copies"] = NOT_CHECKED
            if named is not None:
                row["published"] = value_of(named, scores.identity[chosen], images.subject[chosen], settings)
            result.rows.append(row)
        if copiers := copying(result):
            result.notes.append(
                f"WARNING: more than {100 * MANY:g} % of the images are copies, so that these methods cannot be the "
                f"best: {listed(copiers)}"
            )

        _compare(images, scores, settings, options, result)
        keep_items(images, scores, bound.manifest, options.by, taus, result)
        keep_missing(missing, result)
        if scores.confusion is not None:
            keep_confusions(scores.confusion, images, result)
        results.append(result)
    return results


def _detected(options: GeneratorOptions, settings: EvalSettings) -> DetectedRegions:
    from idmetric.matching.detect_models import detector_named
    from idmetric.matching.detected import DetectedRegions

    detector = detector_named(options.detector, settings.device)
    return DetectedRegions(detector, str(options.detect).split(","), keep=options.keep_regions)


def _refuse_without_regions(models: Models, settings: EvalSettings) -> None:
    """Refuse what cannot be compared in regions."""
    from idmetric.metric.models.embedder import Embedder

    others = [name for name, model in models.items() if name != CLIP and not isinstance(model, Embedder)]
    if others:
        raise ValueError(f"{', '.join(others)}: regions are compared by models, not by baselines; leave them out")
    if settings.look.masked:
        raise ValueError("regions and --subject both say where subjects are: leave one out")


def _groups(images: Images, data: Manifest, by: Sequence[str]) -> dict[str, Truths]:
    """Names of groups, and their images (G,)."""
    groups = {"all": np.ones(len(images.rows), dtype=bool)}
    columns = {"subject": images.subject, "prompt": images.prompt}
    for name in data.table.column_names:
        if name.startswith("x_"):
            columns.setdefault(name.removeprefix("x_"), texts(data, name)[images.rows])
    for column in by:
        if column not in columns:
            raise ValueError(f"--by {column}: no such column; there are {', '.join(sorted(columns))}")
        for value in dict.fromkeys(columns[column]):
            if value is not None:
                groups[f"{column}: {value}"] = columns[column] == value
    return groups


def _limits(model: Any, settings: EvalSettings, options: GeneratorOptions) -> tuple[dict[str, float], str, list[str]]:
    """Column -> similarity under which a subject has failed, its source, and a note on both."""
    if options.scr:
        return by_label(options.scr, "SCR@"), GIVEN, []
    limit = calibrated(model, settings, options.calibration)
    if limit is None:
        from idmetric.metric.models.embedder import Embedder

        if not isinstance(model, Embedder):
            return {}, "", []
        lacking = "a calibration for this distance with a threshold at 5 % of pairs or below"
        return {}, "", [f"no SCR: the model lacks {lacking}; give --scr or --calibration"]
    tau = 1 - limit.distance
    return {"SCR": tau}, limit.source, [f"SCR: subjects with a mean similarity under {tau:.3f} ({limit.source})"]


def _notes_on_thresholds(images: Images, seen: Sightings) -> list[str]:
    """A note on the source of the thresholds by which regions show subjects; none without thresholds."""
    subjects: dict[str, dict[str, float]] = {}
    for subject, threshold, source in zip(images.subject, seen.threshold, seen.threshold_source, strict=True):
        if source:
            subjects.setdefault(source, {})[subject] = threshold

    parts = []
    for source, thresholds in subjects.items():
        values = [f"{subject} {threshold:.4f}" for subject, threshold in thresholds.items()]
        if len(set(thresholds.values())) == 1:
            values = [f"{next(iter(thresholds.values())):.4f}"]
        parts.append(f"{listed(values)} ({source})")
    return [f"thresholds of the states: {'; '.join(parts)}"] if parts else []


# Scores


def _values(
    images: Images, scores: MethodScores, chosen: Truths, taus: Mapping[str, float], settings: EvalSettings
) -> Row:
    """The numbers of one method's images."""
    subject = images.subject[chosen]
    means = means_of(scores.identity[chosen], subject)
    shared = columns_of(images, scores, chosen, settings)
    row: Row = {"identity": shared.pop("identity")}

    lowest, together = [], []
    for members in images.scenes:
        shown = members[chosen[members]]
        if len(shown):
            lowest.append(scores.identity[shown].min())
            together.append(" + ".join(images.subject[shown]))
    if len(lowest) < len(subject):
        together_names = np.array(together, dtype=object)
        row["weakest"] = intervals.mean(np.array(lowest), together_names, settings, limits=intervals.COSINE)
    row["worst"] = Value(min(means.values()), None, None, len(means))

    for name in ("real", "floor", "above floor"):
        if name in shared:
            row[name] = shared.pop(name)
    real = {name: scores.real[name] for name in means if name in scores.real}
    for column, tau in taus.items():
        row[column] = _failure_rate(means, tau, settings)
        if real:
            row[f"real {column}"] = _failure_rate(real, tau, settings)
    return row | shared


def _failure_rate(means: Mapping[str, float], tau: float, settings: EvalSettings) -> Value:
    """The share of subjects with a mean under the threshold."""
    failed = comparable(list(means.values())) < comparable(tau)
    return intervals.mean(failed.astype(float), np.array(list(means), dtype=object), settings)


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
    if GRADE in scores.grades:
        graded_places = [places[index] for index in images.once]
        by_metric[GRADE] = by_place(images.method[images.once], graded_places, scores.grades[GRADE][images.once])
    add_differences(result, by_metric, settings, options.against)


PROTOCOL = Protocol(
    name="generator",
    run=run,
    options=GeneratorOptions,
    columns={**generator_columns, **COLUMNS},
    open_data=open_data,
    data_help=OUTPUTS_HELP,
    needs_data=False,
    data_options=(
        "pattern",
        "layout",
        "benchmark",
        "references",
        "training",
        "clip_t",
        "floor",
        "regions",
        "detect",
        "grades",
    ),
    packages={"clip_t": "transformers", "detect": "transformers"},
    has_verdict=True,
)
