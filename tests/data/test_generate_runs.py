"""Runs that are interrupted, repeated or dealt out anew, and odd values: nothing is lost, and nothing taken for new."""

from __future__ import annotations

import json
import os
import re
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
    contextual_task,
    distractor_task,
    identity_task,
    object_task,
    relight_task,
)
from idmetric.data.generate import run as module
from idmetric.data.generate.journal import Journals, open_journal
from idmetric.data.generate.run import collect, finished, run
from idmetric.data.manifest.table import merge, read
from tests.data.test_generate import (
    REPOSITORY,
    TASKS,
    WORDS,
    Discs,
    Paint,
    bytes_of,
    call,
    engine,
    pictures,
    quick,
    saved_pictures,
    table_of,
)

__all__ = ["quick"]  # a fixture


# Journals


def test_sources_that_changed_before_a_new_sharding_are_made_once(tmp_path: Path) -> None:
    """The old workers' journals tell of other sources, and sort after the new one."""
    task = TASKS["distractor"](pictures(tmp_path), engine(), WORDS)
    for i in (1, 2):
        run(task, tmp_path / "out", shard=(i, 2))
    for i in range(6):
        Image.effect_noise((56, 40), 80).convert("RGB").save(tmp_path / f"{i}.png")
    assert run(task, tmp_path / "out").made == 6
    assert run(task, tmp_path / "out").made == 0
    assert not collect(task, tmp_path / "out").missing
    run(task, tmp_path / "anew")
    assert table_of(task, tmp_path / "out") == table_of(task, tmp_path / "anew")


def test_images_remade_otherwise_before_a_new_sharding_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another version of a library: equal names, other pixels."""
    task = TASKS["distractor"](pictures(tmp_path), engine(), WORDS)
    for i in (1, 2):
        run(task, tmp_path / "out", shard=(i, 2))
    for path in (tmp_path / "out").rglob("*.png"):
        path.unlink()
    original = Paint.edit
    monkeypatch.setattr(Paint, "edit", lambda s, r: original(s, r).transpose(Image.Transpose.FLIP_TOP_BOTTOM))
    assert run(task, tmp_path / "out").made == 6
    assert run(task, tmp_path / "out").made == 0
    assert len(collect(task, tmp_path / "out").manifest) == 6


def test_an_image_comes_before_an_older_rejection(tmp_path: Path) -> None:
    task = object_task(["mug"], 1, Discs(Place("cpu")), CleanBackground(), WORDS)
    run(task, tmp_path)
    name = task.jobs[0].name
    with open_journal(tmp_path, (9, 9)) as journal:
        module.add(journal, {"name": name, "rejected": "flat", "source": None})
    assert len(collect(task, tmp_path).manifest) == 1
    (tmp_path / f"{name}.png").unlink()
    assert collect(task, tmp_path).rejected == ((name, "flat"),)


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


def test_journals_hold_names_and_places_alone(tmp_path: Path) -> None:
    line = {"rejected": "no", "more": "x" * 10_000}
    with (tmp_path / "journal-1-of-1.jsonl").open("w") as file:
        for number in range(300):
            file.write(json.dumps({"name": f"n{number % 200}", "turn": number, **line}) + "\n")
        file.write('null\n[1]\n{"name": 3}\n{"name": "cut')
    with Journals(tmp_path) as journals:
        assert len(journals) == 200
        assert [entry["turn"] for entry in journals.entries("n7")] == [207, 7]  # the last one first
        assert [entry["turn"] for entry in journals.entries("n150")] == [150]
        assert list(journals.entries("other")) == []
        assert len(repr(vars(journals))) < 200 * 100


def test_files_are_compared_by_size_and_time_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["distractor"](pictures(tmp_path), engine(), WORDS)
    run(task, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} was read"))
        assert len(finished(task, tmp_path / "out")) == 6
    copied = tmp_path / "out" / f"{task.jobs[0].name}.png"
    os.utime(copied, ns=(1, 1))  # as a copy may have it
    assert len(finished(task, tmp_path / "out")) == 6
    damage(copied)
    assert len(finished(task, tmp_path / "out")) == 5
    other = tmp_path / "out" / f"{task.jobs[1].name}.png"
    stat = other.stat()
    damage(other)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # neither size nor time tells
    assert len(finished(task, tmp_path / "out")) == 5
    assert len(finished(task, tmp_path / "out", verify=True)) == 4
    assert run(task, tmp_path / "out", verify=True).made == 2
    assert len(finished(task, tmp_path / "out", verify=True)) == 6


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)


HOLDER = """
import sys
from pathlib import Path
from idmetric.data.generate.journal import open_journal
with open_journal(Path(sys.argv[1]), (1, 1)):
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


def test_temporary_files_are_a_processes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(Path(a).name), replace(a, b))[1])
    run(TASKS["distractor"](pictures(tmp_path, 1), engine(), WORDS), tmp_path / "out")
    assert len(seen) == 2
    assert all(re.fullmatch(r"\..+\.[0-9a-f]{12}", name) for name in seen)  # hidden, and no other process has that name


# Flat images


class Moods(Paint):
    """Paints, but not for prompts that name a cat."""

    name: ClassVar[str] = "moods"

    def edit(self, request: Request) -> Image.Image:
        if "cat" in request.prompt:
            raise Flat("moods made one flat colour")
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
    assert not finished(task, tmp_path / "out")  # nothing is known of those yet
    few = moods(tmp_path, "cat", "cat")
    assert len(run(few, tmp_path / "few").rejected) == 2
    assert run(few, tmp_path / "few").kept == 2


def test_flat_images_of_the_command_are_listed(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Paint.edit

    def edit(self: Paint, request: Request) -> Image.Image:
        if "dog" in request.prompt:
            raise Flat("one flat colour")
        return original(self, request)

    monkeypatch.setattr(Paint, "edit", edit)
    assert call(saved_pictures(tmp_path), "--task", "distractor", "-o", tmp_path / "out.parquet") == 4
    assert capsys.readouterr().err.count("rejected: ") == 2
    assert len(read(tmp_path / "out.parquet")) == 4


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


def test_settings_of_engine_and_remover_do_not_mix(tmp_path: Path) -> None:
    class Tinted(CleanBackground):
        """One with a setting and weights that are named as the engine's."""

        @property
        def settings(self) -> dict[str, Any]:
            return {"remover": "tinted", "tint": 9}

        @property
        def licences(self) -> dict[str, str]:
            return {"some/where": "some-licence"}

        @property
        def versions(self) -> dict[str, str]:
            return {"base": "abc"}

    task = object_task(["mug"], 1, Discs(Place("cpu"), tint=3), Tinted(), WORDS)
    run(task, tmp_path)
    parameters = collect(task, tmp_path).manifest[0].parameters
    assert parameters is not None
    assert (parameters["tint"], parameters["remover.tint"], parameters["remover"]) == (3, 9, "tinted")
    assert parameters["licences"] == {"some/where": "some-licence"}
    assert parameters["versions"] == {"remover.base": "abc"}


def test_licences_of_removers_are_printed(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "objects.txt").write_text("mug\n")
    words = ("--task", "ilgen", "--categories", tmp_path / "objects.txt", "--dry-run", "-o", tmp_path / "out.csv")
    assert call(*words, "--remover", "clipseg") == 0
    assert "background: weights CIDAS/clipseg-rd64-refined, licence apache-2.0" in capsys.readouterr().err


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
    """A black object, shrunk: its edge gets no lighter than the grey that it stands on."""
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


@pytest.mark.parametrize("task", [contextual_task, distractor_task, identity_task])
def test_seeds_that_a_manifest_cannot_hold_are_refused_at_once(task: Any, tmp_path: Path) -> None:
    sources = pictures(tmp_path, 2)
    for seed, copies in ((-1, 1), (2**63 - 2, 1), (0, 2**31)):
        with pytest.raises(GenerateError, match="take a smaller seed"):
            task(sources, engine(), WORDS, seed=seed, copies=copies)
    largest = task(sources, engine(), WORDS, seed=2**63 - 3 - (1 << 32))
    run(largest, tmp_path / "out")
    assert max(collect(largest, tmp_path / "out").manifest.column("seed")) == 2**63 - 2 - (1 << 32)


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
    lines = (tmp_path / "out_images" / "journal-1-of-1.jsonl").read_text().splitlines()
    made = [json.loads(line)["row"]["parameters"] for line in lines]
    assert {p["remover.tolerance"] for p in made if p["task"] == "object"} == {20.0}


def test_equal_settings_give_equal_names(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved_pictures(tmp_path)
    for value in ("3", "3.0"):
        words = ("--task", "identity", "--set", f"flux_fill.guidance={value}", "-o", tmp_path / "out.parquet")
        assert call(source, *words) == 0
    assert "made 0 images, 6 were finished" in capsys.readouterr().out
    assert {(row.parameters or {})["guidance"] for row in read(tmp_path / "out.parquet")} == {3.0}
    assert len(bytes_of(tmp_path / "out_images")) == 18
