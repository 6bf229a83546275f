"""Patch tokens of `IDSim` from several feature maps of a convolutional backbone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from idmetric import IDSim, load
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.tiny.tiny import TinyConfig

CONFIG = TinyConfig(
    backbone="tf_efficientnet_lite0", image_size=96, hidden=8, features="final", patch_stages=(3, 4),
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> IDSim:
    torch.manual_seed(0)
    return IDSim(CONFIG, device="cpu").eval()


def test_patches_join_the_maps_of_the_stages(model: IDSim) -> None:
    pixels = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    seen: dict[int, torch.Tensor] = {}
    trunk = model.backbone
    hooks = [
        trunk.blocks[block].register_forward_hook(lambda _m, _i, out, block=block: seen.__setitem__(block, out))
        for block in (4, 6)  # the last blocks at strides 16 and 32
    ]
    with torch.no_grad():
        found = model.embed_pixels(pixels)
        for hook in hooks:
            hook.remove()
        fine, deep = seen[4], torch.nn.Upsample((6, 6), mode="bilinear")(seen[6])
        assert fine.shape == (2, 112, 6, 6)
        assert deep.shape == (2, 320, 6, 6)
        for row, column in ((0, 0), (2, 5)):
            parts = [m[:, :, row, column] - m[:, :, row, column].mean(1, keepdim=True) for m in (fine, deep)]
            token = model.mlp_patch(torch.cat([p / p.norm(dim=1, keepdim=True) for p in parts], 1))
            expected = F.normalize(token - token.mean(1, keepdim=True), dim=1)
            assert found.patches is not None
            torch.testing.assert_close(found.patches[:, row * 6 + column], expected, rtol=0, atol=1e-5)

        feature = model.mlp_cls(trunk.forward_features((pixels - 0.5) / 0.5).mean((2, 3)))
    expected = F.normalize(feature - feature.mean(1, keepdim=True), dim=1)
    torch.testing.assert_close(found.cls, expected, rtol=0, atol=1e-5)
    assert found.grid == (6, 6)


def test_the_stages_are_saved(model: IDSim, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    opened = load(tmp_path, device="cpu")
    assert isinstance(opened, IDSim)
    assert opened.settings == CONFIG
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    one, two = (m.embed(image, patches=True).patches for m in (model, opened))
    assert one is not None
    assert two is not None
    assert one.equal(two)


def test_models_without_stages_keep_their_files() -> None:
    config = IDSimConfig("tf_efficientnet_lite0", 96, 8, features="final")
    assert "patch_stages" not in IDSim(config, device="cpu").config()


def test_stages_need_the_final_features() -> None:
    with pytest.raises(ValueError, match="needs features = 'final'"):
        replace(CONFIG, features="last-block")
