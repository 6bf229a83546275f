"""Which checkpoint of a LoRA to keep? Identity, copying, diversity, prompt fidelity and drift over training steps.

    idmetric eval checkpoints --data samples/ --references held_out/ --training train/ --model tiny --out results/
    idmetric eval checkpoints --data out/ --pattern '{step}/{prompt}_{seed}.png' --references held_out/ \\
        --base base/ --drift-prompt 'a photo of a dog' --model tiny --out results/ --plots png
    idmetric eval checkpoints --model tiny --out results/      a rendered example of seven steps, no download

A row for each step; without --pattern, samples are named as kohya sd-scripts, ai-toolkit or diffusers name them.

| column | meaning |
|---|---|
| identity | mean over images of the mean similarity to the subject's references |
| real | the same of real photos: mean similarity of a subject's references to each other |
| copies | share of images that repeat the pixels of a reference or training image |
| leaning | how much nearer images are to training images than to references, -1 to 1; above 0, they lean to copying |
| diversity | mean of 1 - similarity of two images of a prompt that differ by seed |
| Vendi | effective number of different images of a prompt, from 1 to the number of seeds |
| CLIP-T | mean cosine of image and prompt in CLIP (--clip-t) |
| drift | distance from the base model's images of equal prompts and seeds, 0 to 1 (--base, or step 0) |

Intervals draw whole subjects again, or whole prompts where there is one subject. The best step is the earliest that
reaches the interval of the highest identity, among steps without copies (--max-copies) and, with --clip-t, without a
loss of CLIP-T (--clip-tolerance).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.protocols.checkpoints.best import Rule, best_step
from idmetric.protocols.checkpoints.drift import drift_of, pairs_with_base
from idmetric.protocols.checkpoints.example import example
from idmetric.protocols.checkpoints.reading import BASE, Where, read
from idmetric.protocols.common import intervals
from idmetric.protocols.common.arrays import Array, Ints, Truths
from idmetric.protocols.common.columns import listed, texts
from idmetric.protocols.common.dual_encoder import DualEncoder, open_dual
from idmetric.protocols.common.result import Result, Row
from idmetric.protocols.common.scorers import Models, Progress, Scorer, Settings, VectorScorer, bind
from idmetric.protocols.generator.checks import notes_on, refuse_judges
from idmetric.protocols.generator.columns import (
    CLIP,
    columns_of,
    highest_agreements,
    image_items,
    prompt_fidelity,
    side_by_side,
)
from idmetric.protocols.generator.images import Images, Names, Scores, are_cosines, score
from idmetric.protocols.generator.options import asked
from idmetric.protocols.generator.outputs import words

OPTIONAL = ("data",)  # arguments that `idmetric eval` does not require


@dataclass(frozen=True)
class Options:
    """Options of this protocol in addition to `scorers.Settings`.

    Attributes:
        drift_prompts: prompts without the subject: their images count for drift alone, and drift for them alone.
        copies: look for copies.
        held_out: references are not among the training images, says the user.
        rule: of the best step.
    """

    drift_prompts: tuple[str, ...] = ()
    copies: bool = True
    held_out: bool = False
    rule: Rule = field(default_factory=Rule)


_SETTINGS, _OPTIONS = Settings(), Options()


def open_data(args: argparse.Namespace, progress: Progress) -> Manifest:
    """The manifest of the command's samples and references, or of the rendered example."""
    if args.data is None:
        if args.out is None:
            raise ValueError("--out DIR is needed: the example is rendered there (or give samples: --data PATH)")
        return example(args.out / "example", progress=progress)
    return read(
        Where(args.data, args.pattern, args.references, args.training, args.base, args.prompts, args.on_error == "skip")
    )


def command(args: argparse.Namespace, data: Manifest, models: Models, settings: Settings) -> list[Result]:
    """Run with the options of the command line."""
    options = Options(
        tuple(args.drift_prompt), args.copies, args.held_out or args.data is None,
        Rule(args.max_copies, args.clip_tolerance),
    )  # fmt: skip
    clip = None if args.clip_t is None else open_dual(args.clip_t, device=args.device)
    results = run(data, models, settings, options, clip)
    return asked(results, args, "pattern", "references", "training", "base", "prompts", "clip_t")


def run(
    data: Manifest,
    models: Models,
    settings: Settings = _SETTINGS,
    options: Options = _OPTIONS,
    clip: DualEncoder | None = None,
) -> list[Result]:
    """A result for each model, with a row for each step and the best step.

    Args:
        data: as `reading.read` makes it. clip: adds prompt fidelity.

    Raises:
        ValueError: for an unknown drift prompt, or a model that gives no similarities of all pairs.
        UnreadableError: see `scorers.bind`.
    """
    refuse_judges(models)
    _check(Images.of(data), data, options)  # before anything is embedded
    return measured(data, models, settings, options, clip)


def measured(
    data: Manifest, models: Models, settings: Settings, options: Options, clip: DualEncoder | None
) -> list[Result]:
    """As `run`, for data without a checkpoint or drift prompts too."""
    bound = bind(data, models if clip is None else {**models, CLIP: clip}, settings)
    every = Images.of(bound.manifest)
    drifting = _drifting(every, bound.manifest, options.drift_prompts)
    images = every.take(~drifting) if options.drift_prompts else every
    unit, notes = _units(images)
    notes = (notes if settings.bootstrap else []) + notes_on(bound.manifest, images, options.held_out, "step ")
    copied = highest_agreements(images, bound.manifest, settings) if options.copies else None
    fidelity = None
    if clip is not None:
        reader = cast(VectorScorer, bound.models.pop(CLIP))
        fidelity = prompt_fidelity(images, bound.manifest, reader, clip, notes)

    about = {
        **settings.as_dict(), "drift_prompts": list(options.drift_prompts), "held_out": options.held_out,
        "max_copies": options.rule.max_copies, "clip_tolerance": options.rule.clip_tolerance,
    }  # fmt: skip
    results = []
    for scorer, result in bound.results("checkpoints", about, notes):
        found = score(images, scorer, copied, fidelity)
        rows = {int(step): columns_of(images, found, images.method == step, unit, settings) for step in images.methods}
        far = _drift(every.take(drifting), scorer)
        result.notes.extend(_notes_on_drift(every, drifting, scorer, options))
        for step in rows:
            if (own := far.step == step).any():
                rows[step]["drift"] = intervals.mean(far.drift[own], far.unit[own], settings)
        add_rows(result, rows, options.rule)
        _keep(images, found, far, np.array(bound.manifest.column("id"), dtype=object), result)
        results.append(result)
    return results


def add_rows(result: Result, rows: Mapping[int, Row], rule: Rule) -> None:
    """Add the rows of steps, with the best one marked, and the reason as the first note."""
    best = best_step(rows, rule)
    result.notes.insert(0, best.reason)
    for step in sorted(rows):
        label: Row = {"step": str(step), "best": "yes" if step == best.step else ""}
        result.rows.append(label | rows[step])


# Images and units


def _check(images: Images, data: Manifest, options: Options) -> None:
    """Refuse drift prompts and images that do not fit.

    Raises:
        ValueError: naming what is missing.
    """
    base = images.method == str(BASE)
    for prompt in options.drift_prompts:
        if not _drifting(images, data, [prompt]).any():
            spoken = texts(data, "text", "")[images.rows]
            there = listed(text or name for text, name in zip(spoken, images.prompt, strict=True))
            raise ValueError(f"--drift-prompt {prompt!r}: no images of this prompt; there are {there}")
    drifting = _drifting(images, data, options.drift_prompts)
    if options.drift_prompts and not (base & drifting).any():
        raise ValueError("--drift-prompt: no images of the base model for these prompts: give --base DIR, or step 0")
    left = ~base & ~drifting if options.drift_prompts else ~base
    if not left.any():
        raise ValueError("no images of a checkpoint that show the subject: there are only those of step 0 and of "
                         "drift prompts")  # fmt: skip


def _drifting(images: Images, data: Manifest, prompts: Sequence[str]) -> Truths:
    """The images (G,) that count for drift: of these prompts, as written in names or in words; of all without any."""
    if not prompts:
        return np.ones(len(images.rows), dtype=bool)
    spoken = texts(data, "text", "")[images.rows]
    named = [prompt for given in prompts for prompt in (given, words(given) or given)]
    found: Truths = np.isin(images.prompt.astype(str), prompts) | np.isin(spoken.astype(str), named)
    return found


def _units(images: Images) -> tuple[Names, list[str]]:
    """What intervals draw again (G,), and a note on it."""
    if len(set(images.subject)) > 1:
        return images.subject, []
    count = len(set(images.prompt))
    if count > 1:
        return images.prompt, [
            f"one subject: intervals draw its {count} prompts again, and hold for this subject alone"
        ]
    return images.prompt, ["one subject and one prompt: no intervals"]


def _notes_on_drift(images: Images, drifting: Truths, scorer: Scorer, options: Options) -> list[str]:
    images = images.take(drifting)
    total = int((images.method == str(BASE)).sum())
    if total and not are_cosines(scorer):
        return ["no drift: it needs a model with cosines, and --distance cls"]
    if not total:
        return ["no drift: there are no images of the base model (--base DIR, or step 0)"]
    steps = images.method[pairs_with_base(images)[0]]
    others = [step for step in images.methods if step != str(BASE)]
    few = [f"{step} ({count})" for step in others if (count := int((steps == step).sum())) < total]
    notes = [f"drift compares fewer than the base model's {total} images at steps {listed(few)}"] if few else []
    if not options.drift_prompts:
        notes.append(
            "drift over all prompts: it grows as the subject is learned (--drift-prompt names prompts without it)"
        )
    return notes


# Drift


@dataclass(frozen=True)
class _Drift:
    """Pairs (P,) of images of a checkpoint and of the base model: rows of the manifest, step, unit and drift."""

    own: Ints
    base: Ints
    step: Ints
    unit: Names
    drift: Array


def _drift(images: Images, scorer: Scorer) -> _Drift:
    """Compare images of checkpoints with those of the base model; no pairs without cosines."""
    own, base = pairs_with_base(images) if are_cosines(scorer) else (np.empty(0, np.int64),) * 2
    rows, others = images.rows[own], images.rows[base]
    cosines = scorer.pairs(rows, others) if len(own) else np.empty(0)
    unit = _units(images)[0][own]
    return _Drift(rows, others, images.method[own].astype(np.int64), unit, drift_of(cosines))


# Items


def _keep(images: Images, found: Scores, far: _Drift, ids: Names, result: Result) -> None:
    """Keep the scores of each image and place, and the missing places."""
    columns: dict[str, Any] = image_items(images, found, ids)
    steps = columns.pop("method").astype(np.int64)
    result.keep("images", **columns, step=steps)  # last: pages sort by the first number, identity
    if len(far.own):
        result.keep("drift", image=ids[far.own], base=ids[far.base], drift=far.drift, step=far.step)
    if len(images.methods) > 1:
        result.keep("side_by_side", **side_by_side(images, found, ids, "step "))
    for step, lacking in images.missing().items():
        subjects, prompts, seeds = zip(*lacking, strict=True)
        result.keep("missing", step=[int(step)] * len(lacking), subject=subjects, prompt=prompts, seed=seeds)
