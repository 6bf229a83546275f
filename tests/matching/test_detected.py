"""Regions that a detector finds, in `match` and `idmetric match`: labels, missing subjects, kept regions, patches."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detect_patches import measured
from PIL import Image
from scipy import ndimage

from idmetric import IDSim
from idmetric.cli.match import main
from idmetric.matching import match
from idmetric.matching.codes import decode
from idmetric.matching.detect import Detections, Detector
from idmetric.matching.detect_patches import PatchDetector, hot_boxes
from idmetric.matching.detected import DetectedRegions
from idmetric.metric.errors import RequestError
from tests.fuzz.flips import spread_flips
from tests.matching.detector_parts import owlv2
from tests.matching.scenes import ANN, REX, SIDE, panel, references, scene


@dataclass(frozen=True, kw_only=True)
class Panels(Detector):
    """Finds the given boxes, with the given words as labels, and counts the images that it looks at."""

    boxes: list
    labels: list
    with_masks: bool = False
    calls: list = field(default_factory=list)

    name = "panels"
    weights = "none"

    def candidates(self, image, words, queries):
        self.calls.append(image.size)
        count = len(self.boxes)
        masks = None
        if self.with_masks:
            masks = torch.zeros(count, image.height, image.width, dtype=torch.bool)
            for mask, (left, top, right, bottom) in zip(masks, self.boxes, strict=True):
                mask[top + 4 : bottom, left:right] = True
        scores = torch.linspace(0.9, 0.5, count) if count else torch.zeros(0)
        yield Detections(torch.tensor(self.boxes).reshape(-1, 4), scores, self.labels, masks)


@pytest.fixture(scope="module")
def metric():
    return IDSim("tiny")


@pytest.fixture(scope="module")
def subjects(metric):
    return {"ann": metric.embed(references(ANN)), "rex": metric.embed(references(REX))}


def test_subjects_are_compared_with_the_regions_of_their_word(metric, subjects):
    picture, boxes = scene((ANN, REX))
    found = match(
        metric,
        subjects,
        picture,
        regions=DetectedRegions(Panels(boxes=boxes, labels=["person", "dog"]), ["person", "dog"]),
        words={"ann": "person", "rex": "dog"},
        threshold=0.25,
    )
    given = match(metric, subjects, picture, regions=boxes, threshold=0.25)
    assert found.states == [["matched", "matched"]]
    values = found.table.values
    assert values[0, 0, :, 1].isnan().all()
    assert values[0, 1, :, 0].isnan().all()
    assert torch.allclose(values[0, 0, :, 0], given.table.values[0, 0, :, 0])
    assert found.signature["detector"] == "panels none, threshold 0, overlap 0.7, words person, dog"
    assert "detector" not in given.signature


def test_a_word_that_no_subject_has_leaves_its_regions_open_to_all(metric, subjects):
    picture, boxes = scene((ANN, REX))
    regions = DetectedRegions(Panels(boxes=boxes, labels=["animal", "animal"]), ["animal"])
    found = match(metric, subjects, picture, regions=regions, threshold=0.25)
    given = match(metric, subjects, picture, regions=boxes)
    assert torch.allclose(found.table.values, given.table.values)


def test_without_detections_subjects_are_missing(metric, subjects):
    picture, _ = scene((ANN, REX))
    found = match(
        metric, subjects, picture, regions=DetectedRegions(Panels(boxes=[], labels=[]), ["dog"]), threshold=0.25
    )
    assert found.states == [["missing", "missing"]]
    assert found.table.shape[3] == 0


def test_boxes_are_clipped_and_of_two_that_overlap_the_better_one_stays():
    boxes = [(-5, 10, 60, 50), (0, 10, 60, 52), (100, 0, 190, 40), (200, 0, 230, 40), (50, 5, 50.5, 40)]
    detections = Panels(boxes=boxes, labels=list("abcde")).detect(Image.new("RGB", (120, 60)), ["a"])
    assert detections.boxes.tolist() == [[0, 10, 60, 50], [100, 0, 120, 40]]
    assert detections.labels == ["a", "c"]


def test_kept_regions_are_found_once(metric, subjects, tmp_path):
    picture, boxes = scene((ANN, REX))
    keep = tmp_path / "kept"

    def regions(words, **settings):
        detector = Panels(boxes=boxes, labels=["person", "dog"], with_masks=True, **settings)
        return DetectedRegions(detector, words, keep=keep)

    first = regions(["person", "dog"])
    again = regions(["person", "dog"])
    tables = [match(metric, subjects, picture, regions=each).table for each in (first, again)]
    assert (len(first.detector.calls), len(again.detector.calls)) == (1, 0)
    assert torch.equal(tables[0].values.nan_to_num(), tables[1].values.nan_to_num())
    for found, kept in zip(tables[0].regions[0], tables[1].regions[0], strict=True):
        assert (found.box, found.label, found.score) == (kept.box, kept.label, kept.score)
        assert np.array_equal(decode(found.mask.code), decode(kept.mask.code))
        assert decode(found.mask.code).any()

    # other words, settings or pixels are found anew
    for other, image in (
        (regions(["dog", "person"]), picture),
        (regions(["person", "dog"], threshold=0.1), picture),
        (regions(["person", "dog"]), picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    ):
        other(image)
        assert len(other.detector.calls) == 1
    assert len(list(keep.glob("*.json"))) == 4


def test_no_flipped_bit_of_kept_regions_gives_other_regions(tmp_path):
    picture, boxes = scene((ANN, REX))

    def found():
        detector = Panels(boxes=boxes, labels=["person", "dog"], with_masks=True)
        regions = DetectedRegions(detector, ["person", "dog"], keep=tmp_path)(picture)
        return [(asdict(region) | {"mask": region.mask.code}, len(detector.calls)) for region in regions]

    first = found()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in spread_flips(whole, 40):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match=rf"{path.name}' are damaged and are found again: ") as warned:
            assert found() == first
        assert len(warned) == 1
        assert path.read_bytes() == whole

    path.write_text(json.dumps({name: value for name, value in json.loads(whole).items() if name != "digest"}))
    with pytest.warns(UserWarning, match="it has no digest"):
        assert found() == first


def test_the_signature_follows_photos_and_masks():
    photo = panel(ANN, 1)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[20:90, 20:90] = 255
    detector = PatchDetector(metric=IDSim("tiny"))
    signatures = {
        DetectedRegions(detector, references=[photo]).signature,
        DetectedRegions(detector, references=[photo], masks=[mask]).signature,
        DetectedRegions(detector, references=[photo, panel(ANN, 2)]).signature,
        DetectedRegions(detector, references={"ann": [photo], "rex": [panel(ANN, 2)]}).signature,
    }
    assert len(signatures) == 4
    assert DetectedRegions(detector, references=[panel(ANN, 1)]).signature in signatures
    with pytest.raises(RequestError, match="patches finds nothing by words, but by photos"):
        DetectedRegions(detector, ["dog"])
    with pytest.raises(RequestError, match="give words to look for"):
        DetectedRegions(detector, references={})
    with pytest.raises(RequestError, match="give words to look for"):
        DetectedRegions(detector, references={"ann": [photo], "rex": []})


# The subject's patches


def test_hot_boxes_against_a_flood_fill():
    heat = ndimage.gaussian_filter(np.random.default_rng(0).random((30, 40)), 2).astype(np.float32)
    level = np.median(heat) + 0.5 * (heat.max() - np.median(heat))
    expected = []
    todo = {(int(y), int(x)) for y, x in zip(*np.nonzero(heat >= level), strict=True)}
    while todo:
        part = []
        waiting = [todo.pop()]
        while waiting:
            y, x = waiting.pop()
            part.append((y, x))
            for neighbor in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if neighbor in todo:
                    todo.remove(neighbor)
                    waiting.append(neighbor)
        rows = [y for y, _ in part]
        columns = [x for _, x in part]
        hottest = max(float(heat[y, x]) for y, x in part)
        expected.append((hottest, [min(columns), min(rows), max(columns) + 1, max(rows) + 1]))
    boxes, scores = hot_boxes(torch.from_numpy(heat), 0.5)
    assert len(expected) > 2
    found = sorted(zip(scores.tolist(), boxes.tolist(), strict=True))
    assert [box for _, box in found] == [box for _, box in sorted(expected)]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in sorted(expected)])


def test_patches_are_hot_where_they_are_like_the_subject_and_not_like_the_image(metric):
    picture, _ = scene((ANN, REX))
    masks = [np.zeros((SIDE, SIDE), np.uint8) for _ in range(2)]
    for mask in masks:
        mask[30:80, 30:80] = 255
    photos = references(ANN, 2)
    subject = metric.embed(photos, masks=masks, outside="keep", patches=True)
    embedding = metric.embed([picture], patches=True)

    tokens = [token / token.norm() for token in embedding.patches[0]]
    typical = sum(tokens) / len(tokens)
    typical = typical / typical.norm()
    heat = []
    for token in tokens:
        likeness = 0.0
        for photo in range(2):
            cosines = []
            for patch, weight in zip(subject.patches[photo], subject.weights[photo], strict=True):
                if weight >= 0.5:
                    cosines.append(float(token @ patch / patch.norm()))
            likeness += max(cosines) / 2
        heat.append(likeness - float(token @ typical))
    grid = torch.tensor(heat).reshape(1, 1, *embedding.grid)
    whole = F.interpolate(grid, size=(picture.height, picture.width), mode="bilinear", align_corners=False)[0, 0]
    boxes, scores = hot_boxes(whole, 0.7)

    detections = PatchDetector(metric=metric, threshold=-1.0, overlap=1.0).detect(
        picture, references=photos, masks=masks
    )
    order = scores.argsort(descending=True)
    assert detections.boxes.tolist() == boxes[order].tolist()
    assert detections.scores.tolist() == pytest.approx(scores[order].tolist(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("IDMETRIC_DATA"), reason="IDMETRIC_DATA is not set")
def test_patches_find_objects_among_distractors(metric):
    """Photos of ETH-80 on landscapes, see benchmarks/detect_patches.py: better than the whole image and its center."""
    root = Path(os.environ["IDMETRIC_DATA"])
    objects = sorted((root / "dev" / "eth80").iterdir())
    photos = sorted((root / "train" / "backgrounds").glob("*.jpg"))
    overlaps = measured(PatchDetector(metric=metric), objects, photos, count=2, scenes=10, seed=3)
    means = {name: np.mean(values) for name, values in overlaps.items()}
    assert means["patches"] > 0.3
    assert means["patches"] > 2 * max(means["whole image"], means["center, half the side"])


def test_patches_of_several_subjects_are_looked_for_one_by_one(metric):
    picture, _ = scene((ANN, None, REX))
    photos = {"ann": references(ANN, 2), "rex": references(REX, 2)}
    detector = PatchDetector(metric=metric, overlap=1.0)
    both = {region.box for region in DetectedRegions(detector, references=photos)(picture)}
    alone = [DetectedRegions(detector, references=photos[name])(picture) for name in photos]
    assert both == {region.box for regions in alone for region in regions}


def test_an_even_image_has_no_regions(metric):
    assert PatchDetector(metric=metric).detect(Image.new("RGB", (64, 64)), references=[panel(ANN, 1)]).regions == []


# The command


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for name, badge in (("ann", ANN), ("rex", REX)):
        (root / name).mkdir()
        for number, photo in enumerate(references(badge, 2)):
            photo.save(root / name / f"{number}.png")
    picture, _ = scene((ANN, REX))
    picture.save(root / "scene.png")
    owlv2(root / "owlv2")
    return root


def command(files, *options):
    subjects = ["--subject", f"ann:person={files / 'ann'}", "--subject", f"rex={files / 'rex'}"]
    return [*subjects, str(files / "scene.png"), "--model", "tiny", "--device", "cpu", "--quiet", *map(str, options)]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_the_command_finds_by_words(files, capsys, tmp_path):
    options = ("--detect", "person, red mug", "--detector", f"owlv2={files / 'owlv2'}", "--detect-threshold", 0.3)
    outputs = []
    for _ in range(2):
        assert main(command(files, *options, "--keep-regions", tmp_path, "--format", "json")) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1]
    signature = outputs[0]["signature"]["detector"]
    assert signature.startswith("owlv2 owlv2@")
    assert signature.endswith("threshold 0.3, overlap 0.5, photo threshold 0.9, words person, red mug")
    [kept] = tmp_path.glob("*.json")
    labels = [region["label"] for region in json.loads(kept.read_text())["regions"]]
    assert set(labels) <= {"person", "red mug"}
    assert len(labels) > 1


def test_the_command_finds_by_references(files, capsys):
    assert main(command(files, "--detect", "references", "--format", "json")) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["signature"]["detector"].startswith("patches IDSim")
    assert all(row["region"] is not None for row in content["rows"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--detect", "dog,,cat"), "give words to look for"),
        (("--detect", ""), "give words to look for"),
        (("--detect", "dog", "--detector", "patches"), "patches finds nothing by words, but by photos"),
        (("--detect", "references", "--detector", "sam3"), "sam3 finds nothing by photos, but by words"),
        (("--detect", "dog", "--detector", "yolo"), "unknown detector 'yolo': choose grounding-dino, owlv2, sam3"),
        (("--detect", "references", "--detector", "patches=tiny"), "--detector patches has no weights of its own"),
        (("--detect", "dog", "--regions", "boxes.json"), "--regions and --detect: give one of them"),
        (("--keep-regions", "kept"), "--detector, --detect-threshold and --keep-regions need --detect"),
    ],
)
def test_options_that_do_not_fit_are_named(files, capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        main(command(files, *options))
    assert message in capsys.readouterr().err


def test_an_embedding_has_no_photos_to_look_for(metric, files, tmp_path, capsys):
    metric.embed(str(files / "ann")).save(tmp_path / "ann.idm")
    arguments = ["--subject", f"ann={tmp_path / 'ann.idm'}", str(files / "scene.png"), "--model", "tiny"]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--detect", "references"])
    assert "ann.idm has no photos to look for" in capsys.readouterr().err
