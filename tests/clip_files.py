"""Small clips for tests: frames whose number can be read back, sharp or blurred, in folders and videos."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageFilter

WIDTH, HEIGHT = 96, 64


def picture(number: int, sharp: bool = True, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """A frame: stripes, and its number as eight light or dark blocks along the top; all washed out if not sharp."""
    pixels = np.full((size[1], size[0], 3), 120, np.uint8)
    pixels[24:, ::4] = 200
    pixels[24:, 1::4] = 200
    for bit in range(8):
        pixels[:16, bit * 12 : bit * 12 + 12] = 230 if number >> bit & 1 else 20
    image = Image.fromarray(pixels)
    return image if sharp else image.filter(ImageFilter.GaussianBlur(3))


def number_of(image: Image.Image) -> int:
    """The number that `picture` wrote, through lossy compression."""
    gray = np.asarray(image.convert("L"))
    return sum((int(gray[4:12, bit * 12 + 3 : bit * 12 + 9].mean()) > 127) << bit for bit in range(8))


def mask(share: float, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """A mask that covers about this share of the frame, from the left, in whole columns."""
    made = Image.new("L", size)
    made.paste(255, (0, 0, round(share * size[0]), size[1]))
    return made


def write_folder(folder: Path, count: int, blurred: Sequence[int] = (), first: int = 0, form: str = "png") -> Path:
    """Frames first, first + 1, ... as files without leading zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        picture(i, i not in blurred).save(folder / f"{first + i}.{form}")
    return folder


def write_masks(folder: Path, shares: Mapping[int, float], first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, share in shares.items():
        mask(share).save(folder / f"{first + i}.png")
    return folder


def write_video(
    path: Path,
    frames: Sequence[Image.Image],
    fps: int = 30,
    stamps: Sequence[int] | None = None,
    codec: str = "mpeg4",
    keyframes: int = 12,
    options: Mapping[str, str] | None = None,
    codec_options: Mapping[str, str] | None = None,
    pixels: str | None = None,
) -> Path:
    """Frames as a video; `stamps`: their times in 1/600 seconds; `pixels`: FFmpeg's name of the format.

    With `codec_options`, the codec has no others.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=dict(options or {})) as container:
        stream = container.add_stream(codec, rate=fps, options=dict(codec_options or {}))
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = pixels or {"ffv1": "gray", "png": "rgb24"}.get(codec, "yuv420p")
        if codec_options is None:
            stream.bit_rate = 4_000_000
            stream.codec_context.gop_size = keyframes
        if stamps is not None:
            stream.codec_context.time_base = Fraction(1, 600)
        for i, image in enumerate(frames):
            frame = av.VideoFrame.from_image(image)
            if image.mode == "RGBA":
                frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgba")
            if stamps is not None:
                frame.pts, frame.time_base = stamps[i], Fraction(1, 600)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def packets_of(path: Path) -> list[tuple[int, int, int]]:
    """Of each packet in decode order: the position and number of its bytes in the file, and its index in display."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        stamps = sorted(packet.pts for packet in packets)
        data = path.read_bytes()
        found = []
        for packet in packets:
            position = data.find(bytes(packet), packet.pos)  # in Matroska, a header comes first
            if position < 0:  # in a transport stream, headers lie between
                position = packet.pos
            found.append((position, packet.size, stamps.index(packet.pts)))
    return found


def turn_video(path: Path, quarter_turns: int) -> None:
    """Set the rotation of an .mp4, as phones do: so many quarter turns clockwise until it is upright."""
    one = 1 << 16
    set_matrix(path, *[(one, 0, 0, one), (0, one, -one, 0), (-one, 0, 0, -one), (0, -one, one, 0)][quarter_turns])


def set_matrix(path: Path, a: int, b: int, c: int, d: int) -> None:
    """Set the display matrix of an .mp4: the pixel (x, y) is shown at (a x + c y, b x + d y), in 1/65536."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4
    matrix = at + (40 if data[at] == 0 else 52)  # after version, times, id, duration, layer, volume
    data[matrix : matrix + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
