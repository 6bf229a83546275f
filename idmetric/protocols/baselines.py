"""Baselines that need no weights of ours: colour histogram, pixels, SSIM, and LPIPS and DreamSim where installed.

| name | what | similarity |
|---|---|---|
| `hsv` | square-rooted HSV histogram, 8 x 4 x 4 bins, at 128 x 128 pixels | cosine |
| `pixels` | the image at 32 x 32 pixels, its mean subtracted | cosine |
| `ssim` | structural similarity at 128 x 128 pixels (torchmetrics: Gaussian window, sigma 1.5) | SSIM, -1..1 |
| `lpips` | LPIPS, AlexNet, at 256 x 256 pixels (package lpips; its backbone comes from torchvision) | 1 - LPIPS |
| `dreamsim` | DreamSim, its ensemble (package dreamsim, which downloads its weights) | cosine |

Images are squashed to these sizes, as our models squash them to theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from idmetric._version import __version__
from idmetric.embedder import auto_device
from idmetric.embedding import Embedding
from idmetric.hints import install
from idmetric.images import Colour, Outside, read_image, to_pixels
from idmetric.masks import cut_out

Array = NDArray[np.float64]
SSIM_SIDE, LPIPS_SIDE = 128, 256  # pixels
WHITE: Colour = (255, 255, 255)


# Formulas


def hsv_vector(image: Image.Image) -> Array:
    """Square-rooted HSV histogram (128,): 8 hues x 4 saturations x 4 values, of the image at 128 x 128; unit length."""
    hsv = np.asarray(image.resize((128, 128)).convert("HSV")).reshape(-1, 3)
    bins = (hsv // (32, 64, 64) * (16, 4, 1)).sum(1)
    return np.sqrt(np.bincount(bins, minlength=128) / len(hsv))


def pixel_vector(image: Image.Image) -> Array:
    """The image at 32 x 32 pixels (3072,), its mean subtracted, unit length; an even one becomes a constant vector."""
    values = np.asarray(image.resize((32, 32)), dtype=np.float64).ravel() / 255
    values = values - values.mean()
    norm = np.linalg.norm(values)
    # nothing is left of an even image: it gets one direction of its own, so that two of them count as alike
    return values / norm if norm > 1e-12 else np.full(values.shape, values.size**-0.5)


def hsv_histogram(paths: Sequence[Path]) -> Array:
    """`hsv_vector` of files: (N, 128), unit rows."""
    return np.stack([hsv_vector(read_image(path)) for path in paths])


def small_pixels(paths: Sequence[Path]) -> Array:
    """`pixel_vector` of files: (N, 3072), unit rows."""
    return np.stack([pixel_vector(read_image(path)) for path in paths])


class VectorBaseline:
    """A formula that gives an image a vector, as a model."""

    background = WHITE
    reads_words = False
    has_patches = False

    def __init__(self, name: str, vector: Callable[[Image.Image], Array]) -> None:
        self.name, self.vector = name, vector

    def signature(self) -> dict[str, str]:
        """See `VectorModel`."""
        return _signature(self.name, "", "cls")

    def prepare(self, image: Image.Image, mask: Any, outside: Outside, words: str | None) -> Array:
        """See `VectorModel`."""
        return self.vector(_subject(image, mask, outside))

    def embed(self, prepared: Sequence[Array], patches: bool) -> Embedding:
        """See `VectorModel`."""
        return Embedding(torch.from_numpy(np.stack(prepared)).float(), model=self.name)


# Metrics of pairs


class Ssim:
    """Structural similarity (Wang et al. 2004) as torchmetrics computes it, mean over pixels and colours."""

    background = WHITE

    def __init__(self, device: torch.device | str | None = None) -> None:
        try:
            from torchmetrics.functional.image import structural_similarity_index_measure as ssim
        except ImportError as error:
            raise ImportError(f"SSIM needs torchmetrics: {install('eval')}") from error
        self._ssim: Callable[..., Any] = ssim
        self.device = auto_device() if device is None else torch.device(device)

    def signature(self) -> dict[str, str]:
        """What to report beside a score."""
        return _signature("ssim", _version("torchmetrics"), "ssim", f"{SSIM_SIDE}x{SSIM_SIDE}")

    def prepare(self, image: Image.Image, mask: Any, outside: Outside) -> Tensor:
        """Pixels (3, H, W), uint8."""
        return _small(_subject(image, mask, outside), SSIM_SIDE)

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Similarities (B,) of prepared images (B, 3, H, W), one by one."""
        # variances are differences of large numbers: in single precision an image is at 0.9999 from itself
        kind = torch.float32 if self.device.type == "mps" else torch.float64
        x, y = (t.to(self.device, kind) / 255 for t in (a, b))
        with torch.no_grad():
            found: Tensor = self._ssim(x, y, data_range=1.0, reduction="none").reshape(len(a))
        return found


class Lpips:
    """LPIPS (Zhang et al. 2018) by its authors' package, as the similarity 1 - LPIPS.

    Args:
        network: their module, for other backbones than AlexNet.
    """

    background = WHITE

    def __init__(self, device: torch.device | str | None = None, network: Any = None) -> None:
        if network is None:
            try:
                import lpips
            except ImportError as error:
                raise ImportError("the baseline lpips needs a package of that name: pip install lpips") from error
            network = lpips.LPIPS(net="alex", verbose=False)
        self.device = auto_device() if device is None else torch.device(device)
        self.network = network.to(self.device).eval()

    def signature(self) -> dict[str, str]:
        """What to report beside a score."""
        return _signature("lpips", _version("lpips"), "1-lpips", f"{LPIPS_SIDE}x{LPIPS_SIDE}")

    def prepare(self, image: Image.Image, mask: Any, outside: Outside) -> Tensor:
        """Pixels (3, H, W), uint8."""
        return _small(_subject(image, mask, outside), LPIPS_SIDE)

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Similarities (B,) of prepared images (B, 3, H, W), one by one."""
        x, y = (t.to(self.device).float() / 127.5 - 1 for t in (a, b))
        with torch.no_grad():
            found: Tensor = 1 - self.network(x, y).flatten()
        return found


class DreamSim:
    """DreamSim (Fu et al. 2023) by its authors' package: cosine of its embeddings.

    Args:
        model, transform: what their `dreamsim(...)` returns, for other variants than the ensemble.
    """

    background = WHITE
    reads_words = False
    has_patches = False

    def __init__(
        self,
        device: torch.device | str | None = None,
        model: Any = None,
        transform: Callable[[Image.Image], Tensor] | None = None,
    ) -> None:
        self.device = auto_device() if device is None else torch.device(device)
        if model is None or transform is None:
            try:
                from dreamsim import dreamsim
            except ImportError as error:
                raise ImportError("the baseline dreamsim needs a package of that name: pip install dreamsim") from error
            model, transform = dreamsim(pretrained=True, device=str(self.device))
        self.model = model
        self.transform: Callable[[Image.Image], Tensor] = transform

    def signature(self) -> dict[str, str]:
        """See `VectorModel`."""
        return {**_signature("dreamsim", _version("dreamsim"), "cls"), "weights": weights_digest(self.model)[:16]}

    def prepare(self, image: Image.Image, mask: Any, outside: Outside, words: str | None) -> Tensor:
        """See `VectorModel`."""
        pixels = self.transform(_subject(image, mask, outside))
        return pixels[0] if pixels.ndim == 4 else pixels

    def embed(self, prepared: Sequence[Tensor], patches: bool) -> Embedding:
        """See `VectorModel`."""
        with torch.no_grad():
            found = self.model.embed(torch.stack(list(prepared)).to(self.device))
        return Embedding(F.normalize(found.float(), dim=-1), model="dreamsim")


VECTORS: dict[str, Callable[[Image.Image], Array]] = {"hsv": hsv_vector, "pixels": pixel_vector}
OPENED: dict[str, Callable[[Any], Any]] = {"ssim": Ssim, "lpips": Lpips, "dreamsim": DreamSim}
NAMES = (*VECTORS, *OPENED)


def open_baseline(name: str, device: torch.device | str | None = None) -> Any:
    """The baseline of that name, see this module's table.

    Raises:
        ImportError: naming what to install.
    """
    return VectorBaseline(name, VECTORS[name]) if name in VECTORS else OPENED[name](device)


def _signature(name: str, revision: str, distance: str, resolution: str = "") -> dict[str, str]:
    return {
        "model": name, "revision": revision, "distance": distance, "resolution": resolution, "dtype": "float32",
        "idmetric": __version__,
    }  # fmt: skip


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _small(image: Image.Image, side: int) -> Tensor:
    return (to_pixels(image, (side, side)) * 255).round().byte()


def _subject(image: Image.Image, mask: Any, outside: Outside) -> Image.Image:
    """The image, or what its mask leaves of it."""
    if mask is None:
        return image
    subject, _ = cut_out(image, mask, outside)
    assert isinstance(subject, Image.Image)  # of an 8-bit image
    return subject
