"""Is a generated image nearer to the references of another subject than to those of its own?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Ints
from idmetric.evaluate.protocols.common.scorers import Scorer, VectorScorer, slices
from idmetric.evaluate.protocols.generator.images import Images
from idmetric.evaluate.statistics.nearest_group import confused_shares

_NUMBERS = 2**24  # of a table of similarities at once


def note_on_confusion(images: Images, photos: Mapping[str, Ints], scorer: Scorer, seed: int) -> list[str]:
    """A sentence on the methods with more images that are nearer to another subject than real photos are.

    An image is compared with equally many references of each subject, as many as each subject with images has. Real
    photos are compared with one reference fewer, which makes their share a little too high.

    Args:
        photos: subject -> rows of its distinct references, of all subjects.

    Returns:
        Empty for one subject, and without cosines: other similarities of all images to all references are slow.
    """
    if len(photos) < 2 or not isinstance(scorer, VectorScorer) or scorer.distance != "cls":
        return []
    references = np.concatenate(list(photos.values()))
    counts = np.array([len(rows) for rows in photos.values()])
    group = np.repeat(np.arange(len(photos)), counts)
    number_of = {subject: number for number, subject in enumerate(photos)}
    right = np.array([number_of[subject] for subject in images.subject])
    size = int(counts[right].min())
    confused = _of_images(images, scorer, references, group, right, size, seed)
    share_of_subject = _of_photos(scorer, references, group, size, seed)
    real = np.array([share_of_subject.get(number, np.nan) for number in right])

    words = "unknown for real photos: subjects have one"
    shares = []
    for method in images.methods:
        is_of_method = (images.method == method) & ~np.isnan(confused)
        if not is_of_method.any():
            continue
        share_of_real = 0.0
        is_known = is_of_method & ~np.isnan(real)
        if is_known.any():
            share_of_real = float(real[is_known].mean())
            words = f"{100 * share_of_real:.3g} % of real photos"
        share = float(confused[is_of_method].mean())
        if share > share_of_real:
            count = round(confused[is_of_method].sum(), 1)
            shares.append((share, f"{count:g} of {is_of_method.sum()} images by {method}"))
    if not shares:
        return []
    shares.sort(key=lambda item: -item[0])
    listing = ", ".join(text for _, text in shares)
    return [f"WARNING: {listing} are nearer to another subject's photos than to their own subject's ({words})"]


def _of_images(
    images: Images, scorer: Scorer, references: Ints, group: Ints, right: Ints, size: int, seed: int
) -> Array:
    """The share (G,) of draws of references in which another subject is nearer; NaN where no other one competes."""
    counts = np.bincount(group)
    competes = _competing(images, right, len(counts)) & (counts >= size)
    confused = np.empty(len(right))
    for part in slices(len(right), max(1, _NUMBERS // len(references))):
        similarities = scorer.matrix(images.rows[part], references)
        similarities[~competes[part][:, group]] = np.nan
        confused[part] = confused_shares(similarities, group, right[part], size, seed=seed)
    return np.where(competes.sum(1) > 1, confused, np.nan)


def _competing(images: Images, right: Ints, subjects: int) -> NDArray[np.bool_]:
    """Whether each subject (G, S) competes for an image: all but the others that the image should show too."""
    competes = np.ones((len(right), subjects), dtype=bool)
    for members in images.scenes:
        shown = right[members]
        for member in members:
            competes[member, shown] = False
            competes[member, right[member]] = True
    return competes


def _of_photos(scorer: Scorer, references: Ints, group: Ints, size: int, seed: int) -> dict[int, float]:
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
            confused[part_rows] = confused_shares(similarities, group, group[part_rows], int(draw_size), seed=seed)
    return {number: float(confused[group == number].mean()) for number in np.unique(group[sizes > 0]).tolist()}
