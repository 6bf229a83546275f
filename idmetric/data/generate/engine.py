"""Diffusion engines: each has a name, settings that determine its pixels, and `edit(request) -> image`.

An engine is a frozen dataclass of settings with the paper's values as defaults. It loads its weights at the first
`edit`.

    engine = open_engine("sdxl_inpaint", steps=20)
    edited = engine.edit(Request("a red mug", seed=1, image=image, mask=mask))

`idmetric.data.generate.engines` holds the engines.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from idmetric.data.generate.weights import Options, Place, Rejection, Repository, Weighted, load_pipeline
from idmetric.metric.errors import RequestError


@dataclass(frozen=True)
class Request:
    """One image to make.

    Attributes:
        prompt: text that describes the image.
        seed: of all random numbers; equal requests give equal images.
        image: RGB, with sides divisible by the engine's `multiple`; None for an image from text alone.
        mask: "L", of the image's size: 255 = repaint (inpainting) or the object (relighting), 0 elsewhere.
        strength: of the change, in (0, 1]; None = the engine's own.
        negative: negative prompt, for engines that support it.
        guidance: scale of the prompt's influence, above 0; None = the engine's own.
        size: (width, height) of the result; None = the image's.
    """

    prompt: str
    seed: int
    image: Image.Image | None = None
    mask: Image.Image | None = None
    strength: float | None = None
    negative: str | None = None
    guidance: float | None = None
    size: tuple[int, int] | None = None


class Engine(Weighted):
    """Base of all engines. A subclass is a dataclass of its settings and weights."""

    base: Repository
    steps: int
    guidance: float

    native: ClassVar[int] = 1024  # side of a square with the area that suits the engine best
    multiple: ClassVar[int] = 16  # sides must be divisible by it
    pipeline: ClassVar[str]  # diffusers' class
    guided: ClassVar[str] = "guidance_scale"  # the pipeline's name of the guidance

    @property
    def settings(self) -> Options:
        return {**super().settings, "dtype": self.place.dtype}

    @property
    def parts(self) -> Options:
        """Components and options of the pipeline that differ from the weights'."""
        return {}

    @cached_property
    def pipe(self) -> Any:
        """Its pipeline, loaded at the first use."""
        pipe = load_pipeline(self.pipeline, self.base, self.place, **self.parts)
        self.prepare(pipe)
        return self.place.settle(pipe)

    def prepare(self, pipe: Any) -> None:
        """Give a loaded pipeline the engine's scheduler and further weights, before it moves to its device."""

    def options(self, request: Request) -> Options:
        """The pipeline's arguments except the prompt and the generator."""
        return {"num_inference_steps": self.steps, self.guided: request.guidance or self.guidance}

    def load(self) -> None:
        _ = self.pipe

    def unload(self) -> None:
        """Free the pipeline's memory; the next `edit` loads it again."""
        import torch

        self.__dict__.pop("pipe", None)
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where CUDA was never used

    def edit(self, request: Request) -> Image.Image | Rejection:
        """The requested image, RGB, in the requested size or else in that of the request's image.

        An image of one color is rejected.

        Raises:
            CheckpointError: if its weights cannot be loaded.
        """
        pipe = self.pipe
        with drawing(request, self.place) as generator:
            output = pipe(prompt=request.prompt, **self.options(request), generator=generator)
        return checked(output.images[0], request, self.name)


class Inpainter(Engine):
    """Base of engines that repaint the masked part of an image."""

    strength: float

    def options(self, request: Request) -> Options:
        image = request.image
        assert image is not None
        return {
            **super().options(request),
            "image": image,
            "mask_image": request.mask,
            "strength": request.strength or self.strength,
            "width": image.width,
            "height": image.height,
        }


@contextmanager
def drawing(request: Request, place: Place) -> Iterator[Any]:
    """A generator on the CPU with the request's seed, which draws the same noise for every device.

    Some pipelines also draw from torch's global generators, so those are seeded too, and restored afterwards.
    """
    import torch

    device = place.torch_device()
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices, device_type=device.type), torch.inference_mode():
            torch.manual_seed(request.seed)
            yield torch.Generator("cpu").manual_seed(request.seed)
    except torch.OutOfMemoryError as error:
        raise RequestError(
            f"the memory of {device} is too small: pass --offload, a smaller --resolution, or free the device"
        ) from error


def checked(
    image: Image.Image,
    request: Request,
    name: str,
) -> Image.Image | Rejection:
    """The image in the size that the request wants; one of one color is rejected."""
    pixels = np.asarray(image)
    if (pixels == pixels[0, 0]).all():
        reason = f"{name} made an image of one color; if its numbers overflowed, --dtype float32 helps"
        return Rejection(reason, is_flat=True)

    size = request.size or (request.image or image).size
    return image.resize(size, Image.Resampling.LANCZOS)
