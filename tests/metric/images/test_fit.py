"""Squashing, cropping and padding, against torchvision's transforms of PIL images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from PIL import Image

from idmetric.metric.backbone import Backbone
from idmetric.metric.images import Fit, ImageReadError, to_pixels

transforms = pytest.importorskip("torchvision.transforms")

MUG = Path(__file__).parents[3] / "examples/images"
SIZES = [(640, 480), (481, 641), (333, 1001), (255, 257), (100, 90), (224, 224), (256, 256)]  # width, height


def photo(width: int, height: int) -> Image.Image:
    found = next(MUG.glob("*.jpg"), None) or next(MUG.glob("*.png"))
    return Image.open(found).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)


def theirs(image: Image.Image, side: int, cut: int, mode: Any) -> torch.Tensor:
    steps = [transforms.Resize(side, interpolation=mode), transforms.CenterCrop(cut), transforms.ToTensor()]
    found: torch.Tensor = transforms.Compose(steps)(image)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("side", "pct"), [(256, 0.875), (224, 1.0), (248, 0.9)])
@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_a_crop_is_torchvisions_exactly(size: tuple[int, int], side: int, pct: float, mode: str) -> None:
    image = photo(*size)
    found = to_pixels(image, (224, 224), interpolation=mode, fit=Fit("crop", pct))
    expected = theirs(image, side, 224, getattr(transforms.InterpolationMode, mode.upper()))
    assert torch.equal(found, expected)


def processed(kind: str, image: Image.Image) -> NDArray[np.uint8]:
    """What an image processor of the Hub sees of an image, before normalization, by its settings on the Hub."""
    import transformers

    settings = {
        "CLIPImageProcessor": {"size": {"shortest_edge": 224}, "crop_size": 224},
        "BitImageProcessor": {"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True},
        "SiglipImageProcessor": {"size": {"height": 224, "width": 224}, "resample": 3},
    }[kind]
    # since transformers 5, the others resize by torchvision
    processor = getattr(transformers, f"{kind}Pil", None) or getattr(transformers, kind)
    seen = processor(**settings)(image, return_tensors="np", do_rescale=False, do_normalize=False)["pixel_values"][0]
    found: NDArray[np.uint8] = np.moveaxis(seen, 0, -1)
    return found


HUB_FITS = {
    "CLIPImageProcessor": Fit("hub-crop", 1.0), "BitImageProcessor": Fit("hub-crop", 224 / 256),
    "SiglipImageProcessor": Fit("squash"),
}  # fmt: skip
RANDOM_SIZES = np.random.default_rng(10).integers(60, 500, (40, 2)).tolist()


@pytest.mark.parametrize("kind", HUB_FITS)
def test_a_hub_crop_is_that_of_transformers_image_processors(kind: str) -> None:
    for size in [(333, 517), (832, 1216), (1080, 1920), *SIZES, *RANDOM_SIZES]:
        image = photo(*size)
        seen = np.array(HUB_FITS[kind].image(image, (224, 224), "bicubic"))
        assert (seen == processed(kind, image)).all(), size


@pytest.mark.parametrize("size", [(640, 480), (333, 1001)])
def test_a_crop_of_floats_is_near_and_has_a_gradient_inside_the_crop_alone(size: tuple[int, int]) -> None:
    image = photo(*size)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)[None].requires_grad_()
    found = Fit("crop", 0.875).pixels(pixels, (224, 224), "bicubic")
    expected = theirs(image, 256, 224, transforms.InterpolationMode.BICUBIC)
    assert (found[0] - expected).abs().mean() < 1 / 255
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert pixels.grad is not None
    touched = pixels.grad[0].abs().sum(0) > 0
    assert touched[size[1] // 2, size[0] // 2]
    assert not touched[0, 0]
    assert not touched[-1, -1]


def test_a_mask_is_fitted_with_its_image() -> None:
    fit = Fit("crop", 0.875)
    cover = torch.zeros(300, 500)
    cover[100:200, 200:300] = 1
    image = Image.fromarray((cover.numpy() * 255).astype(np.uint8)).convert("RGB")
    seen = np.array(fit.image(image, (224, 224), "bilinear"))[..., 0] / 255
    assert np.abs(fit.cover(cover, (224, 224), False).numpy() - seen).mean() < 0.01
    floats = torch.zeros(224, 224)
    assert fit.cover(floats, (224, 224), True) is floats


def test_another_fit_is_refused() -> None:
    for bad in ({"resize": "stretch"}, {"crop_pct": 0.0}, {"crop_pct": 1.5}):
        with pytest.raises(ValueError, match=str(*bad.values())):
            Fit(**bad)  # type: ignore[arg-type]


# Models

TINY = {"embed_dim": 24, "depth": 1, "num_heads": 2}


def backbone(**options: Any) -> Backbone:
    torch.manual_seed(0)
    return Backbone("vit_small_patch16_224.dino", pretrained=False, backbone_args=TINY, device="cpu", **options)


def test_a_backbone_crops_as_its_weights_were_evaluated_or_as_asked(tmp_path: Path) -> None:
    image = photo(640, 480)
    own, asked = backbone(resize="crop"), backbone(resize="crop", crop_pct=0.875, interpolation="bilinear")
    assert own.fit == Fit("crop", timm.get_pretrained_cfg("vit_small_patch16_224.dino").crop_pct)
    seen = asked.load(image)[0]
    assert torch.equal(seen, theirs(image, 256, 224, transforms.InterpolationMode.BILINEAR))
    with torch.no_grad():
        expected = asked.backbone(asked.normalize(seen)[None])
    torch.testing.assert_close(asked.embed(image).cls, expected)
    torch.testing.assert_close(asked.embed([seen]).cls, expected)  # not cropped twice

    asked.save_pretrained(tmp_path)
    again = Backbone(tmp_path, device="cpu")
    assert (again.fit, again.interpolation) == (asked.fit, "bilinear")
    assert torch.equal(again.embed(image).cls, asked.embed(image).cls)


def test_embeddings_of_different_transforms_never_mix() -> None:
    image = photo(640, 480)
    models = [
        backbone(), backbone(resize="crop"), backbone(resize="crop", crop_pct=0.875),
        backbone(interpolation="bilinear"), backbone(resize="crop", interpolation="bilinear"),
    ]  # fmt: skip
    assert len({m.model_id for m in models}) == len({m.about()["seen"] for m in models}) == len(models)
    assert len({m.signature()["model"] for m in models}) == len(models)
    with pytest.raises(ValueError, match="embed its images again"):
        models[0](models[1].embed(image), image)


def test_a_mask_outside_the_crop_is_an_error() -> None:
    mask = Image.new("L", (1000, 224))
    mask.paste(255, (0, 0, 50, 224))
    with pytest.raises(ImageReadError, match="selects nothing of the part"):
        backbone(resize="crop", crop_pct=1.0).embed(photo(1000, 224), masks=mask, outside="keep")
