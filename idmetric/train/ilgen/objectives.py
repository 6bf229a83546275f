"""ILGen's losses as modules: a batch's embeddings and what was drawn to a scalar (section 3.3, Table 6, supplement B).

Each takes embeddings (S, P, D), S samples of P images over all processes, and a `Drawn`; it gives {"loss": ...,
"accuracy": ...}, the latter for the log alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idmetric.data.manifest.table import Manifest
from idmetric.losses.arrays import cosines
from idmetric.losses.contrastive import contrastive, hardest_negatives
from idmetric.losses.info_nce import label_info_nce
from idmetric.losses.recall_at_k import batch_recall_at_k
from idmetric.losses.softmax_margin import softmax_margin
from idmetric.models.embedder import Embedder
from idmetric.train.ilgen.batches import Drawn
from idmetric.train.ilgen.data import Classes
from idmetric.train.processes import Processes
from idmetric.train.validate import embed_shared


class RecallAtK(nn.Module):
    """Recall@k of the queries against the other images of the batch; see `losses.recall_at_k`.

    "accuracy" is the share of queries whose nearest image is of their class.
    """

    def __init__(
        self, ks: Sequence[int], rank_temperature: float, recall_temperature: float, query_in_database: bool
    ) -> None:
        super().__init__()
        self.options = {
            "ks": tuple(ks), "rank_temperature": rank_temperature, "recall_temperature": recall_temperature,
            "query_in_database": query_in_database,
        }  # fmt: skip

    def forward(self, embedded: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        x = embedded[:, 0]
        loss = batch_recall_at_k(x, drawn.label, query=drawn.query, **self.options)  # type: ignore[arg-type]  # as named
        return {"loss": loss, "accuracy": nearest_accuracy(x, drawn)}


class InfoNCE(nn.Module):
    """Every image of the batch is a query, "accuracy" is as for recall@k; see `losses.info_nce.label_info_nce`."""

    def __init__(self, temperature: float, siblings: bool) -> None:
        super().__init__()
        self.temperature, self.siblings = temperature, siblings

    def forward(self, embedded: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        x = embedded[:, 0]
        loss = label_info_nce(x, drawn.label, temperature=self.temperature, siblings=self.siblings)
        return {"loss": loss, "accuracy": nearest_accuracy(x, drawn)}


class Contrastive(nn.Module):
    """Query, positive and mined negative; "accuracy" is the share of queries whose positive is nearer.

    `hardest` (C * N,) holds the hardest negative of each image, as last mined. It is a buffer, so that checkpoints
    have it.
    """

    def __init__(self, count: int, margin: float) -> None:
        super().__init__()
        self.margin = margin
        self.hardest: Tensor
        self.register_buffer("hardest", torch.full((count,), -1, dtype=torch.int64))

    def forward(self, embedded: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        query, other = embedded[:, :1], embedded[:, 1:]
        similarity = cosines(query, other)[:, 0]
        loss = contrastive(similarity[:, 0], similarity[:, 1:], margin=self.margin)
        return {"loss": loss, "accuracy": (similarity[:, 0] > similarity[:, 1]).float().mean().detach()}


class SoftmaxMargin(nn.Module):
    """Classification of instances with a prototype (C, D) of each; "accuracy" is that of the classifier.

    Prototypes begin as the weight of a linear layer would (the paper is silent).
    """

    def __init__(self, count: int, width: int, scale: float, margin: float, seed: int) -> None:
        super().__init__()
        self.scale, self.margin = scale, margin
        random = torch.Generator().manual_seed(seed)
        self.prototype = nn.Parameter((torch.rand(count, width, generator=random) * 2 - 1) / width**0.5)

    def forward(self, embedded: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        x = embedded[:, 0]
        loss = softmax_margin(x, self.prototype, drawn.label, scale=self.scale, margin=self.margin)
        with torch.no_grad():
            right = cosines(x, self.prototype).argmax(1) == drawn.label
        return {"loss": loss, "accuracy": right.float().mean()}


@torch.no_grad()
def nearest_accuracy(x: Tensor, drawn: Drawn) -> Tensor:
    """Share of queries whose nearest other image of the batch (S, D) is of their class."""
    similarity = cosines(x[drawn.query], x)
    similarity.scatter_(1, drawn.query[:, None], -torch.inf)
    return (drawn.label[similarity.argmax(1)] == drawn.label[drawn.query]).float().mean()


def mine(model: Embedder, data: Manifest, classes: Classes, processes: Processes, batch_size: int) -> Tensor:
    """Number (C * N,) of the most similar image of another class, of each image ("the hardest one in the dataset").

    All images are embedded as they are, without augmentation, by the model as it is now; processes share the work.
    """
    count = len(classes.flat)
    each = -(-count // processes.count)
    own = ((torch.arange(each) + processes.rank * each) % count).to(processes.device)  # the last share is filled up
    with processes.autocast():
        vectors = embed_shared(model, data, classes.flat, processes, batch_size=batch_size)
    x = torch.from_numpy(vectors).float().to(processes.device)
    label = torch.arange(count, device=x.device) // classes.images
    found = hardest_negatives(x[own], x, label[own], label)
    return processes.gather(found)[:count]
