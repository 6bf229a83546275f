"""Jobs, resuming, sharding, and the command: with a quick engine, and with real pipelines of random weights."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw

from idmetric.cli.data import generate as command
from idmetric.data.generate.distractor import distractor_task, working_size
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.engines import ENGINES
from idmetric.data.generate.idsim import contextual_task, identity_task, noise_task
from idmetric.data.generate.ilgen import object_task, relight_task
from idmetric.data.generate.jobs import GenerateTask, frame_seed, read_source, run_jobs
from idmetric.data.generate.masks import CleanBackground
from idmetric.data.generate.weights import Place, Repository
from idmetric.data.generate.wording import read_wording
from idmetric.data.manifest import checked, read, take, write
from idmetric.data.split import leaks, split
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError, read_image
from idmetric.metric.masks import read_mask

WORDS = read_wording()


@dataclass(frozen=True)
class Paint(Engine):
    """Paints noise that depends on the whole request; logs each start to a file."""

    base: Repository = Repository("owner/paint", "mit")
    steps: int = 1
    guidance: float = 1.0
    tint: int = 0
    log: str = ""

    name: ClassVar[str] = "paint"
    native: ClassVar[int] = 64
    multiple: ClassVar[int] = 8
    pipe = versions = None  # type: ignore[assignment]

    @property
    def settings(self) -> dict[str, Any]:
        return {"tint": self.tint, "guidance": self.guidance}

    def edit(self, request: Request) -> Image.Image:
        if self.log:
            with open(self.log, "a") as file:
                file.write("edit\n")
        seen = [request.prompt, request.seed, request.strength, self.tint]
        pixels = b"" if request.image is None else request.image.tobytes()
        masked = b"" if request.mask is None else request.mask.tobytes()
        digest = hashlib.sha256(repr(seen).encode() + pixels + masked).digest()
        size = request.size or ((64, 64) if request.image is None else request.image.size)
        rng = np.random.default_rng(list(digest))
        return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


class Discs(Paint):
    """Draws an object before a clean background; of "fog" nothing but noise."""

    name: ClassVar[str] = "discs"

    def edit(self, request: Request) -> Image.Image:
        if "fog" in request.prompt:
            return super().edit(request)
        rng = np.random.default_rng(request.seed)
        image = Image.new("RGB", (64, 64), (240, 240, 240))
        x, y = rng.integers(4, 28, 2).tolist()
        ImageDraw.Draw(image).ellipse((x, y, x + 30, y + 26), fill=tuple(rng.integers(0, 128, 3).tolist()))
        return image


def pictures(folder: Path, count: int = 6, size: tuple[int, int] = (56, 40), **columns: Any) -> pd.DataFrame:
    """A manifest of noisy photos with an ellipse as mask, two photos of each identity."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        rng = np.random.default_rng(i)
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(folder / f"{i}.png")
        mask = Image.new("L", size)
        ImageDraw.Draw(mask).ellipse((8 + i, 6, 36 + i, 34), fill=255)
        mask.save(folder / f"{i}_mask.png")
        values = {"category": "mug" if i % 4 < 2 else "dog", "dataset": "d", **columns}
        rows.append({"identity": f"thing{i // 2}", "path": f"{i}.png", "mask": f"{i}_mask.png", **values})
    return checked(pd.DataFrame(rows), folder)


def engine(**settings: Any) -> Paint:
    return Paint(place=Place("cpu", "float32"), **settings)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.png"))}


def made_by(task: GenerateTask, folder: Path) -> pd.DataFrame:
    return run_jobs(task, folder).table


def pixels_of(path: str) -> np.ndarray:
    return np.asarray(read_image(path))


def bits_of(path: str) -> np.ndarray:
    return read_mask(path).numpy() >= 0.5


def spied(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests of quick engines from here on."""
    seen: list[Request] = []
    original = Paint.edit
    monkeypatch.setattr(Paint, "edit", lambda self, request: (seen.append(request), original(self, request))[1])
    return seen


TASKS = {
    "context": contextual_task,
    "identity": identity_task,
    "distractor": lambda *a, **k: distractor_task(*a, resolution=32, **k),
    "relight": lambda *a, copies=1, **k: relight_task(*a, copies=copies, **k),
}


# Tasks


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_gives_images_masks_and_their_history(name: str, tmp_path: Path) -> None:
    sources = pictures(tmp_path, background="room")
    task = TASKS[name](sources, engine(), WORDS, seed=5, copies=2)
    made = made_by(task, tmp_path / "out")
    assert len(made) == made["path"].nunique() == 12
    is_new = name in ("identity", "distractor")
    assert made["identity"].nunique() == (12 if is_new else 3)
    roles = {"context": "context-edit", "relight": "context-edit", "identity": "identity-edit"}
    for i, row in enumerate(made.itertuples()):
        parent = sources.iloc[i // 2]
        assert (row.parent, row.dataset, row.category) == (parent["id"], "d", parent["category"])
        assert (row.identity == parent["identity"]) == (not is_new)
        assert row.background == ("room" if is_new else row.id)  # what is repainted in place keeps its background
        assert (row.role, row.engine) == (roles.get(name, name), "paint")
        assert row.text
        assert json.loads(row.parameters)["task"] == name
        mask = read_mask(row.mask)
        assert mask.shape == pixels_of(row.path).shape[:2]
        assert set(mask.unique().tolist()) == {0, 1}
    assert not leaks(split(made, {"a": 0.5, "b": 0.5}))


@pytest.mark.parametrize("name", ["identity", "distractor"])
def test_pixels_outside_the_mask_are_unchanged(name: str, tmp_path: Path) -> None:
    sources = pictures(tmp_path, size=(57, 43))
    task = TASKS[name](sources, engine(), WORDS)
    made = made_by(task, tmp_path / "out")
    for before_row, row in zip(sources.itertuples(), made.itertuples(), strict=True):
        before, after = pixels_of(before_row.path), pixels_of(row.path)
        inside = bits_of(row.part_mask if name == "identity" else row.mask)
        mask = bits_of(before_row.mask)
        assert (before[~inside] == after[~inside]).all()
        assert (before[inside] != after[inside]).any(1).mean() > 0.9
        if name == "distractor":
            assert (inside == mask).all()
        else:  # ID-Sim, A.2.2: 40-60 % of the foreground is taken out of the mask
            share = inside.sum() / mask.sum()
            assert row.oracle == pytest.approx(1 - share)  # NearID, 3.4
            assert 0.4 <= 1 - share <= 0.6
            assert not (inside & ~mask).any()


def test_identity_edits_draw_by_the_frames_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, seen = pictures(tmp_path, 40), spied(monkeypatch)
    task = identity_task(sources, engine(), WORDS, seed=100)
    made = made_by(task, tmp_path / "out")
    assert made["seed"].tolist() == list(range(100, 140))  # "seed + row_id"
    assert set(made["text"]) == {"Photo of a mug", "Photo of a dog"}
    found = [json.loads(text) for text in made["parameters"]]
    strengths = np.array([p["strength"] for p in found])
    assert strengths.min() >= 0.5
    assert strengths.max() <= 0.8
    assert np.ptp(strengths) > 0.2
    assert {p["generator_seed"] for p in found} == {0}
    assert {p["guidance"] for p in found} == {2.5}
    assert len({(p["partial_mask"]["axis"], p["partial_mask"]["side"]) for p in found}) == 4
    assert {request.guidance for request in seen} == {2.5}  # instead of the engine's own
    assert len({frame_seed(5, row, copy) for row in range(50) for copy in range(50)}) == 2500


def test_frames_of_an_identity_get_different_scenes(tmp_path: Path) -> None:
    pictures(tmp_path, 2)
    rows = [{"identity": f"thing{i % 3}", "path": "0.png", "id": str(i), "mask": "0_mask.png"} for i in range(60)]
    many = checked(pd.DataFrame(rows), tmp_path).assign(category="mug")
    task = contextual_task(many, engine(), WORDS, seed=1)
    scenes: dict[str, list[tuple[str, str]]] = {}
    modes: dict[str, set[str]] = {}
    for job in task.jobs:
        who = job.row["identity"]
        scenes.setdefault(who, []).append((job.settings["background"], job.settings["lighting"]))
        modes.setdefault(who, set()).add(job.settings["mode"])
        assert job.settings["background"] in job.prompt
        assert job.settings["lighting"] in job.prompt
        assert job.row["background"] == job.name  # the same words give another picture each time
    for who, found in scenes.items():
        assert len(set(found)) == len(found) == 20
        assert set(found) <= set(WORDS.scenes("mug"))
        assert len(modes[who]) == 1
    assert len({tuple(s) for s in scenes.values()}) == 3


def test_sizes_to_work_at() -> None:
    assert working_size((512, 512), 512, 16) == (512, 512)  # NearID's
    assert working_size((100, 100), 1328, 16) == (1328, 1328)
    for size in ((640, 480), (480, 640), (1000, 300), (1, 1), (7, 1)):
        width, height = working_size(size, 1024, 16)
        assert width % 16 == height % 16 == 0
        assert abs(width * height / 1024**2 - 1) < 0.05
        assert abs(np.log(width / height) - np.log(size[0] / size[1])) < 0.05
    with pytest.raises(ImageReadError, match="1x1000 pixels: it is too long"):
        working_size((1, 1000), 512, 16)


def test_names_tell_all_that_decides_the_pixels(tmp_path: Path) -> None:
    sources = pictures(tmp_path, 2)
    base = distractor_task(sources, engine(), WORDS).jobs[0].name
    assert base.startswith("paint/")
    assert "-seed0-" in base
    assert distractor_task(sources, engine(), WORDS).jobs[0].name == base
    others = [
        distractor_task(sources, engine(tint=1), WORDS),
        distractor_task(sources, engine(), WORDS, seed=1),
        distractor_task(sources, engine(), WORDS, resolution=64),
        distractor_task(sources.assign(category="cup"), engine(), WORDS),
        distractor_task(sources.assign(id=["x", "y"]), engine(), WORDS),
    ]
    assert len({base, *(task.jobs[0].name for task in others)}) == 6


def test_a_job_reads_its_row_of_a_table_that_pandas_sorted(tmp_path: Path) -> None:
    sources = pictures(tmp_path, 2)
    backwards = sources[::-1]
    first = identity_task(backwards, engine(), WORDS).jobs[0]
    image, _ = read_source(backwards, first)
    with Image.open(sources["path"][1]) as expected:
        np.testing.assert_array_equal(image, expected.convert("RGB"))


def test_missing_masks_and_classes_are_listed(tmp_path: Path) -> None:
    sources = pictures(tmp_path, 4)
    bare = sources.assign(mask=["0_mask.png", None, "2_mask.png", None])
    for task in TASKS.values():
        with pytest.raises(RequestError, match=r"'mask' .* row 2 \(1.png\), row 4 \(3.png\)"):
            task(bare, engine(), WORDS)
        with pytest.raises(RequestError, match=r"'mask' .* row 1 \(3.png\), row 3 \(1.png\)"):
            task(bare[::-1], engine(), WORDS)
    for name in ("identity", "distractor", "relight"):
        with pytest.raises(RequestError, match="'category'"):
            TASKS[name](sources.assign(category=None), engine(), WORDS)
    assert len(contextual_task(sources.assign(category=None), engine(), WORDS).jobs) == 4
    worded = replace(WORDS, templates={"context": "a {class}: {background}, {lighting}"})
    with pytest.raises(RequestError, match="'category'"):
        contextual_task(sources.assign(category=None), engine(), worded)


# Doing jobs


def test_finished_images_are_kept_and_missing_ones_made_anew(tmp_path: Path) -> None:
    task = TASKS["distractor"](pictures(tmp_path), engine(log=str(tmp_path / "log")), WORDS)
    run_jobs(task, tmp_path / "out")
    first = bytes_of(tmp_path / "out")
    rows = made_by(task, tmp_path / "out")
    assert run_jobs(task, tmp_path / "out").made == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 6
    names = [row.id for row in rows.itertuples()]
    (tmp_path / "out" / f"{names[1]}.png").unlink()
    note = tmp_path / "out" / f"{names[-1]}.json"
    note.write_text(note.read_text()[:-20])
    assert run_jobs(task, tmp_path / "out").made == 2
    assert bytes_of(tmp_path / "out") == first
    pd.testing.assert_frame_equal(made_by(task, tmp_path / "out"), rows)


def broken(tmp_path: Path) -> pd.DataFrame:
    """Eight sources: good, cut short, absent, mask of another size, empty mask, full mask, so thin, good."""
    sources = pictures(tmp_path, 8)
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:300])
    (tmp_path / "2.png").unlink()
    Image.new("L", (40, 56), 255).save(tmp_path / "3_mask.png")
    Image.new("L", (56, 40), 0).save(tmp_path / "4_mask.png")
    Image.new("L", (56, 40), 255).save(tmp_path / "5_mask.png")
    thin = Image.new("L", (56, 40), 0)
    thin.putpixel((20, 20), 255)
    thin.save(tmp_path / "6_mask.png")
    return sources


def test_unusable_sources_are_listed_or_left_out(tmp_path: Path) -> None:
    sources = broken(tmp_path)
    task = distractor_task(sources, engine(), WORDS, resolution=16, copies=2)
    with pytest.raises(RequestError, match="6 sources") as error:
        run_jobs(task, tmp_path / "twice")
    assert all(f"row {k + 1} ({k}.png)" in str(error.value) for k in range(1, 7))
    assert len(bytes_of(tmp_path / "twice")) == 2 * 2 * 2  # all others are made
    task = distractor_task(sources, engine(), WORDS, resolution=16)
    outcome = run_jobs(task, tmp_path / "out", on_error="skip")
    assert [name for name, _ in outcome.left_out] == [f"row {i + 1} ({i}.png)" for i in range(1, 7)]
    assert "so thin" in outcome.left_out[-1][1]
    assert outcome.table["parent"].tolist() == ["0.png", "7.png"]
    good = pictures(tmp_path, 8)  # mended
    outcome = run_jobs(distractor_task(good, engine(), WORDS, resolution=16), tmp_path / "out")
    assert (outcome.made, len(outcome.table)) == (6, 8)


# ILGen


def test_objects_of_categories(tmp_path: Path) -> None:
    turbo = Discs(place=Place("cpu", "float32"))
    task = object_task(["mug", "fog", "clock"], turbo, WORDS, seed=1, each=3)
    assert task.jobs[0].prompt == "a mug in a clean background"
    outcome = run_jobs(task, tmp_path)
    assert (outcome.made, len(outcome.table), len(outcome.left_out)) == (6, 6, 3)
    assert all("not clean" in why for _, why in outcome.left_out)
    assert outcome.table["category"].tolist() == ["mug"] * 3 + ["clock"] * 3
    assert outcome.table["identity"].nunique() == 6
    again = run_jobs(task, tmp_path)
    assert (again.made, again.left_out) == (0, outcome.left_out)  # what was rejected is not tried anew

    longer = object_task(["sofa", "mug"], turbo, WORDS, seed=1, each=4)
    kept = {job.name for job in longer.jobs} & {job.name for job in task.jobs}
    assert len(kept) == 3  # the mugs
    for other in (
        object_task(["mug"], turbo, WORDS, seed=1, each=1, remover=CleanBackground(tolerance=20)),
        object_task(["mug"], turbo, WORDS, seed=2, each=1),
        object_task(["mug"], replace(turbo, tint=1), WORDS, seed=1, each=1),
    ):  # other runs make other identities
        assert other.jobs[0].row["identity"] != task.jobs[0].row["identity"]
    assert len(object_task(["church"], turbo, WORDS, domain="landmark").jobs) == 80  # ILGen, 4.1
    bare = run_jobs(object_task(["fog"], turbo, WORDS, each=2, remover=None), tmp_path).table
    assert (len(bare), bare["mask"].isna().all()) == (2, True)  # for another program to cut out


# The command


def call(*words: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(w) for w in (*words, "--quiet")]))


@contextmanager
def quick_engines() -> Iterator[None]:
    """Quick engines in the place of the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ENGINES:
            patch.setitem(ENGINES, name, Discs if name == "sd_turbo" else Paint)
        yield


@pytest.fixture
def quick() -> Iterator[None]:
    with quick_engines():
        yield


def saved_pictures(folder: Path, **more: Any) -> Path:
    write(pictures(folder, **more), folder / "photos.csv")
    return folder / "photos.csv"


@pytest.mark.parametrize("task", ["context", "identity", "distractor", "relight"])
def test_every_task_from_the_shell(quick: None, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = saved_pictures(tmp_path), tmp_path / "made" / "out.parquet"
    count = 24 if task == "relight" else 6
    assert call(source, "--task", task, "-o", out) == 0
    made = read(out)
    assert len(made) == count
    assert Path(made["path"][0]).is_relative_to(out.parent / "out_images" / "paint")
    assert call(source, "--task", task, "-o", out, "--limit", 2) == 0
    assert len(read(out)) == count // 3
    assert f"made 0 images, {count // 3} are finished" in capsys.readouterr().out


def test_shards_together_are_one_run(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved_pictures(tmp_path)
    (tmp_path / "objects.txt").write_text("mug\nfog\nclock\n")
    tasks: dict[str, tuple[Any, ...]] = {
        "distractor": (source, "--task", "distractor", "--engine", "flux_fill"),
        "objects": (tmp_path / "objects.txt", "--task", "objects", "--each", 2),
        "grid": (source, "--task", "grid-identity"),
    }
    for name, words in tasks.items():
        whole, out = tmp_path / "whole" / f"{name}.csv", tmp_path / "shards" / f"{name}.csv"
        status = 4 if name == "objects" else 0  # fog is rejected
        assert call(*words, "-o", whole) == status
        for shard in ("2/2", "1/2"):
            assert call(*words, "-o", out, "--shard", shard) in (0, 4)
            assert not out.exists()
        assert call(*words, "-o", out) == status
        assert out.read_text() == whole.read_text()
        assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "shards")
    with pytest.raises(SystemExit):
        call(*words, "-o", out, "--shard", "3/2")
    assert "'3/2'" in capsys.readouterr().err


def test_a_task_has_the_options_of_its_function(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = saved_pictures(tmp_path)
    wrong: list[tuple[Any, ...]] = [
        ("identity", "--engine", "flux_canny"),
        ("context", "--resolution", "native"),
        ("context", "--views"),
        ("context", "--domain", "x"),
        ("context", "--ask", "http://localhost:1/v1"),
        ("noise", "--copies", 2),
        ("relight", "--set", "iclite.steps=5"),
        ("distractor", "--set", "iclight.base=a/b"),
        ("distractor", "--set", "sdxl_inpaint"),
        ("distractor", "--set", "steps=3"),
    ]
    for task, option, *values in wrong:
        with pytest.raises(ValueError, match=option):
            call(source, "--task", task, option, *values, "-o", tmp_path / "out.parquet")
    for text in ("big", "0"):
        with pytest.raises(SystemExit):
            call(source, "--task", "distractor", "--resolution", text, "-o", tmp_path / "out.parquet")
        assert "--resolution" in capsys.readouterr().err


def edited_triplets(folder: Path, engine: str) -> Path:
    """Three triplets of photos: one negative by this engine, one by the renderer, and a real one."""
    photos, source = pictures(folder), folder / "triplets.csv"
    rows = []
    for k, made_by in enumerate([engine, "renderer", None]):
        for n, slot in enumerate(("anchor", "positive", "negative")):
            row = photos.iloc[(2 * k + n) % 6].to_dict() | {"mask": None, "identity": f"thing{k}"}
            row |= {"id": f"{k}/{slot}", "group": f"g{k}", "slot": slot}
            if slot == "negative":
                row |= {"identity": f"other{k}", "engine": made_by, "role": "identity-edit" if made_by else "real"}
            rows.append(row)
    write(checked(pd.DataFrame(rows), folder), source)
    return source


def test_noise_is_for_anchors_and_positives_of_negatives_by_that_engine(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = edited_triplets(tmp_path, Paint.name)
    out = tmp_path / "noised.parquet"
    assert call(source, "--task", "noise", "-o", out) == 0
    before, after = read(source), read(out)
    for column in ("id", "group", "identity"):
        assert after[column].tolist() == before[column].tolist()
    changed = [k for k in range(9) if not np.array_equal(pixels_of(after["path"][k]), pixels_of(before["path"][k]))]
    assert changed == [0, 1]
    assert [pixels_of(after["path"][k]).shape[:2] for k in changed] == [(40, 56)] * 2
    assert after["noise"].tolist() == ["paint", "paint", *[None] * 7]
    assert call(source, "--task", "noise", "-o", out) == 0
    assert "made 0 images, 2 are finished" in capsys.readouterr().out
    with pytest.raises(RequestError, match="paint"):
        call(saved_pictures(tmp_path / "single"), "--task", "noise", "-o", tmp_path / "none.parquet")


def test_a_triplet_with_an_image_that_was_not_made_is_left_out(tmp_path: Path) -> None:
    triplets = read(edited_triplets(tmp_path, Paint.name))
    task = noise_task(triplets, engine(), WORDS)
    first, second = task.jobs
    made = made_by(task, tmp_path / "out")
    assert len(task.result(made)) == 9
    with pytest.warns(UserWarning, match="1 triplets left out"):
        rest = task.result(take(made, made["id"] == first.name))
    assert second.source == 1
    assert rest["group"].tolist() == ["g1"] * 3 + ["g2"] * 3


# Flat images


class Moods(Paint):
    """Paints, but not for prompts that name a cat."""

    name: ClassVar[str] = "moods"

    def edit(self, request: Request) -> Image.Image:
        if "cat" in request.prompt:
            raise FloatingPointError("one flat color")
        return super().edit(request)


def test_a_flat_image_is_rejected_and_a_run_that_begins_flat_stops(tmp_path: Path) -> None:
    sources = pictures(tmp_path, 6)
    moods = Moods(place=Place("cpu"))
    mixed = sources.assign(category=["cat", "cat", "dog", "cat", "cat", "cat"])
    task = distractor_task(mixed, moods, WORDS, resolution=32)
    assert run_jobs(task, tmp_path / "out").made == 1
    again = run_jobs(task, tmp_path / "out")
    assert (again.made, len(again.table), len(again.left_out)) == (0, 1, 5)  # they are not tried again
    assert "flat" in again.left_out[0][1]

    flat = distractor_task(sources.assign(category="cat"), moods, WORDS, resolution=32)
    with pytest.raises(RequestError, match="--dtype float32"):
        run_jobs(flat, tmp_path / "flat")


# Rows


def test_objects_are_relit_without_a_white_rim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A black object, shrunk: its edge gets no lighter than the gray that it stands on."""
    sources = pictures(tmp_path, 1, (600, 400))
    Image.new("RGB", (600, 400)).save(tmp_path / "0.png")
    seen = spied(monkeypatch)
    run_jobs(relight_task(sources, engine(), WORDS, copies=3), tmp_path / "out")
    assert len(seen) == 3
    for request in seen:
        assert request.image is not None
        assert request.size == (600, 400)  # enlarged once, by the engine
        pixels = np.asarray(request.image)
        assert pixels.max() <= 127 + 15  # Lanczos overshoots a little
        assert pixels.min() == 0
