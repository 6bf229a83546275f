"""How to run any recipe, and where a timm model's first weights come from. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from idmetric.evaluate.settings import option

Precision = Literal["no", "bf16", "fp16"]  # of mixed precision
RANDOM = "random"
WEIGHTS_HELP = "its weights: a local file or folder instead of the Hub's; random = new ones, for experiments"


@dataclass(frozen=True)
class TrainSettings:
    """How to run any recipe. If a recipe's Config has a field of the same name, such as seed, its value counts."""

    seed: int = option(0, "all random numbers follow from it")
    precision: Precision = option("no", "mixed precision")
    max_grad_norm: float = option(0.0, "largest norm of the gradient; 0 = any")
    save_every: int = option(500, "steps between checkpoints; 0 = at the end only")
    keep: int = option(2, "latest checkpoints to keep, in addition to the best one; 0 = all")
    validate_every: int = option(500, "steps between validations, the first before training; 0 = at the end only")
    log_every: int = option(10, "steps between lines of the log")
    workers: int = option(
        -1, "loading processes of each training process; -1 = one per core, at most 8; 0 = none, as outside of Linux"
    )


def weights_file(backbone: str, source: str, revision: str | None = None) -> str:
    """The file of a timm model's weights (`--backbone-weights`); "" for random ones, which only "random" asks for.

    Args:
        backbone: timm's name.
        source: "", those of its Hub repository; a file in timm's format, or a folder with it as model.safetensors;
            "random".
        revision: commit of the Hub repository.
    """
    from idmetric.metric.checkpoints import format as checkpoint
    from idmetric.metric.errors import CheckpointError
    from idmetric.metric.timm_models import pretrained_file

    if source == RANDOM:
        return ""
    if not source:
        try:
            return str(pretrained_file(backbone, {"revision": revision}))
        except CheckpointError as error:
            raise CheckpointError(f"{error}. To train, name a local file or folder: --backbone-weights PATH") from error

    path = Path(source)
    if path.is_dir():
        path = path / checkpoint.WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"--backbone-weights {source}: no such file, {path} (random = new ones, for experiments)")
    return str(path)
