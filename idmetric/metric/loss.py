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
Train a model that can only make images (a generator, a LoRA), and evaluate with a different model (docs/loss.md).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.distance.embedding import Embedding, concatenate
from idmetric.metric.distance.finite import NonFiniteError
from idmetric.metric.distance.matrix import check_name, distance_matrix, needs_patches, self_terms
from idmetric.metric.images.kinds import SLACK
from idmetric.metric.images.masks import Images, MaskId, Masks, labeled
from idmetric.metric.images.read import Outside
from idmetric.metric.images.regions import Boxes, subject_of
from idmetric.metric.models.embedder import Embedder

Reduction = Literal["mean", "sum", "none"]
Aggregate = Literal["mean", "min"]
Autocast = Literal["inherit", "off"] | torch.dtype


# attributes and not buffers, which DistributedDataParallel would overwrite by those of the first process
_REFERENCES = ("_cls", "_patches", "_patch_weights", "_self_terms", "reference_weights")

_TRANSPORT = ("patch", "joint", "patch_biased")
# Sinkhorn's loop looks at values: it is not compiled
_eager_matrix: Callable[..., Tensor] = torch.compiler.disable(distance_matrix)  # type: ignore[no-untyped-call]


class IdentityLoss(nn.Module):
    """Distance of images (B, 3, H, W) to reference images, differentiable in the images.

    >>> loss = IdentityLoss(IDSim("tiny"), "reference.jpg")  # doctest: +SKIP
    >>> loss(pixels).backward()  # doctest: +SKIP

    Args:
        metric: any `Embedder` of this package; not a compiled one (compile the loss).
        references: images of the subject (anything `Embedder.embed` takes), or their embedding.
        distance: see the table in `idmetric.metric.distance.matrix`. joint_weight: weight of the patch term of "joint".
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
    _cls: Tensor
    _patches: Tensor | None
    _patch_weights: Tensor | None
    _self_terms: Tensor | None
    reference_weights: Tensor

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
        for option, value, known in (
            ("aggregate", aggregate, ("mean", "min")),
            ("reduction", reduction, ("mean", "sum", "none")),
            ("outside", outside, ("black", "white", "crop", "keep")),
            ("autocast", autocast, ("inherit", "off", "a torch.dtype")),
        ):
            if value not in known and not isinstance(value, torch.dtype):
                raise ValueError(f"unknown {option} {value!r}: choose {', '.join(known)}")
        if len(value_range) != 2 or not -math.inf < value_range[0] < value_range[1] < math.inf:
            raise ValueError(f"value_range must be (lowest, highest), such as (0, 1) or (-1, 1), got {value_range}")
        if aggregate == "min" and weights is not None:
            raise ValueError("weights belong to aggregate='mean': the nearest reference needs none")
        self.distance, self.joint_weight = check_name(distance), joint_weight
        self.outside, self.aggregate, self.reduction = outside, aggregate, reduction
        self.value_range, self.clamp = (float(value_range[0]), float(value_range[1])), clamp
        self.autocast = autocast
        own = _frozen(metric)
        if checkpoint:
            _checkpoint_blocks(own)
        self.__dict__["_metric"] = own  # no submodule, see the module's docstring
        with torch.inference_mode(False):  # tensors made under it could not join a graph later
            self._embed_references(references, labeled(masks, mask_id))
            self._keep("reference_weights", _reference_weights(weights, self._cls))

    # References

    def _embed_references(self, references: Images | Embedding, masks: Masks) -> None:
        with torch.no_grad(), self._precision():
            found = self._metric.as_embedding(references, masks, self.outside, needs_patches(self.distance), 32)
        if not len(found):
            raise ValueError("no images: give at least one reference of the subject")
        if needs_patches(self.distance) and found.patches is None:
            raise ValueError(
                f"distance {self.distance!r} compares patch tokens, which these references lack: embed them with "
                "patches=True, or choose distance='cls'"
            )
        if not found.finite().all():
            raise NonFiniteError("the references' embedding holds NaN or infinity: embed them again, in float32")
        found = found.detach().to(self._metric.device)
        self._grid, self._model = found.grid, found.model
        self._keep("_cls", found.cls)
        patches = found.patches if needs_patches(self.distance) else None
        self._keep("_patches", patches)
        self._keep("_patch_weights", None if patches is None else found.weights)
        with torch.no_grad():
            self._keep("_self_terms", self_terms(self.references, self.distance))

    def _keep(self, name: str, value: Tensor | None) -> None:
        if value is not None and value.dtype != torch.float64:
            value = value.float()
        setattr(self, name, None if value is None else value.clone())

    @property
    def references(self) -> Embedding:
        """The references' embedding, where the loss is."""
        return replace(self._targets(), model=self._model)

    def _targets(self) -> Embedding:
        # unmarked: they are the metric's by construction, also once DistributedDataParallel has copied over its weights
        grid = None if self._patches is None else self._grid
        return Embedding(self._cls, self._patches, grid, self._patch_weights)

    @property
    def metric(self) -> Embedder:
        """The loss's own frozen module over the metric's weights."""
        return self._metric

    def signature(self) -> dict[str, str]:
        """Model, exact weights, distance and use of references, to report with a training run."""
        own = self._metric.signature(self.distance)
        return {**own, "references": str(len(self._cls)), "aggregate": self.aggregate, "outside": self.outside}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        self._metric._apply(fn, recurse)

        # references move too, but are never less precise than they were
        for name in _REFERENCES:
            value = getattr(self, name)
            if value is not None:
                moved = fn(value)
                setattr(self, name, value.to(moved.device, torch.promote_types(moved.dtype, value.dtype)))
        return self

    # Images in, loss out

    def forward(self, pixels: Tensor, *, masks: Tensor | None = None, boxes: Boxes | None = None) -> Tensor:
        """Compute the loss of a batch.

        Args:
            pixels: (B, 3, H, W), RGB in `value_range`, any size, floating; part of a graph, unless gradients are off.
            masks: the share of each pixel that the subject covers, (B, h, w) or (B, 1, h, w), bool or in [0, 1], on any
                device; masks of another size are averaged to the size of the pixels. Differentiable too. Pixels
                outside are filled as `outside` says; unless it is "keep", pixels where the mask is 0 get no gradient.
            boxes: (left, top, right, bottom) of each image, in whole pixels, right and bottom excluded: the loss sees
                only that part, and only its pixels get a gradient. Masks are cropped too.

        Returns:
            A scalar, or (B,) with reduction "none"; float32 or better.

        Raises:
            ValueError: if pixels, masks or boxes do not fit; the message says how to fix it.
        """
        _check_shape(pixels)
        self._check_graph(pixels)
        x = self._to_unit(pixels)
        views, covers = subject_of(x, masks, boxes, self.outside)
        with self._precision(x.device):
            found = self._embed(views, covers)
        matrix = _eager_matrix if self.distance in _TRANSPORT else distance_matrix
        far = matrix(found, self._targets(), self.distance, joint_weight=self.joint_weight, self_b=self._self_terms)
        each = far.amin(1) if self.aggregate == "min" else (far * self.reference_weights.to(far)).sum(1)
        if self.reduction == "none":
            return each
        return each.mean() if self.reduction == "mean" else each.sum()

    def _check_graph(self, pixels: Tensor) -> None:
        if torch.is_grad_enabled() and not pixels.requires_grad:
            raise ValueError(
                "the pixels carry no graph, so this loss would train nothing: make them outside of torch.no_grad() and "
                "without detach(), numpy or PIL (a pipeline's __call__ runs under no_grad). To evaluate only, call the "
                "loss under torch.no_grad()"
            )

    def _to_unit(self, pixels: Tensor) -> Tensor:
        low, high = self.value_range
        x = pixels if pixels.dtype == torch.float64 else pixels.float()
        # looking at values waits for the device, and would break a compiled graph
        if not self.clamp and not torch.compiler.is_compiling():
            self._check_values(x)
        x = x if (low, high) == (0, 1) else (x - low) / (high - low)
        if not self.clamp:
            return x
        zero = x.detach() - x.detach()  # NaN where x is NaN or infinite, which a clamp would hide
        return x.clamp(0, 1) + zero

    def _check_values(self, x: Tensor) -> None:
        low, high = self.value_range
        least, most = torch.stack(torch.aminmax(x.detach())).tolist()
        found = f"[{least:.4g}, {most:.4g}]"
        if not (abs(least) < torch.inf and abs(most) < torch.inf):
            raise ValueError(
                f"pixels hold NaN or infinity (range found: {found}): look at the learning rate, and at half precision "
                "in the decoder (the SDXL VAE overflows in float16)"
            )
        if least >= low - SLACK * (high - low) and most <= high + SLACK * (high - low):
            return
        advice = "clamp=True allows what merely overshoots"
        if (low, high) == (0, 1) and least < -0.2:
            advice = "a decoder's images want IdentityLoss(..., value_range=(-1, 1), clamp=True)"
        elif most > 2 * high + 1:
            advice = "divide by 255"
        raise ValueError(f"pixels must lie in [{low:g}, {high:g}], found {found}: {advice}")

    def _embed(self, views: list[Tensor], covers: list[Tensor] | None) -> Embedding:
        metric = self._metric
        seen = [metric.fit_pixels(v) for v in views]
        if covers is not None:
            covers = [metric.fit.cover(c, (s.shape[-2], s.shape[-1]), True) for c, s in zip(covers, seen, strict=True)]
        if len({s.shape[-2:] for s in seen}) == 1:
            return self._weighted(torch.cat(seen), None if covers is None else torch.cat(covers))
        parts = [self._weighted(s, None if covers is None else covers[i]) for i, s in enumerate(seen)]
        return concatenate(parts)

    def _weighted(self, seen: Tensor, cover: Tensor | None) -> Embedding:
        found = self._metric.embed_pixels(seen)
        if not needs_patches(self.distance):
            return Embedding(found.cls, model=found.model)
        if cover is None:
            return found
        if found.grid is None:
            raise ValueError(
                f"{self._metric.label} has no fixed patch grid for masks to weigh: use distance='cls' with masks, or "
                "boxes instead of masks"
            )
        weights = F.adaptive_avg_pool2d(cover[:, None], found.grid).flatten(1)
        return Embedding(found.cls, found.patches, found.grid, weights, found.model)

    def _precision(self, device: torch.device | None = None) -> AbstractContextManager[Any]:
        kind = (device or self._metric.device).type
        if isinstance(self.autocast, torch.dtype):
            return torch.autocast(kind, dtype=self.autocast)
        return torch.autocast(kind, enabled=False) if self.autocast == "off" else nullcontext()


# The metric


def _frozen(metric: Embedder) -> Embedder:
    """Return a frozen copy in eval mode that shares the caller's memory; the caller's module does not change."""
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in metric.parameters()}
    shared |= {id(b): b for b in metric.buffers()}
    return copy.deepcopy(metric, shared).eval()


def _checkpoint_blocks(metric: Embedder) -> None:
    """Let the backbone recompute its blocks; changes the metric in place."""
    trunk: Any = getattr(metric, "backbone", None)
    if hasattr(trunk, "set_grad_checkpointing"):  # timm
        for one in (trunk, getattr(metric, "second", None)):  # `TinyConfig.second`
            if one is not None:
                one.set_grad_checkpointing(True)
    elif hasattr(trunk, "gradient_checkpointing_enable"):  # transformers
        trunk.gradient_checkpointing_enable({"use_reentrant": False})
        for layer in trunk.modules():
            if getattr(layer, "gradient_checkpointing", False):
                layer.training = True  # they read the flag only then; what drops out lies below them and stays off
    else:
        raise ValueError(f"checkpoint=True: {metric.label}'s backbone cannot recompute its blocks; leave it out")


# Arguments


def _reference_weights(weights: Sequence[float] | Tensor | None, like: Tensor) -> Tensor:
    count = len(like)
    if weights is None:
        return like.new_full((count,), 1 / count)
    given = torch.as_tensor(weights, dtype=torch.float64).detach().flatten()
    if len(given) != count:
        raise ValueError(f"{len(given)} weights for {count} references: give one for each")
    if not given.isfinite().all() or (given < 0).any() or not given.sum() > 0:
        raise ValueError(f"weights of references must be finite and nonnegative with a positive sum: {given.tolist()}")
    return (given / given.sum()).to(like)


def _check_shape(pixels: Tensor) -> None:
    if not isinstance(pixels, Tensor) or not pixels.is_floating_point():
        found = f"a {pixels.dtype} tensor" if isinstance(pixels, Tensor) else type(pixels).__name__
        raise ValueError(f"pixels must be a floating tensor (B, 3, H, W), got {found}: nothing else has a gradient")
    if pixels.ndim != 4 or pixels.shape[1] != 3 or 0 in pixels.shape:
        hint = ": add a batch dimension, pixels[None]" if pixels.ndim == 3 else ""
        hint = ": decode latents first" if pixels.ndim == 4 and pixels.shape[1] in (4, 16) else hint
        raise ValueError(f"pixels must have shape (B, 3, H, W), got {tuple(pixels.shape)}{hint}")
