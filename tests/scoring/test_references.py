"""References: in .idm files, which are taken as photos are, and copies among photos, which count once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import Embedding, IdentityLoss, IDSim, score
from idmetric.cli.score import main
from idmetric.matching.subjects import embedded_subject
from idmetric.matching.thresholds import own_limit
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError
from idmetric.scoring.references import CopyWarning
from tests.matching.scenes import ANN, STRANGER, panel, references


@pytest.fixture(scope="module")
def metric():
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six photos of a badge; in new/ three new ones and a stranger."""
    folder = tmp_path_factory.mktemp("photos") / "ann"
    folder.mkdir()
    (folder.parent / "new").mkdir()
    for number, picture in enumerate(references(ANN)):
        picture.save(folder / f"ann_{number}.png")
    for number in range(3):
        panel(ANN, number).save(folder.parent / "new" / f"ann_{number}.png")
    panel(STRANGER, 7).save(folder.parent / "new" / "stranger.png")
    return folder


@pytest.fixture(scope="module")
def saved(metric, photos):
    path = photos.parent / "ann.idm"
    metric.embed(photos, patches=False).save(path)
    return path


@pytest.mark.parametrize("aggregate", ["best", "mean"])
def test_scores_by_a_file_are_those_by_its_photos(metric, photos, saved, aggregate):
    options = {"aggregate": aggregate, "copies": False}
    by_photos = score(metric, photos, photos.parent / "new", **options)
    for form in (saved, [str(saved)], Embedding.load(saved)):
        by_file = score(metric, form, photos.parent / "new", **options)
        assert len(by_file.rows) == len(by_photos.rows) == 4
        for row, expected in zip(by_file.rows, by_photos.rows, strict=True):
            assert row["distance"] == pytest.approx(expected["distance"], abs=1e-6)
            assert (row["image"], row["reference"]) == (expected["image"], expected["reference"])
        assert by_file.real == pytest.approx(dict(by_photos.real), abs=1e-6)
        assert len(by_file.real) == 6


def test_the_photos_need_not_be_there_and_their_copies_are_not_found(metric, photos, tmp_path):
    shutil.copy(photos / "ann_0.png", tmp_path / "ann.png")
    metric.embed(tmp_path).save(tmp_path / "ann.idm")
    (tmp_path / "ann.png").unlink()
    with pytest.warns(CopyWarning, match="not looked for"):
        (row,) = score(metric, tmp_path / "ann.idm", photos / "ann_0.png").rows
    assert row["distance"] < 1e-5
    assert "copy" not in row


def test_references_of_another_model_or_without_patches_are_refused(metric, saved, photos):
    foreign = replace(Embedding.load(saved), model="IDSim:tiny@old/224x224")
    for use in (lambda: score(metric, foreign, photos.parent / "new"), lambda: IdentityLoss(metric, foreign)):
        with pytest.raises(RequestError, match="IDSim:tiny@old/224x224") as error:
            use()
        assert metric.model_id in str(error.value)
    with pytest.raises(RequestError, match="patches"):
        score(metric, saved, photos.parent / "new", distance="joint")
    with pytest.raises(ValueError, match="patches"):
        IdentityLoss(metric, saved, distance="joint")


def test_a_file_among_photos_or_as_an_image_is_refused(metric, saved, photos):
    with pytest.raises(RequestError, match="alone"):
        score(metric, [saved, photos / "ann_0.png"], photos.parent / "new")
    with pytest.raises(RequestError, match=r"absent\.idm"):
        score(metric, photos / "absent.idm", photos.parent / "new")
    with pytest.raises(ImageReadError, match=saved.name):
        metric.embed(saved)


@pytest.mark.parametrize("aggregate", ["mean", "min"])
def test_the_loss_by_a_file_is_that_by_its_photos(metric, photos, saved, aggregate):
    pixels = torch.rand(2, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    values, gradients = [], []
    for form in (photos, saved):
        pixels = pixels.detach().requires_grad_()
        loss = IdentityLoss(metric, form, aggregate=aggregate)(pixels)
        loss.backward()
        values.append(loss.detach())
        gradients.append(pixels.grad)
    torch.testing.assert_close(values[1], values[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-7, rtol=1e-4)
    with pytest.raises(ValueError, match="mask"):
        IdentityLoss(metric, saved, masks=torch.ones(6, 8, 8))


def test_the_command_takes_a_file(saved, photos, capfd):
    files = sorted(str(path) for path in (photos.parent / "new").iterdir())
    options = ["--model", "tiny", "--device", "cpu", "--format", "csv"]
    assert main([str(saved), *files, *options]) == 0
    by_file = capfd.readouterr()
    assert "copies are not looked for" in by_file.err
    assert main(["--ref", str(photos / "ann_[0-9].png"), *files, *options]) == 0
    by_photos = capfd.readouterr().out.splitlines()
    for line, expected in zip(by_file.out.splitlines(), by_photos, strict=True):
        assert line.split(",")[:5] == expected.split(",")[:5]  # the columns before those of copies


# Copies among the references

FIVE = ("mug_a", "mug_b", "mug_c", "box_a", "box_b")  # photos that are far from each other


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """Five photos once, in once/; each twice in twice/: also smaller, mirrored, as JPEG or WebP, or the file again."""
    root = tmp_path_factory.mktemp("repeated")
    (root / "once").mkdir()
    (root / "twice").mkdir()
    pictures = [Image.open(Path("examples/images") / f"{name}.png").convert("RGB") for name in FIVE]
    for name, picture in zip(FIVE, pictures, strict=True):
        picture.save(root / "once" / f"{name}.png")
        picture.save(root / "twice" / f"{name}.png")
    smaller = pictures[0].resize((pictures[0].width * 3 // 4, pictures[0].height * 3 // 4))
    smaller.save(root / "twice" / "mug_a_again.png")
    pictures[1].save(root / "twice" / "mug_b_again.jpg", quality=85)
    pictures[2].save(root / "twice" / "mug_c_again.webp", quality=80)
    pictures[3].save(root / "twice" / "box_a_again.png")
    pictures[4].transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(root / "twice" / "box_b_again.jpg", quality=85)
    return root


def farthest_of_five(metric, folder):
    """The largest distance of a photo to the nearest other one, of five, by a loop."""
    vectors = [metric.embed(folder / f"{name}.png").cls[0].double().numpy() for name in FIVE]
    units = [vector / np.linalg.norm(vector) for vector in vectors]
    nearest = []
    for row, unit in enumerate(units):
        nearest.append(min(1 - unit @ other for number, other in enumerate(units) if number != row))
    return max(nearest)


def test_copies_among_references_count_once_in_real_to_real_and_are_warned_of(metric, repeated):
    candidates = ["examples/images/mug_other.png", "examples/images/box_other.png"]
    with pytest.warns(CopyWarning) as given:
        twice = score(metric, repeated / "twice", candidates)
    warned = [str(warning.message) for warning in given]
    assert len(warned) == 5
    for name in FIVE:
        assert sum(f"{name}.png and " in text and f"{name}_again" in text for text in warned) == 1

    once = score(metric, repeated / "once", candidates)
    assert list(twice.real.values()) == pytest.approx(list(once.real.values()), abs=1e-6)
    assert len(once.real) == 5


@pytest.mark.parametrize("aggregate", ["best", "mean"])
def test_copies_among_references_count_once_in_the_threshold_of_a_match(metric, repeated, aggregate):
    limits = []
    for folder in ("once", "twice"):
        subject = embedded_subject("five", repeated / folder, metric, "cls")
        limits.append(own_limit(subject, "cls", aggregate).distance)
    assert limits[1] == pytest.approx(limits[0], abs=1e-6)
    if aggregate == "best":
        assert limits[0] == pytest.approx(farthest_of_five(metric, repeated / "once"), abs=1e-6)
