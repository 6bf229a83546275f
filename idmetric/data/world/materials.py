"""Procedural textures: package designs, cloth, fur, paint; and cut-outs of photos."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Texture = NDArray[np.uint8]
Colour = tuple[int, int, int]
SIZE = 192


def colour(rng: Generator) -> Colour:
    """A colour of the whole range, greys, black and white included."""
    if rng.random() < 0.25:
        value = int(rng.choice([rng.integers(15, 60), rng.integers(60, 200), rng.integers(200, 256)]))
        return (value, value, value)
    r, g, b = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.25, 1.0), rng.uniform(0.25, 1.0))
    return (int(r * 255), int(g * 255), int(b * 255))


def smooth_noise(rng: Generator, size: int, cells: int) -> NDArray[np.float32]:
    """Soft random blotches (size, size) in [0, 1], about `cells` across."""
    coarse = Image.fromarray(rng.integers(0, 256, (cells + 1, cells + 1), dtype=np.uint8))
    soft: NDArray[np.float32] = np.array(coarse.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float32)
    soft /= 255
    return soft


def _flat(c: Colour) -> NDArray[np.float32]:
    filled: NDArray[np.float32] = np.full((SIZE, SIZE, 3), c, dtype=np.float32)
    return filled


def _mix(a: Colour, b: Colour, amount: NDArray[np.floating]) -> NDArray[np.float32]:
    mixed: NDArray[np.float32] = (_flat(a) * (1 - amount[..., None]) + _flat(b) * amount[..., None]).astype(np.float32)
    return mixed


def _word(rng: Generator, low: int, high: int) -> str:
    letters = np.array(list("ABCDEFGHIJKLMNOPRSTUVWXYZabcdefghiklmnoprstuvy"))
    return "".join(rng.choice(letters, rng.integers(low, high)))


def _text(
    draw: ImageDraw.ImageDraw, rng: Generator, at: tuple[float, float], size: float, fill: Colour, word: str
) -> None:
    draw.text(at, word, fill=fill, font=ImageFont.load_default(size=max(6.0, size)), anchor="mm")


def package(rng: Generator, photos: Sequence[Texture] = ()) -> Texture:
    """A printed package: bands, a brand name, shapes, a picture, small print."""
    a, b, c, d = (colour(rng) for _ in range(4))
    ramp = np.linspace(0, 1, SIZE)[:, None] * np.ones(SIZE)
    base = _mix(a, b if rng.random() < 0.3 else a, ramp).astype(np.uint8)
    image = Image.fromarray(base)
    draw = ImageDraw.Draw(image)
    for _ in range(rng.integers(0, 4)):
        top = rng.uniform(0, SIZE)
        slope, thick = rng.uniform(-40, 40), rng.uniform(8, 60)
        fill = (b, c, d)[rng.integers(3)]
        draw.polygon([(0, top), (SIZE, top + slope), (SIZE, top + slope + thick), (0, top + thick)], fill=fill)
    if len(photos) and rng.random() < 0.6:
        w, h = (int(x) for x in rng.integers(60, 150, 2))
        sticker = Image.fromarray(photos[int(rng.integers(len(photos)))]).resize((w, h))
        shape = Image.new("L", (w, h), 0)
        pen = ImageDraw.Draw(shape)
        (pen.ellipse if rng.random() < 0.6 else pen.rectangle)((0, 0, w - 1, h - 1), fill=255)
        image.paste(sticker, (int(rng.integers(0, SIZE - w + 20)), int(rng.integers(0, SIZE - h + 20))), shape)
    for _ in range(rng.integers(1, 5)):
        x, y = rng.uniform(0, SIZE, 2)
        rx, ry = rng.uniform(8, 60), rng.uniform(8, 40)
        box = (x - rx, y - ry, x + rx, y + ry)
        fill = (b, c, d)[rng.integers(3)]
        choice = rng.integers(3)
        if choice == 0:
            draw.ellipse(box, fill=fill)
        elif choice == 1:
            draw.rounded_rectangle(box, radius=6, fill=fill)
        else:
            draw.regular_polygon((x, y, min(rx, ry)), int(rng.integers(3, 8)), fill=fill)
    fill = max(
        (b, c, d, (255, 255, 255), (20, 20, 20)), key=lambda k: sum(abs(p - q) for p, q in zip(k, a, strict=True))
    )
    y = rng.uniform(0.15, 0.6) * SIZE
    _text(draw, rng, (SIZE / 2, y), rng.uniform(26, 60), fill, _word(rng, 3, 8))
    if rng.random() < 0.7:
        _text(
            draw,
            rng,
            (SIZE / 2, y + rng.uniform(25, 50)),
            rng.uniform(12, 26),
            (c, d, fill)[rng.integers(3)],
            _word(rng, 4, 11),
        )
    for row in range(rng.integers(0, 6)):
        _text(draw, rng, (SIZE / 2, SIZE * 0.78 + 7 * row), 7, fill, " ".join(_word(rng, 2, 9) for _ in range(4)))
    return np.asarray(image)


def cloth(rng: Generator, photos: Sequence[Texture] = ()) -> Texture:
    """Cloth: plain, striped, checked, dotted or heather; sometimes with a print, a zip or a pocket."""
    a, b = colour(rng), colour(rng)
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    kind = rng.integers(6)
    if kind <= 1:
        base = _flat(a)
    elif kind == 2:
        wave = np.sin((y if rng.random() < 0.6 else x) * 2 * np.pi * rng.integers(4, 25)) > rng.uniform(-0.6, 0.6)
        base = _mix(a, b, wave.astype(float))
    elif kind == 3:
        n = rng.integers(4, 14)
        check = (np.sin(x * 2 * np.pi * n) > 0.2).astype(float) / 2 + (np.sin(y * 2 * np.pi * n) > 0.2).astype(
            float
        ) / 2
        base = _mix(a, b, check)
    elif kind == 4:
        n = rng.integers(5, 18)
        dots = ((x * n) % 1 - 0.5) ** 2 + ((y * n) % 1 - 0.5) ** 2 < rng.uniform(0.02, 0.12)
        base = _mix(a, b, dots.astype(float))
    else:
        base = _mix(a, b, smooth_noise(rng, SIZE, int(rng.integers(8, 60))) * 0.5)
    base = base + (smooth_noise(rng, SIZE, 90)[..., None] - 0.5) * rng.uniform(0, 40)
    image = Image.fromarray(base.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    c = colour(rng)
    extra = rng.random()
    if extra < 0.3:  # on the chest; texture and cloth are seen the same way round
        if rng.random() < 0.6:
            _text(draw, rng, (SIZE / 2, SIZE * 0.35), rng.uniform(20, 46), c, _word(rng, 2, 6))
        else:
            draw.regular_polygon((SIZE / 2, SIZE * 0.38, rng.uniform(12, 34)), int(rng.integers(3, 9)), fill=c)
    elif extra < 0.45:
        draw.line((SIZE / 2, 0, SIZE / 2, SIZE), fill=c, width=3)
    elif extra < 0.6:
        top = rng.uniform(0.2, 0.7) * SIZE
        draw.rectangle((0, top, SIZE, top + rng.uniform(10, 60)), fill=c)
    return np.asarray(image)


def fur(rng: Generator, photos: Sequence[Texture] = ()) -> Texture:
    """A coat with patches or spots."""
    a, b = colour(rng), colour(rng)
    patches = smooth_noise(rng, SIZE, int(rng.integers(3, 12))) > rng.uniform(0.4, 0.7)
    base = _mix(a, b, patches.astype(float)) + (smooth_noise(rng, SIZE, 60)[..., None] - 0.5) * 40
    return base.clip(0, 255).astype(np.uint8)


def paint(rng: Generator, photos: Sequence[Texture] = ()) -> Texture:
    """One colour, or a gradual change between two, a little uneven."""
    a, b = colour(rng), colour(rng)
    amount = np.linspace(0, 1, SIZE)[:, None] * np.ones(SIZE) if rng.random() < 0.4 else smooth_noise(rng, SIZE, 4)
    base = _mix(a, b, amount * rng.choice([0.0, 0.3, 0.8])) + (
        smooth_noise(rng, SIZE, 40)[..., None] - 0.5
    ) * rng.uniform(0, 50)
    return base.clip(0, 255).astype(np.uint8)


def photo(rng: Generator, photos: Sequence[Texture] = ()) -> Texture:
    """A cut-out of a photo, sometimes recoloured; paint where there are no photos."""
    if not len(photos):
        return paint(rng)
    source = photos[int(rng.integers(len(photos)))]
    side = int(rng.integers(min(source.shape[:2]) // 3, min(source.shape[:2]) + 1))
    top, left = rng.integers(source.shape[0] - side + 1), rng.integers(source.shape[1] - side + 1)
    crop = source[top : top + side, left : left + side]
    return shift_hue(crop, rng.random()) if rng.random() < 0.4 else crop


def shift_hue(texture: Texture, turn: float) -> Texture:
    """Turn all hues by `turn` of the colour circle."""
    hsv = np.array(Image.fromarray(np.ascontiguousarray(texture)).convert("HSV"))
    hsv[..., 0] = (hsv[..., 0].astype(np.int64) + round(turn * 256)) % 256
    return np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"))


MATERIALS = {"package": package, "cloth": cloth, "fur": fur, "paint": paint, "photo": photo}
