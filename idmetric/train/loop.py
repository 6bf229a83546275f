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
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from idmetric.metric.checkpoints.format import RECORD
from idmetric.metric.files import StrPath
from idmetric.metric.paths import matching
from idmetric.train import run_folder, state
from idmetric.train.loader import Failure, batches, seed_all
from idmetric.train.log import Log, Meter
from idmetric.train.options import TrainSettings as TrainSettings  # part of this module
from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe as Recipe
from idmetric.train.recipe import evaluating, parameter_counts
from idmetric.train.state import TrainError

BEST = "best"  # folder of the result with the best validation
_SMALLEST_SCALE = 2.0**-10  # of the fp16 loss; after 26 overflows in a row, every step will overflow


@dataclasses.dataclass(frozen=True)
class Stopped:
    """Training was asked to stop (SIGTERM, Ctrl-C) and has written a checkpoint.

    Attributes:
        step: steps done. signal: number of the signal.
    """

    step: int
    signal: int

    def __str__(self) -> str:
        return f"stopped after step {self.step}, which is saved: the same command resumes from there"


class _Interrupts:
    """SIGTERM and Ctrl-C, which stop a run between two steps, or at once while it waits for a batch.

    Attributes:
        signals: numbers of those that have arrived. A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.signals: list[int] = []
        self._is_waiting = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[_Interrupts]:
        """Within the block, both signals are noted here."""
        if threading.current_thread() is not threading.main_thread():  # which alone can handle signals
            yield self
            return
        handlers = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def next_batch(self, feed: Iterator[Any]) -> Any:
        """The next batch; None after a signal."""
        try:
            self._is_waiting = True
            batch = None if self.signals else next(feed)
            self._is_waiting = False
        except _Interrupted:
            return None
        return batch

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signals and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signals.append(number)
        if self._is_waiting:
            self._is_waiting = False
            raise _Interrupted


class _Interrupted(BaseException):
    """A signal has ended the wait for a batch."""


def fit(recipe: Recipe, out: StrPath, settings: TrainSettings, processes: Processes) -> Stopped | None:
    """Train a recipe to its end and write the result, or resume a run that was stopped.

    Args:
        out: folder of the run. Result: config.json, model.safetensors (`idmetric.load(out)`), the same of the best
            validation in best/; recipe.json, log.jsonl, tensorboard/, checkpoints/. All processes must see
            the same folder; only the main one writes.

    Returns:
        None at the end; after SIGTERM or Ctrl-C, once a checkpoint is written, where the run was stopped.

    Raises:
        TrainError: if the folder holds something else, a run with other settings, or a running one; if a batch
            cannot be loaded; if a checkpoint cannot be read; at the first NaN or infinite loss or gradient, whose
            step is not taken.
        OutputError: if a file cannot be written.
    """
    out = Path(out)
    with contextlib.ExitStack() as stack:
        processes.on_main(lambda: stack.enter_context(run_folder.own_folder(out)))
        record = _record(recipe, out, settings, processes)
        if processes.on_main(lambda: run_folder.prepare(out, record)):
            if processes.main:
                print(f"{out}: this run is finished already; nothing to do", flush=True)
            return None
        if any(processes.any(not (out / RECORD).is_file())):
            raise TrainError(f"{out} is not the same folder for all processes: name one that all machines share")
        recipe.prepare(out)
        run = _Run(recipe, out, settings, processes)
        interrupts = stack.enter_context(_Interrupts().noted())
        try:
            stopped = run.train(interrupts)
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise TrainError(f"{error} The last checkpoint is of step {run.saved}") from error  # torch's, at any time
        if stopped is None:
            run.finish(record)
        return stopped


def export(recipe: Recipe, out: StrPath, folder: StrPath, settings: TrainSettings, processes: Processes) -> int:
    """Write the model of a run's latest checkpoint in the format of `idmetric.load(folder)`, without training.

    Args:
        out: folder of the run, finished or not, made with this recipe and these settings. folder: new, or empty.

    Returns:
        The step of the checkpoint.

    Raises:
        TrainError: if `out` holds a run with other settings, a running one, or no checkpoint; if `folder` has files.
        OutputError: if a file cannot be written.
    """
    out = Path(out)
    folder = Path(folder)
    if folder.is_file() or matching(folder, "*"):
        raise TrainError(f"--export {folder} holds files already: name a new folder")
    files = state.checkpoints(out)
    if not files:
        raise TrainError(f"{out} has no checkpoint to export: train first (--save-every sets how often one is written)")
    step = max(files)
    with run_folder.own_folder(out):
        run_folder.check_same(out, _record(recipe, out, settings, processes))
        state.load_weights(files[step], recipe.modules())
        recipe.save(folder)
    return step


def _record(recipe: Recipe, out: Path, settings: TrainSettings, processes: Processes) -> dict[str, Any]:
    decisive = {
        **recipe.settings,
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
    """A run between start and end.

    Attributes:
        done: steps that are done. saved: step of the last checkpoint. validated: step of the last validation.
        best: step and value of the best validation.
    """

    def __init__(self, recipe: Recipe, out: Path, settings: TrainSettings, processes: Processes) -> None:
        self.recipe = recipe
        self.out = out
        self.settings = settings
        self.processes = processes
        self.modules = recipe.modules()
        self.optimizer = recipe.optimizer()
        self.done = self.saved = self.validated = 0
        self.best: dict[str, Any] | None = None
        self.whole = nn.ModuleList(self.modules.values())
        processes.copy_from_main([*self.whole.parameters(), *self.whole.buffers()])
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        checkpoints = processes.on_main(lambda: state.checkpoints(out))
        if checkpoints:
            self.done = self.saved = max(checkpoints)
            record = state.load(checkpoints[self.done], self.modules, self.optimizer, processes.scaler)
            self.best = record["best"]
            self.validated = record["validated"]

    def train(self, interrupts: _Interrupts) -> Stopped | None:
        """Train all steps that are not done yet, up to a signal to stop."""
        settings = self.settings
        recipe = self.recipe
        processes = self.processes
        steps = range(self.done, recipe.steps)
        feed = batches(recipe, steps, settings.seed, settings.workers, processes)
        with Log(self.out, self.done, recipe.steps, processes.main) as log, contextlib.closing(feed):
            log.line(self._headline())
            if self._validate(log):  # the first one, or one that failed before the run was stopped
                self._save()
            meter = Meter()
            for step in steps:
                meter.wait()
                batch = interrupts.next_batch(feed)
                meter.go()
                signals = interrupts.signals
                if self._must_stop(step, batch, signals):
                    return Stopped(self.done, signals[-1] if signals else signal.SIGTERM)
                meter.add(self._step(step, batch))
                self.done = step + 1
                if self._is_due(settings.log_every):
                    log.training(self.done, meter.read(processes))
                is_best = self._validate(log)
                if is_best or self._is_due(settings.save_every):
                    self._save()
        return None

    def _headline(self) -> str:
        recipe = self.recipe
        processes = self.processes
        trained, whole = parameter_counts(recipe)
        text = f"{recipe.name}: resumed after step {self.done}: " if self.done else f"{recipe.name}: "
        text += f"{recipe.steps} steps "
        if processes.count > 1:
            text += f"{processes.count} processes "
        text += f"on {processes.device.type}"
        if processes.precision != "no":
            text += f" in {processes.precision}"
        return f"{text}; {trained:,} of {whole:,} parameters train"

    def _is_due(self, every: int) -> bool:
        return self.done == self.recipe.steps or (every > 0 and self.done % every == 0)

    def _must_stop(self, step: int, batch: Any, signals: Sequence[int]) -> bool:
        """Whether one of the processes was asked to stop; TrainError in all if one could not load its batch."""
        failure = batch if isinstance(batch, Failure) else ""
        is_failed, is_stopped = self.processes.any(failure != "", len(signals) > 0)
        if is_failed or is_stopped:
            self._save_progress()
        if is_failed:
            reason = next(filter(None, self.processes.all_values(failure)))
            raise TrainError(f"the batch of step {step + 1} cannot be loaded: {reason}")
        return is_stopped

    def _step(self, step: int, batch: Any) -> dict[str, float]:
        """Take one step of the optimizer; return the values to log."""
        processes = self.processes
        scaler = self.processes.scaler
        factor = self.recipe.lr_factor(step)
        parameters: list[nn.Parameter] = []
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
            parameters += group["params"]
        seed_all(self.settings.seed, step, processes.rank)
        results = self.recipe.step(batch)
        processes.average_gradients(parameters)
        scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(parameters, self.settings.max_grad_norm or math.inf))

        values = {}
        for name, value in results.items():
            values[name] = float(value.detach() if isinstance(value, Tensor) else value)
        is_good = math.isfinite(norm)
        if scaler.is_enabled():  # with fp16, gradients may overflow for a while
            values["skipped"] = float(not is_good)
            is_good = scaler.get_scale() >= _SMALLEST_SCALE
        if any(processes.any(not (is_good and math.isfinite(values["loss"])))):
            processes.any(False)  # a launcher ends all processes as soon as one has failed
            raise TrainError(
                f"step {step + 1}: the loss is {values['loss']:g} and the norm of its gradient {norm:g}; the weights "
                f"are as before it, the last checkpoint is of step {self.saved}. Try a lower learning rate or another "
                f"--precision; `recipe.load({step})` gives the batch"
            )
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

        values["lr"] = self.optimizer.param_groups[0]["lr"]
        if math.isfinite(norm):
            values["gradient_norm"] = norm
        return values

    def _validate(self, log: Log) -> bool:
        """Log the scores of the model, if it is time; return whether it is the best one so far."""
        if (self.done and self.validated == self.done) or not self._is_due(self.settings.validate_every):
            return False
        seed_all(self.settings.seed, self.done, self.processes.rank, 2)
        self._share_buffers()  # the validated model is the saved one
        try:
            with evaluating(self.whole):
                scores = self.processes.together(lambda: dict(self.recipe.validate()))
        # an image that cannot be read, a model that has diverged, an accelerator without room
        except (OSError, ValueError, torch.OutOfMemoryError, TrainError) as error:
            self._save_progress()  # a resumed run validates first
            raise TrainError(f"validation after step {self.done}: {error}") from error
        scores = self.processes.all_values(scores)[0]
        self.validated = self.done
        if not scores:
            return False
        log.validation(self.done, scores)
        value = scores.get(self.recipe.best, math.nan)
        if self.done == 0 or math.isnan(value) or (self.best is not None and value <= self.best["value"]):
            return False
        self.best = {"step": self.done, "value": value}
        return True

    def _save_progress(self) -> None:
        if self.saved < self.done:
            self._save()

    def _save(self) -> None:
        """Write the checkpoint of this step, then delete old ones beyond `keep`."""
        self._share_buffers()
        progress = {"best": self.best, "validated": self.validated}

        def write() -> None:
            state.save(self.out, self.done, self.modules, self.optimizer, self.processes.scaler, progress)
            state.prune(self.out, self.settings.keep, self.best["step"] if self.best else None)

        self.processes.on_main(write)
        self.saved = self.done

    def _share_buffers(self) -> None:
        # BatchNorm's statistics differ between processes, and a resumed run would have the main one's
        self.processes.copy_from_main(self.whole.buffers())

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
