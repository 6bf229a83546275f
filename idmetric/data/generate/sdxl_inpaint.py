"""Distractors by SDXL inpainting (NearID, appendix 0.B.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from idmetric.data.generate.engine import Inpainter, Request
from idmetric.data.generate.weights import Weights

BASE = Weights("diffusers/stable-diffusion-xl-1.0-inpainting-0.1", "openrail++")


@dataclass(frozen=True)
class SDXLInpaint(Inpainter):
    """SDXL-1.0-inpainting-0.1 at 1024 x 1024: 30 steps, CFG 8.0, strength 0.99, a negative prompt (NearID, 0.B.1).

    Images get no watermark, even if the package for it is installed.
    """

    base: Weights = BASE
    steps: int = 30
    guidance: float = 8.0
    strength: float = 0.99

    name: ClassVar[str] = "sdxl_inpaint"
    multiple: ClassVar[int] = 8
    pipeline: ClassVar[str] = "StableDiffusionXLInpaintPipeline"
    parts: ClassVar[Mapping[str, Any]] = {"add_watermarker": False}

    def options(self, request: Request) -> dict[str, Any]:
        return {**super().options(request), "negative_prompt": request.negative}
