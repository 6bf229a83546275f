"""Tokens, rotary positions and patches of one item, as Qwen2.5-VL takes them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.models.visid_config import IMAGE, STEP, STYLES, VisIDConfig


def prompt_tokens(words: str, grid: tuple[int, int] | None, settings: VisIDConfig, tokenizer: Any) -> list[int]:
    """Token ids of one item, cut to max_length with a warning.

    Args:
        words: everything the item says, its instruction included.
        grid: rows and columns of the image's tokens; None without an image.

    Raises:
        ValueError: for an item without image and words, or a max_length that does not hold image and template.
    """
    before, image, after = STYLES[settings.prompt_style]
    prompt = before.format(system=settings.system)
    if grid is not None:
        separator = settings.separator
        if separator is None:
            separator = " " if settings.prompt_style == "vlm2vec" else ""
        apart = bool(words) and not words.startswith("\n")  # MMEB's texts bring their own line break
        prompt += image.replace(IMAGE, IMAGE * (grid[0] * grid[1])) + (separator if apart else "")
    prompt += words.strip(" ") + (settings.suffix if words else "") + after
    ids: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError("an item without image and without words cannot be embedded")
    limit = settings.max_length
    if len(ids) > limit:
        tail: list[int] = tokenizer(after, add_special_tokens=False)["input_ids"] if after else []
        ids, lost = ids[: max(0, limit - len(tail))] + tail, len(ids) - limit
        if len(ids) > limit:
            raise ValueError(f"max_length={limit} tokens do not hold the chat template: raise it")
        if grid is not None and ids.count(tokenizer.convert_tokens_to_ids(IMAGE)) < grid[0] * grid[1]:
            raise ValueError(f"max_length={limit} tokens do not hold an image of {grid[0] * grid[1]}: raise it")
        warnings.warn(f"a text was cut by {lost} tokens to fit max_length={limit}", UserWarning, stacklevel=3)
    return ids


def vision_positions(ids: Tensor, grid: tuple[int, int], image_token: int) -> Tensor:
    """Rotary positions (3, L) of time, row and column, where an image's tokens have rows and columns."""
    count = torch.arange(len(ids)).expand(3, -1)
    first = int((ids == image_token).nonzero()[0])
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    image = first + torch.stack([torch.zeros_like(rows), rows, columns]).flatten(1)
    rest = len(ids) - first - image.shape[1]
    after = first + max(grid) + torch.arange(rest).expand(3, -1)
    return torch.cat([count[:, :first], image, after], 1)


def patchify(x: Tensor) -> Tensor:
    """Normalized pixels (..., 3, H, W) as the patches of Qwen2-VL's processor: (..., patches, 3 * 2 * 14 * 14)."""
    half = STEP // 2
    rows, columns = x.shape[-2] // STEP, x.shape[-1] // STEP
    x = x.reshape(*x.shape[:-3], 3, rows, 2, half, columns, 2, half)
    x = x.movedim((-6, -3, -5, -2, -7), (-7, -6, -5, -4, -3)).flatten(-7, -4)
    # a still image counts as two equal frames
    return torch.stack([x, x], -3).flatten(-4)
