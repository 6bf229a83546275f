"""`idmetric.load`: a model by its name, which is checked before torch is imported."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.checkpoints.released import ADAPTER_CONFIG, MODELS, check_repository, find, source_name
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import StrPath
from idmetric.metric.named import FROZEN, NAMED
from idmetric.metric.tiny.efficientnet_lite import FILES as EFFICIENTNET_LITE

if TYPE_CHECKING:
    from idmetric.metric.embedder import Embedder

# model_type of config.json -> its class
_CLASSES = {
    "idsim": ("idmetric.metric.idsim", "IDSim"),
    "nearid": ("idmetric.metric.nearid", "NearID"),
    "qwen2_5_vl": ("idmetric.metric.visid.visid", "VisIDEmbed"),
    "qwen2_vl": ("idmetric.metric.visid.visid", "VisIDEmbed"),
    "backbone": ("idmetric.metric.backbone", "Backbone"),
}
_USERS_CLASS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"  # package.module:Class
_HUB = ("revision", "cache_dir", "token", "local_files_only")  # options of `resolve`


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
    kind = check_name(name)
    if kind == "class":
        from idmetric.metric.custom import open_custom

        return open_custom(name, options)
    if kind in ("folder", "hub"):
        kind = _type_of(name, {key: options[key] for key in _HUB if key in options})
    if name in FROZEN:
        name, pool = FROZEN[name]
        options = {"pool": pool, **options}
    if kind not in ("idsim", "nearid"):
        preprocessing = options.pop("preprocessing", None)
        if preprocessing not in (None, "standard"):
            raise ValueError(f"{name!r}: preprocessing={preprocessing!r} is for ID-Sim and NearID alone")

    module, class_name = _CLASSES[kind]
    model_class = getattr(importlib.import_module(module), class_name)
    return model_class(name.removeprefix("timm:"), **options)  # type: ignore[no-any-return]


def check_name(source: StrPath) -> str:
    """The kind of a name: its model_type if it is `known`, or "folder", "hub" or "class".

    A name that is known is never a folder: that is written "./NAME".

    Raises:
        CheckpointError: for a name that is neither known nor the form of a repository or class.
    """
    name = source_name(source)
    if kind := known(name):
        return kind
    if Path(name).is_dir():
        return "folder"
    if "/" in name:
        check_repository(name)
        return "hub"
    if re.fullmatch(_USERS_CLASS, name):
        return "class"
    models = ["tiny", *MODELS, *EFFICIENTNET_LITE]
    raise CheckpointError(
        f"unknown model {name!r}: choose {', '.join(models)}, timm:NAME, a score or encoder of `idmetric models`, an "
        "existing folder, owner/name on the Hub, or package.module:Class"
    )


def known(name: str) -> str:
    """The model_type of a name that the package knows; "" for others."""
    if name.startswith(("timm:", "hf-hub:")) or name in {**FROZEN, **NAMED, **EFFICIENTNET_LITE}:
        return "backbone"
    if name == "tiny":
        return "idsim"
    release = find(name)
    return release.model_type if release is not None else ""


def tell_apart(model: Embedder) -> None:
    """Put "./" before the short name of a folder's model if a published model has that name."""
    if model.is_folder and known(model.short_name):
        model.short_name = f"./{model.short_name}"


def _type_of(name: str, hub: dict[str, Any]) -> str:
    """The model_type of a folder or repository; `hub`: options of `resolve`."""
    from idmetric.metric.checkpoints.format import CONFIG, file_of, read_json
    from idmetric.metric.checkpoints.resolve import resolve

    folder = resolve(name, [CONFIG, ADAPTER_CONFIG], **hub)
    if (folder / ADAPTER_CONFIG).is_file():
        return "idsim"
    kind = str(read_json(file_of(folder, CONFIG)).get("model_type"))
    if kind not in _CLASSES:
        raise CheckpointError(f"{name!r} holds a model of unknown type {kind!r}; known: {', '.join(_CLASSES)}")
    return kind
