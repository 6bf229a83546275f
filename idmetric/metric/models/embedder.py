"""Embedder: the base class of every model. Pixels in, Embedding out; two images in, distance out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import torch
from PIL import Image
from torch import Tensor, nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.fingerprint import Weights, keeps_values
from idmetric.metric.checkpoints.folder import Files
from idmetric.metric.checkpoints.weights import dtype_of
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import checked_distances
from idmetric.metric.distance.matrix import distance as embedding_distance
from idmetric.metric.distance.matrix import distance_matrix, needs_patches
from idmetric.metric.files import StrPath
from idmetric.metric.images.arrays import check_pixels
from idmetric.metric.images.fit import SQUASH, Fit
from idmetric.metric.images.kinds import WHITE, Color, ImageLike, MaskId, Outside, Preprocessing, naming
from idmetric.metric.images.masks import Images, MaskLike, Masks, labeled, split_masks
from idmetric.metric.images.opening import check_paths
from idmetric.metric.images.paths import check_partners
from idmetric.metric.images.read import split_images
from idmetric.metric.images.resize import place
from idmetric.metric.models.batches import OnProgress, in_batches, patch_weights, wants_grad, warn_of_lost_graph
from idmetric.metric.models.devices import at_least_float32, auto_device
from idmetric.metric.models.preprocessing import LoadedImage, Preprocessor
from idmetric.version import __version__

if TYPE_CHECKING:
    from idmetric.metric.calibration.apply import Calibration, Model
    from idmetric.metric.models.named import NamedScore

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
        files: Files | None = None,
    ) -> None:
        super().__init__()
        self.weights = Weights(self, name, revision, files)
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
        from idmetric.metric.calibration.calibrated import calibration_of

        self._calibration = calibration_of(self._calibration, self.weights, self.label, self.resolution)
        return self._calibration

    def calibrate_with(self, calibration: StrPath | Calibration) -> Self:
        """Use this calibration (a file, or one in memory) from now on; returns the metric.

        CalibrationError if it cannot be read, or was made for another model.
        """
        from idmetric.metric.calibration.calibrated import checked_calibration

        self._calibration = checked_calibration(calibration, self.weights, self.label, self.resolution)
        self.calibration_source = calibration
        return self

    def calibrated_model(self, files: bool = True) -> Model:
        """The model that a calibration is bound to; with `files`, also their hash (a second for each gigabyte)."""
        from idmetric.metric.calibration.calibrated import model_of

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
        """Save the calibration next to the weights, and name new or changed weights after the folder."""
        from idmetric.metric.calibration.calibrated import save_calibration

        files = Files(folder)
        if self.weights.have_changed():
            self._calibration = self.calibration_source = None  # made for the weights before
        else:
            saved_revision = revision(Path(folder))
            save_calibration(self._calibration, self.weights, self.label, self.resolution, files, saved_revision)
        self.weights.take_folder(files, revision)

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
