"""Every way from a file of weights to numbers, each on a tiny model with random weights."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric import Backbone, IDSim, NearID, VisIDEmbed
from idmetric.data.frames.sam import Sam
from idmetric.data.generate.weights import Repository
from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder
from idmetric.evaluate.protocols.segmentation.persam import PerSAM
from idmetric.matching import WordDetector
from idmetric.metric.timm_models import build
from idmetric.metric.visid.config import VisIDConfig
from tests.conftest import random_model
from tests.diffusion_parts import sam2
from tests.evaluate.protocols.parts import clip_folder
from tests.evaluate.protocols.test_persam import heat, write_sam
from tests.matching.detector_parts import owlv2
from tests.metric.models.test_nearid import SMALL as SMALL_SIGLIP
from tests.metric.models.test_nearid import official
from tests.metric.models.test_visid import make_qwen

WEIGHTS = "model.safetensors"
VIT: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 2}


@functools.cache
def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))


def pixels(side: int) -> Tensor:
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Loader:
    """How a folder with `WEIGHTS` is made, and what numbers the model in it gives.

    Attributes:
        used: part of the name of a tensor that changes the numbers.
        whole: transformers opens its folder.
    """

    write: Callable[[Path], object]
    numbers: Callable[[Path], Tensor]
    used: str
    whole: bool = False


def _write_idsim(folder: Path) -> None:
    random_model("dinov3").save_pretrained(folder)


def _write_packed(folder: Path) -> None:
    """As `IDSim("tiny")` is stored: a byte for each value of a matrix."""
    _write_idsim(folder)
    state = load_file(folder / WEIGHTS)
    for name in [name for name, value in state.items() if value.ndim == 2]:
        scale = state[name].abs().amax(1) / 127
        state[name] = (state[name] / scale[:, None]).round().to(torch.int8)
        state[f"{name}.int8_scale"] = scale
    save_file(state, folder / WEIGHTS)


def _write_vit(folder: Path) -> None:
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    save_file(build("vit_tiny_patch16_224", args=VIT).state_dict(), folder / WEIGHTS)


def _write_clip(folder: Path) -> None:
    clip_folder(folder, "clip")


def _idsim(folder: Path) -> Tensor:
    return IDSim(folder, device="cpu").embed_pixels(pixels(64)).cls


def _backbone(folder: Path) -> Tensor:
    file = folder / WEIGHTS
    model = Backbone("vit_tiny_patch16_224", weights=file, backbone_args=VIT, image_size=32, device="cpu")
    return model.embed_pixels(pixels(32)).cls


def _visid(folder: Path) -> Tensor:
    config = VisIDConfig(max_pixels=4 * 28 * 28, max_length=64)
    return VisIDEmbed(folder, config=config, device="cpu").embed(noise(), patches=False).cls


def _dual(folder: Path) -> Tensor:
    model = DualEncoder(str(folder), device="cpu")
    return torch.cat([model.images([pixels(32)[0]]), model.texts(["make it number 3"])])


def _detections(folder: Path) -> Tensor:
    found = WordDetector(["red mug"], str(folder), threshold=0, device="cpu")(noise())
    return torch.tensor([region.box for region in found])


def _persam(folder: Path) -> Tensor:
    return torch.from_numpy(PerSAM(folder, device="cpu").segment(noise(), heat(40, 60)))


LOADERS: dict[str, Loader] = {
    "IDSim": Loader(_write_idsim, _idsim, "blocks.1.attn.qkv.weight"),
    "IDSim in int8": Loader(_write_packed, _idsim, "patch_embed.proj.weight"),
    "Backbone": Loader(_write_vit, _backbone, "blocks.1.attn.qkv.weight"),
    "NearID": Loader(
        lambda folder: official(folder, SMALL_SIGLIP),
        lambda folder: NearID(folder, device="cpu").embed_pixels(pixels(58)).cls,
        "layers.1.self_attn.k_proj.weight",
    ),
    "VisID": Loader(make_qwen, _visid, "layers.1.self_attn.q_proj.weight", whole=True),
    "dual": Loader(_write_clip, _dual, "text_model.encoder.layers.1.mlp.fc1.weight", whole=True),
    "owlv2": Loader(
        owlv2,
        _detections,
        "vision_model.encoder.layers.0.mlp.fc1.weight",
        whole=True,
    ),
    "sam2": Loader(
        sam2,
        lambda folder: torch.from_numpy(Sam(Repository(str(folder), ""), "cpu").mask(noise(), (5, 5, 40, 30))),
        "mask_decoder.transformer.layers.0.mlp.proj_in.weight",
        whole=True,
    ),
    "PerSAM": Loader(write_sam, _persam, "mask_decoder.transformer.layers.0.mlp.lin1.weight", whole=True),
}  # fmt: skip


def numbers_of(loader: Loader, folder: Path) -> Tensor:
    """The numbers that the model in a folder gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loader.numbers(folder)


def used_tensor(loader: Loader, state: dict[str, Tensor]) -> str:
    """The name of the loader's used tensor."""
    [name] = [name for name in state if name.endswith(loader.used)]
    return name
