"""The frozen rows of NearID's tables are opened as its released evaluation computes them, by transformers.

`AutoModel.get_image_features` (DINOv2: the pooled class token) of pixels from the processor of the Hub's repository.
The encoders have random weights and are small; the processors have the settings of the repositories' files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from idmetric import Backbone, load
from tests.hub_server import HubServer
from tests.metric.models import timm_names

transformers = pytest.importorskip("transformers", minversion="5.0")

SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2}
LAYERS = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES = ((512, 512), (301, 223), (333, 517))  # of the last, transformers and torchvision cut different crops


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({}) as server:
        server.stands_in(monkeypatch, tmp_path)
        yield server


@pytest.fixture
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    small = [Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)) for _ in SIZES]
    large = [image.resize(size, Image.Resampling.BICUBIC) for image, size in zip(small, SIZES, strict=True)]
    large[0].putalpha(Image.linear_gradient("L").resize(SIZES[0]))  # on white, by transformers 5 too
    return large


def with_large_weights(model: nn.Module) -> nn.Module:
    """Random weights so large that activation functions and norms matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 1.5 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.add_(scale * torch.randn(parameter.shape))
    return model.eval()


def clip() -> tuple[dict[str, Tensor], Callable[[Any], Tensor]]:
    """openai/clip-vit-large-patch14: the projection, QuickGELU; shorter side to 224, center crop."""
    config = transformers.CLIPVisionConfig(**LAYERS, intermediate_size=96, patch_size=14, projection_dim=768)
    assert config.hidden_act == "quick_gelu"
    model = with_large_weights(transformers.CLIPVisionModelWithProjection(config))
    processor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224}, resample=3,
        image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711],
    )  # fmt: skip
    return timm_names.clip(model), lambda images: model(**processor(images, return_tensors="pt")).image_embeds


def dinov2() -> tuple[dict[str, Tensor], Callable[[Any], Tensor]]:
    """facebook/dinov2-large: the class token after the last norm; shorter side to 256, crop of 224."""
    config = transformers.Dinov2Config(**LAYERS, image_size=518, patch_size=14)
    model = with_large_weights(transformers.Dinov2Model(config))
    processor = transformers.BitImageProcessorPil(
        size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224}, resample=3,
        image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225],
    )  # fmt: skip
    return timm_names.dinov2(model), lambda images: model(**processor(images, return_tensors="pt")).pooler_output


def siglip2(pool: Callable[[Any], Tensor]) -> tuple[dict[str, Tensor], Callable[[Any], Tensor]]:
    """google/siglip2-so400m-patch14-384: squashed to 384 pixels, bilinearly; GELU by tanh."""
    config = transformers.SiglipVisionConfig(**LAYERS, intermediate_size=89, image_size=384, patch_size=14)
    assert config.hidden_act == "gelu_pytorch_tanh"
    model = with_large_weights(transformers.SiglipVisionModel(config))
    processor = transformers.SiglipImageProcessorPil(
        size={"height": 384, "width": 384}, resample=2, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return timm_names.siglip(model), lambda images: pool(model(**processor(images, return_tensors="pt")))


SIGLIP2 = "timm/vit_so400m_patch14_siglip_378.v2_webli"
ROWS: dict[str, tuple[str, Callable[[], tuple[dict[str, Tensor], Callable[[Any], Tensor]]]]] = {
    "clip:nearid": ("timm/vit_large_patch14_clip_224.openai", clip),
    "dinov2:nearid": ("timm/vit_large_patch14_dinov2.lvd142m", dinov2),
    "siglip2:nearid": (SIGLIP2, lambda: siglip2(lambda output: output.pooler_output)),
    "siglip2-mean:nearid": (SIGLIP2, lambda: siglip2(lambda output: output.last_hidden_state.mean(1))),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_features_of_transformers(
    name: str, hub: HubServer, tmp_path: Path, pictures: list[Image.Image]
) -> None:
    repo, make = ROWS[name]
    state, features = make()
    folder = tmp_path / "repo"
    folder.mkdir()
    save_file({key: value.clone().contiguous() for key, value in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    hub.repos[repo] = folder
    metric = load(name, device="cpu", backbone_args=SMALL)
    with torch.no_grad():
        expected = features(pictures)
    torch.testing.assert_close(metric.embed(pictures).cls, expected, rtol=0, atol=5e-5)  # exact GELU is 3e-4 off
    assert name in metric.label
    assert metric.named is None  # a row of tables has no number of images


def test_clip_with_the_exact_gelu_or_without_the_projection_is_another_model(
    tmp_path: Path, pictures: list[Image.Image]
) -> None:
    state, features = clip()
    weights = tmp_path / "model.safetensors"
    save_file({key: value.clone().contiguous() for key, value in state.items()}, weights)
    with torch.no_grad():
        expected = features(pictures)
    options: dict[str, Any] = {"device": "cpu", "weights": weights, "resize": "hub-crop", "crop_pct": 1.0}
    exact = Backbone("vit_large_patch14_clip_224.openai", pool="head", backbone_args=SMALL, **options)
    assert (exact.embed(pictures).cls - expected).abs().max() > 0.01
    with_head = SMALL | {"num_classes": 768}
    token = Backbone("vit_large_patch14_clip_quickgelu_224.openai", backbone_args=with_head, **options)
    tokens = token.embed(pictures).cls
    torch.testing.assert_close(tokens @ state["head.weight"].T, expected, rtol=0, atol=5e-5)  # 24 to 768 values
