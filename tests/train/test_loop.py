from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from idmetric import load
from idmetric.metric.files import BLANK, seal
from idmetric.train import run_folder, state
from idmetric.train.log import truncate
from idmetric.train.loop import TrainSettings, fit
from idmetric.train.processes import Processes
from idmetric.train.state import TrainError
from tests.fuzz.flips import spread_flips
from tests.train_parts import Config, PairRecipe, exchange, in_two_processes, killed_at, read_log, start

SETTINGS: dict[str, Any] = {"save_every": 4, "validate_every": 5, "log_every": 1, "workers": 0}


def train(
    out: Path, config: Config = Config(), precision: Any = "no", kind: type[PairRecipe] = PairRecipe, **settings: Any  # noqa: B008
) -> PairRecipe:  # fmt: skip
    processes = Processes(precision, cpu=True)
    recipe = kind(config, processes)
    fit(recipe, out, TrainSettings(**{**SETTINGS, **settings}), processes)
    return recipe


def weights(out: Path, step: int = 12) -> dict[str, Tensor]:
    return load_file(state.checkpoints(out)[step])


def record(out: Path) -> dict[str, Any]:
    with safe_open(state.checkpoints(out)[12], "pt") as file:
        return json.loads(file.metadata()["record"])


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[k].equal(b[k]) for k in a)


def interrupt(out: Path, precision: Any = "no", **settings: Any) -> None:
    with killed_at(6, PairRecipe):
        train(out, precision=precision, **settings)


# Processes that are really ended: started from a server that has loaded torch, and never trained


@pytest.fixture(scope="module")
def spawn() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train_parts"])
    return context


def steps_logged(out: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum('"loss"' in line for line in (out / "log.jsonl").read_text().splitlines())
    return 0


def log_lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def results(out: Path, *names: str) -> list[dict[str, Tensor]]:
    return [load_file(out / name / "model.safetensors") for name in names]


def until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(spawn: Any, tmp_path: Path) -> None:
    train(tmp_path / "whole", Config(steps=30), save_every=2)
    settings = {**SETTINGS, "save_every": 2, "workers": 1}
    rng = random.Random()
    killed = 0
    for first in (3, 14):  # after the first checkpoint, which is written once its step is logged
        process = spawn.Process(target=start, args=(tmp_path / "run", {"steps": 30, "pause": 0.02}, settings))
        process.start()
        aim = rng.randint(first, first + 10)
        until(lambda aim=aim: steps_logged(tmp_path / "run") >= aim)
        time.sleep(rng.uniform(0, 0.04))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert 0 < max(state.checkpoints(tmp_path / "run")) < 30
    assert killed == 2
    train(tmp_path / "run", Config(steps=30), save_every=2)
    assert same(weights(tmp_path / "run", 30), weights(tmp_path / "whole", 30))
    for result in (".", "best"):
        assert same(*results(tmp_path, f"run/{result}", f"whole/{result}"))
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("run", "whole")]
    assert [step for step, _ in logs[0]["loss"]] == list(range(1, 31))
    for name in ("loss", "temperature", "lr", "gradient_norm", "validation/accuracy"):
        assert logs[0][name] == logs[1][name]


def test_sigterm_saves_a_checkpoint_first(spawn: Any, tmp_path: Path) -> None:
    settings = {**SETTINGS, "workers": 2}
    process = spawn.Process(target=start, args=(tmp_path / "run", {"steps": 500, "pause": 0.02}, settings))
    process.start()
    until(lambda: steps_logged(tmp_path / "run") >= 2)
    os.killpg(process.pid, signal.SIGTERM)  # as schedulers do: its loading processes get it too
    process.join(30)
    assert process.exitcode == 3
    step = max(state.checkpoints(tmp_path / "run"))
    assert step == steps_logged(tmp_path / "run")
    assert f"stopped after step {step}" in (tmp_path / "run-0.txt").read_text()


def together(out: Path, config: dict[str, Any]) -> list[int]:
    return in_two_processes(start, out, config, SETTINGS)


# Adam would make steps of full length of the rounding noise in gradients that ought to be zero (of the keys' biases)
EQUAL: dict[str, Any] = {"dropout": 0.0, "noise": 0.0, "optimizer": "sgd"}


def test_two_processes_train_the_weights_of_one(tmp_path: Path) -> None:
    train(tmp_path / "one", Config(**EQUAL))
    assert together(tmp_path / "two", EQUAL) == [0, 0]
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    fresh = dict(PairRecipe(Config(**EQUAL), Processes(cpu=True)).model.named_parameters())
    moved = 0.0
    for name in one:
        assert (one[name].double() - two[name].double()).abs().max() < 1e-5, name
        if name.startswith("model/"):
            moved = max(moved, (one[name] - fresh[name.removeprefix("model/")]).abs().max().item())
    assert moved > 1e-2  # they have been trained
    losses = [dict(read_log(tmp_path / name / "log.jsonl")["loss"]) for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert json.loads((tmp_path / "two/recipe.json").read_text())["processes"] == 2
    assert (tmp_path / "two-1.txt").read_text() == ""  # only the main one speaks


def test_processes_stop_together_at_a_nan(tmp_path: Path) -> None:
    assert together(tmp_path / "run", {"poison": 2}) == [3, 3]
    for rank in range(2):
        assert "TrainError: step 3: the loss is nan" in (tmp_path / f"run-{rank}.txt").read_text()


def test_gather_and_averages_of_two_processes(tmp_path: Path) -> None:
    assert in_two_processes(exchange, tmp_path) == [0, 0]
    for rank in range(2):
        found = json.loads((tmp_path / f"exchange-{rank}.json").read_text())
        assert found["floats"] == [[0.0], [1.0], [10.0], [11.0]]
        # L = mean of squares over all four rows: dL/drow = 2 row / 4, and gather's backward pass sums over processes
        assert found["gradient"] == [[2 * 2 * value / 4] for value in (10 * rank, 10 * rank + 1)]
        assert found["averages"] == [1.0, 3.0, None]
        assert found["any"] == [True, False]
        assert found["failed"] == ("process 0 failed: ValueError: no" if rank else "no")
        assert found["copied"] == [0.0, 0.0]
        assert found["patience"] > 3600  # others wait while the main one reads all images


# One process


def test_weights_do_not_depend_on_the_number_of_loaders(tmp_path: Path) -> None:
    train(tmp_path / "a", Config(steps=6), workers=0)
    train(tmp_path / "b", Config(steps=6), workers=2)
    assert same(weights(tmp_path / "a", 6), weights(tmp_path / "b", 6))


def test_the_loop_alone_seeds_dropout(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):  # the recipe, its weights and its batches are the same
        train(tmp_path / name, Config(steps=3), seed=seed)
    train(tmp_path / "c", Config(steps=3, dropout=0.0, noise=0.0), seed=0)
    train(tmp_path / "d", Config(steps=3, dropout=0.0, noise=0.0), seed=1)
    assert not same(weights(tmp_path / "a", 3), weights(tmp_path / "b", 3))
    assert same(weights(tmp_path / "c", 3), weights(tmp_path / "d", 3))


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, precision: Any) -> None:
    train(tmp_path / "whole", precision=precision)
    interrupt(tmp_path / "run", precision)
    assert max(state.checkpoints(tmp_path / "run")) == 5  # the best one so far; that of step 8 isn't reached
    train(tmp_path / "run", precision=precision)
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    records = [record(tmp_path / name) for name in ("run", "whole")]
    assert records[0] == records[1]
    if precision == "fp16":
        scaler = records[0]["scaler"]
        assert 2.0**10 < scaler["scale"] < 2.0**16  # some steps overflowed, and were left out
        assert 0 < scaler["_growth_tracker"] < 12


def test_everything_that_trains_is_saved(tmp_path: Path) -> None:
    recipe = train(tmp_path / "run")
    saved = weights(tmp_path / "run")
    trained = {f"model/{n}" for n, p in recipe.model.named_parameters() if p.requires_grad}
    assert {n for n in saved if n.startswith(("model/", "loss/"))} == trained | {"loss/log", "loss/uses"}
    assert saved["loss/uses"].item() == 12
    assert {n.split("/")[2] for n in saved if n.startswith("optimizer/")} == {"step", "exp_avg", "exp_avg_sq"}
    fresh = PairRecipe(recipe.config, recipe.processes)
    optimizer = fresh.optimizer()
    state.load(state.checkpoints(tmp_path / "run")[12], fresh.modules(), optimizer, recipe.processes.scaler)
    for name, p in fresh.model.named_parameters():
        assert p.equal(dict(recipe.model.named_parameters())[name])
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(3e-4)


def test_the_optimizers_tensors_come_back_in_their_layout(tmp_path: Path) -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return module, torch.optim.AdamW(module.parameters())

    module, optimizer = made()
    module(torch.ones(1, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    scaler = Processes(cpu=True).scaler
    path = state.save(tmp_path, 1, {"model": module}, optimizer, scaler, {"best": None})
    other, found = made()
    state.load(path, {"model": other}, found, scaler)
    expected, loaded = (o.state[m.weight]["exp_avg"] for m, o in ((module, optimizer), (other, found)))
    assert loaded.equal(expected)
    assert loaded.stride() == expected.stride() != expected.contiguous().stride()


def test_the_result_opens_in_the_public_class(tmp_path: Path) -> None:
    recipe = train(tmp_path / "run")
    model = load(tmp_path / "run", device="cpu")
    pixels = torch.rand(2, 3, 16, 16)
    recipe.model.eval()
    assert model(pixels).cls.equal(recipe.model(pixels).cls)
    record = json.loads((tmp_path / "run/recipe.json").read_text())
    assert (record["recipe"], record["finished"], record["settings"]["lr"]) == ("pairs", True, 3e-3)
    assert record["versions"]["torch"] == torch.__version__.partition("+")[0]


class Scored(PairRecipe):
    scores = (9.0, 0.1, 0.7, float("nan"), 0.7, 0.3, 0.2)  # before training, and every two steps
    calls = 0

    def validate(self) -> dict[str, float]:
        self.model.eval()
        self.calls += 1
        return {"accuracy": self.scores[self.calls - 1]}


def check_best_and_last(out: Path) -> tuple[str, Tensor]:
    """Check the results of steps 4 and 12; returns a weight of the latter."""
    best, last = results(out, "best", ".")
    name = "backbone.blocks.0.attn.qkv.weight"
    assert best[name].equal(weights(out, 4)[f"model/{name}"])
    assert last[name].equal(weights(out, 12)[f"model/{name}"])
    assert not best[name].equal(last[name])
    return name, last[name]


def test_the_last_checkpoints_and_the_best_one_stay(tmp_path: Path) -> None:
    recipe = train(tmp_path / "run", kind=Scored, save_every=1, keep=3, validate_every=2)
    assert list(state.checkpoints(tmp_path / "run")) == [4, 10, 11, 12]
    name, last = check_best_and_last(tmp_path / "run")
    assert recipe.model.state_dict()[name].equal(last)
    assert json.loads((tmp_path / "run/recipe.json").read_text())["best"] == {"step": 4, "value": 0.7}
    assert recipe.model.training  # though validate() left it in eval mode
    found = read_log(tmp_path / "run/log.jsonl")["validation/accuracy"]
    assert found == [(0, 9.0), (2, 0.1), (4, 0.7), (8, 0.7), (10, 0.3), (12, 0.2)]  # no NaN, which JSON has not


def test_the_validated_model_is_the_saved_one_in_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Seen(PairRecipe):
        def validate(self) -> Any:
            done.append("validated")
            return super().validate()

    processes = Processes(cpu=True)
    monkeypatch.setattr(processes, "copy_from_main", lambda tensors: done.append("buffers"))
    fit(Seen(Config(steps=5), processes), tmp_path / "run", TrainSettings(**{**SETTINGS, "save_every": 0}), processes)
    # at the start all tensors, then before each validation, and with the checkpoint at the end
    assert done == ["buffers", *["buffers", "validated"] * 2, "buffers"]


def test_learning_rates_follow_the_recipe_in_each_group(tmp_path: Path) -> None:
    seen = []

    class Watched(PairRecipe):
        def optimizer(self) -> torch.optim.Optimizer:
            self.found = super().optimizer()
            return self.found

        def step(self, batch: Any) -> Any:
            seen.append([group["lr"] for group in self.found.param_groups])
            return super().step(batch)

    train(tmp_path / "run", Config(steps=6), kind=Watched)
    factors = np.array([0.25, 0.5, 0.75, 1, 1, 1])
    np.testing.assert_allclose(seen, np.stack([factors * 3e-3, factors * 3e-4], 1), rtol=1e-12)


def test_long_gradients_are_clipped(tmp_path: Path) -> None:
    norms = []

    class Watched(PairRecipe):
        def optimizer(self) -> torch.optim.Optimizer:
            found = super().optimizer()
            grads = lambda: [p.grad for g in found.param_groups for p in g["params"] if p.grad is not None]  # noqa: E731
            found.register_step_pre_hook(
                lambda *_: norms.append(torch.stack([g.norm() for g in grads()]).norm().item())
            )
            return found

    train(tmp_path / "run", Config(steps=4), kind=Watched, max_grad_norm=0.5)
    assert norms == pytest.approx([0.5] * 4, rel=1e-4)
    assert all(value > 0.5 for _, value in read_log(tmp_path / "run/log.jsonl")["gradient_norm"])


def test_a_nan_loss_stops_before_the_step(tmp_path: Path) -> None:
    text = r"step 7: the loss is nan .* last checkpoint is of step 5.*`recipe\.load\(6\)` gives the batch"
    with pytest.raises(TrainError, match=text):
        train(tmp_path / "run", Config(poison=6))
    assert not any(value.isnan().any() for value in weights(tmp_path / "run", 5).values())


@pytest.mark.parametrize(("loss", "gradient"), [("inf", "[0-9.]+"), ("[0-9.]+", "nan"), ("[0-9.]+", "inf")])
def test_a_loss_or_gradient_that_is_not_finite_stops_as_well(tmp_path: Path, loss: str, gradient: str) -> None:
    class Broken(PairRecipe):
        def step(self, batch: Any) -> Any:
            found = super().step(batch)
            if loss == "inf":
                return {**found, "loss": torch.tensor(torch.inf)}
            assert self.loss.log.grad is not None
            self.loss.log.grad.fill_(float(gradient))
            return found

    processes = Processes(cpu=True)
    recipe = Broken(Config(), processes)
    before = {name: p.clone() for name, p in recipe.model.named_parameters()}
    with pytest.raises(TrainError, match=f"step 1: the loss is {loss} and the norm of its gradient {gradient}"):
        fit(recipe, tmp_path / "run", TrainSettings(**SETTINGS), processes)
    assert all(p.equal(before[name]) for name, p in recipe.model.named_parameters())


def test_fp16_survives_gradients_that_overflow_but_not_for_ever(tmp_path: Path) -> None:
    class Overflowing(PairRecipe):
        until = 3

        def step(self, batch: Any) -> Any:
            found = super().step(batch)
            self.steps_done = getattr(self, "steps_done", 0) + 1
            if self.steps_done <= self.until:
                assert self.loss.log.grad is not None
                self.loss.log.grad.fill_(float("inf"))
            return found

    assert train(tmp_path / "run", Config(), "fp16", Overflowing).processes.scaler.get_scale() <= 2.0**13
    lines = [line for line in log_lines(tmp_path / "run") if "loss" in line]
    skipped = [line["skipped"] for line in lines]
    assert skipped[:3] == [1, 1, 1]
    assert weights(tmp_path / "run")["optimizer/0/step"].item() == 12 - sum(skipped) >= 6
    assert [("gradient_norm" in line) for line in lines] == [not s for s in skipped]
    Overflowing.until = 100
    with pytest.raises(TrainError, match="step 28"):
        train(tmp_path / "other", Config(steps=40), "fp16", Overflowing)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_cannot_be_loaded_is_named(tmp_path: Path, workers: int) -> None:
    with pytest.raises(TrainError, match=r"batch of step 3 cannot be loaded: lost\.png"):
        train(tmp_path / "run", Config(missing=2), workers=workers)
    assert list(state.checkpoints(tmp_path / "run")) == [2]  # what was trained before is kept


def test_old_checkpoints_are_not_deleted_through_a_link(tmp_path: Path) -> None:
    train(tmp_path / "other", Config(steps=4), save_every=1, keep=9)
    train(tmp_path / "run", Config(steps=2), save_every=2, keep=1)
    shutil.rmtree(tmp_path / "run/checkpoints")
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "other/checkpoints")
    state.prune(tmp_path / "run", keep=1, best=None)
    assert list(state.checkpoints(tmp_path / "other")) == [1, 2, 3, 4]
    state.prune(tmp_path / "other", keep=1, best=2)
    assert list(state.checkpoints(tmp_path / "other")) == [2, 4]


class Unsendable:
    def __reduce__(self) -> Any:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")


class BadLoader(PairRecipe):
    """Its third batch cannot be sent by a loading process, or ends it, or never comes."""

    how = ""

    def load(self, step: int) -> Any:
        if step == 2 and self.how == "unsendable":
            return Unsendable()
        if step == 2 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 2 and self.how == "stuck":
            time.sleep(600)
        return super().load(step)


@pytest.mark.parametrize(("how", "reason"), [("unsendable", "shared memory"), ("killed", "DataLoader worker")])
def test_a_loading_process_that_fails_ends_the_run_in_one_line(tmp_path: Path, how: str, reason: str) -> None:
    """A queue that cannot send a batch for want of shared memory would drop it, and the run would wait for ever."""
    recipe = type("Bad", (BadLoader,), {"how": how})
    with pytest.raises(TrainError, match=reason) as error:
        train(tmp_path / "run", kind=recipe, workers=1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [0, 1])
def test_one_signal_ends_a_run_that_waits_for_a_batch(tmp_path: Path, number: signal.Signals, workers: int) -> None:
    recipe = type("Stuck", (BadLoader,), {"how": "stuck"})

    def send() -> None:
        until(lambda: steps_logged(tmp_path / "run") >= 2)
        time.sleep(0.2)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    train(tmp_path / "run", kind=recipe, workers=workers)
    sender.join()
    assert list(state.checkpoints(tmp_path / "run")) == [2]


def test_a_finished_run_says_so_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    capsys.readouterr()
    train(tmp_path / "run")
    assert capsys.readouterr().out == f"{tmp_path / 'run'}: this run is finished already; nothing to do\n"
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path / "run", Config(steps=2))
    before = (tmp_path / "run/recipe.json").read_text()
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"config": Config(steps=2, lr=0.1, seed=3), "seed": 3},
         r"(?s)other settings.*another --out:\n  seed: 0 there, 3 now\n  lr: 0\.003 there, 0\.1 now$"),
        ({"max_grad_norm": 1.0}, r"max_grad_norm: 0\.0 there, 1\.0 now$"),
        ({"precision": "bf16"}, r"precision: 'no' there, 'bf16' now$"),
    )  # fmt: skip
    for given, text in cases:
        with pytest.raises(TrainError, match=text):
            train(tmp_path / "run", **{"config": Config(steps=2), **given})
    assert (tmp_path / "run/recipe.json").read_text() == before
    train(tmp_path / "run", Config(steps=2), workers=1, save_every=1, keep=9)  # these may change


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    for name, text, out, message in (
        ("thesis.tex", "mine", ".", r"holds other files \(thesis\.tex\): name a new folder"),
        ("recipe.json", '{"flour": 500}', ".", "does not describe a training run"),
        ("thesis.tex", "mine", "thesis.tex", "is a file"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(TrainError, match=message):
            train(tmp_path / out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["recipe.json", "thesis.tex"]


def test_a_damaged_or_foreign_checkpoint_is_named(tmp_path: Path) -> None:
    interrupt(tmp_path / "run")
    path = tmp_path / "run/checkpoints/step-000005.safetensors"
    whole, own = path.read_bytes(), {name: value.clone() for name, value in load_file(path).items()}

    def sealed(tensors: dict[str, Tensor], **record: str) -> None:
        save_file(tensors, path, {**BLANK, **record})
        seal(path)

    for damage in (
        lambda: path.write_bytes(whole[:-4]),
        lambda: path.write_bytes(b"rubbish"),
        lambda: save_file(own, path, {"record": "{}"}),  # without a digest
        lambda: sealed({k: v for k, v in own.items() if k != "loss/log"}, record='{"step": 5}'),
        lambda: sealed({**own, "loss/log": torch.zeros(2)}, record='{"step": 5}'),
        lambda: sealed({**own, "model/other": torch.zeros(2)}, record='{"step": 5}'),
        lambda: shutil.copy(path.with_name("step-000004.safetensors"), path),  # of another step
    ):
        damage()
        with pytest.raises(TrainError, match=r"step-000005\.safetensors cannot be read: .*; delete this file"):
            train(tmp_path / "run")
    path.write_bytes(whole)
    train(tmp_path / "run")


def test_no_checkpoint_with_a_flipped_bit_is_resumed_from(tmp_path: Path) -> None:
    interrupt(tmp_path / "run")
    path = tmp_path / "run/checkpoints/step-000005.safetensors"
    for damaged in spread_flips(path.read_bytes(), 40):
        path.write_bytes(damaged)
        with pytest.raises(TrainError, match=r"step-000005\.safetensors cannot be read: .*; delete this file"):
            state.load_weights(path, {"model": nn.Linear(1, 1)})


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with run_folder.own_folder(tmp_path / "run"), pytest.raises(TrainError, match="another run is using"):
        train(tmp_path / "run")


# The log


def test_the_log_counts_images_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", Config(steps=5), log_every=2)
    lines = log_lines(tmp_path / "run")
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == [2, 4, 5]
    first = lines[1]
    assert first["images_per_second"] == pytest.approx(16 / first["seconds_per_step"])
    assert 0 <= first["waiting"] <= 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("pairs: 5 steps on cpu; 3,281 of ")
    assert said[2].startswith(f"step 2/5  loss {first['loss']:.4g}")
    assert said[2].endswith(" left")


def test_logged_numbers_are_means_since_the_line_before(tmp_path: Path) -> None:
    train(tmp_path / "each", Config(steps=6), log_every=1)
    train(tmp_path / "threes", Config(steps=6), log_every=3)
    each = [value for _, value in read_log(tmp_path / "each/log.jsonl")["loss"]]
    threes = read_log(tmp_path / "threes/log.jsonl")["loss"]
    assert threes == [(3, pytest.approx(np.mean(each[:3]))), (6, pytest.approx(np.mean(each[3:])))]


def test_tensorboard_shows_what_the_log_does(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path / "run", Config(steps=3))
    events = accumulator.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    logged = read_log(tmp_path / "run/log.jsonl")
    assert {e.step: e.value for e in events.Scalars("train/loss")} == pytest.approx(dict(logged["loss"]))
    assert [e.step for e in events.Scalars("validation/accuracy")] == [0, 3]


def test_a_log_is_cut_at_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "validation": {"map": 1}}\n{"step": 3, "loss": 1.0}\n{"st')
    truncate(path, 2)
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n{"step": 2, "validation": {"map": 1}}\n'
    truncate(path, 0)
    assert path.read_text() == ""
