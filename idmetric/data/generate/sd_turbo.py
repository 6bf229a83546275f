"""Objects from their category's name, by Stable Diffusion Turbo (ILGen, sections 3.2 and 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from idmetric.data.generate.engine import Engine, Request, given
from idmetric.data.generate.errors import GenerateError
from idmetric.data.generate.weights import Weights

BASE = Weights("stabilityai/sd-turbo", "stability-ai-community")


@dataclass(frozen=True)
class SDTurbo(Engine):
    """SD-Turbo at 512 x 512 in one step (ILGen, section 4.1), without guidance, as it was distilled."""

    base: Weights = BASE
    steps: int = 1
    guidance: float = 0.0
    side: int = 512

    name: ClassVar[str] = "sd_turbo"
    native: ClassVar[int] = 512
    multiple: ClassVar[int] = 8
    pipeline: ClassVar[str] = "StableDiffusionPipeline"
    # no safety checker: it would add black images to the data
    parts: ClassVar[Mapping[str, Any]] = {"safety_checker": None, "requires_safety_checker": False}

    def __post_init__(self) -> None:
        if self.side % self.multiple:
            raise GenerateError(f"{self.name}.side must be divisible by {self.multiple}, got {self.side}")

    def options(self, request: Request) -> dict[str, Any]:
        return {
            "width": self.side, "height": self.side, "num_inference_steps": self.steps,
            "guidance_scale": given(request.guidance, self.guidance),
        }  # fmt: skip
