"""The protocol `sets` against recomputed draws, its noise floor, and what it warns of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric.cli import eval as cli
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols import sets
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.result import Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.generator.outputs import read
from idmetric.evaluate.protocols.sets import MEASURES, SetsOptions, run
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.errors import RequestError
from idmetric.stream.encoders import PlainVectorModel
from tests.evaluate.protocols.parts import PLAIN, values
from tests.runner import Runner

PLACE = "{method}/{subject}/{seed}.png"
SUBJECTS, PHOTOS, IMAGES = 3, 9, 5
METHODS = {"good": 0, "swap": 1, "same": 0}


class Colors(PlainVectorModel):
    """A model whose features are drawn by the image's color: (subject, number, kind)."""

    size = 6

    def signature(self) -> dict[str, str]:
        return {"model": "colors"}

    def prepare(self, picture: Any, cover: Any, words: str | None) -> np.ndarray:
        return self.of(*picture.getpixel((0, 0)))

    def of(self, subject: int, number: int, kind: int) -> np.ndarray:
        own = 2 * np.random.default_rng(subject).normal(size=self.size)
        return own + np.random.default_rng([subject, number, kind]).normal(size=self.size)

    def embed_prepared(self, batch: Sequence[np.ndarray], patches: bool = True) -> Embedding:
        return Embedding(torch.from_numpy(np.stack(batch)).float())


def picture(path: Path, subject: int, number: int, kind: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (subject, number, kind)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photos of three subjects; images of each, of the next subject, and the same image again and again."""
    for subject in range(SUBJECTS):
        for number in range(PHOTOS):
            picture(tmp_path / f"refs/s{subject}/{number}.png", subject, number, 0)
        for k, (method, shift) in enumerate(METHODS.items(), 1):
            for number in range(IMAGES):
                shown = (subject + shift) % SUBJECTS, 0 if method == "same" else number, k
                picture(tmp_path / f"out/{method}/s{subject}/{number}.png", *shown)
    return tmp_path


def given(folder: Path) -> Manifest:
    return read(folder / "out", PLACE, references=str(folder / "refs"))


def unit(rows: list[np.ndarray]) -> np.ndarray:
    x = np.stack(rows)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def photos(subject: int) -> np.ndarray:
    return unit([Colors().of(subject, number, 0) for number in range(PHOTOS)])


def outputs(method: str, subject: int) -> np.ndarray:
    k = list(METHODS).index(method) + 1
    shown = [((subject + METHODS[method]) % SUBJECTS, 0 if method == "same" else n, k) for n in range(IMAGES)]
    return unit([Colors().of(*one) for one in shown])


def test_whole_sets_are_compared_by_the_measures(folder: Path) -> None:
    [result] = run(given(folder), {"m": Colors()}, PLAIN, SetsOptions(draws=3))
    for method in METHODS:
        for name, measure in MEASURES.items():
            own = [measure(outputs(method, s), photos(s)) for s in range(SUBJECTS)]
            found = values(result, **{"method": method, "measure": name, "n images": "all"})
            assert set(found) == {"score"}
            assert found["score"].value == pytest.approx(np.mean(own), abs=2e-3 * max(1, abs(np.mean(own))))
            assert found["score"].count == SUBJECTS


def test_draws_are_of_different_photos_and_of_n_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def first(x: np.ndarray, y: np.ndarray) -> float:
        seen.append((x, y))
        return float(x[0, 0])

    monkeypatch.setattr(sets, "MEASURES", {"first": first})
    monkeypatch.setattr(sets, "_RANGES", {"first": (-1, 1)})
    [result] = run(given(folder), {"m": Colors()}, PLAIN, SetsOptions(draws=7))
    where = {name: [photos(s) if name == "real" else outputs(name, s) for s in range(SUBJECTS)]
             for name in ("real", "good", "swap")}  # fmt: skip

    def inside(x: np.ndarray, name: str) -> bool:
        return any(all(np.isclose(row, whole, atol=1e-6).all(1).any() for row in x) for whole in where[name])

    floors = [(x, y) for x, y in seen if len(x) == len(y) and inside(x, "real")]
    assert len(floors) == SUBJECTS * 2 * 7  # n = 2 and 4, once for all methods
    for x, y in floors:
        assert inside(y, "real")
        assert not any((np.abs(x[:, None] - y[None]).max(-1) < 1e-6).ravel())  # halves have no photo in common
        assert len(np.unique(x.round(9), axis=0)) == len(x)
    swapped = [(x, y) for x, y in seen if inside(x, "swap")]
    assert {(len(x), len(y)) for x, y in swapped} == {(2, 2), (4, 4), (5, 9)}
    assert len(swapped) == SUBJECTS * (2 * 7 + 1)
    assert all(len(np.unique(x.round(9), axis=0)) == len(x) for x, _ in swapped)
    means = [np.mean([x[0, 0] for x, _ in floors if len(x) == n]) for n in (2, 4)]
    for n, mean in zip(("2", "4"), means, strict=True):
        assert values(result, **{"method": "good", "n images": n})["real"].value == pytest.approx(mean)


def test_another_subject_is_beyond_the_floor_and_the_right_one_is_not(folder: Path) -> None:
    [result] = run(given(folder), {"m": Colors()}, EvalSettings(bootstrap=50, workers=1))
    for measure in MEASURES:
        swap, good = (values(result, **{"method": m, "measure": measure, "n images": "4"}) for m in ("swap", "good"))
        assert swap["beyond"].value == 1
        assert good["beyond"].value <= 1 / 3
        assert isinstance(swap["score"].low, float)
        better = good["score"].value > swap["score"].value if measure == "centroid" else (
            good["score"].value < swap["score"].value)  # fmt: skip
        assert better
    [note] = [note for note in result.notes if "good: within the noise floor" in note]
    assert all(re.search(rf"{measure} of [23] of 3 subjects", note) for measure in MEASURES)
    assert not any("swap" in note for note in result.notes)


def test_one_set_shows_the_range_of_its_draws(folder: Path) -> None:
    [result] = run(given(folder), {"m": Colors()}, PLAIN, SetsOptions(pool=True))
    numbers = [row["n images"] for row in result.rows if row["method"] == "good" and row["measure"] == "CMMD"]
    assert numbers == ["2", "4", "8", "all"]  # 27 photos, 15 images
    lines = result.items["sets"]
    for k, subject in enumerate(lines["subject"]):
        assert subject == "all"
        row = values(
            result, **{"method": lines["method"][k], "measure": lines["measure"][k], "n images": lines["n"][k]}
        )
        for name in ("score", "real"):
            found = row.get(name)
            expected = None if lines[name][k] is None else Value(
                lines[name][k], lines[f"{name}_low"][k], lines[f"{name}_high"][k], 1)  # fmt: skip
            assert found == expected
    floor = values(result, **{"method": "swap", "measure": "Frechet", "n images": "8"})["real"]
    assert floor.low < floor.value < floor.high  # type: ignore[operator]
    again = run(given(folder), {"m": Colors()}, PLAIN, SetsOptions(pool=True))[0]
    assert again.rows == result.rows


def test_the_floor_alone_needs_no_outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [result] = run(read(None, references=str(folder / "refs")), {"m": Colors()}, PLAIN, SetsOptions(draws=10))
    assert {str(row["method"]) for row in result.rows} == {sets.REAL}
    assert set(values(result, **{"measure": "CMMD", "n images": "4"})) == {"real"}
    assert len(result.rows) == 6

    status, out, err = Runner(cli.main, capsys).all(
        "sets", "--references", folder / "refs", "--pool", "--model", "hsv", "--draws", 5, "--quiet"
    )
    assert status == 0, err
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [["CMMD", "2"], ["CMMD", "4"], ["CMMD", "8"]]
    assert "method real photos" in out
    Runner(cli.main, capsys).fails("--references PATH is needed", "sets", "--model", "hsv", "--quiet")


def test_subjects_with_few_images_are_named(folder: Path) -> None:
    for number in range(3, PHOTOS):
        (folder / f"refs/s0/{number}.png").unlink()
    for number in range(1, IMAGES):
        (folder / f"out/good/s1/{number}.png").unlink()
    [result] = run(given(folder), {"m": Colors()}, PLAIN, SetsOptions(draws=3))
    assert result.notes[:3] == [
        "1 subjects have fewer than four photos and are left out: s0",
        "good has fewer than two images of 1 subjects: s1",
        "compared on the 1 of 2 subjects that all methods have",
    ]
    for method in METHODS:
        assert values(result, **{"method": method, "measure": "CMMD", "n images": "all"})["score"].count == 1
    floors = [values(result, **{"method": m, "measure": "CMMD", "n images": "2"})["real"].value for m in METHODS]
    assert len(set(floors)) == 1
    for subject in (1, 2):
        for number in range(3, PHOTOS):
            (folder / f"refs/s{subject}/{number}.png").unlink()
    with pytest.raises(ValueError, match=r"no subject has four real photos.*\(--pool\)"):
        run(given(folder), {"m": Colors()}, PLAIN)
    with pytest.raises(ValueError, match="--distance patch: sets are compared by global features"):
        run(given(folder), {"m": Colors()}, EvalSettings(distance="patch"))
    with pytest.raises(ValueError, match="ssim: sets are compared by features"):
        run(given(folder), {"ssim": open_model("ssim")}, PLAIN)
    with pytest.raises(RequestError, match="absent: no such images"):
        read(None, references=str(folder / "absent"))
