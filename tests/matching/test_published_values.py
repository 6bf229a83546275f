"""Published numbers with their values for each image, subject and clip: rows, CSV, JSON and the page."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np
import pytest

from idmetric import Clip, IDSim, Match, consistency, match
from idmetric.matching.named import PUBLISHED
from idmetric.matching.published_values import PublishedValue, published_value
from idmetric.matching.similarities import Similarities
from tests.matching.films import BOXES, film
from tests.matching.scenes import ANN, REX

SIGNATURE = {"model": "m", "distance": "cls", "cut": "exact"}
Rows = dict[tuple[str | None, str | None, str | None], float | None]


@pytest.fixture(scope="module")
def similarities() -> Similarities:
    """Clip a has a frame with two subjects and one with ann alone in its cast; clip b has no region."""
    tables = [np.array([[0.8, 0.4], [0.2, 0.6]]), np.array([[0.5, 0.7], [0.9, 0.1]]), np.empty((2, 0))]
    turned = [np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.6, 0.8], [0.8, 0.6]]), np.empty((0, 2))]
    return Similarities(
        images=["a @ 0", "a @ 1", "b @ 0"],
        clips=["a", "a", "b"],
        names=[("ann", "rex")] * 3,
        words=[("", "")] * 3,
        casts=[np.array([True, True]), np.array([True, False]), np.array([False, True])],
        to_references=[table[:, None] for table in tables],
        aggregated=tables,
        whole=[np.array([[0.3], [0.5]])] * 3,
        scores=[np.ones(table.shape[1]) for table in tables],
        features=[(vectors, vectors) for vectors in turned],
    )


def values_of(similarities: Similarities, name: str, form: str = "released") -> Rows:
    number = published_value(similarities, name, form, SIGNATURE)
    return {(row["image"], row["clip"], row["subject"]): row["value"] for row in number.values}


def is_close(values: Rows, expected: Rows) -> None:
    assert list(values) == list(expected)
    for key, value in expected.items():
        assert values[key] == (None if value is None else pytest.approx(value)), key


def test_values_of_images_and_subjects_and_the_means_of_each(similarities: Similarities) -> None:
    is_close(
        values_of(similarities, "xverse-ip"),
        {
            ("a @ 0", "a", "ann"): 80,
            ("a @ 0", "a", "rex"): 60,
            ("a @ 1", "a", "ann"): 70,
            ("b @ 0", "b", "rex"): 0,
            ("a @ 0", "a", None): 70,
            ("a @ 1", "a", None): 70,
            ("b @ 0", "b", None): 0,
            (None, None, "ann"): 75,
            (None, None, "rex"): 30,
            (None, "a", None): 70,
            (None, "b", None): 0,
        },
    )


def test_values_that_the_source_has_of_images_alone(similarities: Similarities) -> None:
    is_close(
        values_of(similarities, "umo-reward"),
        {
            ("a @ 0", "a", None): (0.8 + 0.6 - 0.4 - 0.2) / 4,
            ("a @ 1", "a", None): (0.7 - 0.5) / 2,
            ("b @ 0", "b", None): 0,
            (None, "a", None): (0.2 + 0.1) / 2,
            (None, "b", None): 0,
        },
    )


def test_values_of_stories(similarities: Similarities) -> None:
    cross = values_of(similarities, "vistory-cross")
    assert cross[None, None, "ann"] == pytest.approx((0.8 + 0.7) / 2)
    assert cross[None, None, "rex"] == pytest.approx(0.6)  # the frame without it is left out
    assert cross["b @ 0", "b", "rex"] is None
    assert values_of(similarities, "vistory-cross", "corrected")["b @ 0", "b", "rex"] == 0
    is_close(
        values_of(similarities, "vistory-self"),
        {(None, None, "ann"): 0.8, (None, None, "rex"): 1},
    )
    occm = values_of(similarities, "vistory-occm")
    assert occm["a @ 1", "a", None] == pytest.approx(100 * math.exp(-1), abs=1e-3)


def test_values_of_clips_are_those_of_the_source(similarities: Similarities) -> None:
    nexus = values_of(similarities, "nexus")
    boxes = [0.8, 0.4, 0.2, 0.6, 0.5, 0.7]
    assert nexus[None, "a", None] == pytest.approx(np.mean(boxes) / 3)
    assert nexus[None, "b", None] is None
    assert nexus["a @ 0", "a", "ann"] == pytest.approx(0.6)
    assert nexus["b @ 0", "b", "rex"] is None
    assert values_of(similarities, "msrvtt-subject")[None, "a", None] == pytest.approx(0.7)


def test_each_number_is_the_mean_of_its_values_where_the_source_takes_one(similarities: Similarities) -> None:
    """Of images and subjects, of images, or of clips; means by the number's own finest level."""
    levels = {
        "xverse-ip": ("image", "subject"),
        "umo-id-conf": ("image", "subject"),
        "psr": ("image", "subject"),
        "umo-reward": ("image",),
        "uno-distill": ("image",),
        "multiid": ("image",),
        "vistory-cross": ("subject",),
        "vistory-self": ("subject",),
        "vistory-occm": ("image",),
        "nexus": ("clip",),
        "msrvtt-subject": ("clip",),
    }
    for name, level in levels.items():
        number = published_value(similarities, name, "released", SIGNATURE)
        values = []
        for row in number.values:
            has_level = {key for key in ("image", "subject", "clip") if row[key] is not None} - {"clip"} == set(level)
            if level == ("clip",):
                has_level = row["image"] is row["subject"] is None
            if has_level and row["value"] is not None:
                values.append(row["value"])
        assert number.value == pytest.approx(np.mean(values)), name


# In files and on the page


@pytest.fixture(scope="module")
def clips() -> Match:
    """Two clips of two subjects each, in which one belongs to the cast of each."""
    pictures = {"one": film([(ANN, REX)] * 3), "two": film([(REX, ANN)] * 2)}
    photo = pictures["one"][0]
    return match(
        IDSim("tiny"),
        {"ann": [photo.crop(BOXES[0])], "rex": [photo.crop(BOXES[1])]},
        [Clip(frames, name=name) for name, frames in pictures.items()],
        regions=[BOXES] * 5,
        cast={"one": ["ann"], "two": ["ann", "rex"]},
        frames="all",
        missing="whole",
        threshold=0.3,
    )


NAMES = ("xverse-ip", "umo-reward", "vbench-long", "nexus")


@pytest.fixture(scope="module")
def numbers(clips: Match) -> list[PublishedValue]:
    return [clips.published(name) for name in NAMES[:2]] + [clips.published(name, "corrected") for name in NAMES[2:]]


def test_rows_have_a_column_for_each_number(clips: Match, numbers: list[PublishedValue]) -> None:
    rows = list(csv.DictReader(io.StringIO(clips.to_csv(numbers))))
    assert list(rows[0])[-4:] == ["xverse-ip", "umo-reward", "vbench-long:corrected", "nexus:corrected"]
    similarity = 1 - clips.by_region
    for row, (time, subject) in zip(rows, np.ndindex(5, 2), strict=True):
        if row["expected"] == "False":
            assert {row[number.label] for number in numbers} == {""}
            continue
        assert float(row["xverse-ip"]) == pytest.approx(100 * similarity[time, subject].max(), abs=1e-3)
        assert float(row["nexus:corrected"]) == pytest.approx(similarity[time, subject].mean(), abs=1e-3)
    rewards = [float(row["umo-reward"]) for row in rows if row["umo-reward"]]
    assert len(rewards) == 7
    assert rewards[0] == pytest.approx(abs(similarity[0, 0, 0] - similarity[0, 0, 1]) / 2, abs=1e-3)
    assert rewards[3] == rewards[4]  # of the image
    of_clips = {row["clip"]: row["vbench-long:corrected"] for row in rows if row["vbench-long:corrected"]}
    assert {clip: float(value) for clip, value in of_clips.items()} == pytest.approx(numbers[2].clip_values, abs=1e-3)
    assert clips.to_csv().splitlines()[0] == ",".join(clips.rows.columns)
    assert json.loads(clips.to_jsonl(numbers).splitlines()[0])["xverse-ip"] == pytest.approx(
        float(rows[0]["xverse-ip"])
    )


def test_json_has_all_values(clips: Match, numbers: list[PublishedValue], tmp_path: Any) -> None:
    content = json.loads(clips.to_json(numbers))["published"]
    for number, row in zip(numbers, content, strict=True):
        assert row["values"] == [
            {**value, "value": None if value["value"] is None else pytest.approx(value["value"])}
            for value in number.values
        ]
    clips.write(tmp_path / "rows.csv", numbers)
    assert (tmp_path / "rows.csv").read_text() == clips.to_csv(numbers)


def test_rows_of_clips_have_the_values_of_clips() -> None:
    result = consistency(
        IDSim("tiny"), [Clip(film([(ANN, REX)] * 3), name="one"), Clip(film([(REX, None)] * 2), name="two")]
    )
    number = result.published("vbench-subject")
    rows = list(csv.DictReader(io.StringIO(result.to_csv([number]))))
    by_clip = {row["clip"]: float(row["vbench-subject"]) for row in rows}
    assert by_clip == pytest.approx(number.clip_values, abs=1e-3)
    by_frame = {row["image"]: row["value"] for row in number.values if row["image"]}
    assert by_frame["one @ 0"] is None
    assert by_clip["one"] == pytest.approx((by_frame["one @ 1"] + by_frame["one @ 2"]) / 2, abs=1e-3)
    assert number.value == pytest.approx((2 * by_clip["one"] + by_clip["two"]) / 3, abs=1e-3)
    page = result.to_html([number])
    assert "Published numbers" in page
    assert f"{number.value:.4f}" in page
    assert "Published numbers" not in result.to_html()


def test_the_page_has_a_panel(clips: Match, numbers: list[PublishedValue]) -> None:
    page = clips.to_html(numbers)
    panel = page[page.index('id="published-title"') :].partition("</section>")[0]
    for number in numbers:
        assert f'<th scope="row">{number.name}</th><td data-head="form">{number.form}</td>' in panel
        assert f'data-head="value">{number.value:.4f}' in panel
        assert number.encoder in panel
    assert "Values by clip and subject" in panel
    for value in (numbers[0].clip_values["two"], numbers[0].subject_values["rex"]):
        assert f'data-head="xverse-ip">{value:.4f}' in panel
    assert "Published numbers" not in clips.to_html()


def test_every_number_has_values(clips: Match) -> None:
    for name in set(PUBLISHED) - {"vbench-i2v", "xverse-id"}:
        assert any(row["value"] is not None for row in clips.published(name).values), name
