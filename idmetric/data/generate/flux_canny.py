"""Distractors of the same outline by FLUX.1 Canny inpainting (NearID, appendix 0.B.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from idmetric.data.generate.engine import Inpainter, Request
from idmetric.data.generate.errors import GenerateError
from idmetric.data.generate.weights import Weights, need

if TYPE_CHECKING:
    from PIL import Image

BASE = Weights("black-forest-labs/FLUX.1-Canny-dev", "FLUX.1 [dev] Non-Commercial License")


@dataclass(frozen=True)
class FluxCanny(Inpainter):
    """FLUX.1-Canny-dev: 28 steps, guidance 7.0, strength 0.99, edges at 50 and 200 (NearID, 0.B.1)."""

    base: Weights = BASE
    steps: int = 28
    guidance: float = 7.0
    strength: float = 0.99
    low: int = 50
    high: int = 200

    name: ClassVar[str] = "flux_canny"
    pipeline: ClassVar[str] = "FluxControlInpaintPipeline"

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise GenerateError(f"flux_canny.low must not exceed flux_canny.high, got {self.low} and {self.high}")

    def options(self, request: Request) -> dict[str, Any]:
        options = super().options(request)
        return {**options, "control_image": canny(options["image"], self.low, self.high)}


def canny(image: Image.Image, low: float, high: float) -> Image.Image:
    """White Canny edges on black, RGB; an edge above `low` counts where it touches one above `high`."""
    need("cv2")
    import cv2
    import numpy as np
    from PIL import Image

    edges = cv2.Canny(np.asarray(image.convert("RGB")), low, high)
    return Image.fromarray(edges).convert("RGB")
