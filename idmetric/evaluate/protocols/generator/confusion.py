"""Which subject does each generated image show? The one with the nearest references, among all subjects."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Ints
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.common.scorers import Scorer, slices
from idmetric.evaluate.protocols.generator.images import Confusion, Images, are_cosines
from idmetric.evaluate.statistics.nearest_group import nearest_groups

_NUMBERS = 2**24  # of a table of similarities at once


def confusion_of(images: Images, photos: Mapping[str, Ints], scorer: Scorer, seed: int) -> Confusion | None:
    """Find the nearest subject of each image, by its mean similarity to equally many references of each subject.

    That is as many as each subject with images has; a subject without images and with fewer references does not
    compete, nor do the other subjects of an image of several. Real photos are compared with one reference fewer, which
    makes their share a little too high.

    Args:
        photos: subject -> rows of its distinct references, of all subjects.

    Returns:
        None for one subject, and without cosines: other similarities of all images to all references are slow.
    """
    if len(photos) < 2 or not are_cosines(scorer):
        return None
    subjects = list(photos)
    number_of = {subject: number for number, subject in enumerate(subjects)}
    references = np.concatenate(list(photos.values()))
    counts = np.array([len(rows) for rows in photos.values()])
    group = np.repeat(np.arange(len(subjects)), counts)

    right = np.array([number_of[subject] for subject in images.subject])
    size = int(counts[right].min())
    competes = _competing(images, right, len(subjects)) & (counts >= size)
    nearest = np.empty(competes.shape)
    for part in slices(len(right), max(1, _NUMBERS // len(references))):
        similarities = scorer.matrix(images.rows[part], references)
        similarities[~competes[part][:, group]] = np.nan
        nearest[part] = nearest_groups(similarities, group, right[part], size, seed=seed)

    return Confusion(
        subjects=subjects,
        nearest=nearest,
        right=right,
        chance=1 - 1 / competes.sum(1),
        real=_real(scorer, references, group, size, seed),
        size=size,
    )


def _competing(images: Images, right: Ints, subjects: int) -> NDArray[np.bool_]:
    """Whether each subject (G, S) competes for an image: all but the others that the image should show too."""
    competes = np.ones((len(right), subjects), dtype=bool)
    for members in images.scenes:
        shown = right[members]
        for member in members:
            competes[member, shown] = False
            competes[member, right[member]] = True
    return competes


def _real(scorer: Scorer, references: Ints, group: Ints, size: int, seed: int) -> dict[int, float]:
    """Number of a subject -> the share of its references, each left out in turn, that are nearer to another subject."""
    count_of_own = np.bincount(group)[group]
    sizes = np.minimum(size, count_of_own - 1)
    confused = np.full(len(references), np.nan)
    for draw_size in np.unique(sizes[sizes > 0]):
        rows = np.flatnonzero(sizes == draw_size)
        for part in slices(len(rows), max(1, _NUMBERS // len(references))):
            part_rows = rows[part]
            similarities = scorer.matrix(references[part_rows], references)
            similarities[np.arange(len(part_rows)), part_rows] = np.nan
            right = group[part_rows]
            nearest = nearest_groups(similarities, group, right, int(draw_size), seed=seed)
            confused[part_rows] = 1 - nearest[np.arange(len(part_rows)), right]

    real = {}
    for number in np.unique(group[sizes > 0]).tolist():
        real[number] = float(confused[group == number].mean())
    return real


def keep_confusions(confusion: Confusion, images: Images, result: Result) -> None:
    """Keep, of each method and subject, how many images are nearest to each subject."""
    names = np.array(confusion.subjects, dtype=object)
    for method in images.methods:
        for number in np.unique(confusion.right[images.method == method]):
            members = (images.method == method) & (confusion.right == number)
            counts = confusion.nearest[members].sum(0)
            shown = np.flatnonzero(counts)
            result.keep(
                "nearest_subjects",
                method=[method] * len(shown),
                subject=[names[number]] * len(shown),
                nearest=names[shown],
                images=counts[shown],
            )
