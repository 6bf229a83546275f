"""Images of every kind come out as the right pixels, and bad ones as one error that names them."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from idmetric.metric import images
from idmetric.metric.images import (
    ImageReadError,
    MultiFrameWarning,
    describe,
    read_image,
    resize_pixels,
    small_picture,
    split_images,
    to_pixels,
)
from idmetric.metric.masks import read_mask
from tests.fuzz import chunk


def noise(height: int = 9, width: int = 7, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def array(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def png(width: int, height: int, depth: int, color: int, rows: bytes, *extra: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def load_batch(sources: Any, size: tuple[int, int], **how: Any) -> torch.Tensor:
    """Pixels (B, 3, height, width) of each image."""
    return torch.stack([to_pixels(source, size, **how) for source in split_images(sources)])


BOMB = png(50_000, 50_000, 8, 2, b"")


# Refusals


@pytest.mark.parametrize(
    ("case", "content"),
    [("missing", None), ("empty", b""), ("text", b"hello"), ("bomb", BOMB), ("cut", BOMB[:20]), ("pipe", None),
     ("folder", None)],
)  # fmt: skip
def test_bad_files_are_named(tmp_path: Path, case: str, content: bytes | None) -> None:
    path = tmp_path / f"{case}.png"
    if content is not None:
        path.write_bytes(content)
    if case == "pipe":  # for which nobody waits
        os.mkfifo(path)
    if case == "folder":
        path.mkdir()
    for source in (path, str(path)):
        for read in (read_image, read_mask):
            with pytest.raises(ImageReadError) as caught:
                read(source)  # type: ignore[operator]
            assert caught.value.source == str(path)


@pytest.mark.parametrize("reads_on", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_truncated_files_raise_whatever_pillow_is_set_to(
    kind: str, share: float, reads_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", reads_on)
    data = saved(Image.fromarray(noise(64, 64)), kind)
    with pytest.raises(ImageReadError):
        read_image(data[: int(len(data) * share)])
    assert reads_on == ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt"])
@pytest.mark.parametrize("place", [33, -12])  # after the header, before the end
def test_long_texts_of_a_png_do_not_matter(kind: bytes, place: int) -> None:
    image = Image.fromarray(noise(64, 64))
    between = b"\0\1\0\0\0" if kind == b"iTXt" else b"\0\0"
    data = saved(image)
    text = chunk(kind, b"workflow" + between + zlib.compress(b"x" * 2_400_000))
    assert (array(read_image(data[:place] + text + data[place:])) == array(image)).all()


@pytest.mark.parametrize("address", ["http://a.org/x.png", "s3://b/x.png", "file:///x.png", "data:image/png;base64,AA"])
def test_addresses_are_not_fetched(address: str) -> None:
    with pytest.raises(ImageReadError, match="not fetched") as caught:
        read_image(address)
    assert caught.value.source == address


@pytest.mark.parametrize("size", [(50_000, 50_000), (1, 100_000_000)])
def test_bombs_are_refused_before_decoding_and_whatever_pillow_is_set_to(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as some users do
    for read in (read_image, read_mask):
        with pytest.raises(ImageReadError, match=f"{size[0]} x {size[1]}"):
            read(png(*size, 1, 0, bytes(1000)))  # type: ignore[operator]


@pytest.mark.parametrize(
    "source",
    [
        torch.zeros(9, 9, 3),
        torch.zeros(4),
        torch.zeros(2, 3, 4, 4),
        torch.zeros(3, 0, 4),
        np.zeros((3, 9, 9), np.uint8),
        np.zeros((4, 4, 3), object),
        Image.new("RGB", (0, 4)),
        Image.fromarray(np.full((2, 2), 255, np.float32)),
        Image.fromarray(np.full((2, 2), 70_000, np.int32)),
        b"",
    ],
    ids=describe,
)
def test_bad_objects_raise_the_same_error(source: Any) -> None:
    with pytest.raises(ImageReadError) as caught:
        to_pixels(source, (2, 2))
    assert caught.value.source == describe(source)


@pytest.mark.parametrize("out", [-1.0, -0.001, 1.001, 255.0, float("nan"), float("inf")])
def test_floats_outside_the_unit_range_are_refused(out: float) -> None:
    values = torch.full((3, 4, 4), 0.5)
    values[2, 3, 3] = out
    for source in (values, values.double(), values.permute(1, 2, 0).numpy()):
        for read in (lambda x: to_pixels(x, (2, 2)), read_image):
            with pytest.raises(ImageReadError, match=r"\[0, 1\]"):
                read(source)
    with pytest.raises(ImageReadError, match=r"\[0, 1\]"):
        read_mask(values.flatten()[None])


def test_what_rounding_exceeds_the_range_by_stays_as_it_is() -> None:
    x = torch.full((1, 3, 4, 4), 1.00005, requires_grad=True)
    out = load_batch(x, (4, 4))
    assert torch.equal(out, x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))


# Kinds of input


def test_every_kind_gives_the_same_pixels(tmp_path: Path) -> None:
    rgb = noise()
    image = Image.fromarray(rgb)
    path = tmp_path / "noise.png"
    image.save(path)
    chw = torch.from_numpy(rgb).permute(2, 0, 1)
    sources: list[Any] = [str(path), path, path.read_bytes(), bytearray(path.read_bytes()), memoryview(saved(image))]
    sources += [io.BytesIO(path.read_bytes()), image, rgb, rgb[::-1][::-1], np.asfortranarray(rgb), chw]
    sources += [rgb / 255, (rgb / 255).astype(np.float32), (rgb / 255).astype(">f4"), chw / 255, chw.double() / 255]
    sources += [rgb.astype(np.uint16) * 257, rgb.astype(">u2") * 257, (rgb / 255).astype(np.longdouble)]
    for source in sources:
        out = read_image(source)
        assert (out.mode, out.size) == ("RGB", (7, 9))
        assert np.array_equal(array(out), rgb), describe(source)
    sources[5].seek(0)
    for source in sources:
        assert torch.allclose(to_pixels(source, None).float(), chw / 255, atol=1e-6), describe(source)


def test_channels_of_arrays_and_tensors() -> None:
    for channels in (0, 1, 2, 3, 4):
        values = noise(5, 6, channels)
        mode = {0: "L", 1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
        squeezed = values[..., 0] if channels == 1 else values
        expected = array(read_image(Image.frombytes(mode, (6, 5), squeezed.tobytes())))
        planes = torch.from_numpy(values if channels else values[..., None]).permute(2, 0, 1)
        assert np.array_equal(array(read_image(values)), expected)
        assert np.array_equal(array(read_image(planes)), expected)
        as_float = torch.from_numpy(expected.copy()).permute(2, 0, 1) / 255
        for source in (values / 255, planes / 255, planes.double() / 255):
            assert (to_pixels(source, None) - as_float).abs().max() <= 1.01 / 255  # 8-bit compositing rounds
            assert np.abs(array(read_image(source)).astype(int) - expected).max() <= 1


def test_file_objects_are_read_from_where_they_stand_and_left_open(tmp_path: Path) -> None:
    path = tmp_path / "two.bin"
    path.write_bytes(b"junk" + saved(Image.fromarray(noise())))
    with path.open("rb") as file:
        file.seek(4)
        assert np.array_equal(array(read_image(file)), noise())
        assert not file.closed
        with pytest.raises(ImageReadError, match=path.name):  # at its end
            read_image(file)
    with path.open(encoding="latin-1") as text, pytest.raises(ImageReadError, match="rb"):
        read_image(text)  # type: ignore[arg-type]


def test_inputs_are_not_changed() -> None:
    rgba = noise(6, 6, 4)
    image = Image.fromarray(rgba)
    exif = Image.Exif()
    exif[0x0112] = 6
    floats, tensor = rgba / 255, torch.from_numpy(rgba / 255).permute(2, 0, 1).contiguous()
    copies = rgba.copy(), floats.copy(), tensor.clone()
    image.info["exif"] = exif.tobytes()
    for source in (rgba, image, floats, tensor):
        read_image(source)
        to_pixels(source, (3, 3))
    assert np.array_equal(rgba, copies[0])
    assert np.array_equal(floats, copies[1])
    assert torch.equal(tensor, copies[2])
    assert np.array_equal(array(image), rgba)
    plain = Image.fromarray(noise())
    assert read_image(plain) is not plain
    assert not read_image(plain).readonly


def test_threads_may_read_one_image_that_is_not_decoded_yet(tmp_path: Path) -> None:
    pixels = noise(600, 600)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for _ in range(5):
        image = Image.open(tmp_path / "a.png")
        with ThreadPoolExecutor(8) as pool:
            pictures = list(pool.map(read_image, [image] * 8))
        assert all(np.array_equal(np.asarray(picture), pixels) for picture in pictures)


# Modes


def test_exif_orientation_against_explicit_transposes() -> None:
    rgb = noise(6, 10)
    upright = {
        1: rgb,
        2: rgb[:, ::-1],
        3: rgb[::-1, ::-1],
        4: rgb[::-1],
        5: rgb.transpose(1, 0, 2),
        6: np.rot90(rgb, -1),
        7: rgb.transpose(1, 0, 2)[::-1, ::-1],
        8: np.rot90(rgb),
    }
    for orientation, expected in upright.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        for kind in ("PNG", "WEBP", "TIFF"):
            options = {"lossless": True} if kind == "WEBP" else {}
            data = saved(Image.fromarray(rgb), kind, exif=exif, **options)
            once = read_image(data)
            assert np.array_equal(array(once), expected), (kind, orientation)
            assert np.array_equal(array(read_image(once)), expected)  # never turned twice
        with Image.open(io.BytesIO(saved(Image.fromarray(rgb), exif=exif))) as lazy:
            assert np.array_equal(array(read_image(lazy)), expected)
        blocks = Image.fromarray(np.kron(rgb // 64 * 64, np.ones((8, 8, 1), np.uint8)))
        jpeg = read_image(saved(blocks, "JPEG", exif=exif, quality=100, subsampling=0))
        turned = np.kron(expected // 64 * 64, np.ones((8, 8, 1), np.uint8))
        assert np.abs(array(jpeg).astype(int) - turned).mean() < 2


@pytest.mark.parametrize("background", [(255, 255, 255), (10, 200, 30)])
def test_alpha_is_composited_on_the_background(background: tuple[int, int, int]) -> None:
    rgba = noise(8, 8, 4)
    alpha = rgba[..., 3:] / 255
    expected = rgba[..., :3] * alpha + np.array(background) * (1 - alpha)
    image = Image.fromarray(rgba)
    cases: dict[str, Any] = {"RGBA": image, "PNG": saved(image), "array": rgba, "float": rgba / 255}
    cases["tensor"] = torch.from_numpy(rgba).permute(2, 0, 1)
    cases["float tensor"] = cases["tensor"] / 255
    for name, source in cases.items():
        out = array(read_image(source, background=background))
        assert np.abs(out - expected).max() <= 1, name
        out_pixels = to_pixels(source, None, background=background).permute(1, 2, 0).numpy() * 255
        assert np.abs(out_pixels - expected).max() <= 1, name

    gray = image.convert("LA")
    luminance, cover = array(gray)[..., :1].astype(float), array(gray)[..., 1:] / 255
    expected = luminance * cover + np.array(background) * (1 - cover)
    assert np.abs(array(read_image(gray, background=background)) - expected).max() <= 2


def test_transparency_by_key_and_by_palette() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putdata([0, 1])
    for options in ({"transparency": 0}, {"transparency": bytes([0, 255])}):
        assert array(read_image(saved(palette, **options))).tolist() == [[[255, 255, 255], [0, 0, 255]]]
    assert array(read_image(saved(palette, "GIF", transparency=0))).tolist()[0][0] == [255, 255, 255]
    half = array(read_image(saved(palette, transparency=bytes([128, 255])), background=(0, 0, 0)))
    assert half.tolist() == [[[128, 0, 0], [0, 0, 255]]]

    rgb = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    assert array(read_image(saved(rgb, transparency=(1, 2, 3)))).tolist() == [[[255] * 3, [4, 5, 6]]]
    gray = Image.fromarray(np.array([[7, 9]], np.uint8))
    assert array(read_image(saved(gray, transparency=7), background=(1, 2, 3))).tolist() == [[[1, 2, 3], [9] * 3]]
    bit = Image.fromarray(np.array([[True, False]]))
    assert array(read_image(saved(bit, transparency=0), background=(1, 2, 3))).tolist() == [[[255] * 3, [1, 2, 3]]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"])
def test_modes_convert_as_pillow_converts_them(mode: str) -> None:
    image = Image.fromarray(noise(12, 12)).convert(mode)
    assert np.array_equal(array(read_image(image)), array(image.convert("RGB")))


def test_cmyk_jpeg_is_not_inverted() -> None:
    ink = Image.new("RGB", (16, 16), (200, 30, 30)).convert("CMYK")
    data = saved(ink, "JPEG", quality=100)  # with an Adobe marker, hence stored inverted
    assert b"Adobe" in data
    assert np.abs(array(read_image(data)).astype(int) - (200, 30, 30)).max() <= 4


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    values = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    expected = np.rint(values / 257).astype(np.uint8)
    deep = Image.fromarray(values)
    sources = [deep, saved(deep), saved(deep, "TIFF"), Image.fromarray(values.astype(np.int32))]
    sources += [values, torch.from_numpy(values), np.repeat(values[..., None], 3, -1)]
    sources.append(Image.frombytes("I;16B", (16, 16), values.astype(">u2").tobytes()))
    for source in sources:
        assert np.array_equal(array(read_image(source))[..., 1], expected), describe(source)


@pytest.mark.parametrize("bits", [8, 10, 12])
def test_sixteen_bits_that_hold_fewer_are_refused(bits: int, tmp_path: Path) -> None:
    values = np.linspace(0, 2**bits - 1, 256).round().astype(np.uint16).reshape(16, 16)
    color = np.repeat(values[..., None], 3, -1)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in color)
    (tmp_path / "deep.png").write_bytes(png(16, 16, 16, 2, rows))
    Image.fromarray(values).save(tmp_path / "gray.tif")
    sources = [values, torch.from_numpy(values), color, Image.fromarray(values)]
    sources += [Image.fromarray(values.astype(np.int32)), *sorted(tmp_path.iterdir())]
    for source in sources:
        with pytest.raises(ImageReadError, match="65535") as caught:
            read_image(source)
        assert caught.value.source == describe(source)


def test_sixteen_bits_that_are_dark_or_black_are_read() -> None:
    dark = np.linspace(0, 4096, 16).astype(np.uint16).reshape(4, 4)
    assert array(read_image(dark)).max() == 16
    rows = b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in dark)
    assert array(read_image(png(4, 4, 16, 2, rows))).max() == 16
    black = np.zeros((4, 4), np.uint16)
    for source in (black, Image.fromarray(black), saved(Image.fromarray(black))):
        assert not array(read_image(source)).any()


def test_float_images() -> None:
    values = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    image = Image.fromarray(values)
    for source in (image, saved(image, "TIFF")):
        assert np.array_equal(array(read_image(source))[..., 0], np.rint(values * 255))


# TIFFs


def tiff(bits: int, byte_order: str = "<", **tags: int) -> bytes:
    """A TIFF file of one gray pixel, with the value of an entry in its directory for each of some tags."""
    numbers = {"subfile": 254, "photometric": 262, "planar": 284}
    pixel = struct.pack(f"{byte_order}H", 51_400)[: bits // 8]
    entries = {256: 1, 257: 1, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: len(pixel)}
    entries |= {numbers[name]: value for name, value in tags.items()}
    head = struct.pack(f"{byte_order}2sHI", b"II" if byte_order == "<" else b"MM", 42, 10)
    directory = struct.pack(f"{byte_order}H", len(entries))
    for tag, value in sorted(entries.items()):
        directory += struct.pack(f"{byte_order}HHII", tag, 4, 1, value)
    return head + pixel.ljust(2) + directory + bytes(4)


def test_plain_tiffs_are_read() -> None:
    assert array(read_image(tiff(16)))[0, 0].tolist() == [200] * 3
    assert array(read_image(tiff(8, ">")))[0, 0].tolist() == [200] * 3
    assert array(read_image(tiff(8, photometric=0)))[0, 0].tolist() == [255 - 200] * 3


MISREAD = {
    "16 bits, white is zero": tiff(16, photometric=0),
    "16 bits, big-endian": tiff(16, ">"),
    "planes": tiff(8, planar=2),
    "a palette": saved(Image.new("P", (3, 3)), "TIFF"),
    "a thumbnail": tiff(8, subfile=1),
}


@pytest.mark.parametrize("kind", MISREAD)
def test_thumbnails_and_tiffs_that_pillow_may_read_as_another_picture_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "scan.tif"
    path.write_bytes(MISREAD[kind])
    Image.open(path).load()  # it is no damaged file
    for read in (read_image, read_mask):
        with pytest.raises(ImageReadError) as caught:
            read(path)  # type: ignore[operator]
        assert caught.value.source == str(path)


def test_camera_raw_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.nef").write_bytes(tiff(8))
    with pytest.raises(ImageReadError, match=r"a\.nef"):
        read_image(tmp_path / "a.nef")


# Frames


def frames_file(kind: str) -> bytes:
    colors = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    frames = [Image.new("RGB", (8, 6), color) for color in colors]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF"])
def test_only_the_first_frame_is_used_and_it_is_said(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"moving.{kind.lower()}"
    path.write_bytes(frames_file(kind))
    for read in (read_image, read_mask):
        with pytest.warns(MultiFrameWarning, match=path.name) as caught:
            read(path)  # type: ignore[operator]
        assert len(caught) == 1
    with pytest.warns(MultiFrameWarning):
        assert (array(read_image(path.read_bytes())) == [250, 0, 0]).all()


def test_a_pil_image_is_used_at_its_own_frame_and_not_moved() -> None:
    with Image.open(io.BytesIO(frames_file("GIF"))) as image:
        image.seek(2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            picture = read_image(image)
            assert array(read_image(picture))[0, 0].tolist() == [0, 0, 250]
        assert image.tell() == 2


# Resizing


def test_eight_bit_images_are_resized_exactly_as_pillow_does() -> None:
    rgb = noise(50, 37)
    image = Image.fromarray(rgb)
    for name in ("bicubic", "bilinear", "lanczos"):
        resized = image.resize((20, 30), Image.Resampling[name.upper()])
        expected = torch.from_numpy(np.array(resized)).permute(2, 0, 1).float() / 255
        for source in (image, saved(image), rgb, torch.from_numpy(rgb).permute(2, 0, 1)):
            assert torch.equal(to_pixels(source, (30, 20), interpolation=name), expected)
    for source in (rgb, torch.rand(3, 4, 4)):
        with pytest.raises(ValueError, match="nearest"):
            to_pixels(source, (2, 2), interpolation="nearest")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x = torch.rand(1, 3, 20, 20).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    out = resize_pixels(x, (7, 7))
    assert torch.equal(out, resize_pixels(x.to(wide), (7, 7)))
    assert to_pixels(x[0], None).dtype == load_batch(x, (7, 7)).dtype == out.dtype == wide
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(resize_pixels(x, (7, 7)), out)


def test_gradient_through_alpha_and_gray() -> None:
    torch.manual_seed(0)
    for channels in (1, 2, 3, 4):
        x = (0.3 + 0.4 * torch.rand(channels, 5, 4, dtype=torch.float64)).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: to_pixels(x, (3, 3), background=(9, 99, 199)), x)
        assert torch.autograd.gradcheck(lambda x: load_batch([x, x[:1]], (3, 3)), x)


def test_the_small_picture_of_a_large_one_is_nearly_that_of_all_pixels() -> None:
    coarse = Image.fromarray(noise(6, 8)).resize((1800, 1300))
    grainy = np.asarray(coarse) + np.random.default_rng(0).normal(0, 4, (1300, 1800, 1))
    picture = Image.fromarray(grainy.clip(0, 255).astype(np.uint8))
    expected = np.asarray(picture.resize((images.SIZE, images.SIZE), Image.Resampling.LANCZOS)).astype(int)
    assert np.abs(small_picture(picture) - expected).max() <= 3


def test_an_overshoot_of_bicubic_interpolation_is_clamped() -> None:
    steps = torch.zeros(1, 3, 16, 16)
    steps[..., 8:] = 1
    raw = torch.nn.functional.interpolate(steps, (24, 24), mode="bicubic", antialias=True)
    assert raw.min() < -0.01
    assert torch.equal(resize_pixels(steps, (24, 24)), raw.clamp(0, 1))


# Lists


def test_nested_lists_and_other_objects_are_a_type_error() -> None:
    for nested in ([["a.png"]], ["a.png", ("b.png",)], [None], [3], 3):
        with pytest.raises(TypeError):
            split_images(nested)  # type: ignore[arg-type]


def test_a_batch_is_its_images() -> None:
    mixed: list[Any] = [noise(9, 7), torch.rand(3, 6, 6), saved(Image.fromarray(noise(5, 5))), noise(4, 4, 4) / 255]
    expected = torch.stack([to_pixels(x, (8, 8)) for x in mixed])
    assert torch.equal(load_batch(mixed, (8, 8)), expected)
    assert torch.equal(load_batch((x for x in mixed), (8, 8)), expected)
    assert torch.equal(load_batch(mixed[2], (8, 8)), expected[2:3])
    batch = torch.rand(4, 3, 5, 5)
    assert len(split_images(["a.png", batch, batch[0], batch.permute(0, 2, 3, 1).numpy()])) == 10
