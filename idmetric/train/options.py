"""How to run any recipe. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from idmetric.io.settings import option

Precision = Literal["no", "bf16", "fp16"]  # of mixed precision


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
