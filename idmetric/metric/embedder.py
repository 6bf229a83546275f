"""Which weights a model has: name, revision, a hash of them in memory, PyTorch's counters of writes to them."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_args, overload

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.weights import dtype_of
from idmetric.metric.distance import distance as embedding_distance
from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedding import Embedding, checked_distances, concatenate
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import StrPath, in_order
from idmetric.metric.fingerprint import Weights, keeps_values
from idmetric.metric.images import (
    SQUASH,
    WHITE,
    Color,
    Fit,
    ImageLike,
    ImageReadError,
    MaskId,
    Outside,
    Preprocessing,
    Reading,
    check_paths,
    check_pixels,
    describe,
    naming,
    picture_pixels,
    read_image,
    split_images,
    to_pixels,
)
from idmetric.metric.masks import Images, MaskLike, Masks, labeled, split_masks
from idmetric.metric.paths import check_partners
from idmetric.metric.pixels import place
from idmetric.metric.resampling import Sides
from idmetric.version import __version__

if TYPE_CHECKING:
    from idmetric.metric.calibration import Calibration, Model
    from idmetric.metric.named import NamedScore


# Where and in which precision models run, and how they are opened.


def auto_device() -> torch.device:
    """CUDA where there is one, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def at_least_float32(x: Tensor) -> Tensor:
    """16-bit floats as float32; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@contextmanager
def opening() -> Iterator[None]:
    """Decorates a model's constructor: its weights can be part of a graph, and are made on the CPU before they move.

    Otherwise torch's inference mode and default device, such as "meta", would hold for them.
    """
    with torch.inference_mode(False), torch.device("cpu"):
        yield


# A model's own preprocessing: images and masks of any kind become the pixels that it sees.

LoadedImage = tuple[Tensor, Tensor | None]  # pixels (3, h, w), and how much of each the subject's mask covers (h, w)


class Preprocessor:
    """How a model sees images: their size and normalization.

    Args:
        image_size: height and width of the encoder's input.
        mean, std: per-channel normalization of pixels in [0, 1].
        interpolation: "bicubic" or "bilinear", antialiased.
        background: RGB color (0-255) that shows through transparent images.
        preprocessing: how files and PIL images become RGB, "standard" or "release" (see `idmetric.metric.images`).
        fit: how images of other shapes are brought to `image_size`; squashed by default, not cropped.

    Attributes:
        sizes: from an image's height and width to those at which the model sees it; None: always `image_size`.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: str = "bicubic",
        background: Color = WHITE,
        preprocessing: Preprocessing = "standard",
        fit: Fit = SQUASH,
    ) -> None:
        if preprocessing not in get_args(Preprocessing):
            raise ValueError(f"unknown preprocessing {preprocessing!r}: choose {' or '.join(get_args(Preprocessing))}")
        self.image_size = image_size
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self.interpolation = interpolation
        self.background = background
        self.preprocessing = preprocessing
        self.fit = fit
        self.sizes: Callable[[int, int], Sides] | None = None

    @property
    def mark(self) -> str:
        """The part of a model's label with the settings that are not the usual ones."""
        mark = ""
        if self.preprocessing != "standard":
            mark += f"[{self.preprocessing} preprocessing]"
        if self.fit != SQUASH:
            mark += f"[{self.fit}, {self.interpolation}]"
        return mark

    def about(self) -> dict[str, str]:
        """The settings on which embeddings depend, for keys of caches."""
        seen = f"{self.image_size} {self.mean} {self.std} {self.interpolation} {self.background}"
        if self.fit != SQUASH:
            seen += f" {self.fit}"
        return {"seen": seen}

    # Pixels

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which this model sees an image of that size; ValueError if it cannot."""
        if self.sizes is not None:
            return self.sizes(height, width)
        return self.image_size

    def fit_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at the size at which this model sees them, antialiased, differentiably."""
        size = self.size_for(pixels.shape[-2], pixels.shape[-1])
        return self.fit.pixels(pixels, size, self.interpolation, self.background)

    def normalize(self, pixels: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(pixels - mean) / std of (..., 3, H, W) on the device of a model, in float32 or better whatever its dtype."""
        computed = torch.promote_types(dtype, torch.float32)
        computed = torch.promote_types(computed, pixels.dtype)
        x = pixels.to(device, computed)
        mean = torch.tensor(self.mean, dtype=computed, device=x.device).view(3, 1, 1)
        std = torch.tensor(self.std, dtype=computed, device=x.device).view(3, 1, 1)
        return (x - mean).div_(std)

    # Files and images in memory

    @property
    def decoding(self) -> Hashable:
        """What the pixels of `read_image` depend on: models with equal values share a decoded image."""
        return self.background, self.preprocessing

    @property
    def reading(self) -> Reading:
        """How files become pixels: options of `idmetric.metric.images.to_pixels`."""
        return {
            "background": self.background,
            "interpolation": self.interpolation,
            "preprocessing": self.preprocessing,
            "fit": self.fit,
        }

    def read_image(self, image: ImageLike) -> Image.Image:
        """One image as 8-bit RGB at its own size, as this model's preprocessing reads it; see `images.read_image`."""
        return read_image(image, background=self.background, preprocessing=self.preprocessing)

    def load_image(
        self,
        image: ImageLike,
        mask: MaskLike | None = None,
        outside: Outside = "black",
    ) -> LoadedImage:
        """One image as this model sees it, and its mask.

        Args:
            image, mask, outside: as for `embed`.

        Returns:
            Pixels (3, h, w) in [0, 1], h and w from `size_for`; how much of each pixel the mask covers (h, w), or None
            without a mask.

        Raises:
            ImageReadError: if one of them cannot be read, the mask selects nothing, or the model reads images as its
                release does, which knows no masks.
        """
        if mask is None:
            return to_pixels(image, self.size_for, **self.reading), None
        from idmetric.metric.masks import cut_out

        self.check_mask(mask)
        subject, cover = cut_out(image, mask, outside, background=self.background)
        try:
            return self.fitted(subject, cover)
        except ImageReadError as error:  # it knows the cut-out alone
            raise ImageReadError(describe(image), error.reason) from error

    def fitted(self, picture: Image.Image | Tensor, cover: Tensor | None = None) -> LoadedImage:
        """A picture that was read, and its mask, as this model sees them.

        Args:
            picture: RGB, as `read_image` gives it, or float pixels (3, H, W) in [0, 1].
            cover: how much of each pixel the mask covers (H, W).

        Returns:
            As `load_image`.

        Raises:
            ImageReadError: for a picture of a shape that the model does not take, or if nothing is left of its mask.
        """
        if isinstance(picture, Tensor):
            pixels = to_pixels(picture, self.size_for, **self.reading)
        else:
            pixels = picture_pixels(picture, self.size_for, **self.reading)
        if cover is None:
            return pixels, None

        _, height, width = pixels.shape
        cover = self.fit.cover(cover, (height, width), isinstance(picture, Tensor))
        if not cover.any():
            raise ImageReadError(describe(picture), "its mask selects nothing of the part of the image that is seen")
        return pixels, cover.to(pixels.device, pixels.dtype)

    def check_mask(self, mask: MaskLike) -> None:
        """Refuse a mask if this model reads images as its release does, which knows none: ImageReadError."""
        if self.preprocessing == "release":
            raise ImageReadError(
                describe(mask),
                "preprocessing='release' follows the release, which takes no masks: leave the masks out, or load the "
                "model with preprocessing='standard'",
            )


# Batches of images: loaded ahead, embedded, checked and joined.

Loaded = TypeVar("Loaded")  # an item that is ready for the model
OnProgress = Callable[[int, int], None]  # called with (images done, images in all) after each batch


def in_batches(
    load: Callable[[int], Loaded],
    run: Callable[[list[Loaded], bool], Embedding],
    images: Sequence[ImageLike | None],
    dtype: torch.dtype,
    batch_size: int,
    patches: bool,
    progress: OnProgress | None = None,
    workers: int = 0,
) -> Embedding:
    """Load and embed items, at most `batch_size` at a time; arguments as for `Embedder.embed`.

    Args:
        load, run: from the number of an item to what the model takes, and from a batch of that to its embedding, with
            or without patches.
        images: of each item; None for a text alone. dtype: of the model. Both are for the message about features that
            are not finite; those of a graph or a compiled model are not checked.
    """
    if workers < 0:
        raise ValueError(f"workers must be at least 0, got {workers}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    with_graph = torch.is_grad_enabled()  # which threads do not inherit

    def read(number: int) -> Loaded:
        with torch.set_grad_enabled(with_graph):
            return load(number)

    parts = []
    done = 0
    with closing(in_order(read, range(len(images)), threads=workers, waiting=2 * batch_size)) as ahead:
        while batch := list(islice(ahead, batch_size)):
            parts.append(run(batch, patches))
            done += len(batch)
            if progress is not None:
                progress(done, len(images))
    embedding = concatenate(parts)

    # once at the end, as it waits for the device, which embeds a batch while the next one is read
    if not with_graph and not torch.compiler.is_compiling():
        embedding.check_finite(["a text" if image is None else describe(image) for image in images], dtype)
    return embedding


def patch_weights(
    images: Sequence[tuple[Tensor, Tensor | None]], grid: tuple[int, int], device: torch.device
) -> Tensor | None:
    """How much of each patch the masks cover, shape (B, rows * columns); None if no image has a mask.

    Args:
        images: pixels (3, h, w) and mask (h, w) or None, of each image.
        grid: rows and columns of patches.
        device: of the result.
    """
    if all(mask is None for _, mask in images):
        return None
    covers = []
    for pixels, mask in images:
        cover = mask
        if cover is None:
            cover = pixels.new_ones(pixels.shape[1:])
        covers.append(cover.to(device, torch.float32))
    weights = F.adaptive_avg_pool2d(torch.stack(covers), grid)
    return weights.flatten(1)


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


# Embedder: the base class of every model. Pixels in, Embedding out; two images in, distance out.

_USUAL = {"preprocessing": "standard", "resize": "squash"}  # values that config.json leaves out


class Embedder(nn.Module):
    """A model that embeds images, bound to its own preprocessing (`Preprocessor` and `Weights` list the arguments).

    A subclass calls this constructor and defines `forward_features` and `settings`, or `config`.

    Loaded models are frozen: in eval mode, no parameter requires grad, and `train()` does not change that. Gradients
    still flow to the pixels.
    """

    model_type = ""  # in config.json; models without one cannot be saved
    settings: Any  # the dataclass that is saved in config.json
    named: NamedScore | None = None  # the published score that it was opened by
    reads_words = False  # whether text changes an image's embedding
    has_patches = True  # whether embeddings may have patches
    may_see_nothing = False  # whether rows of NaN are no errors
    calibration_source: StrPath | Calibration | None = None  # what `calibrate_with` was given
    _calibration: Calibration | None = None
    _compiled: Callable[..., Any] | None = None
    _is_rounded = False  # whether the weights were in a narrower type

    def __init__(
        self,
        *,
        name: str,
        revision: str,
        image_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: str = "bicubic",
        background: Color = WHITE,
        preprocessing: Preprocessing = "standard",
        fit: Fit = SQUASH,
        folder: Path | None = None,
    ) -> None:
        super().__init__()
        self.weights = Weights(self, name, revision, folder)
        self.preprocessor = Preprocessor(image_size, mean, std, interpolation, background, preprocessing, fit)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
        """Normalized pixels (B, 3, *image_size) to global features (B, D), patches (B, P, D') and their grid."""
        raise NotImplementedError(f"{self.name} takes images, not pixels: it does not define forward_features")

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the encoder by `torch.compile`, in place, so that `embed` and distances use it as well."""
        super().compile(*args, **options)
        self._compiled = torch.compile(type(self).forward_features, *args, **options)  # unbound: copies stay apart

    # Pixels in, embedding out

    def forward(self, pixels: Tensor) -> Embedding:
        """Embed pixels, differentiably.

        Args:
            pixels: shape (B, 3, H, W), RGB in [0, 1], any size (see `Preprocessor.fit_pixels`).

        Raises:
            ImageReadError: if the values leave [0, 1]; the message gives the range found.
        """
        if not torch.compiler.is_compiling():
            with naming(pixels):
                check_pixels(pixels)
        return self.embed_pixels(self.preprocessor.fit_pixels(pixels))

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        x = self.normalize(pixels).to(self.dtype)
        if self._compiled is None:
            features, patches, grid = self.forward_features(x)
        else:
            features, patches, grid = self._compiled(self, x)
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
        progress: OnProgress | None = None,
    ) -> Embedding:
        """Embed images of any kind, in batches, without a graph (`metric(pixels)` passes gradients to the pixels).

        Args:
            images: one image or a list: path, PIL image, array, tensor, bytes or file object (see `images`). A
                folder or a pattern ("photos/cat", "gen/*.png") is the list of its images, in natural order.
            batch_size: images per pass; results do not depend on it beyond float rounding.
            masks: subject mask of each image (or None for an image without one), of the same kinds, white = subject. A
                folder holds the masks at the images' paths, whole or without their first folders (`paths.mask_of`).
                Patches are weighted by how much of them the mask covers.
            mask_id: the subject's label in masks of several objects: a palette index, gray value or color ("#ff0000").
            outside: "black" or "white" paints pixels outside the mask, so that `cls` too sees the subject alone;
                "crop" blacks them out and cuts the image to the mask's bounding box; "keep" leaves them: then only
                patch distances use the mask.
            patches: False drops the patch tokens, to save memory where only `cls` distances are wanted.
            workers: threads that read files ahead of the model, and hold two more batches in memory; 0: read in turn.
            progress: called with (images done, images in all) after each batch.

        Raises:
            ImageReadError: naming the image that cannot be read.
            NonFiniteError: naming the images with features that are NaN or infinite, as a model in float16 may give.
            ValueError: for no images, or masks that do not fit them.
        """
        warn_of_lost_graph(images)
        with torch.no_grad():
            masks = labeled(masks, mask_id)
            options = {"batch_size": batch_size, "patches": patches, "workers": workers, "progress": progress}
            return self._embed(images, masks, outside, **options)

    def _embed(self, images: Any, masks: Masks, outside: Outside, **batching: Any) -> Embedding:
        """Embed images, with a graph if gradients are on; `batching`: see `in_batches`."""
        singles = split_images(images)
        if not singles:
            raise ValueError("no images given")
        single_masks = split_masks(masks, singles)
        check_paths(singles, single_masks)

        def load(number: int) -> LoadedImage:
            return self.preprocessor.load_image(singles[number], single_masks[number], outside)

        return in_batches(load, self.embed_prepared, singles, self.dtype, **batching)

    def prepare(self, picture: Image.Image | Tensor | None, cover: Tensor | None, words: str | None) -> Any:
        """An element of a batch for `embed_prepared`; may run in a thread.

        Args:
            picture, cover: see `Preprocessor.fitted`; no picture for a text alone, of models that read words.
            words: for models that read them (`reads_words`) the text to embed with the image; None: the default.
        """
        if picture is None:
            raise ValueError(f"{self.name} reads no text: a text alone has no embedding")
        return self.preprocessor.fitted(picture, cover)

    def embed_prepared(self, batch: Sequence[Any], patches: bool = True) -> Embedding:
        """Embed what `prepare` gave, in one pass; it is not checked for numbers that are not finite.

        Args:
            patches: False drops the patch tokens.
        """
        pixels = torch.stack([place(image_pixels, self.device) for image_pixels, _ in batch])
        embedding = self.embed_pixels(at_least_float32(pixels))
        if not patches:
            return embedding.without_patches()
        if embedding.patches is None or embedding.grid is None:
            return embedding
        return replace(embedding, weights=patch_weights(batch, embedding.grid, embedding.patches.device))

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
            distance: "cls" (default), "patch", "joint" or a variant of the table in `idmetric.metric.distance`.
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
                    f"{type(a).__name__} is not pixels: use metric(a, b), or embed one with metric.embed(a)"
                )
            embedding: Embedding = super().__call__(a)
            return embedding
        check_paths(a, b, mask_a, mask_b)
        check_partners(a, b)
        patches = needs_patches(distance)
        x = self.as_embedding(a, labeled(mask_a, mask_id), outside, patches, batch_size)
        y = self.as_embedding(b, labeled(mask_b, mask_id), outside, patches, batch_size)
        return checked_distances(embedding_distance(x, y, distance, joint_weight=joint_weight), self.dtype)

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

        Each image is embedded once; the other arguments and the errors are those of a distance.
        """
        check_paths(a, b, masks_a, masks_b)
        patches = needs_patches(distance)
        x = self.as_embedding(a, labeled(masks_a, mask_id), outside, patches, batch_size)
        y = None if b is None else self.as_embedding(b, labeled(masks_b, mask_id), outside, patches, batch_size)
        return checked_distances(distance_matrix(x, y, distance, joint_weight=joint_weight), self.dtype)

    def as_embedding(
        self, images: Images | Embedding, masks: Masks, outside: Outside, patches: bool, batch_size: int
    ) -> Embedding:
        """One side of a comparison, embedded unless it is an `Embedding` already.

        The graph is kept where a tensor among the images requires grad. ValueError for a mask with an Embedding, or an
        Embedding of another model.
        """
        if isinstance(images, Embedding):
            if masks is not None:
                raise ValueError("a mask was given with an Embedding: give it to embed instead")
            images.check_maker(self._maker())
            return images
        with torch.set_grad_enabled(torch.is_grad_enabled() and wants_grad(images)):
            return self._embed(images, masks, outside, batch_size=batch_size, patches=patches)

    # The meaning of a distance

    def similarity(self, a: Images | Embedding, b: Images | Embedding, distance: str = "cls", **options: Any) -> Tensor:
        """1 - distance (ID-Sim Eq. 4): 1 for the same image, for `cls` the cosine. Arguments as for a distance."""
        return 1 - self(a, b, distance, **options)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration from `calibrate_with`, else that in the folder's calibration.json, or None.

        CalibrationError if the file is damaged, or was made for other weights.
        """
        from idmetric.metric.calibrated import calibration_of

        self._calibration = calibration_of(self._calibration, self.weights, self.label, self.resolution)
        return self._calibration

    def calibrate_with(self, calibration: StrPath | Calibration) -> Self:
        """Use this calibration (a file, or one in memory) from now on; returns the metric.

        CalibrationError if it cannot be read, or was made for another model.
        """
        from idmetric.metric.calibrated import checked_calibration

        self._calibration = checked_calibration(calibration, self.weights, self.label, self.resolution)
        self.calibration_source = calibration
        return self

    def calibrated_model(self, files: bool = True) -> Model:
        """The model that a calibration is bound to; with `files`, also their hash (a second for each gigabyte)."""
        from idmetric.metric.calibrated import model_of

        return model_of(self.weights, self.label, self.resolution, files)

    # Names: see `Weights`

    @property
    def name(self) -> str:
        """The name by which the user opened it, e.g. "tiny"."""
        return self.weights.name

    @property
    def label(self) -> str:
        """Class and name, and every other setting that changes scores."""
        return f"{type(self).__name__}:{self.weights.short_name}{self.preprocessor.mark}"

    @property
    def revision(self) -> str:
        """Which exact weights: the checkpoint's revision, followed by "+changed" after writes; "" for new ones."""
        return self.weights.revision

    @property
    def resolution(self) -> str:
        """Height x width in pixels at which images are seen."""
        height, width = self.image_size
        return f"{height}x{width}"

    @property
    def model_id(self) -> str:
        """Model, exact weights (new ones by 12 digits of their hash) and resolution, which every Embedding carries."""
        return f"{self.label}@{self.weights.revision_or_digest}/{self.resolution}"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights; images are cast to it."""
        return next(self.parameters()).dtype

    def signature(self, distance: str = "cls") -> dict[str, str]:
        """Model, revision, distance, resolution, dtype, version: reported with a score, they make it reproducible."""
        return {
            "model": self.label,
            "revision": self.revision,
            "distance": distance,
            "resolution": self.resolution,
            "dtype": str(self.dtype).removeprefix("torch."),
            "idmetric": __version__,
        }

    def about(self, outside: Outside | None = None, mask_id: MaskId | None = None) -> dict[str, str]:
        """Everything that this model's embeddings depend on, the exact weights in memory included.

        Args:
            outside: what becomes of pixels outside masks; None for whole images. mask_id: see `embed`.
        """
        facts = {
            **self.signature(),
            "weights": self.weights.exact,
            "settings": json.dumps(self.config(), sort_keys=True, default=str),
            **self.preprocessor.about(),
            "outside": outside or "all",
        }
        return facts if mask_id is None else {**facts, "mask_id": str(mask_id)}

    def config(self) -> dict[str, Any]:
        """The settings that config.json needs to rebuild this model, as plain JSON values: fields of `settings`."""
        config = asdict(self.settings)
        return {name: value for name, value in config.items() if (name, value) not in _USUAL.items()}

    def __repr__(self) -> str:
        """One line; `print(metric.backbone)` shows the layers."""
        kind, _, name = self.label.partition(":")
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{kind}({name!r}, revision {self.revision or 'none'}, {self.resolution}, {dtype} on {self.device})"

    def _maker(self) -> str:
        """The `model_id` that marks an Embedding made now.

        Empty inside `torch.compile` and the transforms of torch.func, which cannot trace a hash, and while the weights
        are trained, as every step would be another model.
        """
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return ""
        is_training = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        return "" if is_training else self.model_id

    # Weights

    def save_pretrained(self, folder: StrPath) -> None:
        """Write config.json and model.safetensors; `idmetric.load(folder)` opens them again.

        A calibration of exactly these weights and settings goes along, as calibration.json.

        Raises:
            CheckpointError: for quantized weights, which are no plain tensors.
        """
        if not self.model_type:
            raise NotImplementedError(f"{self.name} is opened by its name and cannot be saved")
        checkpoint.write(folder, {"model_type": self.model_type, **self.config()}, self.state_dict())
        self._was_saved(folder, checkpoint.revision)

    def _was_saved(self, folder: StrPath, revision: Callable[[Path], str]) -> None:
        """Write the calibration beside the weights that were just saved, and call new or changed ones by the folder."""
        from idmetric.metric.calibrated import write_beside
        from idmetric.metric.calibration import CalibrationError

        target = Path(folder)
        if self.weights.have_changed():
            self._calibration = self.calibration_source = None  # of the weights before
        else:
            try:
                write_beside(self.calibration, target, revision(target))
            except (CalibrationError, CheckpointError) as error:  # it is for other settings, or cannot be read
                warnings.warn(f"the model is saved without its calibration: {error}", stacklevel=3)
        self.weights.take_folder(target, revision)

    @classmethod
    def from_pretrained(cls, source: StrPath, **options: Any) -> Self:
        """The same as calling the class: `IDSim.from_pretrained("run/")` is `IDSim("run/")`."""
        return cls(source, **options)  # type: ignore[call-arg,arg-type]  # subclasses take the source first

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model, as one kept inside a larger module, stays in eval mode."""
        return super().train(mode and any(p.requires_grad for p in self.parameters()))

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | str | None) -> None:
        """Freeze weights that were just loaded, move them, and call them by the revision that they were loaded as."""
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype_of(dtype))
        self.weights.take_revision()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.weights.have_changed()
        bits = torch.finfo(self.dtype).bits
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        # to move weights is no change of them, but wider ones keep the rounding of a narrower type
        more_bits = torch.finfo(self.dtype).bits - bits
        is_widened = more_bits > 0 and self._is_rounded
        self.weights.recount(changed=is_widened or not keeps_values(fn))
        self._is_rounded |= more_bits < 0
        return moved

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self.weights = self.weights.copied_for(self)
        self.preprocessor = copy.copy(self.preprocessor)

    # Preprocessing: see `Preprocessor`

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the encoder's input."""
        return self.preprocessor.image_size

    @property
    def background(self) -> Color:
        """The color that shows through transparent images."""
        return self.preprocessor.background

    def normalize(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std of (..., 3, H, W) on the model's device, in float32 or better whatever its dtype."""
        return self.preprocessor.normalize(pixels, self.device, self.dtype)

    @property
    def decoding(self) -> Hashable:
        """What the pixels of `read_image` depend on: models with equal values share a decoded image."""
        return self.preprocessor.decoding

    def read_image(self, image: ImageLike) -> Image.Image:
        """One image as 8-bit RGB at its own size, see `Preprocessor.read_image`."""
        return self.preprocessor.read_image(image)

    def check_mask(self, mask: MaskLike) -> None:
        """Refuse a mask if this model takes none: ImageReadError."""
        self.preprocessor.check_mask(mask)
