"""Settings of ID-Sim's recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from idmetric.evaluate.settings import option
from idmetric.train.options import RANDOM, WEIGHTS_HELP, Precision

Negatives = Literal["batch", "single"]


@dataclass(frozen=True)
class IDSimTraining:
    """The paper's settings; settings that it does not state name their source."""

    # the model
    backbone: str = option("vit_large_patch16_dinov3.lvd1689m", "timm's name of the ViT (C.1; others: Table 7)")
    backbone_weights: str = option("", WEIGHTS_HELP)
    revision: str | None = option(None, "commit of that Hub repository")
    backbone_args: dict[str, Any] = option({}, "more arguments of timm.create_model")
    image_size: int = option(448, "side of the input in pixels (C.1)")
    hidden: int = option(512, "width of the heads' hidden layer (C.1)")
    rank: int = option(16, "of LoRA (C.1)")
    alpha: float = option(32.0, "of LoRA (C.1)")
    dropout: float = option(0.05, "of LoRA (C.1)")
    targets: str = option("vit", "layers with LoRA: vit = all attention and MLP (4.1), or a regular expression")
    # the loss
    terms: Literal["both", "cls", "patch"] = option("both", "class features and patches (Eq. 1), or one (Table 8)")
    patch_weight: float = option(1.0, "lambda of Eq. 1 (C.3)")
    negatives: Negatives = option("batch", "also others of the micro-batch (3.3), or the hard one alone: single (C.3)")
    temperature: float = option(0.07, "tau of Eq. 2, class features (not stated; the usual one of InfoNCE)")
    patch_temperature: float = option(0.07, "tau of the patches (not stated; the same)")
    margin: float = option(0.0, "of InfoNCE, subtracted from a positive's similarity; none in Eq. 2, 0.1 in C.3")
    # the pictures
    augment: bool = option(True, "random crops, jitter and blur (C.4); without them images are preprocessed as in use")
    # the optimizer: AdamW without weight decay, constant rate (no schedule is stated)
    lr: float = option(3e-4, "learning rate (C.2)")
    batch_size: int = option(8, "triplets of a micro-batch, over all processes (C.2)")
    accumulation: int = option(4, "micro-batches of a step (C.2)")
    epochs: int = option(3, "passes over the triplets (C.2)")
    precision: Precision = option("bf16", "mixed precision (C.1)")
    checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, a third slower")
    seed: int = option(0, "of new weights, batches, augmentation and dropout")


SMOKE: Mapping[str, Any] = {
    "backbone": "vit_small_patch16_dinov3",
    # with DINOv3's own layer scale, 1e-5, random blocks do nothing and all images have one class feature
    "backbone_args": {"depth": 2, "embed_dim": 48, "num_heads": 3, "init_values": 1.0},
    "backbone_weights": RANDOM,
    "image_size": 64,
    "hidden": 32,
    "batch_size": 3,
    "accumulation": 2,
    "epochs": 2,
    "precision": "no",
    "validate_every": 2,
}


Config = IDSimTraining  # by this name, `idmetric train` finds each recipe's
