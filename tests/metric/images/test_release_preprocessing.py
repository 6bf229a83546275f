"""`preprocessing="release"`: images as the ID-Sim and NearID releases read them, against Pillow and torchvision."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idmetric import IDSim, NearID, load
from idmetric.metric.images import to_pixels
from idmetric.metric.nearid import NearIDConfig
from tests.conftest import SMALL, random_model

SIDE = 448


def scene(height: int = 90, width: int = 60) -> Image.Image:
    """Smooth colors that differ from side to side, so that a turn or another background shows."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    channels = [x / width, y / height, (np.sin(x / 7) * np.cos(y / 11) + 1) / 2]
    return Image.fromarray((np.stack(channels, -1) * 255).astype(np.uint8))


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    scene().save(path, exif=exif)


def transparent(path: Path) -> None:
    image = scene().convert("RGBA")
    image.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 60).astype(np.uint8), (90, 1))))
    image.save(path)


def sixteen_bits(path: Path) -> None:
    Image.fromarray(np.asarray(scene().convert("L")).astype(np.uint16) * 257 // 3 + 100).save(path)


def palette(path: Path) -> None:
    scene().quantize(16).save(path, transparency=3)


def cmyk(path: Path) -> None:
    scene().convert("CMYK").save(path)


def animated(path: Path) -> None:
    frames = [scene().quantize(32), scene().rotate(90).quantize(32)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


KINDS: dict[str, tuple[str, Any, bool]] = {  # a file, and whether "standard" reads it otherwise
    "EXIF-rotated": ("turned.jpg", turned, True),
    "semi-transparent": ("alpha.png", transparent, True),
    "16-bit": ("deep.png", sixteen_bits, True),
    "palette with transparency": ("palette.png", palette, True),
    "CMYK": ("cmyk.jpg", cmyk, False),
    "animated": ("moving.gif", animated, False),
    "plain": ("plain.png", lambda path: scene().save(path), False),
}


def made(kind: str, folder: Path) -> tuple[Path, bool]:
    name, write, differs = KINDS[kind]
    write(folder / name)
    return folder / name, differs


def released(path: Path, side: int) -> Tensor:
    """What the release's loader makes of a file, written out."""
    transforms = pytest.importorskip("torchvision.transforms")
    resize = transforms.Resize((side, side), transforms.InterpolationMode.BICUBIC)
    pixels: Tensor = transforms.ToTensor()(resize(Image.open(path).convert("RGB")))
    return pixels


@pytest.mark.filterwarnings("ignore::idmetric.metric.images.MultiFrameWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_becomes_the_releases_pixels(kind: str, tmp_path: Path) -> None:
    path, differs = made(kind, tmp_path)
    expected = released(path, SIDE)
    sources: list[Any] = [path, path.read_bytes(), io.BytesIO(path.read_bytes()), Image.open(path)]
    for source in sources:
        found = to_pixels(source, (SIDE, SIDE), preprocessing="release")
        assert found.equal(expected), type(source)
    standard = to_pixels(path, (SIDE, SIDE))
    assert ((standard - expected).abs().max() > 0.05) == differs


@pytest.mark.filterwarnings("ignore::idmetric.metric.images.MultiFrameWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_models_embeddings_are_those_of_the_releases_pixels(workers: int, tmp_path: Path) -> None:
    plain = random_model("dinov3")
    model = IDSim(SMALL["dinov3"], device="cpu", preprocessing="release")
    model.load_state_dict(plain.state_dict())
    paths, differ = zip(*(made(kind, tmp_path) for kind in KINDS), strict=True)
    found = model.embed(list(paths), workers=workers, batch_size=3)
    expected = torch.stack([released(path, 64) for path in paths])
    assert (found.cls - plain(expected).cls).abs().max() < 1e-5
    assert found.patches is not None
    assert (found.patches - plain(expected).patches).abs().max() < 1e-5  # type: ignore[operator]
    apart = 1 - F.cosine_similarity(plain.embed(list(paths)).cls, found.cls)
    assert ((apart > 1e-3) == torch.tensor(differ)).all(), apart


def test_nearid_reads_as_its_release_with_its_own_filter(tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    small = {"depth": 1, "embed_dim": 24, "num_heads": 2}
    torch.manual_seed(0)
    model = NearID(NearIDConfig(image_size=28, backbone_args=small), device="cpu", preprocessing="release")
    resize = transforms.Resize((28, 28), transforms.InterpolationMode.BILINEAR)
    for kind in ("EXIF-rotated", "semi-transparent", "16-bit"):
        path, _ = made(kind, tmp_path)
        expected = transforms.ToTensor()(resize(Image.open(path).convert("RGB")))
        assert (model.embed(path).cls - model(expected[None]).cls).abs().max() < 1e-6


# How NearID's evaluation reads files: Pillow's convert("RGB"), then the processor, here at the size of the files


def test_scores_of_the_two_never_mix(tmp_path: Path) -> None:
    random_model("dinov3").save_pretrained(tmp_path / "run")
    standard, release = (load(tmp_path / "run", device="cpu", preprocessing=p) for p in ("standard", "release"))
    assert standard.model_id == load(tmp_path / "run", device="cpu").model_id  # as it was before there was a choice
    assert "release" in release.model_id
    assert release.signature()["model"] != standard.signature()["model"]
    path, _ = made("EXIF-rotated", tmp_path)
    with pytest.raises(ValueError, match="the embedding was made by"):
        standard(release.embed(path), path)

    release.save_pretrained(tmp_path / "kept")
    again = load(tmp_path / "kept", device="cpu")
    assert again.preprocessing == "release"
    assert json.loads((tmp_path / "kept" / "config.json").read_text())["preprocessing"] == "release"
    assert again.embed(path).cls.equal(release.embed(path).cls)
    assert load(tmp_path / "kept", device="cpu", preprocessing="standard").preprocessing == "standard"


def test_an_unknown_preprocessing_is_refused() -> None:
    with pytest.raises(ValueError, match="published"):
        IDSim(SMALL["dinov3"], device="cpu", preprocessing="published")  # type: ignore[arg-type]


def test_models_without_a_release_to_follow_refuse_it() -> None:
    with pytest.raises(ValueError, match="ID-Sim and NearID alone"):
        load("timm:vit_tiny_patch16_224", pretrained=False, preprocessing="release")
