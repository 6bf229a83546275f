"""Distractors by SDXL inpainting (NearID, appendix 0.B.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from idmetric.data.generate.engine import Engine, Request, checked, drawing, given, required
from idmetric.data.generate.weights import Weights, load_pipeline

if TYPE_CHECKING:
    from PIL import Image

BASE = Weights("diffusers/stable-diffusion-xl-1.0-inpainting-0.1", "openrail++")


@dataclass(frozen=True)
class SDXLInpaint(Engine):
    """SDXL-1.0-inpainting-0.1 at 1024 x 1024: 30 steps, CFG 8.0, strength 0.99, a negative prompt (NearID, 0.B.1).

    Images get no watermark, even if the package for it is installed.
    """

    base: Weights = BASE
    steps: int = 30
    guidance: float = 8.0
    strength: float = 0.99

    name: ClassVar[str] = "sdxl_inpaint"
    native: ClassVar[int] = 1024
    multiple: ClassVar[int] = 8

    @cached_property
    def pipe(self) -> Any:
        kind = "StableDiffusionXLInpaintPipeline"
        return self.place.settle(load_pipeline(kind, self.base, self.place, add_watermarker=False))

    def edit(self, request: Request) -> Image.Image:
        image, mask = required(request.image, "an image", self.name), required(request.mask, "a mask", self.name)
        pipe = self.pipe
        with drawing(request, self.place) as generator:
            made = pipe(
                prompt=request.prompt, negative_prompt=request.negative, image=image, mask_image=mask,
                width=image.width, height=image.height, num_inference_steps=self.steps,
                guidance_scale=given(request.guidance, self.guidance),
                strength=given(request.strength, self.strength), generator=generator,
            ).images[0]  # fmt: skip
        return checked(made, request, self.name)
