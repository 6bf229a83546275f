"""Numbers of a step, written to whatever logs a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_writer(writer: Any) -> None:
    """Check that numbers can be logged to a writer.

    Raises:
        TypeError: for a writer of another kind than those of `log_scalars`.
    """
    if not (hasattr(writer, "add_scalar") or hasattr(writer, "log") or callable(writer)):
        raise TypeError(
            f"cannot log to a {type(writer).__name__}: give a SummaryWriter, a run of wandb, an Accelerator, or a "
            "function of (numbers, step)"
        )


def log_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Log numbers by name.

    Args:
        writer: TensorBoard's `SummaryWriter`; a run of Weights & Biases or an `Accelerator`, with
            `log(numbers, step=...)`; or a function of (numbers, step).
    """
    if hasattr(writer, "add_scalar"):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    elif hasattr(writer, "log"):
        writer.log(dict(values), step=step)
    else:
        writer(dict(values), step)
