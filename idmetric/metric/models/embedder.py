"""Embedder: the base class of every model. Pixels in, Embedding out; two images in, distance out."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, get_args, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from idmetric.metric.calibration import apply as calibrations
from idmetric.metric.calibration.apply import Calibration, CalibrationError
from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.fingerprint import WeightsName, weights_digest
from idmetric.metric.checkpoints.hub import Files
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import check_distances
from idmetric.metric.distance.matrix import distance as embedding_distance
from idmetric.metric.distance.matrix import distance_matrix, needs_patches
from idmetric.metric.files.progress import Progress
from idmetric.metric.images import paths as inputs
from idmetric.metric.images.arrays import check_pixels
from idmetric.metric.images.fit import SQUASH, Fit
from idmetric.metric.images.masks import Images, MaskId, MaskLike, Masks, labeled, split_masks
from idmetric.metric.images.opening import Decode, checked, mark_of
from idmetric.metric.images.read import (
    ImageLike,
    ImageReadError,
    Outside,
    Preprocessing,
    Reading,
    describe,
    is_single,
    read_image,
    split_images,
    to_pixels,
)
from idmetric.metric.images.regions import cut_out
from idmetric.metric.images.resize import place
from idmetric.metric.models import names
from idmetric.metric.models.batches import in_batches
from idmetric.metric.models.identity import Identity
from idmetric.metric.models.named import NamedScore

_USUAL = {"preprocessing": "standard", "resize": "squash"}  # values that config.json leaves out
Loaded = tuple[Tensor, Tensor | None]  # pixels (3, h, w) of an image, and how much of each its mask covers


def auto_device() -> torch.device:
    """CUDA where there is one, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def wants_grad(images: Any) -> bool:
    """Whether an image tensor, alone or in a list, requires grad."""
    candidates = images if isinstance(images, list | tuple) else [images]
    return any(isinstance(image, Tensor) and image.requires_grad for image in candidates)


def warn_of_lost_graph(images: Any) -> None:
    """Warn the caller of `embed` that its result passes no gradients to images that require them."""
    if torch.is_grad_enabled() and wants_grad(images):
        warnings.warn(
            "embed() builds no graph: its result passes no gradient to these images, which require one. Call "
            "metric(pixels) for features with a graph, or detach the images",
            stacklevel=3,
        )


@contextmanager
def opening() -> Iterator[None]:
    """Decorates a model's constructor: its weights can be part of a graph, and are made on the CPU before they move.

    Otherwise torch's inference mode and default device, such as "meta", would hold for them.
    """
    with torch.inference_mode(False), torch.device("cpu"):
        yield


class Embedder(Identity, nn.Module):
    """A model that embeds images, bound to its own preprocessing.

    A subclass calls this constructor and defines `forward_features` and `settings`, or `config`.

    Args:
        name: the name by which the user opened it, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`).
        image_size: height and width of the encoder's input.
        mean, std: per-channel normalization of pixels in [0, 1].
        interpolation: "bicubic" or "bilinear", antialiased.
        background: RGB color (0-255) that shows through transparent images.
        preprocessing: how files and PIL images become RGB, "standard" or "release" (see `idmetric.metric.images`).
        fit: how images of other shapes are brought to `image_size`; squashed by default, not cropped.
        files: the folder or repository that it was loaded from, perhaps with a calibration.

    Loaded models are frozen: in eval mode, no parameter requires grad, and `train()` does not change that. Gradients
    still flow to the pixels.
    """

    model_type = ""  # in config.json; models without one cannot be saved
    settings: Any  # the dataclass that is saved in config.json
    named: NamedScore | None = None  # the published score that it was opened by
    scales_files = True  # whether images are resized with antialiasing, before which files may be scaled
    _decode: Decode = "exact"

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
        preprocessing: Preprocessing = "standard",
        fit: Fit = SQUASH,
        files: Files | None = None,
    ) -> None:
        if preprocessing not in get_args(Preprocessing):
            raise ValueError(f"unknown preprocessing {preprocessing!r}: choose {' or '.join(get_args(Preprocessing))}")
        super().__init__()
        self.name = name
        short = name
        if files is not None and files.local and os.path.isdir(name) and os.path.samefile(name, files.name):
            short = os.path.basename(os.path.realpath(name)) or name
            if names.known(short):  # a folder with the name of a published model
                short = f"./{short}"
        self._named = (name, short)
        self._files = files
        self._weights = WeightsName(revision)
        self._calibration: Calibration | None = None
        self.image_size = image_size
        self.interpolation = interpolation
        self.background = background
        self.preprocessing = preprocessing
        self.fit = fit
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self._compiled: Callable[..., Any] | None = None

    # Defined by each model

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
        """Normalized pixels (B, 3, *image_size) to global features (B, D), patches (B, P, D') and their grid."""
        raise NotImplementedError(f"{self.name} takes images, not pixels: it does not define forward_features")

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the encoder by `torch.compile`, in place, so that `embed` and distances use it as well."""
        super().compile(*args, **options)
        self._compiled = torch.compile(type(self).forward_features, *args, **options)  # unbound: copies stay apart

    def config(self) -> dict[str, Any]:
        """The settings that config.json needs to rebuild this model, as plain JSON values: fields of `settings`."""
        config = asdict(self.settings)
        for name, usual in _USUAL.items():
            if config.get(name) == usual:
                del config[name]
        return config

    # Pixels in, embedding out

    def forward(self, pixels: Tensor) -> Embedding:
        """Embed pixels, differentiably.

        Args:
            pixels: shape (B, 3, H, W), RGB in [0, 1], any size (see `fit_pixels`).

        Raises:
            ImageReadError: if the values leave [0, 1]; the message gives the range found.
        """
        if not torch.compiler.is_compiling():
            check_pixels(pixels)
        return self.embed_pixels(self.fit_pixels(pixels))

    def fit_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at the size at which this model sees them, antialiased, differentiably."""
        size = self.size_for(pixels.shape[-2], pixels.shape[-1])
        return self.fit.pixels(pixels, size, self.interpolation, self.background)

    def normalize(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std of (..., 3, H, W) on the model's device, in float32 or better whatever its dtype."""
        x = pixels.to(self.device, torch.promote_types(pixels.dtype, torch.promote_types(self.dtype, torch.float32)))
        mean, std = (x.new_tensor(value).view(3, 1, 1) for value in (self.mean, self.std))
        return (x - mean).div_(std)

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        x = self.normalize(pixels).to(self.dtype)
        features, patches, grid = self.forward_features(x) if self._compiled is None else self._compiled(self, x)
        return Embedding(features, patches, grid, model=self._maker())

    def embed(
        self,
        images: Images,
        *,
        batch_size: int = 32,
        masks: Masks = None,
        mask_id: MaskId | None = None,
        outside: Outside = "black",
        patches: bool = True,
        workers: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Embedding:
        """Embed images of any kind, in batches, without building a graph.

        For features that pass gradients to the pixels, call the metric itself: `metric(pixels)`.

        Args:
            images: one image or a list: path, PIL image, array, tensor, bytes or file object (see `images`). A
                folder or a pattern ("photos/cat", "gen/*.png") is the list of its images, in natural order.
            batch_size: images per pass; results do not depend on it beyond float rounding.
            masks: subject mask of each image (or None for an image without one), of the same kinds, white = subject. A
                folder holds the masks at the images' paths, whole or without their first folders (`paths.mask_of`).
                Patches are weighted by how much of them the mask covers, and `outside` says what becomes of the other
                pixels.
            mask_id: the label that is the subject in masks of several objects: a palette index or gray value, or a
                color such as "#ff0000" (see `images.masks`; `Labeled(mask, mask_id)` sets it for one mask).
            outside: "black" or "white" paints pixels outside the mask, so that `cls` too sees the subject alone;
                "crop" blacks them out and cuts the image to the mask's bounding box; "keep" leaves them: then only
                patch distances use the mask.
            patches: False drops the patch tokens, to save memory where only `cls` distances are wanted.
            workers: threads that read batches while the model works on one before, for files on a machine with cores to
                spare; each holds a batch in memory. 0: read in turn.
            progress: called with (images done, images in all) after each batch.

        Raises:
            ImageReadError: naming the image that cannot be read.
            NonFiniteError: naming the images with features that are NaN or infinite, as a model in float16 may give.
            ValueError: for no images, or masks that do not fit them.
        """
        warn_of_lost_graph(images)
        with torch.no_grad():
            return self._embed(images, batch_size, labeled(masks, mask_id), outside, patches, progress, workers)

    def _embed(
        self,
        images: Images,
        batch_size: int,
        masks: Masks,
        outside: Outside,
        patches: bool,
        progress: Callable[[int, int], None] | None = None,
        workers: int = 0,
    ) -> Embedding:
        singles = split_images(images)
        if not singles:
            raise ValueError("no images given")
        covers = split_masks(masks, singles)

        def load(part: slice) -> list[Loaded]:
            pairs = zip(singles[part], covers[part], strict=True)
            return [self.load_image(image, mask, outside) for image, mask in pairs]

        return in_batches(load, self._embed_batch, singles, self.dtype, batch_size, patches, progress, workers)

    def encode(
        self,
        images: Images,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        **options: Any,
    ) -> NDArray[np.float32] | Tensor | list[Tensor]:
        """Global features under the name and with the arguments of sentence-transformers' `encode`.

        >>> vectors = metric.encode(["a.jpg", "b.jpg"])  # (2, D)  # doctest: +SKIP

        Args:
            images: one image gives (D,), a list gives (N, D), in its order; an empty list gives (0, D).
            batch_size, options: as for `embed`, such as masks=; VisIDEmbed also takes task=, instruction=, texts=.
            show_progress_bar: on stderr, from the first batch that takes long.
            convert_to_numpy: an array, float32 for 16-bit models too; False gives a list of tensors.
            convert_to_tensor: one tensor on the model's device instead; goes before convert_to_numpy.
            normalize_embeddings: scale to unit length, so that dot products are cosines.

        Raises:
            ImageReadError, ValueError: as `embed`.
        """
        if isinstance(images, list | tuple) and not images:  # a blank image shows D
            found = self.embed(torch.zeros(3, *self.image_size), patches=False).cls[:0]
        else:
            with Progress("images", bool(show_progress_bar)) as progress:
                options = {"batch_size": batch_size, "patches": False, "progress": progress, **options}
                found = self.embed(images, **options).cls
        if normalize_embeddings:
            found = F.normalize(found.to(torch.promote_types(found.dtype, torch.float32)), dim=-1).to(found.dtype)
        if is_single(images):
            found = found[0]
        if convert_to_tensor:
            return found
        if convert_to_numpy:
            array: NDArray[np.float32] = found.float().cpu().numpy()
            return array
        return found if is_single(images) else list(found)

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which this model sees an image of that size; ValueError if it cannot."""
        return self.image_size

    @property
    def reading(self) -> Reading:
        """How files become pixels: options of `idmetric.metric.images.read.to_pixels`."""
        return {
            "background": self.background, "interpolation": self.interpolation, "preprocessing": self.preprocessing,
            "fit": self.fit, "decode": self._decode,
        }  # fmt: skip

    def read_image(self, image: ImageLike, *, whole: bool = True) -> Image.Image:
        """One image as 8-bit RGB at its own size, as this model's preprocessing reads it; see `images.read_image`.

        Args:
            whole: False leaves out the pixels that `embed` does not decode without a mask (see `decode`).
        """
        exact = whole or self.decode == "exact"
        needed = None if exact else lambda height, width: self.fit.plan(height, width, self.size_for(height, width))[0]
        return read_image(image, background=self.background, preprocessing=self.preprocessing, needed=needed)

    def load_image(
        self,
        image: ImageLike,
        mask: MaskLike | None = None,
        outside: Outside = "black",
        *,
        mask_id: MaskId | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One image as this model sees it, and its mask.

        Args:
            image, mask, outside, mask_id: as for `embed`.

        Returns:
            Pixels (3, h, w) in [0, 1], h and w from `size_for`; how much of each pixel the mask covers (h, w), or None
            without a mask.

        Raises:
            ImageReadError: if one of them cannot be read, the mask selects nothing, or the model reads images as its
                release does, which knows no masks.
        """
        if mask is None:
            return to_pixels(image, self.size_for, **self.reading), None
        if self.preprocessing == "release":
            advice = "leave the masks out, or load the model with preprocessing='standard'"
            raise ImageReadError(
                describe(mask), f"preprocessing='release' follows the release, which takes no masks: {advice}"
            )
        subject, cover = cut_out(image, mask, outside, mask_id=mask_id, background=self.background)
        try:
            pixels = to_pixels(subject, self.size_for, **self.reading)
        except ImageReadError as error:  # it knows the cut-out alone
            raise ImageReadError(describe(image), error.reason) from error
        cover = self.fit.cover(cover, (pixels.shape[1], pixels.shape[2]), isinstance(subject, Tensor))
        if not cover.any():
            raise ImageReadError(describe(image), "its mask selects nothing of the part of the image that is seen")
        return pixels, cover.to(pixels.device, pixels.dtype)

    def _embed_batch(self, loaded: list[Loaded]) -> Embedding:
        dtype = torch.float64 if any(x.dtype == torch.float64 for x, _ in loaded) else torch.float32
        found = self.embed_pixels(torch.stack([place(x.to(dtype), self.device) for x, _ in loaded]))
        if found.patches is None or found.grid is None or all(cover is None for _, cover in loaded):
            return found
        covers = [x.new_ones(x.shape[1:]) if cover is None else cover for x, cover in loaded]
        cover = torch.stack([cover.to(found.patches.device, torch.float32) for cover in covers])
        weights = F.adaptive_avg_pool2d(cover[:, None], found.grid).flatten(1)
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
        mask_id: MaskId | None = ...,
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
        mask_id: MaskId | None = None,
        outside: Outside = "black",
        joint_weight: float = 1.0,
        batch_size: int = 32,
    ) -> Embedding | Tensor:
        """Distance of each image of a to its partner in b; lower = more surely the same identity.

        With pixels alone, `metric(pixels)` is `forward`, as wrappers like DistributedDataParallel call it.

        Args:
            a, b: images (anything `embed` takes) or embeddings, equally many, or one on one side: it is embedded once
                and compared with all. Two folders or patterns must hold images of equal names.
            distance: "cls" (default), "patch", "joint" or a variant of the table in `idmetric.metric.distance.matrix`.
            mask_a, mask_b, mask_id, outside: subject masks, see `embed`.
            joint_weight: weight of the patch term in "joint".
            batch_size: images per pass.

        Returns:
            Shape (B,), float32; `.item()` gives the number for two single images. The autograd graph is kept exactly
            when tensors that require grad were given.

        Raises:
            NonFiniteError: for embeddings or distances that are NaN or infinite. With a graph nothing is checked, so as
                not to wait for the device: check your loss, as `torch.amp.GradScaler` does.
        """
        if b is None:
            if not isinstance(a, Tensor):
                raise TypeError(
                    f"metric(a) takes pixels, a tensor (B, 3, H, W), got {type(a).__name__}: compare two images with "
                    "metric(a, b), or embed one with metric.embed(a)"
                )
            embedding: Embedding = super().__call__(a)
            return embedding
        inputs.check_partners(a, b)
        patches = needs_patches(distance)
        x = self.as_embedding(a, labeled(mask_a, mask_id), outside, patches, batch_size)
        y = self.as_embedding(b, labeled(mask_b, mask_id), outside, patches, batch_size)
        return self._finite(embedding_distance(x, y, distance, joint_weight=joint_weight))

    def _finite(self, distances: Tensor) -> Tensor:
        """The distances, checked unless they are part of a graph: there a check would wait for the device."""
        if not distances.requires_grad and not torch.compiler.is_compiling():
            check_distances(distances, self.dtype)
        return distances

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
        mask_id: MaskId | None = None,
        outside: Outside = "black",
        joint_weight: float = 1.0,
        batch_size: int = 32,
    ) -> Tensor:
        """Distances of every image of a to every image of b (default: a itself), shape (N, M).

        Each image is embedded once; `mask_id`, the other arguments and the errors are those of a distance.
        """
        patches = needs_patches(distance)
        x = self.as_embedding(a, labeled(masks_a, mask_id), outside, patches, batch_size)
        y = None if b is None else self.as_embedding(b, labeled(masks_b, mask_id), outside, patches, batch_size)
        return self._finite(distance_matrix(x, y, distance, joint_weight=joint_weight))

    def as_embedding(
        self, images: Images | Embedding, masks: Masks, outside: Outside, patches: bool, batch_size: int
    ) -> Embedding:
        """One side of a comparison, embedded unless it is an `Embedding` already.

        The graph is kept where a tensor among the images requires grad.

        Raises:
            ValueError: for a mask with an Embedding, or an Embedding of another model.
        """
        if isinstance(images, Embedding):
            if masks is not None:
                raise ValueError("a mask was given with an Embedding: give it to embed instead")
            images.check_maker(self._maker())
            return images
        context: AbstractContextManager[Any] = nullcontext() if wants_grad(images) else torch.no_grad()
        with context:
            return self._embed(images, batch_size, masks, outside, patches)

    # Distances in, probabilities out

    def probability(
        self,
        a: Images | Embedding,
        b: Images | Embedding,
        distance: str | None = None,
        *,
        prior: float | None = None,
        **options: Any,
    ) -> Tensor:
        """Probability that each image of a shows the same identity as its partner in b.

        It holds for pairs like those of `calibration`: see `idmetric eval calibrate`. A
        `CalibrationWarning` says so if these were not photos; `calibration.basis` is the same sentence.

        Args:
            a, b, options: as for a distance, such as mask_a= and outside=.
            distance: default the one that the calibration is for; another is refused.
            prior: share of same-identity pairs among your pairs; default the calibration's.

        Returns:
            Shape (B,), in (0, 1), without graph.

        Raises:
            CalibrationError: if there is no calibration, or it was made for another model, distance or way of masking.
        """
        found = self.calibration
        if found is None:
            raise CalibrationError(
                f"{self.label} has no calibration in its folder: make one with `idmetric eval calibrate`, and pass it "
                "to calibrate_with(file)"
            )
        if "joint_weight" in options:
            raise TypeError("a calibration is for joint_weight=1: probability() takes no other")
        found.check_distance(found.distance if distance is None else distance)
        for images, mask in ((a, "mask_a"), (b, "mask_b")):
            if not isinstance(images, Embedding):  # how an Embedding was masked is not known
                found.check_outside("all" if options.get(mask) is None else options.get("outside", "black"))
        found.warn()
        with torch.no_grad():
            far: Tensor = self(a, b, found.distance, **options)
        return torch.from_numpy(found.probability(far.double().cpu().numpy(), prior)).to(far.device, far.dtype)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration that `probability` uses: from `calibrate_with`, else the folder's calibration.json, or None.

        Raises:
            CalibrationError: if the file is damaged, or was made for other weights.
        """
        if self._calibration is None and self._files is not None:
            path = self._files.optional(checkpoint.CALIBRATION)
            if path is not None:
                self._calibration = self._checked(path)

        found, now = self._calibration, self.calibrated_model(files=False)
        if found is not None and (self._weights.changed(self) or found.model.settings != now.settings):
            found.check_model(now)  # which fails: the weights or `decode` have changed
        return self._calibration

    def calibrate_with(self, calibration: str | os.PathLike[str] | Calibration) -> Self:
        """Use this calibration (a file, or one in memory) from now on; returns the metric.

        Raises:
            CalibrationError: if it cannot be read, or was made for another model.
        """
        self._calibration = self._checked(calibration)
        return self

    def calibrated_model(self, files: bool = True) -> calibrations.Model:
        """The model that a calibration is bound to; with `files`, also their hash (a second for each gigabyte)."""
        content = None
        if files and self._files is not None and not self._weights.changed(self):
            content = checkpoint.content_of(self._files)
        settings = self.label.removeprefix(f"{type(self).__name__}:{self.short_name}")
        return calibrations.Model(type(self).__name__, settings, self.revision, content, self.resolution)

    def _checked(self, calibration: str | os.PathLike[str] | Calibration) -> Calibration:
        found = calibration if isinstance(calibration, Calibration) else calibrations.read(calibration)
        if not found.model.is_same(self.calibrated_model(files=False)):  # mostly the revision suffices
            found.check_model(self.calibrated_model())
        return found

    # The identity of a model: its name, its exact weights, and everything else that its embeddings depend on

    @property
    def decode(self) -> str:  # not Decode, on which jedi fails: IPython would complete no name of a metric
        """How files are decoded, a setting that `idmetric.load` takes too.

        "exact" decodes all pixels; "fast" decodes large JPEG files at a smaller size, which moves distances a little
        (`idmetric.metric.images.opening`). Images with a mask, other formats, and decoded images keep all pixels.

        Raises:
            ValueError: for another name, or "fast" where the model needs all pixels.
        """
        return self._decode

    @decode.setter
    def decode(self, decode: str) -> None:
        if checked(decode) == "fast" and not self.scales_files:
            raise ValueError(f"{self.name!r} needs all pixels of a file: leave out --decode fast (decode='fast')")
        self._decode = checked(decode)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights; images are cast to it."""
        return next(self.parameters()).dtype

    @property
    def revision(self) -> str:
        """Which exact weights: the checkpoint's revision, followed by "+changed" once they differ; "" for new ones."""
        return self._weights.revision and self._weights.exact(self)

    @property
    def model_id(self) -> str:
        """Model, exact weights and resolution in one string, which every Embedding carries.

        The weights are named by their revision, or by 12 digits of their hash if they have none. The name is the
        folder's own, however its path was spelled.
        """
        return self._model_id()

    def _model_id(self, look: bool = True) -> str:
        return f"{self.label}@{self._weights.exact(self, look)}/{self.resolution}"

    def _is_named(self) -> bool:
        """Whether a revision names the weights that are in memory now."""
        return bool(self._weights.revision) and not self._weights.changed(self)

    def _maker(self) -> str:
        """The `model_id` that marks an Embedding made now.

        Empty inside `torch.compile` and the transforms of torch.func, which cannot trace a hash, and while the weights
        are trained, as every step would be another model. Weights are compared only after writes that PyTorch counts,
        so as not to wait for the device.
        """
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return ""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            return ""
        return self._model_id(look=False)

    def take_revision(self, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        self._weights.take(self, revision)

    def _name_saved(self, folder: str | os.PathLike[str], revision: Callable[[Path], str]) -> None:
        """Call weights that have no revision, or have changed, by that of the folder to which they were just saved."""
        if not self._is_named():
            self.take_revision(revision(Path(folder)))
            self._files = Files(folder)

    @property
    def short_name(self) -> str:
        """The name; for a folder its own name, however its path was spelled."""
        given, short = self._named
        return short if self.name == given else self.name

    @property
    def label(self) -> str:
        """Class and name, and every other setting of a model that changes its scores."""
        reading = "" if self.preprocessing == "standard" else f"[{self.preprocessing} preprocessing]"
        shape = "" if self.fit == SQUASH else f"[{self.fit}, {self.interpolation}]"
        return f"{type(self).__name__}:{self.short_name}{reading}{mark_of(self._decode)}{shape}"

    def about(self, outside: Outside | None = None, mask_id: MaskId | None = None) -> dict[str, str]:
        """Everything that this model's embeddings depend on, the exact weights in memory included.

        Args:
            outside: what becomes of pixels outside masks; None for whole images.
            mask_id: which label of the masks is the subject, if one was chosen.
        """
        shape = "" if self.fit == SQUASH else f" {self.fit}"
        return {
            **self.signature(),
            "weights": self._weights.revision if self._is_named() else weights_digest(self),
            "settings": json.dumps(self.config(), sort_keys=True, default=str),
            "seen": f"{self.image_size} {self.mean} {self.std} {self.interpolation} {self.background}{shape}",
            "outside": outside or "all",
            **({} if self.decode == "exact" else {"decode": self.decode}),
            **({} if mask_id is None else {"mask_id": str(mask_id)}),
        }

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model stays in eval mode.

        So a metric kept inside a larger module gives the same scores when that module trains.
        """
        return super().train(mode and any(p.requires_grad for p in self.parameters()))

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype)
        self.take_revision(self._weights.revision)

    def __repr__(self) -> str:
        """One line; `print(metric.backbone)` shows the layers."""
        name = self.label.removeprefix(f"{type(self).__name__}:")
        revision = self.revision or "none"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({name!r}, revision {revision}, {self.resolution}, {dtype} on {self.device})"

    # Files

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors; `idmetric.load(folder)` opens them again."""
        if not self.model_type:
            raise NotImplementedError(f"{self.name} is opened by its name and cannot be saved")
        checkpoint.write(folder, {"model_type": self.model_type, **self.config()}, self.state_dict())
        self._name_saved(folder, checkpoint.revision)

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], **options: Any) -> Self:
        """The same as calling the class: `IDSim.from_pretrained("run/")` is `IDSim("run/")`."""
        return cls(source, **options)  # type: ignore[arg-type, call-arg]  # subclasses take the source first
