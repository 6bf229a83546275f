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

from idmetric.adapters.references import References, grouped, joined, with_files
from idmetric.evaluate.statistics import ranking
from idmetric.metric.distance import check_name, needs_patches
from idmetric.metric.distance import distance as embedding_distance
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, check_distances
from idmetric.metric.files import MissingExtraError, install
from idmetric.metric.images import Outside, is_single, split_images
from idmetric.metric.masks import Images, Masks, split_masks
from idmetric.store import folder_name

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise MissingExtraError(
        f"this needs torchmetrics and no other package: pip install torchmetrics, or {install('eval')}"
    ) from error

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
    _in_forward = False  # `compute` is of one batch

    def __init__(self, metric: Embedder | str, **options: Any) -> None:
        super().__init__(**options)
        if isinstance(metric, str):
            from idmetric.metric.load import load

            metric = load(metric)
        self._shared = _Shared(metric)

    @property
    def metric(self) -> Embedder:
        """The model."""
        return self._shared.metric

    def forward(self, *args: Any, **options: Any) -> Any:
        """Add a batch and return its own value; an error, such as an unreadable image, leaves the earlier batches."""
        before = dict(vars(self))
        for name in self._types:
            state = before[name]
            before[name] = list(state) if isinstance(state, list) else state  # torchmetrics clears the list
        self._in_forward = True
        try:
            return super().forward(*args, **options)
        except BaseException:
            self.__dict__.update(before)
            raise
        finally:
            self._in_forward = False

    def _add(self, name: str, dtype: torch.dtype) -> None:
        self.add_state(name, default=[], dist_reduce_fx="cat")
        self._types = {**getattr(self, "_types", {}), name: dtype}

    def _joined(self, name: str) -> Tensor:
        state = getattr(self, name)  # a list, or a tensor once processes are joined
        if not len(state):
            return torch.empty(0, dtype=self._types[name], device=self.device)
        joined: Tensor = dim_zero_cat(state)
        return joined

    def _sync_dist(self, *args: Any, **options: Any) -> None:
        # torchmetrics would gather floats from a process without images and integers from the rest
        for name in self._types:
            setattr(self, name, [self._joined(name)])
        super()._sync_dist(*args, **options)

    def _apply(
        self,
        fn: Callable[[Tensor], Tensor],
        exclude_state: Sequence[str] = "",
    ) -> Self:
        before = self.device
        super()._apply(fn, exclude_state)
        if self.device != before:  # .to("cuda"), called here or on a larger module
            self.metric.to(self.device)
        return self


class IdentitySimilarity(_WithEmbedder):
    """Mean similarity (1 - distance) of images to their references; higher = more likely the same identities.

    Args:
        metric: a model, or any argument of `idmetric.load`.
        distance: see `idmetric.metric.distance`.
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
        if value not in ("similarity", "distance"):
            raise ValueError(f"value must be similarity or distance, got {value!r}")
        if aggregate not in ("best", "mean"):
            raise ValueError(f"aggregate must be best or mean, got {aggregate!r}")
        if reduction not in ("mean", "none"):
            raise ValueError(f"reduction must be mean or none, got {reduction!r}")
        super().__init__(metric, **options)
        self.distance = check_name(distance)
        self.value = value
        self.aggregate = aggregate
        self.reduction = reduction
        self.outside: Outside = outside
        self.batch_size = batch_size
        # All values are kept: each takes four bytes. The state's name depends on model and settings, because a
        # MetricCollection merges metrics that have equal states after the first batch.
        _, _, digest = folder_name(self.metric.about()).rpartition(".")
        self._values = f"values_{distance}_{value}_{aggregate}_{outside}_{digest}"
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
                (B, R, 3, H, W). An `Embedding` or its .idm file stands for a list.
            masks, target_masks: subject masks in the same arrangement.

        Raises:
            ImageReadError: if an image cannot be read.
            ValueError: if the number of references or masks does not match the images.
        """
        with torch.no_grad():
            images = self._embed(preds, masks)
            references, groups = self._references(target, target_masks, len(images))
            reduce = torch.min if self.aggregate == "best" else torch.mean
            reduced = []
            for image, rows in zip(images, groups, strict=True):
                distances = embedding_distance(image, references[rows], self.distance)
                reduced.append(reduce(distances))
            values = torch.stack(reduced)
            check_distances(values, self.metric.dtype)
            values = values.to(self.device, torch.float32)
        if self.value == "similarity":
            values = 1 - values
        getattr(self, self._values).append(values)

    def compute(self) -> Tensor:
        """The mean (a scalar), or all values (N,).

        Raises:
            ValueError: if there were no images.
        """
        values = self._joined(self._values)
        if not len(values):
            raise ValueError("IdentitySimilarity has seen no images: call update first")
        if self.reduction == "none":
            return values
        # in float64 on the CPU, because MPS has no float64
        mean = values.cpu().double().mean()
        return mean.to(values.device, torch.float32)

    def _embed(self, images: Images, masks: Masks) -> Embedding:
        return self.metric.embed(
            images,
            masks=masks,
            outside=self.outside,
            batch_size=self.batch_size,
            patches=needs_patches(self.distance),
        )

    def _references(
        self,
        target: References,
        masks: Any,
        count: int,
    ) -> tuple[Embedding, list[list[int]]]:
        """Return all references, and the rows among them that belong to each image."""
        target = with_files(target, self.metric, self.distance)
        if isinstance(target, str | os.PathLike):  # of a folder, one for each
            target = split_images(target)
        elif not is_single(target):
            target = list(target)  # type: ignore[arg-type]  # an iterable, then
        references, groups = grouped(target, count)
        if masks is None:
            patches = needs_patches(self.distance)
            return joined(references, lambda images: self._embed(images, None), patches), groups
        images = [reference for reference in references if not isinstance(reference, Embedding)]
        if len(images) < len(references):
            raise ValueError("masks were given with an Embedding: give them to embed instead")
        if not isinstance(target, list):
            return self._embed(images, masks), groups
        if all(map(is_single, target)):
            return self._embed(images, masks), groups

        # lists of references have lists of masks, or one folder has all masks
        lists = list(dict.fromkeys(map(tuple, groups)))
        masks_of_lists = masks
        if isinstance(masks, str | os.PathLike):
            masks_of_lists = [masks] * len(lists)
        all_masks: list[Any] = []
        for rows, masks_of_list in zip(lists, masks_of_lists, strict=True):
            all_masks += split_masks(masks_of_list, [images[row] for row in rows])
        return self._embed(images, all_masks), groups


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
        self._features = f"features_{outside}"
        self._add(self._features, torch.float32)
        self._add("identities", torch.int64)

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
        embedding = self.metric.embed(
            preds, masks=masks, outside=self.outside, batch_size=self.batch_size, patches=False
        )
        names = _numbers(target)
        if len(names) != len(embedding):
            raise ValueError(f"{len(embedding)} images and {len(names)} identities: give one for each")
        vectors = F.normalize(embedding.cls.detach().float(), dim=-1)
        vectors = vectors.flatten().to(self.device)
        getattr(self, self._features).append(vectors)
        self.identities.append(names.to(self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return `mAP` and `hit@k` as scalars.

        Raises:
            ValueError: if no two images show one identity. `forward` gives NaN for such a batch.
        """
        names = ["mAP", *(f"hit@{k}" for k in self.ks)]
        identities = self._joined("identities").cpu().numpy()
        vectors = self._joined(self._features).cpu().double().numpy()
        vectors = vectors.reshape(len(identities), -1)
        _, numbers, counts = np.unique(identities, return_inverse=True, return_counts=True)
        queries = np.flatnonzero(counts[numbers] > 1)
        if not len(queries) and self._in_forward:
            return {name: torch.tensor(torch.nan, device=self.device) for name in names}
        if not len(queries):
            raise ValueError("IdentityRetrieval needs two images of one identity or more: there is nothing to find")

        rows = []
        for start in range(0, len(queries), _BLOCK):
            block = queries[start : start + _BLOCK]
            similarities = vectors[block] @ vectors.T
            for query, similarity in zip(block, similarities, strict=True):
                scores = np.delete(similarity, query)
                relevant = np.delete(identities == identities[query], query)
                hits = [ranking.hit_at_k(scores, relevant, k) for k in self.ks]
                rows.append([ranking.average_precision(scores, relevant), *hits])
        means = torch.from_numpy(np.mean(rows, 0)).to(self.device, torch.float32)
        return dict(zip(names, means, strict=True))


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
