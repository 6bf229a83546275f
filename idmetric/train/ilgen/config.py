"""Settings of ILGen's recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from idmetric.evaluate.settings import option
from idmetric.train.options import RANDOM, WEIGHTS_HELP

# Defaults that differ between the losses (section 4.1 and supplement B). The paper does not say how long contrastive
# and softmax-margin train; like recall@k they train the whole encoder for one pass.
_LARGE = {"lr": 1e-5, "epochs": 1, "save_every": 10, "validate_every": 25, "log_every": 1}  # batches
_SMALL = {"save_every": 1000, "validate_every": 2500, "log_every": 10}
PAPER: Mapping[str, Mapping[str, Any]] = {
    "recall@k": _LARGE,
    "infonce": _LARGE,
    "contrastive": {"lr": 1e-7, "epochs": 1, "batch_size": 8, **_SMALL},
    "softmax-margin": {"lr": 1e-6, "epochs": 3, "batch_size": 16, **_SMALL},
}
CLASS_BATCHES = ("recall@k", "infonce")  # losses on batches of whole classes


@dataclass(frozen=True)
class ILGenTraining:
    """The paper's settings; the text marks settings that it does not state. None stands for the value in `PAPER`."""

    backbone: str = option(
        "vit_large_patch16_siglip_384.webli",
        "encoder: timm's name, or what idmetric.load opens as a Backbone, IDSim or NearID, such as tiny (section 4.1)",
    )
    train: Literal["all", "heads"] = option(
        "all", "the whole encoder (section 4.1), or the heads of an IDSim alone, for few photos"
    )
    backbone_weights: str = option("", WEIGHTS_HELP)
    image_size: int | None = option(None, "side of the encoder's input; none = its own (section 4.1)")
    pool: Literal["auto", "cls", "avg", "head"] = option(
        "auto", "descriptor: class token, or timm's pooling without one (section 4.1)"
    )
    backbone_args: dict[str, Any] = option({}, "more arguments of timm.create_model")
    # the batches
    loss: Literal["recall@k", "infonce", "contrastive", "softmax-margin"] = option("recall@k", "objective (Table 6)")
    classes: int = option(400, "B, classes of a batch, for recall@k and infonce (section 4.1)")
    images: int = option(4, "N, images of each class (section 4.1); Table 7 has 3 and 2")
    batch_size: int = option(None, "queries of contrastive: 8; images of softmax-margin: 16 (supplement B); else B x N")
    epochs: int = option(None, "passes over the classes: 1 (section 4.1); contrastive: 1, softmax-margin: 3, of images")
    few_images: Literal["skip", "repeat"] = option("skip", "classes of fewer than N images (section 4.1: skipped)")
    # softmax-margin
    frozen_epochs: int = option(2, "first passes, which train the classifier alone (supplement B)")
    classifier_lr: float = option(1e-3, "learning rate of these (supplement B)")
    # augmentation (section 4.1 names the kinds and He et al. 2020; numbers are those of MoCo's code, version 1)
    augment: bool = option(True, "crop, resize, flip, color jitter and gray at random (section 4.1)")
    crop: tuple[float, float] = option((0.2, 1.0), "share of the image that a crop keeps (MoCo)")
    jitter: tuple[float, float, float, float] = option((0.4, 0.4, 0.4, 0.4), "brightness, contrast, saturation, hue")
    gray: float = option(0.2, "probability of gray (MoCo)")
    # the optimizer: Adam at a constant rate
    lr: float = option(None, "learning rate: 1e-5 (section 4.1); contrastive 1e-7, softmax-margin 1e-6 (supplement B)")
    weight_decay: float = option(1e-6, "of Adam, added to the gradient (section 4.1)")
    chunk: int = option(32, "images embedded at once, by gradient caching; changes memory and speed alone")
    checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, a third slower")
    seed: int = option(0, "of the choice of images, batches, queries, augmentation and classifier")
    save_every: int = option(None, "steps between checkpoints: 10, or 1000 of small batches; 0 = at the end only")
    validate_every: int = option(None, "steps between validations: 25, or 2500 of small batches; 0 = at the end only")
    log_every: int = option(None, "steps between lines of the log: 1, or 10 of small batches")

    def __post_init__(self) -> None:
        whole = self.loss in CLASS_BATCHES
        if whole and self.batch_size not in (None, self.classes * self.images):
            raise ValueError(f"a batch of {self.loss} is classes x images: set --classes, not --batch-size")
        for name, value in {"batch_size": self.classes * self.images, **PAPER[self.loss]}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.loss == "softmax-margin" and self.epochs <= self.frozen_epochs:
            raise ValueError(
                f"epochs = {self.epochs} and frozen_epochs = {self.frozen_epochs}: no pass is left for the encoder"
            )


SMOKE: Mapping[str, Any] = {
    "backbone": "vit_tiny_patch16_224",
    "backbone_weights": RANDOM,
    "image_size": 32,
    "classes": 5,
    "epochs": 3,
    "lr": 1e-3,
    "backbone_args": {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8},
    "chunk": 8,
}


Config = ILGenTraining  # by this name, `idmetric train` finds each recipe's
