"""Scores of generated images as the columns of a table; copies and prompt fidelity of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, known, listed
from idmetric.evaluate.protocols.common.intervals import COSINE, DISTANCE, SHARE
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import (
    Bound,
    EvalSettings,
    Models,
    PairJudge,
    VectorScorer,
    slices,
)
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.protocols.generator.images import Copies, Images, MethodScores, Names, Place
from idmetric.evaluate.protocols.generator.pattern import FIELD, REFERENCE, TRAINING
from idmetric.metric.ties import comparable
from idmetric.scoring.copies import THRESHOLD, take_print
from idmetric.scoring.references import closest, distinct, is_gray
from idmetric.store import key_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.evaluate.protocols.generator.pictures import PicturesTaken

CLIP = "CLIP-T"
NOT_CHECKED = "not checked"

COLUMNS = {
    "identity": Column("mean over images x of the mean over references r of s(x, r), in -1..1", 1, "DINO-I, CLIP-I"),
    "real": Column(
        "mean similarity of each reference to the others of its subject, copies once: what real photos get", 0
    ),
    "same": Column("share of images of the same subject as the references: a mean distance up to a threshold"),
    "real same": Column("the same share of the references, each compared with the others of its subject", 0),
    "weakest": Column("mean over images of the lowest identity of their subjects, in -1..1"),
    "copies": Column("share of images that repeat a reference's or training image's pixels", -1),
    "diversity": Column("mean distance of images of one prompt that differ by seed, in 0..2"),
    "CLIP-T": Column("mean cosine of image and prompt, in -1..1", 1, "CLIPScore without factor and clamp"),
    "p": Column(
        "sign-flip test over subjects of the differences in identity, corrected by Holm for all comparisons", 0
    ),
}


def refuse_judges(models: Models) -> None:
    """Refuse models that give no similarities of all pairs."""
    judges = [name for name, model in models.items() if isinstance(model, PairJudge)]
    if judges:
        raise ValueError(f"{', '.join(judges)}: judges score pairs one by one; leave them out")


# Notes


def notes_on(data: DataFrame, images: Images, held_out: bool) -> list[str]:
    """Notes on missing places, on subjects without images, and on references seen in training."""
    notes = []
    count = len(set(images.places()))
    for method, places in images.missing().items():
        names = listed("/".join(filter(None, place)) for place in places)
        notes.append(f"{method} lacks {len(places)} of {count} combinations of subject, prompt and seed: {names}")
    unused = [name for name in images.references if name not in images.subject]
    if unused:
        notes.append(f"no images of {len(unused)} subjects with references: {listed(unused)}")
    return notes + _notes_on_training(data, held_out)


def _notes_on_training(data: DataFrame, held_out: bool) -> list[str]:
    """Warn of references that generators were trained on, and of a missing statement about that."""
    role = data[f"{FIELD}role"]
    references = data[role == REFERENCE]
    stated = references[f"{FIELD}held_out"]
    trained = {key_of(path) for path in data["path"][role == TRAINING]}
    is_shown = stated == "no"
    if trained:
        is_shown |= references["path"].map(key_of).isin(trained)
    if is_shown.any():
        return [
            f"WARNING: generators were trained on {is_shown.sum()} of {len(references)} references, which rewards "
            f"copying: {listed(references['id'][is_shown])}; use held-out photos"
        ]
    if held_out or trained or (stated == "yes").all():
        return []
    return [
        "WARNING: nothing states that references were held out from training, where copying would be rewarded: "
        "give --training PATH, a column held_out, or --held-out"
    ]


# Scores of each image


def agreements(
    images: Images,
    data: DataFrame,
    settings: EvalSettings,
    taken: PicturesTaken,
) -> tuple[Copies, list[str]]:
    """The highest agreement of each image with a reference or training image of its subject.

    See `scoring.copies`; a warning names gray images of subjects with all references in color, because their
    similarities are too low.

    Args:
        taken: the images' small pictures.
    """
    members = images.by_subject()
    total = sum(len(images.shown(subject)) * len(indices) for subject, indices in members.items())
    agreement = np.empty(len(images.rows))
    original = np.empty(len(images.rows), np.int64)
    gray: list[str] = []
    done = 0
    for subject, indices in members.items():
        shown_rows = images.shown(subject)
        shown = [taken.small(path) for path in data["path"][shown_rows]]
        prints = [take_print(picture) for picture in shown]
        in_color = not any(is_gray(picture) for picture in shown[: len(images.references[subject])])
        for part in slices(len(indices), settings.batch_size):
            pictures = [taken.small(path) for path in data["path"][images.rows[indices[part]]]]
            for index, picture in zip(indices[part].tolist(), pictures, strict=True):
                number, copy = closest(prints, take_print(picture))
                agreement[index] = copy.agreement
                original[index] = shown_rows[number]
                if in_color and is_gray(picture):
                    gray.append(data["id"][images.rows[index]])
            done += len(prints) * len(pictures)
            if settings.pair_progress is not None:
                settings.pair_progress(done, total)

    notes = []
    if gray:
        problem = "are gray where the references are in color, which lowers their scores"
        notes.append(f"WARNING: {len(gray)} images {problem}: {listed(gray)}")
    return Copies(agreement, original), notes


def distinct_references(images: Images, data: DataFrame, taken: PicturesTaken) -> tuple[dict[str, Ints], list[str]]:
    """The references of each subject, of several with one picture the first; and a note on the others."""
    photos = {}
    repeated: list[int] = []
    for subject, rows in images.references.items():
        pictures = np.stack([taken.small(path) for path in data["path"][rows]])
        photos[subject] = rows[distinct(pictures)]
        repeated += sorted({*rows.tolist()} - {*photos[subject].tolist()})

    if not repeated:
        return photos, []
    names = listed(data["id"][repeated])
    return photos, [f"{len(repeated)} references repeat the picture of another, and count once in real: {names}"]


def prompt_fidelity(images: Images, bound: Bound, models: Models, notes: list[str]) -> Array | None:
    """Cosine (G,) of each image and its prompt, NaN without one; adds a note on images without one.

    Args:
        bound: CLIP, if it is among the models, is taken away.
    """
    if CLIP not in models:
        return None
    from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder

    clip = cast(DualEncoder, models[CLIP])
    scorer = cast(VectorScorer, bound.models.pop(CLIP))
    prompts = bound.manifest["text"].to_numpy()[images.rows]
    has_prompt = np.array([prompt is not None for prompt in prompts])
    if not has_prompt.all():
        count = int((~has_prompt).sum())
        notes.append(f"{count} images have no prompt in words, and no CLIP-T: add a column text")

    cosines = np.full(len(prompts), np.nan)
    if has_prompt.any():
        different, number = np.unique(prompts[has_prompt].astype(str), return_inverse=True)
        blocks = []
        for start in range(0, len(different), 64):
            vectors = clip.texts(different[start : start + 64].tolist())
            blocks.append(vectors.double().cpu().numpy())
        image_vectors = scorer.vectors(images.rows[has_prompt])
        cosines[has_prompt] = (image_vectors * np.concatenate(blocks)[number]).sum(1)
    return cosines


# Rows


def columns_of(
    images: Images, scores: MethodScores, chosen: Truths, least: float | None, settings: EvalSettings
) -> Row:
    """The numbers of some images of a method, such as identity, real, copies, diversity and CLIP-T.

    Args:
        chosen: (G,). least: the similarity from which an image is of the same subject; None: no share of these.
    """
    row: Row = {}

    def add(name: str, values: Array | None, limits: intervals.Range, numbers: Ints | None = None) -> None:
        """Add a mean over values of each image, or of the images of these numbers."""
        if values is None:
            return
        if numbers is None:
            numbers = np.arange(len(chosen))
        defined = chosen[numbers] & ~np.isnan(values)
        if defined.any():
            row[name] = intervals.mean(values[defined], images.subject[numbers[defined]], settings, limits=limits)

    add("identity", scores.identity, COSINE)
    _add_weakest(row, images, scores, chosen, settings)
    add("real", scores.real_of_images(images.subject), COSINE)
    if least is not None:
        add("same", (comparable(scores.identity) >= comparable(least)).astype(float), SHARE)
        add("real same", scores.real_of_images(images.subject, least), SHARE)
    if scores.copies is not None:
        add("copies", (scores.copies.agreement >= THRESHOLD).astype(float), SHARE)
    add("diversity", scores.diversity, DISTANCE, numbers=scores.several)
    add(CLIP, scores.fidelity, COSINE)
    return row


def _add_weakest(row: Row, images: Images, scores: MethodScores, chosen: Truths, settings: EvalSettings) -> None:
    """Add the mean over images of the lowest identity of their subjects, if any image should show several."""
    lowest, together = [], []
    for members in images.scenes:
        shown = members[chosen[members]]
        if len(shown):
            lowest.append(scores.identity[shown].min())
            together.append(" + ".join(images.subject[shown]))
    if len(lowest) < chosen.sum():
        names = np.array(together, dtype=object)
        row["weakest"] = intervals.mean(np.array(lowest), names, settings, limits=COSINE)


def image_items(images: Images, scores: MethodScores, ids: Names) -> dict[str, Any]:
    """The scores of each image, as columns of items; `ids` are the names of the manifest's rows."""
    columns: dict[str, Any] = {
        "image": ids[images.rows],
        "nearest": ids[scores.nearest],
        "method": images.method,
        "subject": images.subject,
        "prompt": images.prompt,
        "seed": images.seed,
        "identity": scores.identity,
    }
    if scores.copies is not None:
        is_copy = scores.copies.agreement >= THRESHOLD
        columns["copy"] = is_copy
        columns["copy_agreement"] = scores.copies.agreement
        columns["copied"] = ids[scores.copies.original]
        columns["copied"][~is_copy] = None
    if scores.fidelity is not None:
        columns["clip_t"] = known(scores.fidelity)
    return columns


def side_by_side(images: Images, scores: MethodScores, ids: Names) -> dict[str, Any]:
    """The images of all methods for the same subject, prompt and seed, with their identities and a reference."""
    scenes: dict[Place, dict[str, int]] = {}
    for index, (place, method) in enumerate(zip(images.places(), images.method, strict=True)):
        scenes.setdefault(place, {})[method] = index

    subject, prompt, seed = zip(*scenes, strict=True)
    columns: dict[str, Any] = {
        "reference": [ids[images.references[name][0]] for name in subject],
        "lowest": [scores.identity[list(scene.values())].min() for scene in scenes.values()],
        "subject": subject,
        "prompt": prompt,
        "seed": seed,
    }
    for method in images.methods:
        shown: list[str | None] = []
        identities: list[float | None] = []
        for scene in scenes.values():
            index = scene.get(method, -1)
            shown.append(None if index < 0 else ids[images.rows[index]])
            identities.append(None if index < 0 else float(scores.identity[index]))
        columns[f"by {method}"] = shown
        columns[f"by {method}_score"] = identities
    return columns


# Items


def keep_items(
    images: Images,
    scores: MethodScores,
    data: DataFrame,
    by: Sequence[str],
    result: Result,
) -> None:
    """Keep the scores of each image and subject."""
    ids = data["id"].to_numpy()
    columns = image_items(images, scores, ids)
    for name in by:
        if name not in columns:
            columns[name] = data[FIELD + name].to_numpy()[images.rows]
    result.keep("images", **columns)

    real_of = {subject: float(similarities.mean()) for subject, similarities in scores.real.items()}
    for method in images.methods:
        for subject in sorted(set(images.subject[images.method == method])):
            members = np.flatnonzero((images.method == method) & (images.subject == subject))
            mean = scores.identity[members].mean()
            weakest = _weakest(scores, members)
            result.keep(
                "subjects",
                worst=[ids[images.rows[weakest]]],
                worst_score=[float(scores.identity[weakest])],
                method=[method],
                subject=[subject],
                identity=[float(mean)],
                real=[real_of.get(subject)],
                images=[len(members)],
            )

    for members in images.scenes:
        if len(members) > 1:
            weakest = _weakest(scores, members)
            result.keep(
                "scenes",
                image=[ids[images.rows[weakest]]],
                nearest=[ids[scores.nearest[weakest]]],
                lowest=[float(scores.identity[weakest])],
                mean=[float(scores.identity[members].mean())],
                weakest=[images.subject[weakest]],
                subjects=[len(members)],
                method=[images.method[weakest]],
                prompt=[images.prompt[weakest]],
                seed=[images.seed[weakest]],
            )
    if len(images.methods) > 1:
        result.keep("side_by_side", **side_by_side(images, scores, ids))


def _weakest(scores: MethodScores, members: Ints) -> int:
    """The image with the lowest identity among these."""
    return int(members[comparable(scores.identity[members]).argmin()])


def keep_missing(missing: Mapping[str, Sequence[Place]], result: Result) -> None:
    """Keep the places that a method lacks."""
    for method, places in missing.items():
        for subject, prompt, seed in places:
            result.keep("missing", method=[method], subject=[subject], prompt=[prompt], seed=[seed])
