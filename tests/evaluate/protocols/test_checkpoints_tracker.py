"""The tracker of checkpoints: its numbers are the command's, and it leaves the training alone."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from idmetric import IDSim, ImageReadError
from idmetric.data.manifest.errors import ManifestError
from idmetric.evaluate.protocols.checkpoints.reading import read
from idmetric.evaluate.protocols.checkpoints.tracker import Tracker
from idmetric.evaluate.protocols.checkpoints_steps import CheckpointsOptions, run
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.common.tables import table
from idmetric.metric.errors import RequestError
from idmetric.stream.subjects import embed_subject
from tests.evaluate.protocols.parts import PLAIN, picture, values

PROMPTS, CLASS = ("sks dog runs", "sks dog sits"), "a dog"
WORDS = [p for p in (*PROMPTS, CLASS) for _ in range(2)]
STEPS = (0, 50, 100)
QUICK = CheckpointsOptions(copies=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for s, step in enumerate(STEPS):
        for k, prompt in enumerate(WORDS):
            picture(tmp_path / "out" / str(step) / f"{prompt}_{k % 2}.png", s, k)
    for k in range(2):
        picture(tmp_path / "refs" / f"{k}.png", 2, 50 + k)
    picture(tmp_path / "train" / "0.png", 2, 60)
    return tmp_path


def samples(folder: Path, step: int) -> list[Image.Image]:
    names = [f"{prompt}_{k % 2}.png" for k, prompt in enumerate(WORDS)]
    return [Image.open(folder / "out" / str(step) / name) for name in names]


def tensors(folder: Path, step: int) -> torch.Tensor:
    arrays = [np.asarray(image) for image in samples(folder, step)]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def photos(folder: Path) -> tuple[str, str]:
    return str(folder / "refs"), str(folder / "train")


def test_numbers_are_the_commands_for_pictures_and_tensors(folder: Path, metric: IDSim) -> None:
    options, settings = CheckpointsOptions(drift_prompt=(CLASS,), held_out=True), EvalSettings(bootstrap=50)
    data = read(
        folder / "out", "{step}/{prompt}_{seed}.png", references=str(folder / "refs"), training=str(folder / "train")
    )
    [expected] = run(data, {"m": metric}, settings, options)

    logged: list[tuple[int, dict[str, float]]] = []
    tracker = Tracker(
        metric, *photos(folder), options=options, settings=settings,
        writer=lambda numbers, step: logged.append((step, numbers)),
    )  # fmt: skip
    for step in STEPS:
        images = tensors(folder, step) if step == 50 else samples(folder, step)
        found = tracker.update(step, images, WORDS)
        row = values(expected, step=str(step))
        assert found == {name: pytest.approx(value.value, abs=1e-6) for name, value in row.items()}
        assert "drift" in found or step == 0
        assert logged[-1] == (step, {f"identity/{name}": value for name, value in found.items()})
        ends = [(v.low, v.high) for v in tracker.rows[step].values()]  # type: ignore[union-attr]
        assert ends == [(pytest.approx(v.low, abs=1e-6), pytest.approx(v.high, abs=1e-6)) for v in row.values()]
    assert tracker.best().reason == expected.notes[0]
    own = tracker.result()
    assert own.notes == expected.notes[:1]
    assert [(row["step"], row["best"]) for row in own.rows] == [(row["step"], row["best"]) for row in expected.rows]
    assert len(table([own]).splitlines()) == 1 + len(STEPS) + 2


def test_references_are_embedded_once(folder: Path, metric: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    embed = type(metric).embed_prepared
    monkeypatch.setattr(
        type(metric), "embed_prepared", lambda self, batch, *more: seen.append(len(batch)) or embed(self, batch, *more)
    )
    tracker = Tracker(metric, *photos(folder), options=QUICK, settings=PLAIN)
    assert sum(seen) == 3
    for step in STEPS:
        seen.clear()
        tracker.update(step, samples(folder, step), WORDS)
        assert sum(seen) == len(WORDS)


@pytest.mark.parametrize("distance", ["cls", "patch"])
def test_a_subject_stands_for_its_photos(folder: Path, metric: IDSim, distance: str) -> None:
    settings = EvalSettings(bootstrap=0, distance=distance, store=folder / "store")
    references, training = photos(folder)
    subject = embed_subject(metric, references, name="dog", distance=distance)
    subject.save(folder / "dog.subject")
    turned = replace(subject, embedding=subject.embedding[[1, 1]])  # with the same thumbnails
    expected = Tracker(metric, references, training, settings=settings).update(50, samples(folder, 50), WORDS)
    for source in (turned, subject, folder / "dog.subject"):
        numbers = Tracker(metric, source, training, settings=settings).update(50, samples(folder, 50), WORDS)
        equal = numbers == {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()}
        assert equal == (source is not turned)
    foreign = replace(subject, embedding=replace(subject.embedding, model="another"))
    with pytest.raises(RequestError, match="made by another"):
        Tracker(metric, foreign, settings=settings)


def test_the_training_keeps_its_state(folder: Path, metric: IDSim) -> None:
    unet = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    unet[1].eval()
    alone = Tracker(metric, *photos(folder), options=QUICK, settings=PLAIN).update(50, samples(folder, 50), WORDS)

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    modes = [module.training for module in [*unet.modules(), *metric.modules()]]
    frozen = [p.requires_grad for p in metric.parameters()]
    for grad in (True, False):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.bfloat16):
            tracker = Tracker(metric, *photos(folder), options=QUICK, settings=PLAIN)
            assert tracker.update(50, samples(folder, 50), WORDS) == alone  # not in bfloat16
            assert torch.is_grad_enabled() is grad
            assert torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    for now, then in zip(np.random.get_state(), before[2], strict=True):  # noqa: NPY002
        assert np.array_equal(now, then)
    assert [module.training for module in [*unet.modules(), *metric.modules()]] == modes
    assert [p.requires_grad for p in metric.parameters()] == frozen


def test_writers_of_each_kind_get_the_numbers(folder: Path, metric: IDSim) -> None:
    got: list[Any] = []
    board = SimpleNamespace(add_scalar=lambda name, value, step: got.append((name, value, step)))
    wandb = SimpleNamespace(log=lambda numbers, step: got.append((numbers, step)))
    for writer in (board, wandb, None):
        tracker = Tracker(metric, *photos(folder), writer=writer, prefix="dog", options=QUICK, settings=PLAIN)
        found = tracker.update(50, samples(folder, 50), WORDS)
        named = {f"dog/{name}": value for name, value in found.items()}
        assert got == {id(board): [(*item, 50) for item in named.items()], id(wandb): [(named, 50)]}.get(id(writer), [])
        got.clear()
    with pytest.raises(TypeError, match="cannot log to a str"):
        Tracker(metric, *photos(folder), writer="logs/")


def test_images_of_drift_prompts_alone_may_come_first(folder: Path, metric: IDSim) -> None:
    tracker = Tracker(metric, *photos(folder), options=CheckpointsOptions(drift_prompt=(CLASS,)), settings=PLAIN)
    assert tracker.best().step is None
    assert tracker.update(0, samples(folder, 0)[4:], CLASS) == {}
    assert tracker.best().reason == "no best step: there is no checkpoint"
    assert "drift" in tracker.update(50, samples(folder, 50), WORDS)
    assert tracker.best().step == 50


def test_what_does_not_fit_is_refused(folder: Path, metric: IDSim, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no references"):
        Tracker(metric, [])
    with pytest.raises(ManifestError, match=r"none\.png"):
        Tracker(metric, [str(tmp_path / "none.png")])
    with pytest.raises(TypeError, match="got Linear"):
        Tracker(nn.Linear(1, 1), str(folder / "refs"))  # type: ignore[arg-type]
    tracker = Tracker(metric, str(folder / "refs"), options=QUICK, settings=PLAIN)
    with pytest.raises(ValueError, match="a step is 0 or more, got -1"):
        tracker.update(-1, samples(folder, 50), WORDS)
    with pytest.raises(TypeError, match="float"):
        tracker.update(0.5, samples(folder, 50), WORDS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="6 images and 2 prompts"):
        tracker.update(1, samples(folder, 50), WORDS[:2])
    with pytest.raises(ImageReadError, match="NaN"):
        tracker.update(1, torch.full((1, 3, 8, 8), torch.nan), "x")


def test_references_seen_in_training_are_warned_of_once(folder: Path, metric: IDSim) -> None:
    tracker = Tracker(metric, str(folder / "refs"), str(folder / "refs"), options=QUICK, settings=PLAIN)
    with pytest.warns(UserWarning, match="generators were trained on 2 of 2 references") as caught:
        tracker.update(50, samples(folder, 50), WORDS)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker.update(100, samples(folder, 100), WORDS)
