"""Runs that are interrupted, repeated or dealt out anew, and odd values: nothing is lost, and nothing taken for new."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from idmetric.data.generate import (
    CleanBackground,
    Flat,
    GenerateError,
    Place,
    Request,
    distractor_task,
    identity_task,
    object_task,
    relight_task,
)
from idmetric.data.generate import run as module
from idmetric.data.generate.run import collect, run
from idmetric.data.manifest.table import merge, read
from tests.data.test_generate import (
    REPOSITORY,
    TASKS,
    WORDS,
    Discs,
    Paint,
    call,
    engine,
    pictures,
    quick,
    saved_pictures,
)

__all__ = ["quick"]  # a fixture


# Stopped and repeated runs


def test_images_that_are_missing_at_the_end_are_an_error(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = saved_pictures(tmp_path), tmp_path / "out.parquet"
    collected = module.collect

    def loses(*args: Any) -> Any:
        next(iter(sorted((tmp_path / "out_images").rglob("*[0-9a-f].png")))).unlink()
        return collected(*args)

    monkeypatch.setattr(module, "collect", loses)
    with pytest.raises(GenerateError, match="1 of 6 images are not finished"):
        call(source, "--task", "distractor", "-o", out)
    assert not out.exists()
    assert call(source, "--task", "distractor", "-o", out, "--on-error", "skip") == 4
    assert "1 of 6 images are not finished" in capsys.readouterr().err
    assert len(read(out)) == 5


HOLDER = """
import sys
from pathlib import Path
from idmetric.io.lock import locked
with locked(Path(sys.argv[1], ".shard-1-of-1.lock"), ValueError()):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_runs_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    task = TASKS["distractor"](pictures(tmp_path), engine(), WORDS)
    (tmp_path / "out").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "out")], cwd=REPOSITORY, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(GenerateError, match=r"another run is using .*out: wait for it to end, or share .* --shard"):
            run(task, tmp_path / "out")
        assert run(task, tmp_path / "out", shard=(1, 2)).made == 3  # another worker may
        holder.kill()  # a lock ends with its process
    assert run(task, tmp_path / "out").made == 3


# Flat images


class Moods(Paint):
    """Paints, but not for prompts that name a cat."""

    name: ClassVar[str] = "moods"

    def edit(self, request: Request) -> Image.Image:
        if "cat" in request.prompt:
            raise Flat("moods made one flat color")
        return super().edit(request)


def moods(tmp_path: Path, *categories: str) -> Any:
    sources = pictures(tmp_path, len(categories)).replace(category=list(categories))
    return distractor_task(sources, Moods(Place("cpu")), WORDS, side=32)


def test_a_flat_image_is_rejected_and_the_run_goes_on(tmp_path: Path) -> None:
    task = moods(tmp_path, "cat", "cat", "dog", "cat", "cat", "cat")
    outcome = run(task, tmp_path / "out")
    assert (outcome.made, len(outcome.rejected)) == (1, 5)
    assert "flat" in outcome.rejected[0][1]
    assert run(task, tmp_path / "out").kept == 6  # they are not tried again
    found = collect(task, tmp_path / "out")
    assert (len(found.manifest), len(found.rejected), found.missing) == (1, 5, ())


def test_a_run_that_begins_flat_stops(tmp_path: Path) -> None:
    task = moods(tmp_path, "cat", "cat", "cat", "dog")
    with pytest.raises(GenerateError, match=r"the first 3 images are all flat, .* --dtype float32"):
        run(task, tmp_path / "out")
    few = moods(tmp_path, "cat", "cat")
    assert len(run(few, tmp_path / "few").rejected) == 2
    assert run(few, tmp_path / "few").kept == 2


# Rows


def test_objects_of_other_runs_are_other_identities(tmp_path: Path) -> None:
    found = []
    for name, seed, tint in (("a", 0, 0), ("b", 1, 0), ("c", 0, 1)):
        task = object_task(["mug"], 2, Discs(Place("cpu"), tint=tint), CleanBackground(), WORDS, seed=seed)
        run(task, tmp_path / name)
        found.append(collect(task, tmp_path / name).manifest)
    assert len(set(merge(found).column("identity"))) == 6
    again = object_task(["mug", "clock"], 3, Discs(Place("cpu")), CleanBackground(), WORDS)
    assert set(found[0].column("identity")) < {job.row["identity"] for job in again.jobs}


def test_backgrounds_are_told_apart(tmp_path: Path) -> None:
    """What is repainted in place keeps its background, what gets another one has one of its own."""
    sources = pictures(tmp_path, background="room")
    for name, task in TASKS.items():
        jobs = task(sources, engine(), WORDS, copies=2).jobs
        backgrounds = [job.row["background"] for job in jobs]
        if name in ("identity", "distractor"):
            assert set(backgrounds) == {"room"}
        else:
            assert backgrounds == [job.name for job in jobs]


def test_identity_edits_ask_for_the_papers_guidance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []
    original = Paint.edit
    monkeypatch.setattr(Paint, "edit", lambda self, request: (seen.append(request), original(self, request))[1])
    options: list[tuple[dict[str, Any], float]] = [({}, 2.5), ({"guidance": 4}, 4.0)]
    for given, wanted in options:
        task = identity_task(pictures(tmp_path, 1), engine(guidance=30.0), WORDS, **given)
        assert task.jobs[0].settings["guidance"] == wanted
        run(task, tmp_path / f"out{wanted}")
        assert seen[-1].guidance == wanted


def test_objects_are_relit_without_a_white_rim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A black object, shrunk: its edge gets no lighter than the gray that it stands on."""
    sources = pictures(tmp_path, 1, (600, 400))
    Image.new("RGB", (600, 400)).save(tmp_path / "0.png")
    seen: list[Request] = []
    original = Paint.edit
    monkeypatch.setattr(Paint, "edit", lambda self, request: (seen.append(request), original(self, request))[1])
    run(relight_task(sources, engine(), WORDS, variants=3), tmp_path / "out")
    assert len(seen) == 3
    for request in seen:
        assert request.image is not None
        assert request.size == (600, 400)  # enlarged once, by the engine
        pixels = np.asarray(request.image)
        assert pixels.max() <= 127 + 15  # Lanczos overshoots a little
        assert pixels.min() == 0


# Values


def test_options_without_a_use_are_refused(quick: None, tmp_path: Path) -> None:
    source = saved_pictures(tmp_path)
    (tmp_path / "objects.txt").write_text("mug\n")
    drawn = ("--task", "ilgen", "--categories", tmp_path / "objects.txt")
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((source, "--task", "context", "--resolution", 512), "--resolution is used for --task distractor alone"),
        ((source, "--task", "identity", "--side", 512), "--side is used for --task distractor alone"),
        ((source, "--task", "context", "--categories", "x"), "--categories is used for --task ilgen alone"),
        ((source, "--task", "ilgen", "--each", 2), "--each is used with --categories alone"),
        ((source, "--task", "ilgen", "--remover", "clean"), "--remover is used with --categories alone"),
        ((*drawn, "--ask-model", "m"), "--ask-model is used with --ask alone"),
        ((*drawn, "--class-from", "text"), "--class-from is used with a manifest alone"),
        ((*drawn, "--set", "clipseg.most=0.5"), "clipseg is not used here, only clean, iclight, sd_turbo"),
        ((source, "--task", "distractor", "--set", "flux_fill.steps=3"), "not used here, only sdxl_inpaint"),
        ((source, "--task", "distractor", "--weights", "iclight=a/b"), "not used here, only sdxl_inpaint"),
        ((source, "--task", "identity", "--set", "flux_fill.strength=0.6"), "flux_fill.strength has no use here"),
        ((source, "--task", "distractor", "--resolution", "99999999"), "number of pixels from 16 to 4096"),
        ((source, "--task", "distractor", "--resolution", 0), "number of pixels from 16 to 4096"),
    ]
    for words, message in wrong:
        with pytest.raises(GenerateError, match=message):
            call(*words, "-o", tmp_path / "out.parquet")
    assert call(*drawn, "--set", "clean.tolerance=20", "--each", 1, "-o", tmp_path / "out.parquet") == 0
    made = [json.loads(path.read_text())["row"]["parameters"] for path in (tmp_path / "out_images").rglob("*.json")]
    assert {p["remover.tolerance"] for p in made if p["task"] == "object"} == {20.0}
