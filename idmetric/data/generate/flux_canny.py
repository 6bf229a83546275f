"""Distractors of the same outline by FLUX.1 Canny inpainting (NearID, appendix 0.B.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from idmetric.data.generate.engine import Engine, Request, checked, drawing, given, required
from idmetric.data.generate.errors import GenerateError
from idmetric.data.generate.weights import Weights, load_pipeline, need

if TYPE_CHECKING:
    from PIL import Image

BASE = Weights("black-forest-labs/FLUX.1-Canny-dev", "FLUX.1 [dev] Non-Commercial License")


@dataclass(frozen=True)
class FluxCanny(Engine):
    """FLUX.1-Canny-dev: 28 steps, guidance 7.0, strength 0.99, edges at 50 and 200 (NearID, 0.B.1)."""

    base: Weights = BASE
    steps: int = 28
    guidance: float = 7.0
    strength: float = 0.99
    low: int = 50
    high: int = 200

    name: ClassVar[str] = "flux_canny"
    native: ClassVar[int] = 1024
    multiple: ClassVar[int] = 16

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise GenerateError(f"flux_canny.low must not exceed flux_canny.high, got {self.low} and {self.high}")

    @cached_property
    def pipe(self) -> Any:
        return self.place.settle(load_pipeline("FluxControlInpaintPipeline", self.base, self.place))

    def edit(self, request: Request) -> Image.Image:
        image, mask = required(request.image, "an image", self.name), required(request.mask, "a mask", self.name)
        edges = canny(image, self.low, self.high)
        pipe = self.pipe

        with drawing(request, self.place) as generator:
            made = pipe(
                prompt=request.prompt, image=image, mask_image=mask, control_image=edges,
                width=image.width, height=image.height, num_inference_steps=self.steps,
                guidance_scale=given(request.guidance, self.guidance),
                strength=given(request.strength, self.strength), generator=generator,
            ).images[0]  # fmt: skip

        return checked(made, request, self.name)


def canny(image: Image.Image, low: float, high: float) -> Image.Image:
    """White Canny edges on black, RGB; an edge above `low` counts where it touches one above `high`."""
    need("cv2")
    import cv2
    import numpy as np
    from PIL import Image

    edges = cv2.Canny(np.asarray(image.convert("RGB")), low, high)
    return Image.fromarray(edges).convert("RGB")
