"""Procedural surfaces: package designs, cloth, fur, paint, wood, glaze; and cut-outs of photos."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from world.identity import Dice

Texture = NDArray[np.uint8]
Color = tuple[int, int, int]
SIZE = 256


def color(rng: Generator) -> Color:
    """A random color of the whole range, including grays, black and white."""
    if rng.random() < 0.25:
        value = int(rng.choice([rng.integers(15, 60), rng.integers(60, 200), rng.integers(200, 256)]))
        return (value, value, value)
    return _hsv(rng.random(), rng.uniform(0.2, 1.0) ** 0.7, rng.uniform(0.25, 1.0))


def earthy(rng: Generator) -> Color:
    """A random color of coats, wood or leather."""
    return _hsv(rng.uniform(0.02, 0.13), rng.uniform(0.05, 0.65), rng.uniform(0.12, 0.95))


def _hsv(hue: float, saturation: float, value: float) -> Color:
    r, g, b = colorsys.hsv_to_rgb(hue, saturation, value)
    return (int(r * 255), int(g * 255), int(b * 255))


def smooth_noise(rng: Generator, size: int, cells: int) -> NDArray[np.float32]:
    """Soft random blotches (size, size) in [0, 1], about `cells` across."""
    coarse = Image.fromarray(rng.integers(0, 256, (cells + 1, cells + 1), dtype=np.uint8))
    soft: NDArray[np.float32] = np.array(coarse.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float32)
    soft /= 255
    return soft


def _mix(a: Color, b: Color, amount: NDArray[np.floating]) -> NDArray[np.float32]:
    start, step = np.array(a, np.float32), np.array(b, np.float32) - np.array(a, np.float32)
    return start + step * amount[..., None].astype(np.float32)


def _grain(rng: Generator, base: NDArray[np.float32], cells: int, strength: float) -> Texture:
    return (base + (smooth_noise(rng, SIZE, cells)[..., None] - 0.5) * strength).clip(0, 255).astype(np.uint8)


def _word(rng: Generator, low: int, high: int) -> str:
    """A random pronounceable word."""
    pair = [str(rng.choice(list("bcdfghklmnprstvz"))) + str(rng.choice(list("aeiouy"))) for _ in range(5)]
    word = "".join(pair)[: int(rng.integers(low, high))]
    return (word.upper(), word.capitalize(), word)[rng.integers(3)]


@lru_cache(maxsize=64)
def _font(size: int) -> Any:
    return ImageFont.load_default(size=size)


def _text(
    draw: ImageDraw.ImageDraw, rng: Generator, at: tuple[float, float], size: float, fill: Color, word: str
) -> None:
    draw.text(at, word, fill=fill, font=_font(max(6, round(size))), anchor="mm")


def _contrast(against: Color, options: Sequence[Color]) -> Color:
    return max(options, key=lambda k: sum(abs(p - q) for p, q in zip(k, against, strict=True)))


def package(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """A printed package: bands, a brand name, shapes, a picture, small print."""
    # a choice's name seeds its draw: "colour" stays as it is spelled
    a, b, c, d = (color(dice(f"colour {k}", w)) for k, w in enumerate((0.9, 0.7, 0.6, 0.5)))
    layout = dice("layout", 0.8)
    ramp = np.linspace(0, 1, SIZE)[:, None] * np.ones(SIZE)
    image = Image.fromarray(_mix(a, b if layout.random() < 0.3 else a, ramp).astype(np.uint8))
    draw = ImageDraw.Draw(image)

    for k in range(layout.integers(0, 4)):
        band = dice(f"band {k}", 0.4)
        top = band.uniform(0, SIZE)
        slope, thick = band.uniform(-0.2, 0.2) * SIZE, band.uniform(0.04, 0.32) * SIZE
        fill = (b, c, d)[band.integers(3)]
        draw.polygon([(0, top), (SIZE, top + slope), (SIZE, top + slope + thick), (0, top + thick)], fill=fill)

    if len(photos) and layout.random() < 0.6:
        place = dice("picture place", 0.5)
        w, h = (int(x * SIZE) for x in place.uniform(0.3, 0.8, 2))
        sticker = Image.fromarray(cut(dice("picture", 0.3), photos)).resize((w, h))
        shape = Image.new("L", (w, h), 0)
        pen = ImageDraw.Draw(shape)
        (pen.ellipse if place.random() < 0.6 else pen.rectangle)((0, 0, w - 1, h - 1), fill=255)
        left, top = (int(place.uniform(0, max(SIZE - side, 1))) for side in (w, h))
        image.paste(sticker, (left, top), shape)

    for k in range(layout.integers(1, 5)):
        _emblem(draw, dice(f"emblem {k}", 0.3), (b, c, d))
    fill = _contrast(a, (b, c, d, (255, 255, 255), (20, 20, 20)))
    y = layout.uniform(0.15, 0.6) * SIZE
    brand = dice("brand")
    size = brand.uniform(0.13, 0.3) * SIZE

    if brand.random() < 0.4:  # on a plate
        half = brand.uniform(0.25, 0.5) * SIZE
        plate = (b, c, d)[brand.integers(3)]
        draw.rounded_rectangle((SIZE / 2 - half, y - size * 0.6, SIZE / 2 + half, y + size * 0.6), radius=9, fill=plate)
        fill = _contrast(plate, (a, (255, 255, 255), (20, 20, 20)))

    _text(draw, brand, (SIZE / 2, y), size, fill, _word(brand, 3, 9))
    sub = dice("subtitle", 0.2)
    if sub.random() < 0.7:
        at = (SIZE / 2, y + sub.uniform(0.13, 0.28) * SIZE)
        _text(draw, sub, at, sub.uniform(0.06, 0.14) * SIZE, (c, d, fill)[sub.integers(3)], _word(sub, 4, 11))
    small = dice("small print", 0.1)
    for row in range(small.integers(0, 6)):
        line = " ".join(_word(small, 2, 9) for _ in range(4))
        _text(draw, small, (SIZE / 2, SIZE * 0.8 + 9 * row), 9, fill, line)

    return np.asarray(image)


def _emblem(draw: ImageDraw.ImageDraw, rng: Generator, colors: Sequence[Color]) -> None:
    x, y = rng.uniform(0, SIZE, 2)
    rx, ry = rng.uniform(0.04, 0.3) * SIZE, rng.uniform(0.04, 0.2) * SIZE
    box = (x - rx, y - ry, x + rx, y + ry)
    fill = colors[int(rng.integers(len(colors)))]
    choice = rng.integers(4)
    if choice == 0:
        draw.ellipse(box, fill=fill)
    elif choice == 1:
        draw.rounded_rectangle(box, radius=8, fill=fill)
    elif choice == 2:
        draw.regular_polygon((x, y, min(rx, ry)), int(rng.integers(3, 8)), fill=fill)
    else:
        draw.ellipse(box, outline=fill, width=int(rng.integers(3, 12)))


def garment(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """Two pieces of cloth side by side: the front with a print, the back without."""
    return np.concatenate([cloth(dice, photos), cloth(dice, photos, printed=False)], 1)


def cloth(dice: Dice, photos: Sequence[Texture] = (), printed: bool = True) -> Texture:
    """Cloth: plain, striped, checked, dotted, flowered or heather; with a print, a zip, buttons, a pocket or none."""
    a, b = color(dice("colour 0", 0.6)), color(dice("colour 1", 0.4))
    weave = dice("weave", 0.8)
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    kind = weave.integers(8)

    if kind == 3:
        wave = np.sin((y if weave.random() < 0.6 else x) * 2 * np.pi * weave.integers(4, 25))
        base = _mix(a, b, (wave > weave.uniform(-0.6, 0.6)).astype(float))
    elif kind == 4:
        n = weave.integers(4, 14)
        base = _mix(a, b, ((np.sin(x * 2 * np.pi * n) > 0.2) * 0.5 + (np.sin(y * 2 * np.pi * n) > 0.2) * 0.5))
    elif kind == 5:
        n = weave.integers(5, 18)
        dots = ((x * n) % 1 - 0.5) ** 2 + ((y * n) % 1 - 0.5) ** 2 < weave.uniform(0.02, 0.12)
        base = _mix(a, b, dots.astype(float))
    elif kind == 6:
        base = _mix(a, b, smooth_noise(weave, SIZE, int(weave.integers(8, 60))) * 0.5)
    else:
        base = _mix(a, a, x)

    image = Image.fromarray(_grain(dice("yarn", 0.9), base, 120, float(weave.uniform(4, 40))))
    draw = ImageDraw.Draw(image)
    if kind == 7:  # flowers
        for _ in range(weave.integers(15, 60)):
            cx, cy = weave.uniform(0, SIZE, 2)
            r = weave.uniform(3, 11)
            for angle in np.arange(5) * 2 * np.pi / 5:
                px, py = cx + r * np.cos(angle), cy + r * np.sin(angle)
                draw.ellipse((px - r * 0.7, py - r * 0.7, px + r * 0.7, py + r * 0.7), fill=b)
            draw.ellipse((cx - r / 2, cy - r / 2, cx + r / 2, cy + r / 2), fill=a)

    if printed:
        _print(draw, dice("print"), a)
    return np.asarray(image)


def _print(draw: ImageDraw.ImageDraw, rng: Generator, cloth_color: Color) -> None:
    """Draw a print on the chest; the texture is not mirrored when it is seen."""
    c = _contrast(cloth_color, [color(rng) for _ in range(3)])
    extra = rng.random()
    if extra < 0.2:
        _text(draw, rng, (SIZE / 2, SIZE * 0.35), rng.uniform(0.1, 0.24) * SIZE, c, _word(rng, 2, 6))
    elif extra < 0.35:
        radius = rng.uniform(0.06, 0.18) * SIZE
        draw.regular_polygon((SIZE / 2, SIZE * 0.38, radius), int(rng.integers(3, 9)), fill=c)
    elif extra < 0.5:
        draw.line((SIZE / 2, 0, SIZE / 2, SIZE), fill=c, width=int(rng.integers(2, 6)))
    elif extra < 0.65:
        top = rng.uniform(0.2, 0.7) * SIZE
        draw.rectangle((0, top, SIZE, top + rng.uniform(0.04, 0.3) * SIZE), fill=c)
    elif extra < 0.8:
        for y in np.arange(0.15, 0.95, rng.uniform(0.08, 0.16)) * SIZE:
            draw.ellipse((SIZE / 2 - 4, y - 4, SIZE / 2 + 4, y + 4), fill=c)
    elif extra < 0.9:
        left, top = rng.uniform(0.52, 0.62) * SIZE, rng.uniform(0.25, 0.4) * SIZE
        draw.rectangle((left, top, left + 0.16 * SIZE, top + 0.18 * SIZE), outline=c, width=3)
    else:
        draw.polygon([(0.3 * SIZE, 0), (0.5 * SIZE, 0.22 * SIZE), (0.7 * SIZE, 0)], outline=c, width=4)


def fur(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """A coat with patches, spots, stripes, or of one color."""
    tone = dice("natural", 0.9).random() < 0.75
    a, b = ((earthy if tone else color)(dice(f"colour {k}", w)) for k, w in enumerate((0.7, 0.5)))
    rng = dice("pattern")
    kind = rng.integers(4)

    if kind == 0:
        amount = (smooth_noise(rng, SIZE, int(rng.integers(3, 7))) > rng.uniform(0.45, 0.65)).astype(np.float32)
    elif kind == 1:
        amount = (smooth_noise(rng, SIZE, int(rng.integers(12, 30))) > rng.uniform(0.6, 0.75)).astype(np.float32)
    elif kind == 2:
        x = np.mgrid[:SIZE, :SIZE][1] / SIZE
        bend = smooth_noise(rng, SIZE, 5) * rng.uniform(0.5, 3)
        amount = (np.sin((x * rng.integers(4, 12) + bend) * 2 * np.pi) > rng.uniform(0, 0.7)).astype(np.float32)
    else:
        amount = smooth_noise(rng, SIZE, int(rng.integers(2, 5))) * rng.uniform(0.2, 1)

    return _grain(dice("hair", 0.9), _mix(a, b, amount), 90, 40)


def paint(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """One color, or a slightly uneven gradient between two."""
    a, b = color(dice("colour 0")), color(dice("colour 1", 0.5))
    rng = dice("wear", 0.6)
    amount = np.linspace(0, 1, SIZE)[:, None] * np.ones(SIZE) if rng.random() < 0.4 else smooth_noise(rng, SIZE, 4)
    return _grain(rng, _mix(a, b, amount * rng.choice([0.0, 0.3, 0.8])), 40, float(rng.uniform(0, 35)))


def skin(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """Peel of fruit: a color with a blush, specks and streaks."""
    rng = dice("colour 0", 0.5)
    base = _hsv(rng.uniform(-0.04, 0.33) % 1, rng.uniform(0.5, 0.95), rng.uniform(0.45, 0.95))
    rng = dice("blush")
    blush = _hsv(rng.uniform(-0.05, 0.2) % 1, rng.uniform(0.5, 1), rng.uniform(0.3, 1))
    mixed = _mix(base, blush, (smooth_noise(rng, SIZE, int(rng.integers(2, 6))) * 1.6 - 0.5).clip(0, 1))
    specks = dice("specks", 0.3)
    if specks.random() < 0.6:
        mixed += (smooth_noise(specks, SIZE, 60) > specks.uniform(0.72, 0.9))[..., None] * specks.uniform(-60, 60)
    return _grain(specks, mixed, 30, 20)


def wood(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """Boards or turned wood."""
    a = earthy(dice("colour 0", 0.5))
    rng = dice("grain")
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    bend = smooth_noise(rng, SIZE, 4) * rng.uniform(0.2, 0.8)
    rings = np.sin((x * rng.uniform(3, 12) + bend * 3 + y * rng.uniform(0, 0.5)) * 2 * np.pi) * 0.5 + 0.5
    darker = (int(a[0] * 0.6), int(a[1] * 0.55), int(a[2] * 0.5))
    return _grain(rng, _mix(a, darker, rings * rng.uniform(0.3, 0.9)), 100, 25)


def glaze(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """Painted ceramics: a ground with rings, dots, waves or a motif."""
    ground = dice("ground", 0.6)
    a = color(ground) if ground.random() < 0.5 else (int(ground.integers(215, 250)),) * 3
    image = Image.fromarray(_grain(ground, _mix(a, a, np.zeros((SIZE, SIZE))), 20, 8))
    draw = ImageDraw.Draw(image)

    for k in range(dice("count", 0.4).integers(1, 4)):
        rng = dice(f"motif {k}", 0.3 * k)
        c = _contrast(a, [color(rng), color(rng)])
        y, kind = rng.uniform(0.1, 0.9) * SIZE, rng.integers(4)
        n, r = int(rng.integers(3, 12)), rng.uniform(4, 20)

        if kind == 0:
            draw.rectangle((0, y, SIZE, y + r), fill=c)
        elif kind == 1:
            for x in (np.arange(n) + 0.5) / n * SIZE:
                draw.ellipse((x - r / 1.5, y - r / 1.5, x + r / 1.5, y + r / 1.5), fill=c)
        elif kind == 2:
            x = np.arange(0, SIZE + 1, 4)
            line = y + r * np.sin(x / SIZE * 2 * np.pi * n)
            draw.line(
                [(float(p), float(q)) for p, q in zip(x, line, strict=True)], fill=c, width=int(rng.integers(3, 9))
            )
        else:
            for x in (np.arange(n) + 0.5) / n * SIZE:
                draw.regular_polygon((x, y, r), int(rng.integers(3, 7)), fill=c)

    return np.asarray(image)


def photo(dice: Dice, photos: Sequence[Texture] = ()) -> Texture:
    """A cut-out of a photo, sometimes with shifted hues; paint if there are no photos."""
    return cut(dice("cut"), photos) if len(photos) else paint(dice)


def cut(rng: Generator, photos: Sequence[Texture]) -> Texture:
    """A square of a photo, sometimes with its hues turned."""
    source = photos[int(rng.integers(len(photos)))]
    side = int(rng.integers(min(source.shape[:2]) // 3, min(source.shape[:2]) + 1))
    top, left = rng.integers(source.shape[0] - side + 1), rng.integers(source.shape[1] - side + 1)
    crop = source[top : top + side, left : left + side]
    return shift_hue(crop, rng.random()) if rng.random() < 0.4 else crop


def shift_hue(texture: Texture, turn: float) -> Texture:
    """The texture with all hues shifted by `turn` of the color circle."""
    hsv = np.array(Image.fromarray(np.ascontiguousarray(texture)).convert("HSV"))
    hsv[..., 0] = (hsv[..., 0].astype(np.int64) + round(turn * 256)) % 256
    return np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"))


MATERIALS: dict[str, Callable[[Dice, Sequence[Texture]], Texture]] = {
    "package": package, "cloth": cloth, "garment": garment, "fur": fur, "paint": paint, "skin": skin, "wood": wood,
    "glaze": glaze, "photo": photo,
}  # fmt: skip
# material -> lowest and highest roughness, highest metallic value
SURFACES = {
    "package": (0.35, 0.7, 0.0), "cloth": (0.8, 1.0, 0.0), "garment": (0.8, 1.0, 0.0), "fur": (0.85, 1.0, 0.0),
    "paint": (0.2, 0.7, 0.5), "skin": (0.35, 0.7, 0.0), "wood": (0.45, 0.8, 0.0), "glaze": (0.15, 0.4, 0.0),
    "photo": (0.4, 0.9, 0.0),
}  # fmt: skip
