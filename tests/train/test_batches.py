from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image

from idmetric import IDSim, ImageReadError
from idmetric.data.manifest import ManifestError, checked, take
from idmetric.train.batches import (
    Pictures,
    batch_rows,
    check,
    check_batch,
    check_held_out,
    generator,
    permutation,
    share,
    steps_per_epoch,
)
from tests.table_parts import a_row, a_table
from tests.train_parts import picture


def disc(width: int = 60, height: int = 44) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(((x - width / 2) ** 2 + (y - height / 2) ** 2 < 200).astype(np.uint8) * 255)


@pytest.fixture
def photos(tmp_path: Path) -> DataFrame:
    """Images of many kinds: JPEG, PNG with alpha, 16 bits, turned by EXIF; the first three have masks."""
    rows = []
    disc().save(tmp_path / "mask.png")
    disc(30, 22).save(tmp_path / "small-mask.png")
    picture(0).save(tmp_path / "a.jpg")
    alpha = picture(1).convert("RGBA")
    alpha.putalpha(disc())
    alpha.save(tmp_path / "b.png")
    picture(2).save(tmp_path / "c.webp", lossless=True)
    rows += [
        a_row("a", "a.jpg", mask="mask.png"), a_row("a", "b.png", mask="small-mask.png"),
        a_row("b", "c.webp", mask="mask.png"),
    ]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(3).save(tmp_path / "d.jpg", exif=exif)
    deep = np.linspace(0, 65535, 44 * 60).reshape(44, 60).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "e.png")
    picture(5).save(tmp_path / "f.png")
    rows += [a_row("b", "d.jpg"), a_row("c", "e.png"), a_row("c", "f.png")]
    return a_table(rows, tmp_path)


def test_held_out_rows_share_no_image_and_no_identity_with_trained_ones(photos: DataFrame) -> None:
    check_held_out(photos, np.array([0, 1]), np.array([2, 3, 4]))
    with pytest.raises(ManifestError, match="row 2"):
        check_held_out(photos, np.array([0]), np.array([1, 2]))  # of one identity
    paths = [photos["path"][0]] * 2 + photos["path"].tolist()[2:]
    renamed = checked(photos.assign(identity=["a", "b", "c", "d", "e", "f"], path=paths))
    with pytest.raises(ManifestError, match="row 2"):
        check_held_out(renamed, np.array([0]), np.array([1, 2]))  # one file


# Chance


def test_a_generator_follows_from_its_key_alone() -> None:
    keys: list[tuple[Any, ...]] = [
        (0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (2**32,), (2**70, 1), ("0",), (0, "0"), ("a", "b"), ("ab",),
        (12, 3), (1, 23), (-1,),
    ]  # fmt: skip
    draws = [generator(*key).integers(2**62) for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [generator(*key).integers(2**62) for key in keys]
    assert generator(np.int64(3), np.int32(4)).random() == generator(3, 4).random()
    assert generator(0, 1).random() == 0.03715572311173909  # on any machine


def test_each_epoch_takes_every_item_once_in_an_order_of_its_own() -> None:
    batches = [batch_rows(step, 12, 4, seed=5) for step in range(9)]
    epochs = [np.concatenate(batches[k : k + 3]) for k in (0, 3, 6)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(12))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert not np.array_equal(epochs[0], permutation(6, 0, 12))
    # any step by itself, in any order
    permutation.cache_clear()
    assert np.array_equal(batch_rows(7, 12, 4, seed=5), batches[7])


def test_an_incomplete_last_batch_is_left_out() -> None:
    assert steps_per_epoch(11, 4) == 2
    taken = np.concatenate([batch_rows(step, 11, 4, seed=0) for step in (0, 1)])
    assert len(set(taken.tolist())) == 8
    assert np.array_equal(batch_rows(2, 11, 4, 0), permutation(0, 1, 11)[:4])
    with pytest.raises(ValueError, match="read-only"):
        batch_rows(0, 12, 4, 0)[0] = 1


def test_processes_share_a_batch_in_order() -> None:
    assert [list(share(6, rank, 3)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert list(share(5, 0, 1)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="equally by 4"):
        share(6, 0, 4)


# Pixels


def test_pixels_are_those_that_the_model_sees(photos: DataFrame, metric: IDSim) -> None:
    pictures = Pictures.of(metric, photos)
    pixels = torch.stack([pictures.read(row) for row in range(len(photos))])
    assert pixels.shape == (6, 3, 64, 64)
    assert pixels.dtype == torch.float32
    for row in range(len(photos)):
        wanted, _ = metric.load(photos["path"][row])
        assert pixels[row].equal(wanted)
    embedded = metric.embed(photos["path"].tolist(), patches=False)
    torch.testing.assert_close(metric(pixels).cls, embedded.cls, rtol=0, atol=1e-6)


def test_foregrounds_are_those_that_the_model_sees(photos: DataFrame, metric: IDSim) -> None:
    pictures = Pictures.of(metric, photos)
    for row in range(3):
        image, mask = photos["path"][row], photos["mask"][row]
        wanted, _ = metric.load(image, mask, "black")
        assert pictures.read(row, foreground=True).equal(wanted)
    # the subject as it was, the rest black
    plain, cut = pictures.read(0), pictures.read(0, foreground=True)
    assert cut[:, 0, 0].max() == 0
    assert plain[:, 0, 0].max() > 0
    assert cut[:, 32, 32].equal(plain[:, 32, 32])


def test_a_mask_that_is_asked_for_and_not_there_is_an_error_with_the_row(photos: DataFrame, metric: IDSim) -> None:
    with pytest.raises(ManifestError, match=r"row 4 \(d.jpg\) has no mask.*inherit_masks"):
        Pictures.of(metric, photos).read(3, foreground=True)
    Image.new("L", (60, 44)).save(photos["mask"][0])
    with pytest.raises(ImageReadError, match=r"mask\.png.*empty"):
        Pictures.of(metric, photos).read(0, foreground=True)


def test_masking_comes_before_augmentation(photos: DataFrame) -> None:
    seen: list[Image.Image] = []

    def spy(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        seen.append(image)
        return image

    Pictures(photos, (32, 32), augment=spy).read(0, generator(0), foreground=True)
    assert seen[0].size == (60, 44)  # before the resize
    assert seen[0].getpixel((0, 0)) == (0, 0, 0)


# Before the first step


@pytest.fixture
def broken(tmp_path: Path) -> DataFrame:
    """Six rows: two cannot be read, one hangs on one of those, and one more mask is missing."""
    for name in "abcd":
        picture(ord(name)).save(tmp_path / f"{name}.png")
    whole = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    rows = [
        a_row("x", "a.png", id="a"), a_row("x", "b.png", id="b"),
        a_row("x/near", "c.png", id="c", role="distractor", parent="b"),
        a_row("y", "d.png", id="d", mask="lost.png"), a_row("y", "lost.png", id="e"), a_row("z", "a.png", id="f"),
    ]  # fmt: skip
    return a_table(rows, tmp_path)


def test_unreadable_images_stop_before_the_first_step_with_the_list(broken: DataFrame) -> None:
    with pytest.raises(ManifestError) as caught:
        check(broken)
    text = str(caught.value)
    assert text.startswith("2 of 6 rows cannot be used:")
    assert "row 2, column 'path': cannot read image" in text
    assert "b.png" in text
    assert "row 5, column 'path'" in text
    assert "the file does not exist" in text
    assert "--on-error skip" in text
    with pytest.raises(ManifestError, match=r"(?s)3 of 6 rows.*row 4, column 'mask'"):
        check(broken, masks=True)
    with pytest.raises(ManifestError, match="1 of 6 rows"):  # the damaged one is there
        check(broken, decode=False)


def test_unreadable_images_are_skipped_with_what_depends_on_them(broken: DataFrame) -> None:
    whole = take(broken, [0, 2, 3, 5])
    assert check(whole) is whole
    with pytest.warns(UserWarning, match=r"(?s)2 rows cannot be used.*3 of 6 rows stay.*b\.png"):
        kept = check(broken, on_error="skip")
    assert kept["id"].tolist() == ["a", "d", "f"]
    with pytest.raises(ManifestError, match="2 of 6 rows cannot be used"):
        check(broken)
    with pytest.raises(ManifestError, match="no usable row is left"):
        check(take(broken, [1, 4]), on_error="skip")


def test_a_batch_that_the_data_do_not_fill_is_refused_by_its_option() -> None:
    check_batch(4, 4, "triplets")
    with pytest.raises(ManifestError, match=r"\b3 triplets\b.*\b4\b.*--batch-size\b.*\b3\b"):
        check_batch(4, 3, "triplets")
    with pytest.raises(ManifestError, match="--classes"):
        check_batch(4, 3, "classes", "--classes")
