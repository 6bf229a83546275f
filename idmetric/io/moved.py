"""The documented modules of version 0.1 under their old names, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MOVED = {
    "idmetric.backbone": "idmetric.models.backbone",
    "idmetric.checkpoint": "idmetric.checkpoints.format",
    "idmetric.clusters": "idmetric.gallery.clusters",
    "idmetric.embedder": "idmetric.models.embedder",
    "idmetric.embedding": "idmetric.models.embedding",
    "idmetric.evaluate.calibration": "idmetric.calibration",
    "idmetric.evaluate.thresholds": "idmetric.calibration.thresholds",
    "idmetric.finite": "idmetric.distance.finite",
    "idmetric.identity_loss": "idmetric.losses.identity",
    "idmetric.idsim": "idmetric.models.idsim",
    "idmetric.inputs": "idmetric.images.paths",
    "idmetric.masks": "idmetric.images.masks",
    "idmetric.nearid": "idmetric.models.nearid",
    "idmetric.patchmap": "idmetric.scoring.heatmaps",
    "idmetric.records": "idmetric.scoring.records",
    "idmetric.sinkhorn": "idmetric.distance.sinkhorn",
    "idmetric.visid": "idmetric.models.visid",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module by its old name; Python asks it last, after all other ways to find a module."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} has moved to {MOVED[spec.name]}", DeprecationWarning, stacklevel=2)
        return importlib.import_module(MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Undo what the import system did to a module that has run under its new name already."""
        module.__spec__ = PathFinder.find_spec(
            module.__name__, sys.modules[module.__name__.rpartition(".")[0]].__path__
        )


def install() -> None:
    """Let the old names be imported."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
