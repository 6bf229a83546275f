"""Consistency without references: how alike the images of a set, or the frames of a clip, are to each other.

result = consistency(IDSim(), "clip.mp4", rate=2)
result.to_pandas()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from idmetric.matching.matching import MatchRequest, ReadOptions, embedded_regions
from idmetric.matching.regions import Regions
from idmetric.matching.result import column_lines, signature_line
from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import RequestError
from idmetric.scoring.scores import Record, Records

COLUMNS = ("clip", "frames", "mean", "first", "previous")
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Consistency(Records):
    """A row for each clip, and for all still images together, by 1 - cos of global features.

    Columns: clip ("" for still images), frames (those with a region), and mean distances: mean (of all pairs), first
    (of each frame of a clip to its first one) and previous (to the one before). None where there are fewer than two
    frames; first and previous also of still images.

    Attributes:
        skipped, signature: as in `Match`.
    """

    skipped: Mapping[str, str] = field(default_factory=dict)
    signature: Mapping[str, str] = field(default_factory=dict)

    def to_table(self) -> str:
        """Aligned columns for a terminal, then the signature."""
        lines = column_lines(self, COLUMNS)
        lines.append(signature_line(self.signature))
        return "\n".join(lines) + "\n"


def consistency(metric: Embedder, images: Any, regions: Regions = None, **options: Any) -> Consistency:
    """Compare images, or the frames of clips, with each other.

    Args:
        images: as in `idmetric.match`.
        regions: one of each image, where the subject is; default the whole image. An image without one is left out.
        options: outside, rate, detector, on_error, store, batch_size and progress as in `idmetric.match`.

    Raises:
        RequestError: for an image with several regions; otherwise as `match`.
    """
    read = ReadOptions(**options)
    request = images
    if not isinstance(request, MatchRequest):
        request = MatchRequest.of(images, (), regions, on_error=read.on_error)
    skipped = dict(request.skipped)
    groups: dict[str, list[NDArray[np.float64]]] = {}
    for image, embedding in embedded_regions(metric, request, read):
        if image.problem:
            skipped[image.moment.name] = image.problem
            continue
        vectors = groups.setdefault(image.moment.clip, [])
        if embedding is None:
            continue
        if len(image.regions) > 1:
            raise RequestError(f"{image.moment.name} has several regions: consistency compares one of each image")
        features = embedding.cls.detach().float().cpu()
        unit = F.normalize(features, dim=1).double()
        vectors.append(unit[0].numpy())

    rows = []
    for clip, vectors in groups.items():
        row = _row(clip, np.array(vectors))
        rows.append(row)
    signature = {**metric.signature("cls"), **read.signature}
    return Consistency(rows, COLUMNS, skipped, signature)


def _row(clip: str, features: NDArray[np.float64]) -> Record:
    """The means of a group, by the features (N, D) of its images, of unit length."""
    row: Record = dict.fromkeys(COLUMNS)
    row |= {"clip": clip, "frames": len(features)}
    if len(features) > 1:
        distances = 1 - features @ features.T
        distances[distances < _ROUNDING] = 0  # what rounding leaves of equal features
        pairs = np.triu_indices(len(features), 1)
        of_pairs = distances[pairs]
        row["mean"] = float(of_pairs.mean())
        if clip:
            row["first"] = float(distances[0, 1:].mean())
            row["previous"] = float(np.diag(distances, 1).mean())
    return row
