"""Distractors by Qwen-Image with an inpainting ControlNet (NearID, appendix 0.B.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from idmetric.data.generate import lightning
from idmetric.data.generate.engine import Engine, Request, given, image_and_mask
from idmetric.data.generate.weights import Weights, load_model, load_pipeline

BASE = Weights("Qwen/Qwen-Image", "apache-2.0")
CONTROLNET = Weights("InstantX/Qwen-Image-ControlNet-Inpainting", "apache-2.0")
LORA = Weights("lightx2v/Qwen-Image-Lightning", "apache-2.0", file="Qwen-Image-Lightning-8steps-V1.1-bf16.safetensors")


@dataclass(frozen=True)
class QwenInpaint(Engine):
    """Qwen-Image, InstantX's inpainting ControlNet and the Lightning LoRA V1.1: 8 steps, true CFG 1.0 (NearID, 0.B.1).

    The ControlNet's scale is diffusers' 1.0. With true CFG 1.0 a negative prompt has no effect.
    """

    base: Weights = BASE
    controlnet: Weights = CONTROLNET
    lora: Weights = LORA
    steps: int = 8
    guidance: float = 1.0
    scale: float = 1.0

    name: ClassVar[str] = "qwen_inpaint"
    native: ClassVar[int] = 1328  # of the published distractors

    @cached_property
    def pipe(self) -> Any:
        controlnet = load_model("QwenImageControlNetModel", self.controlnet, self.place)
        pipe = load_pipeline(
            "QwenImageControlNetInpaintPipeline", self.base, self.place,
            controlnet=controlnet, scheduler=lightning.scheduler(),
        )  # fmt: skip
        return self.place.settle(lightning.fuse(pipe, self.lora))

    def options(self, request: Request) -> dict[str, Any]:
        image, mask = image_and_mask(request, self.name)
        return {
            "control_image": image, "control_mask": mask, "width": image.width, "height": image.height,
            "num_inference_steps": self.steps, "true_cfg_scale": given(request.guidance, self.guidance),
            "controlnet_conditioning_scale": self.scale,
        }  # fmt: skip
