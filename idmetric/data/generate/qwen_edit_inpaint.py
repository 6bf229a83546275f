"""Another look of the masked object in graded strengths, by Qwen-Image-Edit (ID-Sim, appendix F.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from idmetric.data.generate.engine import Inpainter, Request
from idmetric.data.generate.qwen_edit import BASE, POSITIONS, place_image_tokens
from idmetric.data.generate.weights import Weights, load_pipeline

NEGATIVE = " "  # of the model's card; without one, diffusers ignores the guidance


@dataclass(frozen=True)
class QwenEditInpaint(Inpainter):
    """Qwen-Image-Edit "in inpainting mode over the foreground mask" (ID-Sim, F.1): diffusers' pipeline of that name.

    The paper names 8 steps for its lighting edits alone. In 8 steps, strengths 0.4 and 0.5 start at the same step and
    give the same image, and so do 0.9 and 1.0. So this engine has no Lightning LoRA, and the 50 steps and guidance 4.0
    of the model's card, with which each of the paper's seven strengths starts at its own step.

    The pipeline works at the area of 1024 x 1024 in the image's aspect ratio.
    """

    base: Weights = BASE
    steps: int = 50
    guidance: float = 4.0
    strength: float = 1.0

    name: ClassVar[str] = "qwen_edit_inpaint"
    pipeline: ClassVar[str] = "QwenImageEditInpaintPipeline"
    multiple: ClassVar[int] = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "positions": POSITIONS}

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline(self.pipeline, self.base, self.place)
        place_image_tokens(pipe.text_encoder)
        return self.place.settle(pipe)

    def options(self, request: Request) -> dict[str, Any]:
        options = super().options(request)
        guidance = options.pop("guidance_scale")
        return {**options, "true_cfg_scale": guidance, "negative_prompt": request.negative or NEGATIVE}
