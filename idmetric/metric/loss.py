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
import sys
import warnings
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
from idmetric.metric.embedding import Embedding, concatenate, saved_embedding
from idmetric.metric.errors import NonFiniteError
from idmetric.metric.fingerprint import keeps_values
from idmetric.metric.images import Outside, describe, image_of_pixels, is_array, is_float
from idmetric.metric.masks import Images, MaskId, Masks, labeled, subject_of

Reduction = Literal["mean", "sum", "none"]
Aggregate = Literal["mean", "min"]
Autocast = Literal["inherit", "off"] | torch.dtype

_OVERSHOOT = 0.1  # of the range of values: what a decoder may exceed it by
_SIDE = 256  # pixels of each of the two pictures that are logged side by side
_LINE = 16  # pixels of the line of text below them
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
            raise TypeError(
                f"metric must be a model of idmetric (IDSim, NearID, ...), got {type(metric).__name__}: give the plain "
                "model, without torch.compile or DistributedDataParallel around it"
            )
        _check_choice("aggregate", aggregate, get_args(Aggregate))
        _check_choice("reduction", reduction, get_args(Reduction))
        _check_choice("outside", outside, get_args(Outside))
        if not isinstance(autocast, torch.dtype):
            _check_choice("autocast", autocast, ("inherit", "off"))
        is_rising = len(value_range) == 2 and value_range[0] < value_range[1]
        if not is_rising or not all(map(math.isfinite, value_range)):
            raise ValueError(f"value_range must be (lowest, highest), such as (0, 1) or (-1, 1), got {value_range}")
        if aggregate == "min" and weights is not None:
            raise ValueError("weights belong to aggregate='mean': the nearest reference needs none")
        self.distance = check_name(distance)
        self.joint_weight = joint_weight
        self.outside = outside
        self.aggregate = aggregate
        self.reduction = reduction
        self.value_range = value_range
        self.autocast = autocast

        frozen = _frozen(metric)
        if checkpoint:
            _checkpoint_blocks(frozen)
        self.__dict__["_metric"] = frozen  # no submodule, see the module's docstring
        # attributes and not buffers, which DistributedDataParallel would overwrite by those of the first process;
        # tensors made in inference mode could not join a graph later
        with opening(), torch.no_grad():
            reference_masks = labeled(masks, mask_id)
            embedding, self._thumbnails = self._read_references(references, reference_masks)
            self._references = embedding
            self.reference_weights = _reference_weights(weights, embedding.cls)

    # References

    def _read_references(
        self, references: Images | Embedding, masks: Masks
    ) -> tuple[Embedding, list[Image.Image | None]]:
        """The references' embedding, and the small pictures that `log_images` shows: None where there is none."""
        saved = saved_embedding(references)
        parts = []
        thumbnails: list[Image.Image | None] = []
        if saved is not None:
            parts.append(self._embed_reference(saved, masks))
            thumbnails += [None] * len(saved)
        else:
            for image, mask in zip(*split_with_masks(references, masks), strict=True):
                picture = self._metric.read_image(image)  # decoded once, for the embedding and the small picture
                is_ready = is_array(image) and is_float(image)
                source = image if is_ready else picture
                parts.append(self._embed_reference(source, mask))
                picture.thumbnail((_SIDE, _SIDE))
                thumbnails.append(picture)

        embedding = concatenate(parts)
        embedding.check_maker("", needs_patches(self.distance))
        if not embedding.finite().all():
            raise NonFiniteError("the references' embedding holds NaN or infinity: embed them again, in float32")
        dtype = at_least_float32(embedding.cls).dtype
        copied = copy.deepcopy(embedding.detach())
        return copied.to(self._metric.device, dtype), thumbnails

    def _embed_reference(self, source: Images | Embedding, masks: Masks) -> Embedding:
        with_patches = needs_patches(self.distance)
        with self._precision(self._metric.device):
            embedding = self._metric.as_embedding(source, masks, self.outside, with_patches, 1)
        return embedding if with_patches else embedding.without_patches()

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
        count = len(self._references)
        return f"IdentityLoss({self._metric.label}, references={count}, distance={self.distance!r})"

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
        device = moved.device
        dtype = torch.promote_types(moved.dtype, self._references.cls.dtype)
        self._references = self._references.to(device, dtype)
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
        if not torch.compiler.is_compiling():  # looking at values would break the graph
            extremes = torch.stack(torch.aminmax(x.detach()))
            least, most = extremes.tolist()
            slack = _OVERSHOOT * (high - low)
            if math.isnan(least):
                raise ValueError("the pixels hold NaN: check the model that made them, or run it in float32")
            if least < low - slack or most > high + slack:
                raise ValueError(
                    f"the pixels span [{least:.4g}, {most:.4g}], outside of value_range={self.value_range}: give "
                    "IdentityLoss their range, such as value_range=(-1, 1) for the images of most decoders, or (0, 255)"
                )
        x = (x - low) / (high - low)
        is_outside = (x < 0) | (x > 1)
        nan_if_infinite = x.detach() - x.detach()  # which a clamp would hide in a compiled loss
        clamped = x.detach().clamp(0, 1) + nan_if_infinite
        return torch.where(is_outside, clamped, x)  # torch's clamp has no gradient at 0 and 1 either

    def _distances(self, x: Tensor, masks: Tensor | None) -> Tensor:
        """Distances (B, R) of pixels in [0, 1] to the references."""
        with_patches = needs_patches(self.distance)
        with self._precision(x.device):
            if masks is None:
                resized = self._metric.fit_pixels(x)
                embedding = self._metric.embed_pixels(resized)
            else:
                views, covers = subject_of(x, masks, self.outside)
                batch = []
                for view, cover in zip(views, covers or [], strict=True):  # of the whole batch, or of one image each
                    for picture, picture_cover in zip(view, cover, strict=True):
                        batch.append(self._metric.prepare(picture, picture_cover))
                embedding = self._metric.embed_prepared(batch, with_patches)
        if not with_patches:
            embedding = embedding.without_patches()

        # the references are the metric's by construction, also once DistributedDataParallel has copied over its weights
        references = replace(self._references, model="")
        matrix = _eager_matrix if self.distance in _TRANSPORT else distance_matrix
        joint_weight = self.joint_weight
        return matrix(embedding, references, self.distance, joint_weight=joint_weight)

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
        with torch.no_grad():
            x = self._to_unit(pixels)
            distances = self._distances(x, masks)
            losses = self._aggregated(distances)
        pairs = []
        size = (_SIDE, _SIDE)
        for row in losses.argsort(descending=True, stable=True)[:count].tolist():
            loss = losses[row].item()
            picture = Image.new("RGB", (2 * _SIDE, _SIDE + _LINE), "white")
            image = image_of_pixels(x[row])
            picture.paste(ImageOps.pad(image, size, color="white"))
            nearest = int(distances[row].argmin())
            reference = self._thumbnails[nearest]
            if reference is not None:
                thumbnail = ImageOps.pad(reference, size, color="white")
                picture.paste(thumbnail, (_SIDE, 0))
            ImageDraw.Draw(picture).text((4, _SIDE + 2), f"distance {loss:.4f}; right: nearest reference", "black")
            pairs.append(LoggedPair(picture, loss, row))

        if hasattr(writer, "trackers"):
            skipped = []
            for tracker in writer.trackers:
                if not _log(tracker, pairs, step, name):
                    skipped.append(type(tracker).__name__)
            if skipped:
                warnings.warn(f"these trackers take no images and are skipped: {', '.join(skipped)}", stacklevel=2)
        elif writer is not None and not _log(writer, pairs, step, name):
            raise TypeError(
                f"cannot log images to {type(writer).__name__}: give a SummaryWriter, a run of wandb, an Accelerator, "
                "or a function of (pairs, step)"
            )
        return pairs


def _log(writer: Any, pairs: Sequence[LoggedPair], step: int, name: str) -> bool:
    """Give pairs to a writer by the interface that it has; False if it takes no images."""
    pictures = [pair.picture for pair in pairs]
    board = getattr(writer, "writer", writer)  # of accelerate's tracker
    if hasattr(board, "add_images"):  # TensorBoard's
        arrays = [np.asarray(picture) for picture in pictures]
        images = np.stack(arrays)
        board.add_images(name, images, step, dataformats="NHWC")
    elif getattr(writer, "name", "") in ("aim", "clearml"):  # accelerate's trackers that take no lists
        named = {}
        for number, picture in enumerate(pictures):
            named[f"{name}/{number}"] = picture
        writer.log_images(named, step=step)
    elif hasattr(writer, "log_images"):  # the others
        writer.log_images({name: pictures}, step=step)
    elif type(writer).__module__.startswith("wandb") and hasattr(writer, "log"):
        shown = []
        for pair in pairs:
            caption = f"distance {pair.loss:.4f}"
            shown.append(sys.modules["wandb"].Image(pair.picture, caption=caption))
        writer.log({name: shown}, step=step)
    elif callable(writer):
        writer(pairs, step)
    else:
        return False
    return True


# The metric


def _frozen(metric: Embedder) -> Embedder:
    """Return a frozen copy in eval mode that shares the caller's memory; the caller's module does not change."""
    shared: dict[int, Any] = {}
    for parameter in metric.parameters():
        values = parameter.detach()
        shared[id(parameter)] = nn.Parameter(values, requires_grad=False)
    for buffer in metric.buffers():
        shared[id(buffer)] = buffer
    return copy.deepcopy(metric, shared).eval()


def _checkpoint_blocks(metric: Embedder) -> None:
    """Let the backbone recompute its blocks; changes the metric in place."""
    trunk: Any = getattr(metric, "backbone", None)
    if hasattr(trunk, "set_grad_checkpointing"):  # timm
        for encoder in (trunk, getattr(metric, "second", None)):  # `IDSimConfig.second`
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


def _check_choice(option: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {option} {value!r}: choose {', '.join(choices)}")


def _reference_weights(weights: Sequence[float] | Tensor | None, features: Tensor) -> Tensor:
    """Weights of references that sum to 1, like their features (B, D) in device and dtype."""
    count = len(features)
    if weights is None:
        weights = [1] * count
    values = torch.as_tensor(weights, dtype=torch.float64).detach()
    total = values.sum()
    if values.shape != (count,) or not (values >= 0).all() or not 0 < total < math.inf:
        raise ValueError(
            f"weights of references must be {count} nonnegative numbers with a positive sum, got {values.tolist()}"
        )
    return (values / total).to(features)
