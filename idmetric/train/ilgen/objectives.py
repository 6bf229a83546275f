"""ILGen's losses as modules (section 3.3, Table 6, supplement B).

Each takes embeddings (S, P, D), S samples of P images over all processes, and their `Drawn`. It returns {"loss": ...,
"accuracy": ...}; the accuracy is only logged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from idmetric.metric.embedder import Embedder
from idmetric.train.embed import embed_rows
from idmetric.train.ilgen.data import Classes, Drawn
from idmetric.train.losses.arrays import cosines
from idmetric.train.losses.ilgen_objectives import contrastive, hardest_negatives, softmax_margin
from idmetric.train.processes import Processes

if TYPE_CHECKING:
    from pandas import DataFrame


class Retrieval(nn.Module):
    """A loss of whole classes, such as recall@k: the images of a batch search each other.

    "accuracy" is the share of queries with the nearest image in their class.

    Args:
        loss: maps the embeddings (S, D) of a `Drawn` to a scalar.
    """

    def __init__(self, loss: Callable[[Tensor, Drawn], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, embedded: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        x = embedded[:, 0]
        return {"loss": self.loss(x, drawn), "accuracy": nearest_accuracy(x, drawn)}


class Contrastive(nn.Module):
    """Query, positive and mined negative; "accuracy" is the share of queries that are nearer to their positive.

    `hardest` (C * N,) holds the hardest negative of each image, as last mined. It is a buffer, so checkpoints hold it.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.hardest: Tensor
        self.register_buffer("hardest", torch.full((count,), -1, dtype=torch.int64))

    def forward(self, embedded: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        query = embedded[:, :1]
        candidates = embedded[:, 1:]
        similarity = cosines(query, candidates)[:, 0]
        to_positive = similarity[:, 0]
        to_negatives = similarity[:, 1:]
        is_nearer = to_positive > to_negatives[:, 0]
        return {"loss": contrastive(to_positive, to_negatives), "accuracy": is_nearer.float().mean().detach()}


class SoftmaxMargin(nn.Module):
    """Classification of instances by prototypes (C, D); "accuracy" is that of the classifier.

    Prototypes are initialized like the weight of a linear layer (the paper is silent).
    """

    def __init__(self, count: int, width: int, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.prototype = nn.Parameter((torch.rand(count, width, generator=random) * 2 - 1) / width**0.5)

    def forward(self, embedded: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        x = embedded[:, 0]
        loss = softmax_margin(x, self.prototype, drawn.label)
        with torch.no_grad():
            right = cosines(x, self.prototype).argmax(1) == drawn.label
        return {"loss": loss, "accuracy": right.float().mean()}


@torch.no_grad()
def nearest_accuracy(x: Tensor, drawn: Drawn) -> Tensor:
    """Share of queries for which the nearest other image of the batch (S, D) is of their class."""
    similarity = cosines(x[drawn.query], x)
    similarity.scatter_(1, drawn.query[:, None], -torch.inf)
    return (drawn.label[similarity.argmax(1)] == drawn.label[drawn.query]).float().mean()


def mine(model: Embedder, data: DataFrame, classes: Classes, processes: Processes, batch_size: int) -> Tensor:
    """For each image the number (C * N,) of the most similar image of another class ("the hardest one in the dataset").

    The current model embeds all images without augmentation; processes share the work.
    """
    count = len(classes.flat)
    share_size = math.ceil(count / processes.count)
    share = (torch.arange(share_size) + processes.rank * share_size) % count  # the last share is padded
    share = share.to(processes.device)
    with processes.autocast():
        vectors = embed_rows(model, data, classes.flat, batch_size, processes)
    x = torch.from_numpy(vectors).float().to(processes.device)
    label = torch.arange(count, device=x.device) // classes.images
    negatives = hardest_negatives(x[share], x, label[share], label)
    return processes.gather(negatives)[:count]
