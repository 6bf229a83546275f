"""Embedder: the base class of every model. Pixels in, Embedding out; two images in, distance out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric import checkpoint
from idmetric._version import __version__
from idmetric.distance import distance as embedding_distance
from idmetric.distance import distance_matrix, needs_patches
from idmetric.embedding import Embedding, concatenate
from idmetric.images import (
    ImageLike,
    ImageReadError,
    Outside,
    check_pixels,
    cut_out,
    describe,
    load_batch,
    place,
    read_mask,
    resize_pixels,
    split_images,
    to_pixels,
)

Images = ImageLike | Sequence[ImageLike]
Masks = ImageLike | Sequence[ImageLike | None] | None

Self = TypeVar("Self", bound="Embedder")


def auto_device() -> torch.device:
    """CUDA where there is one, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


class Embedder(nn.Module):
    """A model that embeds images, bound to its own preprocessing.

    A subclass calls this constructor and defines `encode`, `config` and `from_pretrained`'s constructor.

    Args:
        name: what the user calls the model, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`).
        image_size: height and width of the encoder's input; images are squashed to it, not cropped.
        mean, std: per-channel normalisation of pixels in [0, 1].
        interpolation: "bicubic" or "bilinear", antialiased.
        background: RGB colour (0-255) that shows through transparent images.

    Loaded models are frozen: in eval mode, no parameter requires grad, and `train()` does not change that. Gradients
    still flow to the pixels.
    """

    model_type = ""

    def __init__(
        self,
        *,
        name: str,
        revision: str,
        image_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: str = "bicubic",
        background: tuple[int, int, int] = (255, 255, 255),
    ) -> None:
        super().__init__()
        self.name = name
        self.revision = revision
        self.image_size = image_size
        self.interpolation = interpolation
        self.background = background
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))

    # What a model defines

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
        """Normalised pixels (B, 3, *image_size) to global features (B, D), patches (B, P, D') and their grid."""
        raise NotImplementedError(f"{type(self).__name__} does not define encode")

    def config(self) -> dict[str, Any]:
        """What config.json must say to rebuild this model; plain JSON values."""
        raise NotImplementedError(f"{type(self).__name__} does not define config")

    # Where it is, what it is

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights; images are cast to it."""
        return next(self.parameters()).dtype

    @property
    def model_id(self) -> str:
        """Model, exact weights and resolution in one word: what an Embedding carries."""
        return f"{self.label}@{self.revision or 'none'}/{self.resolution}"

    @property
    def label(self) -> str:
        """Class and name, and whatever else in a model's settings changes its scores."""
        return f"{type(self).__name__}:{self.name}"

    @property
    def resolution(self) -> str:
        """Height x width in pixels at which images are seen."""
        height, width = self.image_size
        return f"{height}x{width}"

    def signature(self, distance: str = "cls") -> dict[str, str]:
        """What to report beside a score, so that it can be reproduced."""
        return {
            "model": self.label,
            "revision": self.revision,
            "distance": distance,
            "resolution": self.resolution,
            "dtype": str(self.dtype).removeprefix("torch."),
            "idmetric": __version__,
        }

    def train(self: Self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model stays in eval mode.

        So a metric kept inside a larger module gives the same scores when that module trains.
        """
        return super().train(mode and any(p.requires_grad for p in self.parameters()))

    # Pixels in, embedding out

    def forward(self, pixels: Tensor) -> Embedding:
        """Embed pixels, differentiably.

        Args:
            pixels: shape (B, 3, H, W), RGB in [0, 1], any size (resized by antialiased bicubic interpolation).

        Raises:
            ImageReadError: if the values leave [0, 1]; the message says what was found.
        """
        if not torch.compiler.is_compiling():
            check_pixels(pixels)
        return self._encode(resize_pixels(pixels, self.image_size, self.interpolation))

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std of (..., 3, H, W) on the model's device, in float32 or better whatever its dtype."""
        x = pixels.to(self.device, torch.promote_types(pixels.dtype, torch.promote_types(self.dtype, torch.float32)))
        mean, std = (x.new_tensor(value).view(3, 1, 1) for value in (self.mean, self.std))
        return (x - mean) / std

    def _encode(self, pixels: Tensor) -> Embedding:
        x = self.normalise(pixels).to(self.dtype)
        features, patches, grid = self.encode(x)
        return Embedding(features, patches, grid, model=self.model_id)

    def embed(
        self,
        images: Images,
        *,
        batch_size: int = 32,
        masks: Masks = None,
        outside: Outside = "black",
        patches: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> Embedding:
        """Embed images of any kind, in batches, without building a graph.

        Args:
            images: one image or a list: path, PIL image, array, tensor, bytes or file object (see `idmetric.images`).
            batch_size: images per pass; results do not depend on it beyond float rounding.
            masks: subject mask of each image (or None for an image without one), in the same kinds, white = subject.
                Patches are weighted by how much of them the mask covers, and `outside` says what becomes of the other
                pixels.
            outside: "black" or "white" paints pixels outside the mask, so that `cls` too sees the subject alone;
                "crop" blacks them out and cuts the image to the mask's bounding box (the "FG only" columns of NearID
                Table 7 speak of such crops); "keep" leaves them: then only patch distances heed the mask.
            patches: False drops the patch tokens, to save memory where only `cls` distances are wanted.
            progress: called with (images done, images in all) after each batch.

        Raises:
            ImageReadError: naming the image that cannot be read.
            ValueError: for no images, or masks that do not fit them.
        """
        with torch.no_grad():
            return self._embed(images, batch_size, masks, outside, patches, progress)

    def _embed(
        self,
        images: Images,
        batch_size: int,
        masks: Masks,
        outside: Outside,
        patches: bool,
        progress: Callable[[int, int], None] | None = None,
    ) -> Embedding:
        singles = split_images(images)
        if not singles:
            raise ValueError("no images given")
        covers = split_masks(masks, len(singles))
        return in_batches(
            lambda part: self._embed_batch(singles[part], covers[part], outside),
            len(singles), batch_size, patches, progress,
        )  # fmt: skip

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which this model sees an image of that size; ValueError if it cannot."""
        return self.image_size

    def load_image(
        self, image: ImageLike, mask: ImageLike | None = None, outside: Outside = "black"
    ) -> tuple[Tensor, Tensor | None]:
        """One image as this model sees it, and its mask.

        Args:
            image, mask, outside: as for `embed`.

        Returns:
            Pixels (3, h, w) in [0, 1], h and w from `size_for`; how much of each pixel the mask covers (h, w), or None
            without a mask.

        Raises:
            ImageReadError: if one of them cannot be read, or the mask selects nothing.
        """
        if mask is None:
            return (
                to_pixels(image, self.size_for, background=self.background, interpolation=self.interpolation),
                None,
            )
        subject, cover = cut_out(image, mask, outside, background=self.background)
        try:
            pixels = to_pixels(subject, self.size_for, interpolation=self.interpolation)
        except ImageReadError as error:  # it knows the cut-out alone
            raise ImageReadError(describe(image), error.reason) from error
        cover = read_mask(cover, (pixels.shape[1], pixels.shape[2]))
        return pixels, cover.to(pixels.device, pixels.dtype)

    def _embed_batch(self, images: list[ImageLike], masks: list[ImageLike | None], outside: Outside) -> Embedding:
        if all(mask is None for mask in masks):
            return self._encode(
                load_batch(
                    images,
                    self.image_size,
                    background=self.background,
                    interpolation=self.interpolation,
                    device=self.device,
                )
            )
        loaded = [self.load_image(image, mask, outside) for image, mask in zip(images, masks, strict=True)]
        dtype = torch.float64 if any(x.dtype == torch.float64 for x, _ in loaded) else torch.float32
        pixels = torch.stack([place(x.to(dtype), self.device) for x, _ in loaded])
        cover = torch.stack([x.new_ones(x.shape[1:]) if c is None else c for x, c in loaded])[:, None].to(pixels)
        found = self._encode(pixels)
        if found.patches is None or found.grid is None:
            return found
        weights = F.adaptive_avg_pool2d(cover.float(), found.grid).flatten(1)
        return Embedding(found.cls, found.patches, found.grid, weights, found.model)

    # Two images in, distance out

    @overload
    def __call__(self, a: Tensor) -> Embedding: ...

    @overload
    def __call__(
        self,
        a: Images | Embedding,
        b: Images | Embedding,
        distance: str = ...,
        *,
        mask_a: Masks = ...,
        mask_b: Masks = ...,
        outside: Outside = ...,
        joint_weight: float = ...,
        batch_size: int = ...,
    ) -> Tensor: ...

    def __call__(
        self,
        a: Images | Embedding,
        b: Images | Embedding | None = None,
        distance: str = "cls",
        *,
        mask_a: Masks = None,
        mask_b: Masks = None,
        outside: Outside = "black",
        joint_weight: float = 1.0,
        batch_size: int = 32,
    ) -> Embedding | Tensor:
        """Distance of each image of a to its partner in b; lower = more surely the same identity.

        With pixels alone, `metric(pixels)` is `forward`, as wrappers like DistributedDataParallel call it.

        Args:
            a, b: images (anything `embed` takes) or embeddings, equally many, or one on one side: it is embedded once
                and compared with all.
            distance: "cls" (default), "patch", "joint" or a variant of the table in `idmetric.distance`.
            mask_a, mask_b, outside: subject masks, see `embed`.
            joint_weight: weight of the patch term in "joint".
            batch_size: images per pass.

        Returns:
            Shape (B,), float32; `.item()` gives the number for two single images. The autograd graph is kept exactly
            when tensors that require grad were given.
        """
        if b is None:
            embedding: Embedding = super().__call__(a)
            return embedding
        patches = needs_patches(distance)
        x = self._side(a, mask_a, outside, patches, batch_size)
        y = self._side(b, mask_b, outside, patches, batch_size)
        return embedding_distance(x, y, distance, joint_weight=joint_weight)

    def similarity(self, a: Images | Embedding, b: Images | Embedding, distance: str = "cls", **options: Any) -> Tensor:
        """1 - distance (ID-Sim Eq. 4): 1 for the same image, for `cls` the cosine. Arguments as for a distance."""
        result: Tensor = 1 - self(a, b, distance, **options)
        return result

    def pairwise(
        self,
        a: Images | Embedding,
        b: Images | Embedding | None = None,
        distance: str = "cls",
        *,
        masks_a: Masks = None,
        masks_b: Masks = None,
        outside: Outside = "black",
        joint_weight: float = 1.0,
        batch_size: int = 32,
    ) -> Tensor:
        """Distances of every image of a to every image of b (default: a itself), shape (N, M).

        Each image is embedded once.
        """
        patches = needs_patches(distance)
        x = self._side(a, masks_a, outside, patches, batch_size)
        y = None if b is None else self._side(b, masks_b, outside, patches, batch_size)
        return distance_matrix(x, y, distance, joint_weight=joint_weight)

    def _side(
        self, images: Images | Embedding, masks: Masks, outside: Outside, patches: bool, batch_size: int
    ) -> Embedding:
        if isinstance(images, Embedding):
            if masks is not None:
                raise ValueError("a mask was given with an Embedding: give it to embed instead")
            if images.model and images.model != self.model_id:
                raise ValueError(f"the embedding was made by {images.model}, this metric is {self.model_id}")
            return images
        wants_grad = any(isinstance(x, Tensor) and x.requires_grad for x in _tensors(images))
        context: AbstractContextManager[Any] = nullcontext() if wants_grad else torch.no_grad()
        with context:
            return self._embed(images, batch_size, masks, outside, patches)

    # Files

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors; `idmetric.load(folder)` opens them again."""
        checkpoint.write(folder, {"model_type": self.model_type, **self.config()}, self.state_dict())

    @classmethod
    def from_pretrained(cls: type[Self], source: str | os.PathLike[str], **options: Any) -> Self:
        """The same as calling the class: `IDSim.from_pretrained("run/")` is `IDSim("run/")`."""
        return cls(source, **options)  # type: ignore[arg-type, call-arg]  # subclasses take the source first

    def push_to_hub(self, repo: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload to the Hub repository `owner/name` (created if absent); returns the commit's address."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return checkpoint.push(folder, repo, private=private, token=token)

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype)


def _tensors(images: Any) -> Sequence[Any]:
    return images if isinstance(images, list | tuple) else [images]


def in_batches(
    run: Callable[[slice], Embedding],
    count: int,
    batch_size: int,
    patches: bool,
    progress: Callable[[int, int], None] | None,
) -> Embedding:
    """Embed `count` items, `run` on at most `batch_size` of them at a time; arguments as for `Embedder.embed`."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    parts = []
    for start in range(0, count, batch_size):
        part = run(slice(start, start + batch_size))
        parts.append(part if patches else Embedding(part.cls, model=part.model))
        if progress is not None:
            progress(min(start + batch_size, count), count)
    return concatenate(parts)


def split_masks(masks: Masks, count: int) -> list[ImageLike | None]:
    """A mask, or None, for each of `count` images.

    Raises:
        ValueError: if there are more or fewer.
    """
    if masks is None:
        return [None] * count
    if isinstance(masks, list | tuple):
        found = list(masks)
    elif isinstance(masks, Tensor) and masks.ndim in (3, 4):
        # (N, H, W) or (N, 1, H, W): one mask for each image
        found = list(masks)
    else:
        found = [masks]
    if len(found) != count:
        raise ValueError(f"{len(found)} masks for {count} images: give one for each (None where there is none)")
    return found
