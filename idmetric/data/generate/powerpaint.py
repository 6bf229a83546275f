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
from typing import Any

from idmetric.data.generate.engine import Inpainter, Request
from idmetric.data.generate.weights import NO_CHECKER, Options, Repository, load_tensors
from idmetric.metric.checkpoints.errors import CheckpointError

NEGATIVE = ", worst quality, low quality, normal quality, bad quality, blurry"  # what the demo appends

_REPO = "JunhaoZhuang/PowerPaint-v1"
_LICENSE = "mit"  # of PowerPaint's repository; its authors name it for the weights, too
_WORDS = "embeddings.token_embedding.wrapped.weight"  # keys of the release's text encoder
_LEARNED = "embeddings.token_embedding.trainable_embeddings."  # and the name of a task


@dataclass(frozen=True)
class PowerPaint(Inpainter):
    """PowerPaint v1 with NearID's settings for v2.1: 45 steps of UniPC, CFG 7.5 (0.B.1).

    The paper's fitting degree 1.0 is the scale of BrushNet's conditioning, which version 1 lacks.

    Prompts end in the vectors of P_obj, negative prompts in the demo's words and P_obj, as in the demo's text-guided
    inpainting. Unlike in the demo, a long prompt loses words and never its task.
    """

    base: Repository = Repository("stable-diffusion-v1-5/stable-diffusion-inpainting", "creativeml-openrail-m")
    unet: Repository = Repository(_REPO, _LICENSE, file="unet/unet.safetensors")
    text: Repository = Repository(_REPO, _LICENSE, file="text_encoder/text_encoder.safetensors")
    steps: int = 45
    guidance: float = 7.5
    strength: float = 1.0

    name = "powerpaint"
    native = 640  # "scaling to align the shortest side with 640" (NearID, 3.3)
    multiple = 8
    pipeline = "StableDiffusionInpaintPipeline"
    parts = NO_CHECKER

    def prepare(self, pipe: Any) -> None:
        from diffusers import UniPCMultistepScheduler

        from idmetric.metric.checkpoints.weights import load_state

        pipe.scheduler = UniPCMultistepScheduler.from_config(pipe.scheduler.config)
        load_state(pipe.unet, load_tensors(self.unet), str(self.unet))
        add_task(pipe.text_encoder, load_tensors(self.text), str(self.text))

    def prompts(self, request: Request) -> Options:
        negative = f"{request.negative or ''}{NEGATIVE}"
        return {
            "prompt_embeds": embed(self.pipe, request.prompt),
            "negative_prompt_embeds": embed(self.pipe, negative),
        }


def embed(pipe: Any, text: str) -> Any:
    """The text encoder's output for a text that ends in the vectors of P_obj, (1, 77, channels)."""
    import torch

    tokenizer, encoder = pipe.tokenizer, pipe.text_encoder
    table = encoder.get_input_embeddings().weight
    task_length = encoder.config.task_vectors  # as `add_task` has noted
    length = tokenizer.model_max_length
    begin, *words, end = tokenizer(text, truncation=True, max_length=length - task_length).input_ids
    task = range(len(table) - task_length, len(table))
    ids = [begin, *words, *task, end]
    padding = [tokenizer.pad_token_id] * (length - len(ids))
    return encoder(torch.tensor([ids + padding], device=pipe._execution_device))[0]


def add_task(
    encoder: Any,
    state: Mapping[str, Any],
    name: str,
) -> None:
    """Give CLIP's text encoder the release's weights, with the vectors of P_obj after those of its words."""
    import torch

    from idmetric.metric.checkpoints.weights import load_state

    state = {key.removeprefix("text_model."): value for key, value in state.items()}
    words, learned = state.pop(_WORDS, None), state.pop(f"{_LEARNED}P_obj", None)
    if words is None or learned is None or learned.shape[1:] != words.shape[1:]:
        raise CheckpointError(f"{name} lacks the vectors of P_obj: is it the text encoder of PowerPaint v1?")

    table = torch.cat([words, learned])
    dtype = encoder.get_input_embeddings().weight.dtype
    encoder.set_input_embeddings(torch.nn.Embedding(len(table), table.shape[1], dtype=dtype))
    encoder.config.task_vectors = len(learned)

    # transformers 5 dropped the prefix; the file has the one of its time
    prefix, *_ = next(iter(encoder.state_dict())).partition("embeddings.")
    loaded = {f"{prefix}embeddings.token_embedding.weight": table}
    for key, value in state.items():
        # not the other tasks, nor the numbers of positions, a buffer
        if not key.startswith((_LEARNED, "embeddings.position_ids")):
            loaded[prefix + key] = value
    load_state(encoder, loaded, name)
