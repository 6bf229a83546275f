"""Settings of NearID's recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from idmetric.evaluate.settings import option
from idmetric.train.options import RANDOM, WEIGHTS_HELP, Precision

if TYPE_CHECKING:
    from idmetric.train.nearid.data import Shape

SIGLIP2 = "google/siglip2-so400m-patch14-384"  # section 4.1

Objective = Literal["nearid", "info-nce", "info-nce-distractors", "oracle", "oracle-distractors", "siglip", "circle"]
PAIRS = ("info-nce", "info-nce-distractors", "oracle", "oracle-distractors")  # one positive for each anchor


@dataclass(frozen=True)
class NearIDTraining:
    """The paper's settings; settings that it does not state name their source."""

    backbone: str = option(
        SIGLIP2,
        "frozen model (section 4.1): folder or Hub repository of a SigLIP(2) or NearID, or a timm name with attention "
        "pooling",
    )
    backbone_weights: str = option("", WEIGHTS_HELP)
    revision: str | None = option(None, "commit of the Hub repository")
    backbone_args: dict[str, Any] = option({}, "more arguments of timm.create_model, for a timm name")
    image_size: int | None = option(None, "side in pixels, for a timm name; none = its own")
    # the tuples
    positives: int = option(2, "other views in a tuple, P: identities have up to three views (section 3.3)")
    distractors: int = option(3, "distractors in a tuple, K (not stated; released code: 3)")
    near: Literal["anchor", "views"] = option("anchor", "whose distractors to use (section 3.1; released code: views)")
    engines: tuple[str, ...] = option(
        (), "generators of distractors, none = all; the paper's: Flux Flux_1024 Qwen Qwen_1328 (Table 5)"
    )
    repeat: int = option(4, "times per epoch of identities with only part-edits, as MTG's (section 3.3; code: 1)")
    # the pictures (section 4.1)
    mask_prob: float = option(1.0, "share of tuples with masking, of .5/.2/.6 of their slots (released code: 0)")
    augment: bool = option(True, "flip, color jitter, shift and scale (section 4.1; released code: none)")
    # the loss
    objective: Objective = option("nearid", "the loss: Eq. 3, or another row of Table 3")
    temperature: float = option(0.07, "tau (section 3.2)")
    alpha: float = option(0.5, "weight of the ranking term (Eq. 3, Table 8)")
    beta: float = option(0.0, "weight of positive cohesion (Eq. 8, Table 9); 0.1 = the last row of Table 3")
    sigmoid_per_anchor: bool = option(
        False, "siglip: sums of pairs per anchor (Zhai et al.), not means over pairs (not stated; released code: means)"
    )
    # the optimizer (section 4.1)
    lr: float = option(1e-4, "peak learning rate of AdamW (section 4.1)")
    weight_decay: float = option(1e-4, "of AdamW, for all of the head (section 4.1)")
    warmup: int = option(100, "steps of warm-up before the cosine, at most a tenth of all steps (section 4.1)")
    batch_size: int = option(128, "tuples in a batch, over all processes (section 4.1)")
    epochs: int = option(11, "epochs (section 4.1)")
    steps: int = option(0, "steps of the whole run, including warm-up and cosine; 0 = all epochs")
    max_grad_norm: float = option(1.0, "largest norm of the gradient (released code; not stated)")
    precision: Precision = option("fp16", "mixed precision (section 4.1)")
    seed: int = option(0, "of tuples, masking and augmentation")
    # speed and memory; these change nothing else
    chunk: int = option(64, "images that pass the trunk, and the head, at once")
    cache: str = option("", "folder for the trunk's features, with --no-augment; runs can share it")

    def __post_init__(self) -> None:
        if self.cache and self.augment:
            raise ValueError("--cache keeps features of unchanged pictures: add --no-augment, or leave it out")
        if self.beta and self.objective != "nearid":
            raise ValueError("--beta is a part of --objective nearid")

    @property
    def shape(self) -> Shape:
        """The slots of a tuple; InfoNCE has one positive, and uses distractors only in its second variant."""
        from idmetric.train.nearid.data import Shape

        positives = 1 if self.objective in PAIRS else self.positives
        distractors = 0 if self.objective == "info-nce" else self.distractors
        return Shape(positives, distractors, self.near, self.mask_prob)


SMOKE: Mapping[str, Any] = {
    "backbone": "vit_base_patch16_siglip_224",
    "backbone_weights": RANDOM,
    "image_size": 48,
    "backbone_args": {"patch_size": 12, "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0},
    "batch_size": 8,
    "epochs": 3,
    "lr": 1e-3,
    "chunk": 16,
    "precision": "no",
    "validate_every": 3,
    "log_every": 1,
}


Config = NearIDTraining  # by this name, `idmetric train` finds each recipe's
