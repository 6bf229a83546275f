"""torchmetrics `Metric`s: similarity of generated images to their references, and retrieval of identities.

    similarity = IdentitySimilarity(IDSim())
    for images, references in loader:
        similarity.update(images, references)
    similarity.compute()  # over all processes

torchmetrics detaches the states and reduces them over processes. The model is frozen: `.to(device)` moves it, but
`state_dict` leaves it out and `clone` does not copy it, so one model serves a whole MetricCollection.
"""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.adapters.rewards import References, grouped
from idmetric.evaluate.statistics import ranking
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import check_distances
from idmetric.metric.distance.matrix import check_name, needs_patches
from idmetric.metric.distance.matrix import distance as embedding_distance
from idmetric.metric.files.hints import install
from idmetric.metric.images.masks import Images, Masks, split_masks
from idmetric.metric.images.read import Outside, is_single, split_images
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.scoring.keys import folder_name

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise ImportError(f"this needs torchmetrics: {install('eval')}") from error

Aggregate = Literal["best", "mean"]
_BLOCK = 256  # queries that are compared with all images at once


class _Shared:
    """Hold a model without registering it as a submodule or copying it."""

    def __init__(self, metric: Embedder) -> None:
        self.metric = metric

    def __deepcopy__(self, memo: Any) -> _Shared:
        return self


class _WithEmbedder(Metric):  # type: ignore[misc]  # torchmetrics has no types here
    """Base of both metrics: holds a model next to the states."""

    is_differentiable = False
    full_state_update = False
    _types: dict[str, torch.dtype]  # states are lists of flat tensors: all processes then have equally many axes

    def __init__(self, metric: Embedder | str, **options: Any) -> None:
        super().__init__(**options)
        if isinstance(metric, str):
            from idmetric.metric.models.load import load

            metric = load(metric)
        self._shared = _Shared(metric)

    @property
    def metric(self) -> Embedder:
        """The model."""
        return self._shared.metric

    def _add(self, name: str, dtype: torch.dtype) -> None:
        self.add_state(name, default=[], dist_reduce_fx="cat")
        self._types = {**getattr(self, "_types", {}), name: dtype}

    def _joined(self, name: str) -> Tensor:
        held = getattr(self, name)  # a list, or a tensor once processes are joined
        found: Tensor = dim_zero_cat(held) if len(held) else torch.empty(0, dtype=self._types[name], device=self.device)
        return found

    def _sync_dist(self, *args: Any, **options: Any) -> None:
        # torchmetrics would gather floats from a process without images and integers from the rest
        for name in self._types:
            setattr(self, name, [self._joined(name)])
        super()._sync_dist(*args, **options)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        before = self.device
        found: Self = super()._apply(fn, exclude_state)
        if self.device != before:  # .to("cuda"), called here or on a larger module
            self.metric.to(self.device)
        return found


class IdentitySimilarity(_WithEmbedder):
    """Mean similarity (1 - distance) of images to their references; higher = more likely the same identities.

    Args:
        metric: a model, or any argument of `idmetric.load`.
        distance: see `idmetric.metric.distance.matrix`.
        value: "similarity", or "distance" (then lower is better).
        aggregate: with several references per image, take the nearest ("best") or the mean over all ("mean").
        reduction: "mean" over images, or "none": all values (N,), in the order of updates and processes.
        outside: how pixels outside masks are filled, see `Embedder.embed`.
        batch_size: images per pass.
        options: options of torchmetrics, such as `sync_on_compute`, `dist_sync_fn`, `process_group`.

    Raises:
        ValueError: if `distance`, `value`, `aggregate` or `reduction` is unknown.
    """

    def __init__(
        self,
        metric: Embedder | str = "dinov3_vitl16",
        distance: str = "cls",
        *,
        value: Literal["similarity", "distance"] = "similarity",
        aggregate: Aggregate = "best",
        reduction: Literal["mean", "none"] = "mean",
        outside: Outside = "black",
        batch_size: int = 32,
        **options: Any,
    ) -> None:
        for name, given, allowed in (
            ("value", value, ("similarity", "distance")),
            ("aggregate", aggregate, ("best", "mean")),
            ("reduction", reduction, ("mean", "none")),
        ):
            if given not in allowed:
                raise ValueError(f"{name} must be {' or '.join(allowed)}, got {given!r}")
        super().__init__(metric, **options)
        self.distance, self.value, self.aggregate, self.reduction = check_name(distance), value, aggregate, reduction
        self.outside: Outside = outside
        self.batch_size = batch_size
        # All values are kept: each takes four bytes. The state's name depends on model and settings, because a
        # MetricCollection merges metrics that have equal states after the first batch.
        self._values = f"values_{self.distance}_{value}_{aggregate}_{outside}_{_mark(self.metric)}"
        self._add(self._values, torch.float32)

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value is better."""
        return self.value == "similarity"

    def update(
        self,
        preds: Images,
        target: References,
        *,
        masks: Masks = None,
        target_masks: Masks | Sequence[Masks] = None,
    ) -> None:
        """Add images.

        Args:
            preds: images of any kind (see `idmetric.metric.images`); tensors (B, 3, H, W) in [0, 1] or uint8.
            target: one reference for each image or one for all; or several for each, as a list of lists or a tensor
                (B, R, 3, H, W).
            masks, target_masks: subject masks in the same arrangement.

        Raises:
            ImageReadError: if an image cannot be read.
            ValueError: if the number of references or masks does not match the images.
        """
        patches = needs_patches(self.distance)
        with torch.no_grad():
            images = self._embed(preds, masks, patches)
            references, groups = self._references(target, target_masks, len(images), patches)
            values = torch.stack([self._of(images[k], references[rows]) for k, rows in enumerate(groups)])
            check_distances(values, self.metric.dtype)
            found = values.to(self.device, torch.float32)
        getattr(self, self._values).append(1 - found if self.value == "similarity" else found)

    def compute(self) -> Tensor:
        """The mean (a scalar), or all values (N,).

        Raises:
            ValueError: if there were no images.
        """
        found = self._joined(self._values)
        if not len(found):
            raise ValueError("IdentitySimilarity has seen no images: call update first")
        if self.reduction == "none":
            return found
        # in float64 on the CPU, because MPS has no float64
        return found.cpu().double().mean().to(found.device, torch.float32)

    def _embed(self, images: Images, masks: Masks, patches: bool) -> Embedding:
        return self.metric.embed(images, masks=masks, outside=self.outside, batch_size=self.batch_size, patches=patches)

    def _of(self, image: Embedding, references: Embedding) -> Tensor:
        distances = embedding_distance(image, references, self.distance)
        return distances.min() if self.aggregate == "best" else distances.mean()

    def _references(
        self, target: References, masks: Any, count: int, patches: bool
    ) -> tuple[Embedding, list[list[int]]]:
        """Return all references, and the rows among them that belong to each image."""
        if isinstance(target, str | os.PathLike):  # of a folder, one for each
            target = split_images(target)
        elif not is_single(target):
            target = list(target)  # type: ignore[arg-type]  # an iterable, then
        images, groups = grouped(target, count)
        if masks is not None and isinstance(target, list) and any(not is_single(x) for x in target):
            own = dict.fromkeys(map(tuple, groups))
            each = [masks] * len(own) if isinstance(masks, str | os.PathLike) else masks  # a folder has all
            masks = [c for m, rows in zip(each, own, strict=True) for c in split_masks(m, [images[k] for k in rows])]
        return self._embed(images, masks, patches), groups


class IdentityRetrieval(_WithEmbedder):
    """Retrieval of images of the same identity: every image queries all other images by `cls` similarity.

    `compute` returns a dict: `mAP` (see `evaluate.ranking.average_precision`), and for each k `hit@k`, the share of
    queries with an image of their identity among the k nearest ("Recall@k" in retrieval). An image that shares its
    identity with no other image is a distractor: queries may find it, but it is not a query.

    Args:
        metric: a model, or any argument of `idmetric.load`.
        ks: depths of `hit@k`.
        outside, batch_size, options: as for `IdentitySimilarity`.
    """

    higher_is_better = True

    def __init__(
        self,
        metric: Embedder | str = "dinov3_vitl16",
        *,
        ks: Sequence[int] = (1, 5),
        outside: Outside = "black",
        batch_size: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(metric, **options)
        if not ks or min(ks) < 1:
            raise ValueError(f"ks must be depths of at least 1, got {ks}")
        self.ks, self.batch_size = tuple(ks), batch_size
        self.outside: Outside = outside
        self._features, self._identities = f"features_{outside}", "identities"
        self._add(self._features, torch.float32)
        self._add(self._identities, torch.int64)

    def update(
        self,
        preds: Images,
        target: Tensor | Sequence[int | str],
        *,
        masks: Masks = None,
    ) -> None:
        """Add images and their identities.

        Args:
            preds, masks: as for `IdentitySimilarity.update`.
            target: the identity of each image, as integers or names.

        Raises:
            ImageReadError: if an image cannot be read.
            ValueError: if the number of identities does not match the images, or a tensor of identities is not (N,)
                integers.
        """
        found = self.metric.embed(
            preds, masks=masks, outside=self.outside, batch_size=self.batch_size, patches=False
        ).cls.detach()
        names = _numbers(target)
        if len(names) != len(found):
            raise ValueError(f"{len(found)} images and {len(names)} identities: give one for each")
        getattr(self, self._features).append(F.normalize(found.float(), dim=-1).flatten().to(self.device))
        getattr(self, self._identities).append(names.to(self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return `mAP` and `hit@k` as scalars.

        Raises:
            ValueError: if no two images show one identity.
        """
        identities = self._joined(self._identities).cpu().numpy()
        vectors = self._joined(self._features).cpu().double().numpy().reshape(len(identities), -1)
        _, numbers, counts = np.unique(identities, return_inverse=True, return_counts=True)
        queries = np.flatnonzero(counts[numbers] > 1)
        if not len(queries):
            raise ValueError("IdentityRetrieval needs two images of one identity or more: there is nothing to find")

        rows = []
        for start in range(0, len(queries), _BLOCK):
            block = queries[start : start + _BLOCK]
            similarities = vectors[block] @ vectors.T
            for query, scores in zip(block, similarities, strict=True):
                others = np.delete(scores, query)
                relevant = np.delete(identities == identities[query], query)
                hits = [ranking.hit_at_k(others, relevant, k) for k in self.ks]
                rows.append([ranking.average_precision(others, relevant), *hits])
        means = torch.tensor(np.mean(rows, 0), dtype=torch.float32, device=self.device)
        return dict(zip(["mAP", *(f"hit@{k}" for k in self.ks)], means, strict=True))


def _mark(metric: Embedder) -> str:
    """Return a hash of the model that is the same in every process."""
    return folder_name(metric.about()).rpartition(".")[2]


def _numbers(target: Tensor | Sequence[int | str]) -> Tensor:
    """Return identities as int64; names become hashes that are the same in every process."""
    if isinstance(target, Tensor):
        if target.is_floating_point() or target.ndim != 1:
            raise ValueError(f"identities must be integers (N,), got {tuple(target.shape)} {target.dtype}")
        return target.detach().long()
    return torch.tensor([_number(x) for x in target], dtype=torch.int64)


def _number(identity: Any) -> int:
    if isinstance(identity, str):
        return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big", signed=True)
    try:
        return int(np.int64(operator.index(identity)))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"identities are names or whole numbers of 64 bits, got {identity!r}") from error
