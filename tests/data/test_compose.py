from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.generate.compose import (
    MODES,
    contextual_canvas,
    fit,
    pad_randomly,
    partial_mask,
    read_pair,
    scale_mode,
)
from idmetric.metric.images import ImageReadError
from idmetric.metric.masks import read_mask


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 200, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def rectangle(width: int, height: int, left: int, top: int, right: int, bottom: int) -> Image.Image:
    mask = Image.new("L", (width, height))
    mask.paste(255, (left, top, right, bottom))
    return mask


def ellipse(width: int, height: int, radius: float = 0.3) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    inside = ((x - width / 2) / (radius * width)) ** 2 + ((y - height / 2) / (radius * height)) ** 2 < 1
    return Image.fromarray(inside.astype(np.uint8) * 255)


def bits(mask: Image.Image) -> NDArray[np.bool_]:
    values = np.asarray(mask)
    assert mask.mode == "L"
    assert set(np.unique(values)) <= {0, 255}
    return values == 255


def exact_area(mask: Image.Image, box: tuple[int, ...], size: tuple[int, int]) -> tuple[float, int]:
    """Area of a box of the mask scaled to a size, and the number of pixels that are covered in part: each of them is
    off by at most a half once it is all or nothing."""
    cover = read_mask(mask.crop(box), size[::-1]).double().numpy()  # type: ignore[arg-type]
    return float(cover.sum()), int(((cover > 1e-6) & (cover < 1 - 1e-6)).sum())


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """The result, or the text of the error that names why there is none."""
    try:
        return function(*args)
    except ImageReadError as error:
        return str(error)


def check_composed(image: Image.Image, mask: Image.Image, box: tuple[int, ...], made: Image.Image,
                   found: NDArray[np.bool_], size: tuple[int, int], left: int, top: int) -> None:  # fmt: skip
    """The foreground lies where it should with the pixels it should have, and all else is white."""
    pixels = np.asarray(made)
    assert (pixels[~found] == 255).all()
    resampled = np.asarray(image.resize(size, Image.Resampling.LANCZOS, box=box))  # type: ignore[arg-type]
    inner = np.zeros_like(found)
    inner[top : top + size[1], left : left + size[0]] = True
    assert not found[~inner].any()
    cut = found[top : top + size[1], left : left + size[0]]
    assert (pixels[top : top + size[1], left : left + size[0]][cut] == resampled[cut]).all()
    area, mixed = exact_area(mask, box, size)
    assert abs(found.sum() - area) <= 0.5 * mixed + 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_a_foreground_keeps_between_ten_percent_and_what_it_covered(mode: str) -> None:
    image, mask = noise(300, 200), ellipse(300, 200)
    before = bits(mask).sum() / (300 * 200)  # the crop is the whole image
    middle = (math.sqrt(0.1 / before) + 1) / 2
    for seed in range(40):
        made = contextual_canvas(image, mask, np.random.default_rng(seed), mode)  # type: ignore[arg-type]
        p = made.parameters
        assert made.image.size == made.mask.size == (288, 192)
        assert p["covered_before"] == pytest.approx(before)
        assert p["covered"] == bits(made.mask).mean()
        width, height = p["size"]
        slack = 0.5 * (width + height) * 2 / (288 * 192)  # rounding of both sides, and of an outline as long as them
        assert 0.1 - slack <= p["covered"] <= before + slack
        factor = p["scale"] * 300 / 288
        assert p["covered"] == pytest.approx(before * factor**2, abs=slack)
        assert (factor <= middle) if mode == "small" else (factor >= middle)
        assert p["fits"]
        check_composed(image, mask, p["box"], made.image, bits(made.mask), (width, height), p["left"], p["top"])


@pytest.mark.parametrize(
    ("size", "box", "crop", "canvas"),
    [
        ((300, 200), (10, 10, 60, 60), (300, 200), (288, 192)),
        ((1920, 1080), (100, 100, 900, 900), (1620, 1080), (1248, 832)),
        ((1080, 1920), (100, 100, 900, 900), (1080, 1620), (832, 1248)),
        ((1920, 1080), (0, 500, 1919, 700), (1919, 1919 / 1.5), (1248, 832)),  # wider than 3:2 of the height
        ((400, 400), (100, 50, 200, 350), (400 / 1.5, 400), (256, 384)),  # square: the foreground's shape decides
        ((400, 400), (50, 100, 350, 200), (400, 400 / 1.5), (384, 256)),
        ((900, 300), (400, 0, 500, 300), (450, 300), (480, 320)),
        ((20, 14), (5, 5, 9, 9), (20, 20 / 1.5), (96, 64)),
    ],
)
def test_crops_have_a_ratio_of_two_to_three_and_hold_the_foreground(
    size: tuple[int, int], box: tuple[int, int, int, int], crop: tuple[float, float], canvas: tuple[int, int]
) -> None:
    made = contextual_canvas(noise(*size), rectangle(*size, *box), np.random.default_rng(0), "small")
    assert made.parameters["crop"] == [round(side, 3) for side in crop]
    assert made.image.size == canvas
    assert max(canvas) / min(canvas) == 1.5


SIDES = st.integers(1, 90) | st.sampled_from([1, 2, 3, 500])


@st.composite
def photos(draw: st.DrawFn) -> tuple[Image.Image, Image.Image]:
    """A photo and a mask that is neither empty nor full."""
    width, height, seed = draw(SIDES), draw(SIDES), draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    if draw(st.booleans()):
        values = rng.random((height, width)) < draw(st.sampled_from([0.01, 0.5]))
    else:
        left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        right, bottom = draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height))
        values = np.zeros((height, width), bool)
        values[top:bottom, left:right] = True
    assume(values.any() and not values.all())
    return noise(width, height, seed), Image.fromarray(values.astype(np.uint8) * 255)


@settings(max_examples=150, deadline=None)
@given(photos(), st.integers(0, 9), st.sampled_from(MODES))
@example((noise(2, 1), rectangle(2, 1, 0, 0, 1, 1)), 0, "small")
@example((noise(500, 1), rectangle(500, 1, 3, 0, 4, 1)), 0, "large")
def test_a_canvas_is_right_or_refused_by_name(photo: tuple[Image.Image, Image.Image], seed: int, mode: str) -> None:
    image, mask = photo
    made = attempt(contextual_canvas, image, mask, np.random.default_rng(seed), mode)
    if isinstance(made, str):
        assert "so thin" in made
        return
    p, found = made.parameters, bits(made.mask)
    long, short = max(made.image.size), min(made.image.size)
    assert long % 32 == short % 32 == 0
    assert long <= 1248
    assert 2 * long == 3 * short
    assert p["left"] + p["size"][0] <= made.image.width
    assert p["top"] + p["size"][1] <= made.image.height
    assert found.any()
    check_composed(image, mask, p["box"], made.image, found, tuple(p["size"]), p["left"], p["top"])
    _, mixed = exact_area(mask, p["box"], tuple(p["size"]))
    slack = (0.5 * mixed + sum(p["size"]) + 1) / (long * short)  # outline, one row and one column
    assert p["covered"] <= max(0.1, p["covered_before"]) + slack
    assert p["covered"] >= 0.1 - slack or not p["fits"]
    assert json.loads(json.dumps(p)) == p


@settings(max_examples=150, deadline=None)
@given(photos(), st.integers(0, 9))
def test_padding_is_right_or_refused_by_name(photo: tuple[Image.Image, Image.Image], seed: int) -> None:
    image, mask = photo
    made = attempt(pad_randomly, image, mask, np.random.default_rng(seed))
    if isinstance(made, str):
        assert "so thin" in made
        return
    p = made.parameters
    assert made.image.size == made.mask.size == image.size
    assert 0 <= p["padding"] <= 0.5
    for side, whole in zip(p["size"], image.size, strict=True):
        assert abs(side - whole / (1 + p["padding"])) <= 0.5 or side == 1
    box = (0, 0, *image.size)
    check_composed(image, mask, box, made.image, bits(made.mask), tuple(p["size"]), p["left"], p["top"])


@settings(max_examples=200, deadline=None)
@given(photos(), st.sampled_from([(64, 8), (720, 8), (100, 32), (33, 1)]))
def test_fitted_sides_are_the_nearest_multiples(photo: tuple[Image.Image, Image.Image], rule: tuple[int, int]) -> None:
    image, mask = photo
    longest, multiple = rule
    scale = min(1, longest / max(image.size))
    made = attempt(fit, image, mask, longest, multiple)
    if isinstance(made, str):
        assert "so thin" in made or min(image.size) * scale < multiple / 2
        return
    fitted, found = made
    assert fitted.size == found.size
    for side, whole in zip(fitted.size, image.size, strict=True):
        assert side % multiple == 0
        assert multiple <= side <= longest
        cut = whole * scale > longest // multiple * multiple  # longest is no multiple itself
        assert abs(side - whole * scale) <= (multiple if cut else multiple / 2)
    assert (np.asarray(fitted) == np.asarray(image.resize(fitted.size, Image.Resampling.LANCZOS))).all()
    area, mixed = exact_area(mask, (0, 0, *mask.size), fitted.size)
    assert abs(bits(found).sum() - area) <= 0.5 * mixed + 1e-3


def test_fitting_names_what_cannot_be_fitted() -> None:
    assert fit(noise(4000, 3000), ellipse(4000, 3000), 720, 8)[0].size == (720, 544)
    with pytest.raises(ImageReadError, match="3x2000 pixels cannot keep their shape"):
        fit(noise(3, 2000), rectangle(3, 2000, 0, 0, 2, 900), 720, 8)
    with pytest.raises(ImageReadError, match="so thin"):
        fit(noise(2000, 2000), rectangle(2000, 2000, 5, 0, 6, 2000), 720, 8)


@settings(max_examples=300, deadline=None)
@given(photos(), st.integers(0, 50))
def test_partial_masks_lose_forty_to_sixty_percent_along_an_axis(
    photo: tuple[Image.Image, Image.Image], seed: int
) -> None:
    mask = photo[1]
    before = bits(mask)
    area = before.sum()
    shares = [np.cumsum(before.sum(axis)) / area for axis in (0, 1)]  # a cut from the other end leaves 1 - share
    possible = any(((s >= 0.4) & (s <= 0.6)).any() for s in shares)
    found = attempt(partial_mask, mask, np.random.default_rng(seed))
    if isinstance(found, str):
        assert not possible
        return
    made, p = found
    assert possible
    after = bits(made)
    expected = before.copy()
    cut = p["cut"]
    gone = {"left": np.s_[:, :cut], "right": np.s_[:, cut:], "top": np.s_[:cut], "bottom": np.s_[cut:]}[p["side"]]
    expected[gone] = False
    assert (after == expected).all()
    assert p["axis"] == ("horizontal" if p["side"] in ("left", "right") else "vertical")
    assert p["removed"] == pytest.approx(1 - after.sum() / area)
    assert 0.4 <= p["removed"] <= 0.6
    assert 0.4 <= p["share"] <= 0.6
    line = before.sum(0 if p["axis"] == "horizontal" else 1)
    assert abs(p["removed"] - p["share"]) * area <= line.max()  # exact up to one row or column
    assert json.loads(json.dumps(p)) == p


def test_half_of_the_identities_have_each_mode() -> None:
    modes = [scale_mode(f"clip-{i}") for i in range(400)]
    assert 160 <= modes.count("small") <= 240  # 200 expected, standard deviation 10
    assert modes != [scale_mode(f"clip-{i}", seed=1) for i in range(400)]


def test_masks_that_say_nothing_are_refused() -> None:
    image = noise(30, 20)
    for mask, message in ((Image.new("L", (30, 20)), "is empty"), (Image.new("L", (30, 20), 255), "covers everything")):
        with pytest.raises(ImageReadError, match=message):
            read_pair(image, mask)
    with pytest.raises(ImageReadError, match="mask has 20x30 pixels and its image 30x20"):
        read_pair(image, ellipse(20, 30))
