"""A few steps of each recipe on painted pictures, and the losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from differential_cases import Case, Results, command, gradient, same, workspace
from differential_cases import generator as numpy_generator

EXTRA = ("accelerate", "peft", "pyarrow", "sklearn", "transformers")


def trained(recipe: str, *more: str) -> Results:
    """Train by a smoke run and summarize each tensor of the weights that it writes."""
    from safetensors.numpy import load_file

    with workspace():
        status, _, err = command(f"train {recipe} --smoke --cpu --quiet --out run", *more)
        if status:
            raise RuntimeError(err)
        results: dict[str, Any] = {}
        for file in sorted(Path("run").glob("*.safetensors")) or sorted(Path("run").rglob("model*.safetensors")):
            for name, tensor in sorted(load_file(file).items()):
                results[name] = summary(tensor)
        if not results:
            raise RuntimeError(f"{recipe} wrote no weights: {sorted(Path('run').rglob('*'))}")
        return results


def summary(tensor: np.ndarray) -> list[float]:
    """Return the size of a tensor and two random sums of it, in which a change anywhere shows."""
    values = tensor.astype(np.float64).ravel()
    signs = numpy_generator(f"{values.size}").choice([-1.0, 1.0], (2, values.size))
    return [float(np.linalg.norm(values)), *(signs @ values / max(1, values.size) ** 0.5)]


def unit(name: str, *shape: int) -> torch.Tensor:
    """Return random unit vectors."""
    values = torch.from_numpy(numpy_generator(name).standard_normal(shape))
    return torch.nn.functional.normalize(values, dim=-1)


def recall_at_k() -> Results:
    from idmetric.train.losses.recall_at_k import batch_recall_at_k

    vectors = unit("recall", 24, 16).requires_grad_()
    return with_gradient(batch_recall_at_k(vectors, torch.arange(24) // 4), vectors)


def near_id() -> Results:
    """All three terms, with a slot that is not valid."""
    from idmetric.train.losses.near_id import Tuples, near_id

    anchors = unit("anchors", 6, 16).requires_grad_()
    valid = torch.ones(6, 3, dtype=torch.bool)
    valid[2, 1] = False
    tuples = Tuples(anchors, unit("positives", 6, 2, 16), unit("distractors", 6, 3, 16), distractor_valid=valid)
    return with_gradient(near_id(tuples, beta=0.1), anchors)


def info_nce() -> Results:
    from idmetric.train.losses.info_nce import info_nce, label_info_nce

    vectors = unit("labels", 24, 16).requires_grad_()
    results = dict(with_gradient(label_info_nce(vectors, torch.arange(24) // 4), vectors))
    rng = numpy_generator("similarities")
    positive, negative = torch.from_numpy(rng.uniform(-1, 1, 8)), torch.from_numpy(rng.uniform(-1, 1, (8, 5)))
    results["pairs"] = info_nce(positive, negative, margin=0.1)
    return results


def with_gradient(loss: torch.Tensor, vectors: torch.Tensor) -> Results:
    """Return a loss and its gradient."""
    loss.backward()  # type: ignore[no-untyped-call]
    assert vectors.grad is not None
    return {"loss": loss.detach(), **gradient(vectors.grad)}


def recipe(name: str, *more: str) -> Case:
    # the steps of an optimizer multiply rounding errors
    return same(name, lambda: trained(name, *more), 1e-5, relative=True, needs=EXTRA, slow=True)


CASES = [
    same("losses/recall at k", recall_at_k, 1e-9),
    same("losses/near id", near_id, 1e-9),
    same("losses/info nce", info_nce, 1e-9),
    recipe("idsim"),
    recipe("nearid", "--steps", "5"),
    recipe("visme", "--steps", "5"),
    recipe("ilgen"),
]
