"""How different are the images of a set, and how far apart are two sets, such as real and generated photos?

`mean_pairwise_distance` and `vendi_score` take the similarities of a set's images to each other.

CMMD, the Frechet distance and the similarity of centroids compare sets, and see what pairs cannot: a generator that
draws one good image again and again. They need images to do so; `idmetric eval sets` measures how many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_SIGMA, _SCALE = 10.0, 1000.0  # of CMMD


def mean_pairwise_distance(similarities: ArrayLike) -> float:
    """Mean of 1 - similarity over all unordered pairs; higher = more different.

    Args:
        similarities: (N, N), N >= 2; the diagonal is not read.
    """
    s = np.asarray(similarities, dtype=np.float64)
    is_pair = ~np.eye(len(s), dtype=bool)
    return float(1 - s[is_pair].mean())


def vendi_score(similarities: ArrayLike) -> float:
    """Effective number of different images, 1..N: exp(-sum(l log l)) over the eigenvalues l of K / N.

    Args:
        similarities: K (N, N), positive semi-definite with ones on the diagonal, such as cosines of embeddings.

    References:
        Friedman and Dieng, "The Vendi Score: A Diversity Evaluation Metric for Machine Learning", TMLR 2023, eq. 1.
    """
    k = np.asarray(similarities, dtype=np.float64)
    symmetric = (k + k.T) / 2
    values = np.linalg.eigvalsh(symmetric / len(k))
    positive = values[values > 1e-12]
    entropy = -(positive @ np.log(positive))
    return float(np.exp(entropy))


# Two sets


def cmmd(x: ArrayLike, y: ArrayLike) -> float:
    """1000 times the squared maximum mean discrepancy of a Gaussian kernel of sigma 10; lower = more alike.

    MMD^2 = mean k(x, x') + mean k(y, y') - 2 mean k(x, y), with k(a, b) = exp(-|a - b|^2 / (2 sigma^2)), without the
    pairs of an image with itself (Gretton et al. 2012, eq. 3): on average 0 for sets of one kind, below 0 by chance.

    This is the estimator of CMMD's paper (Jayasumana et al. 2024, arXiv 2401.09603), on CLIP's unit-length features.
    Its released code (google-research/cmmd/distance.py) keeps these pairs (Gretton et al., eq. 5), which adds about
    10 (1 - mean cosine) (1 / N + 1 / M).

    With such a wide kernel, the value is close to 10 times the squared distance of the two means: it says little about
    the spread of a set.

    Args:
        x: (N, D). y: (M, D). N and M are at least 2.
    """
    from scipy.spatial.distance import cdist

    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)

    def kernel(left: Array, right: Array) -> Array:
        squared: Array = cdist(left, right, "sqeuclidean")
        return np.exp(-squared / (2 * _SIGMA**2))

    def mean_within(images: Array) -> float:
        """Mean over ordered pairs of different images; the kernel of an image with itself is 1."""
        count = len(images)
        total = kernel(images, images).sum() - count
        return float(total / (count * (count - 1)))

    within = mean_within(a) + mean_within(b)
    between = kernel(a, b).mean()
    return float(_SCALE * (within - 2 * between))


def frechet_distance(x: ArrayLike, y: ArrayLike) -> float:
    """Frechet distance of Gaussians with the sets' means and covariances, 0 for equal ones; lower = more alike.

    |m_x - m_y|^2 + tr(C_x + C_y - 2 (C_x C_y)^(1/2)) (Dowson and Landau 1982; Heusel et al. 2017, eq. 6, as FID), with
    covariances over N - 1. It equals FID's formula but not FID, which takes features of Inception.

    N images span N - 1 dimensions. With fewer than D, the covariance is singular and the distance much too high (Chong
    and Forsyth 2020): compare values of equal N and M only.

    Args:
        x: (N, D). y: (M, D). N and M are at least 2.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    root_a, root_b = _root(a), _root(b)
    # C_x C_y has the eigenvalues of (A B^T) (A B^T)^T for C_x = A^T A and C_y = B^T B
    common = np.linalg.norm(root_a @ root_b.T, "nuc")
    difference = a.mean(0) - b.mean(0)
    means = np.square(difference).sum()
    traces = np.square(root_a).sum() + np.square(root_b).sum()
    covariances = traces - 2 * common
    return float(max(0.0, means + covariances))


def centroid_similarity(x: ArrayLike, y: ArrayLike) -> float:
    """Cosine of the sets' mean vectors, in [-1, 1]; higher = more alike.

    Args:
        x: (N, D). y: (M, D), of unit length, so that images count equally.
    """
    centroid_a = np.asarray(x).mean(0)
    centroid_b = np.asarray(y).mean(0)
    length = np.linalg.norm(centroid_a) * np.linalg.norm(centroid_b)
    cosine = centroid_a @ centroid_b / length
    return float(np.clip(cosine, -1, 1))


def _root(x: Array) -> Array:
    """A matrix A (at most D rows) with A^T A = the covariance of x."""
    centered = x - x.mean(0)
    root: Array = centered / np.sqrt(len(x) - 1)
    if len(x) <= x.shape[1]:
        return root
    return np.asarray(np.linalg.qr(root, mode="r"))
