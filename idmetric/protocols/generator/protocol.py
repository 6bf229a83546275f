"""How good are generators of pictures of given subjects? Methods x subjects x prompts x seeds, in one table.

    idmetric eval generator --data outputs/ --pattern '{method}/{subject}/{prompt}_{seed}.png' --references refs/ \\
        --model tiny --out results/
    idmetric eval generator --data outputs.csv --by prompt_class --model tiny --out results/
    idmetric eval generator --model tiny --out results/      a rendered example of four methods, no download

A row for each method (and each value of --by), then one for each two methods: the difference on equal subjects, prompts
and seeds.

| column | meaning |
|---|---|
| identity | mean over images of the mean similarity to the subject's references |
| weakest | mean over images of the lowest identity of their subjects, where an image has several |
| worst | the lowest mean identity of a subject |
| real | the same of real photos: mean similarity of a subject's references to each other |
| SCR | share of subjects with a mean identity under a threshold, of the model's calibration or given by --scr |
| copies | share of images that repeat the pixels of a reference or training image |
| CopyRate | how surely images repeat a reference as it is rather than mirrored, 0 to 1; 1/2 = neither |
| leaning | how much nearer images are to training images than to references, -1 to 1; above 0, they lean to copying |
| diversity | mean of 1 - similarity of two images of a prompt that differ by seed |
| Vendi | effective number of different images of a prompt (Friedman and Dieng 2023), from 1 to the number of seeds |
| CLIP-T | mean cosine of image and prompt in CLIP (--clip-t) |
| published | the number of a published score that the model names (docs/named-scores.md), in that source's unit |
| p | of the difference in identity: Wilcoxon's signed-rank test over subjects, corrected by Holm |

Intervals draw whole subjects again. Places (subject, prompt, seed) that a method lacks are
listed, and do not count as 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common import intervals
from idmetric.protocols.common.arrays import Truths
from idmetric.protocols.common.dual_encoder import DualEncoder, open_dual
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Bound, Models, Progress, Settings, VectorScorer, bind
from idmetric.protocols.generator.checks import check, groups_of, notes_on, refuse_judges, thresholds_of
from idmetric.protocols.generator.columns import CLIP, columns_of, highest_agreements, means_of, prompt_fidelity
from idmetric.protocols.generator.comparison import add_differences, by_place
from idmetric.protocols.generator.example import example
from idmetric.protocols.generator.images import Images, Scores, are_cosines, score
from idmetric.protocols.generator.items import keep
from idmetric.protocols.generator.options import asked, where_of
from idmetric.protocols.generator.outputs import read
from idmetric.protocols.generator.published import published, value_of

OPTIONAL = ("data",)  # arguments that `idmetric eval` does not require


@dataclass(frozen=True)
class Options:
    """Options of this protocol in addition to `scorers.Settings`.

    Attributes:
        by: columns to group by. against: compare each method with this one alone.
        scr: similarities under which a subject has failed; empty: the threshold of a calibration, where there is one.
        calibration: the file to use in place of the model's own. rate: its false-accept rate.
        copies: look for copies.
        held_out: references are not among the generators' training images, says the user.
    """

    by: tuple[str, ...] = ()
    against: str | None = None
    scr: tuple[float, ...] = ()
    calibration: Path | None = None
    rate: float = 0.05
    copies: bool = True
    held_out: bool = False


_SETTINGS, _OPTIONS = Settings(), Options()


def open_data(args: argparse.Namespace, progress: Progress) -> Manifest:
    """The manifest of the command's outputs and references, or of the rendered example."""
    if args.data is None:
        if args.out is None:
            raise ValueError("--out DIR is needed: the example is rendered there (or give outputs: --data PATH)")
        return example(args.out / "example", progress=progress)
    return read(where_of(args, args.training))


def command(args: argparse.Namespace, data: Manifest, models: Models, settings: Settings) -> list[Result]:
    """Run with the options of the command line."""
    clip = None if args.clip_t is None else open_dual(args.clip_t, device=args.device)
    options = Options(
        tuple(args.by),
        args.against,
        tuple(args.scr),
        args.calibration,
        args.rate,
        args.copies,
        args.held_out or args.data is None,
    )
    results = run(data, models, settings, options, clip)
    return asked(results, args, "pattern", "layout", "benchmark", "references", "training", "clip_t")


def run(
    data: Manifest,
    models: Models,
    settings: Settings = _SETTINGS,
    options: Options = _OPTIONS,
    clip: DualEncoder | None = None,
) -> list[Result]:
    """A result for each model, with rows for methods, their groups, and their paired differences.

    Args:
        data: as `outputs.read` makes it. clip: adds prompt fidelity.

    Raises:
        ValueError: for an unknown method or column, or a model that gives no similarities of all pairs.
        CalibrationError: for a calibration of another model or distance.
        UnreadableError: see `scorers.bind`.
    """
    refuse_judges(models)
    check(data, options.by, options.against)  # before anything is embedded
    thresholds = {
        name: thresholds_of(model, settings, options.scr, options.calibration, options.rate)
        for name, model in models.items()
    }

    bound = bind(data, models if clip is None else {**models, CLIP: clip}, settings)
    images = Images.of(bound.manifest)
    notes = notes_on(bound.manifest, images, options.held_out)
    groups = dict(groups_of(images, bound.manifest, options.by))
    copied = highest_agreements(images, bound.manifest, settings) if options.copies else None
    mirrored = _mirrored(images, bound, models, settings) if options.copies else {}
    fidelity = None
    if clip is not None:
        reader = cast(VectorScorer, bound.models.pop(CLIP))
        fidelity = prompt_fidelity(images, bound.manifest, reader, clip, notes)

    about = {**settings.as_dict(), "by": list(options.by), "held_out": options.held_out}
    results = []
    for scorer, result in bound.results("generator", about, notes):
        found = score(images, scorer, copied, fidelity, mirrored.get(result.model))
        limits, remark = thresholds[result.model]
        named, reason = published(models[result.model], images, settings)
        result.notes.extend([*remark, *reason])
        for method in images.methods:
            for group, chosen in groups.items():
                chosen = chosen & (images.method == method)
                if chosen.any():
                    row: Row = {"method": method, "group": group}
                    row |= _values(images, found, chosen, limits, settings)
                    if named is not None:
                        row["published"] = value_of(named, found.identity[chosen], images.subject[chosen], settings)
                    result.rows.append(row)
        _compare(images, found, settings, options, result)
        keep(images, found, bound.manifest, options.by, limits, result)
        results.append(result)
    return results


# Scores


def _mirrored(images: Images, bound: Bound, models: Models, settings: Settings) -> dict[str, VectorScorer]:
    """The models with cosines, bound to the mirrored references and training images of subjects with images."""
    able = {name: models[name] for name, scorer in bound.models.items() if name in models and are_cosines(scorer)}
    if not able:
        return {}
    rows = np.unique(np.concatenate([images.shown(name) for name in dict.fromkeys(images.subject)]))
    look = replace(settings.look, mirrored=True)
    # unreadable images are known by now
    turned = bind(bound.manifest, able, replace(settings, look=look, on_error="fail"), rows)
    return {name: scorer for name, scorer in turned.models.items() if isinstance(scorer, VectorScorer)}


def _values(images: Images, found: Scores, chosen: Truths, limits: Mapping[str, float], settings: Settings) -> Row:
    """The numbers of one method's images."""
    subject = images.subject[chosen]
    own = means_of(found.identity[chosen], subject)
    names, means = np.array(list(own), dtype=object), np.array(list(own.values()))

    shared = columns_of(images, found, chosen, images.subject, settings)
    row: Row = {"identity": shared.pop("identity")}
    scenes = [of[chosen[of]] for of in images.scenes if chosen[of].any()]
    if len(scenes) < len(subject):
        lowest = np.array([found.identity[of].min() for of in scenes])
        together = np.array([" + ".join(images.subject[of]) for of in scenes], dtype=object)
        row["weakest"] = intervals.mean(lowest, together, settings)
    row["worst"] = Value(float(means.min()), None, None, len(means))
    if "real" in shared:
        row["real"] = shared.pop("real")
    for column, tau in limits.items():
        row[column] = intervals.mean((means < tau).astype(float), names, settings)
    return row | shared


def _compare(images: Images, found: Scores, settings: Settings, options: Options, result: Result) -> None:
    if len(images.methods) < 2:
        return
    cells, places = found.cells, images.places()
    scores = {
        "identity": by_place(images.method.tolist(), places, found.identity.tolist()),
        "diversity": by_place(
            cells.method.tolist(), list(zip(cells.subject, cells.prompt, strict=True)), cells.distance.tolist()
        ),
    }
    if found.fidelity is not None:
        scores[CLIP] = by_place(images.method.tolist(), places, found.fidelity.tolist())
    add_differences(result, scores, settings, options.against)
