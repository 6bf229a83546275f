"""Models whose similarities the trained model learns: several, side by side, teach one of the size of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.models.idsim import IDSim
from idmetric.train.state import TrainError


class Teachers:
    """Frozen models; their embeddings side by side, each of unit length, are those of one model.

    Args:
        sources: names or folders of models of the class IDSim.
        sizes: side in pixels at which they see images, one for all or one for each; of several sizes of a model
            (`mirror_sizes`), only this.
        shares: of each in the mean of their cosines, above 0; none means equal ones.

    Raises:
        idmetric.checkpoints.errors.CheckpointError: if one cannot be opened.
        TrainError: if one has no revision, by which a resumed run would know it.
    """

    def __init__(
        self, sources: Sequence[str], sizes: Sequence[int], shares: Sequence[float], device: torch.device | str
    ) -> None:
        self.models = [IDSim(source, device=device).requires_grad_(False) for source in sources]
        self.sizes = sizes if len(sizes) > 1 else [*sizes] * len(sources)
        self.shares = shares or [1.0] * len(sources)
        self.revisions = [model.revision for model in self.models]
        for source, model in zip(sources, self.models, strict=True):
            if not model.revision:
                raise TrainError(f"--teachers {source}: its weights have no revision")
            model.settings = replace(model.settings, mirror_sizes=())

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Embed images (N, 3, H, W) in [0, 1]: (N, D) of unit length, D being the sum of the models' dimensions.

        The inner product of two is the mean of the models' cosines, weighted by their shares.
        """
        found = []
        for model, size, share in zip(self.models, self.sizes, self.shares, strict=True):
            seen = F.interpolate(images, (size, size), mode="bilinear", antialias=True, align_corners=False)
            seen = seen.contiguous(memory_format=torch.channels_last)
            found.append(share**0.5 * F.normalize(model.embed_pixels(seen).cls.float(), dim=-1))

        return F.normalize(torch.cat(found, -1), dim=-1)
