from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version
from PIL import Image

from idmetric import Embedding, IDSim, ImageReadError
from idmetric.metric.distance import DISTANCES
from tests.conftest import SMALL, random_model


def pictures(count: int, side: int = 40) -> list[Image.Image]:
    rng = np.random.default_rng(count)
    coarse = rng.integers(0, 256, (count, 5, 5, 3), dtype=np.uint8)
    return [Image.fromarray(x).resize((side, side + i)) for i, x in enumerate(coarse)]


@pytest.mark.parametrize("name", DISTANCES)
def test_scores_do_not_depend_on_batch_order_or_mates(small: IDSim, name: str) -> None:
    a, b = pictures(7), pictures(8)[1:]
    together = small(a, b, name, batch_size=7)
    alone = torch.cat([small(x, y, name) for x, y in zip(a, b, strict=True)])
    order = [3, 0, 6, 2, 5, 1, 4]
    shuffled = small([a[i] for i in order], [b[i] for i in order], name, batch_size=3)
    assert together.std() > 1e-4  # the comparison below would be empty otherwise
    assert (together - alone).abs().max() <= 1e-5
    assert (together[order] - shuffled).abs().max() <= 1e-5
    assert (small.pairwise(a, b, name, batch_size=2).diagonal() - together).abs().max() <= 1e-5


def test_shapes_of_the_answer(metric: IDSim) -> None:
    a, b = pictures(3), pictures(4)
    assert metric(a[0], b[0]).shape == (1,)
    assert isinstance(metric(a[0], b[0]).item(), float)
    assert metric(a[0], b).shape == (4,)
    assert metric(b, a[0]).shape == (4,)
    assert metric(a, b[:3]).shape == (3,)
    assert metric.pairwise(a, b).shape == (3, 4)
    assert metric.pairwise(a).shape == (3, 3)
    cosine = F.cosine_similarity(metric.embed(a).cls, metric.embed(b[:3]).cls)
    torch.testing.assert_close(metric.similarity(a, b[:3]), cosine)
    with pytest.raises(ValueError, match="3 images with 4"):
        metric(a, b)
    with pytest.raises(ValueError, match="no images"):
        metric([], b)


def test_every_kind_of_input_gives_one_score(metric: IDSim, tmp_path: Path) -> None:
    picture, other = pictures(2, side=metric.image_size[0])  # no resizing: kinds agree to the last digit
    picture = picture.resize((64, 64))
    picture.save(tmp_path / "x.png")
    array = np.asarray(picture)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    kinds = [tmp_path / "x.png", str(tmp_path / "x.png"), (tmp_path / "x.png").read_bytes(), picture, array,
             array / 255, tensor, tensor.float() / 255]  # fmt: skip
    scores = metric(other, kinds)
    assert (scores - scores[0]).abs().max() <= 1e-6
    with (tmp_path / "x.png").open("rb") as file:
        assert (metric(other, file) - scores[0]).abs().item() <= 1e-6


def test_embed_keeps_what_forward_computes(small: IDSim) -> None:
    images = pictures(5, side=small.image_size[0])
    pixels = torch.rand(5, 3, *small.image_size)
    e = small.embed(pixels, batch_size=2)
    f = small(pixels)
    assert isinstance(f, Embedding)
    assert f.patches is not None
    assert e.patches is not None
    torch.testing.assert_close(e.cls, f.cls)
    torch.testing.assert_close(e.patches, f.patches)
    assert e.grid == f.grid
    assert e.model == small.model_id
    assert e.patches.norm(dim=-1).sub(1).abs().max() < 1e-5
    assert e.cls.mean(-1).abs().max() < 1e-6  # centered
    bare = small.embed(images, patches=False)
    assert bare.patches is None
    done: list[tuple[int, int]] = []
    small.embed(images, batch_size=2, progress=lambda n, of: done.append((n, of)))
    assert done == [(2, 5), (4, 5), (5, 5)]


def test_embeddings_stand_for_images(metric: IDSim) -> None:
    a, b = pictures(3), pictures(4)[:3]
    torch.testing.assert_close(metric(metric.embed(a), b, "joint"), metric(a, b, "joint"))
    other = IDSim(SMALL["dinov2"], device="cpu")
    with pytest.raises(ValueError, match="was made by"):
        metric(other.embed(a), b)


def test_embed_warns_that_it_drops_the_graph_of_images_under_training(metric: IDSim) -> None:
    """As DreamSim's `embed` builds one, a loss on `metric.embed(x)` would silently train nothing."""
    x = torch.rand(1, 3, 64, 64).requires_grad_()
    for images in (x, [x[0]]):
        with pytest.warns(UserWarning, match=r"passes no gradient .* metric\(pixels\)") as caught:
            assert not metric.embed(images).cls.requires_grad
        assert [Path(warning.filename).name for warning in caught] == ["test_embedder.py"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.embed(x.detach())
        with torch.no_grad():
            metric.embed(x)
        features = metric(x).cls  # what the warning advises
    features[:, 0].sum().backward()  # the sum over all is 0, as features are centered
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_a_metric_prints_and_signs_what_made_a_score(metric: IDSim) -> None:
    tiny = IDSim("tiny", device="cpu")
    assert repr(tiny) == f"{tiny.model_id}, torch.float32 on cpu"
    found = metric.signature("patch")
    assert (found["distance"], found["resolution"], found["dtype"]) == ("patch", "64x64", "float32")
    assert {"model", "revision", "idmetric"} < found.keys()


def test_no_graph_unless_asked_for(metric: IDSim) -> None:
    x = torch.rand(1, 3, 64, 64)
    assert not metric(x, x).requires_grad
    y = x.clone().requires_grad_()
    assert metric(y, x).requires_grad
    assert metric(x, [y[0]], "joint").requires_grad
    with torch.no_grad():
        assert not metric(y, x).requires_grad
    assert all(p.grad is None and not p.requires_grad for p in metric.parameters())


@pytest.mark.parametrize("name", ["cls", "patch_pooled", "joint_pooled"])
@pytest.mark.parametrize("kind", sorted(SMALL))
def test_gradient_with_respect_to_pixels(kind: str, name: str) -> None:
    torch.manual_seed(0)
    model = IDSim(SMALL[kind], device="cpu", dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    reference = torch.rand(1, 3, 40, 30, dtype=torch.float64, generator=generator)
    x = (torch.rand(1, 3, 50, 36, dtype=torch.float64, generator=generator) * 0.8 + 0.1).requires_grad_()
    score = model(reference, x, name)
    assert score.dtype == torch.float64
    (gradient,) = torch.autograd.grad(score.sum(), x)
    assert gradient.abs().max() > 0
    for _ in range(4):
        direction = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        h = 1e-6
        with torch.no_grad():
            numeric = (model(reference, x + h * direction, name) - model(reference, x - h * direction, name)) / (2 * h)
        assert numeric.item() == pytest.approx((gradient * direction).sum().item(), rel=1e-4, abs=1e-9)


def test_pixels_out_of_range_are_refused_everywhere(metric: IDSim) -> None:
    bad = torch.rand(1, 3, 8, 8) * 255
    for use in (metric, metric.embed, lambda x: metric(x, x)):
        with pytest.raises(ImageReadError, match="found"):
            use(bad)


def test_frozen_models_stay_in_eval_mode(small: IDSim) -> None:
    assert not small.train().training
    small.requires_grad_(True)
    assert small.train().training
    small.requires_grad_(False).eval()


def test_subject_masks(metric: IDSim) -> None:
    rng = np.random.default_rng(0)
    subject = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    mask = np.zeros((64, 64), dtype=bool)
    mask[:, :40] = True
    scenes = [np.where(mask[..., None], subject, rng.integers(0, 256, subject.shape, dtype=np.uint8)) for _ in range(2)]
    for name in ("cls", "patch", "joint", "patch_pooled"):
        assert metric(scenes[0], scenes[1], name).item() > 1e-4
        masked = metric(scenes[0], scenes[1], name, mask_a=mask, mask_b=mask)
        assert masked.item() == pytest.approx(0, abs=1e-6), name
    e = metric.embed(scenes, masks=[mask, None])
    assert e.weights is not None
    expected = torch.tensor([1.0, 1, 0.5, 0]).repeat(4)  # a 4 x 4 grid of 16 pixels, 40 of them covered
    torch.testing.assert_close(e.weights[0], expected)
    assert e.weights[1].equal(torch.ones(16))
    kept = metric.embed(scenes[0], masks=mask, outside="keep")
    torch.testing.assert_close(kept.cls, metric.embed(scenes[0]).cls)
    black = np.where(mask[..., None], scenes[0], 0).astype(np.uint8)
    torch.testing.assert_close(e.cls[:1], metric.embed(black).cls)
    with pytest.raises(ValueError, match="2 masks for 1 images"):
        metric.embed(scenes[0], masks=[mask, mask])
    with pytest.raises(ValueError, match="empty"):
        metric.embed(scenes[0], masks=np.zeros((64, 64), dtype=bool))


def test_a_crop_scores_the_subject_alone(metric: IDSim) -> None:
    torch.manual_seed(0)
    subject = torch.rand(3, 32, 32)
    images, masks = [], []
    for top, left in ((0, 0), (20, 9)):
        image, mask = torch.rand(3, 64, 48), torch.zeros(64, 48)
        image[:, top : top + 32, left : left + 32] = subject
        mask[top : top + 32, left : left + 32] = 1
        images.append(image)
        masks.append(mask)
    apart = {
        outside: metric(*images, mask_a=masks[0], mask_b=masks[1], outside=outside) for outside in ("black", "crop")
    }
    assert apart["crop"].item() < 1e-6  # wherever it stands
    assert apart["black"].item() > 1e-3
    assert metric.embed(images[0], masks=masks[0], outside="crop").cls.allclose(metric.embed(subject).cls, atol=1e-5)


@pytest.mark.parametrize("image", ["a.png", Path("a.png"), ["a.png"], Image.new("RGB", (8, 8)), np.zeros((8, 8, 3))])
def test_one_image_alone_gets_an_error_that_names_both_ways_to_call(image: object) -> None:
    metric = IDSim("tiny", device="cpu")
    with pytest.raises(TypeError, match=r"metric\(a, b\), or embed one with metric.embed\(a\)"):
        metric(image)


@pytest.mark.skipif(Version(torch.__version__) < Version("2.10"), reason="docs/limits.md: torch.func needs torch 2.10")
def test_torch_func_differentiates_and_vmap_is_refused() -> None:
    model = random_model("dinov3")
    a, b = torch.rand(2, 2, 3, 64, 64)
    leaf = a.clone().requires_grad_()
    model(leaf, b).sum().backward()
    found = torch.func.grad(lambda x: model(x, b).sum())(a)
    torch.testing.assert_close(found, leaf.grad)
    torch.testing.assert_close(torch.func.jacrev(lambda x: model(x, b))(a).sum(0), found)
    with pytest.raises(RuntimeError):
        torch.func.vmap(lambda x, y: model(x[None], y[None]))(a, b)
