"""The names by which models are opened, checked before torch is imported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.hub import check_repository
from idmetric.metric.files import StrPath
from idmetric.metric.models.efficientnet_lite import FILES as EFFICIENTNET_LITE
from idmetric.metric.models.named import FROZEN, NAMED

if TYPE_CHECKING:
    from idmetric.metric.checkpoints.fingerprint import Weights

TIMM = ("timm:", "hf-hub:")
_CLASS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def check(source: StrPath) -> str:
    """The kind of a name: of `known`, or "folder", "hub" or "class".

    Raises:
        CheckpointError: for a name that is neither known nor the form of a repository or class, or an exported file.

    A name that is known is never a folder: that is written "./NAME".
    """
    name = released.source_name(source)
    if name.endswith(".onnx"):
        raise CheckpointError(f"{name!r}: exported models are not scored by this package: run them with onnxruntime")
    if kind := known(name):
        return kind
    if Path(name).is_dir():
        return "folder"
    if "/" in name:
        check_repository(name)
        return "hub"
    _check_class(name)
    return "class"


def known(name: str) -> str:
    """The kind of a name that the package knows: "timm", "frozen", or a model_type; "" for others."""
    if name.startswith(TIMM):
        return "timm"
    if name in FROZEN:
        return "frozen"
    if name in NAMED or name in EFFICIENTNET_LITE:
        return "backbone"
    if name == "tiny" or released.find(name, released.IDSIM):
        return "idsim"
    if released.find(name, released.NEARID):
        return "nearid"
    if released.find(name, released.VISID):
        return "qwen2_5_vl"
    return ""


def tell_apart(weights: Weights) -> None:
    """Put "./" before the short name of a folder's weights if a published model has that name."""
    if weights.is_folder and known(weights.short_name):
        weights.short_name = f"./{weights.short_name}"


def is_class(name: str) -> bool:
    """Whether this reads as `package.module:Class`."""
    return re.fullmatch(_CLASS, name) is not None


def _check_class(name: str) -> None:
    if not is_class(name):
        models = ["tiny", *released.models(), *EFFICIENTNET_LITE]
        raise CheckpointError(
            f"unknown model {name!r}: choose {', '.join(models)}, timm:NAME, a score or encoder of "
            "`idmetric models`, an existing folder, owner/name on the Hub, or package.module:Class"
        )
