"""DINO as VBench's subject consistency sees the frames of a video (vbench/utils.py, vbench/subject_consistency.py).

The shorter side becomes 224 pixels, bilinearly and without antialiasing, and nothing is cropped. DINO then resamples
its position embedding to the frame's grid, as its own code does. The number is of one video. Of several, VBench
averages all frames if it runs in one process, and the videos' numbers if it runs in several;
docs/models/named-scores.md has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.images.masks import MaskId, MaskLike
from idmetric.metric.images.read import ImageLike, ImageReadError, Outside, describe, to_pixels
from idmetric.metric.models.backbone import Backbone
from idmetric.metric.models.preprocessing import LoadedImage, Preprocessor
from idmetric.metric.models.timm_weights import resample_positions

SIDE = 224
PATCH = 16
_MOST_RATIO = 20  # of a frame's sides: longer ones would take gigabytes


class FramePreprocessor(Preprocessor):
    """Frames keep their shape, and have no masks."""

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """See `Preprocessor.size_for`: whole patches, as DINO's embedding drops the rest."""
        rows, columns = _resized(height, width)
        return rows // PATCH * PATCH, columns // PATCH * PATCH

    def fit_pixels(self, pixels: Tensor) -> Tensor:
        """See `Preprocessor.fit_pixels`."""
        height, width = pixels.shape[-2:]
        rows, columns = self.size_for(height, width)
        size = _resized(height, width)
        resized = F.interpolate(pixels, size, mode="bilinear", align_corners=False)
        return resized[..., :rows, :columns]

    def load_image(
        self,
        image: ImageLike,
        mask: MaskLike | None = None,
        outside: Outside = "black",
        *,
        mask_id: MaskId | None = None,
    ) -> LoadedImage:
        """See `Preprocessor.load_image`; masks are refused."""
        if mask is not None:
            self.check_mask(mask)
        return self._frame(image, to_pixels(image, None, background=self.background))

    def check_mask(self, mask: MaskLike) -> None:
        """See `Preprocessor.check_mask`."""
        raise ImageReadError(describe(mask), "dino:vbench compares whole frames and takes no masks")

    def fitted(self, picture: Image.Image | Tensor, cover: Tensor | None = None) -> LoadedImage:
        """See `Preprocessor.fitted`."""
        if isinstance(picture, Tensor):
            return self._frame(picture, to_pixels(picture, None, background=self.background))
        return self._frame(picture, to_pixels(picture, None))

    def _frame(self, image: ImageLike, pixels: Tensor) -> LoadedImage:
        shorter, longer = sorted(pixels.shape[1:])
        if longer > _MOST_RATIO * shorter:
            raise ImageReadError(describe(image), f"its sides differ by over {_MOST_RATIO} to 1: it is not a frame")
        [frame] = self.fit_pixels(pixels[None])
        return frame, None


class VBenchDino(Backbone):
    """The encoder of `dino:vbench`: frames keep their shape; only the class token is compared.

    Args:
        source: "dino:vbench". options: those of `Backbone` that do not change the transform.
    """

    model_type = ""  # a folder holds no such transform

    def __init__(self, source: str = "dino:vbench", **options: Any) -> None:
        super().__init__(source, **options)
        usual = self.preprocessor
        self.preprocessor = FramePreprocessor(usual.image_size, usual.mean, usual.std, "bilinear", usual.background)

    @property
    def resolution(self) -> str:
        """The shorter side."""
        return f"shorter {SIDE}"

    def forward_features(self, x: Tensor) -> tuple[Tensor, None, None]:
        """See `Embedder.forward_features`."""
        model: Any = self.backbone
        patches = model.patch_embed.proj(x)
        grid = tuple(patches.shape[-2:])
        class_tokens = model.cls_token.expand(len(x), -1, -1)
        patch_tokens = patches.flatten(2).mT
        tokens = torch.cat([class_tokens, patch_tokens], 1)
        tokens = tokens + resample_positions(model.pos_embed, grid, 0.1)
        tokens = model.norm_pre(tokens)
        tokens = model.norm(model.blocks(tokens))
        return tokens[:, 0], None, None

    def embed_prepared(self, batch: Sequence[LoadedImage], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`; frames of one shape are embedded together. There are no patches."""
        frames = [frame for frame, _ in batch]
        shapes = {frame.shape for frame in frames}
        if len(shapes) == 1:
            return self.embed_pixels(torch.stack(frames))
        one_by_one = [self.embed_pixels(frame[None]) for frame in frames]
        return concatenate(one_by_one)


def _resized(height: int, width: int) -> tuple[int, int]:
    """The shorter side becomes 224 pixels, the longer one is rounded as torchvision does."""
    if height <= width:
        return SIDE, int(SIDE * width / height)
    return int(SIDE * height / width), SIDE
