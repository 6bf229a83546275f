"""Reasons for a run to stop before its end: a signal, or a batch with a loss that is not finite."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from idmetric.train.state import TrainError, copied, replace_text


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


class Interrupts:
    """Within the block, SIGTERM and Ctrl-C only set `number`; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.number = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.before = {n: signal.signal(n, self._ask) for n in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


def dump(batch: Any, place: Path, more: Mapping[str, Any]) -> None:
    """Write a batch: its tensors to place.safetensors, its other values to place.json."""
    tensors: dict[str, Tensor] = {}
    values = _flatten(batch, "batch", tensors)
    place.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: copied(value) for name, value in tensors.items()}, f"{place}.safetensors")
    replace_text(place.with_name(place.name + ".json"), json.dumps({**more, "batch": values}, default=str, indent=1))


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Convert a value for JSON; tensors go to `tensors`, and their names take their place. Few whole numbers stay."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return value.tolist() if value.numel() <= 4096 and not value.is_floating_point() else {"tensor": name}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _flatten(v, f"{name}.{k}", tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_flatten(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]
    return value
