"""`idmetric.load`: open a model without knowing its class."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from idmetric import checkpoint, released
from idmetric.checkpoint import CheckpointError
from idmetric.embedder import Embedder

# model_type of config.json -> its class
_CLASSES = {
    "idsim": ("idmetric.idsim", "IDSim"),
    "backbone": ("idmetric.backbone", "Backbone"),
}


def load(source: str | os.PathLike[str], **options: Any) -> Embedder:
    """Open a model by name, folder or Hub repository, in the class its config names.

    Args:
        source: a name `IDSim` knows ("tiny", "dinov3_vitl16", ...), a folder that `save_pretrained` or training wrote,
            a Hub repository `owner/name` with such files, or "timm:NAME" for a frozen `Backbone`.
        options: passed to the class, e.g. device, dtype, revision.

    Raises:
        CheckpointError: if it cannot be found or is of no kind this version knows.
    """
    name = os.fspath(source)
    if name.startswith("timm:"):
        return _open("backbone", name.removeprefix("timm:"), options)
    if name == "tiny" or name in released.IDSIM or Path(name, released.ADAPTER_CONFIG).is_file():
        return _open("idsim", name, options)
    if Path(name).is_dir():
        config = checkpoint.read_config(name)
    elif "/" in name:
        config = checkpoint.read_config(name, revision=options.get("revision"), cache_dir=options.get("cache_dir"))
    else:
        raise CheckpointError(
            f"unknown model {name!r}: choose tiny, {', '.join(released.IDSIM)}, timm:NAME, an existing folder, or "
            "owner/name on the Hub"
        )
    return _open(config["model_type"], name, options)


def _open(model_type: str, name: str, options: dict[str, Any]) -> Embedder:
    if model_type not in _CLASSES:
        raise CheckpointError(f"{name!r} holds a model of unknown type {model_type!r}; known: {', '.join(_CLASSES)}")
    module, attribute = _CLASSES[model_type]
    model: Embedder = getattr(importlib.import_module(module), attribute)(name, **options)
    return model
