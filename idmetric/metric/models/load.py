"""`idmetric.load`: open a model without knowing its class."""

from __future__ import annotations

import importlib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.released import source_name
from idmetric.metric.files import StrPath
from idmetric.metric.models import names
from idmetric.metric.models.named import FROZEN

if TYPE_CHECKING:
    from idmetric.metric.models.embedder import Embedder

# model_type of config.json -> its class
_CLASSES = {
    "idsim": ("idmetric.metric.models.idsim", "IDSim"),
    "nearid": ("idmetric.metric.models.nearid", "NearID"),
    "qwen2_5_vl": ("idmetric.metric.models.visid", "VisIDEmbed"),
    "qwen2_vl": ("idmetric.metric.models.visid", "VisIDEmbed"),
    "backbone": ("idmetric.metric.models.backbone", "Backbone"),
}


def imports_module(name: str) -> bool:
    """Whether `load` would import a module of this name, `package.module:Class`."""
    return names.is_class(name) and not names.known(name)


def load(source: StrPath, **options: Any) -> Embedder:
    """Open a model by name, folder or Hub repository, in the class its config names.

    Args:
        source: "tiny", a published model's name (`released.models()`: "dinov3_vitl16", "nearid", "visid_3b", ...), a
            folder that `save_pretrained` or training wrote or in a published format, a Hub repository `owner/name` with
            such files, "timm:NAME" or "hf-hub:owner/name" for a frozen `Backbone`, a published score such as
            "dino-i:dreambooth" or a frozen encoder such as "frozen:dinov3-l16" (`idmetric.metric.models.named`),
            "efficientnet-lite0" (also 1, 2), which needs no Hub, or "package.module:Class", which is imported, for an
            embedder of your own (`idmetric.metric.models.custom`).
        options: passed to the class, e.g. device, dtype, revision, preprocessing.

    Raises:
        CheckpointError: if it cannot be found or is of no kind this version knows.
        ValueError: for preprocessing="release" of a model other than ID-Sim and NearID.
    """
    name = source_name(source)
    kind = names.check(name)  # before torch is imported
    return _load(kind, name, options)


def _load(kind: str, name: str, options: dict[str, Any]) -> Embedder:
    from idmetric.metric.checkpoints import format as checkpoint
    from idmetric.metric.checkpoints.folder import Files
    from idmetric.metric.checkpoints.released import ADAPTER_CONFIG
    from idmetric.metric.checkpoints.revision import Hub

    if kind == "timm":
        kind, name = "backbone", name.removeprefix("timm:")
    elif kind == "frozen":
        kind = "backbone"
        name, pool = FROZEN[name]
        options = {"pool": pool, **options}
    elif kind == "class":
        from idmetric.metric.models.custom import open_custom

        return open_custom(name, options)
    elif kind in ("folder", "hub"):
        if Path(name, ADAPTER_CONFIG).is_file():
            kind = "idsim"
        else:
            hub = Hub(**{field.name: options[field.name] for field in fields(Hub) if field.name in options})
            kind = str(checkpoint.read_json(Files(name, hub)[checkpoint.CONFIG]).get("model_type"))

    if kind not in _CLASSES:
        raise CheckpointError(f"{name!r} holds a model of unknown type {kind!r}; known: {', '.join(_CLASSES)}")
    if kind not in ("idsim", "nearid") and options.pop("preprocessing", None) == "release":
        raise ValueError(f"{name!r}: preprocessing='release' is for ID-Sim and NearID alone")
    module, attribute = _CLASSES[kind]
    model: Embedder = getattr(importlib.import_module(module), attribute)(name, **options)
    return model
