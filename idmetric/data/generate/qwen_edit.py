"""Another context for an object on white, by Qwen-Image-Edit (ID-Sim, appendix A.2.1)."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from idmetric.data.generate import lightning
from idmetric.data.generate.engine import Engine, Request, given
from idmetric.data.generate.errors import GenerateError
from idmetric.data.generate.weights import Weights, load_pipeline

BASE = Weights("Qwen/Qwen-Image-Edit", "apache-2.0")
LORA = Weights(
    "lightx2v/Qwen-Image-Lightning", "apache-2.0", file="Qwen-Image-Edit-Lightning-8steps-V1.0-bf16.safetensors"
)
POSITIONS = "rows and columns"  # positions of the image's tokens in the text encoder


@dataclass(frozen=True)
class QwenEdit(Engine):
    """Qwen-Image-Edit with the Lightning LoRA: 8 steps, guidance 1.0, bfloat16, flow-match Euler (ID-Sim, A.2.1).

    The pipeline works at the area of 1024 x 1024 in the image's aspect ratio: 1248 x 832 for ratio 3:2, ID-Sim's
    canvas. Results of smaller canvases are resized to them. Nothing is pasted back: the object takes on the new light.

    The text encoder gets rows and columns of the image's tokens as positions, see `place_image_tokens`.
    """

    base: Weights = BASE
    lora: Weights = LORA
    steps: int = 8
    guidance: float = 1.0

    name: ClassVar[str] = "qwen_edit"
    multiple: ClassVar[int] = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "positions": POSITIONS}

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline("QwenImageEditPipeline", self.base, self.place, scheduler=lightning.scheduler())
        place_image_tokens(pipe.text_encoder)
        return self.place.settle(lightning.fuse(pipe, self.lora))

    def options(self, request: Request) -> dict[str, Any]:
        if request.image is None:
            raise GenerateError(f"{self.name} needs an image")
        return {
            "image": request.image, "num_inference_steps": self.steps,
            "true_cfg_scale": given(request.guidance, self.guidance),
        }  # fmt: skip


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
