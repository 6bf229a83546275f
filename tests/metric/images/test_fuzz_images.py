"""Images that are meant to do harm: bombs, lies about size, endless pages, programs, blocks beyond all measure."""

from __future__ import annotations

import contextlib
import io
import zlib

import numpy as np
import pytest
from PIL import Image

from idmetric.metric.images import ImageReadError, read_image
from idmetric.metric.masks import read_mask
from tests.fuzz import chunk, forget_peak, png, status


@pytest.mark.parametrize("size", [(2**32 - 1, 2**32 - 1), (2**31 - 1, 1), (0, 8), (8, 0), (60_000, 60_000)])
def test_a_header_that_lies_about_the_size_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ImageReadError):
        read_image(png(*size))


@pytest.mark.parametrize("kind", [b"iCCP", b"zTXt", b"iTXt"])
def test_a_compressed_block_of_a_gigabyte_takes_no_gigabyte(kind: bytes) -> None:
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(2**24)) for _ in range(16)) + packer.flush()  # 256 MB in 250 KB
    lead = b"key\0\1\0\0\0" if kind == b"iTXt" else b"name\0\0"
    before = forget_peak()
    with contextlib.suppress(ImageReadError):
        read_image(png(8, 8, 8, 0, chunk(kind, lead + data)))
    assert status("VmHWM") - before < 150 * 2**20


def test_blocks_beyond_all_measure_do_not_lose_the_picture() -> None:
    picture = Image.effect_noise((16, 16), 50).convert("RGB")
    data = io.BytesIO()
    picture.save(data, "PNG")
    whole = data.getvalue()
    found = read_image(whole[:33] + chunk(b"teSt", bytes(2**22)) + whole[33:])
    assert np.array_equal(np.asarray(found), np.asarray(picture))
    with pytest.raises(ImageReadError):  # who knows how it is turned
        read_image(whole[:33] + chunk(b"eXIf", bytes(2**22)) + whole[33:])


def test_formats_that_decode_slowly_or_run_programs_are_refused() -> None:
    for kind in ("QOI", "EPS"):
        data = io.BytesIO()
        Image.new("RGB", (4, 4)).save(data, kind)
        for read in (read_image, read_mask):
            with pytest.raises(ImageReadError):
                read(data.getvalue())
