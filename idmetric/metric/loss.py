"""Identity as a loss: how far images under training are from the subject that reference images show.

    loss = IdentityLoss(metric, ["ref_1.jpg", "ref_2.jpg"], distance="joint", value_range=(-1, 1))
    (denoising + 0.1 * loss(vae.decode(predicted_x0).sample.clamp(-1, 1))).backward()

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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor, nn

from idmetric.metric.distance import check_name, distance_matrix, needs_patches
from idmetric.metric.embedder import Embedder, at_least_float32, opening, split_with_masks
from idmetric.metric.embedding import Embedding, saved_embedding
from idmetric.metric.errors import NonFiniteError
from idmetric.metric.fingerprint import keeps_values
from idmetric.metric.images import Outside, describe, image_of_pixels, read_picture
from idmetric.metric.masks import Images, MaskId, Masks, labeled, subject_of

Reduction = Literal["mean", "sum", "none"]
Aggregate = Literal["mean", "min"]
Autocast = Literal["inherit", "off"] | torch.dtype

_OVERSHOOT = 0.1  # of the range of values: what a decoder may exceed it by
_SIDE = 256  # pixels of each of the two pictures that are logged side by side
_TRANSPORT = ("patch", "joint", "patch_biased")
# Sinkhorn's loop looks at values: it is not compiled
_eager_matrix: Callable[..., Tensor] = torch.compiler.disable(distance_matrix)  # type: ignore[no-untyped-call]


class LoggedPair(NamedTuple):
    """An image and its nearest reference, side by side.

    Attributes:
        row: the number of the image in the batch.
    """

    picture: Image.Image
    loss: float
    row: int


class IdentityLoss(nn.Module):
    """Distance of images (B, 3, H, W) to reference images, differentiable in the images.

    >>> loss = IdentityLoss(IDSim("tiny"), "reference.jpg")  # doctest: +SKIP
    >>> loss(pixels).backward()  # doctest: +SKIP

    Args:
        metric: any `Embedder` of this package; not a compiled one (compile the loss).
        references: images of the subject (anything `Embedder.embed` takes), their embedding, or its .idm file.
        distance: see the table in `idmetric.metric.distance`. joint_weight: weight of the patch term of "joint".
        masks, mask_id: subject masks of the references, and which of their labels is the subject; see `Embedder.embed`.
        outside: how pixels outside a mask are filled, in references and in `forward`.
        weights: weight of each reference in the mean; nonnegative, rescaled to sum to 1. Default: equal weights.
        aggregate: over references: "mean", or "min", the distance to the nearest.
        reduction: over the batch: "mean", "sum", or "none", which gives (B,).
        value_range: range of the pixels given to `forward`: (0, 1), or (-1, 1), which decoders of latents use. What
            overshoots it by up to a tenth, as decoders do, is clamped and gets no gradient.
        checkpoint: recompute the encoder's blocks in the backward pass instead of keeping their activations (Chen et
            al. 2016): the same gradients, less memory, about a third more computation.
        autocast: precision of the encoder, for images and references: "inherit" the setting around the call, "off" to
            use the precision of the weights even there, or a dtype such as torch.bfloat16. Distances, including
            Sinkhorn, are always float32 or better.

    Attributes:
        metric: the loss's own frozen module over the metric's weights.
        references: the references' embedding, where the loss is.

    Raises:
        TypeError: if the metric is not an Embedder.
        ImageReadError: if a reference cannot be read; the message names it.
        ValueError: if there are no references, or options, masks, weights or embeddings do not fit; the message says
            how to fix it.
    """

    metric: Embedder

    def __init__(
        self,
        metric: Embedder,
        references: Images | Embedding,
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
        checkpoint: bool = False,
        autocast: Autocast = "inherit",
    ) -> None:
        super().__init__()
        if not isinstance(metric, Embedder):
            kind = type(metric).__name__
            raise TypeError(f"metric must be a model of idmetric, not compiled or wrapped, got {kind}: give IDSim, ...")
        _check_options(aggregate, reduction, outside, autocast, value_range)
        if aggregate == "min" and weights is not None:
            raise ValueError("weights belong to aggregate='mean': the nearest reference needs none")
        self.distance = check_name(distance)
        self.joint_weight = joint_weight
        self.outside = outside
        self.aggregate = aggregate
        self.reduction = reduction
        self.value_range = value_range
        self.autocast = autocast

        self.__dict__["metric"] = _frozen(metric, checkpoint)  # no submodule, see the module's docstring
        # attributes and not buffers, which DistributedDataParallel would overwrite by those of the first process;
        # tensors made in inference mode could not join a graph later
        with opening(), torch.no_grad():
            self.references, self._thumbnails = self._read_references(references, labeled(masks, mask_id))
            self.reference_weights = _reference_weights(weights, self.references.cls)

    def _read_references(self, references: Images | Embedding, masks: Masks) -> tuple[Embedding, list[Image.Image]]:
        """The references' embedding, and the small pictures that `log_images` shows: none of an embedding."""
        with_patches = needs_patches(self.distance)
        source: Any = saved_embedding(references)
        thumbnails = []
        if source is None:
            images, masks = split_with_masks(references, masks)
            source = []
            for image in images:  # each is read once, for the loss and for the log
                background = self.metric.background
                picture = read_picture(image, background=background, preprocessing=self.metric.preprocessing)
                source.append(picture)
                rgb = image_of_pixels(picture) if isinstance(picture, Tensor) else picture
                thumbnails.append(_thumbnail(rgb))
        with self._precision(self.metric.device):
            embedding = self.metric.as_embedding(source, masks, self.outside, with_patches, 1)

        embedding.check_maker("", with_patches)
        if not embedding.finite().all():
            raise NonFiniteError("the references' embedding holds NaN or infinity: embed them again, in float32")
        if not with_patches:
            embedding = embedding.without_patches()
        dtype = at_least_float32(embedding.cls).dtype
        return copy.deepcopy(embedding.detach()).to(self.metric.device, dtype), thumbnails

    def signature(self) -> dict[str, str]:
        """Model, exact weights, distance and use of references, to report with a training run."""
        return {
            **self.metric.signature(self.distance),
            "references": str(len(self.references)),
            "aggregate": self.aggregate,
            "outside": self.outside,
        }

    def __repr__(self) -> str:
        count = len(self.references)
        return f"IdentityLoss({self.metric.label}, references={count}, distance={self.distance!r})"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        moved = fn(self.references.cls)
        device = moved.device
        if keeps_values(fn):
            self.metric._apply(fn, recurse)
        elif device.type == "meta":
            return self
        else:  # `to_empty`, after which a load_state_dict would not fill the metric: it moves with its values
            self.metric.to(device)

        # references move too, but are never less precise than they were
        dtype = torch.promote_types(moved.dtype, self.references.cls.dtype)
        self.references = self.references.to(device, dtype)
        self.reference_weights = self.reference_weights.to(device, dtype)
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
        x = self._to_unit(pixels)
        if torch.is_grad_enabled() and not pixels.requires_grad:
            raise ValueError(
                "the pixels carry no graph, so this loss would train nothing: make them outside of torch.no_grad() and "
                "without detach(), numpy or PIL (a pipeline's __call__ runs under no_grad). To evaluate only, call the "
                "loss under torch.no_grad()"
            )
        losses = self._aggregated(self._distances(x, masks))
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()

    def _to_unit(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], float32 or better."""
        is_floating = isinstance(pixels, Tensor) and pixels.is_floating_point()
        if not is_floating or pixels.ndim != 4 or pixels.shape[1] != 3 or not pixels.numel():
            raise ValueError(
                f"pixels must be a floating tensor (B, 3, H, W), got {describe(pixels)}: nothing else has a gradient; "
                "add a missing batch dimension by pixels[None], and decode latents first"
            )
        low, high = self.value_range
        x = at_least_float32(pixels)
        is_inside = False
        if not torch.compiler.is_compiling():  # looking at values would break the graph
            least, most = torch.stack(torch.aminmax(x.detach())).tolist()
            slack = _OVERSHOOT * (high - low)
            if not (least >= low - slack and most <= high + slack):  # NaN is neither
                raise ValueError(
                    f"the pixels span [{least:.4g}, {most:.4g}], outside of value_range={self.value_range}: give "
                    "IdentityLoss their range, such as value_range=(-1, 1) for the images of most decoders, or "
                    "(0, 255); NaN comes from the model that made them: run it in float32"
                )
            is_inside = low <= least and most <= high
        x = (x - low) / (high - low)
        if is_inside:
            return x
        values = x.detach()
        clamped = values.clamp(0, 1) + (values - values)  # NaN where a value is infinite, also in a compiled loss
        return torch.where((x < 0) | (x > 1), clamped, x)  # torch's clamp has no gradient at 0 and 1 either

    def _distances(self, x: Tensor, masks: Tensor | None) -> Tensor:
        """Distances (B, R) of pixels in [0, 1] to the references."""
        with_patches = needs_patches(self.distance)
        with self._precision(x.device):
            if masks is None:
                embedding = self.metric.embed_pixels(self.metric.fit_pixels(x))
            else:
                batch = []
                for picture, cover in zip(*subject_of(x, masks, self.outside), strict=True):
                    batch.append(self.metric.prepare(picture, cover))
                embedding = self.metric.embed_prepared(batch, with_patches)
        if not with_patches:
            embedding = embedding.without_patches()

        # the references are the metric's by construction, also once DistributedDataParallel has copied over its weights
        references = replace(self.references, model="")
        matrix = _eager_matrix if self.distance in _TRANSPORT else distance_matrix
        return matrix(embedding, references, self.distance, joint_weight=self.joint_weight)

    def _aggregated(self, distances: Tensor) -> Tensor:
        """Losses (B,) of distances (B, R)."""
        if self.aggregate == "min":
            return distances.amin(1)
        return (distances * self.reference_weights.to(distances)).sum(1)

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        if self.autocast == "inherit":
            return nullcontext()
        dtype = None if self.autocast == "off" else self.autocast
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

    # Pictures for the log of a training run

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

        >>> loss.log_images(writer, images, step)  # doctest: +SKIP

        The distances are computed once more, without a graph: call it every few hundred steps.

        Args:
            writer: TensorBoard's `SummaryWriter`, or another object with its `add_images`; else a function of
                (pairs, step); None logs nothing.
            pixels, masks: as for the loss; a graph is not needed.
            count: images at most. name: under which they are logged.

        Returns:
            The pairs, the largest loss first.
        """
        with torch.no_grad():
            x = self._to_unit(pixels)
            distances = self._distances(x, masks)
            losses = self._aggregated(distances)
        pairs = []
        for row in losses.argsort(descending=True, stable=True)[:count].tolist():
            loss = losses[row].item()
            nearest = int(distances[row].argmin())
            pictures = [_thumbnail(image_of_pixels(x[row])), *self._thumbnails[nearest : nearest + 1]]
            picture = _side_by_side(pictures, f"distance {loss:.4f}; right: nearest reference")
            pairs.append(LoggedPair(picture, loss, row))

        if hasattr(writer, "add_images"):
            images = [np.asarray(pair.picture) for pair in pairs]
            writer.add_images(name, np.stack(images), step, dataformats="NHWC")
        elif writer is not None:
            writer(pairs, step)
        return pairs


def _thumbnail(image: Image.Image) -> Image.Image:
    return ImageOps.pad(image, (_SIDE, _SIDE), color="white")


def _side_by_side(pictures: Sequence[Image.Image], caption: str) -> Image.Image:
    """One or two thumbnails over a line of text."""
    sheet = Image.new("RGB", (2 * _SIDE, _SIDE + 16), "white")
    for column, picture in enumerate(pictures):
        sheet.paste(picture, (column * _SIDE, 0))
    ImageDraw.Draw(sheet).text((4, _SIDE + 2), caption, "black")
    return sheet


# The metric


def _frozen(metric: Embedder, checkpoint: bool) -> Embedder:
    """A frozen copy in eval mode that shares the caller's memory; the caller's module does not change.

    Args:
        checkpoint: whether its encoders recompute their blocks in the backward pass; ValueError if they cannot.
    """
    shared: dict[int, Any] = {}
    for parameter in metric.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in metric.buffers():
        shared[id(buffer)] = buffer
    frozen = copy.deepcopy(metric, shared).eval()
    if not checkpoint:
        return frozen

    can_recompute = False
    for trunk in frozen.children():
        encoder: Any = trunk
        if hasattr(encoder, "set_grad_checkpointing"):  # timm
            encoder.set_grad_checkpointing(True)
            can_recompute = True
        elif hasattr(encoder, "gradient_checkpointing_enable"):  # transformers
            encoder.gradient_checkpointing_enable({"use_reentrant": False})
            can_recompute = True
            for layer in encoder.modules():
                if getattr(layer, "gradient_checkpointing", False):
                    layer.training = True  # they read the flag only then; what drops out lies below and stays off
    if not can_recompute:
        raise ValueError(f"checkpoint=True: {metric.label}'s backbone cannot recompute its blocks; leave it out")
    return frozen


# Arguments


def _check_options(
    aggregate: str, reduction: str, outside: str, autocast: Autocast, value_range: tuple[float, float]
) -> None:
    choices = {
        "aggregate": (aggregate, get_args(Aggregate)),
        "reduction": (reduction, get_args(Reduction)),
        "outside": (outside, get_args(Outside)),
    }
    if not isinstance(autocast, torch.dtype):
        choices["autocast"] = (autocast, ("inherit", "off"))
    for option, (value, values) in choices.items():
        if value not in values:
            raise ValueError(f"unknown {option} {value!r}: choose {', '.join(values)}")
    if len(value_range) != 2 or not 0 < value_range[1] - value_range[0] < math.inf:
        raise ValueError(f"value_range must be (lowest, highest), such as (0, 1) or (-1, 1), got {value_range}")


def _reference_weights(weights: Sequence[float] | Tensor | None, features: Tensor) -> Tensor:
    """Weights of references that sum to 1, like their features (B, D) in device and dtype."""
    count = len(features)
    values = torch.ones(count) if weights is None else torch.as_tensor(weights).detach()
    values = values.double()
    total = values.sum()
    if values.shape != (count,) or not (values >= 0).all() or not 0 < total < math.inf:
        raise ValueError(f"weights must be {count} nonnegative numbers with a positive sum, got {values.tolist()}")
    return (values / total).to(features)
