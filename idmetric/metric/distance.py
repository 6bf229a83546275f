"""Distances between embeddings. Lower means: more surely the same identity.

| name | meaning | range |
|---|---|---|
| `cls` | 1 - cos of the global features (ID-Sim Eq. 4) | [0, 2] |
| `patch` | debiased Sinkhorn distance of the L2-normalized patch tokens (ID-Sim Eq. 3); 0 for equal images | [0, 2] |
| `joint` | `cls` + `joint_weight` * `patch` (ID-Sim Eq. 1 weighs them 1:1) | [0, 4] |
| `patch_pooled` | 1 - cos of the mean of the L2-normalized tokens: the ID-Sim release's mode "patch" | [0, 2] |
| `joint_pooled` | `cls` + `patch_pooled`: the ID-Sim release's default mode "joint" | [0, 4] |
| `patch_biased` | the ID-Sim release's Sinkhorn: not debiased (an image is not at 0 from itself), ratio 0.05, \
diameter of each pair | [0, 2] |

The paper's benchmark numbers use `cls` ("All evaluations use the CLS embedding at inference", Fig. 25).

A global or pooled feature of zeros has no direction: its cosine with anything, itself included, counts as 0, so its
distance is 1, one by one as in a matrix. A zero token of `patch` is the point zero: at cost 1/2 from any unit vector.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

from idmetric.metric.embedding import Embedding, same_model
from idmetric.metric.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor

DistanceName = Literal["cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased"]
DISTANCES: tuple[DistanceName, ...] = get_args(DistanceName)


def needs_patches(name: str) -> bool:
    """Whether the distance looks at patch tokens."""
    return check_name(name) != "cls"


def check_name(name: str) -> DistanceName:
    """The name as a DistanceName; RequestError for an unknown one."""
    if name not in DISTANCES:
        raise RequestError(f"unknown distance {name!r}; choose one of {', '.join(DISTANCES)}")
    return name


def distance(a: Embedding, b: Embedding, name: str = "cls", *, joint_weight: float = 1.0) -> Tensor:
    """Distance of a's i-th image to b's i-th.

    Args:
        a, b: embeddings of one model; equal lengths, or one of them of length 1, which is compared with all.
        name: see this module's table.
        joint_weight: weight of the patch term of `joint` (ID-Sim Eq. 1's lambda; the paper uses 1).

    Returns:
        Shape (B,), float32 or better; lower = more alike.

    Raises:
        ValueError: for an unknown name, lengths that do not fit, different models, or missing patches.
    """
    count_a = len(a)
    count_b = len(b)
    if count_a != count_b and 1 not in (count_a, count_b):
        raise ValueError(
            f"cannot compare {count_a} images with {count_b} one by one: give equal numbers, or one image on one side; "
            "for all pairs use pairwise"
        )
    return _distances(a, b, name, joint_weight, matrix=False)


def distance_matrix(
    a: Embedding, b: Embedding | None = None, name: str = "cls", *, joint_weight: float = 1.0
) -> Tensor:
    """Distances of every image of a to every image of b (default: a itself), shape (N, M).

    Arguments, direction and errors as in `distance`.
    """
    if b is None:
        b = a
    return _distances(a, b, name, joint_weight, matrix=True)


def _distances(a: Embedding, b: Embedding, name: str, joint_weight: float, matrix: bool) -> Tensor:
    if not same_model(a.model, b.model):
        raise ValueError(f"embeddings of different models cannot be compared: {a.model} and {b.model}")
    if not 0 <= joint_weight < math.inf:  # NaN too
        raise ValueError(f"joint_weight must be a finite number of at least 0, got {joint_weight}")
    check_name(name)
    from idmetric.metric.cosine import cosine_distance, cosine_matrix

    cosine = cosine_matrix if matrix else cosine_distance
    if name == "cls":
        return cosine(a.cls, b.cls)
    if name == "patch_pooled":
        return cosine(_pooled(a), _pooled(b))
    if name == "joint_pooled":
        of_cls = cosine(a.cls, b.cls)
        of_pooled = cosine(_pooled(a), _pooled(b))
        return of_cls + of_pooled

    from idmetric.metric.sinkhorn import IDSIM, RELEASE, sinkhorn

    annealing = RELEASE if name == "patch_biased" else IDSIM
    transport = sinkhorn(
        _tokens(a),
        _tokens(b),
        a.weights,
        b.weights,
        matrix=matrix,
        annealing=annealing,
    )
    if name == "joint":
        return cosine(a.cls, b.cls) + joint_weight * transport
    return transport


def _tokens(embedding: Embedding) -> Tensor:
    """The patch tokens at unit length."""
    from idmetric.metric.cosine import unit

    if embedding.patches is None:
        raise ValueError("this distance compares patch tokens, which the embedding lacks: embed with patches=True")
    return unit(embedding.patches)


def _pooled(embedding: Embedding) -> Tensor:
    """The mean of each image's tokens, weighted where a mask selects the subject."""
    tokens = _tokens(embedding)
    if embedding.weights is None:
        return tokens.mean(1)
    weights = embedding.weights.to(tokens.dtype)
    return (tokens * weights.unsqueeze(2)).sum(1) / weights.sum(1, keepdim=True)
