"""The training loop: any recipe, one process or many, stopped and resumed at any step with the same result.

    processes = Processes("bf16")
    fit(recipe, "run", Settings(seed=1, save_every=100), processes)

A recipe does its own forward and backward passes, so that the loop knows nothing of gradient caching or accumulation;
the loop averages gradients over processes, checks that they are finite, steps, logs, validates and saves. Everything
random follows from (seed, step, process): on a CPU the same seed gives the same weights bit for bit, for any number of
loading processes and however often the run was stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import torch
from torch import Tensor, nn

from idmetric.io.progress import Progress
from idmetric.models.embedder import Embedder
from idmetric.train import run_folder, state
from idmetric.train.loader import Failure, batches, seed_all
from idmetric.train.log import Log, Meter, Silence, curves
from idmetric.train.options import option
from idmetric.train.processes import OtherFailed, Precision, Processes
from idmetric.train.state import TrainError as TrainError  # part of this module
from idmetric.train.stop import Interrupts, dump
from idmetric.train.stop import NotFinite as NotFinite
from idmetric.train.stop import Stopped as Stopped

BEST = "best"  # folder of the result with the best validation
FAILED = "failed"  # folder of batches that gave NaN
_FREE = ("save_every", "keep", "validate_every", "log_every", "workers", "wandb", "resume")  # may change in between
_SMALLEST_SCALE = 2.0**-10  # of the fp16 loss; where 26 steps in a row overflow, all will


@dataclass(frozen=True)
class Settings:
    """How any recipe is run. Fields that a recipe's Config has too, such as seed, come from there."""

    seed: int = option(0, "all random numbers follow from it")
    precision: Precision = option("no", "mixed precision")
    max_grad_norm: float = option(0.0, "largest norm of the gradient; 0 = any")
    save_every: int = option(500, "steps between checkpoints; 0 = at the end only")
    keep: int = option(2, "latest checkpoints to keep, in addition to the best one; 0 = all")
    validate_every: int = option(500, "steps between validations, the first before training; 0 = at the end only")
    log_every: int = option(10, "steps between lines of the log")
    workers: int = option(-1, "loading processes of each training process; -1 = one per core, at most 8; 0 = none")
    wandb: str = option("", "project of Weights & Biases to log to as well")
    resume: bool = option(True, "resume the run in the folder, if there is one; otherwise refuse it")

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("max_grad_norm", 0), ("save_every", 0), ("keep", 0), ("validate_every", 0),
                            ("log_every", 1), ("workers", -1)):  # fmt: skip
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} = {getattr(self, name)}: it must be {least} or more")


class Recipe(Protocol):
    """The interface of a recipe for `fit`. Random choices follow from seed and step alone: resuming needs only these.

    Attributes:
        name: such as "nearid".
        settings: JSON values: the recipe's config, and everything else that must be the same in a resumed run,
            such as a fingerprint of the data.
        model: on `processes.device`, in train mode where it trains; parameters that train require grad.
        steps: optimiser steps of the whole run.
        best: key of `validate()`; its highest value marks the best checkpoint; "" = keep no best one.

    A recipe that makes files of its own may have `prepare(out: Path)` as well: called in every process before the first
    step, also when a run resumes. A recipe with large batches may set `prefetch: int`, the number of batches
    that a loading process reads ahead (default: 2).
    """

    name: str
    settings: Mapping[str, Any]
    model: Embedder
    steps: int
    best: str

    def modules(self) -> Mapping[str, nn.Module]:
        """What is checkpointed: {"model": ..., "loss": ...}; of these, trained parameters and buffers are stored."""

    def optimizer(self) -> torch.optim.Optimizer:
        """A new optimiser of the trained parameters, at its peak learning rates."""

    def lr_factor(self, step: int) -> float:
        """Factor of the learning rates at a step, from 0."""

    def load(self, step: int) -> Any:
        """This process's share of a step's batch: nested dicts, lists, dataclasses of CPU tensors and plain values.

        Called in loading processes, with a copy of the recipe whose modules are None: reads data, nothing else.
        """

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Forward and backward of a batch as `load` gave it (`processes.place` puts it on the device).

        Calls `processes.backward` as often as it likes. Returns scalars to log, the same names in each process, "loss"
        among them; "images", if there, counts the images of this process's share and becomes images per second.
        """

    def validate(self) -> Mapping[str, float]:
        """Scores of the model as it is; may be empty. Called in every process, the main one's scores count."""

    def save(self, folder: Path) -> None:
        """Write the model in the format of `idmetric.load(folder)`."""


def fit(
    recipe: Recipe,
    out: str | os.PathLike[str],
    settings: Settings,
    processes: Processes,
    *,
    progress: Progress | None = None,
) -> None:
    """Train a recipe to its end and write the result, or resume a run that was stopped.

    Args:
        out: folder of the run. Result: config.json, model.safetensors (`idmetric.load(out)`), the same of the best
            validation in best/; recipe.json, log.jsonl, tensorboard/, curves.png, checkpoints/. All processes must see
            the same folder; only the main one writes.
        progress: called with (steps done, steps) between the lines of the log.

    Raises:
        TrainError: if the folder holds something else, a run with other settings, or a running one; if a batch
            cannot be loaded; if a checkpoint cannot be written.
        NotFinite: at the first NaN or infinite loss or gradient, whose batch is saved; the weights stay clean.
        Stopped: after SIGTERM or Ctrl-C, once a checkpoint is written.
    """
    out = Path(out)
    with contextlib.ExitStack() as held:
        processes.on_main(lambda: held.enter_context(run_folder.own_folder(out)))
        _fit(recipe, out, settings, processes, progress)


def _fit(recipe: Recipe, out: Path, settings: Settings, processes: Processes, progress: Progress | None) -> None:
    whole = run_folder.make(
        recipe.name, _decisive(recipe, settings, processes), _incidental(recipe, settings, processes)
    )
    if processes.on_main(lambda: run_folder.prepare(out, whole, settings.resume)):
        if processes.main:
            print(f"{out}: this run is finished already; nothing to do", flush=True)
        return
    if any(processes.any(not (out / run_folder.FILE).is_file())):
        raise TrainError(f"{out} is not the same folder for all processes: name one that all machines share")
    if (prepare := getattr(recipe, "prepare", None)) is not None:  # files of the recipe's own, before the first step
        prepare(out)
    run = _Run(recipe, out, settings, processes)
    with Interrupts() as interrupts:
        run.train(interrupts, progress)
        run.finish(whole)


class _Run:
    """A run between start and end: its modules, its optimizer, its progress and its best validation."""

    def __init__(self, recipe: Recipe, out: Path, settings: Settings, processes: Processes) -> None:
        self.recipe, self.out, self.settings, self.processes = recipe, out, settings, processes
        self.modules = dict(recipe.modules())
        if odd := [name for name in self.modules if "/" in name or name == "optimizer"]:
            raise TrainError(f"modules() may not name a module {odd[0]!r}")
        self.optimizer = recipe.optimizer()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.done, self.saved, self.validated = 0, 0, 0
        self.best: dict[str, Any] | None = None
        self._check_modules()
        processes.copy_from_main(t for m in self.modules.values() for t in (*m.parameters(), *m.buffers()))
        if found := processes.on_main(lambda: state.folders(out)):
            self._resume(*max(found.items()))

    def _check_modules(self) -> None:
        held = {id(p) for module in self.modules.values() for p in module.parameters()}
        if lost := sum(id(p) not in held for p in self.parameters):
            raise TrainError(f"modules() lacks {lost} of the optimizer's parameters: no checkpoint would hold them")

    def _resume(self, step: int, folder: Path) -> None:
        state.load(folder, self.modules, self.optimizer, self.processes.scaler)
        self.done = self.saved = step
        found = state.read_record(folder)
        self.best, self.validated = found["best"], found.get("validated", step)

    def train(self, interrupts: Interrupts, progress: Progress | None = None) -> None:
        """All steps that are not done yet."""
        settings, steps = self.settings, range(self.done, self.recipe.steps)
        feed = batches(self.recipe, steps, settings.seed, settings.workers, self.processes)
        with _log(self) as log, contextlib.closing(feed):
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
                self._agree(step, batch, interrupts)
                meter.add(self._step(step, batch))
                self.done = step + 1
                if _due(self.done, settings.log_every, self.recipe.steps):
                    log.training(self.done, meter.read(self.processes))
                    if progress is not None:
                        progress.pause()
                elif progress is not None:
                    progress(self.done, self.recipe.steps)
                improved = self._validation(log)
                if improved or _due(self.done, settings.save_every, self.recipe.steps):
                    self._save()

    def _agree(self, step: int, batch: Any, interrupts: Interrupts) -> None:
        """Stop all processes together, where one could not load its batch or was asked to stop."""
        failed, stopped = self.processes.any(isinstance(batch, Failure), interrupts.number != 0)
        if (failed or stopped) and self.saved < self.done:
            self._save()
        if failed:
            reasons = [
                text for text in self.processes.all_values(str(batch) if isinstance(batch, Failure) else "") if text
            ]
            raise TrainError(f"the batch of step {step + 1} cannot be loaded: {reasons[0]}")
        if stopped:
            raise Stopped(self.done, interrupts.number or signal.SIGTERM)

    def _step(self, step: int, batch: Any) -> dict[str, float]:
        """One step of the optimiser; returns what to log."""
        scaler, factor = self.processes.scaler, self.recipe.lr_factor(step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        seed_all(self.settings.seed, step, self.processes.rank)
        found = self.recipe.step(batch)
        self.processes.average_gradients(self.parameters)
        if not any(p.grad is not None for p in self.parameters):
            raise TrainError(f"{self.recipe.name}: step() left no gradient: it must call processes.backward(loss)")
        scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm or math.inf)
        length = float(norm)
        values = {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in found.items()}
        self._check(step, batch, values["loss"], length)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        values["lr"] = self.optimizer.param_groups[0]["lr"]
        if scaler.is_enabled():
            values["skipped"] = float(not math.isfinite(length))
        return {**values, "gradient_norm": length} if math.isfinite(length) else values

    def _check(self, step: int, batch: Any, loss: float, norm: float) -> None:
        """Stop all processes where a loss or gradient is not finite; with fp16, gradients may overflow for a while."""
        scaler = self.processes.scaler
        bad = not math.isfinite(loss) or (not scaler.is_enabled() and not math.isfinite(norm))
        bad = bad or (scaler.is_enabled() and scaler.get_scale() < _SMALLEST_SCALE)
        if any(self.processes.any(bad)):
            self._refuse(step, batch, loss, norm)

    def _refuse(self, step: int, batch: Any, loss: float, norm: float) -> NoReturn:
        place = self.out / FAILED / f"step-{step + 1:06d}-process-{self.processes.rank}"
        try:
            dump(batch, place, {"step": step + 1, "loss": str(loss), "gradient_norm": str(norm)})
            kept = f"the batch is in {place}.safetensors and .json"
        except Exception as error:  # such as a full disk: the first error must still be reported
            kept = f"the batch cannot be saved ({error})"
        self.processes.wait()  # a launcher ends all processes as soon as one has failed
        raise NotFinite(
            f"step {step + 1}: the loss is {loss:g} and the norm of its gradient {norm:g}; {kept}, the weights are as "
            f"before it; the last checkpoint is of step {self.saved}"
        )

    def _validation(self, log: Log | Silence) -> bool:
        """Validate if it is due; if it fails, the run is saved, and a resumed run validates first."""
        if self.validated == self.done or not _due(self.done, self.settings.validate_every, self.recipe.steps):
            return False
        try:
            improved = self._validate(log)
        except TrainError:  # in all processes
            if self.saved < self.done:
                self._save()
            raise
        self.validated = self.done
        return improved

    def _validate(self, log: Log | Silence) -> bool:
        """Log the scores of the model; True if it is better than ever."""
        seed_all(self.settings.seed, self.done, self.processes.rank, 2)
        modes = {m: m.training for module in self.modules.values() for m in module.modules()}
        self._share_buffers()  # one model is measured, that which is saved
        values = self._scores()
        for module, mode in modes.items():
            module.training = mode
        if values:
            log.validation(self.done, values)
        if values and self.recipe.best and self.recipe.best not in values:
            raise TrainError(f"the best checkpoint is that of {self.recipe.best!r}, but there is only {sorted(values)}")
        if not values or not self.recipe.best or self.done == 0:
            return False
        value = values[self.recipe.best]
        if math.isnan(value) or (self.best is not None and value <= self.best["value"]):
            return False
        self.best = {"step": self.done, "value": value}
        return True

    def _scores(self) -> dict[str, float]:
        """The main process's scores; all stop together where validation fails in one."""
        own: dict[str, float] | str
        try:
            own = dict(self.recipe.validate())
        # an image that cannot be read, a model that has diverged, an accelerator without room
        except (OSError, ValueError, torch.OutOfMemoryError, OtherFailed) as error:
            own = str(error)
        found = self.processes.all_values(own)
        for values in found:
            if isinstance(values, str):
                raise TrainError(f"validation after step {self.done}: {values}")
        return cast("dict[str, float]", found[0])

    def _save(self) -> None:
        """Write the checkpoint of this step, then delete those beyond `keep`."""
        self._share_buffers()
        best = self.best
        more = {"best": best, "validated": self.validated}

        def write() -> None:
            state.save(self.out, self.done, self.modules, self.optimizer, self.processes.scaler, more)
            state.prune(self.out, self.settings.keep, best["step"] if best else None)

        self.processes.on_main(write)
        self.saved = self.done

    def _share_buffers(self) -> None:
        # BatchNorm's statistics differ between processes, and a resumed run would have the main one's
        self.processes.copy_from_main(buffer for module in self.modules.values() for buffer in module.buffers())

    def finish(self, whole: Mapping[str, Any]) -> None:
        """Write the result, of the last step and of the best one, the curves, and that the run is finished."""

        def write() -> None:
            self.recipe.save(self.out)
            folders = state.folders(self.out)
            if self.best is not None and self.best["step"] in folders:
                state.load_weights(folders[self.best["step"]], self.modules)
                self.recipe.save(self.out / BEST)
                state.load_weights(folders[self.done], self.modules)
            curves(self.out)
            run_folder.write(self.out, {**whole, "finished": True, "best": self.best})

        self.processes.on_main(write)


def _log(run: _Run) -> Log | Silence:
    made: list[Log] = []
    run.processes.on_main(
        lambda: made.append(Log(run.out, run.done, run.recipe.steps, run.settings.wandb, run.recipe.settings))
    )
    return made[0] if made else Silence()


def _due(done: int, every: int, steps: int) -> bool:
    return done == steps or (every > 0 and done % every == 0)


def _decisive(recipe: Recipe, settings: Settings, processes: Processes) -> dict[str, Any]:
    """Settings that decide the weights."""
    own = {
        "seed": settings.seed,
        "max_grad_norm": settings.max_grad_norm,
        "precision": processes.precision,
        "steps": recipe.steps,
    }
    return {**{name: value for name, value in recipe.settings.items() if name not in _FREE}, **own}


def _incidental(recipe: Recipe, settings: Settings, processes: Processes) -> dict[str, Any]:
    """Settings that a resumed run may change."""
    return {
        "run": dataclasses.asdict(settings),
        "device": str(processes.device.type),
        "processes": processes.count,
        "trained_parameters": parameter_counts(recipe)[0],
    }


def parameter_counts(recipe: Recipe) -> tuple[int, int]:
    """Parameters that train, and all parameters, of all modules."""
    found = [p for module in recipe.modules().values() for p in module.parameters()]
    return sum(p.numel() for p in found if p.requires_grad), sum(p.numel() for p in found)


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
