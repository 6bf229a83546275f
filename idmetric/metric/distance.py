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

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from idmetric.metric.embedding import Embedding, same_model
from idmetric.metric.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor


# The rule for equal scores, and a check for arrays of numbers.

Numbers = NDArray[Any]  # any float type: large float32 arrays are not copied

# Scores that agree in so many decimals are equal. The cosine of one pair of images moves by about 1e-7 in float32, and
# by 1e-16 in float64, with the block, the thread and the place in a batch: noise must not rank copies of an image.
DIGITS = 6
STEP = 10.0**-DIGITS


def comparable(scores: ArrayLike) -> NDArray[np.float64]:
    """Scores of any shape, rounded as everything that ranks, counts hits or applies a threshold compares them.

    A margin is rounded after its subtraction: two scores that differ by noise then tie, wherever they lie.

    >>> comparable([0.1234561, 0.1234564]).tolist()
    [0.123456, 0.123456]
    """
    array = np.asarray(scores, dtype=np.float64)
    return array.round(DIGITS)


def numbers(name: str, values: ArrayLike, ndim: int = 1) -> Numbers:
    """Values as a non-empty array of finite floats with `ndim` dimensions; float32 stays float32.

    Raises:
        ValueError: naming the argument and, for a value that is not finite, its place.
    """
    x = np.asarray(values)
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    if x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension{'s' * (ndim > 1)}, got shape {x.shape}")
    if not x.size:
        raise ValueError(f"{name} must not be empty, got shape {x.shape}")

    is_bad = ~np.isfinite(x)
    bad_indices = np.argwhere(is_bad)
    if len(bad_indices):
        index = tuple(bad_indices[0].tolist())
        position = index[0] if ndim == 1 else index
        raise ValueError(f"{name} must be finite, but {len(bad_indices)} are not, the first {x[index]} at {position}")

    return x


# Cosine distance of features, precise near 0 and where products of float32 are taken with less precision.


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos(a, b) along the last axis.

    Args:
        a, b: features, shape (..., D), broadcast against each other. Computed in float32 or better.

    Returns:
        Shape (...), range [0, 2]; 0 = same direction, 1 where one of them is zero.
    """
    # for unit vectors 1 - cos = |a - b|^2 / 2, which is exactly 0 for equal ones and precise near it
    x = unit(a)
    y = unit(b)
    half_squares = (x - y).square().sum(-1) / 2
    return half_squares + _lost(x) + _lost(y)


def _lost(unit: Tensor) -> Tensor:
    """The share that a vector of zeros is missing in |a - b|^2 / 2 = 1 - a.b: half of its unit length squared."""
    squares = unit.square().sum(-1)
    lost = (1 - squares) / 2
    return lost.where(lost > 0.25, 0)  # of all others it is rounding


def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos of every row of a (N, D) with every row of b (M, D): shape (N, M), range [0, 2]."""
    if torch.compiler.is_compiling():  # which cannot ask how precise products are
        return cosine_distance(a[:, None], b[None])
    with torch.autocast(a.device.type, enabled=False):
        x = unit(a)
        y = unit(b)
        distances = 1 - product(x, y.T)
        return distances.clamp_min(0)  # rounding may leave -1e-7


def unit(x: Tensor) -> Tensor:
    """Vectors (..., D) at unit length, in float32 or better."""
    with torch.autocast(x.device.type, enabled=False):
        if x.dtype != torch.float64:
            x = x.float()
        return F.normalize(x, dim=-1)


def product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, in float64 where products of float32 are taken with less precision."""
    # TF32 keeps 3 digits of a product, which eps = 0.0025 would amplify. MPS has neither TF32 nor float64.
    is_reducible = x.dtype == torch.float32 and x.device.type != "mps"
    if is_reducible and _are_products_reduced():
        return torch.matmul(x.double(), y.double()).float()
    return torch.matmul(x, y)


def _are_products_reduced() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # raised when precision was set per backend: some backend is not at its highest
        return True


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
    pass

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
    pass

    if embedding.patches is None:
        raise ValueError("this distance compares patch tokens, which the embedding lacks: embed with patches=True")
    return unit(embedding.patches)


def _check_comparable(a: Embedding, b: Embedding) -> None:
    if not same_model(a.model, b.model):
        raise ValueError(f"embeddings of different models cannot be compared: {a.model} and {b.model}")
