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
from idmetric.data.generate.weights import (
    NO_CHECKER,
    GenerateError,
    Weights,
    WeightsError,
    check_fit,
    load_pipeline,
    load_tensors,
)

BASE = Weights("stable-diffusion-v1-5/stable-diffusion-inpainting", "creativeml-openrail-m")
# the license is that of PowerPaint's repository, which its authors name for the weights, too
UNET = Weights("JunhaoZhuang/PowerPaint-v1", "mit", file="unet/unet.safetensors")
TEXT = Weights("JunhaoZhuang/PowerPaint-v1", "mit", file="text_encoder/text_encoder.safetensors")

TOKENS = ("P_ctxt", "P_shape", "P_obj")  # in the order of their rows after the vocabulary
TASKS = ("P_obj", "P_shape")  # text-guided and shape-guided object inpainting
NEGATIVE = ", worst quality, low quality, normal quality, bad quality, blurry"  # what the demo appends

_WORDS = "embeddings.token_embedding.wrapped.weight"  # keys of the release's text encoder
_LEARNED = "embeddings.token_embedding.trainable_embeddings."


@dataclass(frozen=True)
class PowerPaint(Inpainter):
    """PowerPaint v1 with NearID's settings for v2.1: 45 steps of UniPC, CFG 7.5 (0.B.1).

    The paper's fitting degree 1.0 is the scale of BrushNet's conditioning, which version 1 lacks.

    Prompts end in the vectors of P_obj, negative prompts in the demo's words and P_obj, as in the demo's text-guided
    inpainting. `task_token` P_shape fits the object to the mask instead, to a degree `fitting` in 0..1 (the rest is
    P_ctxt). Unlike in the demo, a long prompt loses words and never its task.
    """

    base: Weights = BASE
    unet: Weights = UNET
    text: Weights = TEXT
    steps: int = 45
    guidance: float = 7.5
    strength: float = 1.0
    task_token: str = "P_obj"
    fitting: float = 1.0

    name: ClassVar[str] = "powerpaint"
    native: ClassVar[int] = 640  # "scaling to align the shortest side with 640" (NearID, 3.3)
    multiple: ClassVar[int] = 8
    pipeline: ClassVar[str] = "StableDiffusionInpaintPipeline"
    parts: ClassVar[Mapping[str, Any]] = NO_CHECKER

    def __post_init__(self) -> None:
        if self.task_token not in TASKS:
            raise GenerateError(f"powerpaint.task_token must be {' or '.join(TASKS)}, got {self.task_token!r}")
        if self.task_token == "P_obj" and self.fitting != 1:
            raise GenerateError(f"powerpaint.fitting is of task_token P_shape: set it too, or leave {self.fitting} out")

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline(self.pipeline, self.base, self.place, **self.parts)
        from diffusers import UniPCMultistepScheduler

        pipe.scheduler = UniPCMultistepScheduler.from_config(pipe.scheduler.config)
        replace_weights(pipe.unet, load_tensors(self.unet), str(self.unet))
        add_tasks(pipe.text_encoder, load_tensors(self.text), str(self.text))
        return self.place.settle(pipe)

    def call(self, pipe: Any, request: Request, options: Mapping[str, Any], generator: Any) -> Any:
        words = {"prompt_embeds": request.prompt, "negative_prompt_embeds": f"{request.negative or ''}{NEGATIVE}"}
        embedded = {name: self._embedded(pipe, text) for name, text in words.items()}
        return pipe(**embedded, generator=generator, **options)

    def _embedded(self, pipe: Any, text: str) -> Any:
        """Text with its task, (1, 77, channels)."""
        if self.task_token == "P_obj":
            return embed(pipe, text, "P_obj")
        shape, context = (embed(pipe, text, token) for token in ("P_shape", "P_ctxt"))
        return self.fitting * shape + (1 - self.fitting) * context


def embed(pipe: Any, text: str, token: str) -> Any:
    """The text encoder's output for a text that ends in a task's vectors, (1, 77, channels)."""
    import torch

    tokenizer, encoder = pipe.tokenizer, pipe.text_encoder
    rows = len(encoder.get_input_embeddings().weight)
    each = int(encoder.config.task_vectors)  # of a task, as `add_tasks` has noted
    first = rows - each * (len(TOKENS) - TOKENS.index(token))
    task = range(first, first + each)

    length = tokenizer.model_max_length
    begin, *words, end = tokenizer(text, truncation=True, max_length=length - each).input_ids
    ids = [begin, *words, *task, end]
    ids += [tokenizer.pad_token_id] * (length - len(ids))
    return encoder(torch.tensor([ids], device=pipe._execution_device))[0]


def replace_weights(model: Any, state: Mapping[str, Any], name: str) -> None:
    """Give a model the weights of a file.

    Raises:
        WeightsError: if a weight is missing, unknown or of another shape.
    """
    check_fit(model, state, name, "is it of PowerPaint v1, and the base Stable Diffusion 1.5 for inpainting?")
    model.load_state_dict(state)


def add_tasks(encoder: Any, state: Mapping[str, Any], name: str) -> None:
    """Give CLIP's text encoder the release's weights, with the vectors of the tasks after those of its words.

    Raises:
        WeightsError: if the file is not the text encoder of PowerPaint v1.
    """
    import torch

    # without the prefix of the text model, and without the numbers of positions, a buffer
    state = {key.removeprefix("text_model."): value for key, value in state.items()}
    state.pop("embeddings.position_ids", None)
    learned = [state.pop(_LEARNED + token, None) for token in TOKENS]
    words = state.pop(_WORDS, None)
    shapes = {None if v is None else v.shape for v in learned}
    if words is None or None in shapes or len(shapes) > 1 or learned[0].shape[1:] != words.shape[1:]:
        raise WeightsError(f"{name} lacks the vectors of {', '.join(TOKENS)}: is it the text encoder of PowerPaint v1?")

    old = encoder.get_input_embeddings()
    table = torch.cat([words, *learned])
    encoder.set_input_embeddings(torch.nn.Embedding(table.shape[0], table.shape[1], dtype=old.weight.dtype))
    encoder.config.task_vectors = len(learned[0])

    # transformers 5 dropped the prefix; the file has the one of its time
    prefix = "text_model." if any(k.startswith("text_model.") for k in encoder.state_dict()) else ""
    state["embeddings.token_embedding.weight"] = table
    replace_weights(encoder, {prefix + key: value for key, value in state.items()}, name)
