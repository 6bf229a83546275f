"""VisIDEmbed: VisME (Cao et al., "Illuminating Visual Identity in Universal Multimodal Embeddings", arXiv 2608.01794).

Qwen2.5-VL as an embedding model: an image, a text, or both go through the language model, and the last layer's hidden
state at the last token, scaled to unit length, is the embedding. An instruction tells what to compare: a query may ask
for "the same person", a candidate is only represented. `metric(a, b)` gives both sides the same instruction, so that an
image is at distance 0 from itself; for instruction-conditioned retrieval embed queries by `embed(..., task=...)` and
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
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from idmetric.checkpoints import config as configs
from idmetric.checkpoints import format as checkpoint
from idmetric.checkpoints import released
from idmetric.checkpoints.errors import CheckpointError, understanding
from idmetric.checkpoints.hub import Files, Hub, fetch_folder
from idmetric.checkpoints.revision import revision_of
from idmetric.checkpoints.weights import check_finite
from idmetric.images.arrays import check_pixels
from idmetric.images.masks import MaskId, labelled
from idmetric.images.pairing import Images, Masks, split_masks
from idmetric.images.read import ImageLike, Outside, split_images
from idmetric.images.resize import place, resize_pixels
from idmetric.io.hints import install
from idmetric.io.output import replacing
from idmetric.io.quiet import quiet
from idmetric.models.batches import in_batches, names_of
from idmetric.models.embedder import Embedder
from idmetric.models.embedding import Embedding

# the paper's four meta-tasks, in our own words
TASKS = {
    "recognition": "Find other images of the same object as in this image.",
    "reidentification": "Find other photos of the same individual as in this photo.",
    "grounding": "Find the images in which the subject of this image appears.",
    "editing": "Find the image that this edit of the image leads to:",
}
CANDIDATE = "Represent the image"  # the example the paper gives

SETTINGS = "visid.json"
_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]  # of a Hub repository: no code, no pickles
_IMAGE, _STEP = "<|image_pad|>", 28  # one token stands for 28 x 28 pixels
MOST_RATIO = 200  # of an image's longer side to its shorter one, as in Qwen2-VL's processor
_MOST_PIXELS = 2**25  # 42,799 tokens; Qwen2.5-VL's processor takes 16,384

# of whole numbers in config.json, far above those of any published model
_BOUNDS = {
    **dict.fromkeys(("num_hidden_layers", "depth"), 1000),
    **dict.fromkeys(("hidden_size", "intermediate_size", "embed_dim", "out_hidden_size", "vocab_size"), 2**20),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads"), 2**12),
}

# model_type -> transformers' class; the paper trains both (Table 1)
_CLASSES = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration"}

# what stands before, with an image after that, and at the end
_STYLES = {
    "vlm2vec": ("", _IMAGE, ""),
    "chat": (
        "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n",
        f"<|vision_start|>{_IMAGE}<|vision_end|>",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
}


@dataclass(frozen=True)
class VisIDConfig:
    """How images and words become tokens; saved in visid.json.

    Args:
        prompt_style: "vlm2vec": image, a space, the words, nothing else; "chat": Qwen's chat template, with the
            embedding read after the assistant's header.
        positions: "vision": an image's tokens get rows and columns as rotary positions; "sequential": they are counted
            like words; "auto": "sequential" for vlm2vec, "vision" for chat. It matters because transformers 4.52,
            which VLM2Vec pins, finds images by the token <|vision_start|>, which the vlm2vec style lacks, and so
            counted them like words, whereas transformers 5 gives the same prompt rows and columns.
        instruction: what `embed` says of an image where no other instruction is given.
        text_instruction: the same for texts alone.
        min_pixels, max_pixels: an image is scaled, keeping its shape, to lie between; sides are multiples of 28.
        max_length: tokens, image included; longer texts are cut, with a warning.
        separator: between image and words; default a space for vlm2vec, nothing for chat. VLM2Vec itself uses a line
            break in its evaluation.
        joiner: between instruction and text.
        suffix: after the words, where there are any. VLM2Vec's evaluation ends queries with a line break.
        system: the system's words of the chat template.
        pooling: "last": the hidden state at the last token; "mean": the mean over all tokens.
    """

    prompt_style: Literal["vlm2vec", "chat"] = "vlm2vec"
    positions: Literal["auto", "vision", "sequential"] = "auto"
    instruction: str = CANDIDATE
    min_pixels: int = 4 * _STEP * _STEP
    max_pixels: int = 256 * _STEP * _STEP  # paper: 200,704, 256 tokens
    max_length: int = 768
    text_instruction: str = ""
    separator: str | None = None
    joiner: str = " "
    suffix: str = ""
    system: str = "You are a helpful assistant."
    pooling: Literal["last", "mean"] = "last"

    def __post_init__(self) -> None:
        if self.prompt_style not in _STYLES:
            raise ValueError(f"unknown prompt_style {self.prompt_style!r}: choose {', '.join(_STYLES)}")
        if self.positions not in ("auto", "vision", "sequential"):
            raise ValueError(f"unknown positions {self.positions!r}: choose auto, vision, sequential")
        if self.pooling not in ("last", "mean"):
            raise ValueError(f"unknown pooling {self.pooling!r}: choose last, mean")
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        if self.max_pixels > _MOST_PIXELS:
            raise ValueError(f"max_pixels = {self.max_pixels}: at most {_MOST_PIXELS} are possible")
        if not _STEP**2 <= self.min_pixels <= self.max_pixels:
            raise ValueError(f"need {_STEP**2} <= min_pixels <= max_pixels, got {self.min_pixels}, {self.max_pixels}")


class VisIDEmbed(Embedder):
    """Identity similarity after VisME; needs transformers (`pip install 'idmetric[visid]'`).

    >>> metric = VisIDEmbed()  # doctest: +SKIP
    >>> metric("reference.jpg", ["a.png", "b.png"])  # distances, shape (2,)  # doctest: +SKIP
    >>> query = metric.embed("person.jpg", task="reidentification")  # doctest: +SKIP
    >>> metric(query, metric.embed(gallery))  # doctest: +SKIP

    Args:
        source: "3b" (default) or "7b", the published models, downloaded once; or a folder or Hub repository with a
            Qwen2.5-VL or Qwen2-VL in transformers' format.
        config: see `VisIDConfig`; default what was saved with the model, else the defaults.
        revision: commit of a Hub repository.
        device: default CUDA, else MPS, else CPU. dtype: default the weights' own (bfloat16 for the published ones).
        background: RGB colour (0-255) that shows through transparent images.
        cache_dir, token, local_files_only: see `idmetric.checkpoints.hub.Hub`.

    `Embedding.patches` are the hidden states at the image's tokens, as many as max_pixels allows; those an image does
    not fill have weight 0.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood. No other model is ever loaded instead.
    """

    model_type = "visid"

    @torch.inference_mode(False)  # otherwise a later backward pass could not use the weights
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
        transformers = _transformers()
        name = os.fspath(source)
        known = f"visid_{name}"
        hub = Hub(revision, cache_dir, token, local_files_only)
        folder = fetch_folder(
            released.files_of(known if known in released.VISID else name, released.VISID, hub), _FILES
        )
        architecture = checkpoint.read_json(Files(folder)[checkpoint.CONFIG])
        kind = architecture.get("model_type")
        if kind not in list(_CLASSES):
            raise CheckpointError(
                f"{name!r} holds a model of type {kind!r}, not {' or '.join(_CLASSES)}: use idmetric.load"
            )
        _check_sizes(architecture, str(folder / checkpoint.CONFIG))
        with understanding(folder):
            mean, std = _normalisation(folder)
            configs.check_view(1, mean, std)
        settings = config or _settings(folder)
        side = math.isqrt(settings.max_pixels)
        super().__init__(
            name=name,
            revision=_revision(folder),
            image_size=(side, side),
            mean=mean,
            std=std,
            background=background,
            files=Files(folder),
        )
        self.settings = settings
        self.padding_side: Literal["right", "left"] = "right"  # scores do not depend on it
        self.backbone, self.tokenizer = _open(getattr(transformers, _CLASSES[kind]), transformers, folder, dtype)
        vision = self.backbone.config.vision_config
        if (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size) != (14, 2, 2):
            raise CheckpointError(f"{name!r} does not cut images into 2 x 2 patches of 14 pixels, as Qwen2.5-VL does")
        self._image_token = int(self.tokenizer.convert_tokens_to_ids(_IMAGE))
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
        """The kind of positions that "auto" means."""
        if self.settings.positions != "auto":
            return self.settings.positions
        return "sequential" if self.settings.prompt_style == "vlm2vec" else "vision"

    def config(self) -> dict[str, Any]:
        """See `Embedder.config`."""
        return asdict(self.settings)

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """The nearest multiples of 28, scaled to lie within min_pixels and max_pixels, as Qwen2-VL's processor does.

        In the vlm2vec style images with a side under 28 pixels become 56 x 56, as VLM2Vec makes them.
        """
        low, high = self.settings.min_pixels, self.settings.max_pixels
        if max(height, width) > MOST_RATIO * min(height, width):
            raise ValueError(
                f"Qwen2.5-VL takes no side ratio above {MOST_RATIO}, this one has {width} x {height}: crop it"
            )
        if self.settings.prompt_style == "vlm2vec" and min(height, width) < _STEP and low <= 4 * _STEP**2 <= high:
            return 2 * _STEP, 2 * _STEP
        rows, columns = (round(side / _STEP) * _STEP for side in (height, width))
        if rows * columns > high:
            scale = math.sqrt(height * width / high)
            rows, columns = (max(_STEP, math.floor(side / scale / _STEP) * _STEP) for side in (height, width))
        elif rows * columns < low:
            scale = math.sqrt(low / (height * width))
            rows, columns = (math.ceil(side * scale / _STEP) * _STEP for side in (height, width))
        if rows * columns > high:  # a narrow limit and a long image: the processor would exceed it
            short, long = min(rows, columns), max(_STEP, high // (min(rows, columns) * _STEP) * _STEP)
            rows, columns = (long, short) if rows > columns else (short, long)
        return rows, columns

    def forward(self, pixels: Tensor) -> Embedding:
        """Embed pixels (B, 3, H, W) in [0, 1] under the default instruction, differentiably."""
        if not torch.compiler.is_compiling():
            check_pixels(pixels)
        pixels = resize_pixels(pixels, self.size_for(pixels.shape[-2], pixels.shape[-1]), self.interpolation)
        return self._run(list(pixels), [self.settings.instruction] * len(pixels))

    def embed(
        self,
        images: Images | None = None,
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
            images: as for `Embedder.embed`; None for texts alone.
            texts: a text for each image (a caption, an edit), or one for all.
            task: the instruction of one of the meta-tasks, a key of `TASKS`, for queries.
            instruction: its words instead; "" for none. Default: the settings'.
            batch_size, masks, mask_id, outside, patches, workers, progress: as for `Embedder.embed`.

        Raises:
            ImageReadError: naming the image that cannot be read.
            ValueError: for nothing to embed, texts or masks that do not fit the images, or an unknown task.
        """
        with torch.no_grad():
            return self._embed_items(
                images, texts, self._instruction(task, instruction, images is None), batch_size,
                labelled(masks, mask_id), outside, patches, progress, workers,
            )  # fmt: skip

    def _instruction(self, task: str | None, instruction: str | None, text_only: bool) -> str:
        if task is not None and instruction is not None:
            raise ValueError("give a task or an instruction, not both")
        if task is not None:
            if task not in TASKS:
                raise ValueError(f"unknown task {task!r}: choose {', '.join(TASKS)}, or give instruction=")
            return TASKS[task]
        if instruction is not None:
            return instruction
        return self.settings.text_instruction if text_only else self.settings.instruction

    def _embed(
        self,
        images: Images,
        batch_size: int,
        masks: Masks,
        outside: Outside,
        patches: bool,
        progress: Callable[[int, int], None] | None = None,
        workers: int = 0,
    ) -> Embedding:
        words = self.settings.instruction
        return self._embed_items(images, None, words, batch_size, masks, outside, patches, progress, workers)

    def _embed_items(
        self,
        images: Images | None,
        texts: str | Sequence[str] | None,
        instruction: str,
        batch_size: int,
        masks: Masks,
        outside: Outside,
        patches: bool,
        progress: Callable[[int, int], None] | None,
        workers: int,
    ) -> Embedding:
        written = [texts] if isinstance(texts, str) else list(texts or [])
        singles: list[ImageLike | None] = list(split_images(images)) if images is not None else [None] * len(written)
        if not singles:
            raise ValueError("nothing to embed: give images, texts, or both")
        if not written or len(written) == 1:
            written = (written or [""]) * len(singles)
        if len(written) != len(singles):
            raise ValueError(f"{len(written)} texts for {len(singles)} images: give one for each, or one for all")
        if images is None and masks is not None:
            raise ValueError("masks were given without images")
        covers = split_masks(masks, singles)
        words = [self.settings.joiner.join(x for x in (instruction, text) if x) for text in written]

        Items = tuple[list[tuple[Tensor | None, Tensor | None]], list[str]]

        def load(part: slice) -> Items:
            items: list[tuple[Tensor | None, Tensor | None]] = [
                (None, None) if image is None else self.load_image(image, mask, outside)
                for image, mask in zip(singles[part], covers[part], strict=True)
            ]
            return items, words[part]

        def run(loaded: Items) -> Embedding:
            items, said = loaded
            return self._run([pixels for pixels, _ in items], said, [cover for _, cover in items])

        check = partial(self._check, singles)
        return in_batches(load, run, len(singles), batch_size, patches, progress, workers, check, names_of(singles))

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
        """One pass: pixels at their final size (or None) and words, of each item."""
        shown = [place(x, self.device) for x in pixels if x is not None]
        grids = [None if x is None else (x.shape[1] // _STEP, x.shape[2] // _STEP) for x in pixels]
        ids = [self._tokens(text, grid) for text, grid in zip(words, grids, strict=True)]
        length = max(len(x) for x in ids)
        tokens = torch.full((len(ids), length), self.tokenizer.pad_token_id or 0)
        attended = torch.zeros(len(ids), length, dtype=torch.long)
        positions = torch.zeros(3, len(ids), length, dtype=torch.long)
        last = []
        for i, (own, grid) in enumerate(zip(ids, grids, strict=True)):
            start = 0 if self.padding_side == "right" else length - len(own)
            span = slice(start, start + len(own))
            tokens[i, span], attended[i, span] = torch.tensor(own), 1
            positions[:, i, span] = self._positions(torch.tensor(own), grid)
            last.append(start + len(own) - 1)
        inputs: dict[str, Tensor] = {"input_ids": tokens, "attention_mask": attended, "position_ids": positions}
        if shown:
            inputs["pixel_values"] = torch.cat([self._patchify(x) for x in shown])
            inputs["image_grid_thw"] = torch.tensor([[1, 2 * g[0], 2 * g[1]] for g in grids if g is not None])
        inputs = {key: value.to(self.device) for key, value in inputs.items()}
        hidden = self.backbone(**inputs, use_cache=False).last_hidden_state
        if self.settings.pooling == "mean":
            weight = attended.to(hidden.device)[..., None]
            pooled = (_wide(hidden) * weight).sum(1) / weight.sum(1)
        else:
            pooled = _wide(hidden[torch.arange(len(ids)), last])
        features = F.normalize(pooled, dim=-1)
        if len(shown) < len(ids) or not patches:  # a text alone has no patches
            return Embedding(features, model=self._maker())
        tokens_of, weights = self._patches(hidden, tokens == self._image_token, covers)
        return Embedding(features, tokens_of, None, weights, self._maker())

    def _patches(self, hidden: Tensor, where: Tensor, covers: Sequence[Tensor | None] | None) -> tuple[Tensor, Tensor]:
        room = self.settings.max_pixels // _STEP**2
        patches, weights = [], []
        for i, own in enumerate(where.to(hidden.device)):
            found = F.normalize(_wide(hidden[i][own]), dim=-1)
            cover = None if covers is None else covers[i]
            weight = found.new_ones(len(found))
            if cover is not None:
                weight = F.avg_pool2d(cover[None, None].to(found), _STEP).flatten()
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
            self._tokens(self.settings.instruction, (self.settings.max_pixels // _STEP**2, 1))

    def _tokens(self, words: str, grid: tuple[int, int] | None) -> list[int]:
        """Token ids of one item, cut to max_length."""
        self.check_words(words)
        before, image, after = _STYLES[self.settings.prompt_style]
        prompt = before.format(system=self.settings.system)
        if grid is not None:
            separator = self.settings.separator
            if separator is None:
                separator = " " if self.settings.prompt_style == "vlm2vec" else ""
            prompt += image.replace(_IMAGE, _IMAGE * (grid[0] * grid[1])) + (separator if words else "")
        prompt += words.strip(" ") + (self.settings.suffix if words else "") + after
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError("an item without image and without words cannot be embedded")
        limit = self.settings.max_length
        if len(ids) > limit:
            tail: list[int] = self.tokenizer(after, add_special_tokens=False)["input_ids"] if after else []
            ids, lost = ids[: max(0, limit - len(tail))] + tail, len(ids) - limit
            if len(ids) > limit:
                raise ValueError(f"max_length={limit} tokens do not hold the chat template: raise it")
            if grid is not None and ids.count(self._image_token) < grid[0] * grid[1]:
                raise ValueError(f"max_length={limit} tokens do not hold an image of {grid[0] * grid[1]}: raise it")
            warnings.warn(f"a text was cut by {lost} tokens to fit max_length={limit}", UserWarning, stacklevel=2)
        return ids

    def _positions(self, ids: Tensor, grid: tuple[int, int] | None) -> Tensor:
        """Rotary positions (3, L): of time, row and column."""
        count = torch.arange(len(ids)).expand(3, -1)
        if grid is None or self.positions == "sequential":
            return count
        first = int((ids == self._image_token).nonzero()[0])
        rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        image = first + torch.stack([torch.zeros_like(rows), rows, columns]).flatten(1)
        rest = len(ids) - first - image.shape[1]
        after = first + max(grid) + torch.arange(rest).expand(3, -1)
        return torch.cat([count[:, :first], image, after], 1)

    def _patchify(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (3, H, W) in the order and form of Qwen2-VL's processor: (patches, 3 * 2 * 14 * 14)."""
        half = _STEP // 2
        x = self.normalise(pixels).to(self.dtype)
        rows, columns = x.shape[1] // _STEP, x.shape[2] // _STEP
        x = x.reshape(3, rows, 2, half, columns, 2, half).permute(1, 4, 2, 5, 0, 3, 6)
        # a still image counts as two equal frames
        return x.flatten(0, 3)[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1)

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


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"VisIDEmbed needs transformers: {install('visid')}") from error
    return transformers


def _revision(folder: Path) -> str:
    files = [path for pattern in _FILES for path in folder.glob(pattern)]
    if not any(path.suffix == ".safetensors" for path in files):
        raise CheckpointError(f"{str(folder)!r} has no safetensors file")
    return revision_of(*sorted(files))


def _open(architecture: Any, transformers: Any, folder: Path, dtype: torch.dtype | None) -> tuple[Any, Any]:
    try:
        # with its language head, so that transformers finds the names of either class; the head is dropped
        with quiet("transformers"):  # what is missing is told below; the language head may be
            loaded: Any = architecture.from_pretrained(
                folder, dtype=dtype or "auto", local_files_only=True, use_safetensors=True, trust_remote_code=False,
                output_loading_info=True,
            )  # fmt: skip
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"transformers cannot open {str(folder)!r}: {error}") from error
    whole, report = loaded
    missing = [key for key in sorted(report["missing_keys"]) if not key.startswith("lm_head.")]
    unfit = [*missing, *map(str, report["mismatched_keys"])]
    if unfit:
        raise CheckpointError(f"weights of {str(folder)!r} do not fit the model: missing {', '.join(unfit[:5])}")
    check_finite(whole.model.state_dict(), folder)
    return whole.model, tokenizer


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _settings(folder: Path) -> VisIDConfig:
    if not (folder / SETTINGS).is_file():
        return VisIDConfig()
    values = checkpoint.read_json(folder / SETTINGS)
    if unknown := values.keys() - {f.name for f in fields(VisIDConfig)}:
        raise CheckpointError(f"{str(folder / SETTINGS)!r} has settings this version does not know: {sorted(unknown)}")
    try:
        settings = replace(VisIDConfig(), **values)
        configs.check(VisIDConfig, values, numbers=False)
        return settings
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{str(folder / SETTINGS)!r}: {error}") from error


def _check_sizes(config: Any, name: str) -> None:
    """Refuse an architecture beyond all bounds before transformers lays it out."""
    for key, value in config.items():
        if isinstance(value, dict):
            _check_sizes(value, name)
        elif key in _BOUNDS and not (isinstance(value, int) and 1 <= value <= _BOUNDS[key]):
            raise CheckpointError(f"{name!r}: {key} = {configs.shown(value)}: 1 to {_BOUNDS[key]} are possible")


def _normalisation(folder: Path) -> tuple[list[float], list[float]]:
    """Mean and deviation of the image processor's file, whichever name transformers gave it."""
    for name in (released.PROCESSOR, "processor_config.json"):
        if (folder / name).is_file():
            found = checkpoint.read_json(folder / name)
            found = found.get("image_processor", found)
            if "image_mean" in found and "image_std" in found:
                return list(found["image_mean"]), list(found["image_std"])
    raise CheckpointError(f"{str(folder)!r} has no {released.PROCESSOR} with image_mean and image_std")
