"""Settings of the recipe of `tiny`, and the model that it trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from photos import spread

from idmetric.metric.models.efficientnet_lite import timm_name
from idmetric.metric.models.idsim import IDSimConfig
from idmetric.metric.models.tiny import TinyConfig

# input sides are larger than in training, whose crops enlarge objects (Touvron et al. 2019, FixRes)
_RESNET = IDSimConfig(
    backbone="resnet18",
    image_size=176,
    hidden=256,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    backbone_args={"channels": (32, 64, 128, 256), "output_stride": 16},
)
_LITE = TinyConfig(
    image_size=224,
    hidden=256,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    features="final",
    patch_stages=(3, 4),
)

RENDERED, PHOTOS, LABELED = 0, 1, 2


@dataclass(frozen=True)
class Config:
    """Settings of the recipe.

    Args:
        photos: folders of photos, from which a part of the groups is cut. photo_size: side at which they are kept.
        photo_share: share of a step's groups that are cut from the photos, if there are photos.
        pasted: share of those that show a part of their photo, pasted onto other photos.
        labeled: folders with one subfolder of photos for each identity. labeled_share: their share of groups.
        recolored: share of the groups of both kinds of photos in which the twin is the identity in other colors.
        views: contexts of a group; identities with fewer views are left out. shown: of them, in a step.
        stored_size: side at which the groups' images are kept. cache: file for them; "" = in the run's folder.
        batch_size: groups per step.
        lr: peak learning rate, of AdamW with cosine decay; 2e-3 for a ResNet. weight_decay: of weight matrices.
        temperature, patch_temperature: of the two terms of ID-Sim Eq. 1, which patch_weight (lambda) weighs.
        patch_negatives: other identities per anchor in the patch term, in addition to the twin.
        mirrored: share of groups shown mirrored: identity, twin and all contexts alike.
        large_size: side in training; small_size: in its first part, small_part, which is cheaper so.
        backbone: EfficientNet-Lite0 starts from ImageNet weights, a ResNet-18 from new ones. channels: of the latter.
        frozen_stages: of EfficientNet-Lite's seven, from the input on, that keep their weights, which saves time.
        init: weights to start from instead: a name or the folder of an earlier run.
        blend: share of the trained weights in the result; the rest are the initial ones (WiSE-FT). patch_blend: the
            same for the head of the patch tokens.
        teachers: models, as names or folders, from which similarities are learned: of their embeddings side by side.
        teacher_sizes: side at which each of them sees the images, whole and unchanged. teacher_shares: how much each
            counts; default: all alike.
        ema: decay of the average of the weights along the run, which becomes the result; 0 = the last weights.
        early_rate: learning rate of an EfficientNet-Lite's stem and stages 0 to 3, as a share of the others'.
        gray: share of the images cut from photos, or of labeled photos, that the model sees without color; none of
            groups whose twin differs by color.
        image_size: side of the trained model's input; 0 = 224, or 176 for a ResNet.
    """

    photos: tuple[str, ...] = ()
    photo_size: int = 256
    photo_share: float = 0.17
    pasted: float = 0.5
    labeled: tuple[str, ...] = ()
    labeled_share: float = 0.33
    recolored: float = 0.5
    views: int = 3
    shown: int = 2
    stored_size: int = 160
    cache: str = ""
    steps: int = 1500
    batch_size: int = 24
    lr: float = 3e-4
    weight_decay: float = 0.05
    warmup: int = 100
    temperature: float = 0.07
    patch_weight: float = 1.0
    patch_temperature: float = 0.05
    patch_negatives: int = 2
    mirrored: float = 0.5
    large_size: int = 128
    small_size: int = 96
    small_part: float = 0.7
    backbone: Literal["efficientnet-lite0", "efficientnet-lite2", "resnet18"] = "efficientnet-lite0"
    channels: tuple[int, int, int, int] = (32, 64, 128, 256)
    frozen_stages: int = 0
    init: str = ""
    blend: float = 1.0
    patch_blend: float | None = None
    teachers: tuple[str, ...] = ()
    teacher_weight: float = 6.0
    teacher_temperature: float = 0.1
    teacher_sizes: tuple[int, ...] = ()
    teacher_shares: tuple[float, ...] = ()
    ema: float = 0.0
    early_rate: float = 1.0
    gray: float = 0.0
    image_size: int = 0
    seed: int = 0

    @property
    def model(self) -> IDSimConfig:
        """The model that is trained."""
        if self.backbone == "resnet18":
            made: IDSimConfig = replace(_RESNET, backbone_args={**_RESNET.backbone_args, "channels": self.channels})
        else:
            made = replace(_LITE, backbone=timm_name(self.backbone))
        return replace(made, image_size=self.image_size or made.image_size)


def sources(config: Config) -> NDArray[np.int64]:
    """Where each of a step's groups comes from, (batch_size,), evenly spread: all processes get about as many."""
    kinds = np.full(config.batch_size, RENDERED)
    photos = config.photo_share if config.photos else 0.0
    kinds[spread(config.batch_size, photos)] = PHOTOS
    if config.labeled and photos < 1:
        free = np.flatnonzero(kinds == RENDERED)
        kinds[free[spread(len(free), min(1.0, config.labeled_share / (1 - photos)))]] = LABELED
    return kinds
