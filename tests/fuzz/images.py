"""Image files: whole ones of every format that Pillow writes, and lies about size, depth, count and length."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.damage import damage

SIDE = 24
_KINDS = (
    "PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA", "ICO", "DIB", "MPO", "JPEG2000", "AVIF", "PCX", "SGI",
    "QOI", "EPS",
)  # fmt: skip
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "F")


def picture(mode: str, side: int = SIDE) -> Image.Image:
    """A small picture of a mode."""
    values = np.add.outer(np.arange(side), np.arange(side)) * 5 % 256
    gray = Image.fromarray(values.astype(np.uint8))
    if mode == "I;16":
        return Image.fromarray((values * 257).astype(np.uint16))
    if mode == "I":
        return Image.fromarray((values * 257).astype(np.int32))
    if mode == "F":
        return Image.fromarray((values / 255).astype(np.float32))
    if mode in ("LAB",):
        return Image.merge("LAB", [gray] * 3)
    return gray.convert("RGB").convert(mode)


@cache
def whole() -> tuple[tuple[str, bytes], ...]:
    """(format, file) of every format and mode that this Pillow writes, and of several variants."""
    found: list[tuple[str, bytes]] = []
    for kind in _KINDS:
        for mode in _MODES:
            found += _saved(kind, picture(mode))
    rgb = picture("RGB")
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    about = {"exif": exif.tobytes(), "icc_profile": b"profile" * 40, "xmp": b"<x:xmpmeta/>" * 20}
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "JPEG2000"):
        found += _saved(kind, rgb, **about)
    found += _saved("JPEG", rgb, progressive=True, subsampling=2)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        found += _saved("TIFF", rgb, compression=compression)
    for kind in ("GIF", "PNG", "WEBP", "TIFF", "MPO", "AVIF"):
        found += _saved(kind, rgb, save_all=True, append_images=[picture("RGB"), rgb.rotate(90)])
    found += _saved("PNG", rgb, transparency=(0, 0, 0))
    found += _saved("PNG", picture("P"), transparency=bytes(range(256)))
    found += _saved("GIF", picture("P"), transparency=3)
    return tuple(found)


def _saved(kind: str, image: Image.Image, **options: Any) -> list[tuple[str, bytes]]:
    data = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.save(data, kind, **options)
    except Exception:  # this Pillow does not write it
        return []
    return [(kind, data.getvalue())]


def malformed(rng: Random) -> bytes:
    """A damaged image file, or one that lies."""
    if rng.random() < 0.3:
        return rng.choice(_LIES)(rng)
    kind, data = rng.choice(whole())
    if kind == "PNG" and rng.random() < 0.6:  # without this, all that is seen of PNG is its checksums
        return _repaired(damage(data, rng, 2))
    return damage(data, rng)


# PNG by hand


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG with its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int = 8, color: int = 0, *more: bytes, data: bytes | None = None) -> bytes:
    """A PNG that says this of itself; its pixels are those of 8 x 8 gray unless `data` (uncompressed) is given."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, depth, color, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(9 * 8) if data is None else data))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + pixels + chunk(b"IEND", b"")


def _repaired(data: bytes) -> bytes:
    """A PNG with right checksums, as far as its chunks can be followed."""
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        length = int.from_bytes(out[at : at + 4], "big")
        end = at + 8 + length
        if end + 4 > len(out):
            break
        out[end : end + 4] = struct.pack(">I", zlib.crc32(out[at + 4 : end]))
        at = end + 4
    return bytes(out)


def _size(rng: Random) -> int:
    return rng.choice((0, 1, 7, 9, 255, 4096, 65535, 65536, 13_000, 100_000, 2**31 - 1, 2**31, 2**32 - 1))


def _png_size(rng: Random) -> bytes:
    return png(_size(rng), _size(rng), rng.choice((1, 2, 4, 8, 16, 3, 0, 255)), rng.choice((0, 2, 3, 4, 6, 1, 9)))


def _png_chunks(rng: Random) -> bytes:
    """Chunks that are too long, too many, compressed a thousandfold, or of odd content."""
    big = zlib.compress(bytes(rng.choice((100_000, 20_000_000))))
    chunks = (
        chunk(b"iCCP", b"name\0\0" + big),
        chunk(b"zTXt", b"key\0\0" + big),
        b"".join(chunk(b"tEXt", b"k%d\0" % k + bytes(2000)) for k in range(500)),
        chunk(b"eXIf", rng.choice((b"II*\0\x08\0\0\0\xff\xff", b"MM\0*", bytes(70_000), rng.randbytes(300)))),
        chunk(b"PLTE", rng.randbytes(rng.choice((0, 1, 3, 768, 769, 30_000)))),
        chunk(b"tRNS", rng.randbytes(rng.choice((0, 1, 2, 6, 300)))),
        chunk(b"acTL", struct.pack(">II", _size(rng), 0)),
        chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)),
    )
    pixels = rng.choice((None, b"", bytes(1_000_000), rng.randbytes(72)))
    return png(8, 8, rng.choice((8, 16)), rng.choice((0, 2, 3, 6)), *rng.sample(chunks, rng.randint(1, 3)), data=pixels)


def bomb(side: int = 12_000) -> bytes:
    """A PNG of side x side black pixels in a few kilobytes."""
    packer = zlib.compressobj(9)
    row = bytes(1 + side // 8)
    body = b"".join(packer.compress(row * 100) for _ in range(side // 100)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _gif(rng: Random) -> bytes:
    head = b"GIF89a" + struct.pack(
        "<HHBBB", rng.choice((0, 1, 65535)), rng.choice((0, 1, 65535)), rng.choice((0, 0x80, 0xF7)), 0, 0
    )
    palette = rng.randbytes(rng.choice((0, 6, 768)))
    frame = b"," + struct.pack(
        "<HHHHB", 0, 0, rng.choice((0, 1, 65535)), rng.choice((0, 1, 65535)), rng.choice((0, 0x40, 0x87))
    )
    body = bytes([rng.choice((0, 2, 8, 12, 255))]) + b"\x02\x4c\x01\0"
    return head + palette + (frame + body) * rng.choice((0, 1, 2, 50)) + rng.choice((b";", b"", b"!\xff"))


def frames(count: int) -> bytes:
    """An animated GIF of one pixel with so many frames."""
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6)
    frame = b"!\xf9\x04\0\0\0\0\0" + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0"
    return head + frame * count + b";"


def pages(count: int, loop: bool = False) -> bytes:
    """A TIFF of so many pages of one pixel; with `loop` its last page leads back to the first."""
    tags = [(256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8), (278, 3,
    1, 1),
            (279, 4, 1, 1)]  # fmt: skip
    size = 2 + 12 * len(tags) + 4
    out = b"II*\0" + struct.pack("<I", 12) + b"\x80\0\0\0"
    for k in range(count):
        after = 12 + size * (k + 1) if k + 1 < count else 12 if loop else 0
        out += (
            struct.pack("<H", len(tags))
            + b"".join(struct.pack("<HHII", *tag) for tag in tags)
            + struct.pack("<I", after)
        )
    return out


def _tiff(rng: Random) -> bytes:
    """A TIFF whose tags lie about size, depth, place and count."""
    names = (256, 257, 258, 259, 262, 273, 277, 278, 279, 317, 320, 322, 324, 330, 338, 339, 34665, 34675, 700)
    edges = (0, 1, 2, 8, 16, 255, 65535, 2**31 - 1, 2**32 - 1)
    tags = [(name, 3, 1, rng.choice((0, 1, 8, 65535))) for name in (256, 257)]
    for _ in range(rng.randint(1, 12)):
        tags.append((rng.choice(names), rng.choice((1, 2, 3, 4, 5, 7, 12, 99)), rng.choice((0, 1, 1000, 2**31)),
                     rng.choice(edges)))  # fmt: skip
    packed = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + packed + struct.pack("<I", rng.choice((0, 8, 2**32 - 1)))


def _jpeg(rng: Random) -> bytes:
    """A JPEG with segments that are too long, too many, of no length, or with another size."""
    data = dict(whole())["JPEG"]
    marker = bytes([0xFF, rng.choice((0xE0, 0xE1, 0xE2, 0xED, 0xFE, 0xDB, 0xC4, 0xDD))])
    kind = rng.randrange(3)
    if kind == 0:
        at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        sides = struct.pack(">HH", rng.choice((0, 1, 65535)), rng.choice((0, 1, 65535)))
        return data[: at + 5] + sides + data[at + 9 :]
    if kind == 1:
        lead = rng.choice((b"Exif\0\0", b"ICC_PROFILE\0\x01\xff", b"http://ns.adobe.com/xap/1.0/\0", b"MPF\0"))
        part = lead + rng.choice((bytes(65_000), rng.randbytes(2000), b"II*\0\x08\0\0\0" + b"\xff" * 500))
        return data[:2] + (marker + struct.pack(">H", len(part) + 2) + part) * rng.choice((1, 3, 300)) + data[2:]
    return data[:2] + marker + struct.pack(">H", rng.choice((0, 1, 2, 3, 65535))) + data[2:]


_LIES: tuple[Callable[[Random], bytes], ...] = (
    _png_size, _png_chunks, _gif, lambda rng: frames(rng.choice((2, 100, 3000))), _tiff, _jpeg,
)  # fmt: skip
