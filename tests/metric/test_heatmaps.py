"""Similarity maps, against slow loops over tokens and pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from idmetric import Backbone, IDSim
from idmetric.metric.embedding import Embedding
from idmetric.metric.heatmap import Layout, coverage, heatmaps, layout, patch_similarity


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def tokens(count: int, weights: bool = False, seed: int = 0) -> Embedding:
    drawn = torch.Generator().manual_seed(seed)
    cover = torch.rand(count, 6, generator=drawn) * (torch.arange(6) > 1) if weights else None
    patches = torch.randn(count, 6, 5, generator=drawn)
    return Embedding(torch.ones(count, 3), patches, (2, 3), cover, "m")


def slow(subject: Embedding, target: torch.Tensor) -> float:
    """Similarity of one token of a target."""
    assert subject.patches is not None
    found = []
    for k in range(len(subject)):
        own = [token / token.norm() for token in subject.patches[k]]
        weight = [1.0] * len(own) if subject.weights is None else subject.weights[k].tolist()
        mean = sum(u * w for u, w in zip(own, weight, strict=True)) / sum(weight)
        found.append(float(target / target.norm() @ mean / mean.norm()))
    return sum(found) / len(found)


@pytest.mark.parametrize("weights", [False, True])
def test_similarity_is_that_of_a_loop_over_tokens(weights: bool) -> None:
    subject, targets = tokens(3, weights), tokens(2, seed=1)
    found = patch_similarity(subject, targets)
    assert targets.patches is not None
    expected = [[slow(subject, token) for token in one] for one in targets.patches]
    assert found.numpy() == pytest.approx(np.array(expected), abs=1e-5)


def test_maps_have_the_images_size_and_lie_as_the_patches_do(metric: IDSim) -> None:
    images = [picture(50, 90, 1), picture(64, 64, 2)]
    maps = heatmaps(metric, picture(70, 40), images)
    assert [tuple(m.shape) for m in maps] == [(50, 90), (64, 64)]
    reference, found = metric.embed(picture(70, 40)), metric.embed(images[1])
    grid = patch_similarity(reference, found)[0].reshape(4, 4)
    expected = F.interpolate(grid[None, None], (64, 64), mode="bilinear", align_corners=False)[0, 0]
    assert (maps[1] - expected).abs().max() < 1e-5
    bright = maps[1].flatten().argmax().item()
    assert (bright // 64 // 16, bright % 64 // 16) == divmod(int(grid.argmax()), 4)


def test_a_subject_is_hottest_where_it_stands(photos: list[Path]) -> None:
    metric = IDSim("tiny", device="cpu")
    side = metric.image_size[0]
    cell = side // 2
    parts = [Image.open(p).convert("RGB").resize((cell, cell)) for p in photos[:4]]
    scene = Image.new("RGB", (side, side))
    for k, part in enumerate(parts):
        scene.paste(part, (k % 2 * cell, k // 2 * cell))
    mask = np.zeros((side, side), dtype=bool)
    mask[cell:, :cell] = True
    [heat] = heatmaps(metric, scene, scene, masks=mask)
    y, x = divmod(int(heat.flatten().argmax()), side)
    assert mask[y, x]
    assert heat[mask].mean() > heat[~mask].mean()


def test_references_are_averaged_and_masks_matter(metric: IDSim) -> None:
    refs, target = [picture(40, 60, 1), picture(40, 60, 2)], picture(64, 64, 3)
    alone = [heatmaps(metric, r, target)[0] for r in refs]
    [both] = heatmaps(metric, refs, target)
    assert (both - torch.stack(alone).mean(0)).abs().max() < 1e-5
    mask = np.zeros((40, 60), dtype=bool)
    mask[:20, :20] = True
    [masked] = heatmaps(metric, refs[0], target, masks=mask)
    assert (masked - alone[0]).abs().max() > 1e-4
    embedded = metric.embed(refs[0], masks=mask, outside="keep")
    assert heatmaps(metric, embedded, target)[0].equal(masked)


def test_gradients_reach_the_targets_pixels(metric: IDSim) -> None:
    pixels = torch.rand(1, 3, 64, 64, requires_grad=True)
    [heat] = heatmaps(metric, picture(64, 64), pixels)
    heat.max().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0


def test_patches_that_leave_a_margin_are_placed_where_they_are() -> None:
    torch.manual_seed(0)
    small = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    metric = Backbone("vit_tiny_patch16_224", pretrained=False, image_size=40, backbone_args=small, device="cpu")
    where = layout(metric, 80, 80, metric.embed(picture(80, 80)))
    assert where == Layout((2, 2), (40, 40), (32, 32))
    found = where.spread(torch.tensor([0.0, 1.0, 2.0, 3.0]), (80, 80))
    # patches end at 64 of the image's 80 pixels; their centers lie at 16 and 48
    assert found[0, 31:33].mean() == pytest.approx(0.5)
    assert found[31:33, 0].mean() == pytest.approx(1)
    assert found[0, 48:].tolist() == [1] * 32
    assert found[79, 79] == 3
    mask = np.zeros((80, 80), dtype=bool)
    mask[:32, 32:48] = True
    assert coverage(mask, where).numpy() == pytest.approx(np.array([[0, 0.5], [0, 0]]))


def test_visidembed_maps_follow_each_images_own_grid(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from idmetric import VisIDEmbed
    from tests.metric.models.test_visid import SMALL, make_qwen

    metric = VisIDEmbed(make_qwen(tmp_path), config=SMALL, device="cpu", dtype=torch.float32)
    wide, tall = picture(56, 112, 1), picture(112, 60, 2)
    maps = heatmaps(metric, picture(56, 56), [wide, tall])
    assert [tuple(m.shape) for m in maps] == [(56, 112), (112, 60)]
    assert layout(metric, 56, 112, metric.embed(wide)).grid == (2, 4)
    subject, found = metric.embed(picture(56, 56)), metric.embed(tall)
    grid = patch_similarity(subject, found)[0, :8].reshape(1, 1, 4, 2)
    expected = F.interpolate(grid, (112, 60), mode="bilinear", align_corners=False)[0, 0]
    assert (maps[1] - expected).abs().max() < 1e-5


def test_clear_errors(metric: IDSim) -> None:
    bare = metric.embed(picture(64, 64), patches=False)
    with pytest.raises(ValueError, match="no patch tokens: a map needs a model with them"):
        heatmaps(metric, bare, picture(64, 64))
    with pytest.raises(ValueError, match="two models"):
        patch_similarity(tokens(1), Embedding(torch.ones(1, 3), torch.ones(1, 6, 5), (2, 3), model="other"))
