"""The engines: diffusers' pipelines with the papers' settings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from idmetric.data.generate.engine import Engine, Inpainter, Request, with_settings
from idmetric.data.generate.iclight import ICLight
from idmetric.data.generate.weights import AUTO, NO_CHECKER, Options, Place, Repository, load_model, load_tensors
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import need

_FLUX_DEV = "FLUX.1 [dev] Non-Commercial License"
_LIGHTNING = "lightx2v/Qwen-Image-Lightning"
_QWEN_EDIT = Repository("Qwen/Qwen-Image-Edit", "apache-2.0")
_NO_WATERMARK = {"add_watermarker": False}


@dataclass(frozen=True)
class SDXLInpaint(Inpainter):
    """SDXL-1.0-inpainting-0.1 at 1024 x 1024: 30 steps, CFG 8.0, strength 0.99, a negative prompt (NearID, 0.B.1).

    Images get no watermark, even if the package for it is installed.
    """

    base: Repository = Repository("diffusers/stable-diffusion-xl-1.0-inpainting-0.1", "openrail++")
    steps: int = 30
    guidance: float = 8.0
    strength: float = 0.99

    name = "sdxl_inpaint"
    multiple = 8
    pipeline = "StableDiffusionXLInpaintPipeline"
    parts = _NO_WATERMARK

    def options(self, request: Request) -> Options:
        return {**super().options(request), "negative_prompt": request.negative}


@dataclass(frozen=True)
class FluxFill(Inpainter):
    """FLUX.1-Fill-dev: 50 steps, guidance 30.0, no negative prompt (NearID, 0.B.1); strength 1, diffusers' own.

    ID-Sim's identity edits take guidance 2.5 and a strength for each frame instead (A.2.2).
    """

    base: Repository = Repository("black-forest-labs/FLUX.1-Fill-dev", _FLUX_DEV)
    steps: int = 50
    guidance: float = 30.0
    strength: float = 1.0

    name = "flux_fill"
    pipeline = "FluxFillPipeline"


@dataclass(frozen=True)
class FluxCanny(Inpainter):
    """FLUX.1-Canny-dev: 28 steps, guidance 7.0, strength 0.99, edges at 50 and 200 (NearID, 0.B.1)."""

    base: Repository = Repository("black-forest-labs/FLUX.1-Canny-dev", _FLUX_DEV)
    steps: int = 28
    guidance: float = 7.0
    strength: float = 0.99
    low: int = 50
    high: int = 200

    name = "flux_canny"
    pipeline = "FluxControlInpaintPipeline"

    def options(self, request: Request) -> Options:
        """As of all inpainters, and white Canny edges on black, RGB."""
        import cv2

        pixels = np.asarray(request.image)
        edges = cv2.Canny(pixels, self.low, self.high)
        return {**super().options(request), "control_image": Image.fromarray(edges).convert("RGB")}


@dataclass(frozen=True)
class SDTurbo(Engine):
    """SD-Turbo at 512 x 512 in one step (ILGen, section 4.1), without guidance, as it was distilled."""

    base: Repository = Repository("stabilityai/sd-turbo", "stability-ai-community")
    steps: int = 1
    guidance: float = 0.0
    side: int = 512

    name = "sd_turbo"
    native = 512
    multiple = 8
    pipeline = "StableDiffusionPipeline"
    parts = NO_CHECKER

    def options(self, request: Request) -> Options:
        return {**super().options(request), "width": self.side, "height": self.side}


@dataclass(frozen=True)
class QwenEdit(Engine):
    """Qwen-Image-Edit with the Lightning LoRA: 8 steps, guidance 1.0, bfloat16, flow-match Euler (ID-Sim, A.2.1).

    The pipeline works at the area of 1024 x 1024 in the image's aspect ratio: 1248 x 832 for ratio 3:2, ID-Sim's
    canvas. Results of smaller canvases are resized to them. Nothing is pasted back: the object takes on the new light.

    The text encoder gets rows and columns of the image's tokens as positions, see `place_image_tokens`.
    """

    base: Repository = _QWEN_EDIT
    lora: Repository = Repository(
        _LIGHTNING, "apache-2.0", file="Qwen-Image-Edit-Lightning-8steps-V1.0-bf16.safetensors"
    )
    steps: int = 8
    guidance: float = 1.0

    name = "qwen_edit"
    pipeline = "QwenImageEditPipeline"
    guided = "true_cfg_scale"
    multiple = 1

    def prepare(self, pipe: Any) -> None:
        place_image_tokens(pipe.text_encoder)
        add_lightning(pipe, self.lora)

    def options(self, request: Request) -> Options:
        return {**super().options(request), "image": request.image}


@dataclass(frozen=True)
class QwenEditInpaint(Inpainter):
    """Qwen-Image-Edit "in inpainting mode over the foreground mask" (ID-Sim, F.1): diffusers' pipeline of that name.

    The paper names 8 steps for its lighting edits alone. In 8 steps, strengths 0.4 and 0.5 start at the same step and
    give the same image, and so do 0.9 and 1.0. So this engine has no Lightning LoRA, and the 50 steps and guidance 4.0
    of the model's card, with which each of the paper's seven strengths starts at its own step.

    The pipeline works at the area of 1024 x 1024 in the image's aspect ratio.
    """

    base: Repository = _QWEN_EDIT
    steps: int = 50
    guidance: float = 4.0
    strength: float = 1.0

    name = "qwen_edit_inpaint"
    guided = "true_cfg_scale"
    pipeline = "QwenImageEditInpaintPipeline"
    multiple = 1

    def prepare(self, pipe: Any) -> None:
        place_image_tokens(pipe.text_encoder)

    def options(self, request: Request) -> Options:
        # the negative prompt of the model's card; without one, diffusers ignores the guidance
        return {**super().options(request), "negative_prompt": " "}


@dataclass(frozen=True)
class QwenInpaint(Engine):
    """Qwen-Image, InstantX's inpainting ControlNet and the Lightning LoRA V1.1: 8 steps, true CFG 1.0 (NearID, 0.B.1).

    The ControlNet's scale is diffusers' 1.0. With true CFG 1.0 a negative prompt has no effect.
    """

    base: Repository = Repository("Qwen/Qwen-Image", "apache-2.0")
    controlnet: Repository = Repository("InstantX/Qwen-Image-ControlNet-Inpainting", "apache-2.0")
    lora: Repository = Repository(_LIGHTNING, "apache-2.0", file="Qwen-Image-Lightning-8steps-V1.1-bf16.safetensors")
    steps: int = 8
    guidance: float = 1.0
    scale: float = 1.0

    name = "qwen_inpaint"
    pipeline = "QwenImageControlNetInpaintPipeline"
    guided = "true_cfg_scale"
    native = 1328  # of the published distractors

    @property
    def parts(self) -> Options:
        return {"controlnet": load_model("QwenImageControlNetModel", self.controlnet, self.place)}

    def prepare(self, pipe: Any) -> None:
        add_lightning(pipe, self.lora)

    def options(self, request: Request) -> Options:
        image = request.image
        assert image is not None
        return {
            **super().options(request),
            "control_image": image,
            "control_mask": request.mask,
            "width": image.width,
            "height": image.height,
            "controlnet_conditioning_scale": self.scale,
        }


ENGINES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        SDXLInpaint,
        FluxFill,
        FluxCanny,
        QwenInpaint,
        QwenEdit,
        QwenEditInpaint,
        SDTurbo,
        ICLight,
    )
}


def open_engine(name: str, changes: Mapping[str, Any] | None = None, place: Place = AUTO) -> Engine:
    """An engine by name, with other settings or weights (see `with_settings`); its weights are not loaded yet."""
    need("generate", "generating images", cv2="cv2", diffusers="diffusers", peft="peft", transformers="transformers")
    return with_settings(ENGINES[name](place=place), changes or {})  # type: ignore[call-arg]  # each has defaults


def place_image_tokens(encoder: Any) -> None:
    """Give Qwen2.5-VL two-dimensional positions of its image tokens, for all versions of transformers and diffusers.

    transformers 5 numbers tokens by rows and columns only if its input marks the image tokens. diffusers up to 0.42
    does not mark them, and they were numbered in a line, which the model was never trained on
    (huggingface/diffusers#14194). transformers 4 finds them by itself.
    """
    if "mm_token_type_ids" not in inspect.signature(type(encoder).forward).parameters:
        return

    def mark(_: Any, args: Any, kwargs: Options) -> tuple[Any, Options]:
        is_image = kwargs["input_ids"] == encoder.config.image_token_id
        return args, {"mm_token_type_ids": is_image.int(), **kwargs}

    encoder.register_forward_pre_hook(mark, with_kwargs=True)


def add_lightning(pipe: Any, weights: Repository) -> None:
    """Merge the Lightning LoRA into a pipeline's transformer, which all of its layers must fit, and take its schedule.

    The release's schedule (ID-Sim, A.2.1; NearID, 0.B.1) has a shift of exactly 3 at every resolution.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler
    from peft.tuners.tuners_utils import BaseTunerLayer

    shift = math.log(3)
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(
        base_shift=shift, max_shift=shift, max_image_seq_len=8192, use_dynamic_shifting=True
    )

    state = load_tensors(weights)
    layers = sum(key.endswith((".lora_down.weight", ".lora_A.weight")) for key in state)
    misfit = f"{weights} does not fit {type(pipe).__name__}"
    try:
        pipe.load_lora_weights(state)
        matched = sum(isinstance(module, BaseTunerLayer) for module in pipe.transformer.modules())
        pipe.fuse_lora()
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{misfit}: {error}") from error
    if not matched or matched != layers:  # diffusers only warns about layers without a match
        raise CheckpointError(f"{misfit}: {matched} of its {layers} layers match")
    pipe.unload_lora_weights()
