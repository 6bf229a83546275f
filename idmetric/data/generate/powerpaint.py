"""Distractors by PowerPaint v1 (Zhuang et al. 2024), built from diffusers' Stable Diffusion 1.5 inpainting.

NearID (appendix 0.B.1) takes PowerPaint v2.1, which adds a BrushNet to Stable Diffusion 1.5 (Realistic Vision V6.0).
No release of diffusers includes BrushNet, and the text encoder of v2.1 is a pickle, so the first version stands in for
it here. It has the same task tokens, but its base is Stable Diffusion 1.5 itself, and the mask enters the UNet (9
channels) instead of a second network.

The release holds two files: the weights of the UNet, and those of the text encoder with ten learned vectors for each
of the tasks P_ctxt, P_shape and P_obj.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from idmetric.data.generate.engine import Inpainter, Request
from idmetric.data.generate.weights import NO_CHECKER, Weights, load_pipeline, load_tensors
from idmetric.metric.checkpoints.errors import CheckpointError

BASE = Weights("stable-diffusion-v1-5/stable-diffusion-inpainting", "creativeml-openrail-m")
# the license is that of PowerPaint's repository, which its authors name for the weights, too
UNET = Weights("JunhaoZhuang/PowerPaint-v1", "mit", file="unet/unet.safetensors")
TEXT = Weights("JunhaoZhuang/PowerPaint-v1", "mit", file="text_encoder/text_encoder.safetensors")

NEGATIVE = ", worst quality, low quality, normal quality, bad quality, blurry"  # what the demo appends

_WORDS = "embeddings.token_embedding.wrapped.weight"  # keys of the release's text encoder
_LEARNED = "embeddings.token_embedding.trainable_embeddings."  # and the name of a task


@dataclass(frozen=True)
class PowerPaint(Inpainter):
    """PowerPaint v1 with NearID's settings for v2.1: 45 steps of UniPC, CFG 7.5 (0.B.1).

    The paper's fitting degree 1.0 is the scale of BrushNet's conditioning, which version 1 lacks.

    Prompts end in the vectors of P_obj, negative prompts in the demo's words and P_obj, as in the demo's text-guided
    inpainting. Unlike in the demo, a long prompt loses words and never its task.
    """

    base: Weights = BASE
    unet: Weights = UNET
    text: Weights = TEXT
    steps: int = 45
    guidance: float = 7.5
    strength: float = 1.0

    name: ClassVar[str] = "powerpaint"
    native: ClassVar[int] = 640  # "scaling to align the shortest side with 640" (NearID, 3.3)
    multiple: ClassVar[int] = 8
    pipeline: ClassVar[str] = "StableDiffusionInpaintPipeline"
    parts: ClassVar[Mapping[str, Any]] = NO_CHECKER

    @cached_property
    def pipe(self) -> Any:
        from idmetric.metric.checkpoints.weights import load_state

        pipe = load_pipeline(self.pipeline, self.base, self.place, **self.parts)
        from diffusers import UniPCMultistepScheduler

        pipe.scheduler = UniPCMultistepScheduler.from_config(pipe.scheduler.config)
        load_state(pipe.unet, load_tensors(self.unet), str(self.unet))
        add_task(pipe.text_encoder, load_tensors(self.text), str(self.text))
        return self.place.settle(pipe)

    def call(self, pipe: Any, request: Request, options: Mapping[str, Any], generator: Any) -> Any:
        words = {"prompt_embeds": request.prompt, "negative_prompt_embeds": f"{request.negative or ''}{NEGATIVE}"}
        return pipe(**{name: embed(pipe, text) for name, text in words.items()}, generator=generator, **options)


def embed(pipe: Any, text: str) -> Any:
    """The text encoder's output for a text that ends in the vectors of P_obj, (1, 77, channels)."""
    import torch

    tokenizer, encoder = pipe.tokenizer, pipe.text_encoder
    rows = len(encoder.get_input_embeddings().weight)
    each = int(encoder.config.task_vectors)  # as `add_task` has noted
    length = tokenizer.model_max_length
    begin, *words, end = tokenizer(text, truncation=True, max_length=length - each).input_ids
    ids = [begin, *words, *range(rows - each, rows), end]
    ids += [tokenizer.pad_token_id] * (length - len(ids))
    return encoder(torch.tensor([ids], device=pipe._execution_device))[0]


def add_task(encoder: Any, state: Mapping[str, Any], name: str) -> None:
    """Give CLIP's text encoder the release's weights, with the vectors of P_obj after those of its words."""
    import torch

    from idmetric.metric.checkpoints.weights import load_state

    # without the prefix of the text model, the other tasks, and the numbers of positions, a buffer
    state = {key.removeprefix("text_model."): value for key, value in state.items()}
    words, learned = state.pop(_WORDS, None), state.pop(f"{_LEARNED}P_obj", None)
    if words is None or learned is None or learned.shape[1:] != words.shape[1:]:
        raise CheckpointError(f"{name} lacks the vectors of P_obj: is it the text encoder of PowerPaint v1?")
    state = {k: v for k, v in state.items() if not k.startswith(_LEARNED) and k != "embeddings.position_ids"}

    table = torch.cat([words, learned])
    dtype = encoder.get_input_embeddings().weight.dtype
    encoder.set_input_embeddings(torch.nn.Embedding(table.shape[0], table.shape[1], dtype=dtype))
    encoder.config.task_vectors = len(learned)

    # transformers 5 dropped the prefix; the file has the one of its time
    prefix = "text_model." if any(k.startswith("text_model.") for k in encoder.state_dict()) else ""
    state["embeddings.token_embedding.weight"] = table
    load_state(encoder, {prefix + key: value for key, value in state.items()}, name)
