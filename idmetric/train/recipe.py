"""The interface between a recipe and the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from idmetric.metric.models.embedder import Embedder

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.data.painter import Painter


class Recipe(Protocol):
    """The interface of a recipe for `fit`. All random choices follow from seed and step, so resuming needs only these.

    Attributes:
        name: such as "nearid".
        settings: JSON values: the recipe's config, and everything else that must be the same in a resumed run,
            such as a fingerprint of the data.
        model: on `processes.device`, in train mode where it trains; parameters that train require grad.
        steps: optimizer steps of the whole run.
        best: key of `validate()`; its highest value marks the best checkpoint; "" = keep no best one.

    A recipe that writes its own files may also have `prepare(out: Path)`: called in every process before the first
    step, also when a run resumes. A recipe with large batches may set `prefetch: int`, the number of batches
    that a loading process reads ahead (default: 2).
    """

    name: str
    settings: Mapping[str, Any]
    model: Embedder
    steps: int
    best: str

    def modules(self) -> Mapping[str, nn.Module]:
        """Modules to checkpoint: {"model": ..., "loss": ...}; only trained parameters and buffers are stored."""
        return {"model": self.model}

    def optimizer(self) -> torch.optim.Optimizer:
        """A new optimizer of the trained parameters, at its peak learning rates."""

    def lr_factor(self, step: int) -> float:
        """Factor of the learning rates at a step, from 0; here it is constant."""
        return 1.0

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

    def save(self, folder: Path) -> None:
        """Write the model in the format of `idmetric.load(folder)`."""
        self.model.save_pretrained(folder)


def parameter_counts(recipe: Recipe) -> tuple[int, int]:
    """Parameters that train, and all parameters, of all modules."""
    found = [p for module in recipe.modules().values() for p in module.parameters()]
    return sum(p.numel() for p in found if p.requires_grad), sum(p.numel() for p in found)


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards each submodule returns to its own mode."""
    modes = {part: part.training for module in modules for part in module.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def painted(folder: Path, painter: Painter, count: int, validated: int) -> Manifest:
    """Painted identities for `--smoke`; the last ones, and the images made from them, are to validate."""
    manifest = painter.paint(folder, count)
    number = [int(name.split("/")[0].rsplit("-", 1)[1]) for name in manifest.column("id")]
    return manifest.replace(split=["val" if n >= count - validated else "train" for n in number])
