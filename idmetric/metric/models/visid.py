"""VisIDEmbed: VisME (Cao et al., "Illuminating Visual Identity in Universal Multimodal Embeddings", arXiv 2608.01794).

Qwen2.5-VL as an embedding model: an image, a text, or both go through the language model, and the last layer's hidden
state at the last token, scaled to unit length, is the embedding. Instructions set the kind of comparison: a query may
ask for "the same person", a candidate is only represented. `metric(a, b)` gives both sides the same instruction, and an
image is at distance 0 from itself. For instruction-conditioned retrieval, embed queries by `embed(..., task=...)` and
candidates by `embed(...)`.

From the paper: Qwen2.5-VL, at most 200,704 pixels and 768 tokens, cosine similarity, instructions for queries and a
neutral one for candidates. The published card's usage text was not available, so these are inferred, after VLM2Vec
(the code base such models descend from), and can be set: `prompt_style`, `positions`, the instructions' words.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.checkpoints import config as configs
from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.errors import CheckpointError, understanding
from idmetric.metric.checkpoints.hub import Files, Hub, fetch_folder
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.files.hints import need
from idmetric.metric.files.output import replacing
from idmetric.metric.images.masks import Images, MaskId, Masks, labeled, split_masks
from idmetric.metric.images.read import ImageLike, Outside, split_images
from idmetric.metric.images.resize import place
from idmetric.metric.models.batches import in_batches, warn_of_lost_graph
from idmetric.metric.models.devices import opening
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.models.visid_config import CANDIDATE, IMAGE, MOST_RATIO, STEP, TASKS, VisIDConfig
from idmetric.metric.models.visid_files import (
    CLASSES,
    FILES,
    SETTINGS,
    folder_revision,
    open_model,
    read_normalization,
    read_settings,
)
from idmetric.metric.models.visid_tokens import patchify, prompt_tokens, vision_positions

__all__ = ["CANDIDATE", "MOST_RATIO", "TASKS", "VisIDConfig", "VisIDEmbed"]


class VisIDEmbed(Embedder):
    """Identity similarity after VisME; needs transformers (`pip install 'idmetric[visid]'`).

    >>> metric = VisIDEmbed()  # doctest: +SKIP
    >>> metric("reference.jpg", ["a.png", "b.png"])  # distances, shape (2,)  # doctest: +SKIP
    >>> query = metric.embed("person.jpg", task="reidentification")  # doctest: +SKIP
    >>> metric(query, metric.embed(gallery))  # doctest: +SKIP

    Args:
        source: "3b" (default) or "7b", the published models, downloaded once; or a folder or Hub repository with a
            Qwen2.5-VL or Qwen2-VL in transformers' format.
        config: see `VisIDConfig`; default the settings saved with the model, else the defaults.
        dtype: default the weights' own (bfloat16 for the published ones).
        revision, device, background, cache_dir, token, local_files_only: as for `IDSim`.

    `Embedding.patches` are the hidden states at the image's tokens, as many as max_pixels allows; those an image does
    not fill have weight 0.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood. No other model is ever loaded instead.
    """

    model_type = "visid"
    settings: VisIDConfig

    @opening()
    def __init__(
        self,
        source: str | os.PathLike[str] = "3b",
        *,
        config: VisIDConfig | None = None,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        background: tuple[int, int, int] = (255, 255, 255),
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        need("visid", "VisIDEmbed", transformers="transformers")
        import transformers

        name = released.source_name(source)
        known = f"visid_{name}"
        hub = Hub(revision, cache_dir, token, local_files_only)
        folder = fetch_folder(released.files_of(known if known in released.VISID else name, released.VISID, hub), FILES)
        architecture = checkpoint.read_json(Files(folder)[checkpoint.CONFIG])
        kind = architecture.get("model_type")
        if kind not in list(CLASSES):
            raise CheckpointError(
                f"{name!r} holds a model of type {kind!r}, not {' or '.join(CLASSES)}: use idmetric.load"
            )
        with understanding(folder):
            mean, std = read_normalization(folder)
            configs.check_view(1, mean, std)
        settings = config or read_settings(folder)
        side = math.isqrt(settings.max_pixels)
        super().__init__(
            name=name,
            revision=folder_revision(folder),
            image_size=(side, side),
            mean=mean,
            std=std,
            background=background,
            files=Files(folder),
        )
        self.settings = settings
        self.backbone, self.tokenizer = open_model(getattr(transformers, CLASSES[kind]), transformers, folder, dtype)
        vision = self.backbone.config.vision_config
        if (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size) != (14, 2, 2):
            raise CheckpointError(f"{name!r} does not cut images into 2 x 2 patches of 14 pixels, as Qwen2.5-VL does")
        self._image_token = int(self.tokenizer.convert_tokens_to_ids(IMAGE))
        self._control = [token for token in self.tokenizer.get_added_vocab() if token.startswith("<|")]
        self._finish(device, None)

    # Pixels and words in, embedding out

    @property
    def resolution(self) -> str:
        """The fewest and the most pixels at which images are seen."""
        return f"{self.settings.min_pixels}-{self.settings.max_pixels}px"

    @property
    def label(self) -> str:
        """See `Embedder.label`: prompt style, positions, and a digest of all settings."""
        digest = hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode()).hexdigest()[:6]
        return f"{super().label}[{self.settings.prompt_style},{self.positions},{digest}]"

    @property
    def positions(self) -> str:
        """The kind of positions: "vision" or "sequential"."""
        if self.settings.positions != "auto":
            return self.settings.positions
        return "sequential" if self.settings.prompt_style == "vlm2vec" else "vision"

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """See `VisIDConfig.size_for`."""
        return self.settings.size_for(height, width)

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        """Embed pixels (B, 3, h, w) at their final size under the default instruction."""
        return self._run(list(pixels), [self.settings.instruction] * len(pixels))

    def embed(
        self,
        images: Images | Sequence[ImageLike | None] | None = None,
        *,
        texts: str | Sequence[str] | None = None,
        task: str | None = None,
        instruction: str | None = None,
        batch_size: int = 8,
        masks: Masks = None,
        mask_id: MaskId | None = None,
        outside: Outside = "black",
        patches: bool = True,
        workers: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Embedding:
        """Embed images, texts, or pairs of both, in batches, without building a graph.

        Args:
            images: as for `Embedder.embed`; None for texts alone, also within a list of images.
            texts: a text for each image (a caption, an edit), or one for all.
            task: the instruction of one of the meta-tasks, a key of `TASKS`, for queries.
            instruction: its words instead; "" for none. Default: the settings', which differ for texts alone.
            batch_size, masks, mask_id, outside, patches, workers, progress: as for `Embedder.embed`.

        Raises:
            ImageReadError: naming the image that cannot be read.
            ValueError: for nothing to embed, texts or masks that do not fit the images, or an unknown task.
        """
        if task is not None:
            if instruction is not None:
                raise ValueError("give a task or an instruction, not both")
            if task not in TASKS:
                raise ValueError(f"unknown task {task!r}: choose {', '.join(TASKS)}, or give instruction=")
            instruction = TASKS[task]

        warn_of_lost_graph(images)
        with torch.no_grad():
            return self._embed(
                images, batch_size, labeled(masks, mask_id), outside, patches, progress, workers, texts, instruction
            )

    def _embed(
        self,
        images: Images | Sequence[ImageLike | None] | None,
        batch_size: int,
        masks: Masks,
        outside: Outside,
        patches: bool,
        progress: Callable[[int, int], None] | None = None,
        workers: int = 0,
        texts: str | Sequence[str] | None = None,
        instruction: str | None = None,
    ) -> Embedding:
        written = [texts] if isinstance(texts, str) else list(texts or [])
        singles: list[ImageLike | None] = _singles(images) if images is not None else [None] * len(written)
        if not singles:
            raise ValueError("nothing to embed: give images, texts, or both")
        if not written or len(written) == 1:
            written = (written or [""]) * len(singles)
        if len(written) != len(singles):
            raise ValueError(f"{len(written)} texts for {len(singles)} images: give one for each, or one for all")
        if images is None and masks is not None:
            raise ValueError("masks were given without images")
        covers = split_masks(masks, singles)
        defaults = self.settings.instruction, self.settings.text_instruction
        asked = [defaults[image is None] if instruction is None else instruction for image in singles]
        words = [self.settings.joiner.join(x for x in pair if x) for pair in zip(asked, written, strict=True)]
        patches = patches and all(image is not None for image in singles)  # a text alone has none

        def load(number: int) -> tuple[Tensor | None, Tensor | None, str]:
            image = singles[number]
            if image is None:
                return None, None, words[number]
            return *self.load_image(image, covers[number], outside), words[number]

        def run(items: list[tuple[Tensor | None, Tensor | None, str]]) -> Embedding:
            pixels, item_covers, item_words = zip(*items, strict=True)
            return self._run(pixels, item_words, item_covers)

        return in_batches(load, run, singles, self.dtype, batch_size, patches, progress, workers)

    def encode_items(self, pixels: Sequence[Tensor | None], words: Sequence[str]) -> Tensor:
        """Embed items differentiably, as `embed` does: unit vectors (B, D), without patches.

        Args:
            pixels: (3, h, w) in [0, 1] at the size that `size_for` gives, or None for a text alone; of each item.
            words: everything an item says, its instruction included.
        """
        return self._run(pixels, words, patches=False).cls

    def _run(
        self,
        pixels: Sequence[Tensor | None],
        words: Sequence[str],
        covers: Sequence[Tensor | None] | None = None,
        patches: bool = True,
    ) -> Embedding:
        """One forward pass over items: their pixels at the final size (or None) and words."""
        inputs, last = self._inputs(pixels, words)
        hidden = self.backbone(**inputs, use_cache=False).last_hidden_state

        if self.settings.pooling == "mean":
            weight = inputs["attention_mask"].to(hidden.device)[..., None]
            pooled = (_wide(hidden) * weight).sum(1) / weight.sum(1)
        else:
            pooled = _wide(hidden[torch.arange(len(last)), last])
        features = F.normalize(pooled, dim=-1)

        if not patches or any(x is None for x in pixels):  # a text alone has no patches
            return Embedding(features, model=self._maker())
        tokens, weights = self._patches(hidden, inputs["input_ids"] == self._image_token, covers)
        return Embedding(features, tokens, None, weights, self._maker())

    def _inputs(self, pixels: Sequence[Tensor | None], words: Sequence[str]) -> tuple[dict[str, Tensor], list[int]]:
        """The backbone's arguments, padded to one length, and the place of each item's last token."""
        shown = [place(x, self.device) for x in pixels if x is not None]
        grids = [None if x is None else (x.shape[1] // STEP, x.shape[2] // STEP) for x in pixels]
        ids = [self._tokens(text, grid) for text, grid in zip(words, grids, strict=True)]

        length = max(len(x) for x in ids)
        tokens = torch.full((len(ids), length), self.tokenizer.pad_token_id or 0)
        attended = torch.zeros(len(ids), length, dtype=torch.long)
        positions = torch.zeros(3, len(ids), length, dtype=torch.long)
        last = []
        for i, (own, grid) in enumerate(zip(ids, grids, strict=True)):
            span = slice(0, len(own))
            tokens[i, span], attended[i, span] = torch.tensor(own), 1
            if grid is None or self.positions == "sequential":
                positions[:, i, span] = torch.arange(len(own))
            else:
                positions[:, i, span] = vision_positions(torch.tensor(own), grid, self._image_token)
            last.append(len(own) - 1)

        inputs: dict[str, Tensor] = {"input_ids": tokens, "attention_mask": attended, "position_ids": positions}
        if shown:
            inputs["pixel_values"] = torch.cat([patchify(self.normalize(x).to(self.dtype)) for x in shown])
            inputs["image_grid_thw"] = torch.tensor([[1, 2 * g[0], 2 * g[1]] for g in grids if g is not None])
        return {key: value.to(self.device) for key, value in inputs.items()}, last

    def _patches(self, hidden: Tensor, where: Tensor, covers: Sequence[Tensor | None] | None) -> tuple[Tensor, Tensor]:
        room = self.settings.max_pixels // STEP**2
        patches, weights = [], []
        for i, own in enumerate(where.to(hidden.device)):
            found = F.normalize(_wide(hidden[i][own]), dim=-1)
            cover = None if covers is None else covers[i]
            weight = found.new_ones(len(found))
            if cover is not None:
                weight = F.avg_pool2d(cover[None, None].to(found), STEP).flatten()
            patches.append(F.pad(found, (0, 0, 0, room - len(found))))
            weights.append(F.pad(weight, (0, room - len(found))))
        return torch.stack(patches), torch.stack(weights)

    def check_words(self, words: str) -> None:
        """Refuse a text that holds a control token of the model: ValueError."""
        if found := [token for token in self._control if token in words]:
            raise ValueError(f"a text may not hold the control token {found[0]}")

    def check_limits(self) -> None:
        """Refuse a max_length that does not hold the largest image and the prompt's template: ValueError."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of words that are cut
            self._tokens(self.settings.instruction, (self.settings.max_pixels // STEP**2, 1))

    def _tokens(self, words: str, grid: tuple[int, int] | None) -> list[int]:
        self.check_words(words)
        return prompt_tokens(words, grid, self.settings, self.tokenizer)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # angles are products of these frequencies and positions up to thousands: 16 bits would move them by radians
        rotary: list[Any] = [module for module in self.modules() if hasattr(module, "inv_freq")]
        frequencies = [module.inv_freq for module in rotary]
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        for module, exact in zip(rotary, frequencies, strict=True):
            module.inv_freq = exact.to(module.inv_freq.device)
        return moved

    # Files

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write transformers' files and visid.json; `idmetric.load(folder)` opens them again."""
        target = Path(folder)
        self.backbone.save_pretrained(target)
        self.tokenizer.save_pretrained(target)
        processor = {"image_mean": self.mean, "image_std": self.std}
        with replacing(target / released.PROCESSOR) as path:
            path.write_text(json.dumps(processor), encoding="utf-8")
        with replacing(target / SETTINGS) as path:
            path.write_text(json.dumps(self.config(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
        self._name_saved(target, folder_revision)


def _singles(images: Images | Sequence[ImageLike | None]) -> list[ImageLike | None]:
    """One flat list of single images, with None where a list has a text without an image."""
    if not isinstance(images, list | tuple) or all(one is not None for one in images):
        return list(split_images(images))  # type: ignore[arg-type]  # no None is among them
    found: list[ImageLike | None] = []
    for one in images:
        found += [None] if one is None else split_images(one)
    return found


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
