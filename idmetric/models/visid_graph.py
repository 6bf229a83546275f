"""A VisIDEmbed at one size of images: a module that `torch.export` traces with a dynamic batch.

transformers computes windows, rotary angles and masks from the values of an image's grid, by Python loops. At one size
they are constants, and the same for all images of a batch. They are read off one run of the VisIDEmbed itself, so that
they are those of the installed transformers; `_Seen` says on which of its names that relies.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.models.embedding import Embedding
from idmetric.models.exported import ExportError
from idmetric.models.visid import VisIDEmbed
from idmetric.models.visid_config import IMAGE, STEP
from idmetric.models.visid_tokens import patchify, prompt_tokens

PER_TOKEN = 4  # patches that become one token


def default_size(metric: VisIDEmbed) -> tuple[int, int]:
    """The largest square that the model's most pixels allow, 448 x 448 for the paper's 200,704.

    Where that square has too few pixels, the size at which the model sees it.
    """
    side = max(1, math.isqrt(metric.settings.max_pixels) // STEP) * STEP
    return metric.size_for(side, side)


class FixedSize(nn.Module):
    """Features of a VisIDEmbed in float32 for images of one size, under its default instruction.

    Patches are those of the image alone, without the places of weight 0 that VisIDEmbed appends.

    Args:
        size: height and width at which the model sees images of that size itself (`VisIDConfig.size_for`).

    Raises:
        ExportError: for another size, or modules of transformers that are not laid out as those known.
    """

    order: Tensor
    back: Tensor
    windows: Tensor
    turns: Tensor
    before: Tensor
    after: Tensor
    causal: Tensor
    angles: Tensor

    def __init__(self, metric: VisIDEmbed, size: tuple[int, int]) -> None:
        super().__init__()
        _check_size(metric, size)
        self.grid = (size[0] // STEP, size[1] // STEP)
        self.pooling = metric.settings.pooling
        self._normalize = metric.normalize
        try:
            self._take(_Seen(metric, size), metric.backbone)
        except ValueError as error:  # of the prompt
            raise ExportError(f"{metric.label}: {error}") from error
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            import transformers

            raise ExportError(
                f"transformers {transformers.__version__} lays out {type(metric.backbone).__name__} in a way that the "
                f"export does not know ({error!r}): transformers 4.57 and 5.23 are known"
            ) from error

    def _take(self, seen: _Seen, backbone: Any) -> None:
        """Keep the layers of transformers, but not its word embeddings, and the constants."""
        visual, language = backbone.visual, backbone.language_model
        self.embed, self.blocks, self.merger = visual.patch_embed.proj, visual.blocks, visual.merger
        self.layers, self.norm = language.layers, language.norm
        self._turn = sys.modules[type(visual).__module__].apply_rotary_pos_emb_vision
        self.windowed = seen.windowed

        for name in type(self).__annotations__:
            self.register_buffer(name, getattr(seen, name), persistent=False)

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        """Pixels (B, 3, H, W) in [0, 1], of the fixed size."""
        image = self._see(patchify(self._normalize(pixels)))
        before, after = (x.expand(image.shape[0], -1, -1) for x in (self.before, self.after))
        hidden = torch.cat([before, image, after], 1)

        for layer in self.layers:
            hidden = layer(hidden, attention_mask=self.causal, position_embeddings=self.angles.unbind())
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden  # transformers 4
        hidden = self.norm(hidden)

        pooled = hidden[:, -1] if self.pooling == "last" else hidden.mean(1)
        start = self.before.shape[1]
        patches = hidden[:, start : start + image.shape[1]]
        return Embedding(F.normalize(pooled, dim=-1), F.normalize(patches, dim=-1), self.grid)

    def _see(self, patches: Tensor) -> Tensor:
        """Patches (B, P, 3 * 2 * 14 * 14) to the image's tokens (B, P / 4, D), by transformers' vision tower."""
        x = F.linear(patches, self.embed.weight.flatten(1), self.embed.bias)  # a convolution with steps of its size
        x = x[:, self.order]
        for block, windowed in zip(self.blocks, self.windowed, strict=True):
            x = x + self._attend(block.attn, block.norm1(x), self.windows if windowed else None)
            x = x + block.mlp(block.norm2(x))
        tokens: Tensor = self.merger(x.flatten(0, 1)).unflatten(0, (-1, len(self.back)))
        return tokens[:, self.back]

    def _attend(self, attention: Any, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of (B, P, C) within each image, where transformers packs images and cuts them by lengths."""
        query, key, value = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
        query, key = self._turn(query, key, *self.turns)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        found: Tensor = attention.proj(
            F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        )
        return found


class _Seen:
    """The constants of one size, as transformers passes them to its blocks and layers in a run of the model.

    It relies on `visual.patch_embed`, `visual.blocks`, `visual.merger`, `language_model.layers` and
    `language_model.norm`; on blocks that take `cu_seqlens` and `position_embeddings`; and on layers that take
    `attention_mask` and `position_embeddings`.

    Attributes:
        order: (P,) the patches in the order of windows. back: (P / 4,) from there to the order of rows.
        windows: (P, P) 0 within a window, -inf elsewhere. windowed: whether a block attends within windows.
        turns: (2, P, head) cosines and sines of patches. angles: the same of the language model's tokens.
        before, after: (1, ..., D) the prompt's embeddings around the image.
        causal: mask of the tokens that each attends to, as transformers gives it or (1, 1, L, L) as `windows`.
    """

    def __init__(self, metric: VisIDEmbed, size: tuple[int, int]) -> None:
        blocks, layers = _run(metric, size)
        self.order = blocks[0]["hidden_states"][:, 0].round().long()
        self.back = self.order[::PER_TOKEN].argsort()
        self.turns = torch.stack(_same(blocks, "position_embeddings"))
        self._windows([x["cu_seqlens"] for x in blocks])

        grid = (size[0] // STEP, size[1] // STEP)
        ids = prompt_tokens(metric.settings.instruction, grid, metric.settings, metric.tokenizer)
        first, count = ids.index(metric.tokenizer.convert_tokens_to_ids(IMAGE)), grid[0] * grid[1]
        embedded = layers[0]["hidden_states"]
        self.before, self.after = embedded[:, :first], embedded[:, first + count :]
        self.angles = torch.stack(_same(layers, "position_embeddings"))
        mask = _same(layers, "attention_mask")
        self.causal = _closed(torch.ones(len(ids), len(ids)).tril() > 0)[None, None] if mask is None else mask

    def _windows(self, ends: Sequence[Tensor]) -> None:
        self.windowed = [len(x) > 2 for x in ends]
        kinds = {tuple(x.tolist()) for x in ends if len(x) > 2}
        if len(kinds) > 1:
            raise TypeError(f"{len(kinds)} kinds of windows")
        total = len(self.order)
        lengths = torch.tensor(kinds.pop() if kinds else (0, total)).diff()
        window = torch.arange(len(lengths)).repeat_interleave(lengths)
        self.windows = _closed(window[:, None] == window)


def _run(metric: VisIDEmbed, size: tuple[int, int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Arguments of each block and each layer in a run in which patches are numbered instead of embedded."""
    visual, language = metric.backbone.visual, metric.backbone.language_model
    blocks: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []

    def numbered(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return torch.arange(len(output), dtype=output.dtype)[:, None].expand_as(output)

    def noting(found: list[dict[str, Any]]) -> Callable[[nn.Module, Any, dict[str, Any]], None]:
        return lambda module, args, given: found.append({**dict(zip(("hidden_states",), args, strict=False)), **given})

    hooks = [visual.patch_embed.register_forward_hook(numbered)]
    for found, modules in ((blocks, visual.blocks), (layers, language.layers)):
        hooks += [module.register_forward_pre_hook(noting(found), with_kwargs=True) for module in modules]
    try:
        with torch.no_grad():
            metric(torch.zeros(1, 3, *size))
    finally:
        for hook in hooks:
            hook.remove()
    return blocks, layers


def _same(found: Sequence[dict[str, Any]], name: str) -> Any:
    """The argument, which must be the same object or None for all."""
    first = found[0][name]
    if any(x[name] is not first for x in found):
        raise TypeError(f"{name} differ between layers")
    return first


def _closed(open_: Tensor) -> Tensor:
    """A mask of attention: 0 where a place is open, -inf elsewhere."""
    return torch.zeros(open_.shape).masked_fill(~open_, -math.inf)


def _check_size(metric: VisIDEmbed, size: tuple[int, int]) -> None:
    if min(size) < STEP:
        raise ExportError(f"{metric.label} at {size[0]} x {size[1]} pixels: choose {STEP} pixels or more on each side")
    try:
        own = metric.size_for(*size)
    except (ValueError, ZeroDivisionError) as error:
        raise ExportError(f"{metric.label} at {size[0]} x {size[1]} pixels: {error}") from error
    if own != size:
        raise ExportError(
            f"{metric.label} sees images of {size[0]} x {size[1]} pixels at {own[0]} x {own[1]}: choose a height and "
            f"a width that are multiples of {STEP}, of {metric.settings.min_pixels} to {metric.settings.max_pixels} "
            "pixels in all"
        )
