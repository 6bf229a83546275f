"""Images of any kinds as one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idmetric.metric.images import split_images, to_pixels


def load_batch(images: Any, size: tuple[int, int], **how: Any) -> Tensor:
    """Pixels (B, 3, height, width) of each image."""
    return torch.stack([to_pixels(image, size, **how) for image in split_images(images)])
