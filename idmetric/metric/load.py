"""The names by which models are opened, checked before torch is imported."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.released import check_repository, source_name
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import StrPath
from idmetric.metric.named import FROZEN, NAMED
from idmetric.metric.tiny.efficientnet_lite import FILES as EFFICIENTNET_LITE

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder


TIMM = ("timm:", "hf-hub:")
_CLASS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def check_name(source: StrPath) -> str:
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


def tell_apart(model: Embedder) -> None:
    """Put "./" before the short name of a folder's model if a published model has that name."""
    if model.is_folder and known(model.short_name):
        model.short_name = f"./{model.short_name}"


def is_class(name: str) -> bool:
    """Whether this reads as `package.module:Class`."""
    return re.fullmatch(_CLASS, name) is not None


def _check_class(name: str) -> None:
    if not is_class(name):
        models = ["tiny", *released.MODELS, *EFFICIENTNET_LITE]
        raise CheckpointError(
            f"unknown model {name!r}: choose {', '.join(models)}, timm:NAME, a score or encoder of "
            "`idmetric models`, an existing folder, owner/name on the Hub, or package.module:Class"
        )


# `idmetric.load`: open a model without knowing its class.

_HUB = ("revision", "cache_dir", "token", "local_files_only")  # options of `resolve`
# model_type of config.json -> its class
_CLASSES = {
    "idsim": ("idmetric.metric.idsim", "IDSim"),
    "nearid": ("idmetric.metric.nearid", "NearID"),
    "qwen2_5_vl": ("idmetric.metric.visid.visid", "VisIDEmbed"),
    "qwen2_vl": ("idmetric.metric.visid.visid", "VisIDEmbed"),
    "backbone": ("idmetric.metric.backbone", "Backbone"),
}


def imports_module(name: str) -> bool:
    """Whether `load` would import a module of this name, `package.module:Class`."""
    return is_class(name) and not known(name)


def load(source: StrPath, **options: Any) -> Embedder:
    """Open a model by name, folder or Hub repository, in the class its config names.

    Args:
        source: "tiny", a published model's name (`released.MODELS`: "dinov3_vitl16", "nearid", "visid_3b", ...), a
            folder that `save_pretrained` or training wrote or in a published format, a Hub repository `owner/name` with
            such files, "timm:NAME" or "hf-hub:owner/name" for a frozen `Backbone`, a published score such as
            "dino-i:dreambooth" or a frozen encoder such as "frozen:dinov3-l16" (`idmetric.metric.named`),
            "efficientnet-lite0" (also 1, 2), which needs no Hub, or "package.module:Class", which is imported, for an
            embedder of your own (`idmetric.metric.custom`).
        options: passed to the class, e.g. device, dtype, revision, preprocessing.

    Raises:
        CheckpointError: if it cannot be found or is of no kind this version knows.
        ValueError: for preprocessing="release" of a model other than ID-Sim and NearID.
    """
    name = source_name(source)
    kind = check_name(name)  # before torch is imported
    return _load(kind, name, options)


def _load(kind: str, name: str, options: dict[str, Any]) -> Embedder:
    from idmetric.metric.checkpoints import format as checkpoint
    from idmetric.metric.checkpoints.released import ADAPTER_CONFIG
    from idmetric.metric.checkpoints.resolve import resolve

    if kind == "timm":
        kind, name = "backbone", name.removeprefix("timm:")
    elif kind == "frozen":
        kind = "backbone"
        name, pool = FROZEN[name]
        options = {"pool": pool, **options}
    elif kind == "class":
        from idmetric.metric.custom import open_custom

        return open_custom(name, options)
    elif kind in ("folder", "hub"):
        hub = {key: options[key] for key in _HUB if key in options}
        folder = resolve(name, [checkpoint.CONFIG, ADAPTER_CONFIG], **hub)
        if (folder / ADAPTER_CONFIG).is_file():
            kind = "idsim"
        else:
            kind = str(checkpoint.read_json(checkpoint.file_of(folder, checkpoint.CONFIG)).get("model_type"))

    if kind not in _CLASSES:
        raise CheckpointError(f"{name!r} holds a model of unknown type {kind!r}; known: {', '.join(_CLASSES)}")
    if kind not in ("idsim", "nearid") and options.pop("preprocessing", None) == "release":
        raise ValueError(f"{name!r}: preprocessing='release' is for ID-Sim and NearID alone")
    module, attribute = _CLASSES[kind]
    model: Embedder = getattr(importlib.import_module(module), attribute)(name, **options)
    return model
