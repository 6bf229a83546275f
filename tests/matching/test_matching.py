"""`match` end to end: tables and states of painted scenes with known answers, gradients, encoders, labels, errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import idmetric
from idmetric import IDSim
from idmetric.matching import Cut, Region, match
from idmetric.matching.consistency import consistency
from idmetric.matching.encoders import FunctionEncoder, FunctionModel
from idmetric.matching.matching import Plan, ReadOptions, measured
from idmetric.matching.request import MatchRequest
from idmetric.matching.subjects import embedded_subject
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError
from idmetric.scoring.calibration import Calibration, Isotonic
from tests.conftest import random_model
from tests.matching.scenes import ANN, REX, SIDE, STRANGER, panel, references, scene

THRESHOLD = 0.25


@pytest.fixture(scope="module")
def metric():
    return IDSim("tiny")


@pytest.fixture(scope="module")
def subjects(metric):
    return {"ann": metric.embed(references(ANN), patches=False), "rex": metric.embed(references(REX), patches=False)}


def matched(metric, subjects, badges, **options):
    picture, boxes = scene(badges)
    return match(metric, subjects, picture, **{"regions": boxes, "threshold": THRESHOLD, **options})


@pytest.mark.parametrize(
    ("badges", "states", "surplus"),
    [
        ((ANN, REX), ["matched", "matched"], []),
        ((REX, ANN), ["matched", "matched"], []),
        ((ANN, None), ["matched", "missing"], []),
        ((ANN, ANN), ["doubled", "missing"], []),
        ((ANN, STRANGER), ["matched", "missing"], [1]),
        ((ANN, REX, STRANGER), ["matched", "matched"], [2]),
        ((ANN, REX, REX), ["matched", "doubled"], []),
    ],
    ids=["right", "exchanged", "missing", "doubled", "replaced", "a stranger", "one doubled"],
)
def test_states_of_painted_scenes(metric, subjects, badges, states, surplus):
    found = matched(metric, subjects, badges)
    assert found.states == [states]
    assert found.surplus == [surplus]


def test_the_table_holds_the_distances_of_the_cut_regions(metric, subjects):
    picture, boxes = scene((ANN, REX, STRANGER))
    found = match(metric, subjects, picture, regions=boxes)
    assert found.table.axes == ("time", "subject", "reference", "region")
    assert found.table.shape == (1, 2, 6, 3)
    for number, badge in enumerate((ANN, REX)):
        for k, photo in enumerate(references(badge)):
            for region, box in enumerate(boxes):
                expected = metric(photo, picture.crop(box)).item()
                assert float(found.table.values[0, number, k, region]) == pytest.approx(expected, abs=1e-5)


def test_subjects_with_different_numbers_of_references_and_images_with_different_regions(metric):
    first, first_boxes = scene((ANN, REX))
    second, second_boxes = scene((ANN,))
    photos = {"ann": references(ANN, 1), "rex": references(REX, 3)}
    found = match(metric, photos, [first, second], regions=[first_boxes, second_boxes])
    values = found.table.values
    assert values.shape == (2, 2, 3, 2)
    assert values[:, 0, 1:].isnan().all()  # ann has one reference
    assert values[1, :, :, 1].isnan().all()  # the second image has one region
    assert not values[0, 1].isnan().any()


def test_the_table_does_not_depend_on_the_batch_size(metric, subjects):
    picture, boxes = scene((ANN, REX, STRANGER))
    one = match(metric, subjects, [picture] * 3, regions=[boxes] * 3, batch_size=1)
    many = match(metric, subjects, [picture] * 3, regions=[boxes] * 3, batch_size=64)
    torch.testing.assert_close(one.table.values, many.table.values, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("rule", "value"), [("missing", None), ("zero", 1.0), ("whole", "whole"), ("skip", None)])
def test_rules_for_a_missing_subject(metric, subjects, rule, value):
    found = matched(metric, subjects, (ANN, STRANGER), missing=rule)
    picture, _ = scene((ANN, STRANGER))
    distance = found.distances[0, 1]
    if value == "whole":
        expected = min(metric(photo, picture).item() for photo in references(REX))
        assert distance == pytest.approx(expected, abs=1e-5)
    elif value is None:
        assert np.isnan(distance)
    else:
        assert distance == value
    assert np.isnan(found.distances[0, 0]) == (rule == "skip")
    assert found.coverage == {"ann": 1.0, "rex": 0.0}
    assert found.signature["missing"] == rule
    assert {row["missing"] for row in found.rows} == {rule}


def test_a_mean_does_not_hide_a_replaced_subject(metric, subjects):
    found = matched(metric, subjects, (ANN, STRANGER))
    _, rex, everyone = found.summary
    assert rex["mean"] is None
    assert rex["worst"] > THRESHOLD
    assert everyone["coverage"] == 0.5
    assert everyone["missing"] == 1
    assert found.worst["subject"] == "rex"
    assert found.worst["state"] == "missing"
    assert found.worst["distance"] == pytest.approx(rex["worst"])


def test_expected_labels_show_a_swap(metric, subjects):
    picture, (left, right) = scene((REX, ANN))
    labeled = [Region(left, label="ann"), Region(right, label="rex")]
    assert match(metric, subjects, picture, regions=labeled, threshold=THRESHOLD).swapped == [["ann", "rex"]]
    right_way = [Region(left, label="rex"), Region(right, label="ann")]
    assert match(metric, subjects, picture, regions=right_way, threshold=THRESHOLD).swapped == [[]]


def test_a_class_word_is_compared_with_its_subjects_alone(metric):
    subjects = {"ann": references(ANN), "rex": references(REX)}
    words = {"ann": "person", "rex": "dog"}
    picture, (left, right) = scene((ANN, REX))
    dogs = [Region(left, label="dog"), Region(right, label="dog")]
    found = match(metric, subjects, picture, regions=dogs, words=words)
    assert found.table.values[0, 0].isnan().all()
    assert not found.table.values[0, 1].isnan().any()
    with pytest.raises(RequestError, match="cat"):
        match(metric, subjects, picture, regions=[Region(left, label="cat"), Region(right, label="duck")], words=words)
    with pytest.raises(RequestError, match="'ben'"):
        match(metric, subjects, picture, regions=dogs, words={"ben": "dog"})


def test_gradients_reach_the_pixels_of_their_region_alone(metric, subjects):
    picture, boxes = scene((ANN, REX))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div(255).requires_grad_()
    found = match(metric, subjects, pixels, regions=boxes)
    found.table.values[0, 0, :, 0].sum().backward()
    assert pixels.grad[..., :SIDE].abs().sum() > 0
    assert pixels.grad[..., SIDE:].abs().sum() == 0


def test_gradients_equal_finite_differences():
    smooth = random_model("dinov3").double()
    subjects = {"ann": smooth.embed(references(ANN, 2)), "rex": smooth.embed(references(REX, 2))}
    picture, boxes = scene((ANN, REX))
    start = torch.from_numpy(np.array(picture)).permute(2, 0, 1).double().div(255).clamp(0.05, 0.95)
    pixels = start.clone().requires_grad_()
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def total(x):
        return match(smooth, subjects, x, regions=boxes, cut=Cut(margin=0.1, square=True)).table.values.sum()

    total(pixels).backward()
    step = 1e-3
    with torch.no_grad():
        slope = (total(start + step * direction) - total(start - step * direction)) / (2 * step)
    assert float((pixels.grad * direction).sum()) == pytest.approx(float(slope), rel=1e-2)


def test_another_encoder_by_class_word(metric):
    def mean_color(images):
        return np.stack([np.asarray(image).reshape(-1, 3).mean(0) for image in images])

    picture, boxes = scene((ANN, REX))
    found = match(metric, {"ann": references(ANN), "rex": references(REX)}, picture, regions=boxes,
                  encoders={"rex": mean_color})  # fmt: skip
    crop = np.asarray(picture.crop(boxes[1])).reshape(-1, 3).mean(0)
    photo = np.asarray(references(REX)[0]).reshape(-1, 3).mean(0)
    expected = 1 - crop @ photo / np.linalg.norm(crop) / np.linalg.norm(photo)
    assert float(found.table.values[0, 1, 0, 1]) == pytest.approx(expected, abs=1e-5)
    assert float(found.table.values[0, 0, 0, 0]) == pytest.approx(
        metric(references(ANN)[0], picture.crop(boxes[0])).item(), abs=1e-5
    )
    assert found.signature["encoder of rex"] == "mean_color"


def test_the_signature_tells_weights_of_another_encoder_apart(metric):
    picture, boxes = scene((ANN, REX))
    signatures = set()
    for scale in (1.0, 1.5):
        encoder = random_model("cnn")
        with torch.no_grad():
            next(encoder.parameters()).mul_(scale)
        people = {"ann": references(ANN, 1), "rex": references(REX, 1)}
        found = match(metric, people, picture, regions=boxes, encoders={"rex": encoder})
        assert found.signature["encoder of rex"] == encoder.model_id
        signatures.add(found.signature["encoder of rex"])
    assert len(signatures) == 2


def test_a_match_is_shown_in_a_line(metric, subjects):
    found = matched(metric, subjects, (ANN, None))
    assert str(found).startswith("Match(1 images, subjects ann, rex, worst {'image': '<")
    assert len(repr(found)) < 300
    assert repr(match(metric, subjects, [])) == "Match(0 images, subjects ann, rex, worst {})"


def test_references_in_files(metric, subjects, tmp_path):
    path = tmp_path / "ann.idm"
    subjects["ann"].save(path)
    picture, boxes = scene((ANN, REX))
    by_file = match(metric, {"ann": path, "rex": subjects["rex"]}, picture, regions=boxes)
    by_photos = match(metric, {"ann": references(ANN), "rex": references(REX)}, picture, regions=boxes)
    torch.testing.assert_close(by_file.table.values, by_photos.table.values, atol=1e-6, rtol=0)
    assert by_file.thresholds == pytest.approx(by_photos.thresholds, abs=1e-6)
    with pytest.raises(RequestError, match=r"ann.* made by"):
        match(random_model("cnn"), {"ann": path}, picture, regions=boxes)
    with pytest.raises(RequestError, match=r"ann.* no patches"):
        match(metric, {"ann": path}, picture, regions=boxes, distance="patch")
    path.write_text("no embedding")
    with pytest.raises(RequestError, match=r"ann\.idm"):
        match(metric, {"ann": path}, picture, regions=boxes)


def test_the_method_of_the_metric_is_the_function(metric, subjects):
    picture, boxes = scene((ANN, REX))
    by_method = idmetric.match(metric, subjects, picture, regions=boxes, missing="whole")
    by_function = match(metric, subjects, picture, regions=boxes, missing="whole")
    assert torch.equal(by_method.table.values, by_function.table.values)
    assert by_method.signature == by_function.signature
    assert "whole" in by_method.signature.values()


def test_bad_requests(metric, subjects):
    picture, boxes = scene((ANN, REX))
    with pytest.raises(RequestError, match="give a dict"):
        match(metric, [picture], picture, regions=boxes)
    with pytest.raises(RequestError, match="a subject cannot be called 'all'"):
        match(metric, {"all": picture}, picture)
    with pytest.raises(RequestError, match="rex has no references"):
        match(metric, {"rex": []}, picture, regions=boxes)
    with pytest.raises(RequestError, match="empty"):
        match(metric, subjects, picture, regions=[(10, 10, 10, 20)])
    with pytest.raises(ImageReadError, match="lies outside"):
        match(metric, subjects, picture, regions=[(0, 0, 900, 20)])
    with pytest.raises(RequestError, match="missing"):
        match(metric, subjects, picture, regions=boxes, missing="whole image")
    with pytest.raises(RequestError, match="unknown aggregate 'min': choose best, mean"):
        match(metric, subjects, picture, regions=boxes, aggregate="min")
    with pytest.raises(RequestError, match="1 images were given for 2"):
        match(metric, subjects, [picture, picture], regions=[boxes])


def test_a_request_without_subjects_is_refused(metric):
    with pytest.raises(RequestError, match="no subjects"):
        match(metric, {}, scene((ANN, REX))[0], regions=[(0, 0, 20, 20)])


@pytest.mark.parametrize("form", ["file", "array"])
def test_an_empty_mask_is_refused_or_skipped_with_its_reason(metric, subjects, tmp_path, form):
    picture, boxes = scene((ANN, REX))
    mask = np.zeros((picture.height, picture.width), np.uint8)
    if form == "file":
        mask = tmp_path / "empty.png"
        Image.new("L", picture.size).save(mask)
    with pytest.raises(ImageReadError, match=r"empty|selects nothing"):
        match(metric, subjects, picture, regions=[Region(mask=mask)])
    masked = [[Region(boxes[0], mask=mask)], boxes]
    found = match(metric, subjects, [picture, picture], regions=masked, on_error="skip")
    assert len(found.rows) == 2  # of the image with boxes
    assert len(found.skipped) == 1


def test_an_unknown_label_among_others_is_stated_and_its_region_not_compared(metric, subjects):
    picture, boxes = scene((ANN, REX))
    labeled = [Region(boxes[0], label="cat"), Region(boxes[1], label="rex")]
    with pytest.warns(UserWarning, match="labeled cat are compared with no subject"):
        found = match(metric, subjects, picture, regions=labeled)
    assert found.table.values[0, :, :, 0].isnan().all()
    assert not found.table.values[0, 1, :, 1].isnan().any()


def test_a_box_outside_can_be_skipped(metric, subjects):
    picture, boxes = scene((ANN, REX))
    found = match(metric, subjects, [picture, picture], regions=[[(0, 0, 900, 20)], boxes], on_error="skip")
    assert len(found.table.times) == 1
    (reason,) = found.skipped.values()
    assert "lies outside" in reason


def test_an_empty_box_of_a_detector_is_of_its_image_alone(metric, subjects):
    picture, boxes = scene((ANN, REX))
    blank = Image.new("RGB", picture.size)

    def detector(image):
        return [Region((5, 5, 5, 9))] if image.getpixel((0, 0)) == (0, 0, 0) else boxes

    options = {"regions": detector, "threshold": THRESHOLD}
    found = match(metric, subjects, [picture, blank], on_error="skip", **options)
    assert found.states == [["matched", "matched"]]
    (reason,) = found.skipped.values()
    assert "region (5, 5, 5, 9) is empty" in reason
    with pytest.raises(ImageReadError, match=r"224x112 RGB> 1: region \(5, 5, 5, 9\) is empty"):
        match(metric, subjects, [picture, blank], **options)


def test_thresholds_of_unknown_subjects_and_that_are_no_distance_are_refused(metric, subjects):
    with pytest.raises(RequestError, match="'anne'"):
        matched(metric, subjects, (ANN, REX), threshold={"anne": 0.2})
    with pytest.raises(RequestError, match="must be a distance"):
        matched(metric, subjects, (ANN, REX), threshold=float("nan"))
    with pytest.raises(RequestError, match="must be a distance of at least 0"):
        matched(metric, subjects, (ANN, REX), threshold={"ann": -0.1})
    with pytest.raises(RequestError, match="batch_size"):
        matched(metric, subjects, (ANN, REX), batch_size=0)


@pytest.mark.parametrize("form", ["gray", "RGBA", "array"])
def test_float_images_of_any_channels(metric, subjects, form):
    picture, boxes = scene((ANN, REX))
    pixels = np.asarray(picture, np.float32).transpose(2, 0, 1) / 255
    color = torch.from_numpy(pixels)
    if form == "gray":
        image, same = color[:1], color[:1].expand(3, -1, -1)
    elif form == "RGBA":
        image, same = torch.cat([color, torch.ones_like(color[:1])]), color
    else:
        image, same = pixels.transpose(1, 2, 0), color
    options = {"regions": [(0, 0, SIDE, 60), boxes[1]], "cut": Cut(square=True)}
    found = match(metric, subjects, image, **options)
    expected = match(metric, subjects, same, **options)
    torch.testing.assert_close(found.table.values, expected.table.values, atol=1e-6, rtol=0)


def test_skipped_images_in_memory_are_told_apart(metric, subjects, tmp_path):
    picture, boxes = scene((ANN, REX))
    outside = (0, 0, 900, 20)
    found = match(metric, subjects, [picture] * 3, regions=[[outside], boxes, [outside]], on_error="skip")
    assert len(found.skipped) == 2
    Image.new("L", picture.size).save(tmp_path / "empty.png")
    found = match(metric, subjects, picture, regions=tmp_path / "empty.png", on_error="skip")
    (reason,) = found.skipped.values()
    assert "empty.png" in reason


def test_features_that_are_not_finite_name_image_and_region(subjects):
    broken = random_model("cnn")
    subject = broken.embed(references(ANN, 2))
    forward = broken.forward_features

    def half_broken(x):
        features, *patches = forward(x)
        features = features.clone()
        features[1] = torch.nan
        return features, *patches

    broken.forward_features = half_broken
    picture, boxes = scene((ANN, REX))
    with pytest.raises(ValueError, match="region 1 of"):
        match(broken, {"ann": subject}, picture, regions=boxes)


def mean_color(images):
    return np.stack([np.asarray(image).reshape(-1, 3).mean(0) for image in images])


def test_thresholds_of_another_encoder_are_its_own(metric):
    picture, boxes = scene((ANN, REX))
    photos = {"ann": references(ANN), "rex": references(REX)}
    found = match(metric, photos, picture, regions=boxes, distance="patch", encoders={"rex": mean_color})
    colors = mean_color(references(REX))
    colors = colors / np.linalg.norm(colors, axis=1, keepdims=True)
    distances = 1 - colors @ colors.T + 9 * np.eye(len(colors))
    assert found.thresholds[1] == pytest.approx(distances.min(1).max(), abs=1e-6)

    threshold = {"false_accept_rate": 0.01, "distance": 0.31}
    calibration = Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), metric.calibration_id(), "cls", thresholds=(threshold,)
    )
    few = {name: images[:2] for name, images in photos.items()}
    found = match(metric, few, picture, regions=boxes, encoders={"rex": mean_color}, calibration=calibration)
    assert found.thresholds[0] == pytest.approx(0.31)
    assert np.isnan(found.thresholds[1])  # the calibration is of the metric


def test_the_default_false_accept_rate_is_5_percent(metric):
    picture, boxes = scene((ANN, REX))
    thresholds = tuple({"false_accept_rate": rate, "distance": 2 * rate} for rate in (0.1, 0.05, 0.001))
    calibration = Calibration(
        Isotonic((-3.0, 1.0), (0.01, 0.99)), metric.calibration_id(), "cls", thresholds=thresholds
    )
    few = {"ann": references(ANN)[:2]}  # too few for a threshold of their own
    found = match(metric, few, picture, regions=boxes, calibration=calibration)
    assert found.thresholds == (0.1,)


def of_saturated(images, as_list=True, nothing=None):
    """The mean color; nothing of gray images."""
    vectors = []
    for image in images:
        pixels = np.asarray(image).reshape(-1, 3).astype(float)
        vectors.append(pixels.mean(0) if np.ptp(pixels, axis=1).max() > 0 else nothing)
    return vectors if as_list else np.array(vectors)


def of_saturated_in_an_array(images):
    return of_saturated(images, as_list=False, nothing=np.full(3, np.nan))


@pytest.mark.parametrize("function", [of_saturated, of_saturated_in_an_array])
@pytest.mark.parametrize("missing", ["missing", "whole"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_region_in_which_an_encoder_sees_nothing_is_not_compared(metric, function, missing, batch_size):
    picture, _ = scene((None, ANN, None))
    boxes = [(SIDE * number, 0, SIDE * (number + 1), SIDE) for number in range(3)]
    options = {"encoders": {"ann": function}, "missing": missing, "threshold": 0.5, "batch_size": batch_size}
    gray = Image.new("RGB", picture.size, (90, 90, 90))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = match(metric, {"ann": references(ANN, 2)}, [gray, picture], regions=[boxes, boxes], **options)
        assert found.states == [["missing"], ["matched"]]
        assert np.isnan(found.distances[0, 0])  # also the whole image shows nothing
    values = np.asarray(found.table)[:, 0]
    assert np.isnan(values[0]).all()
    assert np.isnan(values[1][:, [0, 2]]).all()
    expected = [F.normalize(torch.tensor(mean_color([image])), dim=1) for image in references(ANN, 2)]
    region = F.normalize(torch.tensor(mean_color([picture.crop(boxes[1])])), dim=1)
    assert values[1][:, 1] == pytest.approx([1 - float((photo * region).sum()) for photo in expected], abs=1e-5)


def test_a_reference_in_which_an_encoder_sees_nothing_is_named(metric, tmp_path):
    picture, boxes = scene((ANN, REX))
    Image.new("RGB", (30, 30), (9, 9, 9)).save(tmp_path / "gray.png")
    panel(ANN, 5).save(tmp_path / "ann.png")
    with pytest.raises(RequestError, match=r"of_saturated sees nothing, .*gray\.png of ann"):
        match(metric, {"ann": tmp_path}, picture, regions=boxes, encoders={"ann": of_saturated})

    def partly(images):
        return np.array([[1.0, np.nan]] * len(images))

    with pytest.raises(RequestError, match="partly NaN"):
        match(metric, {"ann": tmp_path / "ann.png"}, picture, regions=boxes, encoders={"ann": partly})


def test_a_request_has_its_own_frames_regions_and_cast(metric, subjects):
    picture, boxes = scene((ANN, REX))
    request = MatchRequest.of(picture, ["ann", "rex"], regions=boxes)
    assert match(metric, subjects, request).states == match(metric, subjects, picture, regions=boxes).states
    for options in ({"regions": boxes}, {"frames": "all"}, {"cast": {"a.png": ["ann"]}}):
        with pytest.raises(RequestError, match="a MatchRequest has its own frames, regions and cast"):
            match(metric, subjects, request, **options)
    with pytest.raises(RequestError, match="a MatchRequest has its own"):
        consistency(metric, MatchRequest.of(picture), regions=boxes)


def test_requests_are_checked_before_anything_is_embedded(metric, tmp_path, monkeypatch):
    def embedded(*args, **options):
        raise AssertionError("something was embedded")

    for method in ("embed", "as_embedding"):
        monkeypatch.setattr(IDSim, method, embedded)
    photo = panel(ANN, 1)
    (tmp_path / "boxes.csv").write_text("path,x,y,w\n")
    for options, message in (
        ({"frames": "some"}, "unknown frames 'some'"),
        ({"regions": str(tmp_path / "boxes.csv")}, "has no column h"),
        ({"missing": "whale"}, "unknown missing 'whale'"),
        ({"cast": {"a.png": ["rex"]}}, "the cast of a.png has rex"),
    ):
        with pytest.raises(RequestError, match=message):
            match(metric, {"ann": [photo]}, [photo], **options)


def test_21_of_thousands_of_regions_a_batch_is_in_memory(metric):
    """1,000 boxes in one image: at most two batches of inputs are alive, and each region has its own distance."""
    picture, _ = scene((ANN, REX))
    corners = [(number % 200, number // 200) for number in range(1000)]
    boxes = [(x, y, x + 24, y + 24) for x, y in corners]
    alive: set[int] = set()
    most = 0

    def mean_color(images):
        nonlocal most
        most = max(most, len(alive))
        alive.clear()
        return np.array([np.append(np.asarray(image, float).mean((0, 1)), 1) for image in images])

    class Counted(FunctionModel):
        def prepare(self, region, cover, words):
            alive.add(len(alive))
            return super().prepare(region, cover, words)

    encoder = FunctionEncoder(mean_color, "mean color")
    encoder.model = Counted(mean_color, "mean color")
    subject = embedded_subject("ann", "", [picture], encoder.model, "cls", batch_size=1, workers=1, store=None)
    plan = Plan((subject,), (encoder,), (None,), Cut(), batch_size=32)
    request = MatchRequest.of(picture, ["ann"], regions=boxes)
    alive.clear()
    most = 0
    found = measured(plan, request, ReadOptions(workers=1))
    assert most <= 64
    pixels = np.asarray(picture, float)
    means = np.array([np.append(pixels[y : y + 24, x : x + 24].mean((0, 1)), 1) for x, y in corners])
    whole = np.append(pixels.mean((0, 1)), 1)
    cosines = means @ whole / np.linalg.norm(means, axis=1) / np.linalg.norm(whole)
    assert found.table.values[0, 0, 0].numpy() == pytest.approx(1 - cosines, abs=1e-5)
