"""The interface between a recipe and the loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from idmetric.data.manifest import with_columns
from idmetric.metric.embedder import Embedder
from idmetric.train.lora import folded

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.data.painter import Painter


class Recipe(Protocol):
    """The interface of a recipe for `fit`. All random choices follow from seed and step, so resuming needs only these.

    Attributes:
        name: such as "nearid".
        settings: JSON values: the recipe's config, and everything else that must be the same in a resumed run,
            such as a fingerprint of the data; see `decisive`.
        model: on `processes.device`, in train mode where it trains; parameters that train require grad.
        steps: optimizer steps of the whole run.
        best: key of `validate()`; its highest value marks the best checkpoint; "" = keep no best one.
        prefetch: batches that a loading process reads ahead; fewer where batches are large.
    """

    name: str
    settings: Mapping[str, Any]
    model: Embedder
    steps: int
    best: str = ""
    prefetch: int = 2

    def modules(self) -> Mapping[str, nn.Module]:
        """Modules to checkpoint: {"model": ..., "loss": ...}; only trained parameters and buffers are stored."""
        return {"model": self.model}

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that train, of all modules."""
        whole = nn.ModuleList(self.modules().values())
        return [parameter for parameter in whole.parameters() if parameter.requires_grad]

    def optimizer(self) -> torch.optim.Optimizer:
        """A new optimizer of the trained parameters, at its peak learning rates."""

    def lr_factor(self, step: int) -> float:
        """Factor of the learning rates at a step, from 0; here it is constant."""
        return 1.0

    def prepare(self, out: Path) -> None:
        """Write files of the recipe's own: called in every process before the first step, also when a run resumes."""

    def load(self, step: int) -> Any:
        """This process's share of a step's batch: nested dicts, lists, tuples of CPU tensors and plain values.

        Called in loading processes, with a copy of the recipe: reads data, nothing else.
        """

    def step(self, batch: Any) -> Mapping[str, float | Tensor]:
        """Forward and backward of a batch from `load` (`processes.place` puts it on the device).

        Calls `processes.backward` as often as it likes. Returns scalars to log, the same names in each process,
        including "loss"; "images", if there, counts the images of this process's share and becomes images per second.
        """

    def validate(self) -> Mapping[str, float]:
        """Scores of the current model; may be empty. Called in every process; the main one's scores count."""
        return {}

    def save(self, folder: Path) -> None:
        """Write the model in the format of `idmetric.load(folder)`; LoRA is folded into its weights."""
        with folded(self.model):
            self.model.save_pretrained(folder)


def decisive(config: Any, incidental: Collection[str], **more: Any) -> dict[str, Any]:
    """A recipe's `settings`: the fields of its config, and further values.

    Args:
        incidental: names of fields that change no weights, such as chunk, or that others identify.
    """
    fields = {name: value for name, value in asdict(config).items() if name not in incidental}
    return fields | more


def parameter_counts(recipe: Recipe) -> tuple[int, int]:
    """Parameters that train, and all parameters, of all modules."""
    trained = sum(parameter.numel() for parameter in recipe.parameters())
    whole = nn.ModuleList(recipe.modules().values())
    return trained, sum(parameter.numel() for parameter in whole.parameters())


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards each submodule returns to its own mode."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def painted(folder: Path, painter: Painter, count: int, validated: int) -> DataFrame:
    """Painted identities for `--smoke`; the last ones, and the images made from them, are to validate."""
    table = painter.paint(folder, count)
    is_validated = painted_numbers(table) >= count - validated
    return with_columns(table, split=np.where(is_validated, "val", "train"))


def painted_numbers(table: DataFrame) -> NDArray[np.int64]:
    """For each row of a painted manifest, the number (N,) of the identity that it shows or was made from."""
    return np.array([int(name.split("/")[0].rsplit("-", 1)[1]) for name in table["id"]])
