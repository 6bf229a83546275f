"""Searches for subjects in images by maps and masks, and scores them, for the protocol `segmentation`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idmetric.evaluate.protocols.common.columns import Array, Truths, listed, own
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Progress, VectorScorer
from idmetric.evaluate.protocols.segmentation.persam import PerSAM
from idmetric.evaluate.statistics import segmentation as measures
from idmetric.metric.embedding import Embedding
from idmetric.metric.heatmap import Layout, coverage, layout, patch_tokens, prototypes
from idmetric.metric.images import read_image
from idmetric.metric.masks import read_mask

if TYPE_CHECKING:
    from pandas import DataFrame

_SIDE = 512  # longer side at which masks are compared, in pixels
_REFERENCE, _TARGETS = "train", ("test_dense", "test")  # PODS's parts
THRESHOLDS = np.linspace(-1, 1, 2001)  # among which the one for all images is chosen


@dataclass(frozen=True)
class SearchTask:
    """A subject: rows of its reference, of the targets that show it, and of targets that show other subjects."""

    subject: str
    reference: int
    targets: tuple[int, ...]
    distractors: tuple[int, ...]


def tasks(
    data: DataFrame,
    settings: EvalSettings,
    most_distractors: int | None,
) -> tuple[list[SearchTask], list[str]]:
    """A task for each identity with a reference and targets, and notes on identities without.

    Args:
        most_distractors: images of other subjects to search for each subject, drawn by the seed; None: all.
    """
    part = own(data, "x_part")
    target_part = None
    if _REFERENCE in part:
        target_part = next((name for name in _TARGETS if name in part), None)

    references: dict[str, int] = {}
    targets: dict[str, list[int]] = defaultdict(list)
    masked = data[data["identity"].notna() & data["mask"].notna()].sort_values("id")
    for row, name in masked["identity"].items():
        is_reference = name not in references
        if target_part is not None:
            is_reference = part[row] == _REFERENCE
        if is_reference:
            references.setdefault(name, row)
        elif target_part is None or part[row] == target_part:
            targets[name].append(row)

    subjects = [name for name in references if targets[name]]
    if not subjects:
        raise ValueError(
            "no identity has a reference and a target with masks: give images of the same subject with masks of it "
            "(column mask)"
        )

    complete = []
    for number, name in enumerate(subjects):
        rows: list[int] = []
        for subject in subjects:
            if subject != name:
                rows += targets[subject]
        distractors = np.array(rows, dtype=np.int64)
        if most_distractors is not None and most_distractors < len(distractors):
            rng = np.random.default_rng([settings.seed, number])
            distractors = np.sort(rng.choice(distractors, most_distractors, replace=False))
        complete.append(SearchTask(name, references[name], tuple(targets[name]), tuple(distractors.tolist())))

    incomplete = sorted({*data["identity"].dropna()} - {*subjects})
    notes = []
    if incomplete:
        notes.append(f"{len(incomplete)} identities lack a reference or a target with a mask: {listed(incomplete)}")
    return complete, notes


@dataclass
class Segmentation:
    """What a method finds.

    Attributes:
        lines: for each subject and image, scores of the mask. curves: for each image that shows the subject, the IoU
            of its map at `THRESHOLDS`.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    curves: list[Array] = field(default_factory=list)

    def columns(self) -> dict[str, list[Any]]:
        """The lines as a table, for `Result.items`."""
        return {name: [line[name] for line in self.lines] for name in self.lines[0]}


class Scene(NamedTuple):
    """An image with patch tokens at unit length, the layout of its patches, and the true mask (H, W)."""

    embedding: Embedding
    layout: Layout
    mask: Truths


class Reference(NamedTuple):
    """A subject's prototype (D,), see `idmetric.metric.heatmap`, and the mean token (1, D) of its box."""

    prototype: Tensor
    mean_token: Tensor


def search(
    scorer: VectorScorer,
    data: DataFrame,
    tasks: Sequence[SearchTask],
    sam: PerSAM | None,
    progress: Progress | None,
) -> dict[str, Segmentation]:
    """Every subject in every image of its task; each image is loaded, and seen by SAM, once.

    Args:
        progress: called with (images done, images to do).
    """
    searches: dict[int, list[tuple[SearchTask, Reference]]] = defaultdict(list)
    for task in tasks:
        reference = _reference(scorer, data, task.reference)
        for row in (*task.targets, *task.distractors):
            searches[row].append((task, reference))

    methods = {"prior": Segmentation(), "center": Segmentation()}
    if sam is not None:
        methods["persam"] = Segmentation()
    for done, (row, subjects) in enumerate(sorted(searches.items()), 1):
        scene = _scene(scorer, data, row, _SIDE)
        size = scene.mask.shape
        if sam is not None:
            encoded = sam.encode(data["path"][row])

        for task, reference in subjects:
            is_present = row in task.targets
            about = {"subject": task.subject, "image": data["id"][row], "present": is_present}
            truth = scene.mask if is_present else np.zeros_like(scene.mask)
            similarities = patch_tokens(scene.embedding)[0] @ reference.prototype
            prior = scene.layout.spread(similarities, size).double().numpy()
            maps = {"prior": prior}
            if is_present:
                maps["center"] = _center_map(size)
            for method, heat in maps.items():
                mask = heat > measures.otsu(heat)
                scores = _scores(scene, reference, truth, mask, heat)
                methods[method].lines.append(about | scores)
                if is_present:
                    methods[method].curves.append(measures.iou_curve(heat, truth, THRESHOLDS))
            if sam is not None:
                heat_of_sam = scene.layout.spread(similarities, encoded.size)
                mask = sam.decode(encoded, heat_of_sam)
                if mask.shape != size and mask.any():
                    mask = (read_mask(mask, size) >= 0.5).numpy()
                elif mask.shape != size:
                    mask = np.zeros(size, dtype=bool)
                scores = _scores(scene, reference, truth, mask, prior)
                methods["persam"].lines.append(about | scores)
        if progress is not None:
            progress(done, len(searches))

    return methods


def _scores(
    scene: Scene,
    reference: Reference,
    truth: Truths,
    mask: Truths,
    heat: Array,
) -> dict[str, Any]:
    """How well a mask and the map that it comes from fit the truth; the mask's score is the cosine of mean tokens."""
    intersection, union = measures.overlap(mask, truth)
    score = pointing = best = None
    if mask.any():
        token = _mean_token(scene, mask)
        score = float(F.cosine_similarity(token, reference.mean_token, dim=-1))
    if truth.any():
        pointing = measures.pointing(heat, truth)
        _, best = measures.best_iou(heat, truth)
    return {
        "score": score,
        "iou": intersection / union if union else 0.0,
        "intersection": intersection,
        "union": union,
        "pointing": pointing,
        "best": best,
    }


def _scene(
    scorer: VectorScorer,
    data: DataFrame,
    row: int,
    side: float = math.inf,
) -> Scene:
    """An image of the manifest; see `_true_mask` for `side`."""
    embedding = scorer.stored.embedding([row])
    unit_tokens = F.normalize(patch_tokens(embedding), dim=-1)
    embedding = replace(embedding, patches=unit_tokens)
    picture = read_image(data["path"][row])
    where = layout(scorer.embedder, picture.height, picture.width, embedding)
    return Scene(embedding, where, _true_mask(data, row, picture, side))


def _reference(scorer: VectorScorer, data: DataFrame, row: int) -> Reference:
    scene = _scene(scorer, data, row)
    covered = _coverage(scene.mask, scene.layout)
    weights = torch.zeros(patch_tokens(scene.embedding).shape[:2])
    weights[0, : len(covered)] = covered
    [prototype] = prototypes(replace(scene.embedding, weights=weights))
    return Reference(prototype, _mean_token(scene, scene.mask))


def _coverage(mask: Truths, where: Layout) -> Tensor:
    """A mask's coverage of each patch (P,); equal for all patches if the mask lies in the margin outside them."""
    shares = coverage(mask, where).flatten()
    return shares if shares.any() else torch.ones_like(shares)


def _mean_token(scene: Scene, mask: Truths) -> Tensor:
    """Mean (1, D) of an image's tokens, weighted by how much the mask's box covers them; the mask is not empty."""
    y, x = np.nonzero(mask)
    box = np.zeros_like(mask)
    box[y.min() : y.max() + 1, x.min() : x.max() + 1] = True
    weights = _coverage(box, scene.layout)
    shares = weights / weights.sum()
    return (patch_tokens(scene.embedding)[:, : len(shares)] * shares[:, None]).sum(1)


def _center_map(size: tuple[int, int]) -> Array:
    """A map that falls from 1 in the middle of the image to 0 in its corners."""
    y, x = ((np.arange(length) + 0.5) / length * 2 - 1 for length in size)
    heat: Array = 1 - np.hypot(y[:, None], x) / np.sqrt(2)
    return heat


def _true_mask(
    data: DataFrame,
    row: int,
    picture: Image.Image,
    side: float,
) -> Truths:
    """The true mask: pixels that it covers by half, or if there are none, all that it touches.

    Args:
        side: longer side of the result, if the picture is larger.
    """
    scale = min(1.0, side / max(picture.size))
    height = max(1, round(picture.height * scale))
    width = max(1, round(picture.width * scale))
    cover = read_mask(data["mask"][row], (height, width), image=picture)
    if not cover.any():
        raise ValueError(f"{data['id'][row]}: its mask is empty")
    mask: Truths = (cover >= cover.max().clamp(max=0.5)).numpy()
    return mask
