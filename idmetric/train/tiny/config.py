"""Settings of the recipe tiny, and the model that it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.checkpoints.config import check_mirror_sizes
from idmetric.io.settings import shown
from idmetric.models.efficientnet_lite import timm_name
from idmetric.train.options import Precision, option

if TYPE_CHECKING:
    from idmetric.models.idsim import IDSimConfig

RESNET_18 = (2, 2, 2, 2)


@dataclass(frozen=True)
class Config:
    """Settings of the recipe."""

    photos: tuple[str, ...] = option((), "folders of photos, or photos, from which further groups are cut")
    cache: str = option(
        "", "file of all groups' images, and of photos next to it, made if not there; default: in --out"
    )
    photo_share: float = option(0.25, "share of a step's groups that are cut from the photos, if there are photos")
    pasted: float = option(0.5, "share of those that show a part of their photo, pasted onto other photos")
    labelled: tuple[str, ...] = option((), "folders with one subfolder of photos for each identity, for further groups")
    labelled_share: float = option(0.25, "share of a step's groups that show labelled photos, if there are any")
    recolored: float = option(
        0.5, "share of the groups from photos and labelled photos in which the twin is the identity in other colors"
    )
    photo_size: int = option(256, "side in pixels at which photos are kept")
    views: int = option(3, "contexts of a group; identities with fewer views are left out")
    shown: int = option(2, "of them, in a step")
    stored_size: int = option(144, "side in pixels at which images are kept")
    steps: int = option(1500, "optimiser steps")
    batch_size: int = option(32, "groups per step")
    lr: float = option(3e-4, "peak learning rate, of AdamW with cosine decay; 2e-3 for a ResNet")
    weight_decay: float = option(0.05, "of weight matrices")
    warmup: int = option(100, "steps of linear warm-up")
    max_grad_norm: float = option(1.0, "largest norm of the gradient")
    temperature: float = option(0.07, "of the global term")
    patch_weight: float = option(1.0, "lambda of ID-Sim Eq. 1; the paper weighs the terms 1:1")
    patch_temperature: float = option(0.05, "of the patch term")
    patch_negatives: int = option(2, "other identities per anchor in the patch term, in addition to the twin")
    mirrored: float = option(0.5, "share of groups shown mirrored: identity, twin and all contexts alike")
    large_size: int = option(128, "pixels in training")
    small_size: int = option(96, "pixels in its first part, which is cheaper so")
    small_part: float = option(0.7, "that part of the steps")
    backbone: Literal["efficientnet-lite0", "efficientnet-lite2", "resnet18"] = option(
        "efficientnet-lite0", "EfficientNet-Lite starts from ImageNet weights, a ResNet-18 from new ones"
    )
    frozen_stages: int = option(
        0, "of EfficientNet-Lite's seven, from the input on, that keep their weights, which saves time"
    )
    init: str = option("", "weights to start from instead: tiny, or the folder of an earlier run")
    blend: float = option(1.0, "share of the trained weights in the result; the rest are the initial ones (WiSE-FT)")
    patch_blend: float | None = option(None, "the same for the head of the patch tokens; default: --blend")
    teachers: tuple[str, ...] = option(
        (), "models, as names or folders, from which similarities are learned: of their embeddings side by side"
    )
    teacher_weight: float = option(6.0, "weight of that term")
    teacher_temperature: float = option(0.1, "of that term")
    teacher_sizes: tuple[int, ...] = option(
        (224,), "pixels at which teachers see the images, whole and unchanged: one for all or one for each"
    )
    teacher_shares: tuple[float, ...] = option((), "of each teacher in the mean of their cosines; default: equal ones")
    channels: tuple[int, int, int, int] = option((32, 64, 128, 256), "widths of the ResNet-18's four stages")
    layers: tuple[int, int, int, int] = option(RESNET_18, "blocks of its stages; --init may have fewer")
    image_size: int = option(0, "side of the trained model's input; 0 = 224, or 176 for a ResNet")
    mirror_sizes: tuple[int, ...] = option((), "sides at which it additionally sees the mirrored image")
    seed: int = option(0, "all random numbers follow from it")
    precision: Precision = option("bf16", "mixed precision")
    save_every: int = option(100, "steps between checkpoints")
    validate_every: int = option(500, "steps between validations, on rows of split val")
    log_every: int = option(50, "steps between lines of the log")

    def __post_init__(self) -> None:
        if not 2 <= self.shown <= self.views:
            raise ValueError(f"shown = {self.shown}: a step shows at least 2 of the {self.views} views")
        for name in ("mirrored", "photo_share", "pasted", "labelled_share", "recolored", "blend", "patch_blend"):
            if (given := getattr(self, name)) is not None and not 0 <= given <= 1:
                raise ValueError(f"{name} = {given}: a share from 0 to 1 is possible")
        check_mirror_sizes(self.mirror_sizes)
        if self.frozen_stages and (self.backbone == "resnet18" or not 0 <= self.frozen_stages <= 7):
            raise ValueError(f"frozen_stages = {self.frozen_stages}: 0 to 7, of an EfficientNet-Lite")
        self._check_teachers()
        if min(self.layers) < 1:
            raise ValueError(f"layers = {self.layers}: each stage has a block or more")
        if self.patch_negatives >= self.batch_size:
            raise ValueError(
                f"patch_negatives = {self.patch_negatives} others are not in a batch of {self.batch_size} groups"
            )
        if self.photo_size < 1:
            raise ValueError(f"photo_size = {self.photo_size}: photos are kept at 1 pixel or more")
        kinds = sources(self)
        if not (kinds == RENDERED).any():
            raise ValueError("photo_share and labelled_share leave no group of a batch to rendered identities")
        for name, given, kind in (("photo", self.photos, PHOTOS), ("labelled", self.labelled, LABELLED)):
            part = getattr(self, f"{name}_share")
            if given and part and not (kinds == kind).any():
                raise ValueError(f"{name}_share = {part} of a batch of {self.batch_size} holds no group")

    def _check_teachers(self) -> None:
        count = len(self.teachers)
        if self.teacher_weight < 0 or self.teacher_temperature <= 0:
            given = f"teacher_weight = {self.teacher_weight}, teacher_temperature = {self.teacher_temperature}"
            raise ValueError(f"{given}: a weight of 0 or more and a temperature above 0 are possible")
        if len(self.teacher_sizes) not in (1, count) or not all(size >= 1 for size in self.teacher_sizes):
            given = f"teacher_sizes = {shown(self.teacher_sizes)}"
            raise ValueError(f"{given} for {count} teachers: one for all or one for each, of 1 pixel or more")
        if len(self.teacher_shares) not in (0, count) or not all(0 < share < inf for share in self.teacher_shares):
            given = f"teacher_shares = {shown(self.teacher_shares)}"
            raise ValueError(f"{given} for {count} teachers: one for each, above 0 and finite")

    @property
    def model(self) -> IDSimConfig:
        """The model that is trained."""
        from idmetric.models.idsim import IDSimConfig

        # input sides are larger than in training, whose crops enlarge objects (Touvron et al. 2019, FixRes)
        shared: dict[str, Any] = {"hidden": 256, "mean": (0.5, 0.5, 0.5), "mirror_sizes": self.mirror_sizes}
        if self.backbone == "resnet18":
            args: dict[str, Any] = {"channels": self.channels, "output_stride": 16}
            if self.layers != RESNET_18:  # models and runs from before there was this setting keep their hash
                args["layers"] = self.layers
            return IDSimConfig("resnet18", self.image_size or 176, std=(0.25, 0.25, 0.25), backbone_args=args, **shared)
        return IDSimConfig(
            timm_name(self.backbone), self.image_size or 224, std=(0.5, 0.5, 0.5), features="final",
            patch_stages=(3, 4), **shared,
        )  # fmt: skip


SMOKE: Mapping[str, Any] = {
    "backbone": "resnet18", "lr": 2e-3, "steps": 8, "batch_size": 4, "warmup": 2, "stored_size": 48, "image_size": 48,
    "mirror_sizes": (32,),
    "large_size": 48, "small_size": 32, "channels": (8, 8, 16, 16), "log_every": 2, "validate_every": 4,
}  # fmt: skip


RENDERED, PHOTOS, LABELLED = 0, 1, 2


def spread(count: int, part: float) -> NDArray[np.bool_]:
    """Mark this part of the places 0..count - 1, rounded half up, evenly."""
    return np.asarray(np.diff(np.floor(np.arange(count + 1) * part + 0.5 + 1e-9)) > 0)


def sources(config: Config) -> NDArray[np.int64]:
    """Where each of a step's groups comes from, (batch_size,), evenly spread: all processes get about as many."""
    kinds = np.full(config.batch_size, RENDERED)
    photos = config.photo_share if config.photos else 0.0
    kinds[spread(config.batch_size, photos)] = PHOTOS
    if config.labelled and photos < 1:
        free = np.flatnonzero(kinds == RENDERED)
        kinds[free[spread(len(free), min(1.0, config.labelled_share / (1 - photos)))]] = LABELLED
    return kinds
