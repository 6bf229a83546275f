"""Which checkpoint of a LoRA to keep? Identity, copying, diversity, prompt fidelity and drift over training steps.

    idmetric eval checkpoints --data samples/ --references held_out/ --training train/ --model tiny --out results/
    idmetric eval checkpoints --data out/ --pattern '{step}/{prompt}_{seed}.png' --references held_out/ \
        --base base/ --drift-prompt 'a photo of a dog' --model tiny --out results/ --plots png
    idmetric eval checkpoints --model tiny --out results/      a painted example of seven steps, no download

A row for each step; without --pattern, samples are named as kohya sd-scripts, ai-toolkit or diffusers name them.

The columns: --explain, or docs/reference/columns.md. Intervals and tests take subjects as units, or prompts where
there is one subject. The best step is the earliest that a test does not find below the highest identity, among steps
without copies (--max-copies) and, with --clip-t, without a loss of CLIP-T (--clip-tolerance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from idmetric.evaluate.protocols.checkpoints.reading import BASE, read
from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Array, Truths, listed, texts
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, Scorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.generator.columns import (
    CLIP,
    SEVERAL,
    agreements,
    columns_of,
    distinct_references,
    image_items,
    keep_missing,
    notes_on,
    prompt_fidelity,
    refuse_judges,
    side_by_side,
    with_clip,
)
from idmetric.evaluate.protocols.generator.columns import COLUMNS as generator_columns
from idmetric.evaluate.protocols.generator.example import checkpoints_example
from idmetric.evaluate.protocols.generator.images import Images, Names, are_cosines, score
from idmetric.evaluate.protocols.generator.options import CopyingOptions, ReferencesOptions
from idmetric.evaluate.protocols.generator.outputs import words
from idmetric.evaluate.protocols.generator.pictures import PicturesTaken
from idmetric.evaluate.settings import option
from idmetric.evaluate.statistics.bootstrap import FEWEST
from idmetric.evaluate.statistics.paired import LEVEL, compare, smallest_p, subjects_needed
from idmetric.metric.distance.ties import comparable

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


@dataclass(frozen=True)
class CheckpointsOptions(CopyingOptions, ReferencesOptions):
    """Options of the protocol `checkpoints`."""

    pattern: str | None = option(
        None,
        "names of samples below --data, such as '{step}/{prompt}_{seed}.png' (default: as trainers name them)",
        metavar="PATTERN",
    )
    base: Path | None = option(
        None,
        "images of the base model for equal prompts and seeds, named as in --data (default: those of step 0)",
        metavar="DIR",
    )
    drift_prompt: tuple[str, ...] = option(
        (),
        "a prompt without the subject, for drift alone; may be repeated (default: drift over all prompts)",
        metavar="PROMPT",
        repeated=True,
    )
    prompts: Path | None = option(
        None, "a prompt in each line, for samples that are named by the number of their prompt", metavar="FILE"
    )
    max_copies: float = option(0.0, "share of copies that the best step may have", metavar="SHARE")
    clip_tolerance: float = option(0.02, "how far CLIP-T of the best step may lie below the highest", metavar="COSINE")


COLUMNS = {
    "drift": Column("mean of (1 - cos) / 2 with the base model's images, 0 = alike", -1, "peft"),
}

Identities = Mapping[int, Mapping[tuple[str, ...], float]]  # step -> place, which begins with its unit -> identity


TOP = "highest"  # in the column `best`: the highest identity, where steps cannot be tested


@dataclass(frozen=True)
class Best:
    """The best step, or None if no step qualifies, and the reason in words.

    Attributes:
        is_top: whether it has the highest identity, but the steps cannot be tested.
    """

    step: int | None
    reason: str
    is_top: bool = False

    def label(self, step: int) -> str:
        """What the column `best` says of a step."""
        if step != self.step:
            return ""
        return TOP if self.is_top else "yes"


def best_step(rows: Mapping[int, Row], identities: Identities, options: CheckpointsOptions) -> Best:
    """Find the earliest step that is not clearly below the highest identity, by `paired.compare`.

    With too few units for any difference to show, it is the step of the highest identity, and the reason says so.

    Args:
        rows: step -> its numbers; a step without identity does not count.
        identities: step -> the identity of each image.
    """
    steps = sorted(step for step, row in rows.items() if step != BASE and "identity" in row)
    if not steps:
        return Best(None, "no best step: there is no checkpoint")
    identity, copies, clip = (_column(rows, steps, name) for name in ("identity", "copies", CLIP))

    # which steps qualify
    eligible = steps
    conditions = []
    if copies:
        eligible = [step for step in eligible if copies[step].value <= options.max_copies]
        conditions.append(f"copies of at most {options.max_copies:g}")
    if clip:
        least = max(value.value for value in clip.values()) - options.clip_tolerance
        eligible = [step for step in eligible if step in clip and clip[step].value >= least]
        conditions.append(f"CLIP-T of at least {least:.3f} ({options.clip_tolerance:g} below the highest)")
    if not eligible:
        return Best(None, f"no best step: none of {len(steps)} has {' and '.join(conditions)}")
    among = ""
    if conditions:
        among = f" among the {len(eligible)} of {len(steps)} steps with {' and '.join(conditions)}"
    if not copies:
        among += "; copies were not looked for"

    # too few to compare
    top = max(eligible, key=lambda step: comparable(identity[step].value))  # the earliest of equal ones
    highest = f"{identity[top].value:.3f}"
    if len(eligible) == 1:
        return Best(top, f"best step {top}: the only one{among}; its identity is {highest}")
    comparisons = compare({str(step): identities.get(step, {}) for step in eligible}, str(top))
    if not comparisons:
        reason = f"highest identity at step {top}: {highest}{among}; no prompt and seed is common to the steps"
        return Best(top, reason, is_top=True)
    units = max(comparison.subjects for comparison in comparisons)
    if smallest_p(units, len(comparisons)) > LEVEL:
        few = f"too few prompts or subjects to show a difference of {len(eligible)} steps"
        needed = f"{units}, where {subjects_needed(len(comparisons))} would do"
        return Best(top, f"highest identity at step {top}: {highest}{among}; {few}: {needed}", is_top=True)

    # the earliest that is not clearly below the highest
    level = [int(comparison.a) for comparison in comparisons if not comparison.is_clear]
    chosen = min([top, *level])
    rule = f"the earliest that is not clearly below the highest identity, {highest} at step {top}{among}"
    return Best(chosen, f"best step {chosen}: {rule} (sign-flip test over {units} prompts or subjects)")


def identities_of(items: Mapping[str, Any]) -> dict[int, dict[tuple[str, ...], float]]:
    """Identities as `best_step` takes them, from a result's items "images"; of one subject, the units are prompts."""
    units = ("subject", "prompt", "seed") if len(set(items["subject"])) > 1 else ("prompt", "seed")
    places = zip(*(items[name] for name in units), strict=True)
    identities: dict[int, dict[tuple[str, ...], float]] = {}
    for step, place, identity in zip(items["step"], places, items["identity"], strict=True):
        identities.setdefault(int(step), {})[place] = identity
    return identities


def _column(rows: Mapping[int, Row], steps: list[int], name: str) -> dict[int, Value]:
    return {step: value for step in steps if isinstance(value := rows[step].get(name), Value)}


# Drift


def drift_of(cosines: ArrayLike) -> Array:
    """(1 - cos) / 2 of each pair of a checkpoint's image and the base model's; the mean of all pairs is the drift.

    0 = the images are alike, 1 = opposite; higher = the checkpoint has moved further.

    Args:
        cosines: (P,), of the embeddings of image pairs with one prompt and seed, in [-1, 1].

    References:
        `measure_drift` in `method_comparison/image-gen` of huggingface/peft, with DINOv2 on prompts without the
        trained concept. Its version 10794ab returns 1 - mean cos, twice this number.
    """
    drift: Array = (1 - np.asarray(cosines, dtype=np.float64)) / 2
    return drift.clip(0, 1)  # cosines are rounded


def open_data(data: Path | None, settings: EvalSettings, options: CheckpointsOptions) -> Manifest:
    """The manifest of the command's samples and references, or of the painted example."""
    if data is None:
        if settings.out is None:
            raise ValueError("--out DIR is needed: the example is painted there (or give samples: --data PATH)")
        return checkpoints_example(settings.out / "example")
    return read(
        data,
        options.pattern,
        references=options.references,
        training=options.training,
        base=options.base,
        prompts=options.prompts,
        skip=settings.on_error == "skip",
    )


def run(
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: CheckpointsOptions = CheckpointsOptions(),
) -> list[Result]:
    """A result for each model, with a row for each step and the best step.

    Args:
        data: as `reading.read` makes it.
        models: a `DualEncoder` of the name `CLIP-T` adds prompt fidelity.

    Raises:
        ValueError: for an unknown drift prompt, or a model that gives no similarities of all pairs.
        ManifestError: see `scorers.bind`.
    """
    models = with_clip(models, options, settings)
    refuse_judges(models)
    _check(Images.of(data), data, options)  # before anything is embedded
    return measured(data, models, settings, options)


def measured(data: Manifest, models: Models, settings: EvalSettings, options: CheckpointsOptions) -> list[Result]:
    """As `run`, for data without a checkpoint or drift prompts too."""
    taken = PicturesTaken()
    bound = bind(data, models, settings, wants=[taken.take])
    all_images = Images.of(bound.manifest)
    is_drifting = _drifting(all_images, bound.manifest, options.drift_prompt)
    images = all_images.take(~is_drifting) if options.drift_prompt else all_images
    missing = images.missing()
    notes = notes_on(bound.manifest, images, options.held_out, "step ")
    shared = images.on_shared_places(but=str(BASE))
    images = shared.images
    notes += shared.notes
    unit, unit_notes = _units(images)
    if settings.bootstrap:
        notes = unit_notes + notes

    copies = None
    if options.copies and images.have_several_subjects:
        notes.append(SEVERAL)
    elif options.copies:
        copies, gray = agreements(images, bound.manifest, settings, taken)
        notes += gray
    photos, repeated = distinct_references(images, bound.manifest, taken)
    notes += repeated
    fidelity = prompt_fidelity(images, bound, models, notes)

    ids = texts(bound.manifest, "id")
    about = {
        **settings.as_dict(),
        "drift_prompts": list(options.drift_prompt),
        "held_out": options.held_out,
        "max_copies": options.max_copies,
        "clip_tolerance": options.clip_tolerance,
    }
    if shared.compared_on:
        about["compared_on"] = shared.compared_on
    results = []
    for scorer, result in bound.results("checkpoints", about, notes):
        scores = score(images, scorer, photos, copies, fidelity)
        rows = {int(step): columns_of(images, scores, images.method == step, unit, settings) for step in images.methods}
        _add_drift(result, rows, all_images.take(is_drifting), scorer, ids, settings)
        if "drift" in result.items and not options.drift_prompt:
            result.notes.append(
                "drift over all prompts: it grows as the subject is learned (--drift-prompt names prompts without it)"
            )
        items = image_items(images, scores, ids)
        steps = items.pop("method").astype(np.int64)
        result.keep("images", **items, step=steps)  # last: pages sort by the first number
        if len(images.methods) > 1:
            result.keep("side_by_side", **side_by_side(images, scores, ids, "step "))
        keep_missing(missing, result, "step")
        add_rows(result, rows, identities_of(result.items["images"]), options)
        results.append(result)
    return results


def _add_drift(
    result: Result, rows: Mapping[int, Row], images: Images, scorer: Scorer, ids: Names, settings: EvalSettings
) -> None:
    """Add the drift of the images to the rows of steps and to the items, or a note on why there is none."""
    places = images.places()
    is_base = images.method == str(BASE)
    base_at = {places[index]: index for index in np.flatnonzero(is_base)}
    checkpoints = [index for index in np.flatnonzero(~is_base) if places[index] in base_at]
    if not checkpoints:
        result.notes.append("no drift: there are no images of the base model (--base DIR, or step 0)")
        return
    if not are_cosines(scorer):
        result.notes.append("no drift: it needs a model with cosines, and --distance cls")
        return

    image_rows = images.rows[checkpoints]
    base_rows = images.rows[[base_at[places[index]] for index in checkpoints]]
    drift = drift_of(scorer.pairs(image_rows, base_rows))
    steps = images.method[checkpoints].astype(np.int64)
    unit, _ = _units(images)
    for step in np.intersect1d(steps, list(rows)):
        at_step = steps == step
        rows[int(step)]["drift"] = intervals.mean(drift[at_step], unit[checkpoints][at_step], settings)
    result.keep("drift", image=ids[image_rows], base=ids[base_rows], drift=drift, step=steps)


def add_rows(result: Result, rows: Mapping[int, Row], identities: Identities, options: CheckpointsOptions) -> None:
    """Add the rows of steps, with the best one marked, and the reason as the first note."""
    best = best_step(rows, identities, options)
    result.notes.insert(0, best.reason)
    for step in sorted(rows):
        label: Row = {"step": str(step), "best": best.label(step)}
        result.rows.append(label | rows[step])


# Images and units


def _check(images: Images, data: Manifest, options: CheckpointsOptions) -> None:
    """Refuse drift prompts and images that do not fit."""
    is_base = images.method == str(BASE)
    is_drifting = np.zeros_like(is_base)
    for prompt in options.drift_prompt:
        shows_prompt = _drifting(images, data, [prompt])
        if not shows_prompt.any():
            raise ValueError(f"--drift-prompt {prompt!r}: no images of this prompt; there are {listed(images.prompt)}")
        is_drifting |= shows_prompt
    if options.drift_prompt and not (is_base & is_drifting).any():
        raise ValueError("--drift-prompt: no images of the base model for these prompts: give --base DIR, or step 0")
    if (is_base | is_drifting).all():
        raise ValueError(
            "no images of a checkpoint that show the subject: there are only those of step 0 and of drift prompts"
        )


def _drifting(images: Images, data: Manifest, prompts: Sequence[str]) -> Truths:
    """The images (G,) that count for drift: of these prompts, as written in names or in words; of all without any."""
    if not prompts:
        return np.ones(len(images.rows), dtype=bool)
    in_words = texts(data, "text", "")[images.rows].astype(str)
    spellings = [*prompts, *(words(prompt) or prompt for prompt in prompts)]
    is_drifting: Truths = np.isin(images.prompt.astype(str), prompts) | np.isin(in_words, spellings)
    return is_drifting


def _units(images: Images) -> tuple[Names, list[str]]:
    """The unit of intervals of each image (G,), and a note on it."""
    if len(set(images.subject)) > 1:
        return images.subject, []
    count = len(set(images.prompt))
    if count >= FEWEST:
        return images.prompt, [f"one subject: intervals are over its {count} prompts, and hold for this subject alone"]
    return images.prompt, [f"one subject and fewer than {FEWEST} prompts: no intervals"]


PROTOCOL = Protocol(
    name="checkpoints",
    run=run,
    options=CheckpointsOptions,
    columns={**generator_columns, **COLUMNS},
    open_data=open_data,
    data_help="folder of samples, or table of them with a column step (.csv, .parquet, .jsonl)",
    needs_data=False,
    data_options=("pattern", "references", "training", "base", "prompts", "clip_t"),
    packages={"clip_t": "transformers"},
    compares="step",
)
