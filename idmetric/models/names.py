"""The names by which models are opened, checked before torch is imported."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from idmetric.checkpoints import released
from idmetric.checkpoints.errors import CheckpointError
from idmetric.checkpoints.hub import check_repository
from idmetric.io.hints import did_you_mean
from idmetric.models.efficientnet_lite import FILES as EFFICIENTNET_LITE
from idmetric.models.named import FROZEN, NAMED

ONNX = ".onnx"
TIMM = ("timm:", "hf-hub:")
_CLASS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def check(source: str | os.PathLike[str]) -> None:
    """Refuse a name that `idmetric.load` cannot open, whatever is on the Hub.

    Raises:
        CheckpointError: for a name that is neither known nor the form of a repository or class, and for an absent file.
    """
    name = os.fspath(source)
    if name.endswith(ONNX):
        check_onnx(name)
    elif not _is_known(name) and not Path(name).is_dir():
        if "/" in name:
            check_repository(name)
        else:
            _check_class(name)


def check_onnx(path: str | os.PathLike[str]) -> None:
    """Refuse an exported model that is not there."""
    if not os.path.isfile(path):
        raise CheckpointError(f"there is no file {os.fspath(path)!r}: `idmetric export` writes ONNX files")


def is_class(name: str, *, found: bool = False) -> bool:
    """Whether this reads as `package.module:Class`; with `found`, also whether there is such a package."""
    if re.fullmatch(_CLASS, name) is None:
        return False
    return not found or importlib.util.find_spec(re.split(r"[.:]", name)[0]) is not None


def _is_known(name: str) -> bool:
    if name.startswith(TIMM) or name in FROZEN or name in NAMED or name in EFFICIENTNET_LITE:
        return True
    return name == "tiny" or released.find(name, released.models()) is not None


def _check_class(name: str) -> None:
    known = ["tiny", *released.models(), *EFFICIENTNET_LITE]
    meant = did_you_mean(name, [*known, *NAMED, *FROZEN])
    if not is_class(name, found=bool(meant)):
        raise CheckpointError(
            f"unknown model {name!r}: choose {', '.join(known)}, timm:NAME, a score or encoder of --list-models, an "
            f"existing folder, owner/name on the Hub, or package.module:Class{meant}"
        )
