"""Where in an image a subject is: cosine similarity of the target's patch tokens to those of reference images.

    maps = heatmaps(metric, "mug.jpg", ["desk.jpg", "shelf.jpg"], masks="mug_mask.png")  # each (H, W), its image's size
    both = subject_maps(metric, {"shirt": "a.jpg", "jacket": "b.jpg"}, "two_people.jpg")  # ID-Sim, Fig. 23

A mask of the reference weights its patches by how much of them it covers. What a patch of the target is compared with
(`match`), u_i being the reference's tokens at unit length and w_i their weights, summing to 1:

| match | similarity of a token t at unit length | after |
|---|---|---|
| prototype | cos(t, sum_i w_i u_i) | PerSAM's released code (which counts every patch that the mask touches fully) |
| mean | sum_i w_i cos(t, u_i) | PerSAM's paper: maps of all parts of the subject, averaged |
| mean_max | cos(t, (mean + maximum) / 2), of each component over covered tokens | the published code of PODS |
| nearest | highest cos(t, u_i), over covered tokens | dense correspondence |

ID-Sim says only that PerSAM "uses patch-token similarity". One reference's `mean` is its `prototype` map times a
constant. Maps of several references are averaged. Higher = more surely the subject; in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.images.masks import MaskId, labelled, read_mask
from idmetric.images.pairing import Images, Masks
from idmetric.images.read import ImageLike, Outside, split_images
from idmetric.models.embedder import Embedder
from idmetric.models.embedding import Embedding

Match = Literal["prototype", "mean", "mean_max", "nearest"]
MATCHES: tuple[Match, ...] = ("prototype", "mean", "mean_max", "nearest")


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
        return self.covered[0] / self.seen[0], self.covered[1] / self.seen[1]


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
    """Similarity of every place of each target to the subject that all references show.

    Args:
        references: one image of the subject or several, or their embedding (with weights where masks were given).
        targets: images to look for it in.
        masks, mask_id: subject masks of the references, see `Embedder.embed`.
        outside: what becomes of the references' pixels outside their masks; kept, as in PerSAM, unless told otherwise.
        match: see the module.
        batch_size: images per pass.

    Returns:
        For each target cosines (H, W) of its own height and width, interpolated between the patches' centres.

    Raises:
        ImageReadError: naming the image that cannot be read.
        ValueError: for a model without patch tokens, or masks that do not fit.
    """
    subject = metric.as_embedding(references, labelled(masks, mask_id), outside, True, batch_size)
    _tokens(subject, metric)
    singles = split_images(targets)
    pictures = [one if isinstance(one, Tensor) else metric.read_image(one) for one in singles]
    found = metric.as_embedding(pictures, None, outside, True, batch_size)
    similar = patch_similarity(subject, found, match)
    maps = []
    for k, picture in enumerate(pictures):
        height, width = picture.shape[-2:] if isinstance(picture, Tensor) else (picture.height, picture.width)
        where = layout(metric, height, width, found[k])
        maps.append(spread(on_grid(similar[k], where), where, (height, width)))
    return maps


def subject_maps(
    metric: Embedder,
    subjects: Mapping[str, Images | Embedding],
    target: ImageLike,
    *,
    masks: Mapping[str, Masks] | None = None,
    share: Literal["softmax", "argmax"] | None = "softmax",
    temperature: float = 0.1,
    **options: Any,
) -> dict[str, Tensor]:
    """A map of each of several subjects in one image (ID-Sim, Fig. 23).

    The figure shows each query's map, and says nothing of how subjects compete; `share` lets them, see `compete`.

    Args:
        subjects: name -> references, see `heatmaps`. masks: name -> their masks.
        share: None gives each subject's cosines as they are.
        temperature: of the softmax. options: of `heatmaps`.

    Returns:
        name -> (H, W) at the target's size.

    Raises:
        ValueError: as `heatmaps`, for no subjects, or masks of a name that is no subject.
    """
    given = dict(masks or {})
    if not subjects or set(given) - set(subjects):
        raise ValueError(
            f"masks of {sorted(set(given) - set(subjects))} without references" if given else "no subjects"
        )
    maps = [heatmaps(metric, refs, target, masks=given.get(name), **options)[0] for name, refs in subjects.items()]
    together = torch.stack(maps)
    if share is not None:
        together = compete(together, share, temperature)
    return dict(zip(subjects, together, strict=True))


def compete(maps: Tensor, share: Literal["softmax", "argmax"] = "softmax", temperature: float = 0.1) -> Tensor:
    """Each place divided among subjects: maps (S, H, W) of cosines to shares (S, H, W) that sum to 1.

    "softmax" of cosine / temperature, or all to the most similar ("argmax"; of several, to the first). Places that
    show none of the subjects are divided too: look at the cosines for that.

    Raises:
        ValueError: for another rule, or a temperature that is not above 0.
    """
    if share == "argmax":
        return F.one_hot(maps.argmax(0), len(maps)).movedim(-1, 0).to(maps)
    if share != "softmax" or not temperature > 0:
        raise ValueError(f"share must be softmax, at a temperature above 0, or argmax; got {share!r}, {temperature}")
    return (maps / temperature).softmax(0)


# Tokens


def patch_similarity(subject: Embedding, targets: Embedding, match: Match = "prototype") -> Tensor:
    """Similarity (T, P) of each target's patch tokens to the subject that all images of `subject` show.

    Raises:
        ValueError: without patch tokens, for embeddings of two models, or an unknown match.
    """
    if match not in MATCHES:
        raise ValueError(f"unknown match {match!r}: choose {', '.join(MATCHES)}")
    if subject.model and targets.model and subject.model != targets.model:
        raise ValueError(f"embeddings of two models cannot be compared: {subject.model} and {targets.model}")
    theirs = F.normalize(_tokens(targets), dim=-1)
    if match == "nearest":
        own = F.normalize(_tokens(subject), dim=-1)
        maps = []
        for tokens, inside in zip(own, covered(subject), strict=True):
            maps.append((theirs @ tokens[inside].T).amax(-1))
        return torch.stack(maps).mean(0)
    return (theirs @ prototypes(subject, match).T).mean(-1)


def prototypes(subject: Embedding, match: Match = "prototype") -> Tensor:
    """What tokens are multiplied with, for each image (R, D): see the module. Not for "nearest", which has many."""
    own = F.normalize(_tokens(subject), dim=-1)
    weights = own.new_ones(own.shape[:2]) if subject.weights is None else subject.weights.to(own)
    mean = (own * (weights / weights.sum(1, keepdim=True))[..., None]).sum(1)
    if match == "mean":
        return mean
    if match == "mean_max":
        inside = covered(subject)[..., None]
        top = own.masked_fill(~inside, -math.inf).amax(1)
        mean = ((own * inside).sum(1) / inside.sum(1) + top) / 2
    return F.normalize(mean, dim=-1)


def covered(subject: Embedding) -> Tensor:
    """Patches (R, P) that belong to the subject: covered by half, or where none is, those covered most."""
    tokens = _tokens(subject)
    if subject.weights is None:
        return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return subject.weights >= subject.weights.amax(1, keepdim=True).clamp(max=0.5)


def _tokens(embedding: Embedding, metric: Embedder | None = None) -> Tensor:
    if embedding.patches is None:
        name = metric.label if metric is not None else embedding.model or "the embedding"
        raise ValueError(
            f"{name} has no patch tokens: a map needs a model with them (IDSim, NearID, VisIDEmbed, Backbone), and an "
            "embedding made with patches=True"
        )
    return embedding.patches if embedding.patches.dtype == torch.float64 else embedding.patches.float()


# Places


def layout(metric: Embedder, height: int, width: int, embedded: Embedding) -> Layout:
    """How the patches of an image of that size lie, given its embedding (of this one image, without a mask)."""
    seen = metric.size_for(height, width)
    if embedded.grid is None:  # VisIDEmbed: square cells, as many as have weight
        count = _tokens(embedded).shape[1] if embedded.weights is None else int((embedded.weights[0] > 0).sum())
        side = math.isqrt(seen[0] * seen[1] // count)
        return Layout((seen[0] // side, seen[1] // side), seen, seen)
    embed = getattr(getattr(metric, "backbone", None), "patch_embed", None)
    sides = getattr(embed, "patch_size", None)
    if isinstance(sides, tuple) and tuple(s // p for s, p in zip(seen, sides, strict=True)) == embedded.grid:
        return Layout(embedded.grid, seen, (embedded.grid[0] * sides[0], embedded.grid[1] * sides[1]))
    return Layout(embedded.grid, seen, seen)


def on_grid(values: Tensor, where: Layout) -> Tensor:
    """One image's patch values (P,) as (rows, columns); those that fill a batch up are dropped."""
    return values[: where.grid[0] * where.grid[1]].reshape(where.grid)


def spread(grid: Tensor, where: Layout, size: tuple[int, int]) -> Tensor:
    """Values (..., rows, columns) at the pixels (..., H, W) of the image: bilinear, level beyond the outer centres."""
    y, x = (
        (torch.arange(n, device=grid.device, dtype=grid.dtype) + 0.5) / n / s * 2 - 1
        for n, s in zip(size, where.share, strict=True)
    )
    places = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    flat = grid.reshape(1, -1, *where.grid)
    found = F.grid_sample(flat, places[None], mode="bilinear", padding_mode="border", align_corners=False)
    return found.reshape(*grid.shape[:-2], *size)


def coverage(mask: ImageLike | Tensor, where: Layout) -> Tensor:
    """How much of each patch (rows, columns) a mask of the whole image covers."""
    seen = read_mask(mask, where.seen)[: where.covered[0], : where.covered[1]]
    return F.adaptive_avg_pool2d(seen[None], where.grid)[0]
