"""The documented modules of version 0.1 under their old names, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# old name -> the modules that have its names now
MOVED: dict[str, tuple[str, ...]] = {
    "idmetric.backbone": ("idmetric.models.backbone",),
    "idmetric.checkpoint": (
        "idmetric.checkpoints.format",
        "idmetric.checkpoints.hub",
        "idmetric.checkpoints.weights",
        "idmetric.checkpoints.lora",
        "idmetric.checkpoints.errors",
    ),
    "idmetric.clusters": ("idmetric.gallery.clusters",),
    "idmetric.data.masking": ("idmetric.data.curate.masking",),
    "idmetric.data.mine": ("idmetric.data.curate.mine",),
    "idmetric.data.split": ("idmetric.data.manifest.split",),
    "idmetric.data.summary": ("idmetric.data.manifest.summary",),
    "idmetric.data.triplets": ("idmetric.data.curate.triplets",),
    "idmetric.embedder": ("idmetric.models.embedder", "idmetric.models.identified"),
    "idmetric.embedding": ("idmetric.models.embedding",),
    "idmetric.evaluate.calibration": ("idmetric.calibration",),
    "idmetric.evaluate.thresholds": ("idmetric.calibration.thresholds",),
    "idmetric.finite": ("idmetric.distance.finite",),
    "idmetric.identity_loss": ("idmetric.losses.identity",),
    "idmetric.idsim": ("idmetric.models.idsim",),
    "idmetric.inputs": ("idmetric.images.paths",),
    "idmetric.loading": ("idmetric.models.load",),
    "idmetric.masks": ("idmetric.images.masks",),
    "idmetric.nearid": ("idmetric.models.nearid",),
    "idmetric.output": ("idmetric.io.output",),
    "idmetric.patchmap": ("idmetric.scoring.heatmaps", "idmetric.distance.patches"),
    "idmetric.protocols.baselines": ("idmetric.protocols.common.baselines",),
    "idmetric.protocols.dreambench": ("idmetric.protocols.nearid_table2_dreambench.protocol",),
    "idmetric.protocols.idsim_sets": ("idmetric.protocols.idsim_table2b_retrieval.protocol",),
    "idmetric.protocols.judge": ("idmetric.protocols.judges.judge",),
    "idmetric.protocols.judge_endpoint": (
        "idmetric.protocols.judges.endpoint",
        "idmetric.protocols.judges.reply",
    ),
    "idmetric.protocols.mveb": ("idmetric.protocols.visme_table1_mveb",),
    "idmetric.protocols.nearid": ("idmetric.protocols.nearid_table1_margins",),
    "idmetric.protocols.persam": ("idmetric.protocols.idsim_table2c_segmentation.persam",),
    "idmetric.protocols.result": ("idmetric.protocols.common.result",),
    "idmetric.protocols.retrieval": ("idmetric.protocols.ilgen_table2_retrieval",),
    "idmetric.protocols.scorers": (
        "idmetric.protocols.common.scorers",
        "idmetric.protocols.common.models",
    ),
    "idmetric.protocols.segmentation": ("idmetric.protocols.idsim_table2c_segmentation.protocol",),
    "idmetric.protocols.sensitivity": ("idmetric.protocols.idsim_fig6_sensitivity",),
    "idmetric.records": ("idmetric.scoring.records",),
    "idmetric.sinkhorn": ("idmetric.distance.sinkhorn",),
    "idmetric.train.schedule": ("idmetric.train.visme.schedule",),
    "idmetric.visid": ("idmetric.models.visid",),
}
RENAMED = {
    "cached": "cached_file",
    "centre_and_normalise": "center_and_normalize",
    "fold_lora": "merge_lora",
    "folder": "fetch_folder",
    "push": "push_folder",
    "weightless": "init_empty_weights",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module by its old name; Python asks it last, after all other ways to find a module."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Let the module take its names from the modules that have them now."""
        name = module.__name__
        warnings.warn(f"{name} has moved to {', '.join(MOVED[name])}", DeprecationWarning, stacklevel=2)
        homes = [importlib.import_module(home) for home in MOVED[name]]

        def get(attribute: str) -> Any:
            for home in homes:
                for known in (attribute, RENAMED.get(attribute, attribute)):
                    if hasattr(home, known):
                        return getattr(home, known)
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

        vars(module).update(__doc__=homes[0].__doc__, __getattr__=get, __all__=_public(homes[0]))


def _public(module: ModuleType) -> list[str]:
    return [name for name in getattr(module, "__all__", vars(module)) if not name.startswith("_")]


def install() -> None:
    """Let the old names be imported."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
