"""`IDSim` with a second backbone beside the first, and weights in a byte each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pair import packed, write_pair

from idmetric import IDSim, load
from idmetric.metric.checkpoints.weights import SCALE, unpacked
from idmetric.metric.models.tiny import TinyConfig

CONFIG = TinyConfig(
    backbone="tf_efficientnet_lite0", image_size=96, hidden=8, features="final", patch_stages=(3, 4),
)  # fmt: skip
SHARE = 0.3


@pytest.fixture(scope="module")
def models() -> tuple[IDSim, IDSim]:
    torch.manual_seed(0)
    return IDSim(CONFIG, device="cpu"), IDSim(replace(CONFIG, backbone="tf_efficientnet_lite2"), device="cpu")


def test_both_features_stand_side_by_side_by_their_shares(models: tuple[IDSim, IDSim], tmp_path: Path) -> None:
    pixels = torch.rand(3, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    write_pair(*models, 64, SHARE, tmp_path)
    pair = load(tmp_path, device="cpu")
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


def test_a_byte_for_each_value_errs_by_half_a_step_of_its_row_at_most() -> None:
    rng = torch.Generator().manual_seed(2)
    sizes = torch.tensor([1e-3, 1, 50, 0, 2]).view(5, 1, 1, 1)
    state = {
        "filter.weight": torch.randn(5, 1100, 2, 2, generator=rng) * sizes,
        "filter.bias": torch.randn(5, generator=rng),
        "depthwise.weight": torch.randn(7, 1, 3, 3, generator=rng),
    }
    stored = packed(state)
    assert stored["filter.weight"].dtype == torch.int8
    found = unpacked(stored, "pair")
    assert found.keys() == state.keys()
    step = state["filter.weight"].flatten(1).abs().amax(1) / 127
    assert ((found["filter.weight"] - state["filter.weight"]).abs().flatten(1).amax(1) <= step * 0.501).all()
    assert all(found[name].equal(state[name].half()) for name in ("filter.bias", "depthwise.weight"))
    expected = stored["filter.weight"][2, 1, 0, 1].item() * stored["filter.weight" + SCALE][2].item()
    assert found["filter.weight"][2, 1, 0, 1].item() == pytest.approx(expected)
