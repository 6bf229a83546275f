"""A reward for reinforcement learning of image generators: the references' subject, but not a copy of a reference.

    score = reward(IDSim())
    score(images, [["ref_1.jpg", "ref_2.jpg"]])  # [0.78, 0.04, ...]

The wrappers that trainers expect are on the page docs/use/reward.md.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from idmetric.adapters.references import References, grouped, joined, with_files
from idmetric.matching import Match, match
from idmetric.matching.assignment import UNASSIGNED
from idmetric.matching.regions import Regions, cut
from idmetric.matching.result import over_references
from idmetric.metric.distance import check_name, needs_patches
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, concatenate, saved_embedding
from idmetric.metric.errors import RequestError
from idmetric.metric.files import read_bytes
from idmetric.metric.images import (
    ImageLike,
    is_array,
    is_image_like,
    is_single,
    read_image,
    small_picture,
    split_images,
)
from idmetric.metric.masks import Images
from idmetric.scoring.calibration import Calibration, calibration_of
from idmetric.scoring.copies import Print, compare, take_print
from idmetric.scoring.references import Aggregate

Reward = Callable[[Images, References], list[float]]
SubjectsReward = Callable[[Images, Mapping[str, Images | Embedding], Regions], list[float]]

_NO_PICTURES = "an Embedding has no pictures in which copies are found: give photos, or copy_penalty=0"
_NO_VALUE = 1e6  # cost of a cell without a value in an assignment; it outweighs all of the rest
_REMEMBERED = 256  # most references in memory: a vector or patches, and a print of 0.8 MB


def reward(
    metric: Embedder,
    *,
    distance: str = "cls",
    aggregate: Literal["best", "mean"] = "best",
    calibration: str | os.PathLike[str] | Calibration | None = None,
    copy_penalty: float = 1.0,
    batch_size: int = 32,
) -> Reward:
    """Return a function (images, references) -> rewards in [0, 1], higher = more surely the same identity.

    The function takes images of any kind and of different sizes: tensors or arrays (N, 3, H, W), lists of them, PIL
    images, files; several references as a list for each image, a list of one list for all images, or a tensor
    (N, R, 3, H, W); an `Embedding` or its .idm file stands for a list. It works in batches and without gradients, and
    raises `ImageReadError` for images that cannot be read, `ValueError` if the numbers of images and references do not
    fit, or a flat list of several references leaves open which image they belong to. References of the last calls are
    embedded once.

    Args:
        metric: the model.
        distance: see `idmetric.metric.distance`.
        aggregate: over an image's references, the highest reward ("best") or the mean.
        calibration: the reward is the probability of one identity by this calibration: a file, a `Calibration`, or
            "stored" for the one saved with the model. None: 1 - distance, at least 0.
        copy_penalty: the share of its reward that an image loses if it repeats the pixels of any of its references, as
            `idmetric.scoring.copies` finds it. 0 does not look for copies, which then earn the most; references that
            are an `Embedding` need it.
        batch_size: images per pass.

    Raises:
        ValueError: if `distance`, `aggregate` or `copy_penalty` is unknown or out of range.
        CalibrationError: if the calibration was made for another model or distance, or for subjects cut by masks.
    """
    check_name(distance)
    if aggregate not in ("best", "mean"):
        raise ValueError(f"aggregate must be 'best' or 'mean', got {aggregate!r}")
    if not 0 <= copy_penalty <= 1:
        raise ValueError(f"copy_penalty must be from 0 to 1, got {copy_penalty}")
    curve = None if calibration is None else calibration_of(metric, calibration, distance)
    patches = needs_patches(distance)
    memory = _ReferenceMemory(metric, batch_size, patches)
    reduce = np.max if aggregate == "best" else np.mean

    @torch.no_grad()
    def score(images: Images, references: References) -> list[float]:
        # a column of a table and an array of paths are lists as well
        if not is_image_like(references) and not isinstance(references, Embedding):
            references = list(references)  # type: ignore[arg-type]  # an iterable, then
        references = with_files(references, metric, distance)
        _refuse_flat_list(references)
        pictures = [_opened(metric, image) for image in split_images(images)]
        singles, groups = grouped(references, len(pictures))
        embedded = metric.embed(pictures, batch_size=batch_size, patches=patches)
        photos = [reference for reference in singles if not isinstance(reference, Embedding)]
        if copy_penalty and len(photos) < len(singles):
            raise RequestError(_NO_PICTURES)
        photo_embedding, reference_prints = memory.get(photos, embedded)
        embedded_references = joined(singles, lambda _: photo_embedding, patches)

        # the distance of each image from each of its references
        counts = [len(group) for group in groups]
        image_rows = np.repeat(np.arange(len(pictures)), counts)
        reference_rows = list(chain.from_iterable(groups))
        distances = metric(embedded[image_rows.tolist()], embedded_references[reference_rows], distance)
        far = distances.double().cpu().numpy()
        values = np.clip(1 - far, 0, 1) if curve is None else curve.probability(far)

        rewards = []
        for row, (picture, group) in enumerate(zip(pictures, groups, strict=True)):
            value = float(reduce(values[image_rows == row]))
            if copy_penalty:
                picture_print = _print(metric, picture)
                if any(compare(reference_prints[reference], picture_print).found for reference in group):
                    value *= 1 - copy_penalty
            rewards.append(value)
        return rewards

    return score


def reward_of_subjects(
    metric: Embedder,
    *,
    over: Literal["worst", "mean"] = "worst",
    distance: str = "cls",
    aggregate: Literal["best", "mean"] = "best",
    copy_penalty: float = 1.0,
    batch_size: int = 32,
) -> SubjectsReward:
    """Return a function (images, subjects, regions) -> rewards of images that should show several subjects.

    The function takes images as `reward` does, references of each subject by its name, and regions in any form of
    `idmetric.match`. Each subject is assigned to at most one region. References are embedded in each call, unless
    they are an `Embedding` or its .idm file. `assigned_similarities` has the same with gradients.

    Args:
        metric: the model.
        over: over subjects, the "worst" similarity or the "mean", in [0, 1]; 0 for a subject without a region.
        distance, aggregate, batch_size: see `reward`.
        copy_penalty: the share of its similarity that a subject loses if its region repeats the pixels of one of its
            references; 0 for references that are an `Embedding`.

    Raises:
        ValueError: if `over`, `distance` or `copy_penalty` is unknown or out of range.
        ImportError: without SciPy, which the extra `eval` brings.
    """
    check_name(distance)
    if over not in ("worst", "mean"):
        raise ValueError(f"over must be 'worst' or 'mean', got {over!r}")
    if not 0 <= copy_penalty <= 1:
        raise ValueError(f"copy_penalty must be from 0 to 1, got {copy_penalty}")

    @torch.no_grad()
    def score(images: Images, subjects: Mapping[str, Images | Embedding], regions: Regions) -> list[float]:
        embeddings: dict[str, Embedding] = {}
        prints: list[list[Print]] = []
        for name, source in subjects.items():
            embedding = saved_embedding(source)
            if embedding is not None and copy_penalty:
                raise RequestError(f"the subject {name}: {_NO_PICTURES}")
            photos: list[ImageLike] = []
            if embedding is None:
                photos = [metric.read_image(image) for image in split_images(source)]  # type: ignore[arg-type]  # no Embedding
                embedding = metric.embed(photos, batch_size=batch_size, patches=needs_patches(distance))
            embeddings[name] = embedding
            prints.append([_print(metric, photo) for photo in photos] if copy_penalty else [])
        found = match(
            metric,
            embeddings,
            images,
            regions=regions,
            distance=distance,
            aggregate=aggregate,
            batch_size=batch_size,
        )
        kept = torch.ones(found.distances.shape[:2])  # the share of its similarity that a subject keeps
        if copy_penalty:
            pictures = [metric.read_image(image) for image in split_images(images)]
            for time, number in _copied(found, prints, pictures):
                kept[time, number] = 1 - copy_penalty
        similarities = assigned_similarities(found.distances, aggregate).cpu().clamp(0, 1) * kept
        return (similarities.amin(1) if over == "worst" else similarities.mean(1)).tolist()

    return score


def assigned_similarities(distances: Tensor, aggregate: Aggregate = "best") -> Tensor:
    """The similarity 1 - distance (T, S) of each subject to its region; 0 for a subject without one.

    Regions are assigned so that the sum of similarities is largest. The distances of `match` (T, S, K, R) have
    gradients if its pixels had them; the assignment is a constant of the gradient.
    """
    rows = []
    for similarity in 1 - over_references(distances, aggregate):
        cells = _assigned_cells(similarity.detach().cpu().double().numpy())
        is_assigned = torch.from_numpy(cells).to(similarity.device)
        assigned = torch.where(is_assigned, similarity, torch.zeros_like(similarity))
        rows.append(assigned.sum(1))
    return torch.stack(rows)


def _assigned_cells(similarity: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The cells (S, R) of the assignment with as many values, and then as large a sum of them, as possible."""
    from scipy.optimize import linear_sum_assignment

    has_value = ~np.isnan(similarity)
    cost = np.where(has_value, -similarity, _NO_VALUE)
    is_assigned = np.zeros(similarity.shape, dtype=bool)
    is_assigned[linear_sum_assignment(cost)] = True
    return is_assigned & has_value


def _copied(
    found: Match, prints: Sequence[Sequence[Print]], pictures: Sequence[Image.Image]
) -> Iterator[tuple[int, int]]:
    """Yield image and subject of each region that repeats the pixels of a reference of its subject."""
    for time, (picture, assignment) in enumerate(zip(pictures, found.assignments, strict=True)):
        for number, region in enumerate(assignment.region.tolist()):
            if region == UNASSIGNED:
                continue
            piece = cut(picture, found.images[time].regions[region], found.images[time].moment.name).pixels
            piece_print = take_print(small_picture(read_image(piece)))
            if any(compare(reference, piece_print).found for reference in prints[number]):
                yield time, number


class _ReferenceMemory:
    """Embeddings and prints of the latest references: training asks for the same ones again and again."""

    def __init__(self, metric: Embedder, batch_size: int, patches: bool) -> None:
        self.metric = metric
        self.batch_size = batch_size
        self.patches = patches
        self._entries: OrderedDict[Hashable, tuple[Embedding, Print]] = OrderedDict()

    def get(
        self,
        references: list[ImageLike],
        partner: Embedding,
    ) -> tuple[Embedding, list[Print]]:
        """Return the embeddings and prints of references, of which only new photos are embedded.

        Args:
            partner: an embedding by the metric as it is now. Embeddings of other weights, on another device or of
                another type are not returned.
        """
        origin = partner.model, partner.cls.device, partner.cls.dtype
        keys: list[Hashable] = []
        fresh: dict[Hashable, ImageLike] = {}
        for reference in references:
            picture = reference
            if not isinstance(picture, str | os.PathLike):  # a file is read only if it is new
                picture = _opened(self.metric, picture)
            key: Hashable = (origin, _content(picture))
            keys.append(key)
            if key not in self._entries:
                fresh[key] = picture

        if fresh:
            pictures = [_opened(self.metric, picture) for picture in fresh.values()]
            embedded = self.metric.embed(pictures, batch_size=self.batch_size, patches=self.patches)
            for row, (fresh_key, picture) in enumerate(zip(fresh, pictures, strict=True)):
                picture_print = _print(self.metric, picture)
                self._entries[fresh_key] = embedded[[row]], picture_print

        embeddings, prints = [partner[:0]], []
        for key in keys:
            embedding, reference_print = self._entries[key]
            embeddings.append(embedding)
            prints.append(reference_print)
            self._entries.move_to_end(key)
        while len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)
        return concatenate(embeddings), prints


def _content(image: ImageLike) -> Hashable:
    """What distinguishes an image from all others: a file's content, which may change under one name."""
    if isinstance(image, str | os.PathLike):
        if not os.path.isfile(image):  # which has an error of its own when it is read
            return os.path.abspath(image)
        return hashlib.blake2b(read_bytes(image), digest_size=16).digest()
    values = np.asarray(image.detach().float().cpu() if isinstance(image, Tensor) else image)
    digest = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
    return type(image), values.shape, str(getattr(image, "dtype", "")), digest


def _opened(metric: Embedder, image: ImageLike) -> ImageLike:
    """The image, read if it is not an array."""
    return image if is_array(image) else metric.read_image(image)


def _print(metric: Embedder, image: ImageLike) -> Print:
    return take_print(small_picture(metric.read_image(image)))


def _refuse_flat_list(references: References) -> None:
    """Raise a ValueError for several references that may be all for each image, or one for each."""
    is_flat, count = False, 0
    if isinstance(references, list | tuple):
        is_flat, count = all(map(is_single, references)), len(references)
    elif is_array(references):
        is_flat, count = references.ndim == 4, len(references)
    if is_flat and count > 1:
        raise ValueError(
            f"{count} references in a flat list: give [[a, b]] if all show the subject of every image, or "
            "[[a], [b]] for one each (of a tensor x, x[None] or x[:, None])"
        )
