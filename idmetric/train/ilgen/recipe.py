"""ILGen (Wu et al., "Instance-Level Generation for Representation Learning").

All of a pretrained encoder is fine-tuned on generated instances: N images of each, in batches of B instances. One image
of each instance queries all others; the loss is a differentiable recall@k (section 3.3).

    idmetric train ilgen --data train.parquet --out run/
    idmetric.load("run/")

Paper: 20,000 instances of 4 images, one pass in batches of 1,600 images, 2.5 hours on an A100 (supplement B). Table 6's
other losses are `--loss infonce`, `contrastive` and `softmax-margin`, each with its own learning rate and batch; Table
5's other encoders are `--backbone vit_large_patch14_clip_quickgelu_336.openai` and `vit_base_patch16_224`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from idmetric.data.manifest import ManifestError, take
from idmetric.metric.backbone import Backbone
from idmetric.metric.embedder import Embedder
from idmetric.metric.idsim import IDSim
from idmetric.metric.load import load
from idmetric.metric.nearid import NearID
from idmetric.metric.timm_models import is_timm
from idmetric.train import augment
from idmetric.train.batches import VALIDATION, Pictures, check_batch, check_held_out, rows_in, share
from idmetric.train.gradcache import cached_backward
from idmetric.train.ilgen.config import CLASS_BATCHES, ILGenTraining
from idmetric.train.ilgen.config import SMOKE as SMOKE
from idmetric.train.ilgen.config import Config as Config  # for `idmetric train`
from idmetric.train.ilgen.data import (
    Classes,
    Drawn,
    ILGenBatches,
    classes_of,
    draw_classes,
    draw_images,
    draw_pairs,
    pass_length,
)
from idmetric.train.ilgen.objectives import Contrastive, Retrieval, SoftmaxMargin, mine
from idmetric.train.losses.info_nce import label_info_nce
from idmetric.train.losses.recall_at_k import batch_recall_at_k
from idmetric.train.options import weights_file
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe, decisive, painted
from idmetric.train.validate import validation

if TYPE_CHECKING:
    from pandas import DataFrame


def smoke_data(folder: Path) -> DataFrame:
    """Painted identities in four contexts each, some of them to validate."""
    from idmetric.data.painter import Painter

    return painted(folder / "painted", Painter(size=64, views=4), 12, 3)


class ILGen(Recipe):
    """The recipe of ILGen."""

    name = "ilgen"
    prefetch = 1  # batches that a loading process holds: one of 1,600 images takes 0.7 GB

    def __init__(self, config: ILGenTraining, data: DataFrame, processes: Processes) -> None:
        self.processes = processes
        classes = classes_of(data, config.images, config.few_images, config.seed)
        _check_batch(config, classes)
        self.config = config
        held_out = rows_in(data, VALIDATION)
        _check(data, classes, held_out)
        self.held_out: DataFrame | None = None
        if len(held_out):
            self.held_out = take(data, held_out)
            self.best = "map"
        self.model = _model(config, processes)
        self.batches = _batches(config, data, classes, self.model)
        self.samples = share(len(self.batches.draw(0).label), processes.rank, processes.count)
        self.loss = _loss(config, classes, self.model).to(processes.device)
        self.steps = config.epochs * self.batches.per_pass
        self.frozen_steps = config.frozen_epochs * self.batches.per_pass if config.loss == "softmax-margin" else 0
        if processes.main:
            print(f"ilgen: {_summary(classes, self.steps)}", flush=True)
        self.settings = decisive(
            config,
            # "revision" identifies the weights
            ("chunk", "checkpointing", "backbone_weights", "save_every", "validate_every", "log_every"),
            revision=self.model.revision,
            found_classes=len(classes),
            data=classes.fingerprint,
        )

    def modules(self) -> Mapping[str, nn.Module]:
        """The encoder, and the loss, which may have parameters."""
        return {"model": self.model, "loss": self.loss}

    def optimizer(self) -> torch.optim.Optimizer:
        """Adam on the whole encoder and the loss's parameters."""
        lr = self.config.classifier_lr if self.frozen_steps else self.config.lr
        return torch.optim.Adam(self.parameters(), lr=lr, weight_decay=self.config.weight_decay)

    def lr_factor(self, step: int) -> float:
        """Constant; softmax-margin has the classifier's rate while the encoder is frozen, then `lr` for both."""
        if self.frozen_steps and step >= self.frozen_steps:
            return self.config.lr / self.config.classifier_lr
        return 1.0

    def load(self, step: int) -> dict[str, Any]:
        """The samples of a step, and the pixels of this process's share (contrastive: without negatives)."""
        drawn = self.batches.draw(step)
        parts = range(int((drawn.image[0] >= 0).sum()))
        return {"drawn": drawn, "pixels": self.batches.read(drawn, self.samples, parts)}

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Embed the batch chunk by chunk, and let its queries search all of it."""
        drawn = batch["drawn"]
        pixels = batch["pixels"]
        if isinstance(self.loss, Contrastive):
            drawn, pixels = self._with_negatives(self.loss, drawn, pixels)
        is_frozen = drawn.step < self.frozen_steps
        set_training(self.model, not is_frozen)
        chunk_size = len(pixels) if is_frozen else max(1, self.config.chunk // pixels.shape[1])

        def embed(chunk: Tensor) -> Tensor:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not is_frozen):
                images = self.processes.place(chunk).flatten(0, 1).float() / 255
                return self.model(images).cls.view(*chunk.shape[:2], -1)

        placed = self.processes.place(drawn)
        chunks = pixels.split(chunk_size)
        values = cached_backward(embed, chunks, lambda embedded: self.loss(embedded, placed), self.processes)
        return {**values, "images": float(pixels.shape[0] * pixels.shape[1])}

    def _with_negatives(self, loss: Contrastive, drawn: Drawn, pixels: Tensor) -> tuple[Drawn, Tensor]:
        """The batch with the hardest negatives, which are mined first at the start of each pass."""
        if drawn.step % self.batches.per_pass == 0:
            data = self.batches.pictures.data
            classes = self.batches.classes
            loss.hardest.copy_(mine(self.model, data, classes, self.processes, self.config.chunk))
        drawn.image[:, 2] = loss.hardest.cpu()[drawn.image[:, 0]]
        negatives = self.batches.read(drawn, self.samples, range(2, 3), threads=8)  # no loading process has read them
        return drawn, torch.cat([pixels, negatives], 1)

    def validate(self) -> Mapping[str, float]:
        """Mean average precision of the validation split, and other measures of `train.validate`."""
        if self.held_out is None:
            return {}
        return validation(self.model, self.held_out, batch_size=self.config.chunk, processes=self.processes)


def set_training(model: nn.Module, mode: bool) -> None:
    """Set train or eval mode, but keep the pretrained statistics of batch normalization.

    They would follow each chunk's images, and results would depend on `chunk`; fine-tuning for retrieval commonly
    freezes them. The paper's encoders have no batch normalization.
    """
    model.train(mode)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


build = ILGen


def _summary(classes: Classes, steps: int) -> str:
    text = f"{len(classes):,} classes of {classes.images} images; left out: {classes.left_out:,} identities with fewer"
    if classes.left_out:
        text += " (--few-images repeat takes them)"
    return f"{text}; {steps:,} steps"


def _check_batch(config: ILGenTraining, classes: Classes) -> None:
    """Refuse a batch of more classes, or images, than there are."""
    if config.loss in CLASS_BATCHES:
        check_batch(config.classes, len(classes), "classes", "--classes")
    else:
        check_batch(config.batch_size, classes.rows.size, "images")


def _check(data: DataFrame, classes: Classes, held_out: NDArray[np.int64]) -> None:
    """Refuse data that cannot be validated on."""
    check_held_out(data, classes.flat, held_out)
    identities = data["identity"][held_out].dropna()
    if len(held_out) and not identities.duplicated().any():
        raise ManifestError(
            "no identity of the validation split has two images, so none can be retrieved: split by identity "
            "(idmetric data split), or leave that split out"
        )


def _batches(config: ILGenTraining, data: DataFrame, classes: Classes, model: Embedder) -> ILGenBatches:
    augmentation = partial(
        augment.ilgen,
        size=model.image_size,
        scale=config.crop,
        gray_p=config.gray,
        jitter=config.jitter,
        interpolation=model.interpolation,
    )
    pictures = Pictures.of(model, data, augmentation if config.augment else None)
    count = classes.rows.size
    size = config.batch_size
    draw: Callable[..., Drawn] = draw_pairs if config.loss == "contrastive" else draw_images
    if config.loss in CLASS_BATCHES:
        count = len(classes)
        size = config.classes
        draw = draw_classes
    draw = partial(draw, classes=len(classes), images=classes.images, size=size, seed=config.seed)
    return ILGenBatches(classes, pictures, draw, pass_length(count, size), config.seed)


def _model(config: ILGenTraining, processes: Processes) -> Embedder:
    """The encoder; `config.train` names what trains, but never the head of patches, which no loss here reads."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # random weights
        model = _timm_encoder(config, processes) if is_timm(config.backbone) else _opened(config, processes)
    model.requires_grad_(config.train == "all")
    if isinstance(model, IDSim):
        for name, head in model.named_children():
            if name.startswith("mlp_"):
                head.requires_grad_(name != "mlp_patch")
    elif config.train == "heads":
        raise ValueError(f"--backbone {config.backbone} has no heads: leave out --train heads, or train tiny")
    set_training(model, True)
    if config.checkpointing:
        model.backbone.set_grad_checkpointing(True)  # type: ignore[operator,union-attr]  # all of timm's encoders have it
    return model


def _timm_encoder(config: ILGenTraining, processes: Processes) -> Backbone:
    """An encoder by timm's name."""
    file = weights_file(config.backbone, config.backbone_weights)
    return Backbone(
        config.backbone,
        pretrained=bool(file),
        image_size=config.image_size,
        pool=config.pool,
        weights=file or None,
        backbone_args=config.backbone_args,
        device=processes.device,
    )


def _opened(config: ILGenTraining, processes: Processes) -> Embedder:
    """A model by a name, folder or repository that `idmetric.load` opens."""
    if config.image_size or config.backbone_args or config.backbone_weights or config.pool != "auto":
        raise ValueError(
            f"{config.backbone} has its own settings: image_size, pool, backbone_args and backbone_weights are for "
            "timm's names"
        )
    model = load(config.backbone, device=processes.device)
    if not isinstance(model, Backbone | IDSim | NearID):
        raise ValueError(f"--backbone {config.backbone} is a {type(model).__name__}, which this recipe does not train")
    return model


def _loss(config: ILGenTraining, classes: Classes, model: Embedder) -> nn.Module:
    if config.loss == "recall@k":
        return Retrieval(lambda x, drawn: batch_recall_at_k(x, drawn.label, query=drawn.query))
    if config.loss == "infonce":
        return Retrieval(lambda x, drawn: label_info_nce(x, drawn.label))
    if config.loss == "contrastive":
        return Contrastive(classes.rows.size)
    with torch.no_grad():
        embedded = model(torch.zeros(1, 3, *model.image_size, device=model.device)).cls
    return SoftmaxMargin(len(classes), embedded.shape[-1], config.seed)
