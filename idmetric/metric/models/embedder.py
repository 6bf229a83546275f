"""Embedder: the base class of every model. Pixels in, Embedding out; two images in, distance out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from PIL import Image
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.finite import checked_distances
from idmetric.metric.distance.matrix import distance as embedding_distance
from idmetric.metric.distance.matrix import distance_matrix, needs_patches
from idmetric.metric.images.arrays import check_pixels
from idmetric.metric.images.kinds import MaskId, Outside, naming
from idmetric.metric.images.masks import Images, Masks, labeled, split_masks
from idmetric.metric.images.paths import check_partners
from idmetric.metric.images.read import split_images
from idmetric.metric.images.resize import place
from idmetric.metric.models.batches import OnProgress, in_batches, patch_weights, wants_grad, warn_of_lost_graph
from idmetric.metric.models.devices import at_least_float32
from idmetric.metric.models.encode import SentenceEncoder
from idmetric.metric.models.named import NamedScore
from idmetric.metric.models.preprocessing import LoadedImage


class Embedder(SentenceEncoder):
    """A model that embeds images, bound to its own preprocessing (`Preprocessed` lists the arguments).

    A subclass calls this constructor and defines `forward_features` and `settings`, or `config`.

    Loaded models are frozen: in eval mode, no parameter requires grad, and `train()` does not change that. Gradients
    still flow to the pixels.
    """

    named: NamedScore | None = None  # the published score that it was opened by
    reads_words = False  # whether text changes an image's embedding
    has_patches = True  # whether embeddings may have patches
    may_see_nothing = False  # whether rows of NaN are no errors
    _compiled: Callable[..., Any] | None = None

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
            pixels: shape (B, 3, H, W), RGB in [0, 1], any size (see `fit_pixels`).

        Raises:
            ImageReadError: if the values leave [0, 1]; the message gives the range found.
        """
        if not torch.compiler.is_compiling():
            with naming(pixels):
                check_pixels(pixels)
        return self.embed_pixels(self.fit_pixels(pixels))

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
            mask_id: the label that is the subject in masks of several objects: a palette index, gray value or color
                such as "#ff0000" (`images.masks.Labeled(mask, mask_id)` sets it for one mask).
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

        def load(number: int) -> LoadedImage:
            return self.load_image(singles[number], single_masks[number], outside)

        return in_batches(load, self.embed_prepared, singles, self.dtype, **batching)

    def prepare(self, picture: Image.Image | Tensor | None, cover: Tensor | None, words: str | None) -> Any:
        """An element of a batch for `embed_prepared`; may run in a thread.

        Args:
            picture, cover: see `fitted`; no picture for a text alone, of models that read words.
            words: for models that read them (`reads_words`) the text to embed with the image; None: the default.
        """
        if picture is None:
            raise ValueError(f"{self.name} reads no text: a text alone has no embedding")
        return self.fitted(picture, cover)

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
                    f"metric(a) takes pixels, a tensor (B, 3, H, W), got {type(a).__name__}: compare two images with "
                    "metric(a, b), or embed one with metric.embed(a)"
                )
            embedding: Embedding = super().__call__(a)
            return embedding
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
