"""Masks of every encoding select the same subject in every reader, and ambiguous ones are refused."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import idmetric
from idmetric.data.manifest.check import faults
from idmetric.data.manifest.table import Manifest, Row
from idmetric.metric.embedder import Embedder
from idmetric.metric.images import ImageReadError, Outside, describe, read_image
from idmetric.metric.loss import IdentityLoss
from idmetric.metric.masks import Labeled, MaskWarning, cut_out, read_mask, same_shape
from idmetric.train.batches import Pictures
from tests.metric.images.test_read import noise, saved

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "images"


# One mask


def half_mask() -> np.ndarray:
    mask = np.zeros((8, 8), bool)
    mask[:, 4:] = True
    return mask


def test_mask_values_in_between_are_kept() -> None:
    values = np.array([[0, 51], [255, 255]], np.uint8)
    expected = torch.tensor([[0, 0.2], [1, 1]])
    for source in (
        values,
        Image.fromarray(values),
        torch.from_numpy(values),
        values / 255,
        values.astype(np.uint16) * 257,
    ):
        assert torch.allclose(read_mask(source), expected, atol=1e-6)
    assert (read_mask(np.full((2, 2, 3), [1.0, 0, 0]))[0, 0]) == pytest.approx(0.299, abs=1e-6)


def test_alpha_is_the_mask_only_where_it_varies() -> None:
    rgba = np.full((4, 4, 4), 255, np.uint8)
    rgba[..., :3] = 0
    assert (read_mask(rgba) == 0).all()  # opaque: black is outside
    rgba[:2, :, 3] = 0
    expected = torch.tensor([0.0, 0, 1, 1])[:, None].expand(4, 4)
    keyed = Image.fromarray(np.repeat(np.array([[9], [200]], np.uint8), 2, 1))
    for source in (
        rgba,
        rgba / 255,
        Image.fromarray(rgba),
        saved(Image.fromarray(rgba)),
        torch.from_numpy(rgba).permute(2, 0, 1),
    ):
        assert torch.equal(read_mask(source), expected)
    assert torch.equal(read_mask(saved(keyed, transparency=9)), torch.tensor([[0.0, 0], [1, 1]]))


def test_masks_are_averaged_exactly() -> None:
    on = half_mask()
    assert torch.equal(read_mask(on, (8, 8)), torch.from_numpy(on).float())
    third = read_mask(on, (1, 3))[0]
    assert torch.allclose(third, torch.tensor([0, 0.5, 1]), atol=1e-6)
    fine = read_mask(np.array([[False, True]]), (3, 4))
    assert torch.equal(fine, torch.tensor([0.0, 0, 1, 1]).expand(3, 4))
    assert read_mask(on, (2, 5)).is_contiguous()
    assert read_mask(np.ones((3000, 1000), bool), (7, 9)).min() == 1


@pytest.mark.parametrize(
    "source",
    [
        np.zeros((2, 3, 4, 4)),
        np.zeros((0, 4)),
        torch.zeros(5, 4, 4),
        torch.full((4, 4), 7.0),
        torch.full((4, 4), float("nan")),
        np.array([[1, 2]]),
        np.full((4, 4), -1),
        np.zeros((4, 4), complex),
        np.zeros((4, 4), object),
        np.zeros((4, 4, 3), object),
        Image.fromarray(np.full((4, 4), 255, np.float32)),
    ],
    ids=describe,
)
def test_bad_masks(source: Any) -> None:
    with pytest.raises(ImageReadError) as caught:
        read_mask(source)
    assert caught.value.source == describe(source)


# Every encoding, in every reader


def subject(width: int = 96, height: int = 64) -> np.ndarray:
    image = Image.new("1", (width, height))
    ImageDraw.Draw(image).ellipse([width // 8, height // 4, width * 5 // 8, height * 7 // 8], fill=1)
    return np.array(image)


def palette(indices: np.ndarray, colors: dict[int, tuple[int, int, int]]) -> Image.Image:
    image = Image.frombytes("P", indices.shape[::-1], indices.astype(np.uint8).tobytes())
    image.putpalette([v for k in range(256) for v in colors.get(k, (k, k, k))])
    return image


def encodings(on: np.ndarray) -> dict[str, Image.Image]:
    """One subject as people's tools write it."""
    eight, white = on.astype(np.uint8), Image.fromarray(on.astype(np.uint8) * 255)
    sixteen = on.astype(np.uint16)
    full = Image.new("L", white.size, 255)
    photo = Image.fromarray(noise(on.shape[0], on.shape[1]))
    cut = photo.copy()
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
        "RGBA of black": Image.merge("RGBA", [Image.new("L", white.size)] * 3 + [white]),
        "RGBA, opaque": Image.merge("RGBA", [white, white, white, full]),
        "RGBA, white on black opaque, transparent margin": Image.merge("RGBA", [white] * 3 + [margin(white.size)]),
        "cut-out": cut,
        "RGB": Image.merge("RGB", [white] * 3),
        "red": Image.merge("RGB", [white, Image.new("L", white.size), Image.new("L", white.size)]),
    }


def margin(size: tuple[int, int]) -> Image.Image:
    image = Image.new("L", size, 255)
    ImageDraw.Draw(image).rectangle([0, 0, 3, size[1]], fill=0)
    return image


def arrays(on: np.ndarray) -> dict[str, Any]:
    return {
        "bool": on,
        "file": io.BytesIO(saved(Image.fromarray(on))),
        "F": Image.fromarray(on.astype(np.float32)),
        "La": Image.merge(
            "LA", [Image.new("L", on.shape[::-1], 200), Image.fromarray(on.astype(np.uint8) * 255)]
        ).convert("La"),
        "CMYK": Image.fromarray(np.repeat(on[..., None] * np.uint8(255), 3, -1)).convert("CMYK"),
        "bfloat16 tensor (1, H, W)": torch.from_numpy(on).bfloat16()[None],
        "tensor (1, 1, H, W)": torch.from_numpy(on)[None, None],
        "tensor with a graph": torch.from_numpy(on).float().requires_grad_(),
        "array (H, W, 1)": on[..., None],
        "RGB float array": np.repeat(on[..., None] * 1.0, 3, -1),
        "RGB tensor": torch.from_numpy(on)[None].repeat(3, 1, 1) * torch.tensor(255, dtype=torch.uint8),
        "int64, 0 and 1": on.astype(np.int64),
        "int64, 0 and 1000": on.astype(np.int64) * 1000,
        "uint16, 0 and 255": on.astype(np.uint16) * 255,
        "int32 PIL": Image.fromarray(on.astype(np.int32)),
        "int32 PIL, 100000": Image.fromarray(on.astype(np.int32) * 100_000),
        "bool tensor": torch.from_numpy(on),
        "float tensor": torch.from_numpy(on).float(),
        "float array": on.astype(np.float32),
        "uint8 tensor, 0 and 7": torch.from_numpy(on.astype(np.uint8) * 7),
        "GIF": saved(palette(on.astype(np.uint8), {1: (9, 200, 9)}), "GIF"),
        "BMP": saved(Image.fromarray(on.astype(np.uint8) * 255), "BMP"),
        "32-bit TIFF": saved(Image.fromarray(on.astype(np.int32) * 3), "TIFF"),
    }


@pytest.mark.parametrize("name", [*encodings(subject()), *arrays(subject())])
def test_every_encoding_of_a_subject_is_the_same_mask(name: str) -> None:
    on = subject()
    source = (encodings(on) | arrays(on))[name]
    expected = torch.from_numpy(on).float()
    assert torch.equal(read_mask(source), expected)
    if isinstance(source, Image.Image) and source.mode not in ("F", "La", "CMYK"):
        assert torch.equal(read_mask(saved(source, "TIFF" if source.mode == "I" else "PNG")), expected)


@pytest.fixture(scope="module")
def metric() -> Embedder:
    return idmetric.load("tiny", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo under as many names as there are encodings, and its mask in each; `white` is the plain one."""
    root = tmp_path_factory.mktemp("masks")
    (root / "photos").mkdir()
    (root / "masks").mkdir()
    photo = Image.open(EXAMPLES / "mug_b.png").convert("RGB").resize((96, 64))
    on = subject()
    masks = {"white": Image.fromarray(on.astype(np.uint8) * 255), **encodings(on)}
    for k, mask in enumerate(masks.values()):
        photo.save(root / "photos" / f"{k:02}.png")
        mask.save(root / "masks" / f"{k:02}.png")
    Image.open(EXAMPLES / "mug_a.png").convert("RGB").resize((96, 64)).save(root / "ref.png")
    masks["white"].save(root / "masks" / "ref.png")
    Manifest.from_rows(
        (Row(identity="mug", path=f"photos/{k:02}.png", mask=f"masks/{k:02}.png") for k in range(len(masks))), root
    ).write(root / "manifest.csv")
    return root


def by_metric(metric: Embedder, folder: Path) -> list[float]:
    files = sorted((folder / "photos").iterdir())
    masks = [folder / "masks" / file.name for file in files]
    mask = folder / "masks" / "ref.png"
    return metric(folder / "ref.png", files, "patch", mask_a=mask, mask_b=masks, outside="crop").tolist()


def by_score(metric: Embedder, folder: Path) -> list[float]:
    from idmetric.cli.score import main

    out = folder / "scores.json"
    words = ["--model", "tiny", "--device", "cpu", "--mask-dir", str(folder / "masks"), "--outside", "crop"]
    words += ["--format", "json", "--output", str(out), "--quiet", str(folder / "ref.png"), str(folder / "photos")]
    assert main(words) == 0
    rows = json.loads(out.read_text())["rows"]
    return [row["distance"] for row in sorted(rows, key=lambda row: row["image"])]


def by_loss(metric: Embedder, folder: Path) -> list[float]:
    pixels = torch.from_numpy(np.array(Image.open(folder / "ref.png"))).permute(2, 0, 1)[None] / 255
    found = []
    for file in sorted((folder / "photos").iterdir()):
        loss = IdentityLoss(metric, file, masks=folder / "masks" / file.name, outside="black")
        with torch.no_grad():
            found.append(float(loss(pixels)))
    return found


@pytest.mark.parametrize("reader", [by_metric, by_score, by_loss])
def test_every_reader_sees_the_same_subject_in_every_encoding(
    reader: Callable[[Embedder, Path], list[float]], metric: Embedder, folder: Path
) -> None:
    white, *others = reader(metric, folder)
    assert len(others) == len(encodings(subject()))
    np.testing.assert_allclose(others, white, atol=2e-6)


# Soft masks


def test_jpeg_masks_are_soft_and_score_as_the_mask_they_were(metric: Embedder) -> None:
    on = subject()
    plain = Image.fromarray(on.astype(np.uint8) * 255)
    jpeg = saved(plain, "JPEG", quality=75)
    values = np.unique(np.asarray(Image.open(io.BytesIO(jpeg))))
    assert len(values) > 20  # it rings
    assert (read_mask(jpeg) - torch.from_numpy(on).float()).abs().mean() < 0.02
    tinted = saved(plain.convert("RGB"), "WEBP", quality=80)
    assert (read_mask(tinted) - torch.from_numpy(on).float()).abs().mean() < 0.02
    photo = Image.open(EXAMPLES / "mug_a.png").resize((96, 64))
    cover = [metric.load(photo, mask, "keep")[1] for mask in (plain, jpeg, tinted)]
    assert all(one is not None and cover[0] is not None and (one - cover[0]).abs().mean() < 0.02 for one in cover)


def test_gray_that_stays_below_the_maximum_is_refused_with_its_values() -> None:
    ramp = np.linspace(0, 200, 201).astype(np.uint8).reshape(3, 67)
    with pytest.raises(
        ImageReadError, match=r"200 values \(1, 2, 3, 4, 5, 6, 7, \.\.\., 200\).*rescaled to the format"
    ):
        read_mask(ramp)
    with pytest.raises(ImageReadError, match="rescaled to the format's maximum"):
        read_mask(Image.fromarray(ramp.astype(np.uint16)))
    assert read_mask(ramp / 200)[2, 66] == 1  # floats are used as they are


def test_a_map_of_labels_with_255_for_unknown_gets_a_warning() -> None:
    labels = np.zeros((20, 20), np.uint8)
    labels[2:9], labels[9:17], labels[17] = 3, 12, 255
    with pytest.warns(MaskWarning, match=r"look like labels: choose one with mask_id=3"):
        read_mask(labels)
    assert read_mask(labels, mask_id=12).sum() == 160
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_mask(saved(Image.fromarray(subject().astype(np.uint8) * 255), "JPEG"))


# Several labels


def test_several_labels_are_refused_until_one_is_chosen() -> None:
    labels = np.zeros((8, 8), np.uint8)
    labels[:3], labels[5:] = 2, 9
    colors = np.zeros((8, 8, 3), np.uint8)
    colors[:3], colors[5:] = (255, 0, 0), (0, 0, 255)
    clear = np.dstack([colors, (labels > 0) * np.uint8(255)])
    by_number: list[Any] = [labels, labels.astype(np.int64), torch.from_numpy(labels), Image.fromarray(labels)]
    by_number += [palette(labels, {2: (255, 255, 255)}), Image.fromarray(labels.astype(np.uint16))]
    for source in by_number:
        with pytest.raises(ImageReadError, match=r"2 (values|palette indices) \(2, 9\).*mask_id=2 \(--mask-id '2'\)"):
            read_mask(source)
        assert torch.equal(read_mask(source, mask_id=9), torch.from_numpy(labels == 9).float())
        assert torch.equal(read_mask(Labeled(source, "2")), torch.from_numpy(labels == 2).float())
        with pytest.raises(ImageReadError, match=r"does not hold 4: the mask's .* are 2, 9"):
            read_mask(source, mask_id=4)
        for no_label in (0, 2.5):
            with pytest.raises(ImageReadError, match="0 is the background"):
                read_mask(source, mask_id=no_label)  # type: ignore[arg-type]
    for source in (colors, clear, Image.fromarray(clear)):
        with pytest.raises(ImageReadError, match=r"2 colors \(#0000ff, #ff0000\)"):
            read_mask(source)
        assert torch.equal(read_mask(source, mask_id="#ff0000"), torch.from_numpy(labels == 2).float())
        assert torch.equal(read_mask(source, mask_id="#0000FF"), torch.from_numpy(labels == 9).float())
        with pytest.raises(ImageReadError, match=r"give '#rrggbb'.*colors are #0000ff, #ff0000"):
            read_mask(source, mask_id=7)
    with pytest.raises(ImageReadError, match="more than 256 colors"):
        read_mask(noise(40, 40))
    with pytest.raises(ImageReadError, match="leave mask_id out"):
        read_mask(labels / 9, mask_id=9)


def test_mask_id_is_taken_wherever_masks_are(metric: Embedder, tmp_path: Path) -> None:
    from idmetric.matching.heatmaps import heatmaps

    photo = Image.open(EXAMPLES / "mug_a.png").convert("RGB")
    other = EXAMPLES / "mug_b.png"
    labels = np.zeros((256, 256), np.uint8)
    labels[20:200, 20:120], labels[20:200, 130:250] = 1, 2
    wanted, mask = Image.fromarray((labels == 2).astype(np.uint8) * 255), Image.fromarray(labels)
    plain = metric.embed(photo, masks=wanted)
    far = metric(photo, other, mask_a=wanted)
    assert torch.equal(metric.embed(photo, masks=mask, mask_id=2).cls, plain.cls)
    assert torch.allclose(metric.embed([photo, photo], masks=[mask, None], mask_id=2).cls[:1], plain.cls, atol=1e-6)
    assert not torch.equal(metric.embed(photo, masks=mask, mask_id=1).cls, plain.cls)
    assert torch.equal(metric(photo, other, mask_a=mask, mask_id=2), far)
    torch.testing.assert_close(metric.similarity(photo, other, mask_a=mask, mask_id=2), 1 - far)
    torch.testing.assert_close(metric.pairwise([photo], [other], masks_a=[mask], mask_id=2)[0], far)
    assert torch.equal(cut_out(photo, Labeled(mask, 2))[1], read_mask(wanted))
    assert torch.equal(IdentityLoss(metric, photo, masks=mask, mask_id=2).references.cls, plain.cls)
    heat = heatmaps(metric, photo, other, masks=mask, mask_id=2)[0]
    assert torch.equal(heat, heatmaps(metric, photo, other, masks=wanted)[0])
    with pytest.raises(ImageReadError, match=r"holds 2 values \(1, 2\)"):
        metric(photo, other, mask_a=mask)


def test_mask_id_on_the_command_lines(metric: Embedder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from idmetric.cli.main import main

    (tmp_path / "photos").mkdir()
    (tmp_path / "masks").mkdir()
    labels = np.zeros((256, 256), np.uint8)
    labels[20:200, 20:120], labels[20:200, 130:250] = 1, 2
    for name in ("mug_a", "mug_b"):
        Image.open(EXAMPLES / f"{name}.png").save(tmp_path / "photos" / f"{name}.png")
        Image.fromarray(labels).save(tmp_path / "masks" / f"{name}.png")
    a, b = (str(tmp_path / "photos" / f"{name}.png") for name in ("mug_a", "mug_b"))
    masks = str(tmp_path / "masks")
    common = ["--model", "tiny", "--device", "cpu", "--mask-dir", masks]
    assert main(["score", *common, a, b]) == 1
    assert "masks/mug_a.png: it holds 2 values (1, 2)" in capsys.readouterr().err.replace(os.sep, "/")
    found = {}
    for label in ("1", "2"):
        words = ["score", *common, "--mask-id", label, "--cache", str(tmp_path / "cache"), "--format", "json", a, b]
        assert main(words) == 0
        found[label] = json.loads(capsys.readouterr().out)["rows"][0]["distance"]
        mask = Image.fromarray((labels == int(label)).astype(np.uint8))
        assert found[label] == pytest.approx(metric(a, b, mask_a=mask, mask_b=mask).item(), abs=1e-6)
    assert found["1"] != found["2"]  # the cache keeps them apart

    gallery = ["gallery", "build", str(tmp_path / "photos"), "--gallery", str(tmp_path / "gallery")]
    query = ["gallery", "query", a, "--gallery", str(tmp_path / "gallery"), "--query-mask-dir", masks]
    assert main([*gallery, *common, "--mask-id", "2", "--quiet"]) == 0
    capsys.readouterr()
    assert main([*query, "--device", "cpu", "--format", "json"]) == 0  # it remembers the label
    hits = {Path(hit["image"]).stem: hit["distance"] for hit in json.loads(capsys.readouterr().out)}
    assert hits["mug_b"] == pytest.approx(found["2"], abs=1e-5)


def test_an_unknown_outside_is_refused(metric: Embedder) -> None:
    outside: Any = "gray"
    photo, says = read_image(EXAMPLES / "mug_a.png"), "unknown outside 'gray': choose one of black, white, crop, keep"
    with pytest.raises(ValueError, match=says):
        cut_out(photo, half_mask(), outside)
    with pytest.raises(ValueError, match=says):
        metric.embed(photo, masks=half_mask(), outside=outside)


@pytest.mark.parametrize(("outside", "fill"), [("black", 0), ("white", 255)])
def test_what_a_mask_leaves_out_is_painted(outside: Outside, fill: int) -> None:
    photo = noise(8, 8)
    subject, _ = cut_out(Image.fromarray(photo), half_mask(), outside)
    pixels = np.asarray(subject)
    assert (pixels[:, :4] == fill).all()
    assert np.array_equal(pixels[:, 4:], photo[:, 4:])


# Masks that are probably not what was meant


def test_masks_of_almost_nothing_or_everything_warn_and_empty_ones_are_refused() -> None:
    photo = Image.fromarray(noise(100, 100))
    dot = np.zeros((100, 100), np.uint8)
    dot[3, 4:7] = 255
    with pytest.warns(MaskWarning, match=r"selects only 0\.03 % of its image"):
        cut_out(photo, dot)
    with pytest.warns(MaskWarning, match="a mask that selects all of its image changes nothing"):
        cut_out(photo, np.full((100, 100), 3, np.uint8))
    with pytest.raises(ImageReadError, match="it is empty"):
        cut_out(photo, np.zeros((100, 100), np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dot[:4] = 255
        cut_out(photo, dot)


# EXIF


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, exif=exif)


@pytest.mark.parametrize("orientation", range(5, 9))
def test_a_mask_of_the_stored_pixels_is_turned_as_its_photo(orientation: int, metric: Embedder, tmp_path: Path) -> None:
    stored = Image.open(EXAMPLES / "mug_a.png").convert("RGB").resize((96, 64))
    cover = Image.fromarray(subject().astype(np.uint8) * 255)
    photo = turned(stored, orientation)
    upright = read_image(photo)
    assert upright.size == (64, 96)
    right = read_mask(turned(cover, orientation))  # turned by Pillow, by its own tag
    assert right.shape == (96, 64)
    standing = Image.fromarray((right * 255).byte().numpy())
    for mask in (cover, saved(cover), turned(cover, orientation), standing, standing.resize((128, 192), 0)):
        for image in (photo, upright):
            assert torch.equal(cut_out(image, mask)[1], right)
    path, mask_path = tmp_path / "p.png", tmp_path / "m.png"
    path.write_bytes(photo)
    cover.save(mask_path)
    far = metric(path, EXAMPLES / "mug_b.png", mask_a=mask_path, outside="crop")
    assert torch.equal(far, metric(upright, EXAMPLES / "mug_b.png", mask_a=standing, outside="crop"))
    manifest = Manifest.from_rows([Row(identity="a", path=str(path), mask=str(mask_path))])
    assert not faults(manifest)
    black = Pictures.of(metric, manifest).read(0, foreground=True)
    assert torch.equal(black, metric.load(upright, standing, "black")[0])
    with pytest.raises(
        ImageReadError, match=r"its image 64x96 .stored as 96x64, EXIF turns it., another shape: resize it to that"
    ):
        cut_out(photo, cover.resize((48, 32)))


def test_masks_of_another_shape_are_refused_but_scaled_ones_are_not() -> None:
    photo, on = Image.fromarray(noise(60, 80)), subject(80, 60).astype(np.uint8)
    for size in ((40, 30), (27, 20), (160, 120), (81, 60)):
        cut_out(photo, Image.fromarray(on * 255).resize(size, 0))
    for size in ((60, 80), (64, 64), (80, 45)):
        with pytest.raises(ImageReadError, match=rf"{size[0]}x{size[1]} pixels and its image 80x60, another shape"):
            cut_out(photo, Image.fromarray(on * 255).resize(size, 0))
    assert same_shape((1000, 1500), (67, 100))
    assert not same_shape((1000, 1500), (70, 100))


def test_a_square_photo_and_its_mask_are_turned_by_their_own_tags() -> None:
    photo = turned(Image.fromarray(noise(64, 64)), 6)
    mask = Image.fromarray(subject(64, 64).astype(np.uint8) * 255)
    with pytest.warns(MaskWarning, match="the mask has no orientation of its own: it is taken as upright"):
        assert torch.equal(cut_out(photo, mask)[1], read_mask(mask))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cut_out(photo, turned(mask, 6))[1], torch.rot90(read_mask(mask), -1))
        assert torch.equal(cut_out(photo, turned(mask, 1))[1], read_mask(mask))


# Lists of masks


# Memory
