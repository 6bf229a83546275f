"""Diffusion engines: each has a name, settings that determine its pixels, and `edit(request) -> image`.

An engine is a frozen dataclass of settings with the paper's values as defaults. It loads its weights at the first
`edit`.

    engine = open_engine("sdxl_inpaint", {"steps": 20})
    edited = engine.edit(Request("a red mug", seed=1, image=image, mask=mask))

`idmetric.data.generate.engines` holds the engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from idmetric.data.generate.weights import AUTO, Options, Place, Repository, load_pipeline, version
from idmetric.metric.errors import RequestError
from idmetric.metric.files import accept, from_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Model = TypeVar("Model", bound="DataclassInstance")  # an engine or a remover


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


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Base of all engines. A subclass is a dataclass of its settings and weights."""

    base: Repository
    steps: int
    guidance: float
    place: Place = AUTO

    name: ClassVar[str]
    native: ClassVar[int] = 1024  # side of a square with the area that suits the engine best
    multiple: ClassVar[int] = 16  # sides must be divisible by it
    pipeline: ClassVar[str]  # diffusers' class
    guided: ClassVar[str] = "guidance_scale"  # the pipeline's name of the guidance

    @property
    def weights(self) -> dict[str, Repository]:
        """Its weights by field."""
        return {name: value for name, value in fields_of(self).items() if isinstance(value, Repository)}

    @property
    def settings(self) -> Options:
        """Everything except its input that determines the pixels, as JSON values."""
        keys = {name: weights.key for name, weights in self.weights.items()}
        return {**fields_of(self), **keys, "dtype": self.place.dtype}

    @property
    def licenses(self) -> dict[str, str]:
        """Repository -> license of its weights."""
        return {weights.key: weights.license for weights in self.weights.values()}

    @cached_property
    def versions(self) -> dict[str, str]:
        """Commit or digest of its weights by field, available once they are loaded."""
        return {name: version(weights) for name, weights in self.weights.items()}

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

    def edit(self, request: Request) -> Image.Image:
        """The requested image, RGB, in the requested size or else in that of the request's image.

        Raises:
            CheckpointError: if its weights cannot be loaded. FloatingPointError: for an image of one color.
        """
        pipe = self.pipe
        with drawing(request, self.place) as generator:
            output = pipe(prompt=request.prompt, **self.options(request), generator=generator)
        return checked_image(output.images[0], request, self.name)


@dataclass(frozen=True, kw_only=True)
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


def checked_image(image: Image.Image, request: Request, name: str) -> Image.Image:
    """The image in the size that the request wants; FloatingPointError for one of one color."""
    pixels = np.asarray(image)
    corner = pixels[0, 0]
    if (pixels == corner).all():
        raise FloatingPointError(f"{name} made an image of one color; if its numbers overflowed, --dtype float32 helps")

    size = request.size or (request.image or image).size
    return image.resize(size, Image.Resampling.LANCZOS)


def with_settings(model: Model, changes: Mapping[str, Any]) -> Model:
    """An engine or remover with other values of its fields.

    Args:
        changes: text is converted to the field's type; that of weights ("base", "lora", ...) is a location, see
            `Repository.at`.
    """
    current = fields_of(model)
    values: Options = {}
    for name, value in changes.items():
        if name not in current:
            known = ", ".join(sorted(current))
            raise RequestError(f"{type(model).__name__} has no setting {name!r}; it has {known}")
        kind = type(current[name])
        if kind is Repository:
            values[name] = current[name].at(value)
            continue
        if isinstance(value, str):
            value = from_text(value, kind)
        values[name] = accept(name, value, kind)
    return replace(model, **values)


def fields_of(model: DataclassInstance) -> Options:
    """The weights and settings of an engine or remover by field."""
    names = [field.name for field in fields(model) if field.name != "place"]
    return {name: getattr(model, name) for name in names}
