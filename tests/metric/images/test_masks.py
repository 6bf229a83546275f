"""Masks of every encoding select the same subject in every reader, and ambiguous ones are refused."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageDraw

import idmetric
from idmetric.data.check import faults
from idmetric.data.manifest import checked
from idmetric.metric.embedder import Embedder
from idmetric.metric.images import ImageReadError, Outside, describe, read_image
from idmetric.metric.loss import IdentityLoss
from idmetric.metric.masks import Labeled, MaskWarning, cut_out, read_mask, same_shape
from idmetric.train.batches import Pictures
from tests.metric.images.test_read import noise, saved

EXAMPLES = Path(__file__).parents[3] / "examples" / "images"


def half_mask() -> np.ndarray:
    mask = np.zeros((8, 8), bool)
    mask[:, 4:] = True
    return mask


def subject(width: int = 96, height: int = 64) -> np.ndarray:
    image = Image.new("1", (width, height))
    ImageDraw.Draw(image).ellipse([width // 8, height // 4, width * 5 // 8, height * 7 // 8], fill=1)
    return np.array(image)


def white_on_black(on: np.ndarray) -> Image.Image:
    return Image.fromarray(on.astype(np.uint8) * 255)


# One mask


def test_masks_are_averaged_exactly() -> None:
    on = half_mask()
    assert torch.equal(read_mask(on, (8, 8)), torch.from_numpy(on).float())
    third = read_mask(on, (1, 3))[0]
    assert torch.allclose(third, torch.tensor([0, 0.5, 1]), atol=1e-6)
    fine = read_mask(np.array([[False, True]]), (3, 4))
    assert torch.equal(fine, torch.tensor([0.0, 0, 1, 1]).expand(3, 4))
    assert read_mask(np.ones((3000, 1000), bool), (7, 9)).min() == 1
    rows, columns = np.random.default_rng(0).random((2, 1, 12))
    shares = (rows.T * columns)[:, :6]
    by_hand = shares.reshape(4, 3, 2, 3).mean((1, 3))
    np.testing.assert_allclose(read_mask(torch.from_numpy(shares), (4, 2)), by_hand, atol=1e-6)


@pytest.mark.parametrize(
    "source",
    [
        np.zeros((0, 4)),
        torch.zeros(5, 4, 4),
        np.zeros((4, 4, 3)),
        np.full((4, 4), -1),
        np.zeros((4, 4), complex),
        Image.fromarray(np.full((4, 4), 255, np.float32)),
    ],
    ids=describe,
)
def test_bad_masks(source: Any) -> None:
    with pytest.raises(ImageReadError) as caught:
        read_mask(source)
    assert caught.value.source == describe(source)


# Every encoding, in every reader


def palette(indices: np.ndarray, colors: dict[int, tuple[int, int, int]]) -> Image.Image:
    image = Image.frombytes("P", indices.shape[::-1], indices.astype(np.uint8).tobytes())
    image.putpalette([v for k in range(256) for v in colors.get(k, (k, k, k))])
    return image


def encodings(on: np.ndarray) -> dict[str, Image.Image]:
    """One subject as people's tools write it."""
    eight, white = on.astype(np.uint8), white_on_black(on)
    sixteen = on.astype(np.uint16)
    full, black = Image.new("L", white.size, 255), Image.new("L", white.size)
    cut = Image.fromarray(noise(on.shape[0], on.shape[1]))
    cut.putalpha(white)
    return {
        "1 bit": Image.fromarray(on),
        "0 and 1": Image.fromarray(eight),
        "object 7": Image.fromarray(eight * 7),
        "0 and 254": Image.fromarray(eight * 254),
        "16 bits, 1": Image.fromarray(sixteen),
        "16 bits, 255": Image.fromarray(sixteen * 255),
        "16 bits, 65535": Image.fromarray(sixteen * 65535),
        "DAVIS": palette(eight, {0: (0, 0, 0), 1: (128, 0, 0)}),
        "palette of other order": palette(eight * 5, {0: (200, 10, 10), 5: (20, 20, 20)}),
        "LA of one gray": Image.merge("LA", [full, white]),
        "RGBA of black": Image.merge("RGBA", [black] * 3 + [white]),
        "RGBA, opaque": Image.merge("RGBA", [white, white, white, full]),
        "cut-out": cut,
        "RGB": Image.merge("RGB", [white] * 3),
        "red": Image.merge("RGB", [white, black, black]),
    }


def arrays(on: np.ndarray) -> dict[str, Any]:
    return {
        "bool": on,
        "file": io.BytesIO(saved(Image.fromarray(on))),
        "F": Image.fromarray(on.astype(np.float32)),
        "CMYK": Image.fromarray(np.repeat(on[..., None] * np.uint8(255), 3, -1)).convert("CMYK"),
        "bfloat16 tensor (1, H, W)": torch.from_numpy(on).bfloat16()[None],
        "tensor with a graph": torch.from_numpy(on).float().requires_grad_(),
        "array (H, W, 1)": on[..., None],
        "RGB tensor": torch.from_numpy(on)[None].repeat(3, 1, 1) * torch.tensor(255, dtype=torch.uint8),
        "int64, 0 and 1000": on.astype(np.int64) * 1000,
        "uint16, 0 and 255": on.astype(np.uint16) * 255,
        "int32 PIL, 100000": Image.fromarray(on.astype(np.int32) * 100_000),
        "float array": on.astype(np.float32),
        "uint8 tensor, 0 and 7": torch.from_numpy(on.astype(np.uint8) * 7),
        "GIF": saved(palette(on.astype(np.uint8), {1: (9, 200, 9)}), "GIF"),
        "32-bit TIFF": saved(Image.fromarray(on.astype(np.int32) * 3), "TIFF"),
    }


@pytest.mark.parametrize("name", [*encodings(subject()), *arrays(subject())])
def test_every_encoding_of_a_subject_is_the_same_mask(name: str) -> None:
    on = subject()
    source = (encodings(on) | arrays(on))[name]
    expected = torch.from_numpy(on).float()
    assert torch.equal(read_mask(source), expected)
    if isinstance(source, Image.Image) and source.mode not in ("F", "CMYK"):
        assert torch.equal(read_mask(saved(source, "TIFF" if source.mode == "I" else "PNG")), expected)


@pytest.fixture(scope="module")
def metric() -> Embedder:
    return idmetric.load("tiny", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo under as many names as there are encodings, and its mask in each; the first is the plain one."""
    root = tmp_path_factory.mktemp("masks")
    (root / "photos").mkdir()
    (root / "masks").mkdir()
    photo = Image.open(EXAMPLES / "mug_b.png").convert("RGB").resize((96, 64))
    on = subject()
    for k, mask in enumerate([white_on_black(on), *encodings(on).values()]):
        photo.save(root / "photos" / f"{k:02}.png")
        mask.save(root / "masks" / f"{k:02}.png")
    Image.open(EXAMPLES / "mug_a.png").convert("RGB").resize((96, 64)).save(root / "ref.png")
    white_on_black(on).save(root / "masks" / "ref.png")
    return root


def by_metric(metric: Embedder, folder: Path) -> list[float]:
    mask = folder / "masks" / "ref.png"
    distances = metric(
        folder / "ref.png", folder / "photos", "patch", mask_a=mask, mask_b=folder / "masks", outside="crop"
    )
    return distances.tolist()


def by_loss(metric: Embedder, folder: Path) -> list[float]:
    pixels = torch.from_numpy(np.array(Image.open(folder / "ref.png"))).permute(2, 0, 1)[None] / 255
    losses = []
    for file in sorted((folder / "photos").iterdir()):
        loss = IdentityLoss(metric, file, masks=folder / "masks" / file.name, outside="black")
        with torch.no_grad():
            losses.append(float(loss(pixels)))
    return losses


@pytest.mark.parametrize("reader", [by_metric, by_loss])
def test_every_reader_sees_the_same_subject_in_every_encoding(
    reader: Callable[[Embedder, Path], list[float]], metric: Embedder, folder: Path
) -> None:
    white, *others = reader(metric, folder)
    assert len(others) == len(encodings(subject()))
    np.testing.assert_allclose(others, white, atol=2e-6)


# Soft masks


def test_soft_values_are_shares_of_the_formats_maximum() -> None:
    values = np.array([[0, 51], [255, 255]], np.uint8)
    expected = torch.tensor([[0, 0.2], [1, 1]])
    for source in (values, Image.fromarray(values), torch.from_numpy(values), values / 255):
        assert torch.allclose(read_mask(source), expected, atol=1e-6)
    assert torch.allclose(read_mask(values.astype(np.uint16) * 257), expected, atol=1e-6)

    on = subject()
    jpeg = saved(white_on_black(on), "JPEG", quality=75)
    assert len(np.unique(np.asarray(Image.open(io.BytesIO(jpeg))))) > 20  # it rings
    assert (read_mask(jpeg) - torch.from_numpy(on).float()).abs().mean() < 0.02

    ramp = np.linspace(0, 200, 201).astype(np.uint8).reshape(3, 67)
    for below in (ramp, Image.fromarray(ramp.astype(np.uint16))):
        with pytest.raises(ImageReadError, match="200 values"):
            read_mask(below)
    assert read_mask(ramp / 200)[2, 66] == 1  # floats are used as they are


def test_alpha_is_the_mask_where_it_varies_over_one_color_or_a_picture() -> None:
    rgba = np.full((4, 4, 4), 255, np.uint8)
    rgba[..., :3] = 0
    assert (read_mask(rgba) == 0).all()  # opaque: black is outside
    rgba[:2, :, 3] = 0
    expected = torch.tensor([0.0, 0, 1, 1])[:, None].expand(4, 4)
    keyed = saved(Image.fromarray(np.repeat(np.array([[9], [200]], np.uint8), 2, 1)), transparency=9)
    for source in (rgba, Image.fromarray(rgba), torch.from_numpy(rgba).permute(2, 0, 1)):
        assert torch.equal(read_mask(source), expected)
    assert torch.equal(read_mask(keyed), torch.tensor([[0.0, 0], [1, 1]]))

    rgba[2, :, :3] = 200  # colors may be the mask as well, opaque ones and others
    for least in (0, 50):
        rgba[:2, :, 3] = least
        with pytest.raises(ImageReadError, match="transparency"):
            read_mask(rgba)


# Several labels


def test_several_labels_are_refused_until_one_is_chosen() -> None:
    labels = np.zeros((8, 8), np.uint8)
    labels[:3], labels[5:] = 2, 9
    colors = np.zeros((8, 8, 3), np.uint8)
    colors[:3], colors[5:] = (255, 0, 0), (0, 0, 255)
    by_number: list[Any] = [labels, labels.astype(np.int64), torch.from_numpy(labels), Image.fromarray(labels)]
    by_number += [palette(labels, {2: (255, 255, 255)}), Image.fromarray(labels.astype(np.uint16))]
    for source in by_number:
        with pytest.raises(ImageReadError, match="2, 9"):
            read_mask(source)
        assert torch.equal(read_mask(source, mask_id=9), torch.from_numpy(labels == 9).float())
        assert torch.equal(read_mask(Labeled(source, "2")), torch.from_numpy(labels == 2).float())
        with pytest.raises(ImageReadError, match=r"2\.5"):
            read_mask(source, mask_id=2.5)  # type: ignore[arg-type]
    for source in (colors, Image.fromarray(colors)):
        with pytest.raises(ImageReadError, match="#0000ff, #ff0000"):
            read_mask(source)
        assert torch.equal(read_mask(source, mask_id="#ff0000"), torch.from_numpy(labels == 2).float())
        assert torch.equal(read_mask(source, mask_id="#0000FF"), torch.from_numpy(labels == 9).float())
        for other in (7, "#000000", "#00ff00"):
            with pytest.raises(ImageReadError):
                read_mask(source, mask_id=other)
    for source in (noise(40, 40), labels / 9):  # a photo, shares
        with pytest.raises(ImageReadError):
            read_mask(source, mask_id=9)


def test_a_map_of_labels_with_255_for_unknown_is_no_soft_mask() -> None:
    labels = np.zeros((20, 20), np.uint8)
    labels[2:9], labels[9:17], labels[17] = 3, 12, 255
    with pytest.raises(ImageReadError, match="3, 12, 255"):
        read_mask(labels)
    assert read_mask(labels, mask_id=12).sum() == 160


def test_mask_id_is_taken_wherever_masks_are(metric: Embedder) -> None:
    from idmetric.metric.heatmap import heatmaps

    photo = Image.open(EXAMPLES / "mug_a.png").convert("RGB")
    other = EXAMPLES / "mug_b.png"
    labels = np.zeros((256, 256), np.uint8)
    labels[20:200, 20:120], labels[20:200, 130:250] = 1, 2
    wanted, mask = white_on_black(labels == 2), Image.fromarray(labels)
    plain = metric.embed(photo, masks=wanted)
    distance = metric(photo, other, mask_a=wanted)
    assert torch.equal(metric.embed(photo, masks=mask, mask_id=2).cls, plain.cls)
    assert torch.allclose(metric.embed([photo, photo], masks=[mask, None], mask_id=2).cls[:1], plain.cls, atol=1e-6)
    assert not torch.equal(metric.embed(photo, masks=mask, mask_id=1).cls, plain.cls)
    assert torch.equal(metric(photo, other, mask_a=mask, mask_id=2), distance)
    torch.testing.assert_close(metric.pairwise([photo], [other], masks_a=[mask], mask_id=2)[0], distance)
    assert torch.equal(IdentityLoss(metric, photo, masks=mask, mask_id=2).references.cls, plain.cls)
    heat = heatmaps(metric, photo, other, masks=mask, mask_id=2)[0]
    assert torch.equal(heat, heatmaps(metric, photo, other, masks=wanted)[0])
    with pytest.raises(ImageReadError, match="1, 2"):
        metric(photo, other, mask_a=mask)


# Outside of masks


@pytest.mark.parametrize(("outside", "fill"), [("black", 0), ("white", 255)])
def test_what_a_mask_leaves_out_is_painted(outside: Outside, fill: int) -> None:
    photo = noise(8, 8)
    floats = torch.from_numpy(photo).permute(2, 0, 1) / 255
    for source in (Image.fromarray(photo), floats):
        picture = cut_out(source, half_mask(), outside)[0]
        pixels = picture.permute(1, 2, 0).numpy() * 255 if isinstance(picture, torch.Tensor) else np.asarray(picture)
        assert (pixels[:, :4] == fill).all()
        np.testing.assert_allclose(pixels[:, 4:], photo[:, 4:], atol=1e-4)


# Shapes and EXIF


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, exif=exif)


@pytest.mark.parametrize("orientation", range(5, 9))
def test_a_mask_of_the_stored_pixels_is_turned_as_its_photo(orientation: int, metric: Embedder, tmp_path: Path) -> None:
    stored = Image.open(EXAMPLES / "mug_a.png").convert("RGB").resize((96, 64))
    cover = white_on_black(subject())
    photo = turned(stored, orientation)
    upright = read_image(photo)
    right = read_mask(turned(cover, orientation))  # turned by Pillow, by its own tag
    assert (upright.size, right.shape) == ((64, 96), (96, 64))
    standing = Image.fromarray((right * 255).byte().numpy())
    for mask in (cover, saved(cover), turned(cover, orientation), standing, standing.resize((128, 192), 0)):
        for image in (photo, upright):
            assert torch.equal(cut_out(image, mask)[1], right)
    path, mask_path = tmp_path / "p.png", tmp_path / "m.png"
    path.write_bytes(photo)
    cover.save(mask_path)
    distance = metric(path, EXAMPLES / "mug_b.png", mask_a=mask_path, outside="crop")
    assert torch.equal(distance, metric(upright, EXAMPLES / "mug_b.png", mask_a=standing, outside="crop"))
    manifest = checked(pd.DataFrame({"identity": ["a"], "path": [str(path)], "mask": [str(mask_path)]}))
    assert not faults(manifest)
    black = Pictures.of(metric, manifest).read(0, foreground=True)
    assert torch.equal(black, metric.load(upright, standing, "black")[0])
    with pytest.raises(ImageReadError, match="48x32"):
        cut_out(photo, cover.resize((48, 32)))


def test_masks_of_another_shape_are_refused_but_scaled_ones_are_not() -> None:
    photo, on = Image.fromarray(noise(60, 80)), white_on_black(subject(80, 60))
    for size in ((40, 30), (27, 20), (160, 120), (81, 60)):
        cut_out(photo, on.resize(size, 0))
    for size in ((60, 80), (64, 64), (80, 45)):
        with pytest.raises(ImageReadError, match=f"{size[0]}x{size[1]}"):
            cut_out(photo, on.resize(size, 0))
    assert same_shape((1000, 1500), (67, 100))
    assert not same_shape((1000, 1500), (70, 100))


def test_a_square_photo_and_its_mask_are_turned_by_their_own_tags() -> None:
    photo = turned(Image.fromarray(noise(64, 64)), 6)
    mask = white_on_black(subject(64, 64))
    with pytest.warns(MaskWarning, match="upright"):
        assert torch.equal(cut_out(photo, mask)[1], read_mask(mask))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cut_out(photo, turned(mask, 6))[1], torch.rot90(read_mask(mask), -1))
        assert torch.equal(cut_out(photo, turned(mask, 1))[1], read_mask(mask))
