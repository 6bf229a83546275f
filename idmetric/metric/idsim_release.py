"""ID-Sim models in folders and Hub repositories; as released, a PEFT adapter and two heads over a frozen backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint
from idmetric.metric.checkpoints.lora import check_lora, merge_lora
from idmetric.metric.checkpoints.released import (
    ADAPTER,
    ADAPTER_CONFIG,
    HEADS,
    IDSIM,
    Release,
    files_of,
    find,
    idsim_variant,
    short_name,
    source_name,
)
from idmetric.metric.checkpoints.resolve import Files, Hub, revision_of
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

_SIDE = 448  # of the release's input, in pixels
_PREFIX = "base_model.model."
_TRUNK = "extractor.model."


def read_checkpoint(
    source: StrPath,
    hub: Hub,
    variant: str | None,
    backbone_weights: StrPath | None,
    backbone_args: Mapping[str, Any] | None,
) -> tuple[str, Checkpoint]:
    """Read the `source` of an `IDSim` other than "tiny", and give its name; the other arguments as there.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood.
    """
    name = source_name(source)
    release = find(name, IDSIM)
    if release is None and Path(name, ADAPTER_CONFIG).is_file():
        release = IDSIM.get(variant or idsim_variant(name) or "")
        if release is None:
            raise CheckpointError(
                f"{name!r} holds an ID-Sim adapter, but its name does not show for which backbone: pass variant=, one "
                f"of {', '.join(IDSIM)}"
            )
    files = files_of(name, IDSIM, hub)
    if release is not None:
        saved = read_idsim(release, files, backbone_weights=backbone_weights, backbone_args=backbone_args)
    else:
        saved = checkpoint.read(files)
    return short_name(name), saved


def read_idsim(
    release: Release,
    files: Files,
    *,
    backbone_args: Mapping[str, Any] | None = None,
    backbone_weights: StrPath | None = None,
) -> Checkpoint:
    """Read an ID-Sim checkpoint as its authors published it: a PEFT adapter and two heads, over a frozen backbone.

    The adapter is folded into timm's weights. Official file names and key prefixes are expected; PEFT may have wrapped
    the patch embedding and the heads as well, as it does when `target_modules` is a list of name endings. A DINOv3 with
    query or value biases, in its file or in the adapter, becomes timm's variant with them.

    Args:
        release: which backbone.
        files: folder or Hub repository with the four official files.
        backbone_args: more arguments of `timm.create_model`.
        backbone_weights: local file with the backbone, instead of timm's Hub repository: safetensors in timm's format,
            or Meta's .pth.

    Returns:
        A checkpoint in our own format, `config` fitting `IDSimConfig`; its revision names both parts, as
        "adapter+backbone".
    """
    # the adapter's files first: they are small, and a missing network shows early
    adapter_config = checkpoint.read_json(files[ADAPTER_CONFIG])
    with understanding(files[ADAPTER_CONFIG]):
        check_lora(adapter_config)
    with understanding(files[ADAPTER]):
        adapter = _trunk_adapter(read_finite(files[ADAPTER]))
    state = {}
    for head, file in HEADS.items():
        for key, value in read_head(files[file], adapter_config, f"{head}.").items():
            state[f"{head}.{key}"] = value

    # the backbone
    hub = replace(files.hub, revision=None)  # the revision is the adapter's, not the backbone's
    weights = backbone_weights or pretrained_file(release.backbone, hub)
    with understanding(weights):
        name = release.backbone
        published = read_weights(weights)
        if "dinov3" in name:
            adapter = dinov3_names(adapter)
            name = with_biases(name, published, adapter)
        model = build(name, args=backbone_args, empty=True)
        trunk = fitted(published, model, name, weights)
        if "dinov2" in name:
            # Meta's DINOv2 resamples its position embedding without antialiasing and with a slightly larger factor;
            # timm's resampling differs, so it is done here on the table of the pretrained size
            side = _SIDE // trunk["patch_embed.proj.weight"].shape[-1]
            trunk["pos_embed"] = resample_positions(trunk["pos_embed"], (side, side), 0.1)
    with understanding(files[ADAPTER]):
        trunk = merge_lora(trunk, adapter, adapter_config, _TRUNK)
    state |= {f"backbone.{key}": value for key, value in trunk.items()}

    config = {
        "model_type": "idsim",
        "format": checkpoint.FORMAT,
        "backbone": name,
        "backbone_args": dict(backbone_args or {}),
        "image_size": _SIDE,
        "hidden": len(state["mlp_cls.fc1.weight"]),
    }
    adapter_revision = revision_of(*(files[file] for file in (ADAPTER, ADAPTER_CONFIG, *HEADS.values())))
    revision = f"{adapter_revision}+{revision_of(weights)[:12]}"
    return Checkpoint(config, state, files.name, revision, files)


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
