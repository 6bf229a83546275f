"""Features of timm's encoders, against their own outputs taken apart by hand; inputs are wider than high."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from idmetric import Backbone, CheckpointError
from idmetric.metric.checkpoints.format import revision_of
from idmetric.metric.timm_models import final_tokens, last_tokens

SMALL_VIT: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3}
SWIN: dict[str, Any] = {"embed_dim": 24, "depths": (1, 1), "num_heads": (2, 2), "img_size": (64, 128), "window_size": 4}


def encoder(name: str, **args: Any) -> Any:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **args).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.double()


def picture(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("read", [last_tokens, final_tokens])
@pytest.mark.parametrize(
    ("name", "args", "size", "grid"),
    [
        ("vit_small_patch16_dinov3", SMALL_VIT, (64, 96), (4, 6)),
        ("swinv2_tiny_window8_256", SWIN, (64, 128), (8, 16)),
    ],
)
def test_patches_are_in_rows_of_the_grid(read: Any, name: str, args: Any, size: Any, grid: Any) -> None:
    model, x = encoder(name, **args), picture(*size)
    with torch.no_grad():
        _, before, found = read(model, x)
        assert found == grid
        assert before.shape[:2] == (2, grid[0] * grid[1])
        # a dot in the corner of the second row changes the patch at the beginning of the second row most
        step = size[0] // grid[0]
        x[:, :, step : 2 * step, :step] += 3
        _, after, _ = read(model, x)
    assert ((after - before).norm(dim=-1).argmax(1) == grid[1]).all()


@pytest.mark.parametrize("read", [last_tokens, final_tokens])
def test_a_feature_map_is_read_in_rows_and_averaged(read: Any) -> None:
    model, x = encoder("resnet18"), picture(64, 96)
    with torch.no_grad():
        feature, patches, grid = read(model, x)
        expected = model.forward_features(x)
    assert expected.shape[2:] == grid == (2, 3)
    torch.testing.assert_close(feature, expected.mean((2, 3)))
    for row, column in ((0, 2), (1, 1)):
        torch.testing.assert_close(patches[:, 3 * row + column], expected[:, :, row, column])


def test_the_last_block_is_read_before_the_final_norm_without_registers() -> None:
    model, x = encoder("vit_small_patch16_dinov3", **SMALL_VIT), picture(64, 96)
    seen: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda module, args, out: seen.append(out))
    with torch.no_grad():
        feature, patches, _ = last_tokens(model, x)
    assert seen[0].shape[1] == 1 + 4 + 24
    torch.testing.assert_close(feature, seen[0][:, 0])
    torch.testing.assert_close(patches, seen[0][:, 5:])


@pytest.mark.parametrize("pool", ["cls", "avg", "auto"])
def test_pooling_reads_the_normed_class_token_or_the_patches_alone(pool: Any) -> None:
    model, x = encoder("vit_small_patch16_dinov3", **SMALL_VIT), picture(64, 96)
    with torch.no_grad():
        feature, patches, _ = final_tokens(model, x, pool)
        tokens = model.forward_features(x)
    torch.testing.assert_close(patches, tokens[:, 5:])
    torch.testing.assert_close(feature, tokens[:, 5:].mean(1) if pool == "avg" else tokens[:, 0])


def test_an_encoder_without_class_token_is_pooled_by_timm_or_refuses() -> None:
    model, x = encoder("vit_base_patch16_siglip_224", **SMALL_VIT), picture(224, 224)
    with torch.no_grad():
        feature, _, _ = final_tokens(model, x)
        torch.testing.assert_close(feature, model(x))
    with pytest.raises(ValueError, match="no class token"):
        final_tokens(model, x, "cls")


def test_a_folder_opened_with_other_weights_is_named_by_those(tmp_path: Path) -> None:
    """Otherwise scores of the other weights would carry the folder's revision."""
    args = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    models = [
        Backbone("vit_small_patch16_224.dino", pretrained=False, image_size=32, backbone_args=args, device="cpu")
        for _ in range(2)
    ]
    models[0].save_pretrained(tmp_path / "folder")
    save_file(dict(models[1].backbone.state_dict()), tmp_path / "other.safetensors")
    opened = Backbone(tmp_path / "folder", weights=tmp_path / "other.safetensors", device="cpu")
    assert opened.revision == revision_of(tmp_path / "other.safetensors")
    pixels = torch.rand(2, 3, 32, 32)
    assert opened.embed_pixels(pixels).cls.equal(models[1].embed_pixels(pixels).cls)


def test_weights_for_patches_of_another_size_are_refused(tmp_path: Path) -> None:
    """timm would resample the patch embedding, which makes another model."""
    small = timm.create_model("vit_tiny_patch16_224", num_classes=0, patch_size=8, **SMALL_VIT)
    save_file(small.state_dict(), tmp_path / "patch8.safetensors")
    weights = tmp_path / "patch8.safetensors"
    with pytest.raises(CheckpointError, match=r"patch8\.safetensors.*patches"):
        Backbone("vit_tiny_patch16_224", weights=weights, backbone_args=SMALL_VIT, device="cpu")
    Backbone("vit_tiny_patch16_224", weights=weights, backbone_args={**SMALL_VIT, "patch_size": 8}, device="cpu")
