"""ILGen (Wu et al., "Instance-Level Generation for Representation Learning").

A pretrained encoder is fine-tuned whole on generated instances: N images of each, in batches of B instances, of which
one image queries all others; the loss is recall@k made differentiable (section 3.3).

    idmetric-train ilgen --data train.parquet --out run/
    idmetric.load("run/")

Paper: 20,000 instances of 4 images, one pass in batches of 1,600 images, 2.5 hours on an A100 (supplement B). Table 6's
other losses are `--loss infonce`, `contrastive` and `softmax-margin`, each with its own learning rate and batch; Table
5's other encoders are `--backbone vit_large_patch14_clip_quickgelu_336.openai` and `vit_base_patch16_224`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.models.backbone import Backbone, Pool, is_timm
from idmetric.train import augment, pretrained
from idmetric.train.batches import Pictures, share
from idmetric.train.gradcache import cached_backward
from idmetric.train.ilgen.batches import Batches, Drawn, draw_classes, draw_images, draw_pairs, pass_length
from idmetric.train.ilgen.data import Classes, classes_of, validation_rows
from idmetric.train.ilgen.objectives import Contrastive, InfoNCE, RecallAtK, SoftmaxMargin, mine
from idmetric.train.options import option
from idmetric.train.processes import Processes
from idmetric.train.splits import check_held_out
from idmetric.train.validate import validation

# What differs between the losses (section 4.1 and supplement B). How long contrastive and softmax-margin train is not
# told; one pass of the whole encoder is what recall@k has. The last three only say how often a run tells and saves.
PAPER: Mapping[str, Mapping[str, Any]] = {
    "recall@k": {"lr": 1e-5, "epochs": 1, "save_every": 10, "validate_every": 25, "log_every": 1},
    "infonce": {"lr": 1e-5, "epochs": 1, "save_every": 10, "validate_every": 25, "log_every": 1},
    "contrastive": {
        "lr": 1e-7, "epochs": 1, "batch_size": 8, "save_every": 1000, "validate_every": 2500, "log_every": 10
    },
    "softmax-margin": {
        "lr": 1e-6, "epochs": 3, "batch_size": 16, "save_every": 1000, "validate_every": 2500, "log_every": 10
    },
}  # fmt: skip
CLASS_BATCHES = ("recall@k", "infonce")  # losses whose batches are whole classes


@dataclass(frozen=True)
class Config:
    """The paper's settings; those that it does not tell say so. What is None becomes the loss's own, of `PAPER`."""

    backbone: str = option(
        "vit_large_patch16_siglip_384.webli",
        "encoder: timm's name, or a folder or Hub repository that idmetric.load opens as a Backbone (section 4.1)",
    )
    backbone_weights: str = option("", pretrained.HELP)
    image_size: int | None = option(None, "side of the encoder's input; none = its own (section 4.1)")
    pool: Pool = option("auto", "descriptor: class token, or timm's own pooling where there is none (section 4.1)")
    backbone_args: dict[str, Any] = option({}, "more arguments of timm.create_model")
    # the batches
    loss: Literal["recall@k", "infonce", "contrastive", "softmax-margin"] = option("recall@k", "objective (Table 6)")
    classes: int = option(400, "B, classes of a batch, for recall@k and infonce (section 4.1)")
    images: int = option(4, "N, images of each class (section 4.1); Table 7 has 3 and 2")
    batch_size: int = option(
        None, "queries of a batch for contrastive: 8; images for softmax-margin: 16 (supplement B); else B x N"
    )
    epochs: int = option(
        None, "passes over the classes: 1 (section 4.1), or for contrastive and softmax-margin over the images"
    )
    few_images: Literal["skip", "repeat"] = option(
        "skip", "classes of fewer than N images are left out (section 4.1), or their images repeated"
    )
    # recall@k
    ks: tuple[int, ...] = option((1, 2, 4, 8), "depths of recall@k (supplement B)")
    rank_temperature: float = option(0.01, "of comparing two similarities (supplement B)")
    recall_temperature: float = option(1.0, "of comparing a rank with k (supplement B)")
    queries: Literal["one", "all"] = option("one", "of each class (section 3.3), or all images as in the released loss")
    query_in_database: bool = option(
        False, "rank the query itself, too, as the released loss does; the paper's database has NB - 1 images"
    )
    # the other losses
    temperature: float = option(0.05, "of infonce (supplement B)")
    siblings: bool = option(False, "infonce: other positives stay in the denominator (the paper is silent)")
    contrastive_margin: float = option(1.0, "distance beyond which a negative no longer counts (supplement B)")
    mine_every: int = option(0, "contrastive: steps between minings; 0 = at the start of each pass (not told)")
    softmax_scale: float = option(16.0, "of softmax-margin (supplement B)")
    softmax_margin: float = option(0.0, "of softmax-margin (supplement B)")
    frozen_epochs: int = option(2, "softmax-margin: first passes, which train the classifier alone (supplement B)")
    classifier_lr: float = option(1e-3, "softmax-margin: learning rate of these (supplement B)")
    # augmentation (section 4.1 names the kinds and He et al. 2020; numbers are those of MoCo's code, version 1)
    augment: bool = option(True, "crop, resize, flip, colour jitter and grey at random (section 4.1)")
    crop: tuple[float, float] = option((0.2, 1.0), "share of the image that a crop keeps (MoCo)")
    jitter: tuple[float, float, float, float] = option(
        (0.4, 0.4, 0.4, 0.4), "brightness, contrast, saturation, hue (MoCo)"
    )
    grey: float = option(0.2, "probability of grey (MoCo)")
    flip: float = option(0.5, "probability of a flip (MoCo)")
    # the optimiser: Adam at a constant rate
    lr: float = option(None, "learning rate: 1e-5 (section 4.1); contrastive 1e-7, softmax-margin 1e-6 (supplement B)")
    weight_decay: float = option(1e-6, "of Adam, added to the gradient (section 4.1)")
    chunk: int = option(32, "images embedded at once, by gradient caching; changes memory and speed alone")
    checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, a third slower")
    seed: int = option(0, "of the choice of images, batches, queries, augmentation and classifier")
    save_every: int = option(None, "steps between checkpoints: 10, or 1000 of small batches; 0 = at the end only")
    validate_every: int = option(None, "steps between validations: 25, or 2500 of small batches; 0 = at the end only")
    log_every: int = option(None, "steps between lines of the log: 1, or 10 of small batches")

    def __post_init__(self) -> None:
        if self.loss not in PAPER:
            raise ValueError(f"loss {self.loss!r}: choose {', '.join(PAPER)}")
        whole = self.loss in CLASS_BATCHES
        if whole and self.batch_size not in (None, self.classes * self.images):
            raise ValueError(f"a batch of {self.loss} is classes x images: set --classes, not --batch-size")
        for name, value in {"batch_size": self.classes * self.images, **PAPER[self.loss]}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        least = {
            "images": 2,
            "classes": 2,
            "batch_size": 1,
            "epochs": 1,
            "chunk": 1,
            "mine_every": 0,
            "frozen_epochs": 0,
        }
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} = {getattr(self, name)}: it must be {value} or more")
        if min(self.lr, self.classifier_lr) <= 0 or self.weight_decay < 0:
            raise ValueError("learning rates must be positive, weight_decay not negative")
        if self.loss == "softmax-margin" and self.epochs <= self.frozen_epochs:
            raise ValueError(
                f"epochs = {self.epochs} and frozen_epochs = {self.frozen_epochs}: no pass is left for the encoder"
            )


SMOKE: Mapping[str, Any] = {
    "backbone": "vit_tiny_patch16_224", "backbone_weights": pretrained.RANDOM, "image_size": 32, "classes": 5,
    "epochs": 3, "lr": 1e-3, "backbone_args": {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8}, "chunk": 8,
}  # fmt: skip


# Data


def smoke_data(folder: Path) -> Manifest:
    """Rendered things in four contexts each, some of them to validate."""
    from idmetric.data.world.write import Plan, write_world

    found = write_world(folder / "world", Plan(size=64, views=4, distractors=0), 12)
    names = sorted(set(found.column("identity")))
    return found.replace(split=["val" if name in names[9:] else "train" for name in found.column("identity")])


# Recipe


class ILGen:
    """The recipe; see `idmetric.train.loop.Recipe`."""

    name = "ilgen"
    prefetch = 1  # batches that a loading process holds: one of 1,600 images takes 0.7 GB

    def __init__(
        self, config: Config, batches: Batches, held_out: Manifest | None, model: Backbone, loss: nn.Module,
        processes: Processes,
    ) -> None:  # fmt: skip
        self.config, self.batches, self.held_out = config, batches, held_out
        self.model, self.loss, self.processes = model, loss, processes
        self.samples = share(len(batches.draw(0).label), processes.rank, processes.count)
        self.steps = config.epochs * batches.per_pass
        self.frozen_steps = config.frozen_epochs * batches.per_pass if config.loss == "softmax-margin" else 0
        self.mine_every = config.mine_every or batches.per_pass
        self.best = "map" if held_out is not None else ""
        # change no result; weights are named by commit or content
        free = ("chunk", "checkpointing", "save_every", "validate_every", "log_every", "backbone_weights")
        self.settings: dict[str, Any] = {
            **{k: v for k, v in asdict(config).items() if k not in free},
            "revision": model.revision, "found_classes": len(batches.classes), "data": batches.classes.fingerprint,
        }  # fmt: skip

    def modules(self) -> Mapping[str, nn.Module]:
        """See `Recipe`."""
        return {"model": self.model, "loss": self.loss}

    def optimizer(self) -> torch.optim.Optimizer:
        """Adam of the whole encoder, and of the loss's own parameters where it has some."""
        groups = [{"params": list(p)} for m in self.modules().values() if (p := list(m.parameters()))]
        rate = self.config.classifier_lr if self.frozen_steps else self.config.lr
        return torch.optim.Adam(groups, lr=rate, weight_decay=self.config.weight_decay)

    def lr_factor(self, step: int) -> float:
        """Constant; for softmax-margin, the classifier's while the encoder is frozen, then `rate` for both."""
        frozen = step < self.frozen_steps or not self.frozen_steps
        return 1.0 if frozen else self.config.lr / self.config.classifier_lr

    def load(self, step: int) -> dict[str, Any]:
        """What a step takes, and the pixels of this process's samples (of contrastive, without negatives)."""
        drawn = self.batches.draw(step)
        known = range(int((drawn.image[0] >= 0).sum()))
        return {"drawn": drawn, "pixels": self.batches.read(drawn, self.samples, known)}

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Embed the batch chunk by chunk, and let its queries search all of it."""
        drawn, pixels = batch["drawn"], batch["pixels"]
        if isinstance(self.loss, Contrastive):
            drawn, pixels = self._with_negatives(self.loss, drawn, pixels)
        frozen = drawn.step < self.frozen_steps
        set_training(self.model, not frozen)
        size = len(pixels) if frozen else max(1, self.config.chunk // pixels.shape[1])
        placed = self.processes.place(drawn)

        def embed(part: Tensor) -> Tensor:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
                x = part.to(self.model.device, non_blocking=True).flatten(0, 1).float() / 255
                return self.model(x).cls.view(*part.shape[:2], -1)

        found = cached_backward(embed, pixels.split(size), lambda x: self.loss(x, placed), self.processes)
        return {**found, "images": float(pixels.shape[0] * pixels.shape[1])}

    def _with_negatives(self, loss: Contrastive, drawn: Drawn, pixels: Tensor) -> tuple[Drawn, Tensor]:
        """The batch with the hardest negatives, which are mined first where it is time to."""
        if drawn.step % self.mine_every == 0:
            loss.hardest.copy_(
                mine(self.model, self.batches.pictures.data, self.batches.classes, self.processes, self.config.chunk)
            )
        drawn.image[:, 2] = loss.hardest.cpu()[drawn.image[:, 0]]
        return drawn, torch.cat([pixels, self.batches.read_at_once(drawn, self.samples, 2)], 1)

    def validate(self) -> Mapping[str, float]:
        """Mean average precision of the validation split, and what else its rows allow; see `train.validate`."""
        if self.held_out is None:
            return {}
        return validation(self.model, self.held_out, batch_size=self.config.chunk, processes=self.processes)

    def save(self, folder: Path) -> None:
        """A `Backbone`, in plain weights."""
        self.model.save_pretrained(folder)


def set_training(model: nn.Module, mode: bool) -> None:
    """Train or eval mode, but batch normalisation keeps its pretrained statistics.

    They would follow each chunk's images, so that results would depend on `chunk`; fine-tuning for retrieval commonly
    freezes them. The paper's encoders have none.
    """
    model.train(mode)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


# Build


def build(config: Config, data: Manifest, processes: Processes) -> ILGen:
    """Classes, encoder and loss; nothing is trained yet.

    Raises:
        ManifestError: if the data cannot fill a batch, saying what is missing; if some are trained and validated on.
        idmetric.checkpoints.format.CheckpointError: if the encoder or its weights cannot be had.
    """
    classes = classes_of(data, config.images, config.few_images, config.seed)
    if config.loss in CLASS_BATCHES and len(classes) < config.classes:
        raise ManifestError(
            f"{len(classes)} identities have {config.images} images, and a batch takes {config.classes} different "
            f"ones: --classes {len(classes)}, or more data"
        )
    if config.batch_size > classes.rows.size:
        raise ManifestError(
            f"a batch takes {config.batch_size} images of {classes.rows.size}: --batch-size {classes.rows.size}"
        )
    held_out = validation_rows(data)
    if held_out is not None:
        check_held_out(data, classes.flat, held_out)
    model = _model(config, processes)
    if processes.main:
        print(_told(classes, config), flush=True)
    batches = _batches(config, data, classes, model)
    validated = None if held_out is None else data.take(held_out)
    return ILGen(config, batches, validated, model, _loss(config, classes, model).to(processes.device), processes)


def _batches(config: Config, data: Manifest, classes: Classes, model: Backbone) -> Batches:
    steps = augment.ilgen(
        model.image_size, scale=config.crop, grey_p=config.grey, jitter=config.jitter, flip=config.flip,
        interpolation=model.interpolation,
    )  # fmt: skip
    pictures = Pictures.of(model, data, steps if config.augment else None)
    shape = {"classes": len(classes), "images": classes.images, "seed": config.seed}
    if config.loss in CLASS_BATCHES:
        draw = partial(draw_classes, **shape, size=config.classes, queries=config.queries)
        return Batches(classes, pictures, draw, pass_length(len(classes), config.classes), config.seed)
    draw = partial(draw_pairs if config.loss == "contrastive" else draw_images, **shape, size=config.batch_size)
    return Batches(classes, pictures, draw, pass_length(classes.rows.size, config.batch_size), config.seed)


def _told(classes: Classes, config: Config) -> str:
    text = f"ilgen: {len(classes):,} classes of {classes.images} images"
    if classes.left_out:
        text += f"; left out: {classes.left_out:,} identities with fewer (--few-images repeat takes them)"
    return text + (f"; {classes.unused:,} further images are not used" if classes.unused else "")


def _model(config: Config, processes: Processes) -> Backbone:
    """The encoder, all of it trainable."""
    own = is_timm(config.backbone)
    given = (config.image_size, config.backbone_args, config.backbone_weights, config.pool != "auto")
    if not own and any(given):
        raise ValueError(
            f"{config.backbone} says itself what it is: image_size, pool, backbone_args and backbone_weights are for "
            "timm's names"
        )
    file = pretrained.weights_file(config.backbone, config.backbone_weights) if own else ""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # random weights
        model = Backbone(
            config.backbone, pretrained=bool(file), image_size=config.image_size, pool=config.pool,
            weights=file or None, backbone_args=config.backbone_args, device=processes.device,
        )  # fmt: skip
    model.requires_grad_(True)
    set_training(model, True)
    if config.checkpointing:
        model.backbone.set_grad_checkpointing(True)  # type: ignore[operator]  # all of timm's encoders have it
    return model


def _loss(config: Config, classes: Classes, model: Backbone) -> nn.Module:
    if config.loss == "recall@k":
        return RecallAtK(config.ks, config.rank_temperature, config.recall_temperature, config.query_in_database)
    if config.loss == "infonce":
        return InfoNCE(config.temperature, config.siblings)
    if config.loss == "contrastive":
        return Contrastive(classes.rows.size, config.contrastive_margin)
    return SoftmaxMargin(len(classes), _width(model), config.softmax_scale, config.softmax_margin, config.seed)


@torch.no_grad()
def _width(model: Backbone) -> int:
    pixels = torch.zeros(1, 3, *model.image_size, device=model.device)
    return int(model(pixels).cls.shape[-1])
