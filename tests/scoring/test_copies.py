"""Copy detection, and how far genuine photos are from each other."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.metric.images import SIZE
from idmetric.scoring.copies import Print, compare, take_print
from idmetric.scoring.references import closest, distinct, leave_one_out, originals


def print_of(image: Image.Image) -> Print:
    return take_print(np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS)))


def jpeg(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    return Image.open(file).convert("RGB")


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "as it is": lambda x: x,
    "JPEG": jpeg,
    "half the size": lambda x: x.resize((x.width // 2, x.height // 2), Image.Resampling.BICUBIC),
    "another aspect": lambda x: x.resize((x.width, x.height // 2), Image.Resampling.BICUBIC),
    "crop of 5 %": lambda x: x.crop((0, x.height // 20, x.width * 19 // 20, x.height)),
    "crop of 10 %": lambda x: x.crop((x.width // 10, x.height // 20, x.width, x.height * 19 // 20)),
    "darker": lambda x: x.point(lambda v: v * 0.8),
    "brighter": lambda x: x.point(lambda v: min(255, v * 1.2)),
    "mirrored": lambda x: x.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "mirrored crop": lambda x: x.transpose(Image.Transpose.FLIP_LEFT_RIGHT).crop((0, 0, x.width * 9 // 10, x.height)),
}


@pytest.mark.parametrize("kind", COPIES)
def test_copies_of_photos_are_found_both_ways(kind: str, photos: list[Path]) -> None:
    for path in photos[::3]:
        photo = Image.open(path).convert("RGB")
        own, other = print_of(photo), print_of(COPIES[kind](photo))
        for found in (compare(own, other), compare(other, own)):
            assert found.found, (path, found)
            assert found.mirrored == kind.startswith("mirrored")
    assert compare(own, own).agreement == pytest.approx(1, abs=1e-5)


def test_the_closest_reference_is_the_one_that_was_copied(photos: list[Path]) -> None:
    opened = [Image.open(path).convert("RGB") for path in photos[:3]]
    references = [print_of(photo) for photo in opened]
    for number, photo in enumerate(opened):
        found, copy = closest(references, print_of(COPIES["mirrored crop"](photo)))
        assert found == number
        assert copy.mirrored


def test_two_photos_of_one_thing_are_no_copies(photo_root: Path) -> None:
    for folder in (*sorted(photo_root.glob("dev/grocery/*"))[:6], *sorted(photo_root.glob("dev/eth80/*"))[::8],
                   *sorted(photo_root.glob("dev/fashion/*"))[:60:10]):  # fmt: skip
        prints = [print_of(Image.open(p)) for p in sorted(folder.glob("[0-9].jpg"))]
        for k, one in enumerate(prints):
            for other in prints[:k]:
                assert not compare(one, other).found, folder


def test_the_background_alone_or_the_thing_alone_makes_no_copy(photo_root: Path) -> None:
    """ETH-80 has masks: another thing goes into a photo, and a thing before another background."""
    shelf = Image.open(sorted(photo_root.glob("dev/grocery/*/2.jpg"))[0]).convert("RGB").resize((256, 256))
    things = sorted(photo_root.glob("dev/eth80/eth80_*_1"))[1:8:2]
    for folder in things:
        thing = Image.open(folder / "2.jpg").convert("RGB")
        mask = Image.open(folder / "2_mask.png").convert("L").point(lambda v: 255 * (v > 0)).resize(thing.size)
        pasted = Image.composite(thing, shelf, mask)
        assert not compare(print_of(shelf), print_of(pasted)).found, "another thing in the same place"
        assert not compare(print_of(thing), print_of(pasted)).found, "the same thing in another place"
        assert compare(print_of(pasted), print_of(jpeg(pasted))).found


def test_another_color_makes_no_copy(photos: list[Path]) -> None:
    photo = Image.open(photos[4]).convert("RGB")
    red, green, blue = photo.split()
    assert not compare(print_of(photo), print_of(Image.merge("RGB", (blue, green, red.point(lambda v: v // 2))))).found


def test_pictures_without_structure_say_nothing() -> None:
    flat = take_print(np.full((SIZE, SIZE, 3), 200, np.uint8))
    noise = take_print(np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8))
    assert compare(flat, flat).agreement == 0
    assert not compare(flat, noise).found
    assert not compare(noise, take_print(np.random.default_rng(1).integers(0, 256, (96, 96, 3), dtype=np.uint8))).found
    assert compare(noise, noise).found


def small(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS))


def test_photos_that_repeat_a_picture_are_its_copies_in_any_order(photos: list[Path]) -> None:
    pictures = [Image.open(path).convert("RGB") for path in photos[:3]]
    plain, compressed, reduced, mirrored = (
        [small(change(picture)) for picture in pictures]
        for change in (COPIES["as it is"], jpeg, COPIES["half the size"], lambda x: x.transpose(Image.Transpose(0)))
    )
    shuffled = np.stack([plain[1], compressed[0], plain[2], plain[0], mirrored[1], reduced[2], reduced[0]])
    assert originals(shuffled).tolist() == [0, 1, 2, 1, 0, 2, 1]
    assert distinct(shuffled).tolist() == [0, 1, 2]
    assert distinct(np.stack(plain)).tolist() == [0, 1, 2]
    assert distinct(np.stack(plain[:1])).tolist() == [0]


def test_equal_pixels_are_copies_even_without_structure() -> None:
    light, dark = (np.full((SIZE, SIZE, 3), value, np.uint8) for value in (200, 60))
    assert originals(np.stack([light, dark, light])).tolist() == [0, 1, 0]


def test_leave_one_out_is_each_photo_against_the_others() -> None:
    rng = np.random.default_rng(0)
    d = rng.random((5, 5))
    d = d + d.T
    np.fill_diagonal(d, -7)  # not read
    for name, take in (("best", min), ("mean", lambda x: sum(x) / len(x))):
        expected = [take([d[i, j] for j in range(5) if j != i]) for i in range(5)]
        assert leave_one_out(d, name) == pytest.approx(expected)  # type: ignore[arg-type]
    assert leave_one_out([[0, 0.3], [0.3, 0]]).tolist() == [0.3, 0.3]
    for wrong in ([[0.0]], [[0, 1, 2], [1, 0, 2]], [[0, np.nan], [1, 0]]):
        with pytest.raises(ValueError, match="distances"):
            leave_one_out(wrong)
