"""Sinkhorn distance again, one float64 number at a time: slow, obvious, and sharing no code with the package."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def cost_matrix(x: Array, y: Array) -> Array:
    return np.array([[((p - q) ** 2).sum() / 2 for q in y] for p in x])


def bounding_box(x: Array, y: Array) -> float:
    both = np.concatenate([x, y])
    return float(np.sqrt(((both.max(0) - both.min(0)) ** 2).sum()))


def softmin(cost: Array, weights: Array, potential: Array, eps: float) -> Array:
    """-eps log sum_j w_j exp((g_j - C_ij) / eps) for each i; tokens of weight zero are left out of the sum."""
    result = []
    for row in cost:
        exponents = [(g - c) / eps for c, g, w in zip(row, potential, weights, strict=True) if w > 0]
        positive = [w for w in weights if w > 0]
        top = max(exponents)
        total = sum(w * np.exp(e - top) for e, w in zip(exponents, positive, strict=True))
        result.append(-eps * (top + np.log(total)))
    return np.array(result)


def schedule(diameter: float, blur: float, scaling: float) -> list[float]:
    temperatures, eps = [diameter**2], diameter**2
    while eps > blur**2 * (1 + 1e-9):
        temperatures.append(eps)
        eps *= scaling**2
    return [*temperatures, blur**2]


def transport(x: Array, y: Array, u: Array, v: Array, temperatures: list[float]) -> tuple[float, Array, Array]:
    """OT(x, y) and its gradient in the tokens x and in the tokens y, each with the other side held."""
    cost = cost_matrix(x, y)
    f = softmin(cost, v, np.zeros(len(y)), temperatures[0])
    g = softmin(cost.T, u, np.zeros(len(x)), temperatures[0])
    for eps in temperatures:
        new_f, new_g = softmin(cost, v, g, eps), softmin(cost.T, u, f, eps)
        f, g = (f + new_f) / 2, (g + new_g) / 2
    last_f, last_g = softmin(cost, v, g, eps), softmin(cost.T, u, f, eps)
    grad_x, grad_y = np.zeros_like(x), np.zeros_like(y)
    for i in range(len(x)):
        for j in range(len(y)):
            if u[i] * v[j] == 0:
                continue  # potentials of masked tokens mean nothing
            grad_x[i] += u[i] * v[j] * np.exp((last_f[i] + g[j] - cost[i, j]) / eps) * (x[i] - y[j])
            grad_y[j] += u[i] * v[j] * np.exp((f[i] + last_g[j] - cost[i, j]) / eps) * (y[j] - x[i])
    return float(u @ last_f + v @ last_g), grad_x, grad_y


def sinkhorn(
    x: Array,
    y: Array,
    u: Array | None = None,
    v: Array | None = None,
    *,
    blur: float = 0.05,
    scaling: float = 0.5,
    diameter: float | None = 2.0,
    debias: bool = True,
) -> tuple[float, Array, Array]:
    """Distance of two sets of tokens (N, D), (M, D), and its gradients in x and y."""
    u = np.ones(len(x)) if u is None else u
    v = np.ones(len(y)) if v is None else v
    u, v = u / u.sum(), v / v.sum()
    kept_x, kept_y = x[u > 0], y[v > 0]
    temperatures = schedule(bounding_box(kept_x, kept_y) if diameter is None else diameter, blur, scaling)
    value, grad_x, grad_y = transport(x, y, u, v, temperatures)
    if debias:
        # Each half of OT(x, x)'s gradient sees one side move, so the two halves together give it whole.
        value_x, left_x, right_x = transport(x, x, u, u, temperatures)
        value_y, left_y, right_y = transport(y, y, v, v, temperatures)
        value -= (value_x + value_y) / 2
        grad_x = grad_x - (left_x + right_x) / 2
        grad_y = grad_y - (left_y + right_y) / 2
    return value, grad_x, grad_y
