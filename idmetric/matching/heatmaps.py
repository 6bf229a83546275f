"""Heatmaps of a subject in an image: cosine similarity of its patch tokens to patch tokens of references.

    maps = heatmaps(metric, "mug.jpg", ["desk.jpg", "shelf.jpg"], masks="mug_mask.png")  # each (H, W), its image's size

`idmetric.matching.patches` lists the kinds of `match`. Higher = more surely the subject; in [-1, 1].
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from idmetric.matching.patches import Layout, Match, patch_similarity, patch_tokens
from idmetric.matching.regions import size_of
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding
from idmetric.metric.images import SQUASH, ImageLike, Outside, Picture, split_images
from idmetric.metric.masks import Images, MaskId, Masks, labeled, read_mask


def heatmaps(
    metric: Embedder,
    references: Images | Embedding,
    targets: Images,
    *,
    masks: Masks = None,
    mask_id: MaskId | None = None,
    outside: Outside = "keep",
    match: Match = "prototype",
    batch_size: int = 32,
) -> list[Tensor]:
    """Map the similarity of every place of each target to the subject of the references.

    Args:
        references: one image of the subject or several, or their embedding (with weights where masks were given).
        targets: images to search for the subject.
        masks, mask_id: subject masks of the references, see `Embedder.embed`.
        outside: treatment of the references' pixels outside their masks; kept by default, as in PerSAM.
        match: see the module.
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
    similarity = patch_similarity(subject, embedding, match)
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
            pictures.append((image, size_of(image)))
            continue
        picture = metric.read_image(image)
        pictures.append((picture, size_of(picture)))
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
