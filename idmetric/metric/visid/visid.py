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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.config import check_view
from idmetric.metric.checkpoints.pretrained import FILES, folder_revision, open_model, open_processor
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.checkpoints.weights import dtype_of
from idmetric.metric.embedder import (
    Embedder,
    OnProgress,
    at_least_float32,
    auto_device,
    opening,
)
from idmetric.metric.embedding import Embedding
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath, need, replacing
from idmetric.metric.images import WHITE, Color, ImageLike, Outside, split_images
from idmetric.metric.load import tell_apart
from idmetric.metric.masks import Images, MaskId, Masks
from idmetric.metric.visid.config import IMAGE, STEP, TASKS, VisIDConfig
from idmetric.metric.visid.prompt import PromptInput, patchify, prompt_tokens, vision_positions

SETTINGS = "visid.json"
# model_type -> transformers' class; the paper trains both (Table 1)
CLASSES = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration"}


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
    reads_words = True
    settings: VisIDConfig

    @opening()
    def __init__(
        self,
        source: StrPath = "3b",
        *,
        config: VisIDConfig | None = None,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        background: Color = WHITE,
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        need("visid", "VisIDEmbed", transformers="transformers")

        # the folder, and what it says
        name = released.source_name(source)
        folder = resolve(
            f"visid_{name}" if f"visid_{name}" in released.VISID else name,
            FILES,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            local_files_only=local_files_only,
        )
        config_file = checkpoint.file_of(folder, checkpoint.CONFIG)
        kind = checkpoint.read_json(config_file).get("model_type")
        if kind not in list(CLASSES):
            raise CheckpointError(
                f"{name!r} holds a model of type {kind!r}, not {' or '.join(CLASSES)}: use idmetric.load"
            )
        processor = open_processor("Qwen2VLImageProcessor", folder)
        with understanding(folder):
            check_view(1, processor.image_mean, processor.image_std)
        settings = config or VisIDConfig()
        if config is None and (folder / SETTINGS).is_file():
            with understanding(folder / SETTINGS):
                settings = VisIDConfig(**checkpoint.read_json(folder / SETTINGS))

        side = math.isqrt(settings.max_pixels)
        super().__init__(
            name=name,
            revision=folder_revision(folder),
            image_size=(side, side),
            mean=processor.image_mean,
            std=processor.image_std,
            background=background,
            folder=folder,
        )
        self.settings = settings
        tell_apart(self)

        # opened with its language head, so that transformers finds the names of either class; files may lack the head
        whole = open_model(
            CLASSES[kind],
            folder,
            list(CLASSES),
            dtype=dtype_of(dtype),
            device=device or auto_device(),
            unused=["lm_head."],
        )
        self.backbone = whole.model
        self.processor = processor
        self.tokenizer = open_processor("AutoTokenizer", folder)
        self._image_token = int(self.tokenizer.convert_tokens_to_ids(IMAGE))
        added_tokens = self.tokenizer.get_added_vocab()
        self._control_tokens = [token for token in added_tokens if token.startswith("<|")]
        self._finish(device, None)

    # Pixels and words in, embedding out

    @property
    def resolution(self) -> str:
        """The fewest and the most pixels at which images are seen."""
        return f"{self.settings.min_pixels}-{self.settings.max_pixels}px"

    @property
    def label(self) -> str:
        """See `Embedder.label`: prompt style, positions, and a digest of all settings."""
        settings = json.dumps(self.config(), sort_keys=True)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:6]
        style = self.settings.prompt_style
        return f"{super().label}[{style},{self.positions},{digest}]"

    @property
    def positions(self) -> str:
        """The kind of positions: "vision" or "sequential"."""
        if self.settings.positions != "auto":
            return self.settings.positions
        if self.settings.prompt_style == "vlm2vec":
            return "sequential"
        return "vision"

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        """Embed pixels (B, 3, h, w) at their final size under the default instruction."""
        instruction = self.settings.instruction
        items = [PromptInput(instruction, image) for image in pixels]
        return self.embed_prepared(items)

    def embed(  # type: ignore[override]  # texts and an instruction in place of words
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
        progress: OnProgress | None = None,
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
            ValueError: for no images and texts, texts or masks that do not fit the images, or an unknown task.
        """
        if task is not None:
            if instruction is not None:
                raise ValueError("give a task or an instruction, not both")
            if task not in TASKS:
                raise ValueError(f"unknown task {task!r}: choose {', '.join(TASKS)}, or give instruction=")
            instruction = TASKS[task]

        texts = [texts] if isinstance(texts, str) else list(texts or [])
        singles: list[Any]
        if images is None:
            if masks is not None:
                raise ValueError("masks were given without images")
            singles = [None] * len(texts)
        elif isinstance(images, list | tuple) and any(image is None for image in images):
            singles = list(images)
        else:
            singles = split_images(images)  # type: ignore[arg-type]  # none of them is None
        return super().embed(
            singles,
            words=self._words(singles, texts, instruction),
            batch_size=batch_size,
            masks=masks,
            mask_id=mask_id,
            outside=outside,
            patches=patches and all(image is not None for image in singles),  # a text alone has no patches
            workers=workers,
            progress=progress,
        )

    def _words(self, images: Sequence[Any], texts: Sequence[str], instruction: str | None) -> list[str]:
        """All words of each image: an instruction, None for the default, and its text, of which one holds for all."""
        if len(texts) <= 1:
            texts = [*texts, ""][:1] * len(images)
        if len(texts) != len(images):
            raise ValueError(f"{len(texts)} texts for {len(images)} images: give one for each, or one for all")
        words = []
        for image, text in zip(images, texts, strict=True):
            asked = self._default_instruction(image) if instruction is None else instruction
            parts = [part for part in (asked, text) if part]
            words.append(self.settings.joiner.join(parts))
        return words

    def _default_instruction(self, image: Any) -> str:
        return self.settings.text_instruction if image is None else self.settings.instruction

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """See `Embedder.size_for`."""
        return self.settings.size_for(height, width)

    def prepare(
        self, picture: Image.Image | Tensor | None, cover: Tensor | None = None, words: str | None = None
    ) -> PromptInput:
        """See `Embedder.prepare`."""
        if words is None:
            words = self._default_instruction(picture)
        if picture is None:
            return PromptInput(words)
        pixels, pixel_cover = super().prepare(picture, cover)
        return PromptInput(words, pixels, pixel_cover)

    def encode_items(self, pixels: Sequence[Tensor | None], words: Sequence[str]) -> Tensor:
        """Embed items differentiably, as `embed` does: unit vectors (B, D), without patches.

        Args:
            pixels: (3, h, w) in [0, 1] at the size that `size_for` gives, or None for a text alone; of each item.
            words: everything an item says, its instruction included.
        """
        items = [PromptInput(text, image) for text, image in zip(words, pixels, strict=True)]
        return self.embed_prepared(items, patches=False).cls

    def embed_prepared(self, batch: Sequence[PromptInput], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`; a batch with a text alone has no patches."""
        count = len(batch)
        inputs = self._inputs(batch)
        hidden = self.backbone(**inputs, use_cache=False).last_hidden_state

        attended = inputs["attention_mask"]
        if self.settings.pooling == "mean":
            weight = attended[..., None]
            pooled = (at_least_float32(hidden) * weight).sum(1) / weight.sum(1)
        else:
            rows = torch.arange(count, device=self.device)
            last_columns = attended.sum(1) - 1
            pooled = at_least_float32(hidden[rows, last_columns])
        features = F.normalize(pooled, dim=-1)
        if not patches or any(item.pixels is None for item in batch):
            return Embedding(features, model=self._maker())

        # hidden states at the image's tokens, as many as the largest image has; those that are not filled weigh 0
        most = self.settings.max_pixels // STEP**2
        tokens = features.new_zeros(count, most, features.shape[-1])
        weights = features.new_zeros(count, most)
        is_image_token = inputs["input_ids"] == self._image_token
        for row, item in enumerate(batch):
            states = at_least_float32(hidden[row, is_image_token[row]])
            length = len(states)
            tokens[row, :length] = F.normalize(states, dim=-1)
            weights[row, :length] = 1
            if item.cover is not None:
                cover = item.cover[None, None].to(weights)
                shares = F.avg_pool2d(cover, STEP)
                weights[row, :length] = shares.flatten()
        return Embedding(features, tokens, None, weights, self._maker())

    def _inputs(self, items: Sequence[PromptInput]) -> dict[str, Tensor]:
        """The backbone's arguments, padded at the end to one length."""
        ids, positions, patches, grids = [], [], [], []
        for item in items:
            token_ids = torch.tensor(self._tokens(item))
            position = torch.arange(len(token_ids)).expand(3, -1)
            if item.pixels is not None:
                if self.positions == "vision":
                    position = vision_positions(token_ids, item.grid, self._image_token)
                normalized = self.normalize(item.pixels)
                patches.append(patchify(normalized.to(self.dtype)))
                rows, columns = item.grid
                grids.append((1, 2 * rows, 2 * columns))
            ids.append(token_ids)
            positions.append(position.T)

        padding_id = self.tokenizer.pad_token_id or 0
        inputs = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=padding_id),
            "attention_mask": pad_sequence([torch.ones_like(token_ids) for token_ids in ids], batch_first=True),
            "position_ids": pad_sequence(positions, batch_first=True).movedim(-1, 0),
        }
        if patches:
            inputs["pixel_values"] = torch.cat(patches)
            inputs["image_grid_thw"] = torch.tensor(grids)
        return {key: value.to(self.device) for key, value in inputs.items()}

    def check_words(self, words: str) -> None:
        """Refuse a text that holds a control token of the model: ValueError."""
        for token in self._control_tokens:
            if token in words:
                raise ValueError(f"a text may not hold the control token {token}")

    def check_limits(self) -> None:
        """Refuse a max_length that does not hold the largest image and the prompt's template: ValueError."""
        most_tokens = self.settings.max_pixels // STEP**2
        largest = torch.empty(3, most_tokens * STEP, STEP, device="meta")
        self._tokens(PromptInput(self.settings.instruction, largest))

    def _tokens(self, item: PromptInput) -> list[int]:
        self.check_words(item.words)
        return prompt_tokens(item, self.settings, self.tokenizer)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # angles are products of these frequencies and positions up to thousands: 16 bits would move them by radians
        rotary: list[Any] = [module for module in self.modules() if hasattr(module, "inv_freq")]
        frequencies = [module.inv_freq for module in rotary]
        moved: Self = super()._apply(fn, recurse)
        for module, exact in zip(rotary, frequencies, strict=True):
            module.inv_freq = exact.to(module.inv_freq.device)
        return moved

    def save_pretrained(self, folder: StrPath) -> None:
        """Write transformers' files and visid.json, see `Embedder.save_pretrained`."""
        checkpoint.check_plain(self.state_dict())
        target = Path(folder)
        self.backbone.save_pretrained(target)
        self.tokenizer.save_pretrained(target)
        self.processor.save_pretrained(target)
        settings = json.dumps(self.config(), indent=2, sort_keys=True)
        with replacing(target / SETTINGS) as path:
            path.write_text(settings + "\n", encoding="utf-8")
        self._after_saving(target, folder_revision)
