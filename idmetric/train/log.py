"""The log of a training run: lines on stdout, log.jsonl, TensorBoard, and Weights & Biases.

log.jsonl has one object per line: {"step": 100, "loss": ..., "lr": ...}, means since the line before, and
{"step": 100, "validation": {"map": ...}}. A resumed run removes the lines after its checkpoint: no step occurs twice.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from idmetric.io import json_file
from idmetric.io.hints import install
from idmetric.io.output import writing
from idmetric.io.progress import log_scalars
from idmetric.train.processes import Processes
from idmetric.train.state import replace_text

FILE = "log.jsonl"
_RATES = ("images_per_second", "seconds_per_step", "waiting")


class Log:
    """The log of a run of so many steps; silent until it is opened, as it is by the main process."""

    def __init__(self, out: Path, steps: int) -> None:
        self.out, self.steps, self.done = out, steps, 0
        self.start = time.monotonic()
        self.file: TextIO | None = None
        self.board: Any = None
        self.wandb: Any = None

    def open(self, done: int, wandb: str = "", settings: Mapping[str, Any] | None = None) -> None:
        """Begin to write.

        Args:
            done: steps that the run's checkpoint holds.
            wandb: project of Weights & Biases; "" for none. settings: the configuration shown there.
        """
        self.done = done
        truncate(self.out / FILE, done)
        self.file = (self.out / FILE).open("a", encoding="utf-8")
        self.board = _tensorboard(self.out / "tensorboard", done)
        self.wandb = _wandb(wandb, self.out, settings or {}) if wandb else None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.file is not None:
            self.file.close()
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish(exit_code=0 if kind is None else 1)

    def line(self, text: str) -> None:
        """Print a line for the user."""
        if self.file is not None:
            print(text, flush=True)

    def training(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of training after a step, `loss` first."""
        self._write(step, values, {"step": step, **{k: float(v) for k, v in values.items()}}, "train")
        shown = [f"{name} {_short(value)}" for name, value in values.items() if name not in _RATES]
        if "images_per_second" in values:
            shown.append(f"{values['images_per_second']:.1f} images/s")
        seconds = (time.monotonic() - self.start) / max(1, step - self.done) * (self.steps - step)
        left = f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"
        self.line(f"step {step}/{self.steps}  {'  '.join(shown)}  {left} left")

    def validation(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of validation after a step."""
        self._write(step, values, {"step": step, "validation": {k: float(v) for k, v in values.items()}}, "validation")
        self.line(f"step {step}/{self.steps}  validation: {'  '.join(f'{k} {_short(v)}' for k, v in values.items())}")

    def _write(self, step: int, values: Mapping[str, float], record: Mapping[str, Any], part: str) -> None:
        if self.file is not None:
            with writing(self.out / FILE):
                self.file.write(json_file.text(record) + "\n")
                self.file.flush()
        for writer in (self.board, self.wandb):
            if writer is not None:
                log_scalars(writer, {f"{part}/{name}": value for name, value in values.items()}, step)


class Meter:
    """Means of the values that steps returned, and the speed of the steps."""

    def __init__(self) -> None:
        self._clear()

    def wait(self) -> None:
        self.waiting -= time.monotonic()

    def go(self) -> None:
        self.waiting += time.monotonic()

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, count + 1)
        self.count += 1

    def read(self, processes: Processes) -> dict[str, float]:
        """Means since the last reading, over all processes; "images" becomes their total of images per second."""
        own = {name: total / count for name, (total, count) in self.sums.items()}
        alike = processes.all_values(own)
        means = {name: sum(values[name] for values in alike) / len(alike) for name in own}
        seconds = (time.monotonic() - self.start) / self.count
        if "images" in means:
            means["images_per_second"] = means.pop("images") * len(alike) / seconds
        waiting = self.waiting / self.count / seconds
        self._clear()
        return {"loss": means.pop("loss"), **means, "seconds_per_step": seconds, "waiting": waiting}

    def _clear(self) -> None:
        self.sums: dict[str, tuple[float, int]] = {}
        self.count, self.waiting, self.start = 0, 0.0, time.monotonic()


def truncate(path: Path, done: int) -> None:
    """Remove the lines of steps after `done` (all if it is 0), and an unfinished line."""
    if not path.is_file():
        return
    kept = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            step = int(json_file.parse(text)["step"])
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        if 0 < done >= step:
            kept.append(text + "\n")
    replace_text(path, "".join(kept))


def _short(value: float) -> str:
    return f"{value:.2e}" if value and abs(value) < 1e-3 else f"{value:.4g}"


def _tensorboard(folder: Path, done: int) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print(f"no TensorBoard log: {install('train')}", file=sys.stderr)
        return None
    return SummaryWriter(str(folder), purge_step=done + 1 if done else 0)


def _wandb(project: str, out: Path, settings: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("--wandb needs wandb: pip install wandb") from error
    name = out / "wandb.json"
    known = json.loads(name.read_text(encoding="utf-8")) if name.is_file() else {"id": uuid4().hex}
    replace_text(name, json.dumps(known))
    return wandb.init(project=project, id=known["id"], resume="allow", dir=str(out), config=dict(settings))
