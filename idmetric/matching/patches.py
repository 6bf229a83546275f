"""Cosine similarity of patch tokens to a subject, and the places of patches in an image.

A mask of the reference weights its patches by how much of them it covers. `match` selects the comparison of a patch of
the target with the reference, u_i being the reference's tokens at unit length and w_i their weights, summing to 1:

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
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.embedding import Embedding, same_model

Match = Literal["prototype", "mean", "mean_max", "nearest"]
MATCHES: tuple[Match, ...] = get_args(Match)


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


def patch_similarity(subject: Embedding, targets: Embedding, match: Match = "prototype") -> Tensor:
    """Similarity (T, P) of each target's patch tokens to the subject that all images of `subject` show.

    Raises:
        ValueError: without patch tokens, for embeddings of two models, or an unknown match.
    """
    if match not in MATCHES:
        raise ValueError(f"unknown match {match!r}: choose {', '.join(MATCHES)}")
    if not same_model(subject.model, targets.model):
        raise ValueError(f"embeddings of two models cannot be compared: {subject.model} and {targets.model}")
    target_tokens = _unit_tokens(targets)
    if match != "nearest":
        return (target_tokens @ prototypes(subject, match).T).mean(-1)

    maps = []
    subject_tokens = _unit_tokens(subject)
    is_covered = covered(subject)
    for i in range(len(subject)):
        cosines = target_tokens @ subject_tokens[i, is_covered[i]].T
        maps.append(cosines.amax(-1))
    return torch.stack(maps).mean(0)


def prototypes(subject: Embedding, match: Match = "prototype") -> Tensor:
    """The prototype of each image (R, D), by which tokens are multiplied; "nearest" has none: see the module."""
    tokens = _unit_tokens(subject)
    weights = tokens.new_ones(tokens.shape[:2])
    if match == "mean_max":
        weights = covered(subject).to(tokens)
    elif subject.weights is not None:
        weights = subject.weights.to(tokens)
    shares = weights / weights.sum(1, keepdim=True)
    mean = (tokens * shares[..., None]).sum(1)
    if match == "mean":
        return mean
    if match == "mean_max":
        is_outside = (weights == 0)[..., None]
        maximum = tokens.masked_fill(is_outside, -math.inf).amax(1)
        mean = (mean + maximum) / 2
    return F.normalize(mean, dim=-1)


def _unit_tokens(embedding: Embedding) -> Tensor:
    return F.normalize(patch_tokens(embedding), dim=-1)


def covered(subject: Embedding) -> Tensor:
    """Patches (R, P) that belong to the subject: covered by half, or where none is, those covered most."""
    tokens = patch_tokens(subject)
    if subject.weights is None:
        return tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
    most = subject.weights.amax(1, keepdim=True)
    return subject.weights >= most.clamp(max=0.5)


def patch_tokens(embedding: Embedding, name: str = "") -> Tensor:
    """Patch tokens in float32 or better; ValueError without them, with the model's name (default: the embedding's)."""
    if embedding.patches is None:
        raise ValueError(
            f"{name or embedding.model or 'the embedding'} has no patch tokens: a map needs a model with them (IDSim, "
            "NearID, VisIDEmbed, Backbone), and an embedding made with patches=True"
        )
    return embedding.patches.to(torch.promote_types(embedding.patches.dtype, torch.float32))
