"""Identity as a loss: how far images under training are from the subject that reference images show.

    loss = IdentityLoss(metric, ["ref_1.jpg", "ref_2.jpg"], distance="joint", value_range=(-1, 1), clamp=True)
    (denoising + 0.1 * loss(vae.decode(predicted_x0).sample)).backward()

The references are embedded once. With d_ir the metric's distance of image i to reference r, and w_r weights that sum
to 1, image i has the loss sum_r w_r d_ir (`aggregate="mean"`) or min_r d_ir ("min"); the batch is reduced as in torch's
losses. Lower = more surely the same identity; gradients reach the pixels, never the metric.

The loss holds a separate module that shares the metric's memory. It stays frozen and in eval mode, whatever the caller
does with the metric, and the loss changes no flag of the caller's module. It is not a submodule: state_dict,
parameters(), optimizers and DistributedDataParallel do not see it, but `.to()` moves it. The same holds for the
embedded references, so each process may have its own: build the loss again when training resumes. If the metric is
trained further, the embedded references become outdated.

A low loss does not prove that the images look alike: optimizing free pixels finds noise that satisfies any network.
Train a model that can only make images (a generator, a LoRA), and evaluate with a different model (docs/use/loss.md).
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn

from idmetric.metric.distance import check_name, distance_matrix, needs_patches, self_terms
from idmetric.metric.embedder import Embedder, at_least_float32, opening
from idmetric.metric.embedding import Embedding, NonFiniteError, concatenate
from idmetric.metric.fingerprint import keeps_values
from idmetric.metric.images import (
    ImageLike,
    Outside,
    check_paths,
    check_pixels,
    image_of_pixels,
    is_array,
    is_float,
    is_tensor,
    split_images,
    to_image,
)
from idmetric.metric.masks import Images, MaskId, Masks, labeled, split_masks, subject_of
from idmetric.metric.subject import subject_among

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from idmetric.metric.subject import Subject


# The pictures that `IdentityLoss.log_images` logs: images of a batch next to their nearest references.

_SIDE = 256  # of each of the two pictures
_LINE = 16  # pixels of the line of text below them
_ONE_AT_A_TIME = ("aim", "clearml")  # accelerate's trackers that take no list of images

Thumbnail = NDArray[np.uint8]


class LoggedPair(NamedTuple):
    """An image and its nearest reference, side by side over the loss, as one picture.

    Attributes:
        row: the number of the image in the batch.
    """

    picture: Image.Image
    loss: float
    row: int


def thumbnail_of(picture: Any) -> Thumbnail:
    """A small copy of a decoded picture (H, W, 3), or of float pixels, at most 256 pixels a side."""
    if is_tensor(picture) and picture.ndim > 1:  # every k-th pixel: cheap, and still twice the thumbnail's side
        step = max(1, max(picture.shape[-2:]) // (2 * _SIDE))
        picture = picture[..., ::step, ::step]
    return np.array(to_image(picture, _thumbnail_size))


def _thumbnail_size(height: int, width: int) -> tuple[int, int]:
    """The size of an image in the square of a picture, never larger than the image."""
    scale = min(1, _SIDE / max(height, width))
    return max(1, round(scale * height)), max(1, round(scale * width))


def logged(
    writer: Any,
    pixels: Tensor,
    losses: Sequence[float],
    nearest: Sequence[int],
    references: Sequence[Thumbnail | None],
    step: int,
    count: int,
    name: str,
) -> list[LoggedPair]:
    """Make the pairs of the images with the largest losses, and log them; see `IdentityLoss.log_images`.

    Args:
        pixels: (B, 3, H, W) in [0, 1]. losses, nearest: of each image; nearest is the number of its reference.
    """
    order = np.argsort(-np.array(losses), kind="stable").tolist()
    pairs = []
    for row in order[:count]:
        image = image_of_pixels(pixels[row].float())
        thumbnail = references[nearest[row]]
        reference = None if thumbnail is None else Image.fromarray(thumbnail)
        picture = _side_by_side(image, reference, f"{losses[row]:.4f}")
        pairs.append(LoggedPair(picture, losses[row], row))
    if writer is not None and pairs:
        _log(writer, pairs, step, name)
    return pairs


def _side_by_side(image: Image.Image, reference: Image.Image | None, text: str) -> Image.Image:
    """Two pictures on squares, and a line of text below."""
    canvas = Image.new("RGB", (2 * _SIDE, _SIDE + _LINE), "white")
    for column, picture in enumerate((image, reference)):
        if picture is None:
            continue
        scale = _SIDE / max(picture.size)
        size = max(1, round(scale * picture.width)), max(1, round(scale * picture.height))
        left = column * _SIDE + (_SIDE - size[0]) // 2
        canvas.paste(picture.resize(size), (left, (_SIDE - size[1]) // 2))
    ImageDraw.Draw(canvas).text((4, _SIDE + 2), f"distance {text}; right: nearest reference", fill="black")
    return canvas


def _log(writer: Any, pairs: Sequence[LoggedPair], step: int, name: str) -> None:
    """Give pairs to a writer, or to those trackers of an Accelerator that take images.

    Raises:
        TypeError: for a writer of an unknown kind.
    """
    if not hasattr(writer, "trackers"):
        if not _written(writer, pairs, step, name):
            raise TypeError(
                f"cannot log images to {type(writer).__name__}: give a SummaryWriter, a run of wandb, an Accelerator, "
                "or a function of (pairs, step)"
            )
        return
    skipped = [type(tracker).__name__ for tracker in writer.trackers if not _written(tracker, pairs, step, name)]
    if skipped:
        warnings.warn(
            f"these trackers take no images and are skipped: {', '.join(skipped)}; log_images(None, ...) returns the "
            "pictures for them",
            stacklevel=4,
        )


def _written(writer: Any, pairs: Sequence[LoggedPair], step: int, name: str) -> bool:
    """Give pairs to a writer by the interface that it has; False if it takes no images."""
    board: Any = writer if hasattr(writer, "add_images") else getattr(writer, "writer", None)  # of accelerate's tracker
    if hasattr(board, "add_images"):  # TensorBoard's
        pictures = np.stack([np.asarray(pair.picture) for pair in pairs])
        board.add_images(name, pictures, step, dataformats="NHWC")
    elif hasattr(writer, "log_images") and getattr(writer, "name", "") in _ONE_AT_A_TIME:
        for number, pair in enumerate(pairs):
            writer.log_images({f"{name}/{number}": pair.picture}, step=step)
    elif hasattr(writer, "log_images"):  # another of accelerate's trackers
        writer.log_images({name: [pair.picture for pair in pairs]}, step=step)
    elif _is_of_wandb(writer):
        wandb = sys.modules["wandb"]
        pictures_of_run = [wandb.Image(pair.picture, caption=f"distance {pair.loss:.4f}") for pair in pairs]
        writer.log({name: pictures_of_run}, step=step)
    elif callable(writer):
        writer(pairs, step)
    else:
        return False
    return True


def _is_of_wandb(writer: Any) -> bool:
    """Whether this is a run of Weights & Biases, or its module."""
    if "wandb" not in sys.modules or not hasattr(writer, "log"):
        return False
    return writer is sys.modules["wandb"] or type(writer).__module__.split(".")[0] == "wandb"


Reduction = Literal["mean", "sum", "none"]
Aggregate = Literal["mean", "min"]
Autocast = Literal["inherit", "off"] | torch.dtype


_AT_ONCE = 32  # references that are decoded and embedded together
_TRANSPORT = ("patch", "joint", "patch_biased")
# Sinkhorn's loop looks at values: it is not compiled
_eager_matrix: Callable[..., Tensor] = torch.compiler.disable(distance_matrix)  # type: ignore[no-untyped-call]


class IdentityLoss(nn.Module):
    """Distance of images (B, 3, H, W) to reference images, differentiable in the images.

    >>> loss = IdentityLoss(IDSim("tiny"), "reference.jpg")  # doctest: +SKIP
    >>> loss(pixels).backward()  # doctest: +SKIP

    Args:
        metric: any `Embedder` of this package; not a compiled one (compile the loss).
        references: images of the subject (anything `Embedder.embed` takes), their embedding, a `Subject` or its file.
        distance: see the table in `idmetric.metric.distance`. joint_weight: weight of the patch term of "joint".
        masks, mask_id: subject masks of the references, and which of their labels is the subject; see `Embedder.embed`.
        outside: how pixels outside a mask are filled, in references and in `forward`.
        weights: weight of each reference in the mean; nonnegative, rescaled to sum to 1. Default: equal weights.
        aggregate: over references: "mean", or "min", the distance to the nearest.
        reduction: over the batch: "mean", "sum", or "none", which gives (B,).
        value_range: range of the pixels given to `forward`: (0, 1), or (-1, 1), which decoders of latents use.
        clamp: clamp values outside the range, which decoders produce, instead of raising an error. Clamped values get
            no gradient. Values are then not looked at, so that a step without masks does not wait for the device: NaN
            and infinity give a loss of NaN.
        checkpoint: recompute the encoder's blocks in the backward pass instead of keeping their activations (Chen et
            al. 2016): the same gradients, less memory, about a third more computation.
        autocast: precision of the encoder, for images and references: "inherit" the setting around the call, "off" to
            use the precision of the weights even there, or a dtype such as torch.bfloat16. Distances, including
            Sinkhorn, are always float32 or better.

    Raises:
        TypeError: if the metric is not an Embedder.
        ImageReadError: if a reference cannot be read; the message names it.
        ValueError: if there are no references, or options, masks, weights or embeddings do not fit; the message says
            how to fix it.
    """

    _metric: Embedder

    def __init__(
        self,
        metric: Embedder,
        references: Images | Embedding | Subject,
        *,
        distance: str = "cls",
        masks: Masks = None,
        mask_id: MaskId | None = None,
        outside: Outside = "black",
        weights: Sequence[float] | Tensor | None = None,
        aggregate: Aggregate = "mean",
        reduction: Reduction = "mean",
        joint_weight: float = 1.0,
        value_range: tuple[float, float] = (0.0, 1.0),
        clamp: bool = False,
        checkpoint: bool = False,
        autocast: Autocast = "inherit",
    ) -> None:
        super().__init__()
        if not isinstance(metric, Embedder):
            raise TypeError(
                f"metric must be a model of idmetric (IDSim, NearID, ...), got {type(metric).__name__}: give the plain "
                "model, without torch.compile or DistributedDataParallel around it"
            )
        for option, value, choices in (
            ("aggregate", aggregate, ("mean", "min")),
            ("reduction", reduction, ("mean", "sum", "none")),
            ("outside", outside, ("black", "white", "crop", "keep")),
            ("autocast", autocast, ("inherit", "off", "a torch.dtype")),
        ):
            if value not in choices and not isinstance(value, torch.dtype):
                raise ValueError(f"unknown {option} {value!r}: choose {', '.join(choices)}")
        if len(value_range) != 2 or not -math.inf < value_range[0] < value_range[1] < math.inf:
            raise ValueError(f"value_range must be (lowest, highest), such as (0, 1) or (-1, 1), got {value_range}")
        if aggregate == "min" and weights is not None:
            raise ValueError("weights belong to aggregate='mean': the nearest reference needs none")
        self.distance = check_name(distance)
        self.joint_weight = joint_weight
        self.outside = outside
        self.aggregate = aggregate
        self.reduction = reduction
        self.value_range = (float(value_range[0]), float(value_range[1]))
        self.clamp = clamp
        self.autocast = autocast

        frozen = _frozen(metric)
        if checkpoint:
            _checkpoint_blocks(frozen)
        self.__dict__["_metric"] = frozen  # no submodule, see the module's docstring
        # attributes and not buffers, which DistributedDataParallel would overwrite by those of the first process;
        # tensors made in inference mode could not join a graph later
        with opening(), torch.no_grad():
            self._references, self._thumbnails = self._read_references(references, labeled(masks, mask_id))
            self._self_terms = self_terms(self._references, self.distance)
            self.reference_weights = _reference_weights(weights, self._references.cls)

    # References

    def _read_references(
        self, references: Images | Embedding | Subject, masks: Masks
    ) -> tuple[Embedding, list[NDArray[np.uint8] | None]]:
        """The references' embedding, and the small pictures that `log_images` shows: None where there is none."""
        pass

        subject = subject_among(references)
        if subject is not None:
            subject.check(self._metric.model_id, self.distance)
            return self._embed_references(subject.embedding, masks), list(subject.thumbnails)
        if isinstance(references, Embedding):
            embedding = self._embed_references(references, masks)
            return embedding, [None] * len(embedding)
        images = split_images(references)  # type: ignore[arg-type]  # no subject; once, as it may be an iterator
        single_masks = split_masks(masks, images)
        check_paths(images, single_masks)
        if not images:
            raise ValueError("no images: give at least one reference of the subject")

        # decoded once, for the embedding and for the small picture
        parts = []
        thumbnails: list[NDArray[np.uint8] | None] = []
        for start in range(0, len(images), _AT_ONCE):
            some_masks = single_masks[start : start + _AT_ONCE]
            pictures: list[ImageLike] = []
            for image in images[start : start + _AT_ONCE]:
                is_ready = is_array(image) and is_float(image)
                pictures.append(image if is_ready else self._metric.read_image(image))
            thumbnails += [thumbnail_of(picture) for picture in pictures]
            has_masks = any(mask is not None for mask in some_masks)
            parts.append(self._embed_references(pictures, some_masks if has_masks else None))
        return concatenate(parts), thumbnails

    def _embed_references(self, source: Images | Embedding, masks: Masks) -> Embedding:
        with_patches = needs_patches(self.distance)
        with self._precision(self._metric.device):
            embedding = self._metric.as_embedding(source, masks, self.outside, with_patches, _AT_ONCE)
        if not len(embedding):
            raise ValueError("no images: give at least one reference of the subject")
        if not embedding.finite().all():
            raise NonFiniteError("the references' embedding holds NaN or infinity: embed them again, in float32")
        if not with_patches:
            embedding = embedding.without_patches()
        dtype = at_least_float32(embedding.cls).dtype
        return copy.deepcopy(embedding.detach()).to(self._metric.device, dtype)

    @property
    def references(self) -> Embedding:
        """The references' embedding, where the loss is."""
        return self._references

    @property
    def metric(self) -> Embedder:
        """The loss's own frozen module over the metric's weights."""
        return self._metric

    def signature(self) -> dict[str, str]:
        """Model, exact weights, distance and use of references, to report with a training run."""
        return {
            **self._metric.signature(self.distance),
            "references": str(len(self._references)),
            "aggregate": self.aggregate,
            "outside": self.outside,
        }

    def __repr__(self) -> str:
        return f"IdentityLoss({self._metric.label}, references={len(self._references)}, distance={self.distance!r})"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        moved = fn(self._references.cls)
        if keeps_values(fn):
            self._metric._apply(fn, recurse)
        elif moved.device.type == "meta":
            return self
        else:  # `to_empty`, after which a load_state_dict would not fill the metric: it moves with its values
            self._metric.to(moved.device)

        # references move too, but are never less precise than they were
        dtype = torch.promote_types(moved.dtype, self._references.cls.dtype)
        self._references = self._references.to(moved.device, dtype)
        self.reference_weights = self.reference_weights.to(moved.device, dtype)
        if self._self_terms is not None:
            self._self_terms = self._self_terms.to(moved.device, dtype)
        return self

    # Images in, loss out

    def forward(self, pixels: Tensor, *, masks: Tensor | None = None) -> Tensor:
        """Compute the loss of a batch.

        Args:
            pixels: (B, 3, H, W), RGB in `value_range`, any size, floating; part of a graph, unless gradients are off.
            masks: the share of each pixel that the subject covers, (B, h, w) or (B, 1, h, w), bool or in [0, 1], on any
                device; masks of another size are averaged to the size of the pixels. Differentiable too. Pixels
                outside are filled as `outside` says; unless it is "keep", pixels where the mask is 0 get no gradient.

        Returns:
            A scalar, or (B,) with reduction "none"; float32 or better.

        Raises:
            ValueError: if pixels or masks do not fit; the message says how to fix it.
        """
        _check_shape(pixels)
        if torch.is_grad_enabled() and not pixels.requires_grad:
            raise ValueError(
                "the pixels carry no graph, so this loss would train nothing: make them outside of torch.no_grad() and "
                "without detach(), numpy or PIL (a pipeline's __call__ runs under no_grad). To evaluate only, call the "
                "loss under torch.no_grad()"
            )
        losses = self._aggregated(self._distances(pixels, masks))
        if self.reduction == "mean":
            return losses.mean()
        if self.reduction == "sum":
            return losses.sum()
        return losses

    def log_images(
        self,
        writer: Any,
        pixels: Tensor,
        step: int,
        *,
        masks: Tensor | None = None,
        count: int = 4,
        name: str = "identity",
    ) -> list[LoggedPair]:
        """Log the images of a batch that are farthest from the subject, each next to its nearest reference.

        >>> loss.log_images(accelerator, images, step)  # doctest: +SKIP

        The distances are computed once more, without a graph: call it every few hundred steps.

        Args:
            writer: TensorBoard's `SummaryWriter`, a run of Weights & Biases, an `Accelerator` (all of its trackers), or
                a function of (pairs, step); None logs nothing.
            pixels, masks: as for the loss; a graph is not needed.
            count: images at most. name: under which they are logged.

        Returns:
            The pairs, the largest loss first.

        Raises:
            TypeError: for a writer of another kind. Trackers of an Accelerator that take no images are skipped, with
                a warning that names them.
        """
        pass

        _check_shape(pixels)
        with torch.no_grad():
            distances = self._distances(pixels, masks)
            losses = self._aggregated(distances).tolist()
        shown = self._to_unit(pixels.detach()).cpu()
        return logged(writer, shown, losses, distances.argmin(1).tolist(), self._thumbnails, step, count, name)

    def _distances(self, pixels: Tensor, masks: Tensor | None) -> Tensor:
        """Distances (B, R) of images to references."""
        views, covers = subject_of(self._to_unit(pixels), masks, self.outside)
        with self._precision(pixels.device):
            embedding = self._embed(views, covers)

        # the references are the metric's by construction, also once DistributedDataParallel has copied over its weights
        references = replace(self._references, model="")
        matrix = _eager_matrix if self.distance in _TRANSPORT else distance_matrix
        return matrix(embedding, references, self.distance, joint_weight=self.joint_weight, self_b=self._self_terms)

    def _aggregated(self, distances: Tensor) -> Tensor:
        """Losses (B,) of distances (B, R)."""
        if self.aggregate == "min":
            return distances.amin(1)
        return (distances * self.reference_weights.to(distances)).sum(1)

    def _to_unit(self, pixels: Tensor) -> Tensor:
        low, high = self.value_range
        x = at_least_float32(pixels)
        # looking at values waits for the device, and would break a compiled graph
        if not self.clamp and not torch.compiler.is_compiling():
            hint = "clamp=True allows what merely overshoots"
            if low == 0:
                hint += "; a decoder's images want IdentityLoss(..., value_range=(-1, 1), clamp=True)"
            try:
                check_pixels(x, low, high, hint)
            except ValueError as error:
                raise ValueError(f"value_range={self.value_range}: {error}") from error
        if (low, high) != (0, 1):
            x = (x - low) / (high - low)
        if self.clamp:
            zero = x.detach() - x.detach()  # NaN where x is NaN or infinite, which a clamp would hide
            x = x.clamp(0, 1) + zero
        return x

    def _embed(self, views: list[Tensor], covers: list[Tensor] | None) -> Embedding:
        """Embed images with their masks; images of one size in one pass."""
        fitted = [self._metric.fit_pixels(view) for view in views]
        fitted_covers: list[Any] = [None] * len(fitted)
        if covers is not None:
            for i, cover in enumerate(covers):
                height, width = fitted[i].shape[-2:]
                fitted_covers[i] = self._metric.fit.cover(cover, (height, width), True)
        sizes = {pixels.shape[-2:] for pixels in fitted}
        if len(sizes) == 1:
            fitted = [torch.cat(fitted)]
            fitted_covers = [None if covers is None else torch.cat(fitted_covers)]
        embeddings = []
        for pixels, cover in zip(fitted, fitted_covers, strict=True):
            embeddings.append(self._embed_batch(pixels, cover))
        return concatenate(embeddings)

    def _embed_batch(self, pixels: Tensor, cover: Tensor | None) -> Embedding:
        embedding = self._metric.embed_pixels(pixels)
        if not needs_patches(self.distance):
            return embedding.without_patches()
        if cover is None:
            return embedding
        if embedding.grid is None:
            raise ValueError(
                f"{self._metric.label} has no fixed patch grid for masks to weigh: use distance='cls' with masks"
            )
        weights = F.adaptive_avg_pool2d(cover, embedding.grid)
        return replace(embedding, weights=weights.flatten(1))

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        if self.autocast == "inherit":
            return nullcontext()
        if self.autocast == "off":
            return torch.autocast(device.type, enabled=False)
        return torch.autocast(device.type, dtype=self.autocast)


# The metric


def _frozen(metric: Embedder) -> Embedder:
    """Return a frozen copy in eval mode that shares the caller's memory; the caller's module does not change."""
    shared: dict[int, Any] = {}
    for parameter in metric.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in metric.buffers():
        shared[id(buffer)] = buffer
    return copy.deepcopy(metric, shared).eval()


def _checkpoint_blocks(metric: Embedder) -> None:
    """Let the backbone recompute its blocks; changes the metric in place."""
    trunk: Any = getattr(metric, "backbone", None)
    if hasattr(trunk, "set_grad_checkpointing"):  # timm
        for encoder in (trunk, getattr(metric, "second", None)):  # `TinyConfig.second`
            if encoder is not None:
                encoder.set_grad_checkpointing(True)
    elif hasattr(trunk, "gradient_checkpointing_enable"):  # transformers
        trunk.gradient_checkpointing_enable({"use_reentrant": False})
        for layer in trunk.modules():
            if getattr(layer, "gradient_checkpointing", False):
                layer.training = True  # they read the flag only then; what drops out lies below them and stays off
    else:
        raise ValueError(f"checkpoint=True: {metric.label}'s backbone cannot recompute its blocks; leave it out")


# Arguments


def _reference_weights(weights: Sequence[float] | Tensor | None, features: Tensor) -> Tensor:
    """Weights of references that sum to 1, like their features (B, D) in device and dtype."""
    count = len(features)
    if weights is None:
        return features.new_full((count,), 1 / count)
    values = torch.as_tensor(weights, dtype=torch.float64).detach().flatten()
    are_weights = values.isfinite().all() and (values >= 0).all()
    if len(values) != count or not are_weights or not values.sum() > 0:
        raise ValueError(
            f"weights of references must be {count} nonnegative numbers with a positive sum, got {values.tolist()}"
        )
    shares = values / values.sum()
    return shares.to(features)


def _check_shape(pixels: Tensor) -> None:
    if not isinstance(pixels, Tensor) or not pixels.is_floating_point():
        kind = getattr(pixels, "dtype", type(pixels).__name__)
        raise ValueError(f"pixels must be a floating tensor (B, 3, H, W), got {kind}: nothing else has a gradient")
    if pixels.ndim != 4 or pixels.shape[1] != 3 or 0 in pixels.shape:
        raise ValueError(
            f"pixels must have shape (B, 3, H, W), got {tuple(pixels.shape)}: add a missing batch dimension by "
            "pixels[None], and decode latents first"
        )
