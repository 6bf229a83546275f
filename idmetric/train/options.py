"""How to run any recipe. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from idmetric.io.settings import option as option  # recipes import it from here

Precision = Literal["no", "bf16", "fp16"]  # of mixed precision
# names in run folders and configuration files of version 0.1; as options they work without being listed
RENAMED = {"rate": "lr", "classifier_rate": "classifier_lr", "batch": "batch_size", "clip": "max_grad_norm"}


def current(name: str) -> str:
    """The name of a setting today, from the name that version 0.1 may have given it."""
    return RENAMED.get(name, name)


def check_least(settings: Any, **least: float) -> None:
    """Check that these settings are not below their least values.

    Raises:
        ValueError: naming the first that is.
    """
    for name, value in least.items():
        if not getattr(settings, name) >= value:
            raise ValueError(f"{name} = {getattr(settings, name)}: it must be {value} or more")


def check_positive(settings: Any, *names: str) -> None:
    """Check that these settings are above 0.

    Raises:
        ValueError: naming the first that is not.
    """
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name} = {getattr(settings, name)}: it must be above 0")


@dataclass(frozen=True)
class Settings:
    """How to run any recipe. If a recipe's Config has a field of the same name, such as seed, its value counts."""

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
        check_least(self, seed=0, max_grad_norm=0, save_every=0, keep=0, validate_every=0, log_every=1, workers=-1)
