"""VisME (Cao et al., "Illuminating Visual Identity in Universal Multimodal Embeddings", arXiv 2608.01794).

Qwen2.5-VL or Qwen2-VL with LoRA learns embeddings of images and texts in which a query finds its target. One loss
serves identities and general (semantic) data; no identity occurs twice in a batch (section 4.2).

    idmetric train visme --data mveb.parquet --out run/
    VisIDEmbed("run/")

Paper: 3,000 steps of 1,024 samples on 8 A800 GPUs (section 5.1). The three rows of Table 2 compare ways of sampling:
`--sampling naive --hard 0`, `--hard 0`, and the defaults.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idmetric.data.manifest.table import Manifest, ManifestError, Row
from idmetric.metric.models.visid import MOST_RATIO as MOST_RATIO  # the check before training knows it
from idmetric.metric.models.visid import VisIDConfig, VisIDEmbed
from idmetric.train import lora
from idmetric.train.batches import TRAINING, VALIDATION, Pictures, check_held_out, rows_in, share
from idmetric.train.gradcache import cached_backward
from idmetric.train.losses.info_nce import LearnableTemperature, query_target_info_nce
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe, painted
from idmetric.train.visme import data as pools
from idmetric.train.visme import small_qwen
from idmetric.train.visme.batch_sampler import Data, check, draw
from idmetric.train.visme.config import RANDOM, Config
from idmetric.train.visme.config import SMOKE as SMOKE
from idmetric.train.visme.data import Prepared
from idmetric.train.visme.items import Loader, precision_at_1
from idmetric.train.visme.wording import Wording


def smoke_data(folder: Path) -> Manifest:
    """Painted identities as two datasets with distractors, captioned images as a third, and some to validate."""
    from idmetric.data.manifest.table import merge
    from idmetric.data.painter import Painter

    found = painted(folder / "painted", Painter(size=64, views=2, strengths=(0.5,), distractors=True), 16, 4)
    number = [int(name.split("/")[0].rsplit("-", 1)[1]) for name in found.column("id")]
    found = found.replace(dataset=[f"things-{n % 2}" for n in number])
    shown = [r for r in found if r.id.endswith("view-0") and r.split == "train"]
    captioned = [
        Row(None, r.path, id=f"caption-{r.id}", dataset="captions", split="train", text=f"{r.category} number {k}")
        for k, r in enumerate(shown)
    ]
    return merge([found, Manifest.from_rows(captioned, found.root)])


class VisME(Recipe):
    """The recipe of VisME."""

    name = "visme"
    prefetch = 1  # batches that a loading process holds: 128 samples with hard negatives take 0.5 GB

    def __init__(
        self,
        config: Config,
        data: Data,
        loader: Loader,
        validation: Prepared | None,
        model: VisIDEmbed,
        processes: Processes,
    ) -> None:
        self.config, self.data, self.loader, self.validation = config, data, loader, validation
        self.model, self.processes = model, processes
        self.rank, self.count, self.steps = processes.rank, processes.count, config.steps
        self.best = "p@1" if validation else ""
        self.temperature = LearnableTemperature(config.temperature, minimum=min(0.01, config.temperature))
        self.temperature.requires_grad_(config.learn_temperature).to(processes.device)
        free = ("chunk", "checkpointing")  # they change only speed
        self.settings: dict[str, Any] = {
            **{k: v for k, v in asdict(config).items() if k not in free},
            "weights": model.revision.partition("+")[0],  # of the start: adapters have been added to it
            "data": data.fingerprint,
            "datasets": data.describe(),
        }

    def modules(self) -> Mapping[str, nn.Module]:
        """The model and the temperature."""
        return {"model": self.model, "temperature": self.temperature}

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW without weight decay."""
        trained = [p for module in self.modules().values() for p in module.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=self.config.lr, weight_decay=0.0)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then linear decay to 0."""
        warmup = min(self.config.warmup, self.steps // 10)
        return (step + 1) / warmup if step < warmup else (self.steps - step) / (self.steps - warmup)

    def load(self, step: int) -> dict[str, Any]:
        """This process's share of a step's batch; see `Loader.load`."""
        return self.loader.load(draw(self.data, self.config, step), self.rank, self.count)

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Embed the batch chunk by chunk, and let each query pick its target among all candidates (Eq. 4 and 5)."""
        pixels, words = batch["pixels"], batch["words"]
        chunks = [slice(k, k + self.config.chunk) for k in range(0, len(words), self.config.chunk)]
        found = cached_backward(
            lambda part: self.model.encode_items(pixels.take(part, self.processes.device), words[part]),
            chunks,
            lambda embedded: self._loss(embedded, batch),
            self.processes,
        )
        images = float((pixels.places[:, 0] >= 0).sum())
        return {**found, "temperature": self.temperature().detach(), "images": images}

    def _loss(self, embedded: Tensor, batch: Any) -> dict[str, Tensor]:
        own = self.config.batch_size // self.count
        parts = embedded.view(self.count, -1, embedded.shape[-1]).tensor_split((own, 2 * own), 1)
        query, target, negative = (part.flatten(0, 1) for part in parts)
        codes = {name: batch[name].to(embedded.device) for name in ("identity", "negative_identity", "negative_valid")}
        loss = query_target_info_nce(
            query, target, negative if len(negative) else None, temperature=self.temperature(), **codes
        )
        with torch.no_grad():
            candidates = torch.cat([target, negative[codes["negative_valid"]]])
            right = (query @ candidates.T).argmax(1) == torch.arange(len(query), device=query.device)
        return {"loss": loss, "accuracy": right.float().mean()}

    def validate(self) -> Mapping[str, float]:
        """P@1 of each validation dataset, and their mean (section 5.1)."""
        if self.validation is None:
            return {}
        return precision_at_1(
            self.model,
            self.loader.pictures,
            self.validation,
            queries=self.config.validate_queries,
            chunk=self.config.chunk,
            processes=self.processes,
        )

    def save(self, folder: Path) -> None:
        """Write the model with LoRA folded into its weights: the result opens without peft."""
        with lora.folded(self.model.backbone):
            super().save(folder)


def build(config: Config, data: Manifest, processes: Processes) -> VisME:
    """Prepare samples and model with LoRA for training."""
    settings = VisIDConfig(
        prompt_style=config.prompt_style,
        max_pixels=config.max_pixels,
        max_length=config.max_length,
        min_pixels=min(VisIDConfig.min_pixels, config.max_pixels),
    )
    share(config.batch_size, processes.rank, processes.count)  # refuses a batch that cannot be shared
    known = np.flatnonzero([name is not None for name in data.column("identity")])  # other rows may share pictures
    trained, held_out = (np.intersect1d(known, rows_in(data, splits)) for splits in (TRAINING, VALIDATION))
    check_held_out(data, trained, held_out)

    found = pools.prepare(data, settings, instructions=config.instructions)
    if processes.main and found.notes:
        print(f"visme: left out: {'; '.join(found.notes)}", flush=True)
    check(found.data, config)
    model = _model(config, settings, processes)
    model.check_limits()
    _check_words(data, found.wording, model, config)
    pictures = Pictures(data, settings.size_for, model.interpolation, model.background)
    loader = Loader(pictures, found.wording, config.batch_size)
    held = None
    if len(rows_in(data, VALIDATION)):
        held = pools.prepare(data, settings, splits=VALIDATION, instructions=config.instructions)
    return VisME(config, found.data, loader, held, model, processes)


def _check_words(data: Manifest, wording: Wording, model: VisIDEmbed, config: Config) -> None:
    """Check before the first step that no text holds the model's control tokens."""
    for words in config.instructions:
        model.check_words(words)
    for column, texts in {"text": wording.text, "x_target": wording.answer}.items():
        for row, text in enumerate(texts):
            try:
                model.check_words(text or "")
            except ValueError as error:
                raise ManifestError(f"row {row + 1} ({data.column('id')[row]}), column {column!r}: {error}") from error


def _model(config: Config, settings: VisIDConfig, processes: Processes) -> VisIDEmbed:
    """The base model on the process's device, frozen, with LoRA in train mode."""
    with tempfile.TemporaryDirectory() as folder:
        source = config.model
        if source == RANDOM:
            small_qwen.write(folder, seed=config.seed)
            source = folder
        model = VisIDEmbed(source, config=settings, revision=config.revision, device=processes.device)
        model.name = config.model
    lora.attach(model.backbone, config.rank, config.alpha, config.dropout, config.targets, seed=config.seed)
    if config.checkpointing:
        backbone: Any = model.backbone
        before_5 = "gradient_checkpointing_enable"  # its name before transformers 5
        enable = getattr(backbone, "activation_checkpointing_enable", None) or getattr(backbone, before_5)
        enable({"use_reentrant": False})
    model.train()
    return model
