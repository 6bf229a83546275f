"""Heatmaps of a subject in an image: cosine similarity of its patch tokens to the mean token of references.

    [heat] = heatmaps(metric, "mug.jpg", "desk.jpg", masks="mug_mask.png")  # (H, W), its image's size
    overlay("desk.jpg", heat).save("desk_heat.png")

The similarity of a token t is cos(t, sum_i w_i u_i), with u_i the reference's tokens at unit length and w_i how much of
each its mask covers, as in PerSAM's released code (which counts every patch that the mask touches fully). ID-Sim says
only that PerSAM "uses patch-token similarity". Maps of several references are averaged. Higher = more surely the
subject; in [-1, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding, same_model
from idmetric.metric.images import SQUASH, ImageLike, Outside, Picture, read_image, split_images
from idmetric.metric.masks import Images, MaskId, Masks, labeled, read_mask

# dark violet, blue-green, green, yellow: lightness rises evenly, so it is readable in gray and for color-blind people
_STOPS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=np.float64)
_OPACITY = 0.6


def colors(
    values: ArrayLike,
    low: float | None = None,
    high: float | None = None,
) -> NDArray[np.uint8]:
    """Color values (H, W) as RGB (H, W, 3), from dark (low, default the minimum) to bright (high, the maximum).

    Raises:
        ValueError: if a value is not finite, or the shape is not (H, W).
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 2 or not v.size or not np.isfinite(v).all():
        raise ValueError(f"a heatmap needs finite values (H, W), got shape {v.shape}")
    if low is None:
        low = v.min()
    if high is None:
        high = v.max()
    shares = np.zeros_like(v)
    if high > low:
        shares = (v - low) / (high - low)
    stops = np.linspace(0, 1, len(_STOPS))
    bands = [np.interp(shares, stops, band) for band in _STOPS.T]
    rgb: NDArray[Any] = np.stack(bands, axis=-1)
    return rgb.round().astype(np.uint8)


def overlay(
    image: ImageLike,
    heat: ArrayLike,
    *,
    low: float | None = None,
    high: float | None = None,
) -> Image.Image:
    """Blend a heatmap over its image, at the heatmap's size.

    Args:
        image: see `idmetric.metric.images.read_image`; scaled to the heatmap's size.
        heat: (H, W), see `heatmaps`; a torch tensor on the CPU does.
        low, high: values of the darkest and brightest color, to give several pictures one scale.
    """
    over = Image.fromarray(colors(heat, low, high))
    picture = read_image(image)
    if picture.size != over.size:
        picture = picture.resize(over.size, Image.Resampling.BICUBIC)
    return Image.blend(picture, over, _OPACITY)


# Maps


def heatmaps(
    metric: Embedder,
    references: Images | Embedding,
    targets: Images,
    *,
    masks: Masks = None,
    mask_id: MaskId | None = None,
    outside: Outside = "keep",
    batch_size: int = 32,
) -> list[Tensor]:
    """Map the similarity of every place of each target to the subject of the references.

    Args:
        references: one image of the subject or several, or their embedding (with weights where masks were given).
        targets: images to search for the subject.
        masks, mask_id: subject masks of the references, see `Embedder.embed`.
        outside: treatment of the references' pixels outside their masks; kept by default, as in PerSAM.
        batch_size: images per pass.

    Returns:
        For each target cosines (H, W) at its height and width, interpolated between the patches' centers.

    Raises:
        ImageReadError: naming the image that cannot be read.
        ValueError: for a model without patch tokens, or masks that do not fit.
    """
    subject_masks = labeled(masks, mask_id)
    subject = metric.as_embedding(references, subject_masks, outside, True, batch_size)
    patch_tokens(subject, metric.label)

    pictures = pictures_of(metric, targets)
    inputs = [picture for picture, _ in pictures]
    embedding = metric.as_embedding(inputs, None, outside, True, batch_size)
    similarity = patch_similarity(subject, embedding)
    maps = []
    for number, (_, size) in enumerate(pictures):
        where = layout(metric, *size, embedding[number])
        maps.append(where.spread(similarity[number], size))
    return maps


def pictures_of(metric: Embedder, images: Images) -> list[tuple[Picture, tuple[int, int]]]:
    """Return each image as the model reads it, and its full height and width, which are those of its map."""
    pictures: list[tuple[Picture, tuple[int, int]]] = []
    for image in split_images(images):
        if isinstance(image, Tensor):
            pictures.append((image, (image.shape[-2], image.shape[-1])))
        else:
            picture = metric.read_image(image)
            pictures.append((picture, (picture.height, picture.width)))
    return pictures


def layout(metric: Embedder, height: int, width: int, embedded: Embedding) -> Layout:
    """Return the layout of the patches of an image of this size, given its embedding (of one image, without a mask).

    Raises:
        ValueError: for a model that crops or pads images, as patches would lie elsewhere.
    """
    if metric.fit != SQUASH:
        raise ValueError(f"{metric.label} does not see the whole image at its shape: load it with resize='squash'")
    size = metric.size_for(height, width)
    if embedded.grid is None:  # VisIDEmbed: square cells, as many as have weight
        count = patch_tokens(embedded).shape[1]
        if embedded.weights is not None:
            count = int((embedded.weights[0] > 0).sum())
        side = math.isqrt(size[0] * size[1] // count)
        return Layout((size[0] // side, size[1] // side), size, size)

    patch_embed = getattr(getattr(metric, "backbone", None), "patch_embed", None)
    patch = getattr(patch_embed, "patch_size", None)
    covered = size
    if isinstance(patch, tuple):
        whole_patches = size[0] // patch[0], size[1] // patch[1]
        if embedded.grid == whole_patches:
            rows, columns = whole_patches
            covered = rows * patch[0], columns * patch[1]
    return Layout(embedded.grid, size, covered)


def coverage(mask: ImageLike | Tensor, where: Layout) -> Tensor:
    """Return the share of each patch (rows, columns) that a mask of the whole image covers."""
    height, width = where.covered
    cover = read_mask(mask, where.seen)[:height, :width]
    return F.adaptive_avg_pool2d(cover[None], where.grid)[0]


# Patches


@dataclass(frozen=True)
class Layout:
    """Which part of an image its patch grid sees: rows x columns of equal cells.

    Attributes:
        grid: rows and columns. seen: height and width at which the model sees the image.
        covered: of those, from the top left corner, what patches cover: patches of 14 pixels leave 6 of 384 out.
    """

    grid: tuple[int, int]
    seen: tuple[int, int]
    covered: tuple[int, int]

    @property
    def share(self) -> tuple[float, float]:
        """Of the image's height and width, what patches cover."""
        height, width = self.seen
        covered_height, covered_width = self.covered
        return covered_height / height, covered_width / width

    def spread(self, values: Tensor, size: tuple[int, int]) -> Tensor:
        """One image's patch values at its pixels (H, W): bilinear, level beyond the outer centers.

        Args:
            values: (P,); the padding of a batch, after the grid's values, is dropped.
        """
        rows, columns = self.grid
        grid = values[: rows * columns].reshape(1, 1, rows, columns)
        # pixels lie at -1 to 1, edge to edge of the image; patches too, edge to edge of what they cover
        share_y, share_x = self.share
        scale_x = 1 / share_x
        scale_y = 1 / share_y
        to_patches = grid.new_tensor([[scale_x, 0, scale_x - 1], [0, scale_y, scale_y - 1]])
        positions = F.affine_grid(to_patches[None], [1, 1, *size], align_corners=False)
        pixels = F.grid_sample(grid, positions, padding_mode="border", align_corners=False)
        return pixels[0, 0]


def patch_similarity(subject: Embedding, targets: Embedding) -> Tensor:
    """Similarity (T, P) of each target's patch tokens to the subject that all images of `subject` show.

    Raises:
        ValueError: without patch tokens, or for embeddings of two models.
    """
    if not same_model(subject.model, targets.model):
        raise ValueError(f"embeddings of two models cannot be compared: {subject.model} and {targets.model}")
    tokens = F.normalize(patch_tokens(targets), dim=-1)
    return (tokens @ prototypes(subject).T).mean(-1)


def prototypes(subject: Embedding) -> Tensor:
    """The mean token of each image (R, D) at unit length, weighted by what its mask covers."""
    tokens = F.normalize(patch_tokens(subject), dim=-1)
    weights = tokens.new_ones(tokens.shape[:2])
    if subject.weights is not None:
        weights = subject.weights.to(tokens)
    shares = weights / weights.sum(1, keepdim=True)
    return F.normalize((tokens * shares[..., None]).sum(1), dim=-1)


def patch_tokens(embedding: Embedding, name: str = "") -> Tensor:
    """Patch tokens in float32 or better; ValueError without them, with the model's name (default: the embedding's)."""
    if embedding.patches is None:
        raise ValueError(
            f"{name or embedding.model or 'the embedding'} has no patch tokens: a map needs a model with them (IDSim, "
            "NearID, VisIDEmbed, Backbone), and an embedding made with patches=True"
        )
    return embedding.patches.to(torch.promote_types(embedding.patches.dtype, torch.float32))
