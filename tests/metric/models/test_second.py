"""`IDSim` with a second backbone beside the first, and weights in a byte each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from idmetric import IDSim, load
from idmetric.metric.checkpoints.weights import SCALE, unpacked
from idmetric.metric.tiny.tiny import TinyConfig

CONFIG = TinyConfig(
    backbone="tf_efficientnet_lite0", image_size=96, hidden=8, features="final", patch_stages=(3, 4),
)  # fmt: skip
SHARE = 0.3


@pytest.fixture(scope="module")
def models() -> tuple[IDSim, IDSim]:
    torch.manual_seed(0)
    return IDSim(CONFIG, device="cpu"), IDSim(replace(CONFIG, backbone="tf_efficientnet_lite2"), device="cpu")


def test_both_features_stand_side_by_side_by_their_shares(models: tuple[IDSim, IDSim]) -> None:
    pixels = torch.rand(3, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    settings = replace(CONFIG, second="tf_efficientnet_lite2", second_size=64, second_share=SHARE)
    pair = IDSim(settings, device="cpu")
    parts = {
        "backbone": models[0].backbone, "mlp_cls": models[0].mlp_cls, "mlp_patch": models[0].mlp_patch,
        "second": models[1].backbone, "mlp_second": models[1].mlp_cls,
    }  # fmt: skip
    state = {f"{part}.{name}": value for part, own in parts.items() for name, value in own.state_dict().items()}
    pair.load_state_dict(state)
    smaller = F.interpolate(pixels, (64, 64), mode="bilinear", antialias=True, align_corners=False)
    seen = ((pair, pixels), (models[0], pixels), (models[1], smaller))
    found, first, second = (model.embed_pixels(x) for model, x in seen)

    assert found.cls.shape == (3, 2560)
    both = ((first.cls, 1 - SHARE), (second.cls, SHARE))
    for part, (own, share) in zip(found.cls.split(1280, dim=-1), both, strict=True):
        torch.testing.assert_close(part.square().sum(-1), torch.full((3,), share))
        assert F.cosine_similarity(part, own, dim=-1).min() > 0.99
    assert F.cosine_similarity(first.cls, second.cls, dim=-1).abs().max() < 0.5
    assert found.patches is not None
    assert first.patches is not None
    assert F.cosine_similarity(found.patches, first.patches, dim=-1).min() > 0.99
    assert found.grid == first.grid


def test_a_pair_is_saved_and_opened(models: tuple[IDSim, IDSim], tmp_path: Path) -> None:
    settings = replace(CONFIG, second="tf_efficientnet_lite2", second_size=64, second_share=SHARE)
    made, pixels = IDSim(settings, device="cpu"), torch.rand(2, 3, 96, 96)
    made.save_pretrained(tmp_path)
    opened = load(tmp_path, device="cpu")
    assert opened.settings == settings
    assert opened.embed_pixels(pixels).cls.equal(made.embed_pixels(pixels).cls)
    assert models[0].config()["second"] == ""


def test_a_byte_for_each_value_is_scaled_by_its_row() -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(-127, 128, (5, 4, 2, 2), dtype=torch.int8, generator=generator)
    scale = torch.rand(5, generator=generator)
    found = unpacked({"filter.weight": values, f"filter.weight{SCALE}": scale, "filter.bias": scale})
    torch.testing.assert_close(found["filter.weight"], values.float() * scale.view(5, 1, 1, 1))
    assert found["filter.bias"].equal(scale)
    assert len(found) == 2
