"""Every kind of model in 16-bit and 64-bit floats on a CPU, opened in that type (`--dtype`) or cast by `.to(dtype)`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric import Backbone, IdentityLoss, IDSim, NearID, VisIDEmbed, load
from idmetric.metric.embedder import Embedder
from idmetric.metric.nearid import NearIDConfig
from idmetric.train.visme import small_qwen
from tests.conftest import TWO_TRUNKS, random_model

VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3}
TOLERANCE = {torch.bfloat16: 0.03, torch.float16: 0.004, torch.float64: 1e-5}  # of distances


def two_trunks(folder: Path) -> IDSim:
    return IDSim(TWO_TRUNKS, device="cpu")


def siglip(folder: Path) -> NearID:
    config = NearIDConfig("vit_base_patch16_siglip_224", 48, backbone_args={**VIT, "act_layer": "gelu_tanh"})
    return NearID(config, device="cpu")


def clip(folder: Path) -> Backbone:
    name = "vit_base_patch16_clip_224"
    return Backbone(name, pretrained=False, image_size=48, backbone_args=VIT, device="cpu")


def visid(folder: Path) -> VisIDEmbed:
    pytest.importorskip("transformers")
    small_qwen.write(folder)
    return VisIDEmbed(folder, device="cpu", dtype=torch.float32)


MODELS: dict[str, Callable[[Path], Embedder]] = {
    "tiny": two_trunks,
    "dinov3": lambda folder: random_model("dinov3"),
    "dinov2": lambda folder: random_model("dinov2"),
    "cnn": lambda folder: random_model("cnn"),
    "siglip": siglip,
    "clip": clip,
    "visid": visid,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    torch.manual_seed(0)
    return MODELS[request.param](tmp_path_factory.mktemp("model"))


def pictures(seed: int) -> Tensor:
    coarse = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, (72, 60), mode="bilinear")


def loss_and_gradient(loss: IdentityLoss, pixels: Tensor) -> tuple[Tensor, Tensor]:
    pixels = pixels.clone().requires_grad_()
    value = loss(pixels)
    (gradient,) = torch.autograd.grad(value, pixels)
    return value, gradient


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_model_cast_to_another_type_scores_and_trains_as_before(model: Embedder, dtype: torch.dtype) -> None:
    """A user saves memory by `metric.to(torch.bfloat16)`, or Lightning's bf16-true casts a module with a loss in it."""
    images, references = pictures(0), pictures(1)
    distance = "cls" if model.embed(references).patches is None else "joint"
    exact = model(images, references, distance)
    cast = copy.deepcopy(model).to(dtype)
    assert cast.embed(images).cls.dtype in (dtype, torch.float32)
    torch.testing.assert_close(cast(images, references, distance).float(), exact, rtol=0, atol=TOLERANCE[dtype])

    loss = IdentityLoss(model, references)
    exact_value, exact_gradient = loss_and_gradient(loss, images)
    holder = nn.ModuleDict({"identity": IdentityLoss(model, references)}).to(dtype)
    value, gradient = loss_and_gradient(holder["identity"], images.to(dtype))  # type: ignore[arg-type]
    assert value.item() == pytest.approx(exact_value.item(), abs=TOLERANCE[dtype])
    assert gradient.dtype == dtype
    assert F.cosine_similarity(gradient.flatten().double(), exact_gradient.flatten().double(), dim=0) > 0.8


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_model_opened_in_another_type_scores_as_one_cast_to_it(
    model: Embedder, dtype: torch.dtype, tmp_path: Path
) -> None:
    """The same by `--dtype` or `load(dtype=)`."""
    images, references = pictures(0), pictures(1)
    saved = copy.deepcopy(model)
    saved.save_pretrained(tmp_path)
    options: dict[str, Any] = {"device": "cpu", "dtype": dtype}
    opened = load(tmp_path, **options)
    assert opened.dtype == dtype
    assert opened(images, references).equal(saved.to(dtype)(images, references))

    options["dtype"] = str(dtype).removeprefix("torch.")
    assert load(tmp_path, **options).dtype == dtype
    with pytest.raises(ValueError, match="dtype 'half'"):
        load(tmp_path, device="cpu", dtype="half")
