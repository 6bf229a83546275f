"""Rewards of several subjects, with the gradients of the table of `match`: for training generators.

found = idmetric.match(metric, {"ann": "ann.jpg", "rex": "rex.jpg"}, pixels, regions=boxes)  # pixels that require grad
loss = 1 - umo_reward(found.table).mean()
loss = 1 - assigned_similarities(found.table).amin(1).mean()  # of the worst subject
"""

from __future__ import annotations

import torch
from torch import Tensor

from idmetric.matching.published import assigned_cells
from idmetric.matching.table import Table
from idmetric.scoring.references import Aggregate


def umo_reward(table: Table, aggregate: Aggregate = "best") -> Tensor:
    """UMO's multi-identity matching reward (T,) of each image; see `idmetric.matching.published.umo_reward`.

    The mean over subjects and regions of the similarity, with a minus where not assigned; in -1..1, higher is better,
    but a picture in which a subject is missing may have a higher one. The assignment is a constant of the gradient.
    """
    rewards = []
    for similarity in _similarities(table, aggregate):
        compared = ~similarity.isnan()
        signed = torch.where(_assigned(similarity), similarity, -similarity)
        rewards.append(signed[compared].mean() if compared.any() else similarity.new_zeros(()))
    return torch.stack(rewards)


def assigned_similarities(table: Table, aggregate: Aggregate = "best") -> Tensor:
    """The similarity 1 - distance (T, S) of each subject to its region; 0 for a subject without one.

    Regions are assigned so that the sum of similarities is largest. The assignment is a constant of the gradient.
    """
    rows = []
    for similarity in _similarities(table, aggregate):
        assigned = torch.where(_assigned(similarity), similarity, torch.zeros_like(similarity))
        rows.append(assigned.sum(1))
    return torch.stack(rows)


def _similarities(table: Table, aggregate: Aggregate) -> list[Tensor]:
    """Of each image, (S, R) of the regions that it has; NaN where nothing was compared."""
    similarities = 1 - table.over_references(aggregate)
    return [similarities[time, :, : len(regions)] for time, regions in enumerate(table.regions)]


def _assigned(similarity: Tensor) -> Tensor:
    """The cells (S, R) of the assignment."""
    cells = assigned_cells(similarity.detach().cpu().double().numpy())
    return torch.from_numpy(cells).to(similarity.device)
