"""Jobs, resuming, sharding, and the command: with a quick engine, and with real pipelines of random weights."""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image, ImageDraw

from idmetric.cli.data import generate as command
from idmetric.data.generate.distractor import distractor_task, working_size
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.engines import ENGINES
from idmetric.data.generate.idsim import contextual_task, identity_task, noise_task, noised
from idmetric.data.generate.ilgen import object_task, relight_task
from idmetric.data.generate.jobs import GenerateTask, frame_seed, run_jobs
from idmetric.data.generate.masks import CleanBackground
from idmetric.data.generate.weights import Place, Rejection
from idmetric.data.generate.wording import read_wording
from idmetric.data.old_manifest.split import leaks, split
from idmetric.data.old_manifest.table import Manifest, Row, read
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError

WORDS = read_wording()


@dataclass(frozen=True)
class Paint(Engine):
    """Paints noise that depends on the whole request; logs each start to a file."""

    tint: int = 0
    guidance: float = 1.0
    log: str = ""

    name: ClassVar[str] = "paint"
    native: ClassVar[int] = 64
    multiple: ClassVar[int] = 8

    @property
    def settings(self) -> dict[str, Any]:
        return {"tint": self.tint, "guidance": self.guidance}

    def load(self) -> None:
        pass

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


def pictures(folder: Path, count: int = 6, size: tuple[int, int] = (56, 40), **columns: Any) -> Manifest:
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
        rows.append(Row(f"thing{i // 2}", f"{i}.png", mask=f"{i}_mask.png", **values))
    return Manifest.from_rows(rows, folder)


def engine(**settings: Any) -> Paint:
    return Paint(Place("cpu", "float32"), **settings)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.png"))}


def made_by(task: GenerateTask, folder: Path) -> Manifest:
    return run_jobs(task, folder).manifest


def table_of(task: GenerateTask, folder: Path) -> list[Any]:
    found = made_by(task, folder)
    assert len(found) == len(task.jobs)
    return list(found.table.to_pylist())


def spied(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests of quick engines from here on."""
    seen: list[Request] = []
    original = Paint.edit
    monkeypatch.setattr(Paint, "edit", lambda self, request: (seen.append(request), original(self, request))[1])
    return seen


TASKS = {
    "context": contextual_task,
    "identity": identity_task,
    "distractor": lambda *a, **k: distractor_task(*a, side=32, **k),
    "relight": lambda *a, copies=1, **k: relight_task(*a, copies=copies, **k),
}


# Tasks


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_gives_images_masks_and_their_history(name: str, tmp_path: Path) -> None:
    sources = pictures(tmp_path, background="room")
    task = TASKS[name](sources, engine(), WORDS, seed=5, copies=2)
    made = made_by(task, tmp_path / "out")
    assert len(made) == len(set(made.column("path"))) == 12
    own = name in ("identity", "distractor")
    identities = made.column("identity")
    assert len(set(identities)) == (12 if own else 3)
    for i, row in enumerate(made):
        parent = sources[i // 2]
        assert (row.parent, row.dataset, row.category) == (parent.id, "d", parent.category)
        assert (row.identity == parent.identity) == (not own)
        assert row.background == ("room" if own else row.id)  # what is repainted in place keeps its background
        role = {"context": "context-edit", "relight": "context-edit", "identity": "identity-edit"}.get(name, name)
        assert (row.role, row.engine) == (role, "paint")
        assert row.text
        assert row.parameters is not None
        assert row.parameters["task"] == name
        image, mask = made.image(i), made.mask(i)
        assert mask is not None
        assert mask.shape == (image.height, image.width)
        assert set(mask.unique().tolist()) == {0, 1}
    assert not leaks(split(made, {"a": 0.5, "b": 0.5}))


@pytest.mark.parametrize("name", ["identity", "distractor"])
def test_pixels_outside_the_mask_are_unchanged(name: str, tmp_path: Path) -> None:
    sources = pictures(tmp_path, size=(57, 43))
    task = TASKS[name](sources, engine(), WORDS)
    made = made_by(task, tmp_path / "out")
    for i in range(len(made)):
        before, after = np.asarray(sources.image(i)), np.asarray(made.image(i))
        column = "part_mask" if name == "identity" else "mask"
        repainted = made.mask(i, column=column)
        mask = sources.mask(i)
        assert repainted is not None
        assert mask is not None
        inside = repainted.numpy() > 0
        assert (before[~inside] == after[~inside]).all()
        assert (before[inside] != after[inside]).any(1).mean() > 0.9
        if name == "distractor":
            assert (inside == (mask.numpy() >= 0.5)).all()
        else:  # ID-Sim, A.2.2: 40-60 % of the foreground is taken out of the mask
            oracle = 1 - inside.sum() / (mask.numpy() >= 0.5).sum()  # NearID, 3.4
            assert made[i].oracle == pytest.approx(oracle)
            assert 0.4 <= 1 - inside.sum() / (mask.numpy() >= 0.5).sum() <= 0.6
            assert not (inside & (mask.numpy() < 0.5)).any()


def test_identity_edits_draw_by_the_frames_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, seen = pictures(tmp_path, 40), spied(monkeypatch)
    task = identity_task(sources, engine(), WORDS, seed=100)
    made = made_by(task, tmp_path / "out")
    assert made.column("seed") == list(range(100, 140))  # "seed + row_id"
    assert set(made.column("text")) == {"Photo of a mug", "Photo of a dog"}
    found = [row.parameters or {} for row in made]
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
    sources = pictures(tmp_path, 2)
    many = Manifest.from_rows(
        [Row(f"thing{i % 3}", "0.png", id=str(i), mask="0_mask.png", category="mug") for i in range(60)], tmp_path
    )
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
    assert len(sources) == 2


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
        distractor_task(sources, engine(), WORDS, side=64),
        distractor_task(sources.replace(category="cup"), engine(), WORDS),
        distractor_task(sources.replace(id=["x", "y"]), engine(), WORDS),
    ]
    assert len({base, *(task.jobs[0].name for task in others)}) == 6
    moved = sources.at(tmp_path.parent).replace(id=sources.column("id"))
    assert distractor_task(moved, engine(), WORDS).jobs[0].name == base


def test_missing_masks_and_classes_are_listed(tmp_path: Path) -> None:
    sources = pictures(tmp_path, 4)
    bare = sources.replace(mask=["0_mask.png", None, "2_mask.png", None])
    for task in TASKS.values():
        with pytest.raises(RequestError, match=r"column 'mask' is empty in 2 rows: row 2 \(1.png\), row 4 \(3.png\)"):
            task(bare, engine(), WORDS)
    for name in ("identity", "distractor", "relight"):
        with pytest.raises(RequestError, match="column 'category' is empty in 4 rows"):
            TASKS[name](sources.replace(category=None), engine(), WORDS)
    assert len(contextual_task(sources.replace(category=None), engine(), WORDS).jobs) == 4
    worded = replace(WORDS, templates={"context": "a {class}: {background}, {lighting}"})
    with pytest.raises(RequestError, match="column 'category' is empty"):
        contextual_task(sources.replace(category=None), engine(), worded)


# Doing jobs


def test_finished_images_are_kept_and_missing_ones_made_anew(tmp_path: Path) -> None:
    task = TASKS["distractor"](pictures(tmp_path), engine(log=str(tmp_path / "log")), WORDS)
    run_jobs(task, tmp_path / "out")
    first = bytes_of(tmp_path / "out")
    rows = table_of(task, tmp_path / "out")
    assert run_jobs(task, tmp_path / "out").made == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 6
    names = sorted(first)
    (tmp_path / "out" / names[1]).unlink()
    note = next((tmp_path / "out").rglob(f"{names[-1].split('.')[0]}.json".split("/")[-1]))
    note.write_text(note.read_text()[:-20])
    outcome = run_jobs(task, tmp_path / "out")
    assert outcome.made == len({names[1].split(".")[0], names[-1].split(".")[0]})
    assert bytes_of(tmp_path / "out") == first
    assert table_of(task, tmp_path / "out") == rows


def broken(tmp_path: Path) -> Manifest:
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
    task = distractor_task(sources, engine(), WORDS, side=16, copies=2)
    with pytest.raises(RequestError, match="6 sources cannot be used; fix them, or leave them out") as error:
        run_jobs(task, tmp_path / "twice")
    assert all(f"row {k + 1} ({k}.png)" in str(error.value) for k in range(1, 7))
    assert len(bytes_of(tmp_path / "twice")) == 2 * 2 * 2  # all others are made
    task = distractor_task(sources, engine(), WORDS, side=16)
    outcome = run_jobs(task, tmp_path / "out", on_error="skip")
    assert [name for name, _ in outcome.left_out] == [f"row {i + 1} ({i}.png)" for i in range(1, 7)]
    assert "so thin" in outcome.left_out[-1][1]
    assert outcome.manifest.column("parent") == ["0.png", "7.png"]
    good = pictures(tmp_path, 8)  # mended
    outcome = run_jobs(distractor_task(good, engine(), WORDS, side=16), tmp_path / "out")
    assert (outcome.made, len(outcome.manifest)) == (6, 8)


# ILGen


def test_objects_of_categories(tmp_path: Path) -> None:
    turbo = Discs(Place("cpu", "float32"))
    task = object_task(["mug", "fog", "clock"], 3, turbo, CleanBackground(), WORDS, seed=1)
    assert task.jobs[0].prompt == "a mug in a clean background"
    found = run_jobs(task, tmp_path)
    assert (found.made, len(found.manifest), len(found.left_out)) == (6, 6, 3)
    assert all("not clean" in why for _, why in found.left_out)
    assert found.manifest.column("category") == ["mug"] * 3 + ["clock"] * 3
    assert len(set(found.manifest.column("identity"))) == 6
    again = run_jobs(task, tmp_path)
    assert (again.made, again.left_out) == (0, found.left_out)  # what was rejected is not tried anew
    longer = object_task(["sofa", "mug"], 4, turbo, CleanBackground(), WORDS, seed=1)
    kept = {job.name for job in longer.jobs} & {job.name for job in task.jobs}
    assert len(kept) == 3  # the mugs
    for other in (
        object_task(["mug"], 1, turbo, CleanBackground(tolerance=20), WORDS, seed=1),
        object_task(["mug"], 1, turbo, CleanBackground(), WORDS, seed=2),
        object_task(["mug"], 1, replace(turbo, tint=1), CleanBackground(), WORDS, seed=1),
    ):  # other runs make other identities
        assert other.jobs[0].row["identity"] != task.jobs[0].row["identity"]


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
    pictures(folder, **more).write(folder / "photos.csv")
    return folder / "photos.csv"


@pytest.mark.parametrize("task", ["context", "identity", "distractor", "ilgen"])
def test_every_task_from_the_shell(quick: None, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = saved_pictures(tmp_path), tmp_path / "made" / "out.parquet"
    count = 24 if task == "ilgen" else 6
    assert call(source, "--task", task, "-o", out) == 0
    made = read(out)
    assert len(made) == count
    assert made.image(0).size
    assert made.column("path")[0].startswith("out_images/paint/")
    assert call(source, "--task", task, "-o", out, "--with-sources") == 0
    whole = read(out)
    assert len(whole) == count + 6
    assert whole.image(0).size == (56, 40)
    assert f"made 0 images, {count} are finished" in capsys.readouterr().out


def test_shards_together_are_one_run(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved_pictures(tmp_path)
    (tmp_path / "objects.txt").write_text("mug\nfog\nclock\n")
    tasks: dict[str, tuple[Any, ...]] = {
        "distractor": (source, "--task", "distractor", "--engine", "flux_fill"),
        "ilgen": ("--task", "ilgen", "--categories", tmp_path / "objects.txt", "--each", 2),
        "grid": (source, "--task", "grid"),
    }
    for name, words in tasks.items():
        whole, out = tmp_path / "whole" / f"{name}.parquet", tmp_path / "shards" / f"{name}.parquet"
        status = 4 if name == "ilgen" else 0  # fog is rejected
        assert call(*words, "-o", whole) == status
        for shard in ("2/2", "1/2"):
            assert call(*words, "-o", out, "--shard", shard) in (0, 4)
            assert not out.exists()
        assert call(*words, "-o", out) == status
        assert read(out).table.equals(read(whole).table)
        assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "shards")
    with pytest.raises(SystemExit):
        call(*words, "-o", out, "--shard", "3/2")
    assert "'3/2' is not I/N" in capsys.readouterr().err


def test_objects_with_masks_of_another_program(quick: None, tmp_path: Path) -> None:
    """The step of RMBG by any program: objects, `idmetric data masks --from`, then relighting."""
    from idmetric.cli import data as cli

    (tmp_path / "objects.txt").write_text("mug\nfog\n")
    common = ("--task", "ilgen", "--categories", tmp_path / "objects.txt", "--each", 2, "--remover", "none")
    assert call(*common, "-o", tmp_path / "bare.csv") == 0
    bare = read(tmp_path / "bare.csv")
    assert bare.column("category") == ["mug"] * 2 + ["fog"] * 2
    assert set(bare.column("mask")) == {None}
    assert set(bare.column("role")) == {"real"}
    for source in bare.sources():
        mask = Image.new("L", (64, 64))
        ImageDraw.Draw(mask).rectangle((10, 10, 40, 50), fill=255)
        path = tmp_path / "masks" / Path(str(source)).relative_to(tmp_path / "bare_images")
        path.parent.mkdir(parents=True, exist_ok=True)
        mask.save(path)

    words = ["masks", tmp_path / "bare.csv", "--from", tmp_path / "masks", "-o", tmp_path / "masked.csv"]
    assert cli.main([str(word) for word in words]) == 0
    assert call(tmp_path / "masked.csv", "--task", "ilgen", "-o", tmp_path / "train.parquet") == 0
    made = read(tmp_path / "train.parquet")
    assert len(made) == 16
    assert Counter(made.column("identity")) == dict.fromkeys(bare.column("identity"), 4)


def test_wrong_options_are_named(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved_pictures(tmp_path)
    (tmp_path / "objects.txt").write_text("mug\n")
    drawn = ("--task", "ilgen", "--categories", tmp_path / "objects.txt")
    wrong: list[tuple[tuple[Any, ...], str]] = [
        (("--task", "distractor"), "name the manifest of sources"),
        (("--task", "ilgen"), "or --categories"),
        ((source, *drawn), "exclude each other"),
        ((source, "--task", "identity", "--engine", "flux_canny"), "--engine is not used"),
        ((source, "--task", "context", "--resolution", "native"), "--resolution is not used"),
        ((source, "--task", "context", "--views"), "--views is not used"),
        ((source, "--task", "context", "--categories", "x"), "--categories is not used"),
        ((source, "--task", "noise", "--copies", 2), "--copies is not used"),
        ((source, "--task", "grid", "--with-sources"), "--with-sources is not used"),
        ((*drawn, "--ask-model", "m"), "--ask-model is not used"),
        ((*drawn, "--set", "iclite.steps=5"), "its models are sd_turbo, iclight, clean"),
        ((source, "--task", "distractor", "--weights", "iclight=a/b"), "its models are sdxl_inpaint"),
        ((source, "--task", "identity", "--set", "flux_fill.strength=0.6"), "flux_fill.strength is not used"),
        ((source, "--task", "distractor", "--weights", "sdxl_inpaint"), "expected NAME=VALUE"),
        ((source, "--task", "distractor", "--set", "steps=3"), "steps is not used"),
        ((source, "--task", "distractor", "--dataset", "other"), "no rows of dataset 'other'"),
    ]
    for words, message in wrong:
        with pytest.raises(ValueError, match=message):
            call(*words, "-o", tmp_path / "out.parquet")
    for text in ("big", "0"):
        with pytest.raises(SystemExit):
            call(source, "--task", "distractor", "--resolution", text, "-o", tmp_path / "out.parquet")
        assert "is not a whole number, at least 1" in capsys.readouterr().err


def edited_triplets(folder: Path, engine: str) -> Path:
    """Three triplets of photos: one negative by this engine, one by the renderer, and a real one."""
    photos, source = pictures(folder), folder / "triplets.csv"
    names = [engine, "renderer", None]
    rows = []
    for k, made_by in enumerate(names):
        for n, slot in enumerate(("anchor", "positive", "negative")):
            row = photos[(2 * k + n) % 6]
            negative = {"identity": f"other{k}", "engine": made_by, "role": "identity-edit" if made_by else "real"}
            about = {"id": f"{k}/{slot}", "group": f"g{k}", "slot": slot, **(negative if slot == "negative" else {})}
            rows.append(replace(row, **{"mask": None, "identity": f"thing{k}", **about}))
    Manifest.from_rows(rows, folder).write(source)
    return source


def test_noise_is_for_anchors_and_positives_of_negatives_by_that_engine(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = edited_triplets(tmp_path, Paint.name)
    out = tmp_path / "noised.parquet"
    assert call(source, "--task", "noise", "-o", out) == 0
    before, after = read(source), read(out)
    assert after.column("id") == before.column("id")
    assert after.column("group") == before.column("group")
    assert after.column("identity") == before.column("identity")
    changed = [k for k in range(9) if np.asarray(after.image(k)).tobytes() != np.asarray(before.image(k)).tobytes()]
    assert changed == [0, 1]
    assert [after.image(k).size for k in changed] == [(56, 40)] * 2
    assert after.column("x_noise") == ["paint", "paint", *[None] * 7]
    assert call(source, "--task", "noise", "-o", out) == 0
    assert "made 0 images, 2 are finished" in capsys.readouterr().out
    with pytest.raises(RequestError, match="no triplet has a negative edited by paint"):
        call(saved_pictures(tmp_path / "single"), "--task", "noise", "-o", tmp_path / "none.parquet")


def test_a_triplet_with_an_image_that_was_not_made_is_left_out(tmp_path: Path) -> None:
    triplets = read(edited_triplets(tmp_path, Paint.name))
    task = noise_task(triplets, engine(), WORDS)
    first, second = task.jobs
    made = made_by(task, tmp_path / "out")
    whole, gone = noised(triplets, made, task)
    assert (len(whole), gone) == (9, 0)
    rest, gone = noised(triplets, made.filter(id=first.name), task)
    assert second.source == 1
    assert gone == 1
    assert rest.column("group") == ["g1"] * 3 + ["g2"] * 3


# Flat images


class Moods(Paint):
    """Paints, but not for prompts that name a cat."""

    name: ClassVar[str] = "moods"

    def edit(self, request: Request) -> Image.Image | Rejection:
        if "cat" in request.prompt:
            return Rejection("moods made one flat color", is_flat=True)
        return super().edit(request)


def moods(tmp_path: Path, *categories: str) -> Any:
    sources = pictures(tmp_path, len(categories)).replace(category=list(categories))
    return distractor_task(sources, Moods(Place("cpu")), WORDS, side=32)


def test_a_flat_image_is_rejected_and_the_run_goes_on(tmp_path: Path) -> None:
    task = moods(tmp_path, "cat", "cat", "dog", "cat", "cat", "cat")
    assert run_jobs(task, tmp_path / "out").made == 1
    found = run_jobs(task, tmp_path / "out")
    assert (found.made, len(found.manifest), len(found.left_out)) == (0, 1, 5)  # they are not tried again
    assert "flat" in found.left_out[0][1]


def test_a_run_that_begins_flat_stops(tmp_path: Path) -> None:
    task = moods(tmp_path, "cat", "cat", "cat", "dog")
    with pytest.raises(RequestError, match=r"the first 3 images are all flat, .* --dtype float32"):
        run_jobs(task, tmp_path / "out")


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
