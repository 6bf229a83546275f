"""Heatmaps of a subject in an image: cosine similarity of its patch tokens to patch tokens of references.

    maps = heatmaps(metric, "mug.jpg", ["desk.jpg", "shelf.jpg"], masks="mug_mask.png")  # each (H, W), its image's size

`idmetric.metric.distance.patches` lists the kinds of `match`. Higher = more surely the subject; in [-1, 1].
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.patches import Layout, Match, on_grid, patch_similarity, patch_tokens, spread
from idmetric.metric.images.fit import SQUASH
from idmetric.metric.images.masks import Images, MaskId, Masks, labeled, read_mask
from idmetric.metric.images.read import ImageLike, Outside, split_images
from idmetric.metric.models.embedder import Embedder


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
    subject = metric.as_embedding(references, labeled(masks, mask_id), outside, True, batch_size)
    patch_tokens(subject, metric.label)
    pictures = pictures_of(metric, targets)
    found = metric.as_embedding([seen for seen, _ in pictures], None, outside, True, batch_size)
    similar = patch_similarity(subject, found, match)
    maps = []
    for k, (_, size) in enumerate(pictures):
        where = layout(metric, *size, found[k])
        maps.append(spread(on_grid(similar[k], where), where, size))
    return maps


def pictures_of(metric: Embedder, images: Images) -> list[tuple[Any, tuple[int, int]]]:
    """Return each image as the model reads it, and its full height and width, which are those of its map."""
    found: list[tuple[Any, tuple[int, int]]] = []
    for one in split_images(images):
        if isinstance(one, Tensor):
            found.append((one, (one.shape[-2], one.shape[-1])))
        else:
            picture = metric.read_image(one)
            seen = picture if metric.decode == "exact" else metric.read_image(one, whole=False)
            found.append((seen, (picture.height, picture.width)))
    return found


def layout(metric: Embedder, height: int, width: int, embedded: Embedding) -> Layout:
    """Return the layout of the patches of an image of this size, given its embedding (of one image, without a mask).

    Raises:
        ValueError: for a model that crops or pads images, as patches would lie elsewhere.
    """
    if metric.fit != SQUASH:
        raise ValueError(f"{metric.label} does not see the whole image at its shape: load it with resize='squash'")
    seen = metric.size_for(height, width)
    if embedded.grid is None:  # VisIDEmbed: square cells, as many as have weight
        count = patch_tokens(embedded).shape[1] if embedded.weights is None else int((embedded.weights[0] > 0).sum())
        side = math.isqrt(seen[0] * seen[1] // count)
        return Layout((seen[0] // side, seen[1] // side), seen, seen)
    embed = getattr(getattr(metric, "backbone", None), "patch_embed", None)
    sides = getattr(embed, "patch_size", None)
    if isinstance(sides, tuple) and tuple(s // p for s, p in zip(seen, sides, strict=True)) == embedded.grid:
        return Layout(embedded.grid, seen, (embedded.grid[0] * sides[0], embedded.grid[1] * sides[1]))
    return Layout(embedded.grid, seen, seen)


def coverage(mask: ImageLike | Tensor, where: Layout) -> Tensor:
    """Return the share of each patch (rows, columns) that a mask of the whole image covers."""
    seen = read_mask(mask, where.seen)[: where.covered[0], : where.covered[1]]
    return F.adaptive_avg_pool2d(seen[None], where.grid)[0]
