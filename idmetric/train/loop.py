"""The training loop: any recipe, one process or many, stopped and resumed at any step with the same result.

    processes = Processes("bf16")
    fit(recipe, "run", TrainSettings(seed=1, save_every=100), processes)

A recipe does its own forward and backward passes, so the loop contains no gradient caching or accumulation. The loop
averages gradients over processes, checks that they are finite, steps, logs, validates and saves. All random numbers
follow from (seed, step, process): on a CPU the same seed gives the same weights bit for bit, for any number of
loading processes and however often the run was stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from idmetric.train import run_folder, state
from idmetric.train.loader import Failure, batches, seed_all
from idmetric.train.log import Log, Meter
from idmetric.train.options import TrainSettings as TrainSettings  # part of this module
from idmetric.train.processes import OtherFailed, Processes
from idmetric.train.recipe import Recipe as Recipe
from idmetric.train.recipe import evaluating, parameter_counts
from idmetric.train.state import TrainError as TrainError

BEST = "best"  # folder of the result with the best validation
_FREE = ("save_every", "keep", "validate_every", "log_every", "workers")  # may change in between
_SMALLEST_SCALE = 2.0**-10  # of the fp16 loss; after 26 overflows in a row, every step will overflow


class NotFinite(TrainError):
    """A loss or gradient that is NaN or infinite."""


class Stopped(Exception):
    """Training was asked to stop (SIGTERM, Ctrl-C) and has written a checkpoint.

    Attributes:
        step: steps done. signal: number of the signal.
    """

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"stopped after step {step}, which is saved: the same command resumes from there")
        self.step, self.signal = step, number


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Within the block, SIGTERM and Ctrl-C are only added to the list; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    main = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, ask) for n in (signal.SIGTERM, signal.SIGINT)} if main else {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fit(
    recipe: Recipe,
    out: str | os.PathLike[str],
    settings: TrainSettings,
    processes: Processes,
) -> None:
    """Train a recipe to its end and write the result, or resume a run that was stopped.

    Args:
        out: folder of the run. Result: config.json, model.safetensors (`idmetric.load(out)`), the same of the best
            validation in best/; recipe.json, log.jsonl, tensorboard/, checkpoints/. All processes must see
            the same folder; only the main one writes.

    Raises:
        TrainError: if the folder holds something else, a run with other settings, or a running one; if a batch
            cannot be loaded; if a checkpoint cannot be read.
        OutputError: if a file cannot be written.
        NotFinite: at the first NaN or infinite loss or gradient; the weights stay finite.
        Stopped: after SIGTERM or Ctrl-C, once a checkpoint is written.
    """
    out = Path(out)
    with contextlib.ExitStack() as held:
        processes.on_main(lambda: held.enter_context(run_folder.own_folder(out)))
        record = _record(recipe, settings, processes)
        if processes.on_main(lambda: run_folder.prepare(out, record)):
            if processes.main:
                print(f"{out}: this run is finished already; nothing to do", flush=True)
            return
        if any(processes.any(not (out / run_folder.FILE).is_file())):
            raise TrainError(f"{out} is not the same folder for all processes: name one that all machines share")
        if (prepare := getattr(recipe, "prepare", None)) is not None:
            prepare(out)

        run = _Run(recipe, out, settings, processes)
        with _interrupts() as asked:
            run.train(asked)
            run.finish(record)


def _record(recipe: Recipe, settings: TrainSettings, processes: Processes) -> dict[str, Any]:
    decisive = {name: value for name, value in recipe.settings.items() if name not in _FREE} | {
        "seed": settings.seed,
        "max_grad_norm": settings.max_grad_norm,
        "precision": processes.precision,
        "steps": recipe.steps,
    }
    incidental = {
        "run": dataclasses.asdict(settings),
        "device": processes.device.type,
        "processes": processes.count,
        "trained_parameters": parameter_counts(recipe)[0],
    }
    return run_folder.make(recipe.name, decisive, incidental)


class _Run:
    """A run between start and end: its modules, its optimizer, its progress and its best validation."""

    def __init__(self, recipe: Recipe, out: Path, settings: TrainSettings, processes: Processes) -> None:
        self.recipe, self.out, self.settings, self.processes = recipe, out, settings, processes
        self.modules = dict(recipe.modules())
        self.optimizer = recipe.optimizer()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.done, self.saved, self.validated = 0, 0, 0
        self.best: dict[str, Any] | None = None
        processes.copy_from_main(t for m in self.modules.values() for t in (*m.parameters(), *m.buffers()))
        if found := processes.on_main(lambda: state.checkpoints(out)):
            self.done, path = max(found.items())
            record = state.load(path, self.modules, self.optimizer, processes.scaler)
            self.saved, self.best, self.validated = self.done, record["best"], record["validated"]

    def train(self, asked: Sequence[int]) -> None:
        """Train all steps that are not done yet."""
        settings, recipe, processes = self.settings, self.recipe, self.processes
        steps = range(self.done, recipe.steps)
        feed = batches(recipe, steps, settings.seed, settings.workers, processes)
        with Log(self.out, self.done, recipe.steps, processes.main) as log, contextlib.closing(feed):
            log.line(_headline(self))
            if self.done == 0 and settings.validate_every:
                self._validate(log)
            if self.done and self._validation(log):  # it failed before the run was stopped
                self._save()
            meter = Meter()
            for step in steps:
                meter.wait()
                batch = next(feed)
                meter.go()
                self._agree(step, batch, asked)
                meter.add(self._step(step, batch))
                self.done = step + 1
                if self._due(settings.log_every):
                    log.training(self.done, meter.read(processes))
                improved = self._validation(log)
                if improved or self._due(settings.save_every):
                    self._save()

    def _due(self, every: int) -> bool:
        return self.done == self.recipe.steps or (every > 0 and self.done % every == 0)

    def _agree(self, step: int, batch: Any, asked: Sequence[int]) -> None:
        """Stop all processes together if one could not load its batch or was asked to stop."""
        own = batch if isinstance(batch, Failure) else ""
        failed, stopped = self.processes.any(own != "", len(asked) > 0)
        if failed or stopped:
            self._save_progress()
        if failed:
            reason = next(filter(None, self.processes.all_values(own)))
            raise TrainError(f"the batch of step {step + 1} cannot be loaded: {reason}")
        if stopped:
            raise Stopped(self.done, asked[-1] if asked else signal.SIGTERM)

    def _step(self, step: int, batch: Any) -> dict[str, float]:
        """Take one step of the optimizer; return the values to log."""
        scaler, factor = self.processes.scaler, self.recipe.lr_factor(step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        seed_all(self.settings.seed, step, self.processes.rank)
        found = self.recipe.step(batch)
        self.processes.average_gradients(self.parameters)
        scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm or math.inf))
        values = {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in found.items()}
        # with fp16, gradients may overflow for a while
        good = scaler.get_scale() >= _SMALLEST_SCALE if scaler.is_enabled() else math.isfinite(norm)
        if any(self.processes.any(not (good and math.isfinite(values["loss"])))):
            self._refuse(step, values["loss"], norm)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

        values["lr"] = self.optimizer.param_groups[0]["lr"]
        if scaler.is_enabled():
            values["skipped"] = float(not math.isfinite(norm))
        return {**values, "gradient_norm": norm} if math.isfinite(norm) else values

    def _refuse(self, step: int, loss: float, norm: float) -> NoReturn:
        self.processes.any(False)  # a launcher ends all processes as soon as one has failed
        raise NotFinite(
            f"step {step + 1}: the loss is {loss:g} and the norm of its gradient {norm:g}; the weights are as before "
            f"it, the last checkpoint is of step {self.saved}. Try a lower learning rate or another --precision; "
            f"`recipe.load({step})` gives the batch"
        )

    def _validation(self, log: Log) -> bool:
        """Validate if it is due; if it fails, the run is saved, and a resumed run validates first."""
        if self.validated == self.done or not self._due(self.settings.validate_every):
            return False
        try:
            improved = self._validate(log)
        except TrainError:  # in all processes
            self._save_progress()
            raise
        self.validated = self.done
        return improved

    def _validate(self, log: Log) -> bool:
        """Log the scores of the model; return whether it is the best one so far."""
        seed_all(self.settings.seed, self.done, self.processes.rank, 2)
        self._share_buffers()  # the validated model is the saved one
        with evaluating(*self.modules.values()):
            values = self._scores()
        best = self.recipe.best
        if values:
            log.validation(self.done, values)
        if not values or not best or self.done == 0:
            return False
        value = values[best]
        if math.isnan(value) or (self.best is not None and value <= self.best["value"]):
            return False
        self.best = {"step": self.done, "value": value}
        return True

    def _scores(self) -> dict[str, float]:
        """The main process's scores. All processes stop together if validation fails in one."""
        try:
            own = self.processes.together(lambda: dict(self.recipe.validate()))
        # an image that cannot be read, a model that has diverged, an accelerator without room
        except (OSError, ValueError, torch.OutOfMemoryError, OtherFailed) as error:
            raise TrainError(f"validation after step {self.done}: {error}") from error
        return self.processes.all_values(own)[0]

    def _save_progress(self) -> None:
        if self.saved < self.done:
            self._save()

    def _save(self) -> None:
        """Write the checkpoint of this step, then delete old ones beyond `keep`."""
        self._share_buffers()
        more = {"best": self.best, "validated": self.validated}

        def write() -> None:
            state.save(self.out, self.done, self.modules, self.optimizer, self.processes.scaler, more)
            state.prune(self.out, self.settings.keep, self.best["step"] if self.best else None)

        self.processes.on_main(write)
        self.saved = self.done

    def _share_buffers(self) -> None:
        # BatchNorm's statistics differ between processes, and a resumed run would have the main one's
        self.processes.copy_from_main(buffer for module in self.modules.values() for buffer in module.buffers())

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the results of the last and of the best step, and the record of a finished run."""

        def write() -> None:
            self.recipe.save(self.out)
            files = state.checkpoints(self.out)
            if self.best is not None and self.best["step"] in files:
                state.load_weights(files[self.best["step"]], self.modules)
                self.recipe.save(self.out / BEST)
                state.load_weights(files[self.done], self.modules)
            run_folder.write(self.out, {**record, "finished": True, "best": self.best})

        self.processes.on_main(write)


def _headline(run: _Run) -> str:
    recipe, processes = run.recipe, run.processes
    trained, whole = parameter_counts(recipe)
    many = f"{processes.count} processes on" if processes.count > 1 else "on"
    precision = "" if processes.precision == "no" else f" in {processes.precision}"
    first = f"resumed after step {run.done}: " if run.done else ""
    return (
        f"{recipe.name}: {first}{recipe.steps} steps {many} {processes.device.type}{precision}; "
        f"{trained:,} of {whole:,} parameters train"
    )
