"""The published checkpoints, and readers of the formats their authors chose."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric import backbone as backbones
from idmetric import checkpoint
from idmetric.checkpoint import Checkpoint, CheckpointError


@dataclass(frozen=True)
class Release:
    """One published checkpoint: Hub repository, pinned commit where known, timm's name of its backbone, licences."""

    repo: str
    revision: str | None
    backbone: str
    licence: str


# Backbones: DINOv3 under Meta's "dinov3-license", DINOv2 under Apache-2.0. Of the heads and adapters only the ViT-B/14
# repository's licence could be confirmed; the code of the release is MIT.
IDSIM: dict[str, Release] = {
    "dinov3_vitl16": Release(
        "chaenayo/id-sim_dinov3_vitl16_cls_patch", None, "vit_large_patch16_dinov3.lvd1689m", "dinov3-license"
    ),
    "dinov3_vitb16": Release(
        "chaenayo/id-sim_dinov3_vitb16_cls_patch", None, "vit_base_patch16_dinov3.lvd1689m", "dinov3-license"
    ),
    "dinov2_vitl14": Release(
        "chaenayo/id-sim_dinov2_vitl14_cls_patch", None, "vit_large_patch14_dinov2.lvd142m", "apache-2.0"
    ),
    "dinov2_vitb14": Release(
        "chaenayo/id-sim_dinov2_vitb14_cls_patch",
        "bcd3f388bec7db42e75b165e235196833111c4ae",
        "vit_base_patch14_dinov2.lvd142m",
        "mit",
    ),
}

IDSIM_SIZE = 448
ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
HEADS = {"mlp_cls": "mlp_cls.pth", "mlp_patch": "mlp_patch.pth"}
_PREFIX = "base_model.model."
_TRUNK = "extractor.model."


def idsim_variant(folder: str | os.PathLike[str]) -> str | None:
    """Which released ID-Sim variant a folder's name speaks of, e.g. "id-sim_dinov3_vitb16_cls_patch"."""
    name = Path(folder).resolve().name
    return next((variant for variant in IDSIM if variant in name), None)


def read_idsim(
    release: Release,
    *,
    folder: str | os.PathLike[str] | None = None,
    backbone_args: Mapping[str, Any] | None = None,
    backbone_weights: str | os.PathLike[str] | None = None,
    image_size: int = IDSIM_SIZE,
    revision: str | None = None,
    cache_dir: str | None = None,
) -> Checkpoint:
    """Read an ID-Sim checkpoint as its authors published it: a PEFT adapter and two heads, over a frozen backbone.

    The adapter is folded into timm's weights. Official file names and key prefixes are expected; PEFT may have wrapped
    the patch embedding and the heads as well, as it does when `target_modules` is a list of name endings.

    Args:
        release: which repository and backbone.
        folder: local folder with the four official files, instead of the Hub's.
        backbone_args: more arguments of `timm.create_model`.
        backbone_weights: local file with the backbone in timm's format, instead of timm's Hub repository.
        image_size: input side in pixels (the release's is 448).
        revision: commit of the Hub repository, instead of the pinned one.
        cache_dir: where Hub files are kept.

    Returns:
        A checkpoint in our own format, `config` fitting `IDSimConfig`.

    Raises:
        CheckpointError: naming the file that is missing, unreachable or not understood.
    """

    def path(filename: str) -> Path:
        if folder is not None:
            return Path(folder, filename)
        return checkpoint.fetch(
            release.repo, filename, revision=revision or release.revision, cache_dir=cache_dir
        )  # the adapter's files first: they are small, and say early that there is no network

    adapter_config = checkpoint.read_json(path(ADAPTER_CONFIG))
    adapter = checkpoint.read_tensors(path(ADAPTER))
    heads = {name: _read_head(path(file), adapter_config) for name, file in HEADS.items()}
    weights = backbone_weights or backbones.pretrained_file(release.backbone, cache_dir=cache_dir)
    trunk = _read_trunk(release.backbone, weights, image_size, dict(backbone_args or {}))
    trunk = checkpoint.fold_lora(trunk, _trunk_adapter(adapter), adapter_config)
    state = {f"backbone.{key}": value for key, value in trunk.items()}
    state |= {f"{name}.{key}": value for name, head in heads.items() for key, value in head.items()}
    config: dict[str, Any] = {
        "model_type": "idsim",
        "format": checkpoint.FORMAT,
        "backbone": release.backbone,
        "backbone_args": dict(backbone_args or {}),
        "image_size": image_size,
        "hidden": heads["mlp_cls"]["fc1.weight"].shape[0],
    }
    name = release.repo if folder is None else os.fspath(folder)
    return Checkpoint(config, state, name, checkpoint.revision_of(path(ADAPTER)))


def _trunk_adapter(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter's tensors for the backbone; those for the heads stand in the heads' own files too, which win."""
    found = {}
    for key, value in adapter.items():
        name = key.removeprefix(_PREFIX)
        if name.startswith(_TRUNK):
            found[name.removeprefix(_TRUNK)] = value
        elif not name.startswith(tuple(HEADS)):
            raise CheckpointError(f"the adapter holds {key!r}: not a layer of ID-Sim's backbone or heads")
    return found


def _read_head(path: Path, adapter_config: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        # the one pickle we read: published so; weights_only admits tensors and plain containers alone
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(f"cannot read the head {str(path)!r}: {error}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{str(path)!r} does not hold a table of tensors")
    plain = {key.replace(".base_layer.", "."): value for key, value in state.items() if ".lora_" not in key}
    lora = {key: value for key, value in state.items() if ".lora_" in key}
    folded = checkpoint.fold_lora(plain, lora, adapter_config)
    if "fc1.weight" not in folded:
        raise CheckpointError(f"{str(path)!r} is not an ID-Sim head: it has no fc1.weight")
    return folded


def _read_trunk(name: str, weights: str | os.PathLike[str], image_size: int, args: dict[str, Any]) -> dict[str, Tensor]:
    if "dinov2" not in name:
        return dict(backbones.build(name, image_size=image_size, args=args, weights=weights).state_dict())
    # Meta's DINOv2 resamples its position embedding without antialiasing and with a slightly larger factor;
    # timm's resampling differs, so it is done here on the table of the pretrained size
    state = dict(backbones.build(name, args=args, weights=weights).state_dict())
    patch = state["patch_embed.proj.weight"].shape[-1]
    state["pos_embed"] = resample_dinov2_positions(state["pos_embed"], image_size // patch)
    return state


def resample_dinov2_positions(table: Tensor, side: int) -> Tensor:
    """DINOv2's position embedding (1, 1 + n * n, D) for a grid of side x side patches, as Meta's code computes it.

    Bicubic, not antialiased, with the scale factor (side + 0.1) / n.
    """
    n = round((table.shape[1] - 1) ** 0.5)
    if n == side:
        return table
    grid = table[:, 1:].float().reshape(1, n, n, -1).permute(0, 3, 1, 2)
    factor = (side + 0.1) / n
    grid = F.interpolate(grid, scale_factor=(factor, factor), mode="bicubic", antialias=False)
    if grid.shape[-2:] != (side, side):
        raise CheckpointError(f"cannot resample a position embedding of {n} x {n} to {side} x {side}")
    return torch.cat([table[:, :1].float(), grid.permute(0, 2, 3, 1).reshape(1, side * side, -1)], 1)
