"""The engines: diffusers' pipelines with the papers' settings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from PIL import Image

from idmetric.data.generate.engine import Engine, Inpainter, Request, Sampler
from idmetric.data.generate.iclight import ICLight
from idmetric.data.generate.powerpaint import PowerPaint
from idmetric.data.generate.weights import (
    AUTO,
    NO_CHECKER,
    Place,
    Weights,
    load_model,
    load_pipeline,
    load_tensors,
)
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.files.hints import need

_FLUX_DEV = "FLUX.1 [dev] Non-Commercial License"
_LIGHTNING_REPO = "lightx2v/Qwen-Image-Lightning"

FLUX_FILL = Weights("black-forest-labs/FLUX.1-Fill-dev", _FLUX_DEV)
FLUX_CANNY = Weights("black-forest-labs/FLUX.1-Canny-dev", _FLUX_DEV)
SDXL = Weights("diffusers/stable-diffusion-xl-1.0-inpainting-0.1", "openrail++")
TURBO = Weights("stabilityai/sd-turbo", "stability-ai-community")
QWEN_EDIT = Weights("Qwen/Qwen-Image-Edit", "apache-2.0")
QWEN_EDIT_LORA = Weights(_LIGHTNING_REPO, "apache-2.0", file="Qwen-Image-Edit-Lightning-8steps-V1.0-bf16.safetensors")
QWEN_IMAGE = Weights("Qwen/Qwen-Image", "apache-2.0")
QWEN_CONTROLNET = Weights("InstantX/Qwen-Image-ControlNet-Inpainting", "apache-2.0")
QWEN_LORA = Weights(_LIGHTNING_REPO, "apache-2.0", file="Qwen-Image-Lightning-8steps-V1.1-bf16.safetensors")


@dataclass(frozen=True)
class SDXLInpaint(Inpainter):
    """SDXL-1.0-inpainting-0.1 at 1024 x 1024: 30 steps, CFG 8.0, strength 0.99, a negative prompt (NearID, 0.B.1).

    Images get no watermark, even if the package for it is installed.
    """

    base: Weights = SDXL
    steps: int = 30
    guidance: float = 8.0
    strength: float = 0.99

    name: ClassVar[str] = "sdxl_inpaint"
    multiple: ClassVar[int] = 8
    pipeline: ClassVar[str] = "StableDiffusionXLInpaintPipeline"
    parts: ClassVar[Mapping[str, Any]] = {"add_watermarker": False}

    def options(self, request: Request) -> dict[str, Any]:
        return {**super().options(request), "negative_prompt": request.negative}


@dataclass(frozen=True)
class FluxFill(Inpainter):
    """FLUX.1-Fill-dev: 50 steps, guidance 30.0, no negative prompt (NearID, 0.B.1); strength 1, diffusers' own.

    ID-Sim's identity edits take guidance 2.5 and a strength for each frame instead (A.2.2).
    """

    base: Weights = FLUX_FILL
    steps: int = 50
    guidance: float = 30.0
    strength: float = 1.0

    name: ClassVar[str] = "flux_fill"
    pipeline: ClassVar[str] = "FluxFillPipeline"


@dataclass(frozen=True)
class FluxCanny(Inpainter):
    """FLUX.1-Canny-dev: 28 steps, guidance 7.0, strength 0.99, edges at 50 and 200 (NearID, 0.B.1)."""

    base: Weights = FLUX_CANNY
    steps: int = 28
    guidance: float = 7.0
    strength: float = 0.99
    low: int = 50
    high: int = 200

    name: ClassVar[str] = "flux_canny"
    pipeline: ClassVar[str] = "FluxControlInpaintPipeline"

    def options(self, request: Request) -> dict[str, Any]:
        options = super().options(request)
        return {**options, "control_image": canny(options["image"], self.low, self.high)}


@dataclass(frozen=True)
class SDTurbo(Sampler):
    """SD-Turbo at 512 x 512 in one step (ILGen, section 4.1), without guidance, as it was distilled."""

    base: Weights = TURBO
    steps: int = 1
    guidance: float = 0.0
    side: int = 512

    name: ClassVar[str] = "sd_turbo"
    native: ClassVar[int] = 512
    multiple: ClassVar[int] = 8
    pipeline: ClassVar[str] = "StableDiffusionPipeline"
    parts: ClassVar[Mapping[str, Any]] = NO_CHECKER

    def options(self, request: Request) -> dict[str, Any]:
        return {**super().options(request), "width": self.side, "height": self.side}


@dataclass(frozen=True)
class QwenEdit(Sampler):
    """Qwen-Image-Edit with the Lightning LoRA: 8 steps, guidance 1.0, bfloat16, flow-match Euler (ID-Sim, A.2.1).

    The pipeline works at the area of 1024 x 1024 in the image's aspect ratio: 1248 x 832 for ratio 3:2, ID-Sim's
    canvas. Results of smaller canvases are resized to them. Nothing is pasted back: the object takes on the new light.

    The text encoder gets rows and columns of the image's tokens as positions, see `place_image_tokens`.
    """

    base: Weights = QWEN_EDIT
    lora: Weights = QWEN_EDIT_LORA
    steps: int = 8
    guidance: float = 1.0

    name: ClassVar[str] = "qwen_edit"
    guided: ClassVar[str] = "true_cfg_scale"
    multiple: ClassVar[int] = 1

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline("QwenImageEditPipeline", self.base, self.place, scheduler=lightning_scheduler())
        place_image_tokens(pipe.text_encoder)
        return self.place.settle(fuse(pipe, self.lora))

    def options(self, request: Request) -> dict[str, Any]:
        return {**super().options(request), "image": request.image}


@dataclass(frozen=True)
class QwenEditInpaint(Inpainter):
    """Qwen-Image-Edit "in inpainting mode over the foreground mask" (ID-Sim, F.1): diffusers' pipeline of that name.

    The paper names 8 steps for its lighting edits alone. In 8 steps, strengths 0.4 and 0.5 start at the same step and
    give the same image, and so do 0.9 and 1.0. So this engine has no Lightning LoRA, and the 50 steps and guidance 4.0
    of the model's card, with which each of the paper's seven strengths starts at its own step.

    The pipeline works at the area of 1024 x 1024 in the image's aspect ratio.
    """

    base: Weights = QWEN_EDIT
    steps: int = 50
    guidance: float = 4.0
    strength: float = 1.0

    name: ClassVar[str] = "qwen_edit_inpaint"
    guided: ClassVar[str] = "true_cfg_scale"
    pipeline: ClassVar[str] = "QwenImageEditInpaintPipeline"
    multiple: ClassVar[int] = 1

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline(self.pipeline, self.base, self.place)
        place_image_tokens(pipe.text_encoder)
        return self.place.settle(pipe)

    def options(self, request: Request) -> dict[str, Any]:
        # the negative prompt of the model's card; without one, diffusers ignores the guidance
        return {**super().options(request), "negative_prompt": request.negative or " "}


@dataclass(frozen=True)
class QwenInpaint(Sampler):
    """Qwen-Image, InstantX's inpainting ControlNet and the Lightning LoRA V1.1: 8 steps, true CFG 1.0 (NearID, 0.B.1).

    The ControlNet's scale is diffusers' 1.0. With true CFG 1.0 a negative prompt has no effect.
    """

    base: Weights = QWEN_IMAGE
    controlnet: Weights = QWEN_CONTROLNET
    lora: Weights = QWEN_LORA
    steps: int = 8
    guidance: float = 1.0
    scale: float = 1.0

    name: ClassVar[str] = "qwen_inpaint"
    guided: ClassVar[str] = "true_cfg_scale"
    native: ClassVar[int] = 1328  # of the published distractors

    @cached_property
    def pipe(self) -> Any:
        controlnet = load_model("QwenImageControlNetModel", self.controlnet, self.place)
        pipe = load_pipeline(
            "QwenImageControlNetInpaintPipeline", self.base, self.place,
            controlnet=controlnet, scheduler=lightning_scheduler(),
        )  # fmt: skip
        return self.place.settle(fuse(pipe, self.lora))

    def options(self, request: Request) -> dict[str, Any]:
        image = request.image
        assert image is not None
        size = {"width": image.width, "height": image.height, "controlnet_conditioning_scale": self.scale}
        return {**super().options(request), "control_image": image, "control_mask": request.mask, **size}


ENGINES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        SDXLInpaint, FluxFill, FluxCanny, QwenInpaint, QwenEdit, QwenEditInpaint, SDTurbo, ICLight, PowerPaint,
    )
}  # fmt: skip


def open_engine(name: str, place: Place = AUTO, weights: Mapping[str, str] | None = None, **settings: Any) -> Engine:
    """An engine by name; its weights are not loaded yet. Weights and settings are as in `Weighted.changed`."""
    return ENGINES[name](place=place).changed(weights, settings)


def canny(image: Image.Image, low: float, high: float) -> Image.Image:
    """White Canny edges on black, RGB; an edge above `low` counts where it touches one above `high`."""
    need("generate", "generating images", cv2="cv2")
    import cv2
    import numpy as np

    edges = cv2.Canny(np.asarray(image.convert("RGB")), low, high)
    return Image.fromarray(edges).convert("RGB")


def place_image_tokens(encoder: Any) -> None:
    """Give Qwen2.5-VL two-dimensional positions of its image tokens, for all versions of transformers and diffusers.

    transformers 5 numbers tokens by rows and columns only if its input marks the image tokens. diffusers up to 0.42
    does not mark them, and they were numbered in a line, which the model was never trained on
    (huggingface/diffusers#14194). transformers 4 finds them by itself.
    """
    if "mm_token_type_ids" not in inspect.signature(type(encoder).forward).parameters:
        return

    def mark(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        ids = kwargs.get("input_ids")
        if ids is None or kwargs.get("image_grid_thw") is None or kwargs.get("mm_token_type_ids") is not None:
            return None
        return args, {**kwargs, "mm_token_type_ids": (ids == encoder.config.image_token_id).int()}

    encoder.register_forward_pre_hook(mark, with_kwargs=True)


def lightning_scheduler() -> Any:
    """The release's schedule (ID-Sim, A.2.1; NearID, 0.B.1): a shift of exactly 3 at every resolution."""
    need("generate", "generating images", diffusers="diffusers")
    from diffusers import FlowMatchEulerDiscreteScheduler

    three = math.log(3)
    return FlowMatchEulerDiscreteScheduler(
        base_shift=three, max_shift=three, max_image_seq_len=8192, use_dynamic_shifting=True
    )


def fuse(pipe: Any, weights: Weights) -> Any:
    """The pipeline with the Lightning LoRA merged into its transformer, which all of its layers must fit."""
    need("generate", "generating images", peft="peft")
    from peft.tuners.tuners_utils import BaseTunerLayer

    state = load_tensors(weights)
    there = sum(key.endswith((".lora_down.weight", ".lora_A.weight")) for key in state)
    try:
        pipe.load_lora_weights(state)
        found = sum(isinstance(module, BaseTunerLayer) for module in pipe.transformer.modules())
        pipe.fuse_lora()
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{weights} does not fit {type(pipe).__name__}: {error}") from error
    if not found or found != there:  # diffusers only warns about layers without a match
        raise CheckpointError(f"{weights} does not fit {type(pipe).__name__}: {found} of its {there} layers match")
    pipe.unload_lora_weights()
    return pipe
