"""Tokens, rotary positions and patches of one item, as Qwen2.5-VL takes them."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idmetric.metric.visid.config import IMAGE, STEP, STYLES, VisIDConfig


class PromptInput(NamedTuple):
    """An input of the model.

    Attributes:
        words: everything that it says, its instruction included.
        pixels: (3, h, w) in [0, 1], sides multiples of `STEP`; None for a text alone.
        cover: how much of each pixel the subject's mask covers (h, w).
    """

    words: str
    pixels: Tensor | None = None
    cover: Tensor | None = None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the image's tokens."""
        if self.pixels is None:
            return 0, 0
        _, height, width = self.pixels.shape
        return height // STEP, width // STEP


def prompt_tokens(item: PromptInput, settings: VisIDConfig, tokenizer: Any) -> list[int]:
    """Token ids of an item, cut to max_length with a warning.

    Raises:
        ValueError: for an item without image and words, or a max_length that does not hold image and template.
    """
    words = item.words
    rows, columns = item.grid
    before, image, after = STYLES[settings.prompt_style]

    prompt = before.format(system=settings.system)
    if item.pixels is not None:
        prompt += image.replace(IMAGE, IMAGE * (rows * columns))
        separator = settings.separator
        if separator is None:
            separator = " " if settings.prompt_style == "vlm2vec" else ""
        if words and not words.startswith("\n"):  # MMEB's texts bring their own line break
            prompt += separator
    prompt += words.strip(" ")
    if words:
        prompt += settings.suffix
    ids: list[int] = tokenizer(prompt + after, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError("an item without image and without words cannot be embedded")

    limit = settings.max_length
    excess = len(ids) - limit
    if excess > 0:
        tail: list[int] = tokenizer(after, add_special_tokens=False)["input_ids"]
        ids = ids[: max(0, limit - len(tail))] + tail
        image_token = tokenizer.convert_tokens_to_ids(IMAGE)
        if ids.count(image_token) < rows * columns:
            raise ValueError(f"max_length={limit} tokens do not hold an image of {rows * columns}: raise it")
        warnings.warn(f"a text was cut by {excess} tokens to fit max_length={limit}", UserWarning, stacklevel=3)
    return ids


def vision_positions(ids: Tensor, grid: tuple[int, int], image_token: int) -> Tensor:
    """Rotary positions (3, L) of time, row and column, where an image's tokens have rows and columns.

    The same as `get_rope_index` of transformers, whose arguments and results differ between versions.
    """
    rows, columns = grid
    start = int((ids == image_token).nonzero()[0])
    end = start + rows * columns
    row_numbers = torch.arange(rows)
    column_numbers = torch.arange(columns)
    row, column = torch.meshgrid(row_numbers, column_numbers, indexing="ij")

    positions = torch.arange(len(ids)).repeat(3, 1)
    positions[0, start:end] = start
    positions[1, start:end] = start + row.flatten()
    positions[2, start:end] = start + column.flatten()
    positions[:, end:] += max(rows, columns) - rows * columns
    return positions


def patchify(pixels: Tensor) -> Tensor:
    """Normalized pixels (3, H, W) as the patches of Qwen2-VL's processor, (patches, 3 * 2 * 14 * 14), differentiably.

    A token's 2 x 2 patches follow each other, and a still image counts as two equal frames.
    """
    half = STEP // 2
    _, height, width = pixels.shape
    rows = height // STEP
    columns = width // STEP
    split = pixels.view(3, rows, 2, half, columns, 2, half)
    patches = split.permute(1, 4, 2, 5, 0, 3, 6)  # row and column of tokens, of patches in a token; color, pixels
    frames = torch.stack([patches, patches], 5)
    return frames.flatten(4).flatten(0, 3)
