"""Subject files of others: damaged and hostile ones are refused by name."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from idmetric import IdentityLoss, IDSim, score
from idmetric.cli.score import main
from idmetric.metric.errors import RequestError
from idmetric.metric.files import BLANK, seal
from idmetric.metric.images import ImageReadError
from idmetric.metric.subject import Subject
from idmetric.scoring.copy_warnings import CopyWarning
from idmetric.scoring.references import own_limit
from idmetric.scoring.subjects import embed_subject
from tests.fuzz.flips import spread_flips
from tests.matching.scenes import ANN, STRANGER, panel, references

HEADER = {
    **BLANK,
    "format": "idmetric-subject/1",
    "model": "m",
    "grid": "",
    "name": "ann",
    "word": "",
    "threshold": "null",
    "references": '["a", "b"]',
    "signature": "{}",
}
TENSORS = {"cls": torch.ones(2, 4), "thumbnails": torch.zeros(2, 96, 96, 3, dtype=torch.uint8)}


def sealed(path, tensors, header):
    """Write a file with the digest of its bytes."""
    save_file(tensors, path, header)
    seal(path)


def test_a_file_of_these_parts_is_read(tmp_path):
    sealed(tmp_path / "ann.subject", TENSORS, HEADER)
    subject = Subject.load(tmp_path / "ann.subject")
    assert (subject.name, len(subject), subject.references) == ("ann", 2, ("a", "b"))


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        ({"cls": torch.ones(4)}, {}),
        ({"cls": torch.ones(2, 4).long()}, {}),
        ({"cls": torch.full((2, 4), torch.nan)}, {}),
        ({"cls": torch.ones(0, 4), "thumbnails": TENSORS["thumbnails"][:0]}, {"references": "[]"}),
        ({"patches": torch.ones(2, 3, 4), "weights": torch.ones(2, 9)}, {}),
        ({"patches": torch.ones(2, 4, 4)}, {"grid": "3x"}),
        ({"thumbnails": torch.zeros(2, 5, dtype=torch.uint8)}, {}),
        ({"thumbnails": torch.zeros(2, 96, 96, 3, dtype=torch.bfloat16)}, {}),
        ({}, {"references": "5"}),
        ({}, {"references": "[" * 100_000}),
        ({}, {"references": '["a"]'}),
        ({}, {"threshold": '"low"'}),
        ({}, {"threshold": "NaN"}),
        ({}, {"threshold": "1" + "0" * 400}),
        ({"thumbnails": torch.zeros(2, 96, 96, 3, dtype=torch.bool)}, {}),
        ({}, {"signature": "[1]"}),
        ({}, {"name": ""}),
        ({}, {"model": ""}),
        ({"cls": torch.zeros(2, 4)}, {}),
    ],
    ids=lambda value: json.dumps(value, default=lambda tensor: list(tensor.shape))[:40],
)
def test_hostile_files_are_refused_by_name(tmp_path, tensors, header):
    sealed(tmp_path / "ann.subject", TENSORS | tensors, HEADER | header)
    with pytest.raises(RequestError, match=r"ann\.subject is a damaged subject: (?!its bytes).*make it again"):
        Subject.load(tmp_path / "ann.subject")


def test_a_subject_names_its_model(tmp_path):
    header = {name: text for name, text in HEADER.items() if name != "model"}
    sealed(tmp_path / "ann.subject", TENSORS, header)
    with pytest.raises(RequestError, match=r"ann\.subject is a damaged subject: .*does not name the model"):
        Subject.load(tmp_path / "ann.subject")

    sealed(tmp_path / "ann.subject", TENSORS, HEADER)
    subject = Subject.load(tmp_path / "ann.subject")
    nameless = replace(subject, embedding=replace(subject.embedding, model=""))
    with pytest.raises(RequestError, match="ann do not name their model"):
        nameless.save(tmp_path / "nameless.subject")


def test_no_flipped_bit_of_a_subject_gives_another_score(metric, saved, photos, tmp_path):
    path = tmp_path / "ann.subject"
    for damaged in spread_flips(saved.read_bytes(), 40):
        path.write_bytes(damaged)
        with pytest.raises(RequestError, match=r"ann\.subject is (not|a damaged) subject: .*subject"):
            score(metric, path, photos / "ann_0.png")


def test_a_subject_sees_what_its_masks_show(metric, photos):
    files = sorted(photos.glob("*.png"))[:2]
    mask = np.zeros(Image.open(files[0]).size[::-1], dtype=np.uint8)
    mask[: len(mask) // 2] = 255
    subject = embed_subject(metric, files, name="ann", masks=[mask, None])
    embedding = metric.embed(files, masks=[mask, None], patches=False)
    assert torch.allclose(subject.embedding.cls, embedding.cls, atol=1e-6)
    assert not torch.allclose(subject.embedding.cls[0], metric.embed(files[0]).cls[0], atol=0.1)


# Where references are taken


@pytest.fixture(scope="module")
def metric():
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six photos of a badge; in new/ three new ones, a stranger, and a copy of a reference."""
    folder = tmp_path_factory.mktemp("photos") / "ann"
    folder.mkdir()
    (folder.parent / "new").mkdir()
    for number, picture in enumerate(references(ANN)):
        picture.save(folder / f"ann_{number}.png")
    for number in range(3):
        panel(ANN, number).save(folder.parent / "new" / f"ann_{number}.png")
    panel(STRANGER, 7).save(folder.parent / "new" / "stranger.png")
    copy = Image.open(folder / "ann_2.png")
    copy.resize((140, 130)).save(folder.parent / "new" / "copy.jpg", quality=80)
    return folder


@pytest.fixture(scope="module")
def saved(metric, photos):
    path = photos.parent / "ann.subject"
    embed_subject(metric, photos, name="ann").save(path)
    return path


def approximately(row):
    """The same values, where images that shared another batch may differ by rounding."""
    return {name: pytest.approx(value, abs=1e-6) if type(value) is float else value for name, value in row.items()}


@pytest.mark.parametrize("aggregate", ["best", "mean"])
@pytest.mark.filterwarnings("ignore::idmetric.scoring.copy_warnings.CopyWarning")
def test_scores_by_a_subject_are_those_by_its_photos(metric, photos, saved, aggregate):
    by_photos = score(metric, photos, photos.parent / "new", aggregate=aggregate)
    for subject in (saved, [str(saved)], Subject.load(saved)):
        by_subject = score(metric, subject, photos.parent / "new", aggregate=aggregate)
        assert len(by_subject.rows) == len(by_photos.rows)
        for found, expected in zip(by_subject.rows, by_photos.rows, strict=True):
            assert found == approximately(expected)  # copies included
        assert by_subject.baseline.distances == approximately(by_photos.baseline.distances)
        assert by_subject.baseline.repeated == by_photos.baseline.repeated
        assert by_subject.references == by_photos.references == 6
    (copy,) = [row for row in by_photos.rows if row["copy"]]
    assert copy["image"].endswith("copy.jpg")
    assert by_photos.threshold is None


@pytest.mark.filterwarnings("ignore::idmetric.scoring.copy_warnings.CopyWarning")
def test_a_subject_passes_what_is_within_its_threshold(metric, photos, saved):
    scores = score(metric, saved, photos.parent / "new")
    assert scores.threshold == pytest.approx(scores.baseline.max)
    assert scores.threshold_source == "own photos"
    failing = {os.path.basename(row["image"]) for row in scores.failing}
    assert "stranger.png" in failing
    assert failing.isdisjoint({"ann_0.png", "ann_1.png", "ann_2.png"})
    by_pairs = score(metric, saved, photos.parent / "new", calibration="stored")
    assert by_pairs.threshold == pytest.approx(0.363486)  # which is larger
    assert by_pairs.threshold_source == "stored calibration, 5 % of pairs"
    strict = replace(Subject.load(saved), threshold=1e-6)
    by_file = score(metric, strict, photos.parent / "new")
    assert len(by_file.failing) >= 4
    assert by_file.threshold_source == "the subject's own"
    assert score(metric, strict, photos.parent / "new", threshold=2.0).failing == []
    few = embed_subject(metric, photos / "ann_0.png", name="ann")
    assert score(metric, few, photos.parent / "new").threshold is None


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


def test_copies_among_references_count_once_in_the_threshold(metric, repeated, tmp_path):
    expected = farthest_of_five(metric, repeated / "once")
    assert expected > 0.2
    once = embed_subject(metric, repeated / "once", name="once")
    twice = embed_subject(metric, repeated / "twice", name="twice")
    assert (len(once), len(twice)) == (5, 10)
    assert own_limit(once, "cls").distance == pytest.approx(expected, abs=1e-6)
    assert own_limit(twice, "cls").distance == pytest.approx(expected, abs=1e-6)
    assert own_limit(twice, "cls", "mean").distance == pytest.approx(own_limit(once, "cls", "mean").distance, abs=1e-6)
    twice.save(tmp_path / "twice.subject")
    assert own_limit(Subject.load(tmp_path / "twice.subject"), "cls").distance == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("form", ["photos", "subject"])
def test_copies_among_references_count_once_in_real_to_real_and_are_warned_of(metric, repeated, tmp_path, form):
    references = repeated / "twice"
    if form == "subject":
        references = tmp_path / "twice.subject"
        embed_subject(metric, repeated / "twice", name="twice").save(references)
    candidates = ["examples/images/mug_other.png", "examples/images/box_other.png"]
    with pytest.warns(CopyWarning) as given:
        twice = score(metric, references, candidates)
    warned = [str(warning.message) for warning in given]
    assert len(warned) == 5
    for name in FIVE:
        assert sum(f"{name}.png and " in text and f"{name}_again" in text for text in warned) == 1
    assert all("are one picture, and count once among the real ones" in text for text in warned)

    once = score(metric, repeated / "once", candidates)
    assert len(twice.baseline.distances) == len(once.baseline.distances) == 5
    assert len(twice.baseline.repeated) == 5
    assert once.baseline.repeated == {}
    assert list(twice.baseline.distances.values()) == pytest.approx(list(once.baseline.distances.values()), abs=1e-6)
    assert "over 5 references (5 more repeat one of them): mean" in twice.to_table()
    if form == "subject":
        assert twice.threshold == pytest.approx(farthest_of_five(metric, repeated / "once"), abs=1e-6)


def test_the_photos_of_a_subject_need_not_be_there(metric, photos, tmp_path):
    shutil.copy(photos / "ann_0.png", tmp_path / "ann.png")
    subject = embed_subject(metric, tmp_path, name="ann")
    (tmp_path / "ann.png").unlink()
    (row,) = score(metric, subject, photos / "ann_0.png").rows
    assert row["copy"]
    assert row["distance"] < 1e-5


def test_foreign_subjects_are_refused_by_both_names(metric, saved, photos):
    subject = Subject.load(saved)
    foreign = replace(subject, embedding=replace(subject.embedding, model="IDSim:tiny@old/224x224"))
    for use in (lambda: score(metric, foreign, photos.parent / "new"), lambda: IdentityLoss(metric, foreign)):
        with pytest.raises(RequestError, match="IDSim:tiny@old/224x224") as error:
            use()
        assert metric.model_id in str(error.value)
    with pytest.raises(RequestError, match=r"'cls' and has no patches, which 'joint'"):
        score(metric, saved, photos.parent / "new", distance="joint")
    limited = replace(subject, threshold=0.3)
    with pytest.raises(RequestError, match=r"'cls'.*'patch'"):
        own_limit(limited, "patch")


def test_a_subject_among_photos_is_refused(metric, saved, photos, tmp_path):
    with pytest.raises(RequestError, match="one subject, or photos"):
        score(metric, [saved, photos / "ann_0.png"], photos.parent / "new")
    with pytest.raises(RequestError, match=r"absent\.subject"):
        score(metric, photos / "absent.subject", photos.parent / "new")
    save_file(TENSORS, tmp_path / "ann.subject", HEADER)
    with pytest.raises(ImageReadError, match=r"ann\.subject: it holds a subject, not an image"):
        metric.embed(tmp_path / "ann.subject")


@pytest.mark.parametrize("aggregate", ["mean", "min"])
def test_the_loss_by_a_subject_is_that_by_its_photos(metric, photos, saved, aggregate):
    pixels = torch.rand(2, 3, 112, 112, generator=torch.Generator().manual_seed(0), requires_grad=True)
    by_photos = IdentityLoss(metric, photos, aggregate=aggregate)(pixels)
    by_subject = IdentityLoss(metric, saved, aggregate=aggregate)(pixels)
    torch.testing.assert_close(by_subject, by_photos, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="mask"):
        IdentityLoss(metric, saved, masks=torch.ones(6, 8, 8))


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_command_takes_a_subject(saved, photos, capfd, form):
    files = sorted(str(path) for path in (photos.parent / "new").iterdir())
    options = ["--model", "tiny", "--device", "cpu", "--format", form]
    status = main([str(saved), *files, *options])
    printed, errors = capfd.readouterr()
    assert status == 3
    assert "(own photos)" in errors
    assert "own photos" in printed
    assert main(["--ref", str(photos / "ann_[0-9].png"), *files, *options]) == 0
    assert capfd.readouterr().out.count("ann_") == printed.count("ann_")
    assert main([str(saved), *files, *options, "--threshold", "2"]) == 0
