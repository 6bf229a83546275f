"""The interface of the package `lpips` (Zhang et al. 2018), with a metric of this package behind it.

import idmetric.compat.lpips as lpips

loss_fn = lpips.LPIPS(net="tiny")
distances = loss_fn(images, others)  # (N, 3, H, W) in [-1, 1] -> (N, 1, 1, 1)

Signatures, shapes and ranges are those of lpips 0.1.4 (richzhang/PerceptualSimilarity, lpips/lpips.py). The distances
are those of the metric: identity, where LPIPS compares aligned images patch by patch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from idmetric.compat.opened import metric_of, refuse
from idmetric.metric.files import StrPath
from idmetric.metric.files.boundary import public
from idmetric.metric.images.arrays import check_pixels
from idmetric.metric.images.kinds import naming
from idmetric.metric.images.read import read_image
from idmetric.metric.models.embedder import Embedder

_NETS = ("alex", "vgg", "vgg16", "squeeze")
_HINT = "clamp what merely overshoots, by images.clamp(-1, 1); normalize=True takes pixels in [0, 1]"


class LPIPS(nn.Module):
    """Distances of image tensors; lower = more surely the same identity.

    Args:
        net: the metric: a name of `idmetric.load`, or an opened metric, which is frozen and moves with this module.
        distance: see the table in `idmetric.metric.distance.matrix`.
        version, use_dropout, eval_mode, verbose: without effect, as they change no number of a frozen metric.
        pretrained, lpips, spatial, pnet_rand, pnet_tune, model_path: only LPIPS's own defaults are taken.
        options: of `idmetric.load`, such as device, the only one that an opened metric takes.

    Raises:
        RequestError: for a network of LPIPS, an option that LPIPS alone has, or one that an opened metric cannot take.
    """

    @public
    def __init__(
        self,
        pretrained: bool = True,
        net: str | Embedder = "",
        version: str = "0.1",
        lpips: bool = True,
        spatial: bool = False,
        pnet_rand: bool = False,
        pnet_tune: bool = False,
        use_dropout: bool = True,
        model_path: StrPath | None = None,
        eval_mode: bool = True,
        verbose: bool = True,
        *,
        distance: str = "cls",
        **options: Any,
    ) -> None:
        super().__init__()
        refuse(
            "LPIPS",
            pretrained=(pretrained, True),
            lpips=(lpips, True),
            spatial=(spatial, False),
            pnet_rand=(pnet_rand, False),
            pnet_tune=(pnet_tune, False),
            model_path=(model_path, None),
        )
        self.metric = metric_of(net, "net", _NETS, **options)
        self.distance = distance

    @public
    def forward(self, in0: Tensor, in1: Tensor, retPerLayer: bool = False, normalize: bool = False) -> Tensor:
        """Distances of the images of two batches.

        Args:
            in0, in1: (N, 3, H, W) in [-1, 1], of any sizes; one of them may have a single image.
            retPerLayer: only False is taken.
            normalize: the values are in [0, 1].

        Returns:
            (N, 1, 1, 1), with a graph where the images require grad.

        Raises:
            ImageReadError: for values outside of the range.
        """
        refuse("LPIPS", retPerLayer=(retPerLayer, False))
        distances: Tensor = self.metric(_pixels(in0, normalize), _pixels(in1, normalize), self.distance)
        return distances.view(-1, 1, 1, 1)


def _pixels(images: Tensor, normalize: bool) -> Tensor:
    """Pixels in [0, 1] of images in [-1, 1], or in [0, 1] with `normalize`."""
    if normalize:
        return images
    if not torch.compiler.is_compiling():
        with naming(images):
            check_pixels(images, -1, 1, _HINT)
    return ((images + 1) / 2).clamp(0, 1)


def load_image(path: StrPath) -> NDArray[np.uint8]:
    """Read an image as (H, W, 3) RGB, 0 to 255."""
    return np.asarray(read_image(path))


def im2tensor(
    image: NDArray[np.uint8], imtype: Any = np.uint8, cent: float = 1.0, factor: float = 255.0 / 2.0
) -> Tensor:
    """An image (H, W, 3), 0 to 255, as (1, 3, H, W) in [-1, 1]; `imtype` is without effect, as in lpips."""
    pixels = torch.from_numpy(np.array(image, dtype=np.float32)) / factor - cent
    return pixels.permute(2, 0, 1)[None]
