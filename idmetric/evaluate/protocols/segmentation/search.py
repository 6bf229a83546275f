"""Searches for subjects in images by maps and masks, and scores them, for the protocol `segmentation`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.common.columns import Array, Truths, free, listed
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Progress, VectorScorer
from idmetric.evaluate.protocols.segmentation.persam import PerSAM
from idmetric.evaluate.statistics import segmentation as measures
from idmetric.match.heatmaps import coverage, layout
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.patches import Layout, on_grid, prototypes, spread
from idmetric.metric.images.masks import read_mask

_SIDE = 512  # longer side at which masks are compared, in pixels
_REFERENCE, _TARGETS = "train", ("test_dense", "test")  # PODS's parts
THRESHOLDS = np.linspace(-1, 1, 2001)  # among which the one for all images is chosen
NAMES = ("subject", "image", "present", "score", "iou", "intersection", "union", "pointing", "best")


@dataclass(frozen=True)
class Task:
    """A subject: rows of its reference, of targets that show it, and of targets that do not."""

    subject: str
    reference: int
    own: tuple[int, ...]
    others: tuple[int, ...]


def tasks(data: Manifest, settings: EvalSettings, most_others: int | None = None) -> tuple[list[Task], list[str]]:
    """A task for each identity with a reference and targets, and notes on identities without.

    Args:
        most_others: images of other subjects to search for each subject, drawn by the seed; None: all.
    """
    identity, ids, part = data.column("identity"), data.column("id"), free(data, "part")
    masked = [mask is not None for mask in data.sources("mask")]
    shown = next((p for p in _TARGETS if p in part), None) if _REFERENCE in part else None
    reference: dict[str, int] = {}
    targets: dict[str, list[int]] = defaultdict(list)

    for row in sorted(range(len(data)), key=lambda r: ids[r]):
        if identity[row] is None or not masked[row]:
            continue
        is_reference = part[row] == _REFERENCE if shown else identity[row] not in reference
        if is_reference:
            reference.setdefault(identity[row], row)
        elif not shown or part[row] == shown:
            targets[identity[row]].append(row)

    able = [name for name in reference if targets[name]]
    if not able:
        raise ValueError(
            "no identity has a reference and a target with masks: give images of the same subject with masks of it "
            "(column mask)"
        )

    everyone = np.array([row for name in able for row in targets[name]])
    owner = np.array([name for name in able for _ in targets[name]], dtype=object)
    found = []
    for k, name in enumerate(able):
        strangers = everyone[owner != name]
        if most_others is not None and most_others < len(strangers):
            strangers = np.sort(np.random.default_rng([settings.seed, k]).choice(strangers, most_others, False))
        found.append(Task(name, reference[name], tuple(targets[name]), tuple(strangers.tolist())))

    left = sorted({n for n in identity if n is not None} - set(able))
    notes = [f"{len(left)} identities lack a reference or a target with a mask: {listed(left)}"] if left else []
    return found, notes


@dataclass
class Found:
    """One line for each subject and image; see `NAMES`. And the IoU of own images at `THRESHOLDS`."""

    lines: list[tuple[Any, ...]] = field(default_factory=list)
    curves: list[Array] = field(default_factory=list)

    def columns(self) -> dict[str, list[Any]]:
        """For `Result.items`."""
        return {name: list(column) for name, column in zip(NAMES, zip(*self.lines, strict=True), strict=True)}


@dataclass(frozen=True)
class Subject:
    """A task with the features of its reference.

    Attributes:
        prototype: (D,), to multiply tokens by, see `idmetric.metric.distance.patches.prototypes`.
        mean: mean token (1, D) of the mask's box.
    """

    task: Task
    prototype: Tensor
    mean: Tensor


def search(
    scorer: VectorScorer,
    data: Manifest,
    tasks: Sequence[Task],
    sam: PerSAM | None = None,
    progress: Progress | None = None,
) -> dict[str, Found]:
    """Every subject in every image of its task; each image is loaded, and seen by SAM, once.

    Args:
        progress: called with (images done, images to do).
    """
    subjects = [_subject(scorer, data, task) for task in tasks]
    wanted: dict[int, list[int]] = defaultdict(list)
    for k, task in enumerate(tasks):
        for row in (*task.own, *task.others):
            wanted[row].append(k)
    found = {"prior": Found(), "center": Found(), **({"persam": Found()} if sam is not None else {})}
    ids = data.column("id")

    for done, (row, looked) in enumerate(sorted(wanted.items()), 1):
        target = _unit(scorer.stored.embedding([row]))
        picture = data.image(row)
        where = layout(scorer.embedder, picture.height, picture.width, target)
        truth = _truth(data, row, picture, _SIDE)
        seen = sam.encode(cast("str | bytes", data.source(row))) if sam is not None else None
        for k in looked:
            subject = subjects[k]
            own = row in subject.task.own
            assert target.patches is not None  # checked by bind
            grid = on_grid(target.patches[0] @ subject.prototype, where)
            heat = spread(grid, where, truth.shape).double().numpy()
            line = partial(_line, subject, ids[row], truth if own else np.zeros_like(truth), own, target, where)
            maps = {"prior": heat, "center": _center_map(truth.shape)} if own else {"prior": heat}
            for method, one in maps.items():
                found[method].lines.append(line(one > measures.otsu(one), one))
                if own:
                    found[method].curves.append(measures.iou_curve(one, truth, THRESHOLDS))
            if sam is not None and seen is not None:
                mask = sam.decode(seen, spread(grid, where, seen.size))
                found["persam"].lines.append(line(_resized(mask, truth.shape), heat))
        if progress is not None:
            progress(done, len(wanted))

    return found


def _line(
    subject: Subject,
    image: str,
    truth: Truths,
    present: bool,
    target: Embedding,
    where: Layout,
    mask: Truths,
    heat: Array,
) -> tuple[Any, ...]:
    """A line of `Found`, of a mask found by a map; its score is the cosine of mean tokens of boxes."""
    intersection, union = measures.overlap(mask, truth)
    score = pointing = best = None
    if mask.any():
        score = float(F.cosine_similarity(_mean(target, mask, where), subject.mean, dim=-1))
    if present:
        pointing, (_, best) = measures.pointing(heat, truth), measures.best_iou(heat, truth)
    iou = intersection / union if union else 0.0
    return subject.task.subject, image, present, score, iou, intersection, union, pointing, best


def _subject(scorer: VectorScorer, data: Manifest, task: Task) -> Subject:
    one = _unit(scorer.stored.embedding([task.reference]))
    picture = data.image(task.reference)
    where = layout(scorer.embedder, picture.height, picture.width, one)
    mask = _truth(data, task.reference, picture)
    assert one.patches is not None  # checked by bind
    cover = torch.zeros(one.patches.shape[:2])
    cover[0, : where.grid[0] * where.grid[1]] = _cover(mask, where)
    return Subject(task, prototypes(replace(one, weights=cover), "prototype")[0], _mean(one, mask, where))


def _unit(image: Embedding) -> Embedding:
    """The embedding with tokens at unit length, in float32."""
    assert image.patches is not None  # checked by bind
    return replace(image, patches=F.normalize(image.patches.float(), dim=-1))


def _cover(mask: Truths, where: Layout) -> Tensor:
    """A mask's coverage of each patch (P,); equal for all patches if the mask lies in the margin outside them."""
    weight = coverage(mask, where).flatten()
    return weight if weight.any() else torch.ones_like(weight)


def _mean(image: Embedding, mask: Truths, where: Layout) -> Tensor:
    """Mean (1, D) of an image's tokens, weighted by how much the mask's box covers them; the mask is not empty."""
    y, x = np.nonzero(mask)
    mask = np.zeros_like(mask)
    mask[y.min() : y.max() + 1, x.min() : x.max() + 1] = True
    assert image.patches is not None  # checked by bind
    weight = _cover(mask, where)
    return (image.patches[:, : len(weight)] * (weight / weight.sum())[:, None]).sum(1)


def _center_map(size: tuple[int, int]) -> Array:
    """A map that falls from 1 in the middle of the image to 0 in its corners."""
    y, x = ((np.arange(n) + 0.5) / n * 2 - 1 for n in size)
    found: Array = 1 - np.hypot(y[:, None], x) / np.sqrt(2)
    return found


def _truth(data: Manifest, row: int, picture: Image.Image, side: int = 0) -> Truths:
    """The true mask: pixels that it covers by half, or if there are none, all that it touches.

    Args:
        side: longer side of the result, if the picture is larger; 0 keeps the picture's size.
    """
    scale = min(1.0, side / max(picture.size)) if side else 1.0
    size = max(1, round(picture.height * scale)), max(1, round(picture.width * scale))
    cover = read_mask(cast("str | bytes", data.source(row, "mask")), size, image=picture)
    if not cover.any():
        raise ValueError(f"{data.column('id')[row]}: its mask is empty")
    found: Truths = (cover >= min(0.5, float(cover.max()))).numpy()
    return found


def _resized(mask: Truths, size: tuple[int, int]) -> Truths:
    if mask.shape == size or not mask.any():
        return mask if mask.shape == size else np.zeros(size, dtype=bool)
    found: Truths = (read_mask(mask, size) >= 0.5).numpy()
    return found
