"""Subject files of others: damaged and hostile ones are refused by name."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from idmetric import IdentityLoss, IDSim, score
from idmetric.cli.score import main
from idmetric.metric.images import read
from idmetric.metric.images.kinds import ImageReadError
from idmetric.metric.scoring.scores import RequestError
from idmetric.metric.scoring.subject import Subject
from tests.match.scenes import ANN, STRANGER, panel, references

HEADER = {
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


def test_a_file_of_these_parts_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "ann.subject", HEADER)
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
        ({}, {"signature": "[1]"}),
        ({}, {"name": ""}),
    ],
    ids=lambda value: json.dumps(value, default=lambda tensor: list(tensor.shape))[:40],
)
def test_hostile_files_are_refused_by_name(tmp_path, tensors, header):
    save_file(TENSORS | tensors, tmp_path / "ann.subject", HEADER | header)
    with pytest.raises(RequestError, match=r"ann\.subject is a damaged subject"):
        Subject.load(tmp_path / "ann.subject")


def test_each_reference_is_decoded_once(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = []
    for number in range(3):
        photos.append(tmp_path / f"{number}.png")
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(photos[-1])
    opened: list[object] = []
    original = read.open_image

    def open_image(source: Any, **options: Any) -> Any:
        if isinstance(source, str | os.PathLike):
            opened.append(source)
        return original(source, **options)

    monkeypatch.setattr(read, "open_image", open_image)
    subject = Subject.of(metric, photos, name="rex")
    assert len(opened) == 3
    assert torch.equal(subject.embedding.cls, metric.embed(photos, patches=False).cls)


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
    Subject.of(metric, photos, name="ann").save(path)
    return path


@pytest.mark.parametrize("aggregate", ["best", "mean"])
@pytest.mark.filterwarnings("ignore::idmetric.metric.scoring.copy_warnings.CopyWarning")
def test_scores_by_a_subject_are_those_by_its_photos(metric, photos, saved, aggregate):
    by_photos = score(metric, photos, photos.parent / "new", aggregate=aggregate)
    for subject in (saved, [str(saved)], Subject.load(saved)):
        by_subject = score(metric, subject, photos.parent / "new", aggregate=aggregate)
        assert by_subject.rows == by_photos.rows  # copies and percentiles included
        assert by_subject.baseline == by_photos.baseline
        assert by_subject.references == by_photos.references == 6
    (copy,) = [row for row in by_photos.rows if row["copy"]]
    assert copy["image"].endswith("copy.jpg")
    assert by_photos.threshold is None


@pytest.mark.filterwarnings("ignore::idmetric.metric.scoring.copy_warnings.CopyWarning")
def test_a_subject_passes_what_is_within_its_threshold(metric, photos, saved):
    scores = score(metric, saved, photos.parent / "new")
    assert scores.threshold == pytest.approx(scores.baseline.max)
    assert scores.threshold_source == "own photos"
    failing = {os.path.basename(row["image"]) for row in scores.failing}
    assert "stranger.png" in failing
    assert failing.isdisjoint({"ann_0.png", "ann_1.png", "ann_2.png"})
    strict = replace(Subject.load(saved), threshold=1e-6)
    by_file = score(metric, strict, photos.parent / "new")
    assert len(by_file.failing) >= 4
    assert by_file.threshold_source == "the subject's own"
    assert score(metric, strict, photos.parent / "new", threshold=2.0).failing == []
    few = Subject.of(metric, photos / "ann_0.png", name="ann")
    assert score(metric, few, photos.parent / "new").threshold is None


def test_the_photos_of_a_subject_need_not_be_there(metric, photos, tmp_path):
    shutil.copy(photos / "ann_0.png", tmp_path / "ann.png")
    subject = Subject.of(metric, tmp_path, name="ann")
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
        limited.own_threshold("patch")


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


def test_references_in_memory_have_names_of_their_own(metric):
    subject = Subject.of(metric, references(ANN, 3), name="ann")
    assert len(set(subject.references)) == 3


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
