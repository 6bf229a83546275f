"""The subject's own patches as a detector: no other model than the metric, no words.

The heat of a patch t of an image is its likeness to the subject, above its likeness to the image as a whole:

    heat(t) = max_i cos(t, u_i) - cos(t, mean of the image's patches)

with u_i the patches of a photo that its mask covers; maps of several photos are averaged. Regions are the connected
parts where the heat is above median + level (maximum - median); a region's score is its maximum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idmetric.matching.detect import Detections, Detector, Photo
from idmetric.matching.heatmaps import layout
from idmetric.matching.patches import patch_similarity, patch_tokens
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding
from idmetric.metric.files import need
from idmetric.stream import Item, Look, embedding_of, items_of_images


@dataclass(frozen=True, kw_only=True)
class PatchDetector(Detector):
    """See the module.

    Attributes:
        level: where regions end, as a share of the way from the median of the heat to its maximum.
    """

    metric: Embedder
    level: float = 0.7
    overlap: float = 0.3

    name = "patches"
    finds_by = ("photos",)

    @property
    def weights(self) -> str:
        """The metric's."""
        signature = self.metric.signature("cls")
        return f"{signature['model']}@{signature['revision']}"

    def query(self, photos: Sequence[Photo]) -> Embedding:
        """See `Detector`."""
        need("eval", "the patch detector", scipy="SciPy")
        pictures, masks = zip(*photos, strict=True)
        return self._embedded(items_of_images(pictures, masks))

    def _embedded(self, items: Sequence[Item]) -> Embedding:
        # in the thread that reads the image
        embedding = embedding_of(items, self.metric, Look(outside="keep"), patches=True, workers=0)
        return embedding.to(self.metric.device)

    def candidates(
        self, image: Image.Image, words: Sequence[str], queries: Sequence[Embedding]
    ) -> Iterator[Detections]:
        """See `Detector`."""
        embedding = self._embedded(items_of_images([image], [None]))
        where = layout(self.metric, image.height, image.width, embedding)
        [tokens] = patch_tokens(embedding)
        tokens = F.normalize(tokens, dim=-1)
        typical = F.normalize(tokens.mean(0), dim=0)
        for subject in queries:
            [to_subject] = patch_similarity(subject, embedding, "nearest")
            to_image = tokens @ typical
            heat = where.spread(to_subject - to_image, (image.height, image.width))
            boxes, scores = hot_boxes(heat.cpu(), self.level)
            is_likely = scores > self.threshold
            boxes = boxes[is_likely]
            yield Detections(boxes, scores[is_likely], [""] * len(boxes))


def hot_boxes(heat: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Boxes (N, 4) of the connected hot parts of a map (H, W), and the maximum of each, at most 1."""
    from scipy import ndimage

    median = heat.median()
    end = median + level * (heat.max() - median)
    values = heat.numpy()
    parts, count = ndimage.label(values >= float(end))
    boxes = []
    for rows, columns in ndimage.find_objects(parts):
        boxes.append((columns.start, rows.start, columns.stop, rows.stop))
    maxima = ndimage.maximum(values, parts, range(1, count + 1))
    return torch.tensor(boxes), torch.tensor(maxima).clamp(max=1)
