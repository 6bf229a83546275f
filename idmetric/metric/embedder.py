"""Embedder: the base class of every model. Images in, `Embedding` out; two images in, distance out."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args, overload

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.weights import dtype_of
from idmetric.metric.distance import distance as embedding_distance
from idmetric.metric.distance import distance_matrix, needs_patches
from idmetric.metric.embedding import Embedding, checked_distances, concatenate
from idmetric.metric.files import StrPath, in_order, replacing
from idmetric.metric.fingerprint import keeps_values, weights_digest, write_counts
from idmetric.metric.images import (
    SQUASH,
    WHITE,
    Color,
    Fit,
    ImageLike,
    ImageReadError,
    MaskId,
    Outside,
    Picture,
    Preprocessing,
    check_paths,
    check_pixels,
    describe,
    naming,
    picture_pixels,
    read_image,
    read_picture,
    split_images,
)
from idmetric.metric.masks import Images, MaskLike, Masks, cut_out, labeled, split_masks
from idmetric.metric.paths import check_partners
from idmetric.version import __version__

if TYPE_CHECKING:
    from idmetric.metric.named import NamedScore

LoadedImage = tuple[Tensor, Tensor | None]  # pixels (3, h, w), and how much of each the subject's mask covers (h, w)
OnProgress = Callable[[int, int], None]  # called with (images done, images in all) after each batch


def auto_device() -> torch.device:
    """CUDA where there is one, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def at_least_float32(x: Tensor) -> Tensor:
    """16-bit floats as float32; float64 stays."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x.to(dtype)


@contextmanager
def opening() -> Iterator[None]:
    """Decorates a model's constructor: its weights can be part of a graph, and are made on the CPU before they move.

    Otherwise torch's inference mode and default device, such as "meta", would hold for them.
    """
    with torch.inference_mode(False):
        is_on_cpu = torch.empty(0).device.type == "cpu"
        # only where it is needed, as the context slows each call of torch
        with nullcontext() if is_on_cpu else torch.device("cpu"):
            yield


def wants_grad(images: Any) -> bool:
    """Whether an image tensor, alone or in a list, requires grad."""
    candidates = images if isinstance(images, list | tuple) else [images]
    tensors = [image for image in candidates if isinstance(image, Tensor)]
    return any(tensor.requires_grad for tensor in tensors)


def split_with_masks(images: Any, masks: Masks) -> tuple[list[Any], list[MaskLike | None]]:
    """Single images, or None for a text alone, and the mask of each; ValueError for none, or masks that do not fit."""
    has_texts = isinstance(images, list) and any(image is None for image in images)
    singles = images if has_texts else split_images(images)
    if not singles:
        raise ValueError("no images given")
    single_masks = split_masks(masks, singles)
    check_paths(singles, single_masks)
    return singles, single_masks


def weighted(embedding: Embedding, batch: Sequence[LoadedImage], like: Tensor) -> Embedding:
    """An embedding whose patches are weighted by how much of each the masks cover, in the type of `like`."""
    if embedding.grid is None or all(cover is None for _, cover in batch):
        return embedding
    covers = []
    for pixels, cover in batch:
        covers.append(torch.ones_like(pixels[0]) if cover is None else cover)
    stacked = torch.stack(covers).to(like)
    weights = F.adaptive_avg_pool2d(stacked, embedding.grid)
    return replace(embedding, weights=weights.flatten(1))


class Embedder(nn.Module):
    """A model that embeds images, bound to its own preprocessing.

    A subclass calls this constructor and defines `forward_features` and `settings`, or `config`. Loaded models are
    frozen: in eval mode, no parameter requires grad, and `train()` does not change that. Gradients still flow to the
    pixels.

    Args:
        name: the name by which the user opened it, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`), "" for new ones.
        image_size: height and width of the encoder's input.
        mean, std: per-channel normalization of pixels in [0, 1].
        interpolation: "bicubic" or "bilinear", antialiased.
        background: RGB color (0-255) that shows through transparent images.
        preprocessing: how files and PIL images become RGB, "standard" or "release" (see `idmetric.metric.images`).
        fit: how images of other shapes are brought to `image_size`; squashed by default, not cropped.
        folder: that the weights were loaded from, perhaps with a calibration; of the Hub its cache.

    Attributes:
        is_folder: whether it was opened from a local folder of that name.
        short_name: the name in labels; of a folder its own name.
    """

    model_type = ""  # in config.json; models without one cannot be saved
    settings: Any  # the dataclass that is saved in config.json
    named: NamedScore | None = None  # the published score that it was opened by
    reads_words = False  # whether text changes an image's embedding
    has_patches = True  # whether embeddings may have patches
    may_see_nothing = False  # whether rows of NaN are allowed
    _compiled: Callable[..., Any] | None = None
    _digest = ""  # of weights without a revision
    _writes: list[tuple[int, int]] | None = None  # see `write_counts`; when they were last looked at
    _has_changed = False  # whether there were writes since the weights were named
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
        if preprocessing not in get_args(Preprocessing):
            raise ValueError(f"unknown preprocessing {preprocessing!r}: choose standard or release")
        self.name = name
        self.image_size = image_size
        self.mean = tuple(map(float, mean))
        self.std = tuple(map(float, std))
        self.interpolation = interpolation
        self.background = background
        self.preprocessing = preprocessing
        self.fit = fit
        self.folder = folder
        self._revision = revision
        path = os.path.realpath(name)
        folder_path = None if folder is None else os.path.realpath(folder)
        self.is_folder = path == folder_path
        self.short_name = name
        if self.is_folder:
            self.short_name = os.path.basename(path)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
        """Normalized pixels (B, 3, *image_size) to global features (B, D), patches (B, P, D') and their grid."""
        raise NotImplementedError(f"{self.name} takes images, not pixels: it does not define forward_features")

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the encoder by `torch.compile`, in place, so that `embed` and distances use it as well."""
        encode = type(self).forward_features  # unbound: copies stay apart
        self._compiled = torch.compile(encode, *args, **options)

    # Preprocessing

    def read_image(self, image: ImageLike) -> Image.Image:
        """One image as 8-bit RGB at its own size, as this model's preprocessing reads it; see `images.read_image`."""
        background = self.background
        return read_image(image, background=background, preprocessing=self.preprocessing)

    def check_mask(self, mask: MaskLike) -> None:
        """Refuse a mask if this model reads images as its release does, which knows none: ImageReadError."""
        if self.preprocessing == "release":
            raise ImageReadError(
                describe(mask),
                "preprocessing='release' follows the release, which takes no masks: leave the masks out, or load the "
                "model with preprocessing='standard'",
            )

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which this model sees an image of that size; ValueError if it cannot."""
        return self.image_size

    def fit_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] at the size at which this model sees them, antialiased, differentiably."""
        height, width = pixels.shape[-2:]
        size = self.size_for(height, width)
        return self.fit.pixels(pixels, size, self.interpolation)

    def normalize(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std of (..., 3, H, W) on the model's device, in float32 or better whatever its dtype."""
        wide = torch.promote_types(self.dtype, torch.float32)
        dtype = torch.promote_types(pixels.dtype, wide)
        x = pixels.to(self.device, dtype)
        mean = x.new_tensor(self.mean).view(3, 1, 1)
        std = x.new_tensor(self.std).view(3, 1, 1)
        return (x - mean) / std

    def load(
        self,
        image: ImageLike | None,
        mask: MaskLike | None = None,
        outside: Outside = "black",
        words: str | None = None,
    ) -> Any:
        """Read one image, and its mask, and `prepare` them; may run in a thread.

        Args:
            image, mask, outside: as for `embed`; no image for a text alone. words: as for `prepare`.

        Raises:
            ImageReadError: if one of them cannot be read, the mask selects nothing, or the model takes no masks.
        """
        if image is None:
            return self.prepare(None, None, words)
        cover = None
        if mask is None:
            picture = read_picture(image, background=self.background, preprocessing=self.preprocessing)
        else:
            self.check_mask(mask)
            picture, cover = cut_out(image, mask, outside, background=self.background)
        return self.prepare(picture, cover, words)

    def prepare(self, picture: Picture | None, cover: Tensor | None = None, words: str | None = None) -> Any:
        """An element of a batch for `embed_prepared`; may run in a thread.

        Args:
            picture: RGB as `images.read_picture` gives it: a PIL image, or float pixels (3, H, W) in [0, 1]; None for
                a text alone, of models that read words.
            cover: how much of each pixel the subject's mask covers (H, W).
            words: for models that read them (`reads_words`) the text to embed with the image; None: the default.

        Returns:
            Here a `LoadedImage`: pixels (3, h, w) in [0, 1], h and w from `size_for`, and their cover (h, w) or None.

        Raises:
            ImageReadError: for a picture of a shape that the model does not take, or if nothing is left of its mask.
        """
        if picture is None:
            raise ValueError(f"{self.name} reads no text: a text alone has no embedding")
        pixels = picture_pixels(picture, self.size_for, interpolation=self.interpolation, fit=self.fit)
        if cover is None:
            return pixels, None

        _, height, width = pixels.shape
        is_tensor = isinstance(picture, Tensor)
        fit = self.fit
        cover = fit.cover(cover, (height, width), is_tensor)
        if not cover.any():
            raise ImageReadError(describe(picture), "its mask selects nothing of the part of the image that is seen")
        return pixels, cover.to(pixels.device, pixels.dtype)

    # Images in, embedding out

    def forward(self, pixels: Tensor) -> Embedding:
        """Embed pixels, differentiably.

        Args:
            pixels: shape (B, 3, H, W), RGB in [0, 1], any size (see `fit_pixels`).

        Raises:
            ImageReadError: if the values leave [0, 1]; the message gives the range found.
        """
        if not torch.compiler.is_compiling():
            with naming(pixels):
                check_pixels(pixels)
        return self.embed_pixels(self.fit_pixels(pixels))

    def embed_pixels(self, pixels: Tensor) -> Embedding:
        """Embed pixels (B, 3, h, w) in [0, 1] at the size at which this model sees them, differentiably."""
        x = self.normalize(pixels).to(self.dtype)
        if self._compiled is None:
            features, patches, grid = self.forward_features(x)
        else:
            features, patches, grid = self._compiled(self, x)
        return Embedding(features, patches, grid, model=self._maker())

    def embed_prepared(self, batch: Sequence[Any], patches: bool = True) -> Embedding:
        """Embed what `prepare` gave, in one pass; it is not checked for numbers that are not finite.

        Args:
            patches: False drops the patch tokens.
        """
        device = self.device
        placed = [pixels.to(device) for pixels, _ in batch]
        images = torch.stack(placed)
        embedding = self.embed_pixels(images)
        return weighted(embedding, batch, images) if patches else embedding.without_patches()

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
        words: Sequence[str] | None = None,
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
            words: for models that read them (`reads_words`) the whole text that goes with each image, its instruction
                included. For a text without an image, give None in its place in `images`, which is then a list.

        Raises:
            ImageReadError: naming the image that cannot be read.
            NonFiniteError: naming the images with features that are NaN or infinite, as a model in float16 may give.
            ValueError: for no images, or masks that do not fit them.
        """
        if torch.is_grad_enabled() and wants_grad(images):
            warnings.warn(
                "embed() builds no graph: its result passes no gradient to these images, which require one. Call "
                "metric(pixels) for features with a graph, or detach the images",
                stacklevel=2,
            )
        if batch_size < 1 or workers < 0:
            raise ValueError(f"batch_size must be at least 1, workers at least 0: got {batch_size} and {workers}")
        singles, single_masks = split_with_masks(images, labeled(masks, mask_id))
        count = len(singles)

        def load(number: int) -> Any:
            image = singles[number]
            mask = single_masks[number]
            text = None if words is None else words[number]
            return self.load(image, mask, outside, text)

        parts = []
        done = 0
        loaded = in_order(load, range(count), threads=workers, waiting=2 * batch_size)
        with torch.no_grad(), closing(loaded):
            while batch := list(islice(loaded, batch_size)):
                parts.append(self.embed_prepared(batch, patches))
                done += len(batch)
                if progress is not None:
                    progress(done, count)
        embedding = concatenate(parts)

        # once at the end, as it waits for the device, which embeds a batch while the next one is read
        if not torch.compiler.is_compiling():
            names = tuple("a text" if image is None else describe(image) for image in singles)
            embedding.check_finite(names, self.dtype)
            embedding = replace(embedding, names=names)
        return embedding

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
            Shape (B,), float32 or better; `.item()` gives the number for two single images. The autograd graph is kept
            where tensors or an Embedding that require grad were given.

        Raises:
            NonFiniteError: for embeddings or distances that are NaN or infinite. What is part of a graph is not
                checked, so as not to wait for the device: check your loss, as `torch.amp.GradScaler` does.
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
        distances = embedding_distance(x, y, distance, joint_weight=joint_weight)
        return checked_distances(distances, self.dtype)

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
        y = None
        if b is not None:
            y = self.as_embedding(b, labeled(masks_b, mask_id), outside, patches, batch_size)
        distances = distance_matrix(x, y, distance, joint_weight=joint_weight)
        return checked_distances(distances, self.dtype)

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
        if not (torch.is_grad_enabled() and wants_grad(images)):
            return self.embed(images, masks=masks, outside=outside, patches=patches, batch_size=batch_size)
        singles, single_masks = split_with_masks(images, masks)
        batch = []
        for image, mask in zip(singles, single_masks, strict=True):
            batch.append(self.load(image, mask, outside))
        return self.embed_prepared(batch, patches)  # at once, as the graph holds all of them anyway

    # The meaning of a distance

    def similarity(self, a: Images | Embedding, b: Images | Embedding, distance: str = "cls", **options: Any) -> Tensor:
        """1 - distance (ID-Sim Eq. 4): 1 for the same image, for `cls` the cosine. Arguments as for a distance."""
        return 1 - self(a, b, distance, **options)

    def calibration_id(self) -> str:
        """Class, settings, exact weights and resolution, to which a calibration is bound; not the name of a folder.

        A folder and its copy on the Hub have the same: of the latter the weights are read, a second for each gigabyte.
        """
        weights = self.exact_weights()
        folder = self.folder
        if folder is not None and len(weights) == 40:  # a commit
            files = folder / checkpoint.WEIGHTS, folder / checkpoint.CONFIG
            if all(path.is_file() for path in files):
                weights = checkpoint.content_digest(*files)
        kind, _, name_and_settings = self.label.partition(":")
        settings = name_and_settings.removeprefix(self.short_name)
        return f"{kind}{settings}@{weights}/{self.resolution}"

    # Names, and which weights they are of

    @property
    def label(self) -> str:
        """Class and name, and every other setting that changes scores."""
        label = f"{type(self).__name__}:{self.short_name}"
        if self.preprocessing != "standard":
            label += f"[{self.preprocessing} preprocessing]"
        if self.fit != SQUASH:
            label += f"[{self.fit}, {self.interpolation}]"
        return label

    @property
    def revision(self) -> str:
        """Which exact weights: the checkpoint's revision, followed by "+changed" after writes; "" for new ones."""
        if self._revision and self.has_changed():
            return f"{self._revision}+changed"
        return self._revision

    @property
    def resolution(self) -> str:
        """Height x width in pixels at which images are seen."""
        height, width = self.image_size
        return f"{height}x{width}"

    @property
    def model_id(self) -> str:
        """Model, exact weights (new ones by 12 digits of their hash) and resolution, which every Embedding carries."""
        if not self._revision and (self.has_changed() or not self._digest):
            self._digest = f"none+{weights_digest(self)[:12]}"
            self._has_changed = False
        weights = self.revision or self._digest
        return f"{self.label}@{weights}/{self.resolution}"

    def has_changed(self) -> bool:
        """Whether PyTorch counted a write to the weights since they were named (see `write_counts`)."""
        writes = write_counts(self)
        if self._writes is not None and writes is not None and writes != self._writes:
            self._has_changed = True
        self._writes = writes
        return self._has_changed

    def exact_weights(self) -> str:
        """The revision of weights that have not changed since they were named, else their hash in memory."""
        if self._revision and not self.has_changed():
            return self._revision
        return weights_digest(self)

    def take_revision(self, revision: str | None = None) -> None:
        """Call the weights that are in memory now by this revision; None: by the one that they were loaded as."""
        if revision is not None:
            self._revision = revision
        self._digest = ""
        self._has_changed = False
        self._writes = write_counts(self)

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
        preparation = (self.image_size, self.mean, self.std, self.interpolation, self.background, self.fit)
        facts = {
            **self.signature(),
            "weights": self.exact_weights(),
            "settings": json.dumps(self.config(), sort_keys=True, default=str),
            "seen": str(preparation),
            "outside": outside or "all",
        }
        if mask_id is not None:
            facts["mask_id"] = str(mask_id)
        return facts

    def config(self) -> dict[str, Any]:
        """The settings that config.json needs to rebuild this model, as plain JSON values: fields of `settings`."""
        return asdict(self.settings)

    def __repr__(self) -> str:
        """One line; `print(metric.backbone)` shows the layers."""
        weights = self.revision or "none"
        model = f"{self.label}@{weights}/{self.resolution}"
        return f"{model}, {self.dtype} on {self.device}"

    def _maker(self) -> str:
        """The `model_id` that marks an Embedding made now.

        Empty inside `torch.compile` and the transforms of torch.func, which cannot trace a hash, and while the weights
        are trained, as every step would be another model.
        """
        if torch.compiler.is_compiling():
            return ""
        transforms = torch._C._functorch.peek_interpreter_stack()
        if transforms is not None:
            return ""
        parameters = self.parameters()
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return ""
        return self.model_id

    # Weights

    def save_pretrained(self, folder: StrPath) -> None:
        """Write config.json and model.safetensors; `idmetric.load(folder)` opens them again.

        A calibration of exactly these weights and settings goes along, as calibration.json.

        Raises:
            CheckpointError: for quantized weights, which are no plain tensors.
        """
        if not self.model_type:
            raise NotImplementedError(f"{self.name} is opened by its name and cannot be saved")
        config = {"model_type": self.model_type, **self.config()}
        checkpoint.write(folder, config, self.state_dict())
        self._after_saving(folder, checkpoint.revision)

    def _after_saving(self, folder: StrPath, revision: Callable[[Path], str]) -> None:
        """Copy the calibration beside the saved weights, and name new or changed weights after the folder."""
        target = Path(folder)
        calibration = target / checkpoint.CALIBRATION
        source = None
        if self.folder is not None and not self.has_changed():
            source = self.folder / checkpoint.CALIBRATION
        if source is not None and source.is_file():
            made_for = self.calibration_id()
            settings = made_for.partition("@")[0]
            same_in_target = f"{settings}@{revision(target)}/{self.resolution}"
            with replacing(calibration) as path:
                text = source.read_text("utf-8")
                path.write_text(text.replace(made_for, same_in_target), "utf-8")
        else:
            calibration.unlink(missing_ok=True)  # of other weights
        if not self._revision or self.has_changed():
            self.take_revision(revision(target))
            self.folder = target

    @classmethod
    def from_pretrained(cls, source: StrPath, **options: Any) -> Self:
        """The same as calling the class: `IDSim.from_pretrained("run/")` is `IDSim("run/")`."""
        return cls(source, **options)  # type: ignore[call-arg,arg-type]  # subclasses take the source first

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model, as one kept inside a larger module, stays in eval mode."""
        is_trainable = any(p.requires_grad for p in self.parameters())
        return super().train(mode and is_trainable)

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | str | None) -> None:
        """Freeze weights that were just loaded, move them, and call them by the revision that they were loaded as."""
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype_of(dtype))
        self.take_revision()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.has_changed()  # before the move, after which the count of writes starts again
        bits = torch.finfo(self.dtype).bits
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's

        # moving weights does not change them, but widened ones keep the rounding of a narrower type
        more_bits = torch.finfo(self.dtype).bits - bits
        if (more_bits > 0 and self._is_rounded) or not keeps_values(fn):
            self._has_changed = True
        self._is_rounded |= more_bits < 0
        self._writes = write_counts(self)
        return moved

    def __getstate__(self) -> dict[str, Any]:
        self.has_changed()  # which a copy could not find out
        return {**self.__dict__, "_writes": None}  # addresses, which differ in copies

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._writes = write_counts(self)
