"""Background removal of ILGen: masks of the objects in generated pictures.

ILGen uses RMBG v1.4 (appendix A). Its weights need code from their repository and have a non-commercial licence, so
this module offers three other ways; `idmetric.data.curate.external_masks` takes the masks of another program, such as
RMBG itself:

* `CleanBackground` needs no model. ILGen asks its generator for "a clean background", so pixels that are connected to
  the border and close to a smooth fit of the border's colors count as background. A picture with an uneven border is
  rejected. Soft edges and holes through an object come out worse than with RMBG, and a shadow may count as object.
* `ClipSeg` (Lüddecke and Ecker, CVPR 2022) segments by the category's name, on any background, at a coarse 352 x 352.
* `GroundedSam` in `grounded_sam` does so at full resolution: the closest of the three to RMBG's job.

All return a mask of 0 and 255; RMBG returns a soft one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.generate.errors import GenerateError, Rejected
from idmetric.data.generate.regions import largest, mask_of, touching_rim
from idmetric.data.generate.settings import typed
from idmetric.data.generate.weights import AUTO, Place, Weights, WeightsError, need, version

# name -> parts of its weights
PARTS = {"clean": (), "clipseg": ("base",), "grounded_sam": ("detector", "segmenter")}
REMOVERS = tuple(PARTS)
CLIPSEG = Weights("CIDAS/clipseg-rd64-refined", "apache-2.0")


class Remover(Protocol):
    """Finds the object in a picture."""

    @property
    def settings(self) -> dict[str, Any]: ...

    @property
    def licences(self) -> dict[str, str]:
        """Repository -> licence of its weights."""
        ...

    @property
    def versions(self) -> dict[str, str]:
        """Commit or fingerprint of its weights by field, available after `load`."""
        ...

    def load(self) -> None: ...

    def mask(self, image: Image.Image, category: str) -> Image.Image:
        """The mask of the object, "L", 0 or 255.

        Raises:
            Rejected: if it finds no object.
        """
        ...


def open_remover(name: str, place: Place = AUTO, weights: Mapping[str, str] | None = None, **settings: Any) -> Remover:
    """A remover of `REMOVERS`; its weights are not loaded yet.

    Args:
        weights: other locations of its weights by part, see `Weights.at`.

    Raises:
        GenerateError: for an unknown remover, setting or kind of weights, or a value that the setting cannot have.
    """
    if name not in PARTS:
        there = ", ".join(REMOVERS)
        raise GenerateError(f"unknown way to remove a background {name!r}; there are {there}, or own masks")
    for part in weights or {}:
        if part not in PARTS[name]:
            raise GenerateError(f"{name} has no weights {part!r}; it has {', '.join(PARTS[name]) or 'none'}")
    opened = _opened(name, place)
    moved = {part: getattr(opened, part).at(where) for part, where in (weights or {}).items()}
    return cast("Remover", replace(opened, **moved, **typed(name, opened, settings)))


def _opened(name: str, place: Place) -> Any:
    from idmetric.data.generate.grounded_sam import GroundedSam

    return CleanBackground() if name == "clean" else ClipSeg(place) if name == "clipseg" else GroundedSam(place)


@dataclass(frozen=True)
class CleanBackground:
    """Finds the object on a clean background by color alone.

    A quadratic surface is fitted to each color channel along the border. Pixels within `tolerance` of it that are
    connected to the border are background. The largest connected region of the rest, with its holes filled, is the
    object.

    Attributes:
        tolerance: largest distance from the surface, Euclidean, in RGB of 0-255.
        border: width of the border, as a share of the shorter side.
        clean: smallest share of the border within tolerance; with less, the picture is rejected.
        least, most: share of the picture that an object may cover.
    """

    tolerance: float = 30.0
    border: float = 0.02
    clean: float = 0.8
    least: float = 0.02
    most: float = 0.9

    @property
    def settings(self) -> dict[str, Any]:
        return {"remover": "clean", **{f.name: getattr(self, f.name) for f in fields(self)}}

    @property
    def licences(self) -> dict[str, str]:
        return {}

    @property
    def versions(self) -> dict[str, str]:
        return {}

    def load(self) -> None:
        pass

    def mask(self, image: Image.Image, category: str) -> Image.Image:
        pixels = np.asarray(image.convert("RGB"), np.float64)
        rim = np.ones(pixels.shape[:2], dtype=bool)
        width = max(1, round(self.border * min(rim.shape)))
        rim[width:-width, width:-width] = False
        near = np.linalg.norm(pixels - _surface(pixels, rim, self.tolerance), axis=2) <= self.tolerance
        share = float(near[rim].mean())
        if share < self.clean:
            raise Rejected(f"the background is not clean: {share:.0%} of the border is of one smooth color")
        body = largest(~touching_rim(near, rim))
        if not body.any():
            raise Rejected("the picture shows nothing but background")
        return mask_of(body, self.least, self.most, "the object")


@dataclass(frozen=True)
class ClipSeg:
    """Finds the object by its category's name, with CLIPSeg from transformers (safetensors, Apache-2.0).

    The object is the largest connected region, including its holes unless they reach the border.

    Attributes:
        threshold: of the probability that a pixel belongs to the object.
        least, most: share of the picture that an object may cover.
    """

    place: Place = AUTO
    base: Weights = CLIPSEG
    threshold: float = 0.5
    least: float = 0.02
    most: float = 0.9

    name: ClassVar[str] = "clipseg"

    @property
    def settings(self) -> dict[str, Any]:
        values = {"threshold": self.threshold, "least": self.least, "most": self.most}
        return {"remover": "clipseg", "base": self.base.key, **values}

    @property
    def licences(self) -> dict[str, str]:
        return {self.base.key: self.base.licence}

    @cached_property
    def versions(self) -> dict[str, str]:
        return {"base": version(self.base)}

    def load(self) -> None:
        _ = self.model

    @cached_property
    def model(self) -> tuple[Any, Any]:
        need("transformers")
        from transformers import CLIPSegForImageSegmentation, CLIPSegProcessor

        options = {} if self.base.local else {"revision": self.base.revision}
        try:
            processor = CLIPSegProcessor.from_pretrained(self.base.repo, **options)
            model = CLIPSegForImageSegmentation.from_pretrained(self.base.repo, use_safetensors=True, **options)
        except (OSError, ValueError, KeyError) as error:
            raise WeightsError(f"cannot load {self.base} as CLIPSeg: {error}") from error
        return processor, model.eval().to(self.place.torch_device())

    def mask(self, image: Image.Image, category: str) -> Image.Image:
        import torch
        import torch.nn.functional as F

        processor, model = self.model
        inputs = processor(text=[category], images=[image.convert("RGB")], return_tensors="pt", padding=True)
        with torch.inference_mode():
            logits = model(**inputs.to(self.place.torch_device())).logits
            logits = logits.reshape(1, 1, *logits.shape[-2:]).float()
            size = (image.height, image.width)
            found = F.interpolate(logits, size, mode="bilinear", align_corners=False)[0, 0].sigmoid() >= self.threshold

        body = largest(found.cpu().numpy())
        rim = np.ones_like(body)
        rim[1:-1, 1:-1] = False
        body |= ~touching_rim(~body, rim)
        return mask_of(body, self.least, self.most, f"the region found as {category}")


def _surface(pixels: NDArray[np.float64], rim: NDArray[np.bool_], tolerance: float) -> NDArray[np.float64]:
    """(H, W, 3): quadratic in x and y, by least squares on the rim; refitted without outliers such as the object."""
    y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in rim.shape), indexing="ij")
    terms = np.stack([np.ones_like(x), x, y, x * y, x * x, y * y], axis=-1)
    at, colors = terms[rim], pixels[rim]
    kept = np.linalg.norm(colors - np.median(colors, axis=0), axis=1) <= 2 * tolerance
    fit = np.zeros((6, 3))
    fit[0] = np.median(colors, axis=0)
    for _ in range(3):
        if kept.sum() < 24:  # too few for 6 terms
            break
        fit = np.linalg.lstsq(at[kept], colors[kept], rcond=None)[0]
        kept = np.linalg.norm(colors - at @ fit, axis=1) <= tolerance
    surface: NDArray[np.float64] = terms @ fit
    return surface
