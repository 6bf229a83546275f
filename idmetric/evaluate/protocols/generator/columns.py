"""Scores of generated images as the columns of a table; copies and prompt fidelity of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, free, known, listed
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import Bound, EvalSettings, Judge, Models, VectorScorer
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.generator.images import Copies, Images, Names, Place, Scores
from idmetric.evaluate.protocols.generator.options import CopyingOptions
from idmetric.evaluate.protocols.generator.pattern import REFERENCE, TRAINING
from idmetric.metric.distance.ties import comparable
from idmetric.metric.files.threads import in_order
from idmetric.metric.images.read import read_image
from idmetric.metric.scoring.copies import THRESHOLD, compare, take_print
from idmetric.metric.scoring.copy_warnings import is_gray, small_picture
from idmetric.metric.scoring.keys import key_of
from idmetric.metric.scoring.pipeline import threads

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

CLIP = "CLIP-T"
NOT_CHECKED = "not checked"
SEVERAL = (
    "images show several subjects: copies are not checked, and there is no SCR by a calibration, which is of images of "
    "one subject"
)


# columns of methods and of training steps
COLUMNS = {
    "identity": Column("mean over images x of the mean over references r of s(x, r), in -1..1", 1, "DINO-I, CLIP-I"),
    "real": Column("mean similarity of each reference to the others of its subject: what real photos get", 0),
    "copies": Column("share of images that repeat the pixels of a reference or training image", -1),
    "leaning": Column(
        "how much nearer images are to training images (1) than to references (-1)", -1, "MultiID-Bench, copy-paste"
    ),
    "diversity": Column("mean distance of images of one prompt that differ by seed, in 0..2"),
    "Vendi": Column("effective number of different images of a prompt, from 1", 1, "Friedman and Dieng 2023, Eq. 1"),
    "CLIP-T": Column("mean cosine of image and prompt, in -1..1", 1, "CLIPScore without factor and clamp"),
}


def refuse_judges(models: Models) -> None:
    """Refuse models that give no similarities of all pairs."""
    judges = [name for name, model in models.items() if isinstance(model, Judge)]
    if judges:
        raise ValueError(f"{', '.join(judges)}: judges score pairs one by one; leave them out")


def with_clip(models: Models, options: CopyingOptions, settings: EvalSettings) -> Models:
    """The models, with the dual encoder of --clip-t among them."""
    if options.clip_t is None:
        return models
    from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder

    return {**models, CLIP: DualEncoder(options.clip_t, device=settings.device)}


# Notes


def notes_on(data: Manifest, images: Images, held_out: bool, prefix: str = "") -> list[str]:
    """Notes on missing places, on subjects without images, and on references seen in training.

    Args:
        prefix: before a method's name, such as "step ".
    """
    notes = []
    total = len(set(images.places()))
    for method, lacking in images.missing().items():
        places = listed("/".join(part for part in place if part) for place in lacking)
        notes.append(
            f"{prefix}{method} lacks {len(lacking)} of {total} combinations of subject, prompt and seed: {places}"
        )
    shown = set(images.subject)
    unused = [name for name in images.references if name not in shown]
    if unused:
        notes.append(f"no images of {len(unused)} subjects with references: {listed(unused)}")
    return notes + _notes_on_training(data, held_out)


def _notes_on_training(data: Manifest, held_out: bool) -> list[str]:
    """Warn of references that generators were trained on, and of a missing statement about that."""
    role, stated = free(data, "role"), free(data, "held_out")
    references, training = ([k for k, one in enumerate(role) if one == name] for name in (REFERENCE, TRAINING))
    trained = {key_of(data.source(k) or b"") for k in training}
    seen = [k for k in references if stated[k] == "no" or (trained and key_of(data.source(k) or b"") in trained)]
    if seen:
        return [
            f"WARNING: generators were trained on {len(seen)} of {len(references)} references, which rewards copying: "
            f"{listed(data.column('id')[k] for k in seen)}; use held-out photos"
        ]
    if held_out or trained or all(stated[k] == "yes" for k in references):
        return []
    return ["WARNING: nothing states that references were held out from training, where copying would be rewarded: "
            "give --training PATH, a column held_out, or --held-out"]  # fmt: skip


# Scores of each image


def agreements(images: Images, data: Manifest, settings: EvalSettings) -> tuple[Copies, list[str]]:
    """The highest agreement of each image with a reference or training image of its subject.

    See `scoring.copies`; a warning names gray images of subjects with all references in color, because their
    similarities are too low.
    """
    own = {name: np.flatnonzero(images.subject == name) for name in dict.fromkeys(images.subject)}
    rows = [int(row) for name, of in own.items() for row in (*images.shown(name), *images.rows[of])]
    best, at, gray = np.empty(len(images.rows)), np.empty(len(images.rows), np.int64), []
    done, total = 0, sum(len(of) * len(images.shown(name)) for name, of in own.items())

    def small(row: int) -> Any:
        return small_picture(read_image(data.source(row) or b""))

    with closing(in_order(small, rows, threads=threads(settings.workers), waiting=64)) as pictures:
        for name, of in own.items():
            shown = [next(pictures) for _ in images.shown(name)]
            prints = [take_print(picture) for picture in shown]
            in_color = not any(is_gray(picture) for picture in shown[: len(images.references[name])])
            for k in of:
                picture = next(pictures)
                image = take_print(picture)
                found = [compare(reference, image).agreement for reference in prints]
                at[k], best[k] = images.shown(name)[np.argmax(found)], max(found)
                if in_color and is_gray(picture):
                    gray.append(data.column("id")[images.rows[k]])
                done += len(prints)
                if settings.pair_progress is not None:
                    settings.pair_progress(done, total)
    warning = f"WARNING: {len(gray)} images are gray where the references are in color, which lowers their scores: "
    return Copies(best, at), [warning + listed(gray)] if gray else []


def prompt_fidelity(images: Images, bound: Bound, models: Models, notes: list[str]) -> Array | None:
    """Cosine (G,) of each image and its prompt, NaN without one; adds a note on images without one.

    Args:
        bound: CLIP, if it is among the models, is taken away.
    """
    if CLIP not in models:
        return None
    from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder

    clip, scorer = cast(DualEncoder, models[CLIP]), cast(VectorScorer, bound.models.pop(CLIP))
    prompts = bound.manifest.column("text")
    words = [prompts[row] for row in images.rows]
    spoken = np.array([k for k, text in enumerate(words) if text is not None], dtype=np.int64)
    if len(spoken) < len(words):
        notes.append(f"{len(words) - len(spoken)} images have no prompt in words, and no CLIP-T: add a column text")
    found = np.full(len(words), np.nan)
    different, place = np.unique([words[k] for k in spoken], return_inverse=True)
    texts = [clip.texts(different[k : k + 64].tolist()).double().cpu().numpy() for k in range(0, len(different), 64)]
    if texts:
        found[spoken] = (scorer.vectors(images.rows[spoken]) * np.concatenate(texts)[place]).sum(1)
    return found


# Rows


def columns_of(images: Images, found: Scores, chosen: Truths, unit: Names, settings: EvalSettings) -> Row:
    """The numbers of some images of a method: identity, real, copies, leaning, diversity, Vendi, CLIP-T.

    Args:
        chosen: (G,). unit: (G,), what intervals draw again: subjects, or the prompts of a single one.
    """
    every = np.arange(len(chosen))
    copies = None if found.copies is None else (found.copies.agreement >= THRESHOLD).astype(float)
    # values of each image, or of all images of a prompt by the first of them
    columns: dict[str, tuple[Array | None, Ints]] = {
        "identity": (found.identity, every),
        "real": (np.array([found.real.get(name, np.nan) for name in images.subject]), every),
        "copies": (copies, every),
        "leaning": (found.leaning, every),
        "diversity": (found.diversity, found.several),
        "Vendi": (found.vendi, found.several),
        CLIP: (found.fidelity, every),
    }
    row: Row = {}
    for name, (values, image) in columns.items():
        if values is not None and (own := chosen[image] & ~np.isnan(values)).any():
            units = images.subject if name == "real" else unit  # one number for each subject
            row[name] = intervals.mean(values[own], units[image[own]], settings)
    return row


def means_of(values: Array, subject: Names) -> dict[str, float]:
    """Subject -> mean of its images."""
    names, place = np.unique(subject.astype(str), return_inverse=True)
    means = np.bincount(place, values) / np.bincount(place)
    return dict(zip(names.tolist(), means.tolist(), strict=True))


def image_items(images: Images, found: Scores, ids: Names) -> dict[str, Any]:
    """The scores of each image, as columns of items; `ids` are the names of the manifest's rows."""
    columns: dict[str, Any] = {
        "image": ids[images.rows], "nearest": ids[found.nearest], "method": images.method,
        "subject": images.subject, "prompt": images.prompt, "seed": images.seed, "identity": found.identity,
    }  # fmt: skip
    if found.copies is not None:
        copy = found.copies.agreement >= THRESHOLD
        copied = [name if is_copy else None for name, is_copy in zip(ids[found.copies.of], copy, strict=True)]
        columns |= {"copy": copy, "copy_agreement": found.copies.agreement, "copied": copied}
    if not np.isnan(found.leaning).all():
        columns["leaning"] = known(found.leaning)
    if found.fidelity is not None:
        columns["clip_t"] = known(found.fidelity)
    return columns


def side_by_side(images: Images, found: Scores, ids: Names, prefix: str = "by ") -> dict[str, Any]:
    """The images of all methods for the same subject, prompt and seed, with their identities and a reference.

    Args:
        prefix: of a method's name in its column.
    """
    at: dict[tuple[str, str, str], dict[str, int]] = {}
    for k, (place, method) in enumerate(zip(images.places(), images.method, strict=True)):
        at.setdefault(place, {})[method] = k

    subject, prompt, seed = zip(*at, strict=True)
    columns: dict[str, Any] = {"reference": [ids[images.references[name][0]] for name in subject]}
    lowest = [min(float(found.identity[k]) for k in by_method.values()) for by_method in at.values()]
    columns |= {"lowest": lowest, "subject": subject, "prompt": prompt, "seed": seed}
    for method in images.methods:
        name = f"{prefix}{method}"
        own = [by_method.get(method) for by_method in at.values()]
        columns[name] = [None if k is None else ids[images.rows[k]] for k in own]
        columns[f"{name}_score"] = [None if k is None else float(found.identity[k]) for k in own]
    return columns


# Items


def keep_items(
    images: Images, found: Scores, data: Manifest, by: Sequence[str], limits: Mapping[str, float], result: Result
) -> None:
    """Keep the scores of each image and subject."""
    ids = np.array(data.column("id"), dtype=object)
    columns = image_items(images, found, ids)
    for name in by:
        columns.setdefault(name, np.array(free(data, name), dtype=object)[images.rows])
    result.keep("images", **columns)

    for method in images.methods:
        own = {name: np.flatnonzero((images.method == method) & (images.subject == name))
               for name in sorted(set(images.subject[images.method == method]))}  # fmt: skip
        means = np.array([found.identity[of].mean() for of in own.values()])
        worst = np.array([of[comparable(found.identity[of]).argmin()] for of in own.values()])
        result.keep(
            "subjects", worst=ids[images.rows[worst]], worst_score=found.identity[worst], method=[method] * len(own),
            subject=list(own), identity=means, real=[found.real.get(name) for name in own],
            images=[len(of) for of in own.values()],
            **{name: (comparable(means) < comparable(tau)).tolist() for name, tau in limits.items()},
        )  # fmt: skip
    scenes = [of for of in images.scenes if len(of) > 1]
    if scenes:
        result.keep("scenes", **_scenes(images, found, scenes, ids))
    if len(images.methods) > 1:
        result.keep("side_by_side", **side_by_side(images, found, ids))


def keep_missing(missing: Mapping[str, Sequence[Place]], result: Result, column: str) -> None:
    """Keep the places that a method lacks, or a step, which is a number."""
    for method, lacking in missing.items():
        subjects, prompts, seeds = zip(*lacking, strict=True)
        names = {column: [int(method) if column == "step" else method] * len(lacking)}
        result.keep("missing", **names, subject=subjects, prompt=prompts, seed=seeds)


def _scenes(images: Images, found: Scores, scenes: Sequence[Ints], ids: Names) -> dict[str, Any]:
    """The images of several subjects, with the subject that is least itself and its nearest reference."""
    weakest = np.array([of[comparable(found.identity[of]).argmin()] for of in scenes])
    return {
        "image": ids[images.rows[weakest]], "nearest": ids[found.nearest[weakest]], "lowest": found.identity[weakest],
        "mean": [float(found.identity[of].mean()) for of in scenes], "weakest": images.subject[weakest],
        "subjects": [len(of) for of in scenes], "method": images.method[weakest], "prompt": images.prompt[weakest],
        "seed": images.seed[weakest],
    }  # fmt: skip
