"""The models and photos of a benchmark: published or random weights, given or generated photos."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from idmetric.checkpoints import released
from idmetric.cli.bench.timing import Clock
from idmetric.images.paths import listed
from idmetric.images.read import read_image
from idmetric.models.backbone import Backbone
from idmetric.models.embedder import Embedder, auto_device
from idmetric.models.idsim import IDSim, IDSimConfig
from idmetric.models.load import load_embedder
from idmetric.models.nearid import NearID, NearIDConfig

SIZE = (960, 720)  # pixels of the generated photos, as from image generators and shops


@dataclass(frozen=True)
class Setting:
    """The input of all sections.

    Args:
        files: encoded images, as bytes, at least a batch of them.
        batch: images per pass.
        clock: measures the times.
        dtype: type of the models' weights.
    """

    files: tuple[bytes, ...]
    batch: int
    clock: Clock
    dtype: torch.dtype = torch.float32

    def photos(self, count: int) -> list[Image.Image]:
        """Decode that many images, repeating the files if there are fewer."""
        decoded = [read_image(data) for data in self.files[:count]]
        return [decoded[k % len(decoded)] for k in range(count)]


def read_files(folder: str | os.PathLike[str], count: int) -> tuple[bytes, ...]:
    """Read the first `count` images below a folder in the order of their names, repeating them if there are fewer.

    Raises:
        ValueError: if the folder holds no image.
        ImageReadError: naming an image that cannot be read.
    """
    found = listed(folder)
    for path in found[:count]:
        read_image(path)
    return tuple(Path(found[k % len(found)]).read_bytes() for k in range(count))


def make_files(count: int, size: tuple[int, int] = SIZE) -> tuple[bytes, ...]:
    """Generate JPEG files with smooth shapes and grain, about as large as photos of that size; the same each time."""
    return tuple(_make_file(seed, size) for seed in range(count))


def _make_file(seed: int, size: tuple[int, int]) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    grain = rng.normal(0, 8, smooth.shape).astype(np.float32)
    buffer = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def open_model(
    name: str, *, random_weights: bool = False, device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Embedder:  # fmt: skip
    """Open a model by name, as `idmetric.load` does.

    Args:
        random_weights: open the published architecture with random weights, which need no download and do not change
            times. Without effect on "tiny", which is in the package.

    Raises:
        CheckpointError: if it cannot be opened.
        ValueError: for random weights of a model if its architecture is not known by name.
    """
    options: dict[str, Any] = {"device": device or auto_device(), "dtype": dtype}
    if not random_weights or name == "tiny":
        return load_embedder(name, **options)
    torch.manual_seed(0)
    model: Embedder
    if name.startswith("timm:"):
        model = Backbone(name.removeprefix("timm:"), pretrained=False, **options)
    elif name in released.IDSIM:
        model = IDSim(IDSimConfig(released.IDSIM[name].backbone), **options)
    elif name in released.NEARID:
        model = NearID(NearIDConfig(), **options)
    else:
        known = ", ".join([*released.IDSIM, *released.NEARID])
        raise ValueError(f"no random weights for {name!r}: they can be made for {known} and timm:NAME")
    model.name = f"{name}, random weights"
    return model
