"""The log of a training run: lines on stdout, log.jsonl, and TensorBoard.

log.jsonl has one object per line: {"step": 100, "loss": ..., "lr": ...}, means since the line before, and
{"step": 100, "validation": {"map": ...}}. A resumed run removes the lines after its checkpoint: no step occurs twice.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from idmetric.metric.files import json_text, need, replacing, writing
from idmetric.train.processes import Processes

FILE = "log.jsonl"
_RATES = ("images_per_second", "seconds_per_step", "waiting")


class Log:
    """The log of a run.

    Args:
        done: steps that the run's checkpoint holds. steps: of the whole run.
        write: False makes it silent, as in all processes but the main one.
    """

    def __init__(self, out: Path, done: int, steps: int, write: bool = True) -> None:
        self.path = out / FILE
        self.done = done
        self.steps = steps
        self.write = write
        self.start = time.monotonic()
        self.board: Any = None
        if write:
            truncate(self.path, done)
            need("train", "the log of a training", tensorboard="tensorboard")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torch.utils.tensorboard import SummaryWriter
            self.board = SummaryWriter(str(out / "tensorboard"), purge_step=done + 1 if done else 0)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self.board is not None:
            self.board.close()

    def line(self, text: str) -> None:
        """Print a line for the user."""
        if self.write:
            print(text, flush=True)

    def training(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of training after a step, `loss` first."""
        self._log("train", step, values, {"step": step, **values})
        shown = {name: value for name, value in values.items() if name not in _RATES}
        text = _listed(shown)
        if "images_per_second" in values:
            text += f"  {values['images_per_second']:.1f} images/s"
        seconds_each = (time.monotonic() - self.start) / max(1, step - self.done)
        left = timedelta(seconds=int(seconds_each * (self.steps - step)))
        self.line(f"step {step}/{self.steps}  {text}  {left} left")

    def validation(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of validation after a step."""
        values = {name: float(value) for name, value in values.items()}  # NumPy's numbers
        self._log("validation", step, values, {"step": step, "validation": values})
        self.line(f"step {step}/{self.steps}  validation: {_listed(values)}")

    def _log(self, part: str, step: int, values: Mapping[str, float], record: Mapping[str, Any]) -> None:
        if self.write:
            with writing(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json_text(record) + "\n")
            for name, value in values.items():
                self.board.add_scalar(f"{part}/{name}", value, step)


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
            self.values[name].append(value)
        self.count += 1

    def read(self, processes: Processes) -> dict[str, float]:
        """Means since the last reading, over all processes; "images" becomes their total of images per second."""
        means = {name: sum(values) / len(values) for name, values in self.values.items()}
        process_means = processes.all_values(means)
        for name in means:
            means[name] = sum(values[name] for values in process_means) / len(process_means)
        seconds = (time.monotonic() - self.start) / self.count
        if "images" in means:
            means["images_per_second"] = means.pop("images") * len(process_means) / seconds
        waiting = self.waiting / self.count / seconds
        self._clear()
        return {"loss": means.pop("loss"), **means, "seconds_per_step": seconds, "waiting": waiting}

    def _clear(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self.count = 0
        self.waiting = 0.0
        self.start = time.monotonic()


def truncate(path: Path, done: int) -> None:
    """Remove the lines of steps after `done` (all if it is 0), and an unfinished line."""
    lines = []
    if done and path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):  # an unfinished line
                if json.loads(line)["step"] <= done:
                    lines.append(line + "\n")
    with replacing(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def _listed(values: Mapping[str, float]) -> str:
    """Names and values, with few digits."""
    parts = []
    for name, value in values.items():
        digits = ".2e" if 0 < abs(value) < 1e-3 else ".4g"
        parts.append(f"{name} {value:{digits}}")
    return "  ".join(parts)
