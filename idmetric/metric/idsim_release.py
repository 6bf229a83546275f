"""ID-Sim models in folders and Hub repositories; as released, a PEFT adapter and two heads over a frozen backbone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint, file_of, revision_of
from idmetric.metric.checkpoints.lora import check_layers, check_lora, is_trained, merge_lora
from idmetric.metric.checkpoints.released import (
    ADAPTER,
    ADAPTER_CONFIG,
    HEADS,
    IDSIM,
    short_name,
    source_name,
)
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.checkpoints.weights import read_finite, renamed
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath
from idmetric.metric.timm_models import (
    build,
    dinov3_names,
    fitted,
    pretrained_file,
    read_weights,
    resample_positions,
    with_biases,
)

FILES = (*checkpoint.FILES, ADAPTER_CONFIG, ADAPTER, *HEADS.values())
_SIDE = 448  # of the release's input, in pixels
_PREFIX = "base_model.model."
_TRUNK = "extractor.model."
_WRAPPED = ".base_layer."  # in PEFT's names of layers with LoRA
_TRAINED = "modules_to_save.default."  # before PEFT's copy of a module that it trains as a whole


def read_checkpoint(
    source: StrPath,
    hub: Mapping[str, Any],
    variant: str | None,
    backbone_weights: StrPath | None,
    backbone_args: Mapping[str, Any] | None,
) -> tuple[str, Checkpoint]:
    """Read the `source` of an `IDSim` other than "tiny", and give its name; the other arguments as there.

    Args:
        hub: options of `resolve`.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood.
    """
    name = short_name(source_name(source))
    folder = resolve(source, FILES, **hub)
    if not (folder / ADAPTER_CONFIG).is_file():
        return name, checkpoint.read(folder)

    folder_name = os.path.basename(short_name(str(folder.resolve())))
    variants = [variant] if variant else [known for known in IDSIM if known in folder_name]
    if len(variants) != 1 or variants[0] not in IDSIM:
        raise CheckpointError(
            f"{str(folder)!r} holds an ID-Sim adapter, but its name does not show for which backbone: pass variant=, "
            f"one of {', '.join(IDSIM)}"
        )
    backbone = IDSIM[variants[0]].backbone
    if backbone_weights is None:
        backbone_weights = pretrained_file(backbone, {**hub, "revision": None})  # the revision is the adapter's
    return name, read_idsim(folder, backbone, backbone_weights, backbone_args)


def read_idsim(
    folder: Path,
    backbone: str,
    backbone_weights: StrPath,
    backbone_args: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Read an ID-Sim checkpoint as its authors published it: a PEFT adapter and two heads, over a frozen backbone.

    The adapter is folded into timm's weights. Official file names and key prefixes are expected; PEFT may have wrapped
    the patch embedding and the heads as well, as it does when `target_modules` is a list of name endings. A DINOv3 with
    query or value biases, in its file or in the adapter, becomes timm's variant with them.

    Args:
        folder: has the four official files.
        backbone: timm's name.
        backbone_weights: safetensors in timm's format, or Meta's .pth.
        backbone_args: more arguments of `timm.create_model`.

    Returns:
        A checkpoint in our own format, `config` fitting `IDSimConfig`; its revision names both parts, as
        "adapter+backbone".
    """
    files = [file_of(folder, name) for name in (ADAPTER, ADAPTER_CONFIG, *HEADS.values())]
    adapter_file, config_file, *head_files = files
    lora = checkpoint.read_json(config_file)
    with understanding(config_file):
        check_lora(lora)
    with understanding(adapter_file):
        adapter = _trunk_adapter(read_finite(adapter_file), lora)
    state = {}
    for head, path in zip(HEADS, head_files, strict=True):
        for key, value in read_head(path, lora, f"{head}.").items():
            state[f"{head}.{key}"] = value

    with understanding(backbone_weights):
        published = read_weights(backbone_weights)
        if "dinov3" in backbone:
            adapter = dinov3_names(adapter)
            backbone = with_biases(backbone, published, adapter)
        model = build(backbone, args=backbone_args, empty=True)
        trunk = fitted(published, model, backbone, backbone_weights)
        if "dinov2" in backbone:
            # Meta's DINOv2 resamples its position embedding without antialiasing and with a slightly larger factor;
            # timm's resampling differs, so it is done here on the table of the pretrained size
            side = _SIDE // trunk["patch_embed.proj.weight"].shape[-1]
            trunk["pos_embed"] = resample_positions(trunk["pos_embed"], (side, side), 0.1)
    with understanding(adapter_file):
        check_layers(trunk, adapter, lora, _TRUNK)
        if not any(".lora_" in key for key in adapter):
            raise CheckpointError("it holds no LoRA for the backbone: its config targets none of its layers")
        trunk = merge_lora(trunk, adapter, lora, _TRUNK)
    state |= {f"backbone.{key}": value for key, value in trunk.items()}

    config = {
        "model_type": "idsim",
        "backbone": backbone,
        "backbone_args": dict(backbone_args or {}),
        "image_size": _SIDE,
        "hidden": len(state["mlp_cls.fc1.weight"]),
    }
    revision = f"{revision_of(*files)}+{revision_of(backbone_weights)[:12]}"
    return Checkpoint(config, state, revision, folder)


def _trunk_adapter(adapter: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The adapter's tensors for the backbone; those for the heads are ignored, as the heads' files hold them too."""
    trunk_adapter = {}
    for key, value in adapter.items():
        name = key.removeprefix(_PREFIX)
        if name.startswith(_TRUNK) and (".lora_" in name or is_trained(name, config)):
            trunk_adapter[key] = value
        elif not name.startswith(tuple(HEADS)):
            raise CheckpointError(f"the adapter holds {key!r}: no trained layer of ID-Sim's backbone or heads")
    return renamed(trunk_adapter, lambda name: name.removeprefix(_PREFIX).removeprefix(_TRUNK).replace(_WRAPPED, "."))


def read_head(path: Path, lora_config: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """A head's weights with its LoRA, if PEFT has wrapped it, folded in."""
    with understanding(path):
        tensors = renamed(read_finite(path), lambda key: key.replace(_WRAPPED, "."))
    trained = {key.removeprefix(_TRAINED): value for key, value in tensors.items() if key.startswith(_TRAINED)}
    plain: dict[str, Tensor] = {}
    lora: dict[str, Tensor] = {}
    for key, value in (trained or tensors).items():
        part = lora if ".lora_" in key else plain
        part[key] = value
    with understanding(path):
        if not trained and lora_config:
            check_layers(plain, lora, lora_config, prefix)
        head = merge_lora(plain, lora, lora_config, prefix)
        if "fc1.weight" not in head:
            raise CheckpointError("not an ID-Sim head: it has no fc1.weight")
    return head
