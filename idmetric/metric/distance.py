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
from typing import TYPE_CHECKING, Any, Literal, get_args

from idmetric.metric.embedding import Embedding, same_model
from idmetric.metric.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor

DistanceName = Literal["cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased"]
DISTANCES: tuple[DistanceName, ...] = get_args(DistanceName)

# Arguments of the Sinkhorn solver; the diameter 2 bounds any two unit vectors, so a pair's value is its own.
_SINKHORN: dict[str, dict[str, Any]] = {
    "patch": {"blur": 0.05, "scaling": 0.5, "diameter": 2.0, "debias": True},
    "patch_biased": {"blur": 0.05, "scaling": 0.05, "diameter": None, "debias": False},
}


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
    _check_comparable(a, b)
    if len(a) != len(b) and 1 not in (len(a), len(b)):
        raise ValueError(
            f"cannot compare {len(a)} images with {len(b)} one by one: give equal numbers, or one image on one side; "
            "for all pairs use pairwise"
        )
    return _of_kind(a, b, check_name(name), joint_weight, matrix=False)


def distance_matrix(
    a: Embedding,
    b: Embedding | None = None,
    name: str = "cls",
    *,
    joint_weight: float = 1.0,
    self_b: Tensor | None = None,
) -> Tensor:
    """Distances of every image of a to every image of b (default: a itself), shape (N, M).

    Each image's own Sinkhorn term is computed once; `self_b` gives those of b, where they are at hand (`self_terms`).
    Arguments, direction and errors as in `distance`.
    """
    if b is None:
        b = a
    _check_comparable(a, b)
    return _of_kind(a, b, check_name(name), joint_weight, matrix=True, self_b=self_b)


def _of_kind(
    a: Embedding, b: Embedding, kind: DistanceName, joint_weight: float, matrix: bool, self_b: Tensor | None = None
) -> Tensor:
    if not 0 <= joint_weight < math.inf:  # NaN too
        raise ValueError(f"joint_weight must be a finite number of at least 0, got {joint_weight}")
    from idmetric.metric.cosine import cosine_distance, cosine_matrix

    cosine = cosine_matrix if matrix else cosine_distance
    if kind == "cls":
        return cosine(a.cls, b.cls)
    if kind == "patch_pooled":
        return cosine(_pooled(a), _pooled(b))
    if kind == "joint_pooled":
        return cosine(a.cls, b.cls) + cosine(_pooled(a), _pooled(b))
    if kind == "joint":
        transport = _sinkhorn(a, b, "patch", matrix, self_b)
        return cosine(a.cls, b.cls) + joint_weight * transport
    return _sinkhorn(a, b, kind, matrix, self_b)


def self_terms(embedding: Embedding, name: str) -> Tensor | None:
    """The terms (B, P) that debiasing subtracts for each image; compute them once for images compared often (`self_b`).

    None for distances without such a term.
    """
    if check_name(name) not in ("patch", "joint"):
        return None
    from idmetric.metric.sinkhorn import self_potential

    options = {key: _SINKHORN["patch"][key] for key in ("blur", "scaling", "diameter")}
    return self_potential(_tokens(embedding), embedding.weights, **options)


def _sinkhorn(a: Embedding, b: Embedding, kind: str, matrix: bool, self_b: Tensor | None) -> Tensor:
    from idmetric.metric.sinkhorn import sinkhorn_distance, sinkhorn_matrix

    x = _tokens(a)
    y = x if b is a else _tokens(b)  # the matrix of one tensor with itself takes half the time
    options = dict(_SINKHORN[kind], weights_a=a.weights, weights_b=b.weights)
    if matrix:
        return sinkhorn_matrix(x, y, self_b=self_b, **options)
    return sinkhorn_distance(x, y, **options)


def _pooled(embedding: Embedding) -> Tensor:
    """The mean of each image's tokens, weighted where a mask selects the subject."""
    tokens = _tokens(embedding)
    if embedding.weights is None:
        return tokens.mean(1)
    weights = embedding.weights.to(tokens.dtype)
    sums = (tokens * weights.unsqueeze(2)).sum(1)
    return sums / weights.sum(1, keepdim=True)


def _tokens(embedding: Embedding) -> Tensor:
    """The patch tokens at unit length."""
    from idmetric.metric.cosine import unit

    if embedding.patches is None:
        raise ValueError("this distance compares patch tokens, which the embedding lacks: embed with patches=True")
    return unit(embedding.patches)


def _check_comparable(a: Embedding, b: Embedding) -> None:
    if not same_model(a.model, b.model):
        raise ValueError(f"embeddings of different models cannot be compared: {a.model} and {b.model}")
