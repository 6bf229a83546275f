"""Features of a manifest's rows during training, by one process or by all of a run together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import NonFiniteError
from idmetric.stream import embedding_of, items_of_images
from idmetric.train.batches import Rows
from idmetric.train.processes import Processes
from idmetric.train.recipe import evaluating

if TYPE_CHECKING:
    from pandas import DataFrame

Array = NDArray[np.float64]
_THREADS = 4  # for reading images


def embed_rows(
    model: Embedder,
    data: DataFrame,
    rows: Rows,
    batch_size: int = 32,
    processes: Processes | None = None,
) -> Array:
    """Unit-length global features (N, D) of rows, as `model.embed` makes them in eval mode; threads read the images.

    Args:
        processes: of a training run: each embeds some of the batches, and all get all features.

    Raises:
        ImageReadError: naming an image that cannot be read; TrainError in the other processes.
        ValueError: if a feature is zero or not finite; TrainError in the other processes.
    """
    if processes is None or processes.count == 1:
        return _embedded(model, data, rows, batch_size)
    share = math.ceil(len(rows) / (batch_size * processes.count)) * batch_size  # whole batches, as in one process
    start = processes.rank * share
    share_rows = rows[start : start + share] if start < len(rows) else rows[:1]  # without a share, to learn the width
    embedded = processes.together(lambda: _embedded(model, data, share_rows, batch_size))
    padded = torch.zeros(share, embedded.shape[1], dtype=torch.float64, device=processes.device)
    padded[: len(embedded)] = torch.from_numpy(embedded)
    vectors: Array = processes.gather(padded)[: len(rows)].cpu().numpy()  # without the padding of the last shares
    return vectors


def _embedded(model: Embedder, data: DataFrame, rows: Rows, batch_size: int) -> Array:
    images = [path or b"" for path in data["path"].iloc[rows]]
    items = items_of_images(images, [None] * len(images))
    with evaluating(model):
        try:
            features = embedding_of(items, model, batch_size=batch_size, workers=_THREADS).cls
        except NonFiniteError as error:
            message = "the model's features are zero or not finite: training has diverged (lower the learning rate)"
            raise ValueError(message) from error
    vectors: Array = F.normalize(features.double(), dim=-1).numpy()
    return vectors
