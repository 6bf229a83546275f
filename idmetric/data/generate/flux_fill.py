"""Inpainting by FLUX.1 Fill: NearID's distractors and ID-Sim's identity edits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from idmetric.data.generate.engine import Engine, Request, checked, drawing, given, required
from idmetric.data.generate.weights import Weights, load_pipeline

if TYPE_CHECKING:
    from PIL import Image

BASE = Weights("black-forest-labs/FLUX.1-Fill-dev", "FLUX.1 [dev] Non-Commercial License")


@dataclass(frozen=True)
class FluxFill(Engine):
    """FLUX.1-Fill-dev: 50 steps, guidance 30.0, no negative prompt (NearID, 0.B.1); strength 1, diffusers' own.

    ID-Sim's identity edits take guidance 2.5 and a strength for each frame instead (A.2.2).
    """

    base: Weights = BASE
    steps: int = 50
    guidance: float = 30.0
    strength: float = 1.0

    name: ClassVar[str] = "flux_fill"
    native: ClassVar[int] = 1024
    multiple: ClassVar[int] = 16

    @cached_property
    def pipe(self) -> Any:
        return self.place.settle(load_pipeline("FluxFillPipeline", self.base, self.place))

    def edit(self, request: Request) -> Image.Image:
        image, mask = required(request.image, "an image", self.name), required(request.mask, "a mask", self.name)
        pipe = self.pipe
        with drawing(request, self.place) as generator:
            made = pipe(
                prompt=request.prompt, image=image, mask_image=mask, width=image.width, height=image.height,
                num_inference_steps=self.steps, generator=generator,
                guidance_scale=given(request.guidance, self.guidance),
                strength=given(request.strength, self.strength),
            ).images[0]  # fmt: skip
        return checked(made, request, self.name)
