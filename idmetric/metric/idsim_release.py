"""ID-Sim models in folders and Hub repositories; as released, a PEFT adapter and two heads over a frozen backbone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint, file_of, revision_of
from idmetric.metric.checkpoints.lora import check_lora, merge_lora
from idmetric.metric.checkpoints.released import (
    ADAPTER,
    ADAPTER_CONFIG,
    HEADS,
    IDSIM,
    Release,
    find,
    short_name,
    source_name,
)
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.checkpoints.weights import read_finite
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
    source = source_name(source)
    folder = resolve(source, FILES, **hub)
    name = short_name(source)
    if not (folder / ADAPTER_CONFIG).is_file() and find(source, IDSIM) is None:
        return name, checkpoint.read(folder)

    name_of_folder = short_name(str(folder.resolve()))
    variants = [known for known in IDSIM if known in os.path.basename(name_of_folder)]
    release = IDSIM.get(variant or "".join(variants))
    if release is None:
        raise CheckpointError(
            f"{name!r} holds an ID-Sim adapter, but its name does not show for which backbone: pass variant=, one of "
            f"{', '.join(IDSIM)}"
        )
    return name, read_idsim(release, folder, hub, backbone_weights, backbone_args)


def read_idsim(
    release: Release,
    folder: Path,
    hub: Mapping[str, Any],
    backbone_weights: StrPath | None,
    backbone_args: Mapping[str, Any] | None,
) -> Checkpoint:
    """Read an ID-Sim checkpoint as its authors published it: a PEFT adapter and two heads, over a frozen backbone.

    The adapter is folded into timm's weights. Official file names and key prefixes are expected; PEFT may have wrapped
    the patch embedding and the heads as well, as it does when `target_modules` is a list of name endings. A DINOv3 with
    query or value biases, in its file or in the adapter, becomes timm's variant with them.

    Args:
        release: which backbone.
        folder: has the four official files.
        hub: options of `resolve`, for the backbone's repository; the revision is the adapter's.
        backbone_weights: local file with the backbone, instead of timm's repository: safetensors in timm's format, or
            Meta's .pth.
        backbone_args: more arguments of `timm.create_model`.

    Returns:
        A checkpoint in our own format, `config` fitting `IDSimConfig`; its revision names both parts, as
        "adapter+backbone".
    """
    config_file = file_of(folder, ADAPTER_CONFIG)
    adapter_file = file_of(folder, ADAPTER)
    adapter_config = checkpoint.read_json(config_file)
    with understanding(config_file):
        check_lora(adapter_config)
    with understanding(adapter_file):
        adapter = _trunk_adapter(read_finite(adapter_file))
    state = {}
    for head, name in HEADS.items():
        for key, value in read_head(file_of(folder, name), adapter_config, f"{head}.").items():
            state[f"{head}.{key}"] = value

    # the backbone
    if backbone_weights is None:
        backbone_weights = pretrained_file(release.backbone, {**hub, "revision": None})
    with understanding(backbone_weights):
        backbone = release.backbone
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
        trunk = merge_lora(trunk, adapter, adapter_config, _TRUNK)
    state |= {f"backbone.{key}": value for key, value in trunk.items()}

    config = {
        "model_type": "idsim",
        "format": checkpoint.FORMAT,
        "backbone": backbone,
        "backbone_args": dict(backbone_args or {}),
        "image_size": _SIDE,
        "hidden": len(state["mlp_cls.fc1.weight"]),
    }
    heads = [folder / name for name in HEADS.values()]
    adapter_revision = revision_of(adapter_file, config_file, *heads)
    revision = f"{adapter_revision}+{revision_of(backbone_weights)[:12]}"
    return Checkpoint(config, state, revision, folder)


def _trunk_adapter(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter's tensors for the backbone; those for the heads are ignored, as the heads' files hold them too."""
    trunk_adapter = {}
    for key, value in adapter.items():
        name = key.removeprefix(_PREFIX)
        if name.startswith(_TRUNK):
            trunk_adapter[_without_wrapper(name.removeprefix(_TRUNK))] = value
        elif not name.startswith(tuple(HEADS)):
            raise CheckpointError(f"the adapter holds {key!r}: not a layer of ID-Sim's backbone or heads")
    return trunk_adapter


def read_head(path: Path, adapter_config: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """A head's weights with its LoRA, if PEFT has wrapped it, folded in."""
    tensors = read_finite(path)
    trained = "modules_to_save.default."  # PEFT's copy of a module that it trains as a whole
    has_copy = any(key.startswith(trained) for key in tensors)
    plain, lora = {}, {}
    for key, value in tensors.items():
        if has_copy and not key.startswith(trained):
            continue
        key = key.removeprefix(trained)
        if ".lora_" in key:
            lora[key] = value
        else:
            plain[_without_wrapper(key)] = value
    with understanding(path):
        head = merge_lora(plain, lora, adapter_config, prefix)
        if "fc1.weight" not in head:
            raise CheckpointError("not an ID-Sim head: it has no fc1.weight")
    return head


def _without_wrapper(key: str) -> str:
    return key.replace(".base_layer.", ".")  # PEFT's name of a layer with LoRA
