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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from idmetric.data.manifest import ManifestError, checked, merge, take, with_columns
from idmetric.metric.visid.config import MOST_RATIO as MOST_RATIO
from idmetric.metric.visid.config import VisIDConfig
from idmetric.metric.visid.visid import VisIDEmbed
from idmetric.train import lora
from idmetric.train.batches import TRAINING, VALIDATION, Pictures, check_held_out, rows_in, share
from idmetric.train.gradcache import cached_backward
from idmetric.train.losses.info_nce import LearnableTemperature, query_target_info_nce
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe, decisive, painted, painted_numbers
from idmetric.train.visme import small_qwen
from idmetric.train.visme.batch_sampler import check, draw
from idmetric.train.visme.config import RANDOM, VisMETraining
from idmetric.train.visme.config import SMOKE as SMOKE
from idmetric.train.visme.config import Config as Config  # for `idmetric train`
from idmetric.train.visme.data import Prepared, prepare
from idmetric.train.visme.items import RowLoader, precision_at_1
from idmetric.train.visme.wording import QueryWording

if TYPE_CHECKING:
    from pandas import DataFrame


def smoke_data(folder: Path) -> DataFrame:
    """Painted identities as two datasets with distractors, captioned images as a third, and some to validate."""
    from idmetric.data.painter import Painter

    world = painted(folder / "painted", Painter(size=64, views=2, strength=0.5, distractors=True), 16, 4)
    datasets = [f"things-{number % 2}" for number in painted_numbers(world)]
    world = with_columns(world, dataset=datasets)
    images = take(world, world["id"].str.endswith("view-0") & (world["split"] == "train"))
    captions = []
    for row in images.itertuples():
        caption = {"id": f"caption-{row.id}", "path": row.path, "text": f"{row.category} number {row.Index}"}
        captions.append({**caption, "dataset": "captions", "split": "train"})
    return merge([world, checked(captions)])


class VisME(Recipe):
    """The recipe of VisME."""

    name = "visme"
    prefetch = 1  # batches that a loading process holds: 128 samples with hard negatives take 0.5 GB

    def __init__(self, config: VisMETraining, data: DataFrame, processes: Processes) -> None:
        self.processes = processes
        settings = VisIDConfig(
            prompt_style=config.prompt_style,
            max_pixels=config.max_pixels,
            max_length=config.max_length,
            min_pixels=min(VisIDConfig.min_pixels, config.max_pixels),
        )
        validated = rows_in(data, VALIDATION)
        named = np.flatnonzero(data["identity"].notna())  # others may share pictures
        trained = rows_in(data, TRAINING)
        check_held_out(data, np.intersect1d(named, trained), np.intersect1d(named, validated))

        prepared = prepare(data, settings, instructions=config.instructions)
        self.data = prepared.data
        self.config = config
        if processes.main and prepared.notes:
            print(f"visme: left out: {'; '.join(prepared.notes)}", flush=True)
        check(self.data, config)
        share(config.batch_size, processes.rank, processes.count)  # raises if it cannot be
        self.model = self.initial_model(settings)
        self.model.check_limits()
        _check_words(data, prepared.wording, self.model, config)
        pictures = Pictures(data, settings.size_for, self.model.interpolation, self.model.background)
        self.loader = RowLoader(pictures, prepared.wording, config.batch_size)
        self.validation: Prepared | None = None
        if len(validated):
            self.validation = prepare(data, settings, splits=VALIDATION, instructions=config.instructions)
            self.best = "p@1"

        self.steps = config.steps
        self.temperature = LearnableTemperature(config.temperature, minimum=min(0.01, config.temperature))
        self.temperature.requires_grad_(config.learn_temperature).to(processes.device)
        self.settings = decisive(
            config,
            ("chunk", "checkpointing"),
            weights=self.model.revision.partition("+")[0],  # of the start: adapters have been added to it
            data=self.data.fingerprint,
            datasets=self.data.describe(),
        )

    def initial_model(self, settings: VisIDConfig) -> VisIDEmbed:
        """The base model on the process's device, frozen, with LoRA in train mode."""
        config = self.config
        with tempfile.TemporaryDirectory() as folder:
            source = config.model
            if source == RANDOM:
                small_qwen.write(folder, seed=config.seed)
                source = folder
            model = VisIDEmbed(source, config=settings, revision=config.revision, device=self.processes.device)
            model.name = model.short_name = config.model
        lora.attach(
            model.backbone,
            rank=config.rank,
            alpha=config.alpha,
            dropout=config.dropout,
            targets=config.targets,
            seed=config.seed,
        )
        if config.checkpointing:
            backbone: Any = model.backbone
            before_5 = "gradient_checkpointing_enable"  # its name before transformers 5
            enable = getattr(backbone, "activation_checkpointing_enable", None) or getattr(backbone, before_5)
            enable({"use_reentrant": False})
        return model.train()

    def modules(self) -> Mapping[str, nn.Module]:
        """The model and the temperature."""
        return {"model": self.model, "temperature": self.temperature}

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW without weight decay."""
        return torch.optim.AdamW(self.parameters(), lr=self.config.lr, weight_decay=0.0)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then linear decay to 0."""
        warmup = min(self.config.warmup, self.steps // 10)
        if step < warmup:
            return (step + 1) / warmup
        return (self.steps - step) / (self.steps - warmup)

    def load(self, step: int) -> dict[str, Any]:
        """This process's share of a step's batch; see `RowLoader.load`."""
        batch = draw(self.data, self.config, step)
        return self.loader.load(batch, self.processes.rank, self.processes.count)

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Embed the batch chunk by chunk, and let each query pick its target among all candidates (Eq. 4 and 5)."""
        pixels = batch["pixels"]
        words = batch["words"]
        size = self.config.chunk
        values = cached_backward(
            lambda chunk: self.model.encode_items(pixels.take(chunk, self.processes.device), words[chunk]),
            [slice(start, start + size) for start in range(0, len(words), size)],
            lambda embedded: self._loss(embedded, batch),
            self.processes,
        )
        values["temperature"] = self.temperature().detach()
        return {**values, "images": float((pixels.places[:, 0] >= 0).sum())}

    def _loss(self, embedded: Tensor, batch: Any) -> dict[str, Tensor]:
        count = self.processes.count
        queries = self.config.batch_size // count  # of each process, which has as many targets
        parts = embedded.view(count, -1, embedded.shape[-1]).tensor_split((queries, 2 * queries), 1)
        query, target, negative = (part.flatten(0, 1) for part in parts)
        codes = {name: batch[name].to(embedded.device) for name in ("identity", "negative_identity", "negative_valid")}
        loss = query_target_info_nce(
            query, target, negative if len(negative) else None, temperature=self.temperature(), **codes
        )
        with torch.no_grad():
            candidates = torch.cat([target, negative[codes["negative_valid"]]])
            nearest = (query @ candidates.T).argmax(1)
            is_right = nearest == torch.arange(len(query), device=query.device)
        return {"loss": loss, "accuracy": is_right.float().mean()}

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


build = VisME


def _check_words(data: DataFrame, wording: QueryWording, model: VisIDEmbed, config: VisMETraining) -> None:
    """Check before the first step that no text holds the model's control tokens."""
    for words in config.instructions:
        model.check_words(words)
    for column, texts in {"text": wording.text, "x_target": wording.answer}.items():
        for row, text in enumerate(texts):
            try:
                model.check_words(text or "")
            except ValueError as error:
                raise ManifestError(f"row {row + 1} ({data['id'][row]}), column {column!r}: {error}") from error
