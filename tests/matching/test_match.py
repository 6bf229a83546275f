"""`match` end to end: distances, states and rows of painted scenes with known answers, gradients, clips, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from idmetric import IDSim, consistency
from idmetric.matching import Match, Region, match
from idmetric.matching.frames import ClipError
from idmetric.matching.matching import MatchRequest
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError
from tests.clip_files import write_video
from tests.conftest import random_model
from tests.matching.films import BOXES, film, sound
from tests.matching.scenes import ANN, REX, SIDE, STRANGER, Badge, references, scene

THRESHOLD = 0.25


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture(scope="module")
def subjects(metric: IDSim) -> dict[str, Any]:
    return {name: metric.embed(references(badge), patches=False) for name, badge in (("ann", ANN), ("rex", REX))}


def matched(metric: IDSim, subjects: Any, badges: Sequence[Badge | None], **options: Any) -> Match:
    picture, boxes = scene(badges)
    return match(metric, subjects, picture, **{"regions": boxes, "threshold": THRESHOLD, **options})


# States and rows


@pytest.mark.parametrize(
    ("badges", "states", "unknown"),
    [
        ((ANN, REX), ["matched", "matched"], ()),
        ((REX, ANN), ["matched", "matched"], ()),
        ((ANN, None), ["matched", "missing"], ()),
        ((ANN, ANN), ["twice", "missing"], ()),
        ((ANN, STRANGER), ["matched", "missing"], (1,)),
        ((ANN, REX, REX), ["matched", "twice"], ()),
    ],
)
def test_states_of_painted_scenes(
    metric: IDSim, subjects: Any, badges: Sequence[Badge | None], states: list[str], unknown: tuple[int, ...]
) -> None:
    found = matched(metric, subjects, badges)
    assert found.states == [states]
    assert found.assignments[0].unknown == unknown
    rows = found.table
    assert rows[rows["state"] == "unknown"]["region"].tolist() == list(unknown)
    assert len(rows) == 2 * sum(badge is not None for badge in badges) + len(unknown)


def test_distances_are_those_of_the_cut_regions_whatever_the_batch(metric: IDSim, subjects: Any) -> None:
    picture, boxes = scene((ANN, REX, STRANGER))
    pieces = [picture.crop(box) for box in boxes]
    expected = torch.stack([metric.pairwise(embedding, pieces) for embedding in subjects.values()])
    for batch_size in (1, 2, 64):
        found = match(metric, subjects, [picture, picture], [boxes, boxes[:1]], batch_size=batch_size)
        assert found.distances.shape == (2, 2, 6, 3)  # images, subjects, references, regions
        torch.testing.assert_close(found.distances[0], expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.distances[1, :, :, :1], expected[..., :1], atol=1e-5, rtol=0)
        assert found.distances[1, :, :, 1:].isnan().all()


def test_rows_are_aggregates_over_different_numbers_of_references(metric: IDSim) -> None:
    picture, boxes = scene((ANN, REX))
    photos = {"ann": references(ANN, 1), "rex": references(REX, 3)}
    for aggregate, reduce in (("best", np.min), ("mean", np.mean)):
        found = match(metric, photos, picture, boxes, aggregate=aggregate)  # type: ignore[arg-type]
        assert found.distances[:, 0, 1:].isnan().all()
        for row in found:
            if row["subject"]:
                to_references = metric.pairwise(photos[row["subject"]], picture.crop(boxes[row["region"]])).numpy()
                assert row["distance"] == pytest.approx(reduce(to_references), abs=1e-5)


def test_the_table_says_who_is_where(metric: IDSim, subjects: Any) -> None:
    picture, (left, right) = scene((REX, STRANGER))
    found = match(metric, subjects, picture, [Region(left, label="a"), Region(right)], threshold={"rex": THRESHOLD})
    table = found.table.set_index(["subject", "region"])
    assert table.loc[("rex", 0), ["state", "assigned", "counts", "label"]].tolist() == ["matched", True, True, "a"]
    assert table.loc[("rex", 0), ["left", "top", "right", "bottom"]].tolist() == list(left)
    assert table.loc[("rex", 1), ["assigned", "counts"]].tolist() == [False, False]
    assert table.loc[("rex", 0), "threshold_source"] == "given"
    assert set(table["model"]) == {metric.label}
    assert found.best["region"].tolist() == [1, 0]
    assert found.signature["margin"] == "0.2"


def test_best_rows_and_the_summary_do_not_hide_a_replaced_subject(metric: IDSim, subjects: Any) -> None:
    found = matched(metric, subjects, (ANN, STRANGER))
    best = found.best.set_index("subject")
    ann, rex = found.summary.to_dict("records")
    assert (ann["n"], ann["found"], ann["mean"]) == (1, 1.0, best.loc["ann", "distance"])
    assert (rex["n"], rex["found"]) == (1, 0.0)
    assert np.isnan(rex["mean"])
    assert rex["worst"] == best.loc["rex", "distance"] > THRESHOLD
    assert rex["worst_image"] == found.images[0].moment.name


def test_a_subject_in_an_image_without_regions_has_a_row(metric: IDSim, subjects: Any) -> None:
    found = matched(metric, subjects, (ANN, REX), regions=[])
    assert found.distances.shape == (1, 2, 6, 0)
    assert [(row["subject"], row["state"], row["region"], row["distance"]) for row in found] == [
        ("ann", "missing", None, None),
        ("rex", "missing", None, None),
    ]
    assert found.summary["found"].tolist() == [0, 0]
    assert match(metric, subjects, []).to_table()


def test_casts_expect_subjects_by_image(metric: IDSim, subjects: Any, tmp_path: Path) -> None:
    for number, badges in enumerate([(ANN, REX), (ANN, REX), (ANN, STRANGER)]):
        picture, boxes = scene(badges, number)
        picture.save(tmp_path / f"{number}.png")
    cast = {"0.png": ["ann"], "1.png": [], "2.png": ["rex"]}
    found = match(metric, subjects, tmp_path, [boxes] * 3, cast=cast, threshold=THRESHOLD)
    assert found.states == [["matched", "unexpected"], ["unexpected", "unexpected"], ["unexpected", "missing"]]
    assert found.summary["n"].tolist() == [1, 1]
    never = {"0.png": ["ann"], "1.png": ["ann"], "2.png": []}
    found = match(metric, subjects, tmp_path, [boxes] * 3, cast=never, threshold=THRESHOLD)
    assert found.summary[["n", "worst"]].to_numpy().tolist()[1] == [0, pytest.approx(np.nan, nan_ok=True)]
    assert json.loads(found.to_json())["summary"][1]["n"] == 0
    with pytest.warns(UserWarning, match="2 images"):
        match(metric, subjects, tmp_path, [boxes] * 3, cast={"0.png": ["ann"]})


def test_images_that_are_not_listed_with_regions_are_stated(metric: IDSim, subjects: Any, tmp_path: Path) -> None:
    picture, boxes = scene((ANN, REX))
    for name in ("a.png", "b.png"):
        picture.save(tmp_path / name)
    with pytest.warns(UserWarning, match=r"b\.png"):
        found = match(metric, subjects, tmp_path, {"a.png": boxes}, threshold=THRESHOLD)
    assert found.unlisted == (str(tmp_path / "b.png"),)
    assert found.states == [["matched", "matched"], ["missing", "missing"]]


# Gradients


def test_gradients_reach_the_pixels_of_their_region_alone(metric: IDSim, subjects: Any) -> None:
    picture, boxes = scene((ANN, REX))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div(255).requires_grad_()
    match(metric, subjects, pixels, boxes).distances[0, 0, :, 0].sum().backward()
    assert pixels.grad is not None
    assert pixels.grad[..., :SIDE].abs().sum() > 0
    assert pixels.grad[..., SIDE:].abs().sum() == 0


def test_gradients_equal_finite_differences() -> None:
    smooth = random_model("dinov3").double()
    embedded = {"ann": smooth.embed(references(ANN, 2)), "rex": smooth.embed(references(REX, 2))}
    picture, boxes = scene((ANN, REX))
    start = torch.from_numpy(np.array(picture)).permute(2, 0, 1).double().div(255).clamp(0.05, 0.95)
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pixels = start.clone().requires_grad_()
    match(smooth, embedded, pixels, boxes).distances.sum().backward()
    step = 1e-3
    with torch.no_grad():
        ends = [match(smooth, embedded, start + sign * step * direction, boxes).distances.sum() for sign in (1, -1)]
    assert pixels.grad is not None
    assert float((pixels.grad * direction).sum()) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-2)


# References, detectors, stores


def test_references_in_files_and_of_other_models(metric: IDSim, subjects: Any, tmp_path: Path) -> None:
    path = tmp_path / "ann.idm"
    subjects["ann"].save(path)
    picture, boxes = scene((ANN, REX))
    by_file = match(metric, {"ann": path}, picture, boxes)
    by_photos = match(metric, {"ann": references(ANN)}, picture, boxes)
    torch.testing.assert_close(by_file.distances, by_photos.distances, atol=1e-6, rtol=0)
    assert by_file.limits["ann"].distance == pytest.approx(by_photos.limits["ann"].distance)  # type: ignore[union-attr]
    for model, distance in ((random_model("cnn"), "cls"), (metric, "patch")):
        with pytest.raises(RequestError, match="ann"):
            match(model, {"ann": path}, picture, boxes, distance=distance)


def test_a_detector_finds_the_regions_of_each_picture(metric: IDSim, subjects: Any) -> None:
    picture, boxes = scene((ANN, REX))
    blank = Image.new("RGB", picture.size)

    def detector(seen: Image.Image) -> list[Any]:
        return [(5, 5, 5, 9)] if seen.getpixel((0, 0)) == (0, 0, 0) else boxes

    found = match(metric, subjects, [picture, blank], detector=detector, threshold=THRESHOLD, on_error="skip")
    assert found.states == [["matched", "matched"]]
    assert len(found.skipped) == 1
    with pytest.raises(ValueError, match="empty"):
        match(metric, subjects, [picture, blank], detector=detector)


def test_regions_of_files_are_kept_in_a_store(
    metric: IDSim, subjects: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, boxes = scene((ANN, REX))
    picture.save(tmp_path / "a.png")
    options: dict[str, Any] = {"regions": boxes, "store": tmp_path / "store", "threshold": THRESHOLD}
    first = match(metric, subjects, tmp_path / "a.png", **options)

    def embedded(*_: Any) -> None:
        raise AssertionError("something was embedded")

    monkeypatch.setattr(IDSim, "embed_prepared", embedded)
    second = match(metric, subjects, tmp_path / "a.png", **options)
    assert torch.equal(first.distances, second.distances)
    with pytest.raises(AssertionError):
        match(metric, subjects, tmp_path / "a.png", **{**options, "regions": [(0, 0, SIDE, SIDE - 1)]})


# Clips


@pytest.fixture(scope="module")
def movie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds: both badges, then the left one alone, then both."""
    shown: list[tuple[Badge | None, Badge | None]] = [(ANN, REX)] * 4 + [(ANN, None)] * 4 + [(ANN, REX)] * 4
    return write_video(tmp_path_factory.mktemp("clips") / "movie.mp4", film(shown), fps=4)


def test_frames_are_images_with_times_and_states_are_intervals(metric: IDSim, subjects: Any, movie: Path) -> None:
    found = match(metric, subjects, movie, BOXES, rate=2, threshold=0.4)
    assert [image.moment.name for image in found.images] == [f"{movie} @ {frame}" for frame in range(0, 12, 2)]
    assert [image.moment.seconds for image in found.images] == [0, 0.5, 1, 1.5, 2, 2.5]
    intervals = found.intervals()
    rows = intervals[["clip", "subject", "state", "start", "end", "frames"]].to_numpy().tolist()
    assert rows == [
        [str(movie), "ann", "matched", 0, 2.5, 6],
        [str(movie), "rex", "matched", 0, 0.5, 2],
        [str(movie), "rex", "missing", 1, 1.5, 2],
        [str(movie), "rex", "matched", 2, 2.5, 2],
    ]
    best = found.best
    assert intervals["mean"][0] == pytest.approx(best[best["subject"] == "ann"]["distance"].mean())
    assert np.isnan(intervals["mean"][2])
    assert match(metric, subjects, movie, BOXES, threshold=0.4).distances.shape[0] == 12


def test_regions_and_casts_of_single_frames(metric: IDSim, subjects: Any, movie: Path) -> None:
    regions = pd.DataFrame([(f"{movie.name} @ {frame}", *BOXES[0][:2], SIDE, SIDE) for frame in (0, 6)])
    regions.columns = ["path", "x", "y", "w", "h"]
    cast = {movie.name: ["ann"], f"{movie.name} @ 6": []}
    with pytest.warns(UserWarning, match="not listed"):
        found = match(metric, subjects, movie, regions, cast=cast, rate=1, threshold=0.4)
    assert found.states == [["matched", "absent"], ["missing", "absent"], ["missing", "absent"]]
    assert found.unlisted == (f"{movie} @ 4", f"{movie} @ 8")


def test_a_clip_that_cannot_be_used_is_refused_or_skipped(
    metric: IDSim, subjects: Any, movie: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.mp4"
    data = bytearray(movie.read_bytes())
    start = data.index(b"mdat") + 4
    data[start + 3000 : start + 3400] = bytes(400)
    damaged.write_bytes(data)
    sources = [sound(tmp_path / "sound.mp4"), damaged, movie]
    for source in sources[:2]:
        with pytest.raises(ClipError, match=source.name):
            match(metric, subjects, source, threshold=THRESHOLD)
    found = match(metric, subjects, sources, [[], [], BOXES], rate=1, threshold=THRESHOLD, on_error="skip")
    assert {len(image.regions) for image in found.images if image.moment.clip == str(movie)} == {2}
    assert set(found.skipped) == {str(source) for source in sources[:2]}
    assert {image.moment.clip for image in found.images} <= {str(damaged), str(movie)}


def test_consistency_is_the_mean_of_distances_among_frames(metric: IDSim, movie: Path, tmp_path: Path) -> None:
    pictures = film([(ANN, REX), (ANN, None), (STRANGER, REX)])
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    among = metric.pairwise(pictures, pictures).double().numpy()
    [stills] = consistency(metric, tmp_path)
    assert (stills["clip"], stills["frames"], stills["first"]) == ("", 3, None)
    assert stills["mean"] == pytest.approx((among[0, 1] + among[0, 2] + among[1, 2]) / 3, abs=1e-5)

    boxes = [[BOXES[0]], [BOXES[0]], []]
    [cut] = consistency(metric, tmp_path, boxes)
    pieces = [picture.crop(BOXES[0]) for picture in pictures[:2]]
    assert (cut["frames"], cut["mean"]) == (2, pytest.approx(float(metric(*pieces)), abs=1e-5))

    found = consistency(metric, movie, rate=1)
    [clip] = found
    assert clip["frames"] == 3
    frames = consistency(metric, movie, rate=0.1)
    assert [frames[0][name] for name in ("frames", "mean", "first", "previous")] == [1, None, None, None]
    assert clip["first"] == pytest.approx(clip["previous"], abs=0.2)
    with pytest.raises(RequestError, match="one of each"):
        consistency(metric, tmp_path, [BOXES] * 3)


# Output


def test_outputs_have_the_rows_and_their_signature(metric: IDSim, subjects: Any, movie: Path, tmp_path: Path) -> None:
    found = match(metric, subjects, movie, BOXES, rate=1, threshold=THRESHOLD)
    found.write(tmp_path / "rows.csv")
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert rows["distance"].to_numpy() == pytest.approx(found.table["distance"].to_numpy(), abs=1e-4, nan_ok=True)
    content = json.loads(found.to_json())
    assert content["rows"][0]["distance"] == pytest.approx(found[0]["distance"])
    assert [row["subject"] for row in content["summary"]] == ["ann", "rex"]
    assert content["intervals"][0]["clip"] == str(movie)
    table = found.to_table()
    assert table.splitlines()[-1].startswith(f"model={metric.label}")
    assert "option" not in table
    assert found._repr_html_().count("<tr>") > 5
    with pytest.raises(ValueError, match=r"rows\.xyz"):
        found.write(tmp_path / "rows.xyz")


def test_the_page_shows_images_with_their_regions_the_worst_first(
    metric: IDSim, subjects: Any, movie: Path, tmp_path: Path
) -> None:
    for name, badges in (("fine.png", (ANN, REX)), ("worse <b>.png", (ANN, STRANGER))):
        scene(badges)[0].save(tmp_path / name)
    sources = [tmp_path / "fine.png", tmp_path / "worse <b>.png", scene((ANN, REX))[0], movie]
    _, boxes = scene((ANN, REX))
    found = match(metric, subjects, sources, [boxes, boxes, boxes, BOXES], rate=1, threshold=0.4)
    found.write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.index("worse &lt;") < page.index("fine.")
    assert page.count("data:image/jpeg") >= 5
    assert "missing" in page
    assert "<script>alert" not in page


def test_a_written_table_is_a_table_of_regions(metric: IDSim, subjects: Any, tmp_path: Path) -> None:
    """Boxes that a detector found are found once."""
    picture, boxes = scene((ANN, REX))
    picture.save(tmp_path / "a.png")
    found = match(metric, subjects, tmp_path / "a.png", regions=boxes)
    found.write(tmp_path / "match.csv")
    again = match(metric, subjects, tmp_path / "a.png", regions=str(tmp_path / "match.csv"))
    assert len(again.table) == len(found.table)
    assert again.table["distance"].tolist() == pytest.approx(found.table["distance"].tolist(), abs=1e-5)


# Refusals


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subjects": []}, RequestError),
        ({"subjects": {}}, RequestError),
        ({"subjects": {"": "a.png"}}, RequestError),
        ({"subjects": {"rex": []}}, RequestError),
        ({"subjects": {"rex": "absent.png"}}, ImageReadError),
        ({"images": "absent.png"}, ImageReadError),
        ({"aggregate": "min"}, RequestError),
        ({"on_error": "stop"}, RequestError),
        ({"outside": "crop"}, RequestError),
        ({"margin": -1}, RequestError),
        ({"rate": 0}, RequestError),
        ({"batch_size": 0}, ValueError),
        ({"regions": [(0, 0, 900, 20)]}, ImageReadError),
        ({"cast": {"other.png": ["ann"]}}, RequestError),
        ({"regions": [(0, 0, 9, 9)], "detector": lambda _: []}, RequestError),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else value.__name__,
)
def test_requests_that_do_not_fit_are_refused(
    metric: IDSim, subjects: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    picture, boxes = scene((ANN, REX))
    request = {"subjects": subjects, "images": picture, "regions": boxes, **options}
    if "detector" in options:
        request["regions"] = options["regions"]
    with pytest.raises(error):
        match(metric, **request)


def test_an_image_is_given_once_and_a_request_has_its_own_regions(metric: IDSim, subjects: Any, tmp_path: Path) -> None:
    picture, boxes = scene((ANN, REX))
    picture.save(tmp_path / "a.png")
    with pytest.raises(RequestError, match=r"a\.png"):
        match(metric, subjects, [tmp_path / "a.png"] * 2)
    request = MatchRequest.of(picture, ["ann", "rex"], boxes)
    assert match(metric, subjects, request).states == match(metric, subjects, picture, boxes).states
    with pytest.raises(RequestError, match="regions"):
        match(metric, subjects, request, boxes)


def test_a_box_or_a_mask_that_does_not_fit_skips_its_image_with_the_reason(
    metric: IDSim, subjects: Any, tmp_path: Path
) -> None:
    picture, boxes = scene((ANN, REX))
    Image.new("L", picture.size).save(tmp_path / "empty.png")
    regions = [[(0, 0, 900, 20)], boxes, [boxes[0], Region(mask=tmp_path / "empty.png")]]
    found = match(metric, subjects, [picture] * 3, regions, threshold=THRESHOLD, on_error="skip")
    assert found.states == [["matched", "matched"]]
    assert found.distances.shape[0] == 1
    outside, empty = found.skipped.values()
    assert "900" in outside
    assert "empty.png" in empty


def test_features_that_are_not_finite_name_image_and_region(subjects: Any) -> None:
    broken = random_model("cnn")
    subject = broken.embed(references(ANN, 2))
    forward = broken.forward_features

    def half_broken(x: torch.Tensor) -> Any:
        features, *patches = forward(x)
        features = features.clone()
        features[1] = torch.nan
        return features, *patches

    broken.forward_features = half_broken  # type: ignore[method-assign]
    picture, boxes = scene((ANN, REX))
    with pytest.raises(ValueError, match="region 1 of"):
        match(broken, {"ann": subject}, picture, boxes)
