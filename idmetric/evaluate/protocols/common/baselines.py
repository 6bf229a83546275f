"""Baselines without weights of this project: a color histogram, and LPIPS and DreamSim if installed.

| name | metric | similarity |
|---|---|---|
| `hsv` | square-rooted HSV histogram, 8 x 4 x 4 bins, at 128 x 128 pixels | cosine |
| `lpips` | LPIPS, AlexNet, at 256 x 256 pixels (package lpips; its backbone comes from torchvision) | 1 - LPIPS |
| `dreamsim` | DreamSim, its ensemble (package dreamsim, which downloads its weights) | cosine |
| `dreamsim:BRANCH` | one encoder of it, fine-tuned alone, see `models.BRANCHES` (same package) | cosine |

Images are squashed to these sizes, as our models squash them to theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module, metadata
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idmetric.evaluate.protocols.common.columns import Array
from idmetric.evaluate.protocols.common.pairwise import PairModel
from idmetric.metric.embedder import auto_device
from idmetric.metric.embedding import Embedding
from idmetric.metric.fingerprint import weights_digest
from idmetric.metric.images import picture_pixels
from idmetric.stream import PlainModel
from idmetric.version import __version__

DeviceLike = torch.device | str
LPIPS_SIDE = 256  # pixels


# Color


def hsv_vector(image: Image.Image) -> Array:
    """Square-rooted HSV histogram (128,): 8 hues x 4 saturations x 4 values, of the image at 128 x 128; unit length."""
    resized = image.resize((128, 128)).convert("HSV")
    pixels = np.asarray(resized).reshape(-1, 3)
    levels = pixels // (32, 64, 64)
    bins = levels @ (16, 4, 1)
    shares = np.bincount(bins, minlength=128) / len(pixels)
    return np.sqrt(shares)


class Hsv(PlainModel):
    """`hsv_vector` as a model."""

    def signature(self) -> dict[str, str]:
        """See `PlainModel`."""
        return signature_of("hsv", "", "cls")

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None) -> Array:
        """See `PlainModel`."""
        return hsv_vector(picture)

    def embed_prepared(self, batch: Sequence[Array], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`."""
        vectors = torch.from_numpy(np.stack(batch))
        return Embedding(vectors.float(), model="hsv")


# Metrics of pairs


class PairBaseline(PairModel):
    """A symmetric metric of two images: a size, and similarities from features of each image."""

    side: int

    def __init__(self, device: DeviceLike | None) -> None:
        self.device = device_or_auto(device)

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None = None) -> Tensor:
        """The picture at the metric's size: pixels (3, H, W), uint8."""
        pixels = picture_pixels(picture, (self.side, self.side))
        return (pixels * 255).round().byte()


class Lpips(PairBaseline):
    """LPIPS (Zhang et al. 2018) by its authors' package, as the similarity 1 - LPIPS.

    Args:
        network: their module (`lpips.LPIPS`), for other backbones than AlexNet.
    """

    side = LPIPS_SIDE

    def __init__(self, device: DeviceLike | None = None, network: Any = None) -> None:
        super().__init__(device)
        lpips = _package("lpips")
        if network is None:
            network = lpips.LPIPS(net="alex", verbose=False)
        self.network = network.to(self.device).eval()
        self._unit: Callable[[Tensor], Tensor] = lpips.normalize_tensor
        self._weights = weights_digest(self.network)[:16]

    def signature(self) -> dict[str, str]:
        """Facts about the metric to report with a score."""
        about = signature_of("lpips", _version("lpips"), "1-lpips", f"{LPIPS_SIDE}x{LPIPS_SIDE}")
        return {**about, "weights": self._weights}

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """Unit-length activations (B, C, h, w) of each layer for prepared images."""
        x = images.to(self.device).float() / 127.5 - 1
        with torch.no_grad():
            if self.network.version == "0.1":  # 0.0 was released without the scaling
                x = self.network.scaling_layer(x)
            return tuple(self._unit(layer) for layer in self.network.net(x))

    def between(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Similarities (B,) of features."""
        distances = torch.zeros(len(b[0]), device=self.device)
        with torch.no_grad():
            for number, layer_a in enumerate(a):
                differences = (layer_a - b[number]).square_()
                if self.network.lpips:
                    differences = self.network.lins[number](differences)
                else:
                    differences = differences.sum(1, keepdim=True)
                distances += differences.mean((1, 2, 3))
        return 1 - distances


class DreamSim(PlainModel):
    """DreamSim (Fu et al. 2023) by its authors' package: cosine of its embeddings.

    Args:
        model, transform: the pair returned by their `dreamsim(...)`, for other variants than these.
        branch: one of `models.BRANCHES`, or "ensemble".

    Raises:
        ImportError: if the package is missing.
    """

    def __init__(
        self,
        device: DeviceLike | None = None,
        model: Any = None,
        transform: Callable[[Image.Image], Tensor] | None = None,
        branch: str = "ensemble",
    ) -> None:
        self.name = "dreamsim"
        self.device = device_or_auto(device)
        options = {"pretrained": True, "device": str(self.device)}
        if branch != "ensemble":
            self.name += f":{branch}"
            options["dreamsim_type"] = branch
        if model is None or transform is None:
            model, transform = _package("dreamsim").dreamsim(**options)
        self.model = model
        self.transform: Callable[[Image.Image], Tensor] = transform

    def signature(self) -> dict[str, str]:
        """See `PlainModel`."""
        about = signature_of(self.name, _version("dreamsim"), "cls")
        return {**about, "weights": weights_digest(self.model)[:16]}

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None) -> Tensor:
        """See `PlainModel`."""
        pixels: Tensor = self.transform(picture)
        if pixels.ndim == 4:
            return pixels[0]
        return pixels

    def embed_prepared(self, batch: Sequence[Tensor], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`."""
        images = torch.stack(list(batch)).to(self.device)
        with torch.no_grad():
            vectors = self.model.embed(images)
        unit_vectors = F.normalize(vectors.float(), dim=-1)
        return Embedding(unit_vectors, model=self.name)


def open_baseline(name: str, device: DeviceLike | None = None) -> PlainModel | PairModel:
    """The baseline of that name, see this module's table.

    Raises:
        ImportError: if a package is missing; the message says how to install it.
    """
    if name == "hsv":
        return Hsv()
    kind, _, branch = name.partition(":")
    if kind == "dreamsim":
        return DreamSim(device, branch=branch or "ensemble")
    return Lpips(device)


def device_or_auto(device: DeviceLike | None) -> torch.device:
    """The device of this name; None: the best one."""
    if device is None:
        return auto_device()
    return torch.device(device)


def signature_of(name: str, revision: str, distance: str, resolution: str = "") -> dict[str, str]:
    return {
        "model": name,
        "revision": revision,
        "distance": distance,
        "resolution": resolution,
        "dtype": "float32",
        "idmetric": __version__,
    }


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"the baseline {name} needs a package of that name: pip install {name}") from error


def _version(package: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""
