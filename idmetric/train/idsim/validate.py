"""ID-Sim's two validations (B.1), and the accuracy of its triplets by patches (B.3)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from idmetric.data.manifest.table import Manifest
from idmetric.distance.matrix import distance
from idmetric.models.idsim import IDSim
from idmetric.train.batches import Pictures, generator
from idmetric.train.idsim.data import Triplets
from idmetric.train.processes import Processes
from idmetric.train.recipe import evaluating
from idmetric.train.validate import validation


def scores(
    model: IDSim,
    data: Manifest,
    triplets: Triplets,
    processes: Processes,
    *,
    patches: int,
    by_patches: bool,
    batch_size: int,
) -> dict[str, float]:
    """The measures of `validation` on the triplets' rows, the accuracy by patches, and "selection"; higher = better.

    "triplet" is the accuracy of the paper's Real Instance Validation, "auc" the ROC AUC of its Identity Validation;
    selection is their mean ("we use them jointly", B.1), or "triplet" if there are no edits of identity for "auc".

    Args:
        patches: number of triplets to compare by patches, see `patch_accuracy`; 0 = none.
        by_patches: select by "triplet_patch" alone, for a model without trained class features.
        batch_size: triplets embedded at once.
    """
    found = validation(model, data.take(triplets.used), batch_size=3 * batch_size, processes=processes)
    chosen = [found[name] for name in ("triplet", "auc") if name in found]
    if patches:
        found |= patch_accuracy(model, Pictures.of(model, data), triplets, patches, batch_size)
    if by_patches:
        chosen = [found["triplet_patch"]]
    return {**found, "selection": float(np.mean(chosen))}


@torch.no_grad()
def patch_accuracy(
    model: IDSim, pictures: Pictures, triplets: Triplets, limit: int, batch_size: int
) -> dict[str, float]:
    """Share of triplets in which the positive is nearer than the negative; a tie counts as wrong.

    Args:
        pictures: without augmentation. limit: most triplets, always the same. batch_size: triplets embedded at once.

    Returns:
        "triplet_patch" by the Sinkhorn distance of patches, "triplet_joint" by its sum with that of class features
        ("joint CLS+patch embedding", B.3).
    """
    chosen = generator("validation of patches").permutation(len(triplets))[:limit]
    right: dict[str, list[Tensor]] = {"patch": [], "joint": []}
    with evaluating(model), ThreadPoolExecutor(4) as pool:
        for start in range(0, len(chosen), batch_size):
            rows = triplets.rows[chosen[start : start + batch_size]].T
            pixels = torch.stack(list(pool.map(pictures.read, rows.ravel().tolist())))
            found, count = model(pixels.to(model.device)), rows.shape[1]
            anchor, positive, negative = (found[k * count : (k + 1) * count] for k in range(3))
            for kind, hits in right.items():
                hits.append(distance(anchor, positive, kind) < distance(anchor, negative, kind))
    return {f"triplet_{kind}": torch.cat(hits).float().mean().item() for kind, hits in right.items()}
